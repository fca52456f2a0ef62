"""Scheduled messages through the official client."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import MessageNotFoundError

from tests.interop.helpers import assert_empty, bodies, send, take, take_one


def _in(seconds: float) -> dt.datetime:
    return dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)


def test_scheduled_messages_come_when_they_are_due_and_not_before(client: Any, queue: str) -> None:
    """One, many, and by the property of a normal send; on activation a new number and the time asked for.

    Req: S-05, S-06, S-07, S-01
    """
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        due = _in(5)
        (one,) = sender.schedule_messages(ServiceBusMessage("one"), due)
        many = sender.schedule_messages([ServiceBusMessage("two"), ServiceBusMessage("three")], due)
        by_property = ServiceBusMessage("by property", scheduled_enqueue_time_utc=due)
        sender.send_messages(by_property)
        sender.send_messages(ServiceBusMessage("now"))
        assert [one, *many] == [1, 2, 3]
        browsed = receiver.peek_messages(max_message_count=10)
        assert [message.state for message in browsed[:4]] == [ServiceBusMessageState.SCHEDULED] * 4
        assert [message.sequence_number for message in browsed] == [1, 2, 3, 4, 5]
        assert bodies(take(receiver, 1)) == ["now"]
        assert_empty(receiver)
        assert dt.datetime.now(dt.UTC) < due
        messages = take(receiver, 4)
        assert dt.datetime.now(dt.UTC) >= due
        assert bodies(messages) == ["one", "two", "three", "by property"]
        assert [message.sequence_number for message in messages] == [6, 7, 8, 9]
        assert {message.state for message in messages} == {ServiceBusMessageState.SCHEDULED}  # they were
        for message in messages:
            assert abs(message.enqueued_time_utc - due) < dt.timedelta(seconds=1)
            assert abs(message.scheduled_enqueue_time_utc - due) < dt.timedelta(milliseconds=2)


def test_a_cancelled_message_never_comes_and_cannot_be_cancelled_twice(client: Any, queue: str) -> None:
    """Req: S-06"""
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        numbers = sender.schedule_messages([ServiceBusMessage(str(n)) for n in range(4)], _in(3600))
        sender.cancel_scheduled_messages(numbers[0])
        sender.cancel_scheduled_messages(numbers[1:3])
        assert bodies(receiver.peek_messages(max_message_count=5)) == ["3"]
        for unknown in (numbers[0], 12345, [numbers[3], 12345]):
            with pytest.raises(MessageNotFoundError, match="TrackingId:"):
                sender.cancel_scheduled_messages(unknown)
        sender.cancel_scheduled_messages(numbers[3])
        assert receiver.peek_messages(sequence_number=1) == []


def test_a_message_scheduled_for_the_past_comes_at_once(client: Any, queue: str) -> None:
    """Req: S-05"""
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.schedule_messages(ServiceBusMessage("late"), _in(-60))
        assert str(take_one(receiver)) == "late"


def test_scheduled_messages_keep_a_uuid_as_message_id(client: Any, queue: str) -> None:
    """Req: S-05, T-11"""
    import uuid

    id_ = uuid.uuid4()
    message = ServiceBusMessage("x")
    properties = message.raw_amqp_message.properties
    assert properties is not None
    properties.message_id = id_
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.schedule_messages(message, _in(3600))
        (browsed,) = receiver.peek_messages()
        assert browsed.raw_amqp_message.properties.message_id == id_


def test_an_activated_message_joins_the_end_of_the_order(client: Any, queue: str) -> None:
    """Req: S-06, S-12"""
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.schedule_messages(ServiceBusMessage("scheduled"), _in(0.5))
        sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
        scheduled_is_in = False
        while not scheduled_is_in:
            browsed = receiver.peek_messages(max_message_count=5, sequence_number=1)
            scheduled_is_in = all(message.state == ServiceBusMessageState.ACTIVE for message in browsed)
        assert bodies(take(receiver, 3)) == ["1", "2", "scheduled"]


def test_what_waits_in_the_queue_does_not_hold_up_scheduling(client: Any, queue: str) -> None:
    """Req: S-05"""
    send(client, queue, *map(str, range(20)))
    with client.get_queue_sender(queue) as sender:
        assert sender.schedule_messages(ServiceBusMessage("x"), _in(3600)) == [21]
