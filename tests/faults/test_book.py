"""What the reports of clients say."""

from __future__ import annotations

from tests.faults.book import COMPLETED, RECEIVED, SENT, UNKNOWN, Book


def test_what_is_right_is_no_fault() -> None:
    book = Book("orders")
    book.note("Python", SENT, "one")
    book.note("Python", UNKNOWN, "two")
    assert not book.is_drained()
    for name, number in (("one", 1), ("two", 2)):
        book.note("JavaScript", RECEIVED, name, number)
        book.note("JavaScript", COMPLETED, name, number)
    assert book.is_drained()
    assert not book.judge()
    assert book.count() == 3


def test_a_lost_a_strange_and_a_repeated_message_are_faults() -> None:
    book = Book("orders")
    book.note("Python", SENT, "lost")
    book.note("Python", SENT, "one")
    for name in ("one", "strange", "one"):
        book.note("Python", RECEIVED, name, 1)
        book.note("Python", COMPLETED, name, 1)
    assert book.judge() == [
        "one came back to Python after its completion",
        "one was completed twice, then by Python",
        "1 acknowledged messages are lost: lost",
        "1 messages were never sent: strange",
    ]


def test_a_delivery_that_was_not_completed_may_be_repeated() -> None:
    book = Book("orders")
    book.note("Python", SENT, "one")
    book.note("Python", RECEIVED, "one", 1)
    book.note("JavaScript", RECEIVED, "one", 1)
    assert not book.judge()


def test_the_gap_is_the_longest_that_ends_after_a_moment() -> None:
    book = Book("orders", moments=[0.0, 9.0, 10.0, 13.0, 14.0])
    assert book.gap_s(9.5) == 3.0
    assert book.gap_s(20.0) == 0.0
