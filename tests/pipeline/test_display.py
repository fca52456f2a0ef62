"""What people see of a job: nothing of a table is lost, however narrow the console."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from peeklock.pipeline.display import counted, print_table

NAMES = ("entity", "sent", "delivered", "completed", "dead_lettered", "expired", "redelivered", "left")
LONG = "invoices/Subscriptions/everything-that-was-ever-sent/$deadletterqueue"


def printed(width: int, names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    out = io.StringIO()
    console = Console(width=width, file=out)
    print_table(console, "What passed", names, rows)
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= width
    return text


def test_a_table_that_fits_is_printed_as_it_is() -> None:
    text = printed(110, NAMES, [("orders", 1_500, 1_600, 1_200, 30, 4, 100, 266)])
    assert len(text.splitlines()) == 6
    assert "dead lettered" in text


@pytest.mark.parametrize("width", [80, 40])
def test_a_table_that_does_not_fit_is_turned(width: int) -> None:
    rows = [
        (f"queue-{number}", 1_234_567 + number, 2_345_678, 3_456_789, 45_678, 56_789, 67_890, 78_901)
        for number in range(9)
    ]
    text = printed(width, NAMES, rows)
    for name in NAMES:
        assert name.replace("_", " ") in text
    for row in rows:
        assert row[0] in text
        assert f"{row[1]:,}" in text
    assert text.count("78,901") == len(rows)
    assert "…" not in text


def test_a_value_that_is_wider_than_the_console_is_broken_and_not_cut() -> None:
    text = printed(60, NAMES, [(LONG, 1, 2, 3, 4, 5, 6, 7)])
    assert LONG in "".join(part for part in text.replace("entity", "") if part not in "│┃ \n")
    assert "…" not in text


def test_square_brackets_are_text() -> None:
    assert "[red]" in printed(80, ("reason", "messages"), [("[red]", 1)])


def test_one_is_no_plural() -> None:
    assert [counted(number, "row") for number in (0, 1, 2_000)] == ["0 rows", "1 row", "2,000 rows"]
