"""Deleting messages without receiving them, over the management node.

The Python client has no call for it, so our own client sends the requests, while the official one holds what
must stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from peeklock.amqp.types import Int, Timestamp
from peeklock.demo.broker import BrokerProcess
from tests.interop.clients import Links
from tests.interop.helpers import bodies, publish, send, take
from tests.interop.own_client import OwnClient

DELETE = "com.microsoft:batch-delete-messages"
PURGE = "peeklock:purge-messages"


@pytest.fixture
def own(broker: BrokerProcess) -> Iterator[OwnClient]:
    with OwnClient(broker.amqp_port) as made:
        yield made


def now() -> Timestamp:
    return Timestamp(time.time_ns() // 1_000_000 + 1)


def test_a_batch_delete_takes_the_oldest_that_are_not_locked(
    any_client: Links, queue: str, own: OwnClient
) -> None:
    """Up to a time; deferred and locked ones stay. With nothing to delete the answer is 204.

    Req: A-06
    """
    send(any_client, queue, *map(str, range(6)))
    between = now()
    with any_client.get_queue_receiver(queue) as receiver:
        locked, deferred = take(receiver, 2)
        receiver.defer_message(deferred)
        time.sleep(0.01)
        send(any_client, queue, *map(str, range(6, 9)))
        request: dict[str, Any] = {"message-count": Int(3), "enqueued-time-utc": between}
        assert own.ask(queue, DELETE, request) == (200, None, {"message-count": 3})
        request["message-count"] = Int(500)
        assert own.ask(queue, DELETE, request) == (200, None, {"message-count": 1})
        assert own.ask(queue, DELETE, request)[0] == 204
        browsed = receiver.peek_messages(max_message_count=20, sequence_number=1)
        assert bodies(browsed) == ["0", "1", "6", "7", "8"]
        receiver.complete_message(locked)


def test_a_batch_delete_in_a_session(
    any_client: Links, make_queue: Callable[..., str], own: OwnClient
) -> None:
    """Req: A-06, G-01"""
    queue = make_queue(requires_session=True)
    send(any_client, queue, "1", "2", session_id="a")
    send(any_client, queue, "3", session_id="b")
    request: dict[str, Any] = {"message-count": Int(9), "enqueued-time-utc": now(), "session-id": "a"}
    assert own.ask(queue, DELETE, request) == (200, None, {"message-count": 2})
    assert any_client.list_queue_sessions(queue) == ["b"]


def test_a_batch_delete_that_cannot_be(
    any_client: Links, make_queue: Callable[..., str], own: OwnClient
) -> None:
    """Of more than clients may ask for; of none.

    Req: A-06, T-02
    """
    request: dict[str, Any] = {"message-count": Int(9), "enqueued-time-utc": now()}
    queue = make_queue()
    for count in (4001, 0):
        request["message-count"] = Int(count)
        assert own.ask(queue, DELETE, request)[:2] == (400, "com.microsoft:argument-out-of-range")


@pytest.mark.parametrize("settings", [{}, {"enable_partitioning": True}], ids=["plain", "partitioned"])
def test_a_purge_by_batch_deletes_takes_all(
    any_client: Links, make_queue: Callable[..., str], own: OwnClient, settings: dict[str, Any]
) -> None:
    """As `purgeMessages` of the JavaScript client does it: it ends at the first answer below 4,000.

    Req: A-06, S-02
    """
    queue = make_queue(**settings)
    for _ in range(5):
        send(any_client, queue, *map(str, range(900)))
    request = {"message-count": Int(4000), "enqueued-time-utc": now()}
    assert own.ask(queue, DELETE, request) == (200, None, {"message-count": 4000})
    assert own.ask(queue, DELETE, request) == (200, None, {"message-count": 500})
    with any_client.get_queue_receiver(queue) as receiver:
        assert receiver.peek_messages(sequence_number=1) == []


@pytest.mark.parametrize("settings", [{}, {"enable_partitioning": True}], ids=["plain", "partitioned"])
def test_a_purge_deletes_all_but_what_is_locked_scheduled_or_newer(
    any_client: Links, make_queue: Callable[..., str], own: OwnClient, settings: dict[str, Any]
) -> None:
    """Deferred ones too, and from the dead-letter queue likewise. The number of messages is beyond a slice.

    Req: A-06, S-11
    """
    queue = make_queue(**settings)
    send(any_client, queue, "locked", "deferred", "dead")
    with any_client.get_queue_receiver(queue) as receiver:
        locked, deferred, dead = take(receiver, 3)
        receiver.defer_message(deferred)
        receiver.dead_letter_message(dead)
        send(any_client, queue, *map(str, range(1500)))
        assert own.ask(queue, PURGE, {}) == (200, None, {"message-count": 1501})
        send(any_client, queue, "newer")
        assert own.ask(queue, PURGE, {"enqueued-time-utc": Timestamp(0)}) == (200, None, {"message-count": 0})
        browsed = receiver.peek_messages(max_message_count=9, sequence_number=1)
        assert sorted(bodies(browsed)) == ["locked", "newer"]
        receiver.complete_message(locked)
        dead_letters = f"{queue}/$DeadLetterQueue"
        assert own.ask(dead_letters, PURGE, {}) == (200, None, {"message-count": 1})
        assert own.ask(dead_letters, PURGE, {}) == (200, None, {"message-count": 0})


def test_what_is_deleted_in_a_subscription_stays_in_the_others(
    any_client: Links, make_topic: Callable[..., str], own: OwnClient, administration: Any
) -> None:
    """Although they share the bodies.

    Req: A-06, P-01
    """
    topic = make_topic("a", "b", "c")
    publish(any_client, topic, *(f"{number}" * 100 for number in range(200)))
    request = {"message-count": Int(150), "enqueued-time-utc": now()}
    assert own.ask(f"{topic}/Subscriptions/a", DELETE, request) == (200, None, {"message-count": 150})
    assert own.ask(f"{topic}/Subscriptions/b", PURGE, {}) == (200, None, {"message-count": 200})
    counts = {
        each.name: each.active_message_count
        for each in administration.list_subscriptions_runtime_properties(topic)
    }
    assert counts == {"a": 50, "b": 0, "c": 200}
    with any_client.get_subscription_receiver(topic, "c") as receiver:
        assert bodies(take(receiver, 200)) == [f"{number}" * 100 for number in range(200)]
