"""`python -m tests` adds up what its steps say, and no failure is lost on the way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.__main__ import FOLDERS, count_outcomes


@pytest.mark.parametrize(
    ("line", "status", "outcome"),
    [
        ("12 passed in 1.52s", 0, (12, 0)),
        ("2 failed, 10 passed, 3 deselected in 1.52s", 1, (10, 2)),
        ("1 failed, 10 passed, 1 error in 62.10s (0:01:02)", 1, (10, 2)),
        ("12 passed in 1.52s", 3, (12, 1)),  # pytest itself failed after its tests
        ("no tests ran in 0.01s", 5, (0, 1)),  # a marker that selects nothing
    ],
)
def test_outcomes_are_read_from_the_closing_line(line: str, status: int, outcome: tuple[int, int]) -> None:
    assert count_outcomes(["....", "5 failed and more of that", line + "\n"], status) == outcome


def test_a_run_without_a_closing_line_is_a_failure() -> None:
    assert count_outcomes(["Segmentation fault"], -11) == (0, 1)


@pytest.mark.parametrize("marker", FOLDERS)
def test_marked_tests_are_where_their_step_looks_for_them(marker: str) -> None:
    root = Path(__file__).parents[2]
    looked_at = [root / folder for folder in FOLDERS[marker]]
    assert all(folder.is_dir() for folder in looked_at)
    marked = [file for file in (root / "tests").rglob("*.py") if f"mark.{marker}\n" in _lines(file)]
    assert marked
    assert [file for file in marked if not any(folder in file.parents for folder in looked_at)] == []


def _lines(file: Path) -> str:
    """Give a file's text with an end of line behind each marker."""
    return re.sub(r"\b(mark\.\w+)", "\\1\n", file.read_text(encoding="utf-8"))
