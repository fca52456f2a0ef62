"""The checker itself: each promise about sending, receiving and settling, once kept and once broken, without
any broker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peeklock.amqp.encoding import encode
from peeklock.broker.vocabulary.changes import EntityStored
from peeklock.broker.vocabulary.message import MessageState
from tests.simulation.oracle.history import Seen
from tests.simulation.oracle.records import Violation
from tests.simulation.oracle.story import DEAD, LOCK_MS, QUEUE, Story, record

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
    with pytest.raises(Violation, match="without a request"):
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


@pytest.mark.parametrize("was_scheduled", [True, False])
def test_a_delivery_must_say_whether_its_message_was_scheduled(was_scheduled: bool) -> None:
    story = Story()
    story.send(1)
    if was_scheduled:
        story.commit(record(1, state=MessageState.SCHEDULED))
        story.commit(((QUEUE, 1),), record(2, slot=0, enqueued_sequence_number=1))
    else:
        story.commit(record(1))
    states = [MessageState.ACTIVE, MessageState.SCHEDULED]
    number = 2 if was_scheduled else 1
    with pytest.raises(Violation, match="was scheduled" if was_scheduled else "was never scheduled"):
        story.deliver(1, number, b"first", first_number=1, state=states[not was_scheduled])


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


def test_a_deferral_must_count() -> None:
    story = Story()
    story.send(1)
    story.commit(record(1))
    with pytest.raises(Violation, match="deferred, yet the delivery count did not go up"):
        story.commit(record(1, state=MessageState.DEFERRED))


def test_a_deferral_counts_to_who_asks_for_the_message() -> None:
    for count in (0, 1):
        story = Story()
        story.send(1)
        story.commit(record(1))
        lock = story.deliver(1, 1, b"first")
        story.checker.settling(lock, "defer")
        story.commit(record(1, delivery_count=1, state=MessageState.DEFERRED))
        story.checker.settle_answered(lock, "defer", story.now_ms, None)
        story.now_ms += 1
        story.deliver(1, 1, b"second", count=count)
        if count:
            story.checker.finish()
            continue
        with pytest.raises(Violation, match="the delivery count did not go up"):
            story.checker.finish()


def test_an_acknowledged_deferral_must_be_counted_on_stable_storage() -> None:
    story = Story()
    story.send(1)
    story.commit(record(1, delivery_count=1))
    story.commit(record(1, delivery_count=2, state=MessageState.DEFERRED))
    lock = story.deliver(1, 1, b"first", count=2)
    story.checker.settling(lock, "defer")
    with pytest.raises(Violation, match="not on stable storage"):
        story.checker.settle_answered(lock, "defer", story.now_ms, None)


def test_the_last_deferral_dead_letters_also_what_has_expired() -> None:
    for asked in (True, False):
        story = Story()
        story.send(1)
        story.commit(record(1, delivery_count=2, expires_at_ms=1_010))
        lock = story.deliver(1, 1, b"first", count=2)
        story.now_ms += 1_000
        if asked:
            story.checker.settling(lock, "defer")
        reason = encode({"DeadLetterReason": "MaxDeliveryCountExceeded"})
        dead = record(1, queue_id=DEAD, delivery_count=3, expires_at_ms=1_010, overlay=reason)
        if asked:
            story.commit(((QUEUE, 1),), dead)
            continue
        with pytest.raises(Violation, match="expired, yet dead-lettered for MaxDeliveryCount"):
            story.commit(((QUEUE, 1),), dead)


def test_what_is_delivered_is_judged_by_the_maximum_of_then() -> None:
    """A client may see it after the maximum was lowered, if it was locked before.

    Req: L-08

    Source: wire contract C23.
    """
    for lowered_first in (False, True):
        story = Story()
        story.send(1)
        story.commit(record(1, delivery_count=2))
        lowered = EntityStored(1, replace(story.descriptions[0], max_delivery_count=2), 0, 0)
        story.now_ms += 1_000
        story.commit(lowered)
        if not lowered_first:
            seen = Seen(1, 1, 1, 2, story.now_ms - 1 + LOCK_MS, MessageState.ACTIVE, None, None)
            story.checker.delivered(seen, "orders", b"first", 1)
            continue
        story.now_ms += 1_000
        with pytest.raises(Violation, match="past MaxDeliveryCount 2"):
            story.deliver(1, 1, b"first", count=2)


def test_a_message_is_worn_by_the_maximum_of_then() -> None:
    """Req: L-08"""
    reason = encode({"DeadLetterReason": "MaxDeliveryCountExceeded"})
    for most in (2, 3):
        story = Story()
        story.send(1)
        story.commit(record(1, delivery_count=2))
        story.commit(EntityStored(1, replace(story.descriptions[0], max_delivery_count=2), 0, 0))
        story.commit(EntityStored(1, replace(story.descriptions[0], max_delivery_count=most), 0, 0))
        dead = record(1, queue_id=DEAD, delivery_count=2, overlay=reason)
        if most == 2:
            story.commit(((QUEUE, 1),), dead)
            continue
        with pytest.raises(Violation, match="too early"):
            story.commit(((QUEUE, 1),), dead)


def test_the_count_of_a_dead_letter_must_not_change() -> None:
    story = Story()
    story.send(1)
    story.commit(record(1))
    story.checker.sent[1].reasons.add("dead-letter None")
    story.commit(((QUEUE, 1),), record(1, queue_id=DEAD, slot=0))
    with pytest.raises(Violation, match="of a dead letter went up"):
        story.commit(record(1, queue_id=DEAD, slot=0, delivery_count=1))


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


def test_a_dead_letter_needs_a_reason() -> None:
    story = Story()
    story.send(1)
    story.commit(record(1))
    with pytest.raises(Violation, match="for a reason that no client gave"):
        story.commit(((QUEUE, 1),), record(1, queue_id=DEAD, slot=0))
