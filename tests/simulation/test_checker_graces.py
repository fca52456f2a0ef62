"""The checker on broken connections: their locks are held until the grace is over, and no longer."""

from __future__ import annotations

import pytest

from tests.simulation.oracle.history import Lock
from tests.simulation.oracle.records import Violation
from tests.simulation.oracle.story import Story, record

pytestmark = pytest.mark.simulation

GRACE_MS = 1_000


def begun(grace_ms: int | None = GRACE_MS) -> tuple[Story, Lock]:
    """Return a history of a lock whose connection is cut."""
    story = Story()
    story.checker.history.grace_ms = grace_ms
    story.checker.history.wire_ms_max = 10
    story.send(1)
    story.commit(record(1))
    lock = story.deliver(1, 1, b"first")
    story.now_ms += 100
    return story, lock


def test_a_lock_is_held_until_the_grace_is_over() -> None:
    story, lock = begun()
    story.checker.connection_lost(1, "cut")
    story.now_ms += GRACE_MS - 1
    story.commit(record(1, delivery_count=1))
    with pytest.raises(Violation, match="two live locks"):
        story.deliver(1, 1, b"again", count=1, connection=2)
    assert lock.surely_live(story.now_ms)


def test_it_may_be_anothers_when_the_grace_is_over() -> None:
    story, _ = begun()
    story.checker.connection_lost(1, "cut")
    story.now_ms += GRACE_MS
    story.commit(record(1, delivery_count=1))
    story.deliver(1, 1, b"again", count=1, connection=2)


def test_it_must_not_be_lost_in_the_grace() -> None:
    story, lock = begun()
    story.checker.connection_lost(1, "cut")
    story.now_ms += GRACE_MS - 1
    story.checker.settling(lock, "abandon")
    with pytest.raises(Violation, match="the lock is live"):
        story.checker.settle_answered(lock, "abandon", story.now_ms, "com.microsoft:message-lock-lost")


def test_it_must_not_be_held_long_after_the_grace() -> None:
    story, lock = begun()
    story.checker.connection_lost(1, "cut")
    story.now_ms += GRACE_MS + 1_100
    story.checker.settling(lock, "release")
    with pytest.raises(Violation, match="of a broken connection"):
        story.checker.settle_answered(lock, "release", story.now_ms, None)


def test_without_an_end_of_the_grace_it_is_held_until_it_lapses() -> None:
    story, lock = begun(None)
    story.checker.connection_lost(1, "cut")
    story.now_ms += GRACE_MS + 1_100
    story.checker.settling(lock, "release")
    story.checker.settle_answered(lock, "release", story.now_ms, None)


def renew(story: Story, lock: Lock, connection: int) -> None:
    """Renew a lock over a connection."""
    renewal = story.checker.renewing(lock, connection)
    asked_ms = story.now_ms
    story.now_ms += 1
    story.checker.renew_answered(lock, asked_ms, asked_ms + 5_000, connection, renewal)


def test_a_renewed_lock_is_of_the_connection_that_renewed_it() -> None:
    story, lock = begun()
    renew(story, lock, 2)
    story.checker.connection_lost(1, "cut")
    story.now_ms += GRACE_MS + 1_100
    assert lock.surely_live(story.now_ms)
    story.checker.connection_lost(2, "cut")
    story.now_ms += GRACE_MS
    assert not lock.surely_live(story.now_ms)


def test_a_renewal_in_the_grace_saves_a_lock() -> None:
    story, lock = begun()
    story.checker.connection_lost(1, "cut")
    story.now_ms += GRACE_MS - 10
    renew(story, lock, 2)
    story.now_ms += GRACE_MS
    assert lock.surely_live(story.now_ms)


def test_of_two_renewals_at_a_time_either_may_be_the_last() -> None:
    story, lock = begun()
    first, second = (story.checker.renewing(lock, connection) for connection in (1, 2))
    asked_ms = story.now_ms
    story.now_ms += 1
    for connection, renewal in ((2, second), (1, first)):
        story.checker.renew_answered(lock, asked_ms, asked_ms + 5_000, connection, renewal)
    assert lock.owners() == {1, 2}
    renew(story, lock, 2)
    assert lock.owners() == {1, 2}  # asked for in the instant of the last answer
    story.now_ms += 1
    renew(story, lock, 1)
    assert lock.owners() == {1}


def test_a_connection_that_closed_before_it_broke_leaves_its_locks() -> None:
    story, lock = begun()
    story.checker.connection_lost(1, "close")
    story.checker.connection_lost(1, "cut")
    story.now_ms += GRACE_MS + 1_100
    story.checker.settling(lock, "release")
    story.checker.settle_answered(lock, "release", story.now_ms, None)
