"""Receiving: modes, credit, turns, drain."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.broker.queue.links import Consumer
from peeklock.broker.queue.peek_lock import Holder
from peeklock.broker.vocabulary.changes import MessageRemoved
from peeklock.broker.vocabulary.commands import (
    DELIVERY_BYTES,
    Address,
    CloseLink,
    OpenReceiver,
    ReceiveMode,
    SetCredit,
    SubQueue,
)
from peeklock.broker.vocabulary.effects import Deliver, Drained
from peeklock.broker.vocabulary.errors import EntityNotFound
from peeklock.broker.vocabulary.message import Message, MessageState
from tests.broker.harness import LOTS, MINUTE_MS, START_MS, Broker, deliveries, numbers, token


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create()
    return made


def test_receive_and_delete_removes_in_the_step_that_delivers(broker: Broker) -> None:
    """Req: L-01"""
    message = broker.send()
    link = broker.receiver(deletes=True)
    changes, effects = broker.namespace.apply(SetCredit(link, 1, LOTS), broker.now_ms)
    assert changes == [MessageRemoved(4, message)]
    (delivery,) = effects
    assert isinstance(delivery, Deliver)
    assert (delivery.locked_until_ms, delivery.delivery_count) == (0, 0)
    assert len(token(delivery)) == 16
    assert broker.peek() == []
    assert broker.namespace.totals().locks == 0


def test_peek_lock_shows_until_when_and_leaves_the_message(broker: Broker) -> None:
    """Req: L-02"""
    message = broker.send()
    (delivery,) = broker.receive()
    assert delivery.message is message
    assert delivery.locked_until_ms == START_MS + MINUTE_MS
    assert delivery.state is MessageState.ACTIVE
    assert numbers(broker.peek()) == [1]


def test_competing_receivers_get_different_messages(broker: Broker) -> None:
    """Req: L-02"""
    for _ in range(4):
        broker.send()
    first, second = broker.receiver(), broker.receiver()
    assert numbers(broker.credit(first, 2)) == [1, 2]
    assert numbers(broker.credit(second, 2)) == [3, 4]


def test_receivers_with_credit_are_served_in_turn(broker: Broker) -> None:
    """Req: L-02"""
    links = [broker.receiver() for _ in range(3)]
    for link in links:
        broker.credit(link, 2)
    effects = broker.send_batch([Message(10) for _ in range(7)])
    assert [delivery.link for delivery in deliveries(effects)] == links + links
    assert numbers(deliveries(effects)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("others", [1, 3])
def test_a_released_message_goes_to_others_first(broker: Broker, others: int) -> None:
    """Req: L-07. A receiver that does not want it gets it again only when no other has credit."""
    for _ in range(others):
        broker.send()
    picky, *links = [broker.receiver() for _ in range(1 + others)]
    unwanted = broker.credit(picky, 100)
    for link in links:
        broker.credit(link, 1)
    taken = [deliveries(broker.release(delivery))[0] for delivery in unwanted]
    assert [delivery.link for delivery in taken] == links
    [again] = deliveries(broker.release(taken[0]))
    assert again.link == picky  # no other has credit now
    bounces = [again]
    for _ in range(5):
        bounces += deliveries(broker.release(bounces[-1]))
    assert {delivery.link for delivery in bounces} == {picky}
    assert {delivery.delivery_count for delivery in bounces} == {0}


def test_a_receiver_without_credit_gets_nothing(broker: Broker) -> None:
    """Req: L-16"""
    broker.send()
    link = broker.receiver()
    assert broker.credit(link, 0) == []
    assert numbers(broker.credit(link, 1)) == [1]


def test_credit_is_a_total_since_the_link_was_opened(broker: Broker) -> None:
    """Req: L-16"""
    for _ in range(3):
        broker.send()
    link = broker.receiver()
    assert numbers(broker.credit(link, 1)) == [1]
    assert broker.credit(link, 1) == []
    assert numbers(broker.credit(link, 3)) == [2, 3]


def test_credit_taken_back_stops_deliveries(broker: Broker) -> None:
    """Req: L-16"""
    link = broker.receiver()
    broker.credit(link, 5)
    broker.credit(link, 0)
    broker.send()
    assert broker.namespace.totals().locks == 0
    assert numbers(broker.credit(link, 1)) == [1]


def test_deliveries_stop_once_the_bytes_are_used_up(broker: Broker) -> None:
    """Req: T-08"""
    for _ in range(3):
        broker.send(size=100)
    link = broker.receiver()
    each = 100 + DELIVERY_BYTES
    assert numbers(broker.credit(link, 9, each + 1)) == [1, 2]
    assert broker.credit(link, 9, 2 * each) == []
    assert numbers(broker.credit(link, 9, 2 * each + 1)) == [3]


def test_a_drain_answers_at_once_when_there_is_nothing(broker: Broker) -> None:
    """Req: L-16"""
    link = broker.receiver()
    assert broker.do(SetCredit(link, 5, LOTS, drain=True)) == [Drained(link)]
    assert broker.do(SetCredit(link, 0, LOTS, drain=True)) == [Drained(link)]


def test_a_drain_gives_what_is_there_and_takes_the_rest_of_the_credit(broker: Broker) -> None:
    """Req: L-16"""
    broker.send()
    link = broker.receiver()
    effects = broker.do(SetCredit(link, 5, LOTS, drain=True))
    assert [type(effect) for effect in effects] == [Deliver, Drained]
    broker.send()
    assert broker.namespace.totals().locks == 1
    assert numbers(broker.credit(link, 2)) == [2]


def test_closing_and_attaching_again_loses_and_doubles_nothing(broker: Broker) -> None:
    """Req: L-16"""
    for _ in range(20):
        broker.send()
    seen: list[int] = []
    while len(seen) < 20:
        link = broker.receiver()
        seen += numbers(broker.credit(link, 3))
        broker.do(SetCredit(link, 3, LOTS, drain=True))
        broker.do(CloseLink(link))
    assert seen == list(range(1, 21))


def test_a_closed_link_with_credit_gets_nothing_more(broker: Broker) -> None:
    """Req: L-16"""
    gone, stays = broker.receiver(), broker.receiver()
    broker.credit(gone)
    broker.credit(stays)
    broker.do(CloseLink(gone))
    effects = broker.send_batch([Message(10), Message(10)])
    assert [delivery.link for delivery in deliveries(effects)] == [stays, stays]


def test_credit_and_close_for_a_link_that_is_gone_are_ignored(broker: Broker) -> None:
    """Req: L-16"""
    link = broker.receiver()
    broker.do(CloseLink(link))
    assert broker.do(SetCredit(link, 5, LOTS, drain=True)) == []
    assert broker.do(CloseLink(link)) == []
    assert broker.drop(77) == []


def test_each_delivery_has_a_fresh_token_of_16_bytes(broker: Broker) -> None:
    """Req: L-04"""
    broker.send()
    tokens = set()
    for _ in range(5):
        (delivery,) = broker.receive()
        tokens.add(token(delivery))
        broker.release(delivery)
    assert len(tokens) == 5
    assert {len(found) for found in tokens} == {16}


def test_a_receiver_of_an_unknown_entity_is_refused(broker: Broker) -> None:
    """Req: T-03"""
    command = OpenReceiver(broker.link(), Address("nowhere", SubQueue.DEAD_LETTER), ReceiveMode.PEEK_LOCK)
    assert isinstance(broker.refused(command), EntityNotFound)


def test_thousands_of_receivers_without_credit_are_not_looked_at(broker: Broker) -> None:
    """Req: T-08"""
    for _ in range(200):
        broker.receiver()
    served = broker.receiver()
    broker.credit(served)
    effects = broker.send_batch([Message(10) for _ in range(50)])
    assert {delivery.link for delivery in deliveries(effects)} == {served}
    queue = broker.namespace._queues[4]
    assert list(queue.ready_queue.receivers.turns.values()) == [
        broker.namespace._shared.links.by_link[served]
    ]


@pytest.mark.parametrize("how", ["closed", "drained", "taken back"])
def test_thousands_of_waits_that_end_at_once_are_not_looked_for(
    broker: Broker, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each leaves the line without a look at the others, the last one first. Req: T-08"""
    looks = count_looks(monkeypatch)
    broker.checks = False
    links = [broker.receiver() for _ in range(1_000)]
    for link in links:
        broker.credit(link, 1)
    for link in reversed(links):
        if how == "closed":
            broker.do(CloseLink(link))
        else:
            broker.do(SetCredit(link, 1 if how == "drained" else 0, LOTS, drain=how == "drained"))
    assert looks[0] < 10_000
    assert not broker.namespace._queues[4].ready_queue.receivers.turns


def test_a_release_among_thousands_of_waits_looks_at_few(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever gave a message back goes last, and the others keep their order. Req: L-07, T-08"""
    looks = count_looks(monkeypatch)
    broker.checks = False
    links = [broker.receiver() for _ in range(1_000)]
    for link in links:
        broker.credit(link, 2)
    [delivery] = deliveries(broker.send_batch([Message(10)]))
    assert delivery.link == links[0]
    looks[0] = 0
    for link in links[1:] + links[:1]:
        [delivery] = deliveries(broker.release(delivery))
        assert delivery.link == link
    assert looks[0] < 20_000


def count_looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often a receiver is compared with another one, or asked for its locks."""
    looks = [0]
    locks: Any = vars(Consumer)["locks"]  # a slot

    class Counted:
        def __get__(self, receiver: Consumer, of: type) -> Holder:
            looks[0] += 1
            held: Holder = locks.__get__(receiver, of)
            return held

        def __set__(self, receiver: Consumer, held: Holder) -> None:
            locks.__set__(receiver, held)

    def compare(self: Consumer, other: object) -> bool:
        looks[0] += 1
        return self is other

    monkeypatch.setattr(Consumer, "locks", Counted())
    monkeypatch.setattr(Consumer, "__eq__", compare)
    monkeypatch.setattr(Consumer, "__hash__", object.__hash__)
    return looks
