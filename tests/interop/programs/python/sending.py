"""Messages on their way in."""

from __future__ import annotations

import datetime as dt
import os
import uuid
from typing import Any

from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError
from surroundings import Surroundings, assert_no_messages, complete_all, feature, refused

from tests.interop.clients import Link
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
    fields: dict[str, Any] = {
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
    own: dict[Any, Any] = {
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
        # A message that was received can be sent again; the client sends its annotations as bytes.
        sender.send_messages(message)
        receiver.complete_message(message)
        again = take_one(receiver)
        assert {name: getattr(again, name) for name in fields} == fields
        receiver.complete_message(again)
        _sections(sender, receiver)


def _sections(sender: Link, receiver: Link) -> None:
    sent = AmqpAnnotatedMessage(
        value_body={"answer": 42},
        header=AmqpMessageHeader(durable=True),
        footer=FOOTER,
        annotations={"x-opt-own": "kept"},
        delivery_annotations={"x-opt-way": "way"},
        properties=AmqpMessageProperties(group_id="s"),
    )
    sender.send_messages(sent)
    message = take_one(receiver)
    raw = message.raw_amqp_message
    assert as_text(raw.footer) == FOOTER
    assert raw.annotations[b"x-opt-own"] == b"kept"
    assert raw.delivery_annotations[b"x-opt-way"] == b"way"
    assert raw.header.durable
    receiver.complete_message(message)


FOOTER = {"sum": 7, "x-opt-footer": "footer"}


@feature
def send_footers(ours: Surroundings) -> None:
    for queue in os.environ["PEEKLOCK_FOOTERS_TO"].split(","):
        with ours.client.get_queue_sender(queue) as sender:
            sender.send_messages(AmqpAnnotatedMessage(value_body="python", footer=FOOTER))


@feature
def receive_footers(ours: Surroundings) -> None:
    count = len(os.environ["PEEKLOCK_FOOTERS_TO"].split(","))
    with ours.client.get_queue_receiver(os.environ["PEEKLOCK_FOOTERS_OF"]) as receiver:
        for message in take(receiver, count):
            footer = message.raw_amqp_message.footer
            assert as_text(footer) == FOOTER, f"{message}: {footer}"


def as_text(footer: dict[Any, Any]) -> dict[str, Any]:
    """Return keys and values as text where the client gives bytes."""
    texts = {key.decode(): value for key, value in footer.items()}
    return {key: value.decode() if isinstance(value, bytes) else value for key, value in texts.items()}


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
def largest(ours: Surroundings) -> None:
    queue = ours.queue()
    body = b"x" * _send_up_to_limit(ours, queue)
    topic = ours.topic("all")
    for mode in ServiceBusReceiveMode:
        with ours.client.get_topic_sender(topic) as sender:
            sender.send_messages(ServiceBusMessage(body))
        from_topic = ours.client.get_subscription_receiver(topic, "all", receive_mode=mode)
        with from_topic as receiver:
            _take_whole(receiver, body, mode)
        with ours.client.get_queue_sender(queue) as sender, ours.client.get_queue_receiver(queue) as receiver:
            sender.send_messages(ServiceBusMessage(body))
            receiver.abandon_message(take_one(receiver))  # the client changes no properties with it
            texts = {"reason": "r" * 4_000, "error_description": "d" * 4_000}
            receiver.dead_letter_message(take_one(receiver), **texts)
        dead = ServiceBusSubQueue.DEAD_LETTER
        with ours.client.get_queue_receiver(queue, sub_queue=dead, receive_mode=mode) as receiver:
            _take_whole(receiver, body, mode)
            assert_no_messages(receiver)


def _send_up_to_limit(ours: Surroundings, queue: str) -> int:
    """Find the largest body that can be sent, and receive all that were, in receive-and-delete mode."""
    sent = []
    limit = int(os.environ.get("PEEKLOCK_MESSAGE_BYTES_MAX", "262144"))
    least, most = limit - 1_144, limit + 1
    with ours.client.get_queue_sender(queue) as sender:
        while most - least > 1:
            size = (least + most) // 2
            try:
                sender.send_messages(ServiceBusMessage(bytes(size)))
            except MessageSizeExceededError:
                most = size
            else:
                least = size
                sent.append(size)
    deletes = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with ours.client.get_queue_receiver(queue, receive_mode=deletes) as receiver:
        assert [len(b"".join(message.body)) for message in take(receiver, len(sent))] == sent
    assert sent[-1] > limit - 144
    return least


def _take_whole(receiver: Link, body: bytes, mode: ServiceBusReceiveMode) -> None:
    message = take_one(receiver)
    assert b"".join(message.body) == body
    if mode is ServiceBusReceiveMode.PEEK_LOCK:
        receiver.complete_message(message)


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
