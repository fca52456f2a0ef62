"""Scheduled messages: by annotation, by operation, their activation and cancellation."""

from __future__ import annotations

from itertools import pairwise

import pytest

from peeklock.broker.vocabulary.commands import Address, CancelScheduled, Schedule, SequenceNumber
from peeklock.broker.vocabulary.effects import Done
from peeklock.broker.vocabulary.errors import MessageNotFound, MessageSizeExceeded
from peeklock.broker.vocabulary.message import Message, MessageState
from tests.broker.harness import EMPTY, MINUTE_MS, START_MS, Broker, deliveries, numbers


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create()
    return made


def cancel(broker: Broker, *sequence_numbers: int) -> CancelScheduled:
    return CancelScheduled(Address("orders"), list(map(SequenceNumber, sequence_numbers)), broker.reply_to())


def test_a_scheduled_send_is_not_receivable_before_its_time(broker: Broker) -> None:
    """Req: S-05, S-06"""
    broker.send(scheduled_at_ms=START_MS + 5_000)
    waiting = broker.receiver()
    assert broker.credit(waiting) == []
    assert deliveries(broker.advance(4_999)) == []
    (delivery,) = deliveries(broker.advance(1))
    assert delivery.state is MessageState.ACTIVE
    assert delivery.message.enqueued_at_ms == START_MS + 5_000


def test_the_operation_answers_one_number_for_each_message(broker: Broker) -> None:
    """Req: S-05, S-01"""
    broker.send()
    assert broker.schedule(1_000, 500, 2_000) == [2, 3, 4]
    assert broker.send().sequence_number == 5


@pytest.mark.parametrize("delay_ms", [0, -1, -100_000])
def test_a_time_that_is_not_in_the_future_enqueues_now(broker: Broker, delay_ms: int) -> None:
    """Req: S-05"""
    waiting = broker.receiver()
    broker.credit(waiting)
    assert broker.schedule(delay_ms) == [1]
    (view,) = broker.peek()
    assert (view.state, view.message.sequence_number) == (MessageState.ACTIVE, 1)
    assert view.message.enqueued_at_ms == START_MS
    assert view.message.lock is not None


def test_scheduling_is_all_or_nothing(broker: Broker) -> None:
    """Req: S-05"""
    messages = [(Message(1, scheduled_at_ms=START_MS + 1), EMPTY), (Message(1 << 20), EMPTY)]
    error = broker.refused(Schedule(Address("orders"), messages, broker.reply_to()))
    assert isinstance(error, MessageSizeExceeded)
    assert broker.view().scheduled_count == 0


def test_it_joins_the_end_of_the_order_with_a_new_number(broker: Broker) -> None:
    """Req: S-06, S-07"""
    broker.send()
    (number,) = broker.schedule(1_000)
    broker.send()
    broker.advance(1_000)
    assert number == 2
    found = broker.receive(3)
    assert numbers(found) == [1, 3, 4]
    assert found[2].message.enqueued_sequence_number == number


def test_activation_is_in_the_order_of_times_and_then_of_numbers(broker: Broker) -> None:
    """Req: S-06, S-07"""
    first = broker.schedule(3_000, 1_000, 2_000, 1_000)
    broker.jump(10_000)
    broker.settle_time()
    found = broker.receive(4)
    assert numbers(found) == [5, 6, 7, 8]
    assert [delivery.message.enqueued_sequence_number for delivery in found] == [
        first[1], first[3], first[2], first[0]
    ]  # fmt: skip


def test_the_enqueued_time_is_the_scheduled_one_while_activation_is_prompt(broker: Broker) -> None:
    """Req: S-07"""
    broker.schedule(5_000)
    broker.jump(5_999)
    broker.settle_time()
    assert broker.receive()[0].message.enqueued_at_ms == START_MS + 5_000


def test_the_enqueued_time_is_that_of_a_late_activation(broker: Broker) -> None:
    """Req: S-07"""
    broker.schedule(5_000)
    broker.restart(down_ms=6_000)
    broker.settle_time()
    assert broker.receive()[0].message.enqueued_at_ms == START_MS + 6_000


def test_the_enqueued_time_never_goes_back(broker: Broker) -> None:
    """Req: S-07, S-04"""
    broker.schedule(5_000)
    broker.jump(5_500)
    broker.send()
    broker.settle_time()
    found = broker.receive(2)
    assert [delivery.message.enqueued_at_ms for delivery in found] == [START_MS + 5_500] * 2


def test_time_to_live_counts_from_the_enqueued_time(broker: Broker) -> None:
    """Req: S-07, E-01"""
    broker.schedule(5 * MINUTE_MS, ttl_ms=10 * MINUTE_MS)
    assert broker.peek()[0].ttl_ms == 10 * MINUTE_MS
    broker.advance(15 * MINUTE_MS - 1)
    (delivery,) = broker.receive()
    assert delivery.message.expires_at_ms == START_MS + 15 * MINUTE_MS
    broker.release(delivery)
    broker.advance(1)
    assert broker.peek() == []


def test_it_does_not_expire_before_its_time(broker: Broker) -> None:
    """Req: S-07, E-04"""
    broker.update(default_ttl_ms=1_000)
    broker.schedule(5 * MINUTE_MS, ttl_ms=1)
    broker.schedule(5 * MINUTE_MS)
    broker.advance(5 * MINUTE_MS - 1)
    assert broker.view().scheduled_count == 2
    broker.advance(1)
    assert broker.view().scheduled_count == 0
    assert broker.view().active_count == 2
    broker.advance(1_000)
    assert broker.view().active_count == 0


def test_it_can_be_browsed_with_its_number_and_state(broker: Broker) -> None:
    """Req: S-08, S-11"""
    broker.schedule(1_000)
    (view,) = broker.peek()
    assert (view.state, view.message.sequence_number) == (MessageState.SCHEDULED, 1)
    assert (view.lock_token, view.locked_until_ms) == (None, 0)


def test_cancel_deletes_it(broker: Broker) -> None:
    """Req: S-06"""
    first, second = broker.schedule(1_000, 1_000)
    command = cancel(broker, first)
    assert broker.do(command) == [Done(command.reply_to)]
    assert broker.view().scheduled_count == 1
    broker.advance(1_000)
    assert [found.message.enqueued_sequence_number for found in broker.receive(2)] == [second]


def test_cancel_of_what_is_not_scheduled_tells_so(broker: Broker) -> None:
    """Req: S-06, S-09"""
    broker.send()
    (fired,) = broker.schedule(1_000)
    broker.advance(1_000)
    (gone,) = broker.schedule(1_000)
    broker.do(cancel(broker, gone))
    for number in (1, fired, gone, 77, 0, -5):
        assert isinstance(broker.refused(cancel(broker, number)), MessageNotFound)
    assert broker.view().scheduled_count == 0
    assert broker.view().active_count == 2


def test_cancel_is_all_or_none(broker: Broker) -> None:
    """Req: S-06"""
    first, second = broker.schedule(1_000, 1_000)
    assert isinstance(broker.refused(cancel(broker, first, 99)), MessageNotFound)
    assert broker.view().scheduled_count == 2
    broker.do(cancel(broker, first, second, first))
    assert broker.view().scheduled_count == 0


def test_a_cancel_at_the_due_instant_wins_or_finds_nothing(broker: Broker) -> None:
    """Req: S-09"""
    first, second = broker.schedule(1_000, 1_000)
    broker.jump(1_000)
    broker.do(cancel(broker, first))
    broker.settle_time()
    assert isinstance(broker.refused(cancel(broker, second)), MessageNotFound)
    assert [found.message.enqueued_sequence_number for found in broker.receive(2)] == [second]


def test_it_is_enqueued_once(broker: Broker) -> None:
    """Req: S-10"""
    broker.schedule(1_000)
    broker.advance(1_000)
    broker.complete(broker.receive()[0])
    broker.advance(1_000_000)
    broker.restart()
    broker.advance(1_000_000)
    assert broker.peek() == []


def test_it_survives_a_restart(broker: Broker) -> None:
    """Req: S-05, S-07, R-02"""
    first, second = broker.schedule(5_000, 4_000, ttl_ms=60_000)
    broker.restart(down_ms=1_000)
    assert numbers(broker.peek()) == [first, second]
    broker.do(cancel(broker, first))
    broker.advance(3_000)
    (delivery,) = broker.receive()
    assert delivery.message.enqueued_sequence_number == second
    assert delivery.message.enqueued_at_ms == START_MS + 4_000
    assert delivery.ttl_ms == 60_000
    assert delivery.message.sequence_number == 3


def test_an_activated_message_is_active_and_known_to_have_been_scheduled(broker: Broker) -> None:
    """Wherever it goes from here, also over a restart. Req: S-06, R-02. Source: wire contract C10."""
    broker.create("graves")
    second = broker.create("second", max_delivery_count=1, forward_dead_lettered_to="graves")
    broker.create("first", forward_to="second")
    broker.schedule(1_000, name="first")
    broker.schedule(1_000)
    broker.send()
    assert not any(view.message.was_scheduled for view in broker.peek())
    broker.advance(1_000)
    broker.restart()
    assert {v.message.enqueued_sequence_number: v.message.was_scheduled for v in broker.peek()} == {
        1: True,
        2: False,
    }
    assert [view.state for view in broker.peek()] == [MessageState.ACTIVE] * 2
    for name in ("second", "graves"):
        (view,) = broker.peek(name=name)
        assert view.message.was_scheduled
        assert view.state is MessageState.ACTIVE
        if name == "second":
            (delivery,) = broker.receive(name=name)
            broker.abandon(delivery, second)
            broker.restart()


def test_a_message_whose_time_is_past_was_never_scheduled(broker: Broker) -> None:
    """Req: S-05"""
    broker.schedule(0, -1)
    assert not any(view.message.was_scheduled for view in broker.peek())


def test_a_burst_is_activated_in_slices_and_in_order(broker: Broker) -> None:
    """Req: S-07, T-08"""
    broker.checks = False
    delays = [1_000 + number * 7_919 % 5_000 for number in range(5_000)]
    broker.schedule(*delays)
    broker.jump(6_000)
    steps = []
    while (due_ms := broker.namespace.timers.next_ms) is not None and due_ms <= broker.now_ms:
        changes, _ = broker.namespace.advance(broker.now_ms)
        broker._keep(changes)
        steps.append(len(changes) // 2)
    assert sum(steps) == 5_000
    assert max(steps) <= 1_000
    broker.namespace.check(broker.now_ms)
    found = [view.message for view in broker.peek(count=5_000)]
    assert [delays[message.enqueued_sequence_number - 1] for message in found] == sorted(delays)
    assert all(a.sequence_number + 1 == b.sequence_number for a, b in pairwise(found))


def test_what_falls_due_between_two_slices_is_activated_once(broker: Broker) -> None:
    """Req: S-07, S-10"""
    broker.checks = False
    broker.schedule(*(1_000 + number % 2 for number in range(4_000)))
    broker.jump(1_000)
    broker._keep(broker.namespace.advance(broker.now_ms)[0])
    broker.jump(1)
    broker.settle_time()
    broker.namespace.check(broker.now_ms)
    found = broker.peek(count=5_000)
    first = [view.message.enqueued_sequence_number for view in found]
    assert first == [*range(1, 4_001, 2), *range(2, 4_001, 2)]
    assert numbers(found) == list(range(4_001, 8_001))


def test_ever_earlier_times_leave_no_timers_behind(broker: Broker) -> None:
    """Req: T-08"""
    for number in range(1_000):
        broker.checks = False
        broker.schedule(1_000_000 - number)
    assert len(broker.namespace._shared.timers._heap) <= 66
    broker.namespace.check(broker.now_ms)


def test_times_all_over_the_place_are_met_to_the_millisecond(broker: Broker) -> None:
    """Req: S-07"""
    broker.checks = False
    delays = [1 + number * 7_919 % 3_000 for number in range(3_000)]
    broker.schedule(*delays)
    for _ in range(30):
        broker.advance(100)
        due = sum(delay <= broker.now_ms - START_MS for delay in delays)
        assert broker.view().active_count == due
    broker.namespace.check(broker.now_ms)
    for view in broker.peek(count=3_000):
        delay = delays[view.message.enqueued_sequence_number - 1]
        assert view.message.enqueued_at_ms == START_MS + delay
