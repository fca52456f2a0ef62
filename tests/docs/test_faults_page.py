"""The page of faults comes from the rounds of the matrix, and is current."""

from __future__ import annotations

from docs.faults import PAGE, TITLES, read, table
from tests.faults.faults import FAULTS


def test_the_page_is_current() -> None:
    """Run `python -m docs.faults` when this fails."""
    page = PAGE.file.read_text(encoding="utf-8")
    assert page == PAGE.written(page)


def test_each_fault_has_a_title() -> None:
    assert [*TITLES] == [*FAULTS]


def test_a_row_has_medians_and_the_worst_gap() -> None:
    rounds = [
        {"fault": "move", "sends_gap_s": gap, "completions_gap_s": 2 * gap, "load_average": 3.0}
        for gap in (1.0, 2.0, 9.0)
    ]
    lines = list(table([*rounds, {"fault": "move", "failed": "lost"}]))
    assert lines[0] == "4 rounds; 1 failed."
    assert lines[-1] == "| `peeklock cluster move` | 4 | 1 | 2.0 s | 9.0 s | 4.0 s | 18.0 s | 3 |"


def test_all_rounds_of_the_page_are_of_known_faults() -> None:
    assert {one["fault"] for one in read()} <= FAULTS.keys()
