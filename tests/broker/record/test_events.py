"""What is recorded of a message's life. That no life begins or ends unrecorded is checked by the playbook at
every step of every test of this room."""

from __future__ import annotations

import json

import pytest

from peeklock.amqp import codec
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties, Sections, scan
from peeklock.amqp.types import Described, Symbol
from peeklock.broker.queue.recorder import BODIES_BYTES_MAX, BODY_LEFT_OUT
from peeklock.broker.vocabulary.commands import (
    Address,
    CancelScheduled,
    Complete,
    RenewLocks,
    Send,
    SequenceNumber,
)
from peeklock.broker.vocabulary.effects import Deliver, Done
from peeklock.broker.vocabulary.events import FLUSH_MS, Event, EventType
from peeklock.broker.vocabulary.message import Message, MessageState
from peeklock.capture.message_fields import message_id
from peeklock.rules.filters import FalseFilter
from tests.broker.harness import EMPTY, MINUTE_MS, START_MS, Broker

DEAD = "orders/$deadletterqueue"


@pytest.fixture
def broker() -> Broker:
    broker = Broker()
    broker.create(lock_duration_ms=MINUTE_MS, max_delivery_count=2)
    broker.events.clear()
    return broker


def told(broker: Broker) -> list[tuple[str, str | None, int]]:
    """Return (type, queue, number) of the events since the last call."""
    found = [(EventType(event.type).name, event.queue_name, event.sequence_number) for event in broker.events]
    broker.events.clear()
    return found


def last(broker: Broker, kind: EventType) -> Event:
    return [event for event in broker.events if event.type == kind][-1]


def delivered(broker: Broker) -> Deliver:
    (delivery,) = broker.receive()
    return delivery


def test_a_life_from_sending_to_completion(broker: Broker) -> None:
    """Req: X-03"""
    broker.send(size=77)
    broker.jump(5)
    delivery = delivered(broker)
    broker.jump(7)
    broker.complete(delivery)
    enqueued, given, completed = broker.events
    assert [event.at_ms for event in broker.events] == [START_MS, START_MS + 5, START_MS + 12]
    assert told(broker) == [("ENQUEUED", "orders", 1), ("DELIVERED", "orders", 1), ("COMPLETED", "orders", 1)]
    assert enqueued.size_bytes == 77
    assert given.lock_token == completed.lock_token == delivery.lock_token
    assert given.locked_until_ms == START_MS + 5 + MINUTE_MS
    assert completed.enqueued_at_ms == START_MS
    assert completed.connection_id == 1


def test_counts_are_those_after_the_event(broker: Broker) -> None:
    """Req: X-03"""
    broker.send()
    broker.release(delivered(broker))
    broker.renew(broker.receive()[0])
    broker.advance(MINUTE_MS)
    broker.abandon(delivered(broker))
    counts = [(EventType(event.type).name, event.delivery_count) for event in broker.events]
    assert counts == [
        ("ENQUEUED", 0),
        ("DELIVERED", 0),
        ("RELEASED", 0),
        ("DELIVERED", 0),
        ("RENEWED", 0),
        ("LOCK_LAPSED", 1),
        ("DELIVERED", 1),
        ("ABANDONED", 2),
        ("DEAD_LETTERED", 2),
        ("ENQUEUED", 2),
    ]
    assert last(broker, EventType.DEAD_LETTERED).reason == "MaxDeliveryCountExceeded"


def test_a_broken_connection_is_told_of(broker: Broker) -> None:
    """Req: X-03"""
    link = broker.receiver(connection=3)
    broker.send()
    broker.credit(link, 1)
    broker.drop(3)
    lapsed = last(broker, EventType.LOCK_LAPSED)
    assert (lapsed.reason, lapsed.delivery_count, lapsed.connection_id) == ("the connection broke", 1, 3)
    assert lapsed.connection_lost
    assert [event.connection_lost for event in broker.events[:-1]] == [0, 0, 0]
    lost = last(broker, EventType.CONNECTION_LOST)
    assert (lost.connection_id, lost.queue_name, lost.sequence_number) == (3, None, 0)


def test_a_connection_that_is_closed_in_order_is_not_lost(broker: Broker) -> None:
    """Its lock lapses in its own time, also after another connection broke. Req: X-03"""
    link = broker.receiver(connection=3)
    broker.send()
    broker.credit(link, 1)
    broker.drop(3, broken=False)
    broker.receiver(connection=4)
    broker.drop(4)
    broker.advance(MINUTE_MS)
    lapsed = last(broker, EventType.LOCK_LAPSED)
    assert (lapsed.reason, lapsed.delivery_count, lapsed.connection_lost) == (None, 1, 0)


def test_what_follows_from_a_broken_connection_but_ends_no_lock_is_not_marked(broker: Broker) -> None:
    """Req: X-03"""
    for connection in (3, 4):
        link = broker.receiver(connection=connection)
        if connection == 3:
            broker.send()
        broker.credit(link, 1)
        broker.drop(connection)
    assert {EventType(event.type).name for event in broker.events if event.connection_lost} == {"LOCK_LAPSED"}
    assert last(broker, EventType.DEAD_LETTERED).reason == "MaxDeliveryCountExceeded"


def test_a_reason_that_is_no_text_is_no_reason(broker: Broker) -> None:
    """Req: X-03, C31"""
    broker.send()
    broker.dead_letter(delivered(broker), properties={"DeadLetterReason": 5})
    assert last(broker, EventType.DEAD_LETTERED).reason is None


def test_a_dead_letter_goes_on_under_its_number(broker: Broker) -> None:
    """Req: X-03"""
    broker.send()
    delivery = delivered(broker)
    broker.dead_letter(delivery, reason="no such customer")
    left = last(broker, EventType.DEAD_LETTERED)
    assert left.lock_token == delivery.lock_token
    assert (left.reason, left.related_entity, left.related_number) == ("no such customer", DEAD, 1)
    broker.complete(broker.receive_dead()[0], queue_id=5)
    assert told(broker)[2:] == [
        ("DEAD_LETTERED", "orders", 1),
        ("ENQUEUED", DEAD, 1),
        ("DELIVERED", DEAD, 1),
        ("COMPLETED", DEAD, 1),
    ]


def test_deferral_and_what_is_deleted_as_it_is_received(broker: Broker) -> None:
    """Req: X-03"""
    broker.send()
    delivery = delivered(broker)
    broker.defer(delivery)
    assert last(broker, EventType.DEFERRED).state == MessageState.ACTIVE
    assert last(broker, EventType.DEFERRED).lock_token == delivery.lock_token
    broker.receive_deferred(1, deletes=True)
    given = last(broker, EventType.DELIVERED)
    assert (given.state, given.lock_token) == (MessageState.DEFERRED, None)
    assert last(broker, EventType.COMPLETED).reason == "receive-and-delete"
    broker.send()
    broker.receive(deletes=True)
    assert told(broker)[-3:] == [
        ("ENQUEUED", "orders", 2),
        ("DELIVERED", "orders", 2),
        ("COMPLETED", "orders", 2),
    ]


def test_the_last_deferral_is_told_of_before_the_dead_letter(broker: Broker) -> None:
    """Req: X-03, L-08"""
    broker.send()
    broker.defer(delivered(broker))
    broker.defer(broker.receive_deferred(1)[0])
    counts = [(EventType(event.type).name, event.state, event.delivery_count) for event in broker.events]
    active, deferred = MessageState.ACTIVE, MessageState.DEFERRED
    assert counts[2:] == [
        ("DEFERRED", active, 1),
        ("DELIVERED", deferred, 1),
        ("DEFERRED", deferred, 2),
        ("DEAD_LETTERED", deferred, 2),
        ("ENQUEUED", active, 2),
    ]
    left = last(broker, EventType.DEAD_LETTERED)
    assert (left.reason, left.lock_token) == ("MaxDeliveryCountExceeded", None)


def test_a_scheduled_message_goes_on_under_a_new_number(broker: Broker) -> None:
    """Req: X-03"""
    broker.schedule(1_000, 2_000)
    broker.one(CancelScheduled(Address("orders"), [SequenceNumber(2)], broker.reply_to()), Done)
    broker.advance(1_000)
    assert last(broker, EventType.ACTIVATED).related_number == 3
    assert last(broker, EventType.SCHEDULED).scheduled_at_ms == START_MS + 2_000
    assert told(broker) == [
        ("SCHEDULED", "orders", 1),
        ("SCHEDULED", "orders", 2),
        ("CANCELLED", "orders", 2),
        ("ACTIVATED", "orders", 1),
        ("ENQUEUED", "orders", 3),
    ]


@pytest.mark.parametrize("dead_letters", [False, True])
def test_expiry_says_where_the_message_went(broker: Broker, dead_letters: bool) -> None:
    """Req: X-03"""
    broker.update(dead_lettering_on_expiration=dead_letters)
    broker.send(ttl_ms=1_000)
    broker.advance(1_000)
    expired = last(broker, EventType.EXPIRED)
    assert expired.expires_at_ms == START_MS + 1_000
    assert expired.related_entity == (DEAD if dead_letters else None)


def test_a_forwarded_message_is_followed(broker: Broker) -> None:
    """Req: X-03"""
    broker.create("target")
    broker.send(queue_id=8)
    broker.update(forward_to="target")
    broker.send()
    assert told(broker)[-3:] == [
        ("ENQUEUED", "orders", 1),
        ("ENQUEUED", "target", 2),
        ("FORWARDED", "orders", 1),
    ]
    broker.send()
    forwarded = last(broker, EventType.FORWARDED)
    assert (forwarded.related_entity, forwarded.related_number) == ("target", 3)


def test_a_topic_says_how_many_copies_it_made(broker: Broker) -> None:
    """Req: X-03"""
    broker.create_topic()
    broker.subscribe("a")
    broker.subscribe("b")
    broker.events.clear()
    broker.publish(topic_id=8)
    assert last(broker, EventType.FORWARDED).related_number == 2
    assert told(broker) == [
        ("ENQUEUED", "news", 1),
        ("ENQUEUED", "news/Subscriptions/a", 1),
        ("ENQUEUED", "news/Subscriptions/b", 1),
        ("FORWARDED", "news", 1),
    ]


def test_a_message_that_no_rule_chooses_is_told_of(broker: Broker) -> None:
    """Req: X-03"""
    broker.create_topic()
    broker.subscribe("a", FalseFilter())
    broker.events.clear()
    broker.publish(topic_id=8)
    assert told(broker) == [("ENQUEUED", "news", 1), ("UNMATCHED", "news", 1)]


def test_what_a_transaction_does_bears_its_id(broker: Broker) -> None:
    """Req: X-03"""
    link = broker.coordinator()
    broker.send()
    delivery = delivered(broker)
    broker.events.clear()
    transaction_id = broker.declare(link)
    assert delivery.lock_token is not None
    broker.enlist(transaction_id, Complete(4, delivery.lock_token, broker.reply_to()))
    message = Message(3)
    broker.enlist(transaction_id, Send(4, message, Sections(b"xyz"), broker.reply_to()))
    assert broker.events == []
    broker.discharge(link, transaction_id)
    assert {event.transaction_id for event in broker.events} == {transaction_id}
    assert told(broker) == [("COMPLETED", "orders", 1), ("ENQUEUED", "orders", 2)]


def test_the_properties_section_goes_along_and_the_whole_message_where_asked() -> None:
    """Req: X-03"""
    payload = encode_message(properties=Properties(message_id="m-1"), data=b"body")
    for wanted in (False, True):
        broker = Broker(captures_body=lambda name, wanted=wanted: wanted)
        broker.create()
        broker.do(Send(4, Message(len(payload)), scan(payload), broker.reply_to()))
        head = last(broker, EventType.ENQUEUED).head
        assert head is not None
        if wanted:
            assert head == payload
        else:
            assert payload.startswith(head)
            assert codec.decode(head)[0].value[0] == "m-1"


def test_the_properties_section_goes_along_under_its_long_descriptor_too(broker: Broker) -> None:
    """Req: X-03"""
    section = codec.encode(Described(Symbol("amqp:properties:list"), ["m-1"]))
    payload = section + encode_message(data=b"body")
    broker.do(Send(4, Message(len(payload)), scan(payload), broker.reply_to()))
    assert last(broker, EventType.ENQUEUED).head == section
    assert message_id(section) == "m-1"


def test_only_so_much_of_bodies_goes_along_with_one_batch() -> None:
    """Each copy of a message would have its own in the row, and a row has an end.

    Req: X-03
    """
    broker = Broker(captures_body=lambda name: True)
    topic_id = broker.create_topic()
    for name in "abc":
        broker.subscribe(name)
    properties = b"\x00\x53\x73\xc0\x06\x01\xa1\x03m-1"
    payload = encode_message(properties=Properties(message_id="m-1"), data=bytes(BODIES_BYTES_MAX // 2))
    for _ in range(2):  # the next batch begins anew
        broker.events.clear()
        broker.do(Send(topic_id, Message(1000), scan(payload), broker.reply_to()))
        begun = [(event.head, event.reason) for event in broker.events if event.type == EventType.ENQUEUED]
        assert begun == [(payload, None)] * 2 + [(properties, BODY_LEFT_OUT)] * 2


def test_a_start_is_told_of_with_all_entities(broker: Broker) -> None:
    """Req: X-03"""
    broker.restart()
    assert [name for name, _, _ in told(broker)] == ["EPOCH_STARTED", "ENTITY_PRESENT"]
    broker.restart()
    settings = json.loads(last(broker, EventType.ENTITY_PRESENT).reason or "")
    assert settings["kind"] == "queue"
    assert settings["max_delivery_count"] == 2
    assert settings["status"] == "Active"


def test_sessions_are_told_of() -> None:
    """Req: X-03"""
    broker = Broker()
    broker.create(requires_session=True)
    broker.send(session_id="s")
    opened = broker.accept("s", connection=3)
    broker.credit(opened.link, 1)
    broker.events.clear()
    broker.drop(3)
    assert [event.connection_lost for event in broker.events] == [1, 1]
    assert told(broker) == [("LOCK_LAPSED", "orders", 1), ("SESSION_RELEASED", "orders", 0)]
    broker.accept("s", connection=4)
    broker.drop(4, broken=False)
    assert last(broker, EventType.SESSION_RELEASED).connection_lost == 0


def test_what_nothing_durable_follows_asks_for_a_batch_within_a_second(broker: Broker) -> None:
    """Req: X-03"""
    broker.send()
    delivery = delivered(broker)
    namespace = broker.namespace
    assert not bool(namespace.events_due)  # bool(): else mypy takes the later one for impossible
    assert delivery.lock_token is not None
    renewal = RenewLocks(Address("orders"), [delivery.lock_token], broker.reply_to())
    namespace.apply(renewal, broker.now_ms)  # and no batch takes what happened
    assert namespace.timers.next_ms == broker.now_ms + FLUSH_MS
    namespace.advance(broker.now_ms + FLUSH_MS)
    assert namespace.events_due
    assert [event[0] for event in namespace.take_events() or []] == [EventType.RENEWED]
    assert not namespace.events_due


def test_what_only_passes_a_queue_says_so(broker: Broker) -> None:
    """Else it would look as if the queue had taken an id twice. Req: X-03"""
    broker.create("target")
    broker.events.clear()
    broker.do(Send(4, Message(9), EMPTY, broker.reply_to(), Address("target")))
    begun = [event for event in broker.events if event.type == EventType.ENQUEUED]
    assert {event.queue_name: event.reason for event in begun} == {"orders": "sent via", "target": None}
