"""The dead-letter queue: there from the start, read like a queue, with rules of its own."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.broker.queue.delivery import EXHAUSTED_MAX
from peeklock.broker.vocabulary.commands import (
    Address,
    CloseLink,
    DeadLetter,
    Disposition,
    ReceiveDeferred,
    ReceiveMode,
    SequenceNumber,
    SubQueue,
    UpdateDisposition,
)
from peeklock.broker.vocabulary.descriptions import EntityStatus
from peeklock.broker.vocabulary.effects import Deliver, Done, Failed
from peeklock.broker.vocabulary.errors import InvalidOperation, MessageNotFound
from peeklock.broker.vocabulary.message import MessageState, MessageView
from tests.broker.harness import MINUTE_MS, Broker, deliveries, numbers, token

DLQ = 5
QUEUES = (SubQueue.MAIN, SubQueue.DEAD_LETTER, SubQueue.TRANSFER_DEAD_LETTER)
"""In the order of their queue ids."""


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create()
    return made


def dead_letter(broker: Broker, *order: int) -> None:
    """Send as many messages as named and dead-letter them in this order of numbers."""
    for _ in order:
        broker.send()
    found: dict[int, Deliver] = {
        delivery.message.sequence_number: delivery for delivery in broker.receive(len(order))
    }
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
    dead_letter(broker, 3, 1, 4, 2)
    assert numbers(broker.peek_dead()) == [1, 2, 3, 4]
    assert numbers(broker.peek_dead(from_number=3)) == [3, 4]
    assert numbers(broker.receive_dead(4)) == [3, 1, 4, 2]


def test_it_locks_completes_and_abandons_like_a_queue(broker: Broker) -> None:
    """Req: L-17"""
    dead_letter(broker, 1)
    for _ in range(12):  # no maximum applies
        (dead,) = broker.receive_dead()
        assert dead.delivery_count == 0
        broker.abandon(dead, DLQ)
    (dead,) = broker.receive_dead()
    broker.complete(dead, DLQ)
    assert broker.peek_dead() == []
    assert broker.view().size_bytes == 0


def test_it_deletes_on_receipt_when_asked(broker: Broker) -> None:
    """Req: L-17, L-01"""
    dead_letter(broker, 1, 2)
    assert numbers(broker.receive_dead(2, deletes=True)) == [1, 2]
    assert broker.peek_dead() == []


def test_it_defers(broker: Broker) -> None:
    """Req: L-17, L-10"""
    dead_letter(broker, 2, 1)
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
    dead_letter(broker, 1)
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


def test_its_locks_lapse(broker: Broker) -> None:
    """Req: L-17"""
    dead_letter(broker, 1)
    broker.receive_dead()
    broker.advance(MINUTE_MS - 1)
    assert broker.receive_dead() == []
    broker.advance(1)
    assert numbers(broker.receive_dead()) == [1]
    assert broker.receive() == []


@pytest.mark.parametrize("sub_queue", QUEUES[1:])
def test_the_delivery_count_stands_still(sub_queue: SubQueue) -> None:
    """However often it is reached, `MaxDeliveryCount` dead-letters nothing from there.

    Source: wire contract, correction C3. Req: L-17, L-08
    """
    broker = Broker()
    queue_id = broker.create(max_delivery_count=2) + QUEUES.index(sub_queue)
    count = 1
    if sub_queue is SubQueue.DEAD_LETTER:
        broker.send()
        broker.abandon(broker.receive()[0])
        broker.dead_letter(broker.receive()[0])
    else:
        broker.create("target")
        broker.update(forward_to="target")
        broker.update("target", status=EntityStatus.DISABLED)
        broker.send()
        count = 0

    def receive() -> Deliver:
        link = broker.receiver(connection=7, sub_queue=sub_queue)
        (dead,) = broker.credit(link, 1)
        assert dead.delivery_count == count
        return dead

    def by_number() -> MessageView:
        (view,) = broker.receive_deferred(1, sub_queue=sub_queue, connection=7)
        assert view.delivery_count == count
        return view

    broker.abandon(receive(), queue_id)
    receive()
    broker.advance(MINUTE_MS)
    receive()
    broker.drop(7)  # the connection breaks
    broker.abandon(receive(), queue_id, properties={"why": "a change"})
    broker.defer(receive(), queue_id)
    broker.abandon(by_number(), queue_id)
    broker.defer(by_number(), queue_id)
    by_number()
    broker.advance(MINUTE_MS)
    broker.restart()
    view = by_number()
    where = Address("orders", sub_queue)
    broker.one(UpdateDisposition(where, [token(view)], Disposition.DEFERRED, broker.reply_to()), Done)
    assert [view.delivery_count for view in broker.peek(sub_queue=sub_queue)] == [count]
    assert {event.delivery_count for event in broker.events if event.queue_id == queue_id} == {count}


def test_it_keeps_order_and_numbers_over_a_restart(broker: Broker) -> None:
    """Req: L-17, R-02"""
    dead_letter(broker, 3, 1, 4, 2)
    broker.complete(broker.receive_dead()[0], DLQ)
    broker.restart()
    assert numbers(broker.peek_dead()) == [1, 2, 4]
    assert numbers(broker.receive_dead(3)) == [1, 4, 2]
    dead_letter(broker, 5)
    assert numbers(broker.receive_dead()) == [5]


def tried(broker: Broker, count: int, times: int, **fields: Any) -> None:
    """Send so many messages and give each back so often."""
    broker.checks = count < 100
    for _ in range(count):
        broker.send(**fields)
    link = broker.receiver() if not fields else broker.accept("s").link
    for attempt in range(1, times + 1):
        for delivery in broker.credit(link, attempt * count):
            broker.abandon(delivery)
    broker.do(CloseLink(link))


@pytest.mark.parametrize("deletes", [False, True])
def test_a_count_at_a_lowered_maximum_dead_letters_at_the_next_attempt_to_deliver(
    broker: Broker, deletes: bool
) -> None:
    """Not before it, and it is not delivered once more; one below the maximum is.

    Req: L-08, A-07

    Source: wire contract C23.
    """
    broker.update(max_delivery_count=10)
    tried(broker, 1, 3)
    tried_less = broker.send()
    broker.update(max_delivery_count=3)
    broker.advance(MINUTE_MS)
    broker.restart()
    assert broker.peek_dead() == []
    assert numbers(broker.receive(2, deletes=deletes)) == [tried_less.sequence_number] == [2]
    (dead,) = broker.receive_dead()
    assert (dead.message.sequence_number, dead.delivery_count) == (1, 3)
    assert dead.message.overlay is not None
    assert b"MaxDeliveryCountExceeded" in dead.message.overlay
    assert b"after 3 delivery attempts" in dead.message.overlay


def test_a_count_below_a_lowered_maximum_is_delivered(broker: Broker) -> None:
    """Req: L-08, A-07"""
    broker.update(max_delivery_count=10)
    tried(broker, 1, 2)
    broker.update(max_delivery_count=3)
    (delivery,) = broker.receive()
    broker.abandon(delivery)
    assert numbers(broker.peek_dead()) == [1]


def test_a_lowered_maximum_holds_in_a_session(broker: Broker) -> None:
    """Req: L-08, G-01"""
    broker = Broker()
    broker.create(requires_session=True)
    tried(broker, 1, 2, session_id="s")
    broker.update(max_delivery_count=1)
    broker.send(session_id="s")
    assert numbers(broker.credit(broker.accept("s").link)) == [2]
    assert numbers(broker.peek_dead()) == [1]


def test_a_lowered_maximum_holds_for_a_receiver_that_waits(broker: Broker) -> None:
    """The update drops the lock, and the message comes to nobody.

    Req: L-08, L-12
    """
    tried(broker, 1, 2)
    link = broker.receiver()
    assert len(broker.credit(link)) == 1
    assert deliveries(broker.update(max_delivery_count=2)) == []
    assert numbers(broker.peek_dead()) == [1]


def test_a_lowered_maximum_holds_for_a_deferred_message(broker: Broker) -> None:
    """Whoever asks by its number is told that it is not there, and gets nothing else either.

    Req: L-08, L-10
    """
    tried(broker, 1, 2)
    broker.send()
    for delivery in broker.receive(2):
        broker.defer(delivery)
    count = broker.peek()[0].delivery_count
    broker.update(max_delivery_count=count)
    command = ReceiveDeferred(
        Address("orders"), [SequenceNumber(2), SequenceNumber(1)], ReceiveMode.PEEK_LOCK, broker.reply_to()
    )
    assert isinstance(broker.one(command, Failed).error, MessageNotFound)
    assert numbers(broker.peek_dead()) == [1]
    assert numbers(broker.receive_deferred(2)) == [2]


@pytest.mark.parametrize("session_id", [None, "s"])
def test_many_messages_at_a_lowered_maximum_are_dead_lettered_in_slices(session_id: str | None) -> None:
    """Req: L-08, R-05"""
    broker = Broker()
    broker.create(requires_session=session_id is not None)
    fields: dict[str, Any] = {} if session_id is None else {"session_id": session_id}
    tried(broker, 2 * EXHAUSTED_MAX + 1, 1, **fields)
    last = broker.send(**fields)
    broker.update(max_delivery_count=1)
    link = broker.receiver() if session_id is None else broker.accept(session_id).link
    assert broker.credit(link) == []
    assert broker.view().dead_letter_count == EXHAUSTED_MAX
    assert numbers(deliveries(broker.settle_time())) == [last.sequence_number]
    assert broker.view().dead_letter_count == 2 * EXHAUSTED_MAX + 1
    broker.namespace.check(broker.now_ms)
