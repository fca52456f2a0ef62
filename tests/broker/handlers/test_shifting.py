"""Scheduled messages that are enqueued earlier or later than they were to be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peeklock.amqp.codec import decode
from peeklock.broker.handlers.scheduled import LATEST_MS
from peeklock.broker.handlers.storing import SLICE_MESSAGES
from peeklock.broker.vocabulary.changes import MessageStored
from peeklock.broker.vocabulary.commands import Address, CancelScheduled, SequenceNumber, SubQueue
from peeklock.broker.vocabulary.effects import Done, ScheduledShifted
from peeklock.broker.vocabulary.errors import ArgumentInvalid, EntityNotFound, MessageNotFound
from peeklock.broker.vocabulary.events import EventType
from peeklock.broker.vocabulary.extension_commands import ShiftScheduled
from peeklock.broker.vocabulary.message import MessageState
from tests.broker.harness import MINUTE_MS, START_MS, Broker, deliveries, numbers

ORDERS = Address("orders")


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create()
    return made


def shift(broker: Broker, by_ms: int | None, address: Address | None = ORDERS, *sequence_numbers: int) -> int:
    chosen = tuple(map(SequenceNumber, sequence_numbers)) or None
    command = ShiftScheduled(broker.reply_to(), address, chosen, by_ms)
    (answer,) = broker.do(command)
    assert isinstance(answer, ScheduledShifted)
    assert answer.reply_to == command.reply_to
    return answer.count


def waits(broker: Broker) -> list[int | None]:
    """Return how long each scheduled message must wait, by number."""
    return [
        None if view.message.scheduled_at_ms is None else view.message.scheduled_at_ms - broker.now_ms
        for view in broker.peek()
        if view.state is MessageState.SCHEDULED
    ]


def test_all_messages_of_a_queue_are_shifted(broker: Broker) -> None:
    """Req: S-05, S-07"""
    broker.create("bills")
    broker.send()
    broker.schedule(1_000, 5_000)
    broker.schedule(1_000, name="bills")
    assert shift(broker, 3_000) == 2
    assert waits(broker) == [4_000, 8_000]
    assert shift(broker, -2_000) == 2
    assert waits(broker) == [2_000, 6_000]
    broker.advance(1_999)
    assert broker.view().scheduled_count == 2
    assert broker.view("bills").scheduled_count == 0
    broker.advance(1)
    assert broker.view().scheduled_count == 1
    found = broker.receive(2)
    assert found[1].message.enqueued_at_ms == START_MS + 2_000


def test_named_messages_are_shifted(broker: Broker) -> None:
    """Req: S-05"""
    first, _, third = broker.schedule(1_000, 1_000, 1_000)
    assert shift(broker, 500, ORDERS, third, first, third) == 2
    assert waits(broker) == [1_500, 1_000, 1_500]


def test_messages_of_all_queues_and_topics_are_shifted(broker: Broker) -> None:
    """Req: S-05"""
    topic = broker.create_topic()
    broker.subscribe()
    broker.schedule(MINUTE_MS, MINUTE_MS)
    broker.publish(topic_id=topic, scheduled_at_ms=START_MS + MINUTE_MS)
    assert shift(broker, None, None) == 3
    broker.advance(0)
    assert broker.view().active_count == 2
    assert broker.view("news").scheduled_count == 0


def test_messages_are_due_now_in_the_order_of_their_numbers(broker: Broker) -> None:
    """Req: S-05, S-07"""
    waiting = broker.receiver()
    broker.credit(waiting)
    scheduled = broker.schedule(3_000, 1_000, 2_000)
    assert shift(broker, None) == 3
    found = deliveries(broker.advance(0))
    assert [view.message.enqueued_sequence_number for view in found] == scheduled
    assert {view.message.enqueued_at_ms for view in found} == {START_MS}


def test_what_falls_due_by_it_is_enqueued_in_the_order_of_its_times(broker: Broker) -> None:
    """Req: S-07"""
    first, second, third = broker.schedule(3_000, 1_000, 20_000)
    assert shift(broker, -10_000) == 3
    broker.advance(0)
    found = broker.receive(3)
    assert [view.message.enqueued_sequence_number for view in found] == [second, first]
    assert {view.message.enqueued_at_ms for view in found} == {START_MS}
    assert waits(broker) == [10_000]
    assert broker.peek()[0].message.sequence_number == third


def test_a_shifted_message_is_cancelled_by_its_number(broker: Broker) -> None:
    """Req: S-06"""
    (number,) = broker.schedule(1_000)
    shift(broker, MINUTE_MS)
    broker.advance(1_000)
    command = CancelScheduled(ORDERS, [number], broker.reply_to())
    assert broker.do(command) == [Done(command.reply_to)]
    assert broker.peek() == []
    (cancelled,) = [event for event in broker.events if event.type is EventType.CANCELLED]
    assert cancelled.scheduled_at_ms == START_MS + 1_000 + MINUTE_MS


def test_time_to_live_counts_from_the_new_time(broker: Broker) -> None:
    """Req: S-07, E-01"""
    broker.schedule(MINUTE_MS, ttl_ms=1_000)
    shift(broker, -30_000)
    broker.advance(30_000)
    (view,) = broker.peek()
    assert view.message.expires_at_ms == START_MS + 31_000
    broker.advance(1_000)
    assert broker.peek() == []


def test_readers_are_shown_the_new_time(broker: Broker) -> None:
    """Req: S-08"""
    broker.schedule(1_000)
    shift(broker, 500)
    shift(broker, 500)
    (view,) = broker.peek()
    assert view.message.overlay is not None
    assert decode(view.message.overlay)[0] == {"x-opt-scheduled-enqueue-time": START_MS + 2_000}


def test_it_is_one_step_that_a_restart_remembers(broker: Broker) -> None:
    """Req: S-05, S-07, R-02"""
    broker.schedule(1_000, 2_000)
    facts = len(broker.facts)
    shift(broker, MINUTE_MS)
    assert all(isinstance(fact, MessageStored) for fact in broker.facts[facts:])
    assert len(broker.facts) == facts + 2
    broker.restart(down_ms=5_000)
    broker.advance(0)
    assert waits(broker) == [MINUTE_MS - 4_000, MINUTE_MS - 3_000]
    broker.advance(MINUTE_MS)
    assert numbers(broker.receive(3)) == [3, 4]


def test_what_is_already_due_may_still_be_shifted(broker: Broker) -> None:
    """Req: S-06, S-09"""
    broker.schedule(1_000, 2_000)
    broker.jump(1_500)
    assert shift(broker, 1_000) == 2
    assert waits(broker) == [500, 1_500]
    broker.settle_time()
    assert broker.view().scheduled_count == 2
    broker.advance(500)
    assert broker.view().scheduled_count == 1


def test_what_was_found_due_between_two_slices_may_still_be_shifted(broker: Broker) -> None:
    """Req: S-07, S-10, T-08"""
    broker.checks = False
    broker.schedule(*[1_000] * 4_000)
    broker.jump(1_000)
    broker._keep(broker.namespace.advance(broker.now_ms)[0])
    left = broker.view().scheduled_count
    assert 0 < left < 4_000
    assert shift(broker, 5_000) == left
    broker.settle_time()
    broker.namespace.check(broker.now_ms)
    assert broker.view().scheduled_count == left
    shift(broker, -5_000)
    broker.settle_time()
    broker.namespace.check(broker.now_ms)
    assert broker.view().scheduled_count == 0
    assert broker.view().active_count == 4_000


@pytest.mark.parametrize("count", [SLICE_MESSAGES - 1, SLICE_MESSAGES, SLICE_MESSAGES + 1])
def test_many_are_shifted_in_steps_with_one_answer(broker: Broker, count: int) -> None:
    """Req: T-08"""
    broker.checks = False
    broker.schedule(*[1_000] * count)
    command = ShiftScheduled(broker.reply_to(), ORDERS, None, None)
    changes, effects = broker.namespace.apply(command, broker.now_ms)
    assert len(changes) <= SLICE_MESSAGES
    assert broker.namespace.unfinished == (count >= SLICE_MESSAGES)
    while broker.namespace.unfinished:
        assert effects == []
        _, effects = broker.namespace.go_on(broker.now_ms)
    assert effects == [ScheduledShifted(command.reply_to, count)]
    broker.namespace.check(broker.now_ms)


def test_nothing_is_shifted_where_a_number_is_not_scheduled(broker: Broker) -> None:
    """Req: S-06"""
    (number,) = broker.schedule(1_000)
    sent = broker.send()
    wrong = [(number, sent.sequence_number), (SequenceNumber(99),), (SequenceNumber(-1),)]
    for each in wrong:
        error = broker.refused(ShiftScheduled(broker.reply_to(), ORDERS, each, 500))
        assert isinstance(error, MessageNotFound)
    error = broker.refused(ShiftScheduled(broker.reply_to(), None, (number,), 500))
    assert isinstance(error, ArgumentInvalid)
    error = broker.refused(ShiftScheduled(broker.reply_to(), Address("missing"), None, 500))
    assert isinstance(error, EntityNotFound)
    assert waits(broker) == [1_000]


def test_nothing_scheduled_is_nothing_shifted(broker: Broker) -> None:
    """Req: S-05"""
    broker.schedule(1_000)
    facts = len(broker.facts)
    assert shift(broker, 0) == 1
    assert shift(broker, 5, Address("orders", SubQueue.DEAD_LETTER)) == 0
    assert len(broker.facts) == facts


@pytest.mark.parametrize(("by_ms", "at_ms"), [(10**20, LATEST_MS), (-(10**20), 0)])
def test_times_stay_within_what_can_be_said(broker: Broker, by_ms: int, at_ms: int) -> None:
    """Req: S-05"""
    broker.schedule(1_000)
    shift(broker, by_ms)
    assert broker.peek()[0].message.scheduled_at_ms == at_ms
    broker.restart()
    broker.advance(0)
    assert broker.view().scheduled_count == (1 if at_ms else 0)


@settings(max_examples=60, deadline=None)
@given(
    delays=st.lists(st.integers(1, 50), min_size=1, max_size=10),
    steps=st.lists(st.tuples(st.integers(-30, 30), st.integers(0, 20), st.booleans()), max_size=6),
)
def test_each_message_is_enqueued_once_and_at_its_time(
    delays: list[int], steps: list[tuple[int, int, bool]]
) -> None:
    """Req: S-05, S-07, S-10"""
    broker = Broker()
    broker.create()
    scheduled = broker.schedule(*delays)
    at_ms = dict(zip(scheduled, (START_MS + delay for delay in delays), strict=True))
    gone: set[int] = set()
    for by_ms, passes_ms, restarts in steps:
        shift(broker, by_ms)
        at_ms = {number: at if number in gone else at + by_ms for number, at in at_ms.items()}
        if restarts:
            broker.restart()
        broker.advance(passes_ms)
        due = {number for number, at in at_ms.items() if at <= broker.now_ms}
        gone |= due
        shown = {view.message.enqueued_sequence_number: view.state for view in broker.peek()}
        assert set(shown) == set(scheduled)
        active = {number for number, state in shown.items() if state is MessageState.ACTIVE}
        assert active == gone
