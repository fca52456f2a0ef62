"""Time-to-live: of the message, of the entity, and what happens at its end."""

from __future__ import annotations

import pytest

from peeklock.amqp import codec
from peeklock.broker.queue.delivery import PASS_OVER_MAX
from peeklock.broker.vocabulary.commands import SetCredit
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS
from peeklock.broker.vocabulary.effects import Deliver, Drained
from peeklock.broker.vocabulary.message import Message
from peeklock.broker.vocabulary.quotas import BASIC
from tests.broker.harness import LOTS, MINUTE_MS, START_MS, Broker, deliveries, numbers

DAY_MS = 24 * 60 * MINUTE_MS


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create()
    return made


def test_it_counts_from_the_enqueued_time(broker: Broker) -> None:
    """Req: E-01"""
    message = broker.send(ttl_ms=5_000)
    assert message.expires_at_ms == message.enqueued_at_ms + 5_000


@pytest.mark.parametrize("ttl_ms", [0, 1, 20, 1_500, 90_000])
def test_a_message_can_be_received_to_its_last_millisecond(broker: Broker, ttl_ms: int) -> None:
    """Req: E-02, E-09"""
    broker.send(ttl_ms=ttl_ms)
    if ttl_ms:
        broker.jump(ttl_ms - 1)
        (delivery,) = broker.receive()
        broker.release(delivery)
        broker.jump(1)
    assert broker.receive() == []
    broker.settle_time()
    assert broker.peek() == []


def test_an_expired_message_is_never_delivered_even_when_the_timer_is_late(broker: Broker) -> None:
    """Req: E-02"""
    broker.send(ttl_ms=1_000)
    broker.send()
    broker.jump(10_000)
    assert numbers(broker.receive(2)) == [2]
    assert numbers(broker.peek()) == [1, 2]  # removal may lag
    broker.settle_time()
    assert numbers(broker.peek()) == [2]


def test_expiry_acts_at_its_instant_without_any_listener(broker: Broker) -> None:
    """Req: E-02"""
    broker.send(ttl_ms=1_000)
    broker.advance(999)
    assert broker.view().active_count == 1
    broker.advance(1)
    assert broker.view().active_count == 0
    assert broker.namespace.timers.next_ms is None


def test_a_deferred_message_does_not_expire(broker: Broker) -> None:
    """Req: E-02, L-10"""
    broker.send(ttl_ms=1_000)
    broker.defer(broker.receive()[0])
    broker.advance(DAY_MS)
    (view,) = broker.receive_deferred(1)
    broker.abandon(view)
    broker.advance(DAY_MS)
    assert numbers(broker.receive_deferred(1, deletes=True)) == [1]


def test_a_locked_message_does_not_expire(broker: Broker) -> None:
    """Req: E-03"""
    broker.update(dead_lettering_on_expiration=True)
    broker.send(ttl_ms=1_000)
    (delivery,) = broker.receive()
    broker.advance(50_000)
    broker.renew(delivery)
    broker.advance(50_000)
    broker.complete(delivery)
    assert broker.peek_dead() == []


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("end", ["abandon", "release", "lapse", "break"])
def test_expiry_acts_at_once_when_the_lock_ends(broker: Broker, end: str, own: bool) -> None:
    """Req: E-03"""
    broker.update(dead_lettering_on_expiration=True, default_ttl_ms=DAY_MS if own else 1_000)
    broker.send(ttl_ms=1_000 if own else None)
    (delivery,) = broker.credit(broker.receiver(connection=7), 1)
    broker.advance(2_000)
    if end == "lapse":
        broker.advance(58_000)
    elif end == "break":
        broker.drop(7)
    else:
        getattr(broker, end)(delivery)
    assert broker.peek() == []
    assert numbers(broker.peek_dead()) == [1]


@pytest.mark.parametrize("own", [True, False])
def test_a_message_given_back_before_its_time_expires_later(broker: Broker, own: bool) -> None:
    """Req: E-03, L-07"""
    broker.update(default_ttl_ms=DAY_MS if own else 5_000)
    for _ in range(3):
        broker.send(ttl_ms=5_000 if own else None)
    found = broker.receive(2)
    broker.advance(1_000)
    broker.abandon(found[0])
    broker.advance(4_000)
    assert numbers(broker.peek()) == [2]
    broker.release(found[1])
    assert broker.peek() == []


def test_a_message_locked_while_its_neighbour_expires_still_expires_later(broker: Broker) -> None:
    """Req: E-02, E-03"""
    broker.send(ttl_ms=5_000)
    broker.send(ttl_ms=1_000)
    (delivery,) = broker.receive()
    broker.advance(1_000)  # looks through both, and passes over the locked one
    broker.release(delivery)
    broker.advance(3_999)
    assert numbers(broker.peek()) == [1]
    broker.advance(1)
    assert broker.peek() == []


def test_the_same_with_the_entitys_time_to_live(broker: Broker) -> None:
    """Req: E-03, E-04"""
    broker.update(default_ttl_ms=5_000)
    broker.send()
    broker.advance(1_000)
    broker.send()
    first, second = broker.receive(2)
    broker.release(first)
    broker.advance(4_000)
    assert numbers(broker.peek()) == [2]
    broker.release(second)
    broker.advance(999)
    assert numbers(broker.peek()) == [2]
    broker.advance(1)
    assert broker.peek() == []


def test_a_rejected_expired_message_goes_where_the_receiver_says(broker: Broker) -> None:
    """Req: E-03"""
    broker.send(ttl_ms=1_000)
    (delivery,) = broker.receive()
    broker.advance(2_000)
    broker.dead_letter(delivery, reason="TooLate")
    assert numbers(broker.peek_dead()) == [1]


def test_the_default_applies_to_messages_without_one_and_caps_longer_ones(broker: Broker) -> None:
    """Req: E-04, E-05"""
    broker.update(default_ttl_ms=10_000)
    none = broker.send()
    longer = broker.send(ttl_ms=20_000)
    shorter = broker.send(ttl_ms=5_000)
    assert [message.expires_at_ms for message in (none, longer, shorter)] == [
        0,
        START_MS + 10_000,
        START_MS + 5_000,
    ]
    assert [view.ttl_ms for view in broker.peek()] == [None, 10_000, 5_000]
    assert [delivery.ttl_ms for delivery in broker.receive(3)] == [10_000, 10_000, 5_000]


def test_an_unlimited_default_shows_no_time_to_live(broker: Broker) -> None:
    """Req: E-05, E-06"""
    broker.send()
    assert broker.view().description.default_ttl_ms == UNLIMITED_MS
    assert broker.peek()[0].ttl_ms is None
    assert broker.receive()[0].ttl_ms is None
    assert broker.namespace.timers.next_ms == START_MS + MINUTE_MS  # the lock alone


def test_a_shorter_default_reaches_stored_messages_without_their_own(broker: Broker) -> None:
    """Req: E-04, A-07"""
    broker.send()
    broker.send(ttl_ms=DAY_MS)
    broker.advance(10_000)
    broker.update(default_ttl_ms=5_000)
    broker.settle_time()
    assert numbers(broker.peek()) == [2]
    assert broker.peek()[0].ttl_ms == DAY_MS


def test_a_longer_default_reaches_stored_messages_without_their_own(broker: Broker) -> None:
    """Req: E-04, A-07"""
    broker.update(default_ttl_ms=5_000)
    broker.send()
    broker.send(ttl_ms=4_000)
    broker.advance(3_000)
    broker.update(default_ttl_ms=60_000)
    broker.advance(3_000)
    assert numbers(broker.peek()) == [1]
    broker.advance(54_000)
    assert broker.peek() == []


def test_a_longer_default_saves_what_a_late_timer_has_not_taken_yet(broker: Broker) -> None:
    """Req: E-04"""
    broker.update(default_ttl_ms=5_000)
    broker.send()
    broker.jump(6_000)
    assert broker.receive() == []  # passed over as expired
    broker.update(default_ttl_ms=60_000)
    assert numbers(broker.receive()) == [1]


def test_defaults_far_apart_in_both_directions(broker: Broker) -> None:
    """Req: E-04"""
    broker.send()
    for default_ttl_ms in (60_000, UNLIMITED_MS, 30_000, UNLIMITED_MS):
        broker.update(default_ttl_ms=default_ttl_ms)
    broker.advance(DAY_MS)
    assert numbers(broker.receive()) == [1]


def test_the_basic_tier_caps_at_14_days() -> None:
    """Req: E-06, A-05"""
    broker = Broker(BASIC)
    broker.create()
    assert broker.view().description.default_ttl_ms == 14 * DAY_MS
    longer = broker.send(ttl_ms=15 * DAY_MS)
    assert longer.expires_at_ms == START_MS + 14 * DAY_MS
    broker.send()
    broker.advance(14 * DAY_MS)
    assert broker.peek() == []


def test_an_expired_message_moves_to_the_dead_letter_queue_where_the_switch_is_on(broker: Broker) -> None:
    """Req: E-08"""
    broker.update(dead_lettering_on_expiration=True)
    broker.send(ttl_ms=1_000)
    facts = len(broker.facts)
    changes, _ = broker.namespace.advance(START_MS + 1_000)
    assert len(broker.facts) == facts
    assert [type(change).__name__ for change in changes] == ["MessageRemoved", "MessageStored"]
    (view,) = broker.peek_dead()
    overlay = view.message.overlay
    assert overlay is not None
    assert codec.decode(overlay)[0] == {
        "DeadLetterReason": "TTLExpiredException",
        "DeadLetterErrorDescription": "The message expired and was dead lettered.",
    }


def test_an_expired_message_is_removed_where_the_switch_is_off(broker: Broker) -> None:
    """Req: E-08"""
    broker.send(ttl_ms=1_000)
    broker.advance(1_000)
    assert broker.peek() == []
    assert broker.peek_dead() == []
    assert broker.view().size_bytes == 0


def test_a_message_that_expires_on_arrival_is_dead_lettered_though_somebody_waits(broker: Broker) -> None:
    """Req: E-08, E-09"""
    broker.update(dead_lettering_on_expiration=True)
    broker.credit(broker.receiver())
    broker.send(ttl_ms=0)
    broker.settle_time()
    assert numbers(broker.peek_dead()) == [1]


def test_expiry_and_its_switch_hold_over_a_restart(broker: Broker) -> None:
    """Req: E-02, E-08, R-02"""
    broker.update(dead_lettering_on_expiration=True, default_ttl_ms=30_000)
    broker.send(ttl_ms=1_000)
    broker.send(ttl_ms=20_000)
    broker.send()
    broker.restart(down_ms=5_000)
    assert numbers(broker.receive(3)) == [2, 3]
    broker.restart()
    broker.settle_time()
    assert numbers(broker.peek_dead()) == [1]
    broker.advance(15_000)
    assert numbers(broker.peek_dead()) == [1, 2]
    broker.advance(10_000)
    assert numbers(broker.peek_dead()) == [1, 2, 3]


def test_a_burst_expires_in_slices(broker: Broker) -> None:
    """Req: E-02, T-08"""
    broker.checks = False
    for number in range(5_000):
        broker.send(ttl_ms=1_000 if number % 2 else None)
    broker.update(default_ttl_ms=1_000)
    broker.jump(1_000)
    removed = []
    while (due_ms := broker.namespace.timers.next_ms) is not None:
        assert due_ms <= broker.now_ms
        changes, _ = broker.namespace.advance(broker.now_ms)
        broker.namespace.take_events()  # as each batch does
        removed.append(len(changes))
    assert sum(removed) == 5_000
    assert max(removed) <= 2_600  # two kinds of 1,000 each, and the rest of a chunk
    broker.namespace.check(broker.now_ms)


def test_a_long_sweep_of_one_queue_leaves_the_others_their_turn(broker: Broker) -> None:
    """Req: E-02, S-06, T-08"""
    broker.checks = False
    broker.create("other")
    broker.send_batch([Message(1, ttl_ms=1_000) for _ in range(10_000)])
    broker.schedule(1_001, name="other")
    broker.jump(1_000)
    broker.namespace.advance(broker.now_ms)
    for _ in range(3):
        broker.jump(5)
        broker.namespace.advance(broker.now_ms)
    assert broker.view("other").active_count == 1
    assert broker.view().active_count > 5_000
    broker.namespace.check(broker.now_ms)


def test_a_delivery_passes_over_a_bounded_number_of_expired_messages(broker: Broker) -> None:
    """Req: E-02, T-08"""
    broker.checks = False
    broker.send_batch([Message(1, ttl_ms=1_000) for _ in range(PASS_OVER_MAX + 5)])
    broker.send()
    broker.jump(1_000)
    link = broker.receiver()
    assert broker.do(SetCredit(link, 1, LOTS, drain=True)) == []
    effects = broker.settle_time()
    assert [type(effect) for effect in effects] == [Deliver, Drained]
    assert numbers(deliveries(effects)) == [PASS_OVER_MAX + 6]
    broker.namespace.check(broker.now_ms)


def test_times_to_live_of_their_own_cost_no_timer_each(broker: Broker) -> None:
    """Req: E-02, T-08"""
    broker.checks = False
    for number in range(2_000):
        broker.send(ttl_ms=DAY_MS + number)
        broker.complete(broker.receive()[0])
    expiry = broker.namespace._queues[4].expiry
    assert expiry is not None
    assert len(expiry._index._heap) <= 66
