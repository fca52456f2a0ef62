"""Sequence numbers, enqueued times, browsing."""

from __future__ import annotations

import pytest

from peeklock.broker.queue.sequence_numbers import number_of, order_of, order_to_browse_from
from peeklock.broker.vocabulary.changes import NumbersIssued
from peeklock.broker.vocabulary.commands import Address, CancelScheduled, Send, SequenceNumber
from peeklock.broker.vocabulary.message import Message, MessageState
from tests.broker.harness import EMPTY, START_MS, Broker, numbers

LAST = (1 << 63) - 1


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create()
    return made


def test_numbers_start_at_1_and_have_no_gaps(broker: Broker) -> None:
    """Req: S-01"""
    assert [broker.send().sequence_number for _ in range(5)] == [1, 2, 3, 4, 5]


def test_each_queue_counts_for_itself(broker: Broker) -> None:
    """Req: S-01"""
    broker.send()
    other = broker.create("other")
    assert broker.send(other).sequence_number == 1


def test_refused_sends_use_no_number(broker: Broker) -> None:
    """Req: S-01"""
    broker.send()
    broker.refused(Send(4, Message(1 << 20), EMPTY, broker.reply_to()))
    assert broker.send().sequence_number == 2


def test_no_number_is_used_again_after_a_restart(broker: Broker) -> None:
    """Req: S-01, R-02"""
    for _ in range(3):
        broker.send()
    broker.receive(3, deletes=True)
    broker.restart()
    assert broker.send().sequence_number == 4


def test_received_and_browsed_messages_show_the_same_number(broker: Broker) -> None:
    """Req: S-01"""
    broker.send()
    (seen,) = broker.peek()
    (delivery,) = broker.receive()
    assert seen.message is delivery.message
    assert delivery.message.sequence_number == delivery.message.enqueued_sequence_number == 1


def test_before_a_roll_over_number_and_position_share_one_object(broker: Broker) -> None:
    """Req: T-08"""
    message = broker.send()
    assert message.sequence_number is message.position is message.enqueued_sequence_number


def test_numbers_roll_over_to_0_and_lose_nothing() -> None:
    """Req: S-03"""
    broker = Broker(first_sequence_number=LAST - 1)
    broker.create()
    sent = [broker.send().sequence_number for _ in range(5)]
    assert sent == [LAST - 1, LAST, 0, 1, 2]
    assert numbers(broker.peek()) == sent
    assert numbers(broker.peek(from_number=LAST)) == [LAST, 0, 1, 2]
    assert numbers(broker.peek(from_number=1)) == [1, 2]
    assert broker.peek(from_number=3) == []
    assert numbers(broker.peek(from_number=LAST - 50)) == sent
    found = broker.receive(5)
    assert numbers(found) == sent
    for index in (4, 0, 2):
        broker.abandon(found[index])
    assert numbers(broker.receive(5)) == [LAST - 1, 0, 2]


def test_numbers_roll_over_across_a_restart() -> None:
    """Req: S-03, R-02"""
    broker = Broker(first_sequence_number=LAST)
    broker.create()
    broker.send()
    broker.send()
    broker.restart()
    assert broker.send().sequence_number == 1
    assert numbers(broker.receive(3)) == [LAST, 0, 1]


def test_deferred_scheduled_and_dead_letters_are_found_by_number_across_the_roll_over() -> None:
    """Req: S-03, L-10, S-06"""
    broker = Broker(first_sequence_number=LAST)
    broker.create()
    for _ in range(4):
        broker.send()
    first, second, third, fourth = broker.receive(4)
    for delivery in (first, second):
        broker.defer(delivery)
    for delivery in (fourth, third):
        broker.dead_letter(delivery)
    assert broker.schedule(1_000) == [3]
    broker.restart()
    assert numbers(broker.peek()) == [LAST, 0, 3]
    assert numbers(broker.receive_deferred(0, LAST)) == [0, LAST]
    assert numbers(broker.peek_dead()) == [1, 2]
    broker.do(CancelScheduled(Address("orders"), [SequenceNumber(3)], broker.reply_to()))
    assert broker.view().scheduled_count == 0


def test_the_arithmetic_of_the_roll_over() -> None:
    """Req: S-03"""
    assert number_of(LAST) == LAST
    assert number_of(LAST + 1) == 0
    assert order_of(7, issued=10) == 7
    assert order_of(70, issued=10) == 70  # yet to come
    issued = LAST + 11
    assert order_of(9, issued) == LAST + 10
    assert order_of(10, issued) == 10  # only the epoch before had it
    assert order_of(LAST, issued) == LAST
    assert order_to_browse_from(-1, issued) == order_to_browse_from(0, issued) == 0
    assert order_to_browse_from(10, issued) == LAST + 11
    assert order_to_browse_from(LAST - 5, issued) == LAST - 5


def test_enqueued_time_never_goes_back_when_the_clock_does(broker: Broker) -> None:
    """Req: S-04"""
    broker.send()
    broker.jump(-5_000)
    second = broker.send()
    broker.jump(5_001)
    third = broker.send()
    assert [second.enqueued_at_ms, third.enqueued_at_ms] == [START_MS, START_MS + 1]


def test_enqueued_time_does_not_go_back_over_a_restart_with_an_older_clock(broker: Broker) -> None:
    """Req: S-04"""
    broker.send()
    broker.receive(deletes=True)
    broker.restart(down_ms=-5_000)
    assert broker.send().enqueued_at_ms == START_MS


def test_peek_shows_every_state_in_order_without_locking(broker: Broker) -> None:
    """Req: S-11"""
    for _ in range(4):
        broker.send()
    (locked, to_defer, _) = broker.receive(3)
    broker.defer(to_defer)
    broker.schedule(1_000)
    views = broker.peek()
    assert numbers(views) == [1, 2, 3, 4, 5]
    active, deferred, scheduled = MessageState.ACTIVE, MessageState.DEFERRED, MessageState.SCHEDULED
    assert [view.state for view in views] == [active, deferred, active, active, scheduled]
    assert all(view.lock_token is None for view in views)
    until_ms = locked.locked_until_ms
    assert [view.locked_until_ms for view in views] == [until_ms, 0, until_ms, 0, 0]
    broker.complete(locked)
    broker.advance(until_ms - START_MS)
    assert [view.locked_until_ms for view in broker.peek()] == [0] * 4


def test_peek_goes_on_from_a_number(broker: Broker) -> None:
    """Req: S-11"""
    for _ in range(7):
        broker.send()
    broker.complete(broker.receive()[0])
    seen: list[int] = []
    at = 0
    while views := broker.peek(at, 2):
        seen += numbers(views)
        at = seen[-1] + 1
    assert seen == [2, 3, 4, 5, 6, 7]
    assert numbers(broker.peek(-3, 1)) == [2]
    assert broker.peek(0, 0) == []
    assert broker.peek(0, -1) == []


def test_peek_stops_before_the_answer_grows_too_large_but_shows_one(broker: Broker) -> None:
    """Req: S-11, R-05"""
    for _ in range(3):
        broker.send(size=100)
    assert numbers(broker.peek(bytes_max=200)) == [1, 2]
    assert numbers(broker.peek(bytes_max=199)) == [1]
    assert numbers(broker.peek(bytes_max=1)) == [1]


def test_numbers_issued_are_told_once_for_each_queue_that_issued_some(broker: Broker) -> None:
    """Req: S-01, R-02"""
    other = broker.create("other")
    broker.namespace.apply(Send(4, Message(1), EMPTY, None), START_MS)
    broker.namespace.apply(Send(4, Message(1), EMPTY, None), START_MS + 1)
    broker.namespace.apply(Send(other, Message(1), EMPTY, None), START_MS + 2)
    assert broker.namespace.numbers_issued() == [
        NumbersIssued(4, 3, SequenceNumber(3), START_MS + 1),
        NumbersIssued(other, 2, SequenceNumber(2), START_MS + 2),
    ]
    assert broker.namespace.numbers_issued() == []
