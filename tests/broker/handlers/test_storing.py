"""Batches and schedules of many messages, stored in steps: as if at once, and a bounded number in each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from peeklock.amqp.messaging import Sections
from peeklock.broker.handlers.storing import SLICE_MESSAGES
from peeklock.broker.vocabulary.changes import MessageStored
from peeklock.broker.vocabulary.commands import Address, ReplyTo, Schedule, SendBatch, SequenceNumber
from peeklock.broker.vocabulary.effects import Accepted, MessagesScheduled, Rejected
from peeklock.broker.vocabulary.errors import InvalidOperation
from peeklock.broker.vocabulary.message import Message
from tests.broker.harness import EMPTY, LOTS, MINUTE_MS, Broker, arriving

COUNT = 25


def plain(broker: Broker) -> int:
    return broker.create()


def with_a_receiver(broker: Broker) -> int:
    queue_id = broker.create()
    broker.credit(broker.receiver(), 7)
    return queue_id


def with_sessions(broker: Broker) -> int:
    return broker.create(requires_session=True)


def with_duplicates(broker: Broker) -> int:
    return broker.create(requires_duplicate_detection=True)


def partitioned(broker: Broker) -> int:
    return broker.create(enable_partitioning=True)


def forwarding(broker: Broker) -> int:
    broker.create("sink")
    broker.create("middle", forward_to="sink")
    return broker.create(forward_to="middle")


def topic(broker: Broker) -> int:
    topic_id = broker.create_topic()
    for name in ("one", "two"):
        broker.subscribe(name)
    return topic_id


def batch(keyed: bool, **fields: Any) -> list[tuple[Message, Sections]]:
    return [
        (
            arriving(
                100 + n,
                message_id=b"%d" % (n % 20) if keyed else None,
                session_id=f"s{n % 3}" if keyed else None,
                **fields,
            ),
            EMPTY,
        )
        for n in range(COUNT)
    ]


KINDS = [plain, with_a_receiver, with_sessions, with_duplicates, partitioned, forwarding, topic]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("size", [1, 7, COUNT - 1, COUNT])
def test_a_batch_in_slices_is_stored_as_at_once(
    kind: Callable[[Broker], int], keyed: bool, size: int
) -> None:
    """Req: T-07"""
    keyed = keyed or kind is with_sessions
    whole, sliced = Broker(), Broker(slice_items=size)
    found = []
    for broker in (whole, sliced):
        queue_id = kind(broker)
        effects = broker.do(SendBatch(queue_id, batch(keyed), ReplyTo(9, 0, 9)))
        broker.settle_time()
        assert [effect for effect in effects if isinstance(effect, Accepted)] == [Accepted(ReplyTo(9, 0, 9))]
        found.append(
            [
                (
                    change.queue_id,
                    change.message.position,
                    change.message.sequence_number,
                    change.message.size_bytes,
                    change.message.session_id,
                )
                for change in broker.facts
                if isinstance(change, MessageStored)
            ]
        )
    assert found[0] == found[1]


def test_a_step_stores_no_more_than_a_slice() -> None:
    """Req: R-05"""
    broker = Broker(slice_items=10)
    queue_id = broker.create()
    changes, effects = broker.namespace.apply(
        SendBatch(queue_id, batch(False), ReplyTo(9, 0, 9)), broker.now_ms
    )
    steps = [len(changes)]
    while broker.namespace.unfinished:
        assert effects == []
        changes, effects = broker.namespace.go_on(broker.now_ms)
        steps.append(len(changes))
    assert steps == [10, 10, 5]
    assert effects == [Accepted(ReplyTo(9, 0, 9))]
    broker.namespace.check(broker.now_ms)
    assert SLICE_MESSAGES <= 500


def test_a_schedule_answers_all_numbers_with_its_last_slice() -> None:
    """Req: S-01"""
    broker = Broker(slice_items=10)
    broker.create()
    messages = batch(False, scheduled_at_ms=broker.now_ms + MINUTE_MS)
    (answer,) = broker.do(Schedule(Address("orders"), messages, ReplyTo(9, 0, 9)))
    assert answer == MessagesScheduled(ReplyTo(9, 0, 9), list(map(SequenceNumber, range(1, COUNT + 1))))


def test_a_batch_with_one_bad_message_stores_none() -> None:
    """The last one is checked before the first is stored. Req: T-07"""
    broker = Broker(slice_items=2)
    queue_id = broker.create(requires_session=True)
    messages = batch(True)
    messages[-1] = (arriving(), EMPTY)
    (refused,) = broker.do(SendBatch(queue_id, messages, ReplyTo(9, 0, 9)))
    assert isinstance(refused, Rejected)
    assert isinstance(refused.error, InvalidOperation)
    assert not broker.namespace.unfinished
    assert not any(isinstance(change, MessageStored) for change in broker.facts)


def test_receivers_are_served_with_each_slice() -> None:
    broker = Broker(slice_items=10)
    queue_id = broker.create()
    link = broker.receiver()
    broker.credit(link, LOTS)
    _, effects = broker.namespace.apply(SendBatch(queue_id, batch(False), None), broker.now_ms)
    counts = [len(effects)]
    while broker.namespace.unfinished:
        counts.append(len(broker.namespace.go_on(broker.now_ms)[1]))
    assert counts == [10, 10, 5]
