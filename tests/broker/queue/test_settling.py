"""Settlement by a receiver: complete, abandon, defer, dead-letter, release."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.amqp import codec
from peeklock.amqp.codec import ELEMENTS_MAX, iter_map_raw
from peeklock.amqp.types import Array, Timestamp
from peeklock.broker.vocabulary.changes import MessageRemoved, MessageStored
from peeklock.broker.vocabulary.commands import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    DeleteEntity,
    Release,
    ReplyTo,
)
from peeklock.broker.vocabulary.effects import Settled
from peeklock.broker.vocabulary.errors import EntityDeleted, InvalidOperation, MessageLockLost, NotSupported
from peeklock.broker.vocabulary.message import MessageState, MessageView
from peeklock.broker.vocabulary.quotas import BASIC
from tests.broker.harness import MINUTE_MS, Broker, deliveries, numbers, token

SETTLEMENTS = [Complete, Abandon, Defer, DeadLetter, Release]
DLQ = 5


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create()
    return made


def overlay(view: MessageView) -> dict[str, Any]:
    assert view.message.overlay is not None
    found = codec.decode(view.message.overlay)[0]
    assert isinstance(found, dict)
    return found


def test_complete_removes_the_message(broker: Broker) -> None:
    """Req: L-05"""
    message = broker.send()
    (delivery,) = broker.receive()
    changes, effects = broker.namespace.apply(Complete(4, token(delivery), ReplyTo(1, 1, 5)), broker.now_ms)
    assert changes == [MessageRemoved(4, message)]
    assert effects == [Settled(ReplyTo(1, 1, 5))]
    assert broker.peek() == []
    assert broker.view().size_bytes == 0


@pytest.mark.parametrize("settle", SETTLEMENTS)
def test_a_settlement_that_asks_for_no_answer_gets_none(broker: Broker, settle: Any) -> None:
    """Req: L-05"""
    broker.send()
    (delivery,) = broker.receive()
    assert broker.do(settle(4, token(delivery), None)) == []
    assert broker.do(settle(4, token(delivery), None)) == []
    assert broker.namespace.totals().locks == 0


@pytest.mark.parametrize("settle", SETTLEMENTS)
def test_a_token_used_up_is_lost_each_time_and_settles_no_redelivery(broker: Broker, settle: Any) -> None:
    """Req: L-11"""
    broker.send()
    (first,) = broker.receive()
    broker.release(first)
    (second,) = broker.receive()
    for _ in range(3):
        error = broker.refused(settle(4, token(first), broker.reply_to()))
        assert isinstance(error, MessageLockLost)
    broker.complete(second)


@pytest.mark.parametrize("settle", SETTLEMENTS)
def test_a_token_never_given_out_is_lost(broker: Broker, settle: Any) -> None:
    """Req: L-11"""
    error = broker.refused(settle(4, bytes(16), broker.reply_to()))
    assert isinstance(error, MessageLockLost)
    assert "00000000-0000-0000-0000-000000000000 of 'orders'" in str(error)


@pytest.mark.parametrize("settle", SETTLEMENTS)
def test_a_settlement_after_the_entity_was_deleted_tells_so(broker: Broker, settle: Any) -> None:
    """Req: L-11"""
    broker.send()
    (delivery,) = broker.receive()
    broker.do(DeleteEntity("orders", broker.reply_to()))
    assert isinstance(broker.refused(settle(4, token(delivery), broker.reply_to())), EntityDeleted)


def test_abandon_makes_the_message_available_at_once_and_counts(broker: Broker) -> None:
    """Req: L-06, L-08"""
    broker.send()
    link = broker.receiver()
    (first,) = broker.credit(link, 1)
    broker.credit(link, 2)
    (second,) = deliveries(broker.abandon(first))
    assert second.message is first.message
    assert (first.delivery_count, second.delivery_count) == (0, 1)


def test_abandon_can_change_properties(broker: Broker) -> None:
    """Req: L-06"""
    broker.send()
    broker.abandon(broker.receive()[0], properties={"try": "one", "note": None})
    broker.abandon(broker.receive()[0], properties={"try": "two"})
    assert overlay(broker.receive()[0]) == {"try": "two", "note": None}


def test_a_message_given_back_goes_to_its_place_in_the_order(broker: Broker) -> None:
    """Req: L-07"""
    for _ in range(4):
        broker.send()
    found = broker.receive(3)
    for index in (2, 0, 1):
        broker.abandon(found[index])
    assert numbers(broker.receive(4)) == [1, 2, 3, 4]


def test_a_lapsed_message_comes_before_fresh_ones(broker: Broker) -> None:
    """Req: L-07"""
    for _ in range(3):
        broker.send()
    broker.receive()
    broker.advance(MINUTE_MS)
    assert numbers(broker.receive(3)) == [1, 2, 3]


def test_release_counts_nothing_and_writes_nothing(broker: Broker) -> None:
    """Req: L-08"""
    broker.send()
    broker.send()
    (delivery,) = broker.receive()
    facts = len(broker.facts)
    broker.release(delivery)
    assert len(broker.facts) == facts
    found = broker.receive(2)
    assert numbers(found) == [1, 2]
    assert found[0].delivery_count == 0


def test_a_message_is_delivered_exactly_as_often_as_allowed(broker: Broker) -> None:
    """Req: L-08"""
    broker.update(max_delivery_count=3)
    broker.send()
    for attempt in range(3):
        (delivery,) = broker.receive()
        assert delivery.delivery_count == attempt
        broker.abandon(delivery)
    assert broker.receive() == []
    (dead,) = broker.receive_dead()
    assert overlay(dead) == {
        "DeadLetterReason": "MaxDeliveryCountExceeded",
        "DeadLetterErrorDescription": "Message could not be consumed after 3 delivery attempts.",
    }
    assert dead.delivery_count == 3


def test_the_default_allows_ten_deliveries(broker: Broker) -> None:
    """Req: L-08"""
    broker.send()
    for _ in range(10):
        broker.abandon(broker.receive()[0])
    assert broker.receive() == []
    assert broker.view().dead_letter_count == 1


def test_the_last_lapse_allowed_dead_letters_too(broker: Broker) -> None:
    """Req: L-08"""
    broker.update(max_delivery_count=1)
    broker.send()
    broker.receive()
    broker.advance(MINUTE_MS)
    assert overlay(broker.receive_dead()[0])["DeadLetterReason"] == "MaxDeliveryCountExceeded"


def test_expiry_decides_when_the_last_attempt_was_also_too_late(broker: Broker) -> None:
    """Req: L-08, E-03"""
    broker.update(max_delivery_count=1, dead_lettering_on_expiration=True)
    broker.send(ttl_ms=1_000)
    (delivery,) = broker.receive()
    broker.advance(2_000)
    broker.abandon(delivery)
    assert overlay(broker.receive_dead()[0])["DeadLetterReason"] == "TTLExpiredException"


def test_defer_sets_a_message_aside_for_its_number(broker: Broker) -> None:
    """Req: L-10"""
    broker.send()
    (delivery,) = broker.receive()
    broker.defer(delivery, properties={"why": "later"})
    assert broker.receive() == []
    (seen,) = broker.peek()
    assert seen.state is MessageState.DEFERRED
    assert overlay(seen) == {"why": "later"}
    assert broker.view().active_count == 1


def test_dead_letter_carries_reason_description_and_properties(broker: Broker) -> None:
    """Req: L-09"""
    sent = broker.send()
    (delivery,) = broker.receive()
    changes, _ = broker.namespace.apply(
        DeadLetter(4, token(delivery), ReplyTo(1, 1, 0), "Broken", "no address", {"tries": "4"}),
        broker.now_ms,
    )
    assert [type(change) for change in changes] == [MessageRemoved, MessageStored]
    assert [getattr(change, "queue_id", None) for change in changes] == [4, DLQ]
    (dead,) = broker.receive_dead()
    assert overlay(dead) == {
        "DeadLetterReason": "Broken",
        "DeadLetterErrorDescription": "no address",
        "tries": "4",
    }
    moved = dead.message
    assert moved is not sent
    assert (moved.sequence_number, moved.enqueued_at_ms) == (sent.sequence_number, sent.enqueued_at_ms)
    assert (moved.body_row, moved.body_slot, moved.size_bytes) == (
        sent.body_row,
        sent.body_slot,
        sent.size_bytes,
    )
    assert broker.peek() == []


def test_dead_letter_without_reason_adds_no_property(broker: Broker) -> None:
    """Req: L-09"""
    broker.send()
    broker.dead_letter(broker.receive()[0])
    assert broker.receive_dead()[0].message.overlay is None


def test_a_reason_that_is_no_text_is_a_property_of_its_type(broker: Broker) -> None:
    """Req: C31. It comes from the gateway among the properties."""
    broker.send()
    when = Timestamp(5)
    broker.dead_letter(broker.receive()[0], properties={"DeadLetterReason": when})
    found = overlay(broker.receive_dead()[0])
    assert found == {"DeadLetterReason": when}
    assert type(found["DeadLetterReason"]) is Timestamp


def test_dead_letter_keeps_what_was_changed_before(broker: Broker) -> None:
    """Req: L-09, L-06"""
    broker.send()
    broker.abandon(broker.receive()[0], properties={"a": "1", "DeadLetterReason": "mine"})
    broker.dead_letter(broker.receive()[0], reason="Theirs")
    assert overlay(broker.receive_dead()[0]) == {"a": "1", "DeadLetterReason": "Theirs"}


def test_properties_of_65536_bytes_stay_and_one_more_dead_letters(broker: Broker) -> None:
    """Req: L-06, R-05"""
    broker.send()
    overhead = len(codec.encode({"k": "x" * 1000})) - 1000 + 3 + 3  # a larger map and string: 32-bit sizes
    size = 64 * 1024 - overhead
    while len(codec.encode({"k": "x" * (size + 1)})) <= 64 * 1024:
        size += 1
    assert len(codec.encode({"k": "x" * size})) == 64 * 1024
    broker.abandon(broker.receive()[0], properties={"k": "x" * size})
    (delivery,) = broker.receive()
    broker.abandon(delivery, properties={"k": "x" * (size + 1)})
    (dead,) = broker.receive_dead()
    assert overlay(dead)["DeadLetterReason"] == "HeaderSizeExceeded"
    assert overlay(dead)["k"] == "x" * size


def test_properties_too_large_are_refused_in_the_dead_letter_queue(broker: Broker) -> None:
    """Req: L-17, R-05"""
    broker.send()
    broker.dead_letter(broker.receive()[0], reason="r")
    (dead,) = broker.receive_dead()
    command = Abandon(DLQ, token(dead), broker.reply_to(), properties={"k": "x" * 65536})
    assert isinstance(broker.refused(command), InvalidOperation)
    broker.complete(dead, DLQ)


@pytest.mark.parametrize("settle", ["defer", "dead_letter"])
def test_properties_too_large_dead_letter_whatever_was_asked(broker: Broker, settle: str) -> None:
    """Req: R-05"""
    broker.send()
    getattr(broker, settle)(broker.receive()[0], properties={"k": "x" * 65536})
    assert overlay(broker.receive_dead()[0])["DeadLetterReason"] == "HeaderSizeExceeded"
    assert broker.peek() == []


def test_properties_of_many_elements_and_few_bytes_can_be_added_to(broker: Broker) -> None:
    """A decoder has a limit of elements, and an array of nulls takes no byte for any. Req: L-06, R-05"""
    broker.send()
    nulls = Array(type(None), [None] * (ELEMENTS_MAX // 2 + 1))
    for key in ("a", "b", "c"):
        broker.abandon(broker.receive()[0], properties={key: nulls})
    (delivery,) = broker.receive()
    broker.dead_letter(delivery, reason="why")
    (view,) = broker.peek_dead()
    assert view.message.overlay is not None
    assert [key for key, *_ in iter_map_raw(view.message.overlay)] == ["a", "b", "c", "DeadLetterReason"]


def test_the_basic_tier_does_not_defer() -> None:
    """Req: A-05"""
    broker = Broker(BASIC)
    broker.create()
    broker.send()
    (delivery,) = broker.receive()
    error = broker.refused(Defer(4, token(delivery), broker.reply_to()))
    assert isinstance(error, NotSupported)
    broker.complete(delivery)


def test_completions_in_any_order_leave_what_is_not_completed(broker: Broker) -> None:
    """Req: L-05"""
    for _ in range(600):
        broker.send()
    found = broker.receive(600)
    broker.checks = False
    for delivery in found[::2] + found[1::4]:
        broker.complete(delivery)
    broker.checks = True
    assert numbers(broker.peek()) == [n for n in range(1, 601) if n % 4 == 0]


def test_a_peek_shows_the_properties_of_its_instant(broker: Broker) -> None:
    """A view may wait for its body; what a receiver changes meanwhile is not in it."""
    broker.send()
    (delivery,) = broker.receive(1)
    (before,) = broker.peek()
    broker.abandon(delivery, properties={"a": 1})
    (after,) = broker.peek()
    assert (before.overlay, before.delivery_count) == (None, 0)
    assert (overlay(after), after.delivery_count) == ({"a": 1}, 1)
