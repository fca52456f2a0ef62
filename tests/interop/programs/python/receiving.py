"""Messages on their way out: both modes, every settlement, and what looks without taking."""

from __future__ import annotations

import datetime as dt
import time

from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageLockLostError
from surroundings import NotOffered, Surroundings, assert_no_messages, complete_all, feature, refused

from tests.interop.helpers import assert_empty, bodies, send, take, take_one

SHORT_LOCK = dt.timedelta(seconds=5)
"""The shortest that a queue may have."""


@feature
def receive_and_delete(ours: Surroundings) -> None:
    queue = ours.queue()
    send(ours.client, queue, "x")
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with ours.client.get_queue_receiver(queue, receive_mode=mode) as receiver:
        assert str(take_one(receiver)) == "x"
        assert_no_messages(receiver)


@feature
def complete(ours: Surroundings) -> None:
    queue = ours.queue()
    send(ours.client, queue, "x")
    with ours.client.get_queue_receiver(queue) as receiver:
        message = take_one(receiver)
        assert len(receiver.peek_messages(sequence_number=1)) == 1
        receiver.complete_message(message)
        assert_no_messages(receiver)


@feature
def abandon(ours: Surroundings) -> None:
    """The client's abandon takes no properties to change."""
    queue = ours.queue()
    send(ours.client, queue, "x")
    with ours.client.get_queue_receiver(queue) as receiver:
        message = take_one(receiver)
        assert message.delivery_count == 0
        receiver.abandon_message(message)
        again = take_one(receiver)
        assert (str(again), again.delivery_count) == ("x", 1)
        receiver.complete_message(again)


@feature
def dead_letter(ours: Surroundings) -> None:
    queue = ours.queue()
    send(ours.client, queue, "x")
    with ours.client.get_queue_receiver(queue) as receiver:
        receiver.dead_letter_message(take_one(receiver), reason="why", error_description="at length")
    dead = ours.client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    with dead as receiver:
        message = take_one(receiver)
        assert (str(message), message.dead_letter_reason) == ("x", "why")
        assert message.dead_letter_error_description == "at length"
        receiver.complete_message(message)
        assert_empty(receiver)


@feature
def defer(ours: Surroundings) -> None:
    queue = ours.queue()
    send(ours.client, queue, "x")
    with ours.client.get_queue_receiver(queue) as receiver:
        message = take_one(receiver)
        assert message.delivery_count == 0
        receiver.defer_message(message)
        assert_empty(receiver)
        (deferred,) = receiver.receive_deferred_messages(message.sequence_number)
        assert (str(deferred), deferred.delivery_count) == ("x", 1)
        receiver.complete_message(deferred)
        assert_no_messages(receiver)


@feature
def many_deferred(ours: Surroundings) -> None:
    queue = ours.queue()
    numbers = []
    with ours.client.get_queue_sender(queue) as sender, ours.client.get_queue_receiver(queue) as receiver:
        for _ in range(8):
            sender.send_messages(ServiceBusMessage(bytes(250_000)))
            message = take_one(receiver)
            receiver.defer_message(message)
            numbers.append(message.sequence_number)
        found = receiver.receive_deferred_messages(numbers)
        assert [message.sequence_number for message in found] == numbers
        assert all(len(b"".join(message.body)) == 250_000 for message in found)
        complete_all(receiver, found)
        assert_no_messages(receiver)


@feature
def renew_lock(ours: Surroundings) -> None:
    queue = ours.queue(lock_duration=SHORT_LOCK)
    send(ours.client, queue, "x")
    with ours.client.get_queue_receiver(queue) as receiver:
        message = take_one(receiver)
        first_end = message.locked_until_utc
        time.sleep(2)
        assert receiver.renew_message_lock(message) > first_end
        assert message.locked_until_utc > first_end
        time.sleep(max(0.0, (first_end - dt.datetime.now(dt.UTC)).total_seconds()) + 0.2)
        receiver.complete_message(message)
        assert_no_messages(receiver)


@feature
def lock_lost(ours: Surroundings) -> None:
    queue = ours.queue(lock_duration=SHORT_LOCK)
    send(ours.client, queue, "x")
    with ours.client.get_queue_receiver(queue) as receiver:
        message = take_one(receiver)
        time.sleep((message.locked_until_utc - dt.datetime.now(dt.UTC)).total_seconds() + 0.2)
        with refused(MessageLockLostError):
            receiver.complete_message(message)
        receiver.complete_message(take_one(receiver))


@feature
def peek(ours: Surroundings) -> None:
    queue = ours.queue()
    send(ours.client, queue, *"abcd")
    with ours.client.get_queue_receiver(queue) as receiver:
        seen = receiver.peek_messages(max_message_count=2)
        assert bodies(seen) == ["a", "b"]
        from_third = receiver.peek_messages(max_message_count=9, sequence_number=seen[1].sequence_number + 1)
        assert bodies(from_third) == ["c", "d"]
        messages = take(receiver, 4)
        assert [message.delivery_count for message in messages] == [0] * 4
        for message in messages:
            receiver.complete_message(message)


@feature
def purge(ours: Surroundings) -> None:
    raise NotOffered("It has no operation that deletes messages in a batch.")


@feature
def push(ours: Surroundings) -> None:
    raise NotOffered(
        "It has no processor; a receiver is an iterator, and an application brings its own threads or tasks."
    )
