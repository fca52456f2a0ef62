"""Recovery: the last fact about a key holds, facts about unknown keys do not count."""

from __future__ import annotations

import copy
from collections import defaultdict

import pytest

from peeklock.broker.namespace import Namespace
from peeklock.broker.vocabulary.addresses import LockToken, SequenceNumber
from peeklock.broker.vocabulary.changes import (
    Change,
    EntityRemoved,
    EntityStored,
    MessageIdSeen,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
)
from peeklock.broker.vocabulary.descriptions import QueueDescription
from peeklock.broker.vocabulary.message import Message, MessageState
from peeklock.broker.vocabulary.quotas import STANDARD
from tests.broker.harness import START_MS, Broker, numbers


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create()
    return made


def test_the_last_fact_about_a_message_holds(broker: Broker) -> None:
    """Req: R-02"""
    broker.send()
    for _ in range(3):
        broker.abandon(broker.receive()[0])
    broker.restart()
    (delivery,) = broker.receive()
    assert delivery.delivery_count == 3


def test_what_was_completed_does_not_return(broker: Broker) -> None:
    """Req: R-02, L-05"""
    for _ in range(5):
        broker.send()
    for delivery in broker.receive(3)[1:]:
        broker.complete(delivery)
    broker.restart()
    assert numbers(broker.receive(5)) == [1, 4, 5]


def test_facts_about_unknown_entities_and_messages_do_not_count(broker: Broker) -> None:
    """Req: R-02"""
    broker.send()
    stray = Message(1)
    stray.position = 77
    broker.facts += [
        MessageStored(400, stray),
        MessageRemoved(400, stray),
        MessageRemoved(4, stray),
        NumbersIssued(400, 5, SequenceNumber(5), START_MS),
        MessageIdSeen(400, bytes(16), START_MS, SequenceNumber(1)),
        MessageIdSeen(4, bytes(16), START_MS, SequenceNumber(1)),
    ]
    broker.restart()
    assert numbers(broker.peek()) == [1]


def test_facts_written_again_at_the_end_change_no_order(broker: Broker) -> None:
    """Req: R-02, L-07"""
    for _ in range(4):
        broker.send()
    stored = [fact for fact in broker.facts if isinstance(fact, MessageStored)]
    broker.facts = [fact for fact in broker.facts if fact not in stored[:2]] + [stored[1], stored[0]]
    broker.restart()
    assert numbers(broker.receive(4)) == [1, 2, 3, 4]


def test_an_entity_removed_and_one_changed_in_the_journal() -> None:
    """Req: R-02"""
    namespace = Namespace(limits=STANDARD, tokens=lambda: LockToken(bytes(16)), digest_key=b"k")
    kept, gone = (
        EntityStored(1, QueueDescription("kept"), 1, 1),
        EntityStored(2, QueueDescription("gone"), 1, 1),
    )
    namespace.restore_entity(kept)
    namespace.restore_entity(gone)
    stored = Message(1)
    stored.position = 1
    changed = EntityStored(1, QueueDescription("kept", lock_duration_ms=5_000), 1, 2)
    namespace.restore([MessageStored(8, stored), EntityRemoved(2), EntityRemoved(9), changed])
    namespace.finish_restore(START_MS, 3)
    (view,) = namespace.entity_views()
    assert view.description == changed.description
    assert list(namespace.removed_entity_messages(2)) == []


def test_ids_of_entities_are_never_used_again(broker: Broker) -> None:
    """Req: R-02"""
    broker.restart()
    assert broker.create("second") == 8
    namespace = Namespace(limits=STANDARD, tokens=lambda: LockToken(bytes(16)), digest_key=b"k")
    namespace.finish_restore(START_MS, 12)
    broker.namespace = namespace
    assert broker.create("thirteenth") == 48


def test_a_lost_counter_is_made_up_from_the_messages(broker: Broker) -> None:
    """Req: S-01, R-02"""
    broker.send()
    broker.send()
    broker.facts = [fact for fact in broker.facts if not isinstance(fact, NumbersIssued)]
    broker.restart()
    assert broker.send().sequence_number == 3


def test_restored_records_share_their_numbers(broker: Broker) -> None:
    """Req: T-08"""
    broker.checks = False  # the number is not the one that was told
    broker.send()
    (stored,) = [fact for fact in broker.facts if isinstance(fact, MessageStored)]
    stored.message.sequence_number = SequenceNumber(int("1000000"))
    stored.message.position = int("1000000")
    stored.message.enqueued_sequence_number = SequenceNumber(int("1000000"))
    broker.restart()
    message = broker.peek()[0].message
    assert message.sequence_number is message.position is message.enqueued_sequence_number


def test_equal_sizes_are_one_object(broker: Broker) -> None:
    """Req: T-08. Each would take 32 bytes of its own."""
    first, second = broker.send(size=int("1000")), broker.send(size=int("1000"))
    assert first.size_bytes is second.size_bytes


def test_a_state_that_comes_as_a_plain_number_is_understood(broker: Broker) -> None:
    """Req: R-02"""
    broker.send()
    broker.defer(broker.receive()[0])
    for fact in broker.facts:
        if isinstance(fact, MessageStored):
            fact.message.state = int(fact.message.state)  # type: ignore[assignment]  # wrongly
    broker.restart()
    assert broker.peek()[0].state is MessageState.DEFERRED
    assert numbers(broker.receive_deferred(1)) == [1]


def test_what_still_holds_restores_the_same_as_the_whole_journal(broker: Broker) -> None:
    """Req: R-02"""
    for _ in range(6):
        broker.send()
    found = broker.receive(4)
    broker.complete(found[0])
    broker.dead_letter(found[1], reason="r")
    broker.defer(found[2])
    broker.abandon(found[3])
    broker.schedule(1_000)
    kept: list[Change] = [fact for fact in broker.facts if isinstance(fact, EntityStored)]
    latest: dict[tuple[int, int], Change] = {}
    by_queue: dict[int, Change] = defaultdict()
    for fact in broker.facts:
        if isinstance(fact, MessageStored):
            message = broker.namespace.find(fact.queue_id, fact.message.position)
            if message is not None:
                latest[fact.queue_id, message.position] = MessageStored(fact.queue_id, copy.copy(message))
        elif isinstance(fact, NumbersIssued):
            holding = broker.namespace.still_holds(fact, broker.now_ms)
            assert holding is not None
            by_queue[fact.queue_id] = holding
    before = [numbers(broker.peek()), numbers(broker.peek_dead())]
    broker.facts = [*kept, *by_queue.values(), *latest.values()]
    broker.restart()
    assert [numbers(broker.peek()), numbers(broker.peek_dead())] == before == [[3, 4, 5, 6, 7], [2]]
    assert broker.send().sequence_number == 8


def test_a_counter_of_an_entity_that_is_gone_does_not_hold(broker: Broker) -> None:
    """Req: R-02"""
    namespace = broker.namespace
    assert namespace.still_holds(NumbersIssued(400, 1, SequenceNumber(1), 0), broker.now_ms) is None
    assert namespace.still_holds(MessageIdSeen(400, bytes(16), 0, SequenceNumber(1)), broker.now_ms) is None
    assert namespace.still_holds(MessageIdSeen(4, bytes(16), 0, SequenceNumber(1)), broker.now_ms) is None


def test_find_gives_messages_of_every_state_and_nothing_that_is_gone(broker: Broker) -> None:
    """Req: R-02"""
    for _ in range(3):
        broker.send()
    first, second, _ = broker.receive(3)
    broker.complete(first)
    broker.defer(second)
    broker.schedule(1_000)
    found = [broker.namespace.find(4, position) for position in (1, 2, 3, 4, 5)]
    assert [message and message.sequence_number for message in found] == [None, 2, 3, 4, None]
    assert broker.namespace.find(400, 1) is None
