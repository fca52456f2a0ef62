"""Partitioned queues through the official client."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import MessageNotFoundError, ServiceBusError

from tests.interop.clients import Links
from tests.interop.helpers import assert_empty, bodies, take, take_one

LOW = (1 << 48) - 1


@pytest.fixture
def queue(make_queue: Callable[..., str]) -> str:
    """A fresh partitioned queue."""
    return make_queue(enable_partitioning=True)


def partition(message: Any) -> int:
    """Return the partition in a message's sequence number, which is also in its annotations."""
    found = message.sequence_number >> 48
    assert message.raw_amqp_message.annotations[b"x-opt-partition-id"] == found
    return int(found)


def test_messages_arrive_in_order_whatever_their_partitions(client: Links, queue: str) -> None:
    """Each partition counts for itself, without gaps; browsing goes from one partition to the next.

    Req: S-02, S-03, S-11
    """
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        for number in range(20):
            sender.send_messages(ServiceBusMessage(str(number)))
        sender.send_messages([ServiceBusMessage(f"together {number}") for number in range(5)])
        browsed = receiver.peek_messages(max_message_count=50)
        messages = take(receiver, 25)
        assert bodies(messages) == [
            *map(str, range(20)),
            *(f"together {number}" for number in range(5)),
        ]
        assert len({partition(message) for message in messages[:16]}) == 16
        assert len({partition(message) for message in messages[20:]}) == 1
        per_partition: dict[int, list[int]] = {}
        for message in messages:
            per_partition.setdefault(partition(message), []).append(message.sequence_number & LOW)
        for numbers in per_partition.values():
            assert numbers == list(range(1, len(numbers) + 1))
        numbers = [message.sequence_number for message in messages]
        assert [message.sequence_number for message in browsed] == sorted(numbers)
        later = receiver.peek_messages(max_message_count=50, sequence_number=sorted(numbers)[10])
        assert [message.sequence_number for message in later] == sorted(numbers)[10:]
        for message in messages:
            receiver.complete_message(message)
        assert receiver.peek_messages(sequence_number=1) == []


def test_a_partition_key_names_the_partition(client: Links, queue: str) -> None:
    """Of single messages and in a batch; it comes back with the message.

    Req: S-02, S-03, T-07
    """
    keys = [*"abcdef", *"abcdef"]
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages([ServiceBusMessage(key, partition_key=key) for key in keys])
        for key in keys:
            sender.send_messages(ServiceBusMessage(key, partition_key=key))
        messages = take(receiver, 24)
    assert [message.partition_key for message in messages] == 2 * keys
    by_key = {key: {partition(m) for m in messages if m.partition_key == key} for key in keys}
    assert all(len(partitions) == 1 for partitions in by_key.values())
    assert len(set.union(*by_key.values())) > 1


def test_all_that_names_a_message_by_its_number_finds_it(client: Links, queue: str) -> None:
    """Scheduled, cancelled, deferred, dead-lettered, abandoned.

    Req: S-02, S-05, S-06, S-07, L-07, L-10, L-17
    """
    dead_letters = client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    with (
        client.get_queue_sender(queue) as sender,
        client.get_queue_receiver(queue) as receiver,
        dead_letters,
    ):
        now = dt.datetime.now(dt.UTC)
        scheduled = sender.schedule_messages(
            [ServiceBusMessage(key, partition_key=key) for key in "abcdef"], now + dt.timedelta(hours=1)
        )
        assert len({number >> 48 for number in scheduled}) > 1
        browsed = receiver.peek_messages(max_message_count=10, sequence_number=scheduled[3])
        assert (str(browsed[0]), browsed[0].state) == ("d", ServiceBusMessageState.SCHEDULED)
        sender.cancel_scheduled_messages(scheduled)
        with pytest.raises(MessageNotFoundError):
            sender.cancel_scheduled_messages(scheduled[0])
        sender.schedule_messages(
            [ServiceBusMessage(key, partition_key=key) for key in "ghij"], now + dt.timedelta(seconds=1)
        )
        deferred, dead, abandoned, kept = take(receiver, 4)
        assert sorted(map(str, (deferred, dead, abandoned, kept))) == ["g", "h", "i", "j"]
        receiver.defer_message(deferred)
        receiver.dead_letter_message(dead, reason="test")
        receiver.abandon_message(abandoned)
        again = take_one(receiver)
        assert (again.sequence_number, again.delivery_count) == (abandoned.sequence_number, 1)
        (fetched,) = receiver.receive_deferred_messages(deferred.sequence_number)
        assert str(fetched) == str(deferred)
        found = take_one(dead_letters)
        assert (str(found), found.sequence_number) == (str(dead), dead.sequence_number)
        assert partition(found) == partition(dead)
        for message in (again, kept, fetched):
            receiver.complete_message(message)
        dead_letters.complete_message(found)
        assert_empty(receiver)


def test_sessions_on_a_partitioned_queue(client: Links, make_queue: Callable[..., str]) -> None:
    """A batch with several session ids, each in its own partition; numbers of a session are without gaps.

    Req: S-02, S-03, G-01, G-06, T-07
    """
    queue = make_queue(enable_partitioning=True, requires_session=True)
    options = {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": 10}
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(str(n), session_id=key) for n in range(3) for key in "abcd"])
    with (
        client.get_queue_receiver(queue, **options) as one,
        client.get_queue_receiver(queue, **options) as two,
        client.get_queue_receiver(queue, session_id="d") as named,
    ):
        named.opened()
        for receiver in (one, two, named):
            messages = take(receiver, 3)
            assert bodies(messages) == ["0", "1", "2"]
            assert len({partition(message) for message in messages}) == 1
            first = messages[0].sequence_number
            assert [message.sequence_number for message in messages] == [first, first + 1, first + 2]
            browsed = receiver.peek_messages(max_message_count=10, sequence_number=1)
            assert [message.sequence_number for message in browsed] == [first, first + 1, first + 2]


def test_session_and_partition_key_must_agree(any_client: Links, make_queue: Callable[..., str]) -> None:
    """Source: Learn "Partitioned queues and topics": "If a message has both the session ID and the partition
    key properties set, both properties must be identical".

    Req: S-02, G-01, T-02
    """
    queue = make_queue(enable_partitioning=True)
    with any_client.get_queue_sender(queue) as sender, any_client.get_queue_receiver(queue) as receiver:
        agreeing = ServiceBusMessage("agrees", session_id="s", partition_key="s")
        differing = ServiceBusMessage("differs", session_id="s")
        differing.raw_amqp_message.annotations = {b"x-opt-partition-key": "p"}  # the client would refuse
        with pytest.raises(ServiceBusError, match="TrackingId:"):
            sender.send_messages(differing)
        with pytest.raises(ServiceBusError, match="TrackingId:"):
            sender.send_messages([agreeing, differing])
        sender.send_messages(agreeing)
        assert take_one(receiver).sequence_number & LOW == 1
