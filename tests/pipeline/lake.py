"""Tables of Spark's files, read without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq


def committed_rows(folder: Path, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """Return the rows of a table that a stream fills: of the files in the sink's log, as Spark reads it.

    Files of batches that were cut off lie beside them, and are not the table's.
    """
    files = {
        Path(unquote(urlsplit(json.loads(line)["path"]).path))
        for log in (folder / "_spark_metadata").glob("[0-9]*")
        for line in log.read_text().splitlines()[1:]
    }
    return [
        row
        for file in sorted(files)
        for row in pq.read_table(file, columns=columns, partitioning=None).to_pylist()
    ]
