"""A cursor as its reader sees it, after a restore has skipped numbers of claims."""

from __future__ import annotations

from peeklock.client.claims import Claim, Cursor
from peeklock.client.connection import BlockingConnection
from peeklock.client.connection_string import ConnectionString
from peeklock.testing.served import ServedBroker

SKIPPED = 10**12


def test_numbers_that_a_restore_skipped_are_not_missing() -> None:
    """Req: X-02."""
    with ServedBroker() as broker:
        connection = BlockingConnection(ConnectionString.parse(broker.connection_string, timeout_s=10))
        cursor = Cursor(connection, "orders", "lake")
        connection.close()
    cursor.claims = {no: Claim(no, 1, 1) for no in (2, 4, SKIPPED + 5, SKIPPED + 7)}
    assert cursor.lacks(1, 4) == [3]
    cursor.undone = (5, SKIPPED + 3)
    assert cursor.lacks(1, SKIPPED + 8) == [3, SKIPPED + 4, SKIPPED + 6, SKIPPED + 8]
    assert cursor.lacks(4, SKIPPED + 3) == []
    assert cursor.lacks(SKIPPED + 4, SKIPPED + 5) == []
    assert [cursor.has_undone(no) for no in (4, 5, SKIPPED + 3, SKIPPED + 4)] == [False, True, True, False]
    assert cursor.has_all_up_to(SKIPPED + 7)
    assert not cursor.has_all_up_to(SKIPPED + 6)
