"""Steps of the wall clock: what lasts keeps what is left of it, what is due at an instant follows the clock.

Source: ARCHITECTURE.md, "Time passes, the wall clock is set".
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from peeklock.amqp.messaging import Sections
from peeklock.broker.vocabulary.commands import AcceptClock, ClockStepped, Send
from peeklock.broker.vocabulary.events import EventType
from peeklock.broker.vocabulary.quotas import TRANSACTION_MS_MAX
from tests.broker.harness import MINUTE_MS, Broker, arriving, numbers

HOUR_MS = 60 * MINUTE_MS
STEPS = [HOUR_MS, -HOUR_MS, 20 * HOUR_MS, -20 * HOUR_MS, 1000 * HOUR_MS]


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create()
    return made


def step(broker: Broker, ms: int) -> None:
    broker.do(ClockStepped(ms))
    broker.settle_time()
    broker.namespace.check(broker.now_ms)


@pytest.mark.parametrize("ms", STEPS)
def test_a_lock_keeps_what_is_left_of_it(broker: Broker, ms: int) -> None:
    """Req: L-02"""
    broker.send()
    (held,) = broker.receive()
    broker.advance(20_000)
    step(broker, ms)
    broker.advance(39_999)
    broker.complete(held)
    broker.send()
    (held,) = broker.receive()
    step(broker, ms)
    broker.advance(MINUTE_MS)
    (again,) = broker.receive()
    assert (again.message, again.delivery_count) == (held.message, 1)


@pytest.mark.parametrize("ms", STEPS)
def test_a_new_lock_is_told_by_the_wall_clock(broker: Broker, ms: int) -> None:
    """Req: L-02"""
    step(broker, ms)
    broker.send()
    (held,) = broker.receive()
    assert held.locked_until_ms == broker.now_ms + ms + MINUTE_MS
    assert broker.renew(held) == [broker.now_ms + ms + MINUTE_MS]
    assert broker.peek()[0].locked_until_ms == broker.now_ms + ms + MINUTE_MS


@pytest.mark.parametrize("ms", STEPS)
def test_the_grace_of_a_broken_connection_keeps_what_is_left_of_it(ms: int) -> None:
    """Req: L-13"""
    broker = Broker(lock_grace_ms=5_000)
    broker.create()
    broker.send()
    link = broker.receiver(connection=7)
    broker.credit(link)
    broker.drop(7)
    step(broker, ms)
    broker.advance(4_999)
    assert not broker.receive()
    broker.advance(1)
    assert len(broker.receive()) == 1


@pytest.mark.parametrize("ms", STEPS)
def test_a_transaction_keeps_what_is_left_of_it(broker: Broker, ms: int) -> None:
    """Req: X-01"""
    link = broker.coordinator()
    transaction = broker.declare(link)
    broker.enlist(transaction, Send(4, arriving(), Sections(bytes(100)), broker.reply_to()))
    step(broker, ms)
    broker.advance(TRANSACTION_MS_MAX - 1)
    broker.discharge(link, transaction)
    assert len(broker.receive()) == 1


def test_a_step_forwards_makes_due_what_the_wall_clock_says_is_due(broker: Broker) -> None:
    """Req: E-01, S-07"""
    broker.send(ttl_ms=30 * MINUTE_MS)
    broker.send(ttl_ms=2 * HOUR_MS)
    broker.schedule(30 * MINUTE_MS, 2 * HOUR_MS)
    step(broker, HOUR_MS)
    assert [view.message.was_scheduled for view in broker.peek() if view.state == 0] == [False, True]
    broker.advance(HOUR_MS - 1)
    assert broker.view().active_count == 2
    broker.advance(1)
    assert broker.view().active_count == 2  # one is gone, one has come
    assert broker.view().scheduled_count == 0


def test_after_a_step_backwards_things_are_due_when_the_wall_clock_says_so(broker: Broker) -> None:
    """Req: E-01, S-07"""
    broker.send(ttl_ms=30 * MINUTE_MS)
    broker.schedule(30 * MINUTE_MS)
    step(broker, -HOUR_MS)
    broker.advance(90 * MINUTE_MS - 1)
    assert (broker.view().active_count, broker.view().scheduled_count) == (1, 1)
    broker.advance(1)
    (view,) = broker.peek()
    assert view.message.was_scheduled


@pytest.mark.parametrize("default", [False, True])
def test_enqueued_times_stand_still_and_times_to_live_count_from_the_arrival(*, default: bool) -> None:
    """Req: S-04, E-01"""
    broker = Broker()
    settings: dict[str, Any] = {"default_ttl_ms": 10 * MINUTE_MS} if default else {}
    broker.create(**settings)
    first = broker.send()
    step(broker, -HOUR_MS)
    broker.advance(MINUTE_MS)
    own = {} if default else {"ttl_ms": 10 * MINUTE_MS}
    second = broker.send(**own)
    assert second.enqueued_at_ms == first.enqueued_at_ms
    assert broker.peek()[-1].ttl_ms == (None if default else 10 * MINUTE_MS)
    broker.advance(10 * MINUTE_MS - 1)
    assert broker.view().active_count == 2
    broker.advance(1)
    assert numbers(broker.peek()) == [1]


def test_a_default_that_changes_reaches_messages_whose_enqueued_time_stands_still() -> None:
    """Req: E-04"""
    broker = Broker()
    broker.create()
    broker.send()
    step(broker, -HOUR_MS)
    broker.send()
    broker.update(default_ttl_ms=MINUTE_MS)
    broker.advance(MINUTE_MS)
    assert numbers(broker.peek()) == [1]
    broker.advance(HOUR_MS)
    assert not broker.peek()


@pytest.mark.parametrize("ms", STEPS)
def test_the_duplicate_window_keeps_what_is_left_of_it(ms: int) -> None:
    """Req: D-01"""
    broker = Broker()
    broker.create(requires_duplicate_detection=True, duplicate_window_ms=10 * MINUTE_MS)
    broker.send(message_id=b"a")
    broker.advance(5 * MINUTE_MS)
    step(broker, ms)
    broker.advance(5 * MINUTE_MS - 1)
    broker.send(message_id=b"a")
    assert broker.view().active_count == 1
    broker.advance(1)
    broker.send(message_id=b"a")
    assert broker.view().active_count == 2


def test_ids_seen_after_a_step_are_known_after_a_restart() -> None:
    """Req: D-01"""
    for ms in (HOUR_MS, -HOUR_MS):
        broker = Broker()
        broker.create(requires_duplicate_detection=True, duplicate_window_ms=10 * MINUTE_MS)
        step(broker, ms)
        broker.send(message_id=b"a")
        broker.restart(down_ms=ms + MINUTE_MS)
        broker.send(message_id=b"a")
        assert broker.view().active_count == 1


def test_the_duplicate_window_goes_by_the_clock_over_a_restart() -> None:
    """What was seen before the clock was set forwards is as old as the clock says. Req: D-01"""
    broker = Broker()
    broker.create(requires_duplicate_detection=True, duplicate_window_ms=10 * MINUTE_MS)
    broker.send(message_id=b"a")
    step(broker, 5 * MINUTE_MS)
    broker.restart(down_ms=5 * MINUTE_MS)
    broker.advance(5 * MINUTE_MS - 1)
    broker.send(message_id=b"a")
    assert broker.view().active_count == 1
    broker.advance(1)
    broker.send(message_id=b"a")
    assert broker.view().active_count == 2


@pytest.mark.parametrize("default", [False, True])
def test_a_restart_lets_a_message_live_from_the_enqueued_time_that_stood_still(*, default: bool) -> None:
    """Later than from its arrival, never earlier. Req: E-01"""
    broker = Broker()
    settings: dict[str, Any] = {"default_ttl_ms": 10 * MINUTE_MS} if default else {}
    broker.create(**settings)
    broker.send()
    step(broker, -HOUR_MS)
    broker.send(**({} if default else {"ttl_ms": 10 * MINUTE_MS}))
    broker.restart(down_ms=-HOUR_MS)
    broker.advance(70 * MINUTE_MS - 1)
    assert broker.view().active_count == 2
    broker.advance(1)
    assert broker.view().active_count == (0 if default else 1)


@pytest.mark.parametrize("ms", STEPS)
def test_an_idle_entity_keeps_what_is_left_to_it(ms: int) -> None:
    """Req: A-03"""
    broker = Broker()
    broker.create(auto_delete_on_idle_ms=10 * MINUTE_MS)
    broker.advance(4 * MINUTE_MS)
    broker.send()
    broker.advance(4 * MINUTE_MS)
    step(broker, ms)
    broker.advance(6 * MINUTE_MS - 1)
    assert broker.view().active_count == 1
    broker.advance(1)
    assert any(event.type is EventType.ENTITY_DELETED for event in broker.events)


def test_a_step_too_far_forwards_makes_nothing_due_until_an_operator_says_so(broker: Broker) -> None:
    """Req: E-01, S-07"""
    broker.send(ttl_ms=HOUR_MS)
    broker.schedule(HOUR_MS)
    step(broker, 1000 * HOUR_MS)
    assert bool(broker.namespace.wall.is_doubted)  # bool(): else mypy takes the later one for impossible
    broker.advance(MINUTE_MS)
    assert (broker.view().active_count, broker.view().scheduled_count) == (1, 1)
    broker.do(AcceptClock())
    broker.settle_time()
    assert not broker.namespace.wall.is_doubted
    (view,) = broker.peek()
    assert view.message.was_scheduled


def test_a_clock_that_comes_back_is_believed(broker: Broker) -> None:
    """Req: S-04"""
    broker.send(ttl_ms=HOUR_MS)
    step(broker, 1000 * HOUR_MS)
    assert broker.send().enqueued_at_ms == broker.now_ms
    step(broker, -1000 * HOUR_MS)
    assert not broker.namespace.wall.is_doubted
    assert broker.view().active_count == 2


def test_the_log_has_each_step_and_its_time_never_goes_back(broker: Broker) -> None:
    """Req: S-04"""
    for ms in (HOUR_MS, -2 * HOUR_MS, 1000 * HOUR_MS):
        step(broker, ms)
        broker.send()
    broker.do(AcceptClock())
    broker.do(AcceptClock())
    times = [event.at_ms for event in broker.events]
    assert times == sorted(times)
    told = [json.loads(e.reason or "") for e in broker.events if e.type is EventType.CLOCK_STEPPED]
    assert [(each["step_ms"], each["ahead_ms"] - each["due_ahead_ms"]) for each in told] == [
        (HOUR_MS, 0),
        (-2 * HOUR_MS, 0),
        (1000 * HOUR_MS, 1000 * HOUR_MS),
        (0, 0),
    ]
