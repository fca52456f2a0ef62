"""Tables that fit a terminal, and those that do not."""

from __future__ import annotations

from peeklock.cli.tables import table

HEAD = ("NAME", "STATUS", "ACTIVE")
ROWS = (("orders", "Active", "1,200"), ("chats", "Disabled", "0"))


def test_a_table_that_fits_has_a_line_for_each_row() -> None:
    assert [*table(HEAD, ROWS, {"ACTIVE"}, width=24)] == [
        "NAME    STATUS    ACTIVE",
        "orders  Active     1,200",
        "chats   Disabled       0",
    ]


def test_a_table_that_does_not_fit_has_a_line_for_each_cell() -> None:
    assert [*table(HEAD, ROWS, {"ACTIVE"}, width=23)] == [
        "NAME    orders",
        "STATUS  Active",
        "ACTIVE  1,200",
        "",
        "NAME    chats",
        "STATUS  Disabled",
        "ACTIVE  0",
    ]


def test_a_row_without_a_name_of_its_column_keeps_its_first_cell() -> None:
    assert [*table(("", "RATE/S", "P50 MS"), [("end to end", "1", "2")], width=10)] == [
        "end to end",
        "RATE/S  1",
        "P50 MS  2",
    ]


def test_two_columns_and_a_head_alone_stay_a_table() -> None:
    lines = ["name    orders", "status  Active"]
    assert [*table(("name", "orders"), [("status", "Active")], width=5)] == lines
    assert [*table(HEAD, [], width=5)] == ["NAME  STATUS  ACTIVE"]
