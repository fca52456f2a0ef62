"""The dead-letter queue: there from the start, read like a queue, with rules of its own."""

from __future__ import annotations

import pytest

from peeklock.broker.commands import CloseLink, DeadLetter, SubQueue
from peeklock.broker.errors import InvalidOperation
from peeklock.broker.message import MessageState
from tests.broker.playbook import MINUTE_MS, Broker, deliveries, numbers, token

DLQ = 5


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create()
    return made


def bury(broker: Broker, *order: int) -> None:
    """Send as many messages as named and dead-letter them in this order of numbers."""
    for _ in order:
        broker.send()
    found = {delivery.message.sequence_number: delivery for delivery in broker.receive(len(order))}
    for number in order:
        broker.dead_letter(found[number])


def test_it_is_there_from_creation(broker: Broker) -> None:
    """Req: L-17"""
    assert broker.receive_dead() == []
    assert broker.peek_dead() == []
    assert broker.peek(sub_queue=SubQueue.TRANSFER_DEAD_LETTER) == []
    assert broker.receive(sub_queue=SubQueue.TRANSFER_DEAD_LETTER) == []


def test_it_is_read_by_arrival_and_peeked_by_number(broker: Broker) -> None:
    """Req: S-01, L-17"""
    bury(broker, 3, 1, 4, 2)
    assert numbers(broker.peek_dead()) == [1, 2, 3, 4]
    assert numbers(broker.peek_dead(from_number=3)) == [3, 4]
    assert numbers(broker.receive_dead(4)) == [3, 1, 4, 2]


def test_it_locks_completes_and_abandons_like_a_queue(broker: Broker) -> None:
    """Req: L-17"""
    bury(broker, 1)
    for attempt in range(12):  # no maximum applies
        (dead,) = broker.receive_dead()
        assert dead.delivery_count == attempt
        broker.abandon(dead, DLQ)
    (dead,) = broker.receive_dead()
    broker.complete(dead, DLQ)
    assert broker.peek_dead() == []
    assert broker.view().size_bytes == 0


def test_it_deletes_on_receipt_when_asked(broker: Broker) -> None:
    """Req: L-17, L-01"""
    bury(broker, 1, 2)
    assert numbers(broker.receive_dead(2, deletes=True)) == [1, 2]
    assert broker.peek_dead() == []


def test_it_defers(broker: Broker) -> None:
    """Req: L-17, L-10"""
    bury(broker, 2, 1)
    first, second = broker.receive_dead(2)
    broker.defer(first, DLQ)
    assert broker.receive_dead() == []
    (view,) = broker.receive_deferred(2, sub_queue=SubQueue.DEAD_LETTER)
    assert view.state is MessageState.DEFERRED
    broker.complete(view, DLQ)
    broker.abandon(second, DLQ)
    assert numbers(broker.peek_dead()) == [1]


def test_nothing_is_dead_lettered_from_it(broker: Broker) -> None:
    """Req: L-17"""
    bury(broker, 1)
    (dead,) = broker.receive_dead()
    error = broker.refused(DeadLetter(DLQ, token(dead), broker.reply_to(), "again"))
    assert isinstance(error, InvalidOperation)
    assert "dead-letter queue" in str(error)
    broker.complete(dead, DLQ)


def test_nothing_expires_in_it(broker: Broker) -> None:
    """Req: L-17"""
    broker.update(default_ttl_ms=1_000)
    broker.send(ttl_ms=500)
    broker.send()
    for delivery in broker.receive(2):
        broker.dead_letter(delivery)
    broker.advance(30 * 24 * 60 * MINUTE_MS)
    assert numbers(broker.peek_dead()) == [1, 2]
    own, none = broker.receive_dead(2)
    assert (own.ttl_ms, none.ttl_ms) == (500, None)
    broker.abandon(own, DLQ)
    assert numbers(broker.receive_dead()) == [1]


def test_a_receiver_waiting_there_gets_a_dead_letter_at_once(broker: Broker) -> None:
    """Req: L-09"""
    waiting = broker.receiver(sub_queue=SubQueue.DEAD_LETTER)
    broker.credit(waiting)
    broker.send()
    (delivery,) = broker.receive()
    (dead,) = deliveries(broker.dead_letter(delivery))
    assert dead.link == waiting
    broker.do(CloseLink(waiting))


def test_its_locks_lapse_and_count(broker: Broker) -> None:
    """Req: L-17, L-08"""
    bury(broker, 1)
    broker.receive_dead()
    broker.advance(MINUTE_MS)
    assert broker.receive_dead()[0].delivery_count == 1
    assert broker.receive() == []


def test_it_keeps_order_and_numbers_over_a_restart(broker: Broker) -> None:
    """Req: L-17, R-02"""
    bury(broker, 3, 1, 4, 2)
    broker.complete(broker.receive_dead()[0], DLQ)
    broker.restart()
    assert numbers(broker.peek_dead()) == [1, 2, 4]
    assert numbers(broker.receive_dead(3)) == [1, 4, 2]
    bury(broker, 5)
    assert numbers(broker.receive_dead()) == [5]
