"""The reference of the data source names every column that can be written, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from peeklock.spark.sink.columns import COLUMNS

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).parents[3] / "docs/reference/spark.md").read_text(encoding="utf-8")


def test_each_column_of_a_write_has_its_entry() -> None:
    table = PAGE.partition("\n## Columns of a write\n")[2].partition("\n## ")[0]
    cells = " ".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`([^`]+)`", cells)) == set(COLUMNS)
