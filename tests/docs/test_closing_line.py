"""`python -m tests` adds up what its steps say, and no failure is lost on the way."""

from __future__ import annotations

import pytest

from tests.__main__ import count_outcomes


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
