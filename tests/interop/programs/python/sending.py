"""Messages on their way in."""

from __future__ import annotations

import datetime as dt
import uuid

from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageSizeExceededError
from surroundings import Surroundings, complete_all, feature, refused

from tests.interop.helpers import assert_empty, bodies, take, take_one


@feature
def send(ours: Surroundings) -> None:
    queue = ours.queue()
    with ours.client.get_queue_sender(queue) as sender, ours.client.get_queue_receiver(queue) as receiver:
        sender.send_messages(ServiceBusMessage("hello", message_id="one"))
        message = take_one(receiver)
        assert (str(message), message.message_id) == ("hello", "one")
        receiver.complete_message(message)


@feature
def properties(ours: Surroundings) -> None:
    queue = ours.queue(requires_session=True)
    fields = {
        "message_id": "one",
        "session_id": "s",
        "partition_key": "s",
        "content_type": "application/json",
        "correlation_id": "correlation",
        "subject": "subject",
        "to": "to",
        "reply_to": "answers",
        "reply_to_session_id": "answer session",
        "time_to_live": dt.timedelta(minutes=5),
    }
    own = {
        "string": "zürich",
        "int": -(2**31),
        "float": 0.1,
        "bool": True,
        "uuid": uuid.UUID("00112233-4455-6677-8899-aabbccddeeff"),
        "none": None,
    }
    receiving = ours.client.get_queue_receiver(queue, session_id="s")
    with ours.client.get_queue_sender(queue) as sender, receiving as receiver:
        sender.send_messages(ServiceBusMessage(b"{}", application_properties=own, **fields))
        message = take_one(receiver)
        assert {name: getattr(message, name) for name in fields} == fields
        # The client gives keys and strings as bytes; bytes it would send as a string.
        found = {key.decode(): value for key, value in message.application_properties.items()}
        assert found == {**own, "string": own["string"].encode()}
        assert [type(found[name]) for name in ("int", "float", "bool")] == [int, float, bool]
        receiver.complete_message(message)


@feature
def batch(ours: Surroundings) -> None:
    queue = ours.queue()
    with ours.client.get_queue_sender(queue) as sender, ours.client.get_queue_receiver(queue) as receiver:
        made = sender.create_message_batch()
        for number in range(100):
            made.add_message(ServiceBusMessage(str(number)))
        sender.send_messages(made)
        messages = take(receiver, 100)
        assert bodies(messages) == [str(number) for number in range(100)]
        complete_all(receiver, messages)


@feature
def large(ours: Surroundings) -> None:
    queue = ours.queue()
    body = bytes(range(256)) * 800  # 200 KiB
    with ours.client.get_queue_sender(queue) as sender, ours.client.get_queue_receiver(queue) as receiver:
        sender.send_messages(ServiceBusMessage(body))
        with refused(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage(bytes(300 * 1024)))
        message = take_one(receiver)
        assert b"".join(message.body) == body
        receiver.complete_message(message)
        assert_empty(receiver)


@feature
def schedule(ours: Surroundings) -> None:
    queue = ours.queue()
    due = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=2)
    with ours.client.get_queue_sender(queue) as sender, ours.client.get_queue_receiver(queue) as receiver:
        _kept, cancelled = sender.schedule_messages(
            [ServiceBusMessage("kept"), ServiceBusMessage("cancelled")], due
        )
        sender.cancel_scheduled_messages(cancelled)
        assert_empty(receiver)
        message = take_one(receiver)
        assert str(message) == "kept"
        assert dt.datetime.now(dt.UTC) >= due - dt.timedelta(milliseconds=50)
        receiver.complete_message(message)
        assert_empty(receiver)


@feature
def time_to_live(ours: Surroundings) -> None:
    queue = ours.queue(dead_lettering_on_message_expiration=True)
    dead = ours.client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    with ours.client.get_queue_sender(queue) as sender, dead as receiver:
        sender.send_messages(ServiceBusMessage("short", time_to_live=dt.timedelta(seconds=1)))
        message = take_one(receiver)
        assert (str(message), message.dead_letter_reason) == ("short", "TTLExpiredException")
        receiver.complete_message(message)


@feature
def duplicates(ours: Surroundings) -> None:
    queue = ours.queue(requires_duplicate_detection=True)
    with ours.client.get_queue_sender(queue) as sender, ours.client.get_queue_receiver(queue) as receiver:
        for body in ("first", "second"):
            sender.send_messages(ServiceBusMessage(body, message_id="same"))
        message = take_one(receiver)
        assert str(message) == "first"
        receiver.complete_message(message)
        assert_empty(receiver)
