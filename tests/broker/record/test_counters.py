"""What is counted: of clients, in entities, and of requests. `playbook` compares the rest with the events."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import peeklock.broker
from peeklock.broker.queue.counters import APPLICATION, REASONS, Counters
from peeklock.broker.vocabulary.commands import (
    Address,
    DeadLetter,
    DeleteEntity,
    LimitSending,
    Peek,
    Send,
    SequenceNumber,
)
from tests.broker.harness import EMPTY, MINUTE_MS, Broker, arriving


def test_a_message_is_counted_when_it_is_received_delivered_and_completed() -> None:
    broker = Broker()
    broker.create()
    broker.send(size=100)
    broker.send(size=50)
    for delivery in broker.receive(2):
        broker.complete(delivery)
    expected = Counters(received=2, received_bytes=150, delivered=2, delivered_bytes=150, completed=2)
    assert broker.namespace.counters == expected
    assert broker.namespace.entity_counters() == {"orders": expected}


def test_each_delivery_counts() -> None:
    broker = Broker()
    broker.create()
    broker.send(size=100)
    (delivery,) = broker.receive(1)
    broker.abandon(delivery)
    (delivery,) = broker.receive(1)
    broker.advance(2 * MINUTE_MS)  # its lock lapses
    counters = broker.namespace.counters
    assert (counters.delivered, counters.delivered_bytes) == (2, 200)
    assert (counters.abandoned, counters.lock_lapses, counters.completed) == (1, 1, 0)


def test_a_duplicate_is_not_received() -> None:
    broker = Broker()
    broker.create(requires_duplicate_detection=True)
    for _ in range(3):
        broker.send(message_id=b"\xa1\x01a")
    assert (broker.namespace.counters.received, broker.namespace.counters.duplicates) == (1, 2)


def test_a_scheduled_message_is_received_when_it_is_sent() -> None:
    broker = Broker()
    broker.create()
    broker.schedule(MINUTE_MS)
    assert (broker.namespace.counters.received, broker.namespace.counters.scheduled) == (1, 1)
    broker.advance(2 * MINUTE_MS)
    assert broker.namespace.counters.received == 1


def test_the_namespace_counts_what_clients_send_and_an_entity_what_comes_in() -> None:
    broker = Broker()
    broker.create("rest")
    broker.create("way", forward_to="rest")
    broker.send(8)
    by_entity = broker.namespace.entity_counters()
    assert (by_entity["way"].received, by_entity["way"].forwarded) == (1, 1)
    assert (by_entity["rest"].received, by_entity["rest"].received_bytes) == (1, 100)
    assert (broker.namespace.counters.received, broker.namespace.counters.forwarded) == (1, 1)


def test_a_subscription_counts_its_copies() -> None:
    broker = Broker()
    broker.create_topic()
    broker.subscribe("a")
    broker.subscribe("b")
    broker.publish()
    by_entity = broker.namespace.entity_counters()
    assert [by_entity[name].received for name in sorted(by_entity)] == [1, 1, 1]
    assert broker.namespace.counters.received == 1
    assert broker.namespace.counters.forwarded == 0


def test_dead_letters_are_counted_by_reason() -> None:
    """A receiver may choose any text: such reasons are one."""
    broker = Broker()
    broker.create(max_delivery_count=1, dead_lettering_on_expiration=True, default_ttl_ms=MINUTE_MS)
    for reason in ("mine", "yours", None):
        broker.send()
        (delivery,) = broker.receive(1)
        assert delivery.lock_token is not None
        broker.settled(DeadLetter(4, delivery.lock_token, broker.reply_to(), reason, None, None))
    broker.send()
    broker.abandon(broker.receive(1)[0])
    broker.send()
    broker.advance(2 * MINUTE_MS)
    assert broker.namespace.counters.dead_lettered == {
        APPLICATION: 3,
        "MaxDeliveryCountExceeded": 1,
        "TTLExpiredException": 1,
    }
    assert broker.namespace.counters.expired == 1


def test_totals_do_not_fall_when_an_entity_goes() -> None:
    broker = Broker()
    broker.create()
    broker.send()
    before = asdict(broker.namespace.counters)
    broker.do(DeleteEntity("orders", broker.reply_to()))
    assert asdict(broker.namespace.counters) == before
    assert broker.namespace.entity_counters() == {}
    broker.create()
    assert broker.namespace.entity_counters() == {"orders": Counters()}


def test_requests_are_counted_by_operation_and_by_what_became_of_them() -> None:
    broker = Broker()
    broker.create()
    broker.send()
    broker.do(Peek(Address("missing"), SequenceNumber(0), 1, 1000, broker.reply_to()))
    broker.do(LimitSending(lagging=True))
    broker.do(Send(4, arriving(), EMPTY, broker.reply_to()))
    requests = broker.namespace.requests()
    assert (requests["send"].succeeded, requests["send"].throttled, requests["send"].refused) == (1, 1, 0)
    assert (requests["peek"].succeeded, requests["peek"].refused) == (0, 1)
    assert "limit_sending" not in requests  # no client asks for it
    assert requests["create_entity"].succeeded == 1


def test_each_reason_of_the_broker_is_one() -> None:
    """A reason that is left out would be counted as one of a receiver's."""
    folder = Path(peeklock.broker.__file__).parent
    text = "".join(path.read_text() for path in folder.rglob("*.py") if path.name != "counters.py")
    for reason in REASONS:
        assert f'"{reason}"' in text, reason
    found = set(re.findall(r'return "(\w+)", f"The forwarding', text))
    assert found <= REASONS
