"""The checker itself: each promise about sending, receiving and settling, once kept and once broken, without
any broker."""

from __future__ import annotations

import pytest

from tests.simulation.records import Violation
from tests.simulation.story import DEAD, LOCK_MS, QUEUE, Story, record

pytestmark = pytest.mark.simulation


def test_numbers_must_follow_each_other() -> None:
    story = Story()
    story.send(1, 2, 3)
    story.commit(record(1), record(2))
    with pytest.raises(Violation, match="skipped"):
        story.commit(record(4, slot=2))


def test_a_number_must_not_come_again() -> None:
    story = Story()
    story.send(1, 2)
    story.commit(record(1))
    story.checker.sent[1].reasons.add("complete")
    story.commit(((QUEUE, 1),))
    with pytest.raises(Violation, match="used again"):
        story.commit(record(1, slot=1))


def test_enqueued_time_must_not_go_backwards() -> None:
    story = Story()
    story.send(1, 2)
    story.commit(record(1))
    with pytest.raises(Violation, match="backwards"):
        story.commit(record(2, enqueued_at_ms=999))


def test_a_message_must_be_in_one_place() -> None:
    story = Story()
    story.send(1)
    story.commit(record(1))
    with pytest.raises(Violation, match="two places"):
        story.commit(record(2, slot=0))


def test_nothing_may_go_without_a_reason() -> None:
    story = Story()
    story.send(1)
    story.commit(record(1))
    with pytest.raises(Violation, match="nobody asked"):
        story.commit(((QUEUE, 1),))


def test_an_accepted_message_must_be_stored() -> None:
    story = Story()
    story.send(1)
    with pytest.raises(Violation, match="not on stable storage"):
        story.checker.send_answered([1], "accepted")


def test_a_refused_message_must_not_be_stored() -> None:
    story = Story()
    story.send(1)
    story.checker.limited()
    story.checker.send_answered([1], "com.microsoft:server-busy")
    with pytest.raises(Violation, match="refused"):
        story.commit(record(1))


def test_a_batch_must_be_stored_whole() -> None:
    story = Story()
    story.send(1, 2, group=1)
    with pytest.raises(Violation, match="without its member"):
        story.commit(record(1))


def test_a_message_must_not_have_two_live_locks() -> None:
    story = Story()
    story.send(1)
    story.commit(record(1))
    story.deliver(1, 1, b"first")
    story.now_ms += LOCK_MS - 1
    with pytest.raises(Violation, match="two live locks"):
        story.deliver(1, 1, b"second", connection=2)


def test_a_lapsed_lock_makes_room_for_another_that_counts() -> None:
    story = Story()
    story.send(1)
    story.commit(record(1))
    story.deliver(1, 1, b"first")
    story.now_ms += LOCK_MS
    story.commit(record(1, delivery_count=1))
    story.deliver(1, 1, b"second", count=1, connection=2)
    story.checker.finish()


def test_a_lapse_must_count() -> None:
    story = Story()
    story.send(1)
    story.commit(record(1))
    story.deliver(1, 1, b"first")
    story.now_ms += LOCK_MS
    story.deliver(1, 1, b"second", connection=2)
    with pytest.raises(Violation, match="did not go up"):
        story.checker.finish()


def test_a_lock_from_before_a_crash_must_not_settle() -> None:
    story = Story()
    story.send(1)
    story.commit(record(1))
    lock = story.deliver(1, 1, b"first")
    story.now_ms += 10
    story.checker.crashed()
    story.now_ms += 10
    story.checker.settling(lock, "complete")
    with pytest.raises(Violation, match="lock from before"):
        story.checker.settle_answered(lock, "complete", story.now_ms, None)


def test_a_completion_must_be_durable_when_acknowledged() -> None:
    story = Story()
    story.send(1)
    story.commit(record(1))
    lock = story.deliver(1, 1, b"first")
    story.checker.settling(lock, "complete")
    with pytest.raises(Violation, match="not on stable storage"):
        story.checker.settle_answered(lock, "complete", story.now_ms, None)


def test_a_live_lock_must_not_be_called_lost() -> None:
    story = Story()
    story.send(1)
    story.commit(record(1))
    lock = story.deliver(1, 1, b"first")
    story.checker.settling(lock, "complete")
    with pytest.raises(Violation, match="the lock is live"):
        story.checker.settle_answered(lock, "complete", story.now_ms, "com.microsoft:message-lock-lost")


def test_nobody_is_dead_lettered_for_nothing() -> None:
    story = Story()
    story.send(1)
    story.commit(record(1))
    with pytest.raises(Violation, match="for a reason nobody gave"):
        story.commit(((QUEUE, 1),), record(1, queue_id=DEAD, slot=0))
