"""The reference of the data source names every option and every column, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from peeklock.spark.options import KNOWN
from peeklock.spark.source.schema import row_schema

PAGE = (Path(__file__).parents[2] / "docs/reference/spark.md").read_text(encoding="utf-8")


def first_cells(section: str) -> set[str]:
    """Return the names in the first cells of a section's table."""
    table = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return set(re.findall(r"`([^`]+)`", " ".join(rows)))


def test_each_option_has_its_entry() -> None:
    assert first_cells("Options") == set(KNOWN)


@pytest.mark.spark
def test_each_column_has_its_entry() -> None:
    assert first_cells("Columns") == set(row_schema(include_encoded=True).names)
