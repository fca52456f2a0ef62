"""The client with a broker that a URL names, `amqp://...`: SASL PLAIN, sends, receives, and nothing more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from peeklock.client import (
    ABANDON,
    COMPLETE,
    RELEASE,
    Administration,
    BlockingConnection,
    ConnectionString,
    Delivery,
    OptionError,
    ReceiveMode,
    ServiceBusError,
    encode_message,
    scan,
)
from peeklock.testing.served import ServedBroker


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("amqp://localhost", ("localhost", 5672, False, "", "")),
        ("AMQPS://localhost/", ("localhost", 5671, True, "", "")),
        ("amqp://guest:pass%40word@10.0.0.1:61616", ("10.0.0.1", 61616, False, "guest", "pass@word")),
        ("amqps://a:b:c@[::1]:1", ("::1", 1, True, "a", "b:c")),
    ],
)
def test_a_url_names_a_broker(url: str, found: tuple[str, int, bool, str, str]) -> None:
    parsed = ConnectionString.parse(url)
    assert (parsed.host, parsed.port, parsed.tls, parsed.key_name, parsed.key) == found
    assert parsed.generic
    assert "word" not in repr(parsed)


@pytest.mark.parametrize(
    ("url", "more", "why"),
    [
        ("amqp://sekret@h", {}, "not of the form amqp://user:password@host:port"),
        ("amqp://:sekret@h", {}, "not of the form"),
        ("amqp://u:sekret@h/orders", {}, "not of the form"),
        ("amqp://u:sekret@h:x", {}, "host or port"),
        ("amqp://u:sekret@", {}, "host or port|Endpoint"),
        ("amqp://h", {"token_file": "f"}, "a token file is given"),
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url: str, more: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionError, match=why) as refused:
        ConnectionString.parse(url, **more)
    assert "sekret" not in str(refused.value)


@pytest.fixture(scope="module")
def served() -> Iterator[ServedBroker]:
    with ServedBroker() as broker:
        administration = Administration.of(ConnectionString.parse(broker.connection_string))
        administration.create("queue", "orders", {})
        yield broker


def connection(served: ServedBroker, key: str = "SAS_KEY_VALUE") -> BlockingConnection:
    url = f"amqp://RootManageSharedAccessKey:{key}@localhost:{served.port}"
    return BlockingConnection(ConnectionString.parse(url, timeout_s=10))


def test_messages_are_sent_received_and_settled(served: ServedBroker) -> None:
    """Our broker takes PLAIN too, so it is a generic one here."""
    made = connection(served)
    sender = made.sender("orders")
    sender.send_batch([encode_message(data=b"%d" % n) for n in range(5)])
    sender.flush()
    receiver = made.receiver("orders", ReceiveMode.PEEK_LOCK)
    deliveries = receiver.receive(10, 5)
    assert bodies(deliveries) == [b"0", b"1", b"2", b"3", b"4"]
    for delivery, outcome in zip(deliveries, (COMPLETE, ABANDON, RELEASE, COMPLETE, COMPLETE), strict=True):
        receiver.settle(delivery, outcome)
    receiver.flush()
    assert receiver.settled_count == 5
    again = receiver.receive(10, 5)
    assert [scan(each.payload).decode_header().delivery_count for each in again] == [1, 0]
    assert bodies(again) == [b"1", b"2"]
    for delivery in again:
        receiver.settle(delivery, COMPLETE)
    receiver.flush()
    assert receiver.receive(10, 0) == []
    made.close()


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return [scan(each.payload).decode_body()[0][1] for each in deliveries]


def test_a_wrong_password_is_refused_at_once(served: ServedBroker) -> None:
    with pytest.raises(ServiceBusError) as refused:
        connection(served, "sekret").sender("orders").batch_bytes_max  # noqa: B018 # it opens the link
    assert refused.value.condition == "amqp:unauthorized-access"
    assert not refused.value.retryable
    assert "retried" not in refused.value.text
    assert "sekret" not in refused.value.text


def test_what_service_bus_alone_has_is_refused(served: ServedBroker) -> None:
    made = connection(served)
    with pytest.raises(ServiceBusError, match=r"not said to be Service Bus.*only sends and receives"):
        made.management("orders")
    with pytest.raises(ServiceBusError, match="not said to be Service Bus"):
        list(Administration.of(made.settings).queues())
