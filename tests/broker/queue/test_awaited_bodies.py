"""Receive-and-delete waits for a body that is not in memory: the message stays until its body was read."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.broker.vocabulary.commands import (
    Address,
    CloseLink,
    DeleteEntity,
    Fetched,
    LoseBodies,
    ReceiveDeferred,
    ReceiveMode,
    SequenceNumber,
    SetCredit,
    SubQueue,
)
from peeklock.broker.vocabulary.effects import Deliver, Drained, Effect, Failed, Fetch, MessagesFound
from peeklock.broker.vocabulary.errors import MessageNotFound, SessionLockLost
from peeklock.broker.vocabulary.events import EventType
from peeklock.broker.vocabulary.message import EMPTY_PAYLOAD, Message
from tests.broker.harness import LOTS, MINUTE_MS, Broker, deliveries, numbers


class Disk:
    """What is in memory, by sequence number, and what is asked for."""

    def __init__(self, broker: Broker, *at_hand: int) -> None:
        self.broker = broker
        self.at_hand = set(at_hand)
        broker.namespace.look_for_bodies(lambda message: message.sequence_number in self.at_hand)

    def read(self, effects: list[Effect], *, keep: bool = True) -> list[Effect]:
        """Answer all fetches, and those that follow."""
        told: list[Effect] = []
        for fetch in asked(effects):
            if keep:
                self.at_hand.add(fetch.message.sequence_number)
            told += self.broker.do(Fetched(fetch.queue_id, fetch.message.position, b""))
        return told

    def lose(self, effects: list[Effect]) -> list[Effect]:
        """Find the bodies damaged that were asked for."""
        told: list[Effect] = []
        for fetch in asked(effects):
            place = (fetch.queue_id, fetch.message.position)
            told += self.broker.do(LoseBodies([place], self.broker.reply_to(0)))
            told += self.broker.do(Fetched(*place, EMPTY_PAYLOAD))
        return told


def asked(effects: list[Effect]) -> list[Fetch]:
    return [effect for effect in effects if isinstance(effect, Fetch)]


def drained(effects: list[Effect]) -> list[Drained]:
    return [effect for effect in effects if isinstance(effect, Drained)]


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create()
    return made


def credit(broker: Broker, link: Any, count: int = LOTS, *, drain: bool = False) -> list[Effect]:
    return broker.do(SetCredit(link, count, LOTS, drain=drain))


def test_a_message_stays_until_its_body_was_read(broker: Broker) -> None:
    """Req: L-01, R-03"""
    for _ in range(3):
        broker.send()
    disk = Disk(broker, 1)
    link = broker.receiver(deletes=True)
    effects = credit(broker, link)
    assert numbers(deliveries(effects)) == [1]
    assert [fetch.message.sequence_number for fetch in asked(effects)] == [2]
    assert numbers(broker.peek()) == [2, 3]
    effects = disk.read(effects)
    assert numbers(deliveries(effects)) == [2]
    assert [fetch.message.sequence_number for fetch in asked(effects)] == [3]
    assert numbers(deliveries(disk.read(effects))) == [3]
    assert broker.peek() == []


def test_what_was_read_for_it_is_delivered_although_nothing_is_kept(broker: Broker) -> None:
    """Memory for bodies may be too small for any: each read ends in a delivery all the same."""
    for _ in range(3):
        broker.send()
    disk = Disk(broker)
    got = []
    effects = credit(broker, broker.receiver(deletes=True))
    while asked(effects):
        effects = disk.read(effects, keep=False)
        got += numbers(deliveries(effects))
    assert got == [1, 2, 3]


def test_a_damaged_body_takes_its_message_to_the_dead_letters(broker: Broker) -> None:
    """And who waited for it is given the next one. Req: R-03"""
    for _ in range(3):
        broker.send()
    disk = Disk(broker, 1, 3)
    effects = credit(broker, broker.receiver(deletes=True))
    assert numbers(deliveries(disk.lose(effects))) == [3]
    assert numbers(broker.peek_dead()) == [2]
    told = [
        (event.type, event.sequence_number)
        for event in broker.events
        if event.type in (EventType.COMPLETED, EventType.DEAD_LETTERED)
    ]
    assert told == [(EventType.COMPLETED, 1), (EventType.DEAD_LETTERED, 2), (EventType.COMPLETED, 3)]


def test_a_dead_letter_without_a_body_can_be_received_and_deleted(broker: Broker) -> None:
    broker.send()
    disk = Disk(broker)
    disk.lose(credit(broker, broker.receiver(deletes=True)))
    link = broker.receiver(sub_queue=SubQueue.DEAD_LETTER, deletes=True)
    effects = credit(broker, link)
    assert numbers(deliveries(disk.lose(effects))) == [1]
    assert broker.peek_dead() == []


def test_who_peeks_locks_gets_the_message_meanwhile(broker: Broker) -> None:
    """It is free until it is deleted."""
    broker.send()
    broker.send()
    disk = Disk(broker)
    effects = credit(broker, broker.receiver(deletes=True))
    assert numbers(broker.receive(1)) == [1]
    effects = disk.read(effects)
    assert [fetch.message.sequence_number for fetch in asked(effects)] == [2]
    assert numbers(deliveries(disk.read(effects))) == [2]


def test_several_who_wait_for_one_body_ask_once_and_are_served_in_turn(broker: Broker) -> None:
    """Req: L-02"""
    for _ in range(4):
        broker.send()
    disk = Disk(broker, 2, 3, 4)
    links = [broker.receiver(deletes=True) for _ in range(2)]
    effects = [effect for link in links for effect in credit(broker, link)]
    assert len(asked(effects)) == 1
    got = deliveries(disk.read(effects))
    assert numbers(got) == [1, 2, 3, 4]
    assert [delivery.link for delivery in got] == links + links


def test_a_drain_is_answered_behind_the_body_that_was_waited_for(broker: Broker) -> None:
    """Req: L-16"""
    broker.send()
    disk = Disk(broker)
    link = broker.receiver(deletes=True)
    effects = credit(broker, link, 5, drain=True)
    assert not drained(effects)
    [delivery, answer] = disk.read(effects)
    assert isinstance(delivery, Deliver)
    assert answer == Drained(link)


def test_credit_that_is_taken_back_leaves_the_message(broker: Broker) -> None:
    broker.send()
    disk = Disk(broker)
    link = broker.receiver(deletes=True)
    effects = credit(broker, link, 1)
    credit(broker, link, 0)
    assert disk.read(effects) == []
    assert numbers(broker.peek()) == [1]
    assert numbers(deliveries(credit(broker, link, 1))) == [1]


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_who_leaves_meanwhile_deletes_nothing(broker: Broker, how: str) -> None:
    """Req: L-16"""
    broker.send()
    disk = Disk(broker)
    link = broker.receiver(deletes=True)
    effects = credit(broker, link, 1)
    if how == "closed":
        broker.do(CloseLink(link))
    else:
        broker.drop()
    assert disk.read(effects) == []
    assert numbers(broker.peek()) == [1]


def test_an_entity_that_is_deleted_meanwhile_is_gone(broker: Broker) -> None:
    """And nobody is asked for what was read for it."""
    broker.send()
    disk = Disk(broker)
    effects = credit(broker, broker.receiver(deletes=True), 1)
    broker.do(DeleteEntity("orders", broker.reply_to()))
    assert disk.read(effects) == []


def test_a_session_is_delivered_in_order_behind_the_body_that_is_read(broker: Broker) -> None:
    """Req: G-03"""
    broker.create("turns", requires_session=True)
    for _ in range(3):
        broker.send(8, session_id="s")
    disk = Disk(broker, 1, 3)
    link = broker.accept("s", "turns", deletes=True).link
    effects = credit(broker, link)
    assert numbers(deliveries(effects)) == [1]
    assert numbers(deliveries(disk.read(effects))) == [2, 3]


def test_a_session_that_lapses_meanwhile_keeps_its_message(broker: Broker) -> None:
    """Req: G-04"""
    broker.create("turns", requires_session=True)
    broker.send(8, session_id="s")
    disk = Disk(broker)
    link = broker.accept("s", "turns", deletes=True).link
    effects = credit(broker, link)
    broker.advance(2 * MINUTE_MS)
    assert not deliveries(disk.read(effects))
    assert numbers(broker.peek(name="turns")) == [1]
    again = broker.accept("s", "turns", deletes=True).link
    assert numbers(deliveries(credit(broker, again))) == [1]


def deferred(broker: Broker, count: int = 2) -> None:
    for _ in range(count):
        broker.send()
    for delivery in broker.receive(count):
        broker.defer(delivery)


def ask(broker: Broker, *wanted: int, session_id: str | None = None) -> list[Effect]:
    return broker.do(
        ReceiveDeferred(
            Address("orders"),
            list(map(SequenceNumber, wanted)),
            ReceiveMode.RECEIVE_AND_DELETE,
            broker.reply_to(),
            session_id,
        )
    )


def test_deferred_messages_are_deleted_once_all_bodies_were_read(broker: Broker) -> None:
    """Req: L-10, R-03"""
    deferred(broker, 3)
    disk = Disk(broker, 2)
    effects = ask(broker, 1, 2, 3)
    assert [fetch.message.sequence_number for fetch in asked(effects)] == [1, 3]
    assert disk.read(effects[:1], keep=False) == []
    assert len(broker.peek()) == 3
    [found] = disk.read(effects[1:], keep=False)
    assert isinstance(found, MessagesFound)
    assert numbers(found.messages) == [1, 2, 3]
    assert broker.peek() == []


def test_deferred_messages_are_kept_when_the_body_of_one_is_damaged(broker: Broker) -> None:
    """All or none: the damaged one is dead-lettered, the others stay. Req: R-03"""
    deferred(broker)
    disk = Disk(broker, 2)
    refusal = disk.lose(ask(broker, 1, 2))[-1]
    assert isinstance(refusal, Failed)
    assert isinstance(refusal.error, MessageNotFound)
    assert numbers(broker.peek()) == [2]
    assert numbers(broker.peek_dead()) == [1]


def test_who_asked_for_deferred_messages_and_left_deletes_none(broker: Broker) -> None:
    deferred(broker)
    disk = Disk(broker)
    effects = ask(broker, 1, 2)
    broker.drop()
    assert disk.read(effects) == []
    assert numbers(broker.peek()) == [1, 2]
    assert not broker.namespace._shared.links.connections


def test_deferred_messages_of_a_session_that_is_lost_meanwhile_are_kept(broker: Broker) -> None:
    broker.create("turns", requires_session=True)
    broker.send(8, session_id="s")
    link = broker.accept("s", "turns").link
    [delivery] = broker.credit(link, 1)
    broker.defer(delivery, 8)
    disk = Disk(broker)
    command = ReceiveDeferred(
        Address("turns"), [SequenceNumber(1)], ReceiveMode.RECEIVE_AND_DELETE, broker.reply_to(), "s"
    )
    effects = broker.do(command)
    broker.jump(2 * MINUTE_MS)
    [refusal, *_] = disk.read(effects)
    assert isinstance(refusal, Failed)
    assert isinstance(refusal.error, SessionLockLost)
    assert numbers(broker.peek(name="turns")) == [1]


def test_a_message_that_has_just_come_needs_no_body_to_be_read(broker: Broker) -> None:
    """Its body comes with the command. The engine says so, which places it later."""
    credit(broker, broker.receiver(deletes=True))
    assert numbers(deliveries(broker.send_batch([Message(10)]))) == [1]
