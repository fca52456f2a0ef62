"""Sending through the official client."""

from __future__ import annotations

import contextlib
import functools
import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus._pyamqp.constants import LinkState, SenderSettleMode
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError

from peeklock.demo.broker import BrokerProcess
from tests.interop.helpers import assert_empty, bodies, send, take, take_one


def test_a_sent_message_is_there_when_the_call_returns(client: Any, queue: str) -> None:
    """Req: T-01, T-11"""
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        assert sender.send_messages(ServiceBusMessage("one")) is None
        message = take_one(receiver)
        assert str(message) == "one"
        assert message.delivery_count == 0
        assert message.sequence_number == 1
        receiver.complete_message(message)


def test_sequence_numbers_follow_the_order_of_sending_without_gaps(client: Any, queue: str) -> None:
    """Single sends, a list and a batch, and a refused send in between, which uses no number.

    Req: S-01, T-07
    """
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages(ServiceBusMessage("1"))
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage(b"x" * 256 * 1024))
        sender.send_messages([ServiceBusMessage(str(n)) for n in (2, 3, 4)])
        batch = sender.create_message_batch()
        for n in range(5, 9):
            batch.add_message(ServiceBusMessage(str(n)))
        sender.send_messages(batch)
        messages = take(receiver, 8)
        assert bodies(messages) == [str(n) for n in range(1, 9)]
        assert [message.sequence_number for message in messages] == list(range(1, 9))
        times = [message.enqueued_time_utc for message in messages]
        assert times == sorted(times)
        for message in messages:
            receiver.complete_message(message)


def test_250_kib_are_taken_and_256_kib_refused(client: Any, queue: str) -> None:
    """A message of several frames; the limit counts the whole message as transferred.

    Req: T-10, T-02
    """
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        body = bytes(n % 251 for n in range(250 * 1024))
        sender.send_messages(ServiceBusMessage(body))
        with pytest.raises(MessageSizeExceededError, match="TrackingId:"):
            sender.send_messages(ServiceBusMessage(b"x" * (256 * 1024 + 1)))
        # The link outlives the refusal.
        sender.send_messages(ServiceBusMessage("after"))
        large, after = take(receiver, 2)
        assert b"".join(large.body) == body
        assert str(after) == "after"


@pytest.mark.parametrize("body_bytes", [1, 10, 100])
def test_a_batch_filled_to_the_brim_fits(client: Any, queue: str, body_bytes: int) -> None:
    """Req: T-07, T-10. The client does not count the batch's own header and properties."""
    with client.get_queue_sender(queue) as sender:
        batch = sender.create_message_batch()
        with contextlib.suppress(MessageSizeExceededError):
            while True:
                batch.add_message(ServiceBusMessage(b"x" * body_bytes, message_id="m" * 128))
        assert batch.max_size_in_bytes - batch.size_in_bytes < body_bytes + 200
        sender.send_messages(batch)


def test_a_batch_takes_what_fits_and_says_when_it_is_full(client: Any, queue: str) -> None:
    """Req: T-07, T-10"""
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        batch = sender.create_message_batch()
        assert batch.max_size_in_bytes == 255 * 1024
        while True:
            try:
                batch.add_message(ServiceBusMessage(b"x" * 9_000))
            except MessageSizeExceededError:
                break
        assert len(batch) > 25
        sender.send_messages(batch)
        assert len(take(receiver, len(batch))) == len(batch)


def test_a_batch_with_one_bad_message_is_refused_as_a_whole(client: Any, queue: str) -> None:
    """Req: T-07, T-02, T-03"""
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        good = [ServiceBusMessage("good") for _ in range(3)]
        bad = ServiceBusMessage("bad")
        properties = bad.raw_amqp_message.properties
        assert properties is not None
        properties.message_id = "x" * 129  # past the client's own check
        with pytest.raises(ServiceBusError, match="TrackingId:"):
            sender.send_messages([*good, bad])
        sender.send_messages(good[0])
        assert take_one(receiver).sequence_number == 1
        assert_empty(receiver)


def test_an_empty_list_and_an_empty_body_are_fine(client: Any, queue: str) -> None:
    """Req: T-01"""
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages([])
        sender.send_messages(ServiceBusMessage(b""))
        assert str(take_one(receiver)) == ""


def test_many_senders_at_once_lose_nothing(client: Any, queue: str) -> None:
    """Req: T-04"""
    with contextlib.ExitStack() as stack:
        senders = [stack.enter_context(client.get_queue_sender(queue)) for _ in range(4)]
        for turn in range(5):
            for number, sender in enumerate(senders):
                sender.send_messages(ServiceBusMessage(f"{turn}.{number}"))
    with client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        messages = take(receiver, 20)
    assert bodies(messages) == [f"{turn}.{number}" for turn in range(5) for number in range(4)]


def test_a_sender_used_again_after_close_is_told_so_and_a_new_one_works(client: Any, queue: str) -> None:
    """Req: T-11"""
    sender = client.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("1"))
    sender.close()
    with pytest.raises(ValueError, match="shutdown"):
        sender.send_messages(ServiceBusMessage("2"))
    send(client, queue, "3")
    with client.get_queue_receiver(queue) as receiver:
        assert bodies(take(receiver, 2)) == ["1", "3"]


def test_a_repeated_message_id_is_dropped_within_the_window(
    client: Any, make_queue: Callable[..., str]
) -> None:
    """Completed or not, single or in a batch; other ids and messages without id pass.

    Req: D-01
    """
    queue = make_queue(requires_duplicate_detection=True)
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages(ServiceBusMessage("first", message_id="a"))
        receiver.complete_message(take_one(receiver))
        sender.send_messages(ServiceBusMessage("again", message_id="a"))
        sender.send_messages(
            [ServiceBusMessage(body, message_id=id_) for body, id_ in (("x", "a"), ("y", "b"), ("z", "b"))]
        )
        sender.send_messages([ServiceBusMessage("no id"), ServiceBusMessage("no id")])
        messages = take(receiver, 3)
        assert bodies(messages) == ["y", "no id", "no id"]
        # Dropped duplicates use no number.
        assert [message.sequence_number for message in messages] == [2, 3, 4]
        assert_empty(receiver)


def test_ids_of_another_type_are_other_ids(client: Any, make_queue: Callable[..., str]) -> None:
    """A message id may be a UUID; it comes back as one.

    Req: D-01, T-11
    """
    queue = make_queue(requires_duplicate_detection=True)
    id_ = uuid.uuid4()
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        for body in ("first", "again"):
            message = ServiceBusMessage(body)
            properties = message.raw_amqp_message.properties
            assert properties is not None
            properties.message_id = id_
            sender.send_messages(message)
        received = take_one(receiver)
        assert received.raw_amqp_message.properties.message_id == id_
        assert_empty(receiver)


def test_a_sender_that_wants_no_outcome_gets_none(
    queue: str, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fire and forget. What is too large is dropped, without an outcome or a detach; the log says so.

    The client has no such call, and its own waits for an outcome in vain; its link is used as it is.

    Req: T-06, T-02
    """
    settled = functools.partial(PyamqpTransport.create_send_client, send_settle_mode=SenderSettleMode.Settled)
    monkeypatch.setattr(PyamqpTransport, "create_send_client", staticmethod(settled))
    client = ServiceBusClient.from_connection_string(broker.connection_string)
    with client, client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        link: Any = sender._handler._link
        for body in ("before", b"x" * 300_000, "after"):
            message = ServiceBusMessage(body).raw_amqp_message
            link.send_transfer(PyamqpTransport.to_outgoing_amqp_message(message))
        assert bodies(take(receiver, 2)) == ["before", "after"]
        assert_empty(receiver)
        assert link.state == LinkState.ATTACHED
    log = map(json.loads, broker.log.read_text().splitlines())
    refusals = [line["condition"] for line in log if line.get("entity") == queue]
    assert refusals == ["amqp:link:message-size-exceeded"]
