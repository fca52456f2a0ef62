"""The results of the matrix, which docs/reference/matrix.md is made from.

Owns: the file. Must not know: how a row is run.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from tests.spark.matrix.environments import ROOT, TABLES

FILE = ROOT / "docs/matrix.json"


@dataclass(frozen=True, slots=True)
class Result:
    """One row."""

    spark: str
    format: str
    jars: list[str]
    cells: dict[str, str]
    kills: int
    """How many drivers were killed for it."""


def tested() -> list[tuple[str, str, list[str]]]:
    """Return Spark, format and jars of each row, in their order."""
    return [(spark, table.format, [*table.jars]) for spark, tables in TABLES.items() for table in tables]


def read() -> list[Result]:
    """Return what the file has."""
    rows: list[dict[str, Any]] = json.loads(FILE.read_text()) if FILE.exists() else []
    return [Result(**row) for row in rows]


def write(new: Result) -> None:
    """Replace a row. A row that was never run has no cells; one that is no longer tested leaves the file."""
    rows = {(row.spark, row.format): row for row in (*read(), new)}
    kept = [rows.get((spark, name), Result(spark, name, jars, {}, 0)) for spark, name, jars in tested()]
    FILE.write_text(json.dumps([asdict(row) for row in kept], indent=1) + "\n")
