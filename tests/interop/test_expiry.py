"""Time-to-live through the official client."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue

from tests.interop.helpers import assert_empty, bodies, send, take, take_one

SHORT = dt.timedelta(seconds=2)


def test_expired_messages_are_dead_lettered_or_gone_as_the_queue_says(
    client: Any, make_queue: Callable[..., str]
) -> None:
    """A locked one can be completed late, a deferred one stays, a scheduled one counts from its activation;
    without the switch they are removed. Nobody listens while they expire.

    Req: E-01, E-02, E-03, E-08, S-07
    """
    keeping, dropping = make_queue(dead_lettering_on_message_expiration=True), make_queue()
    with client.get_queue_receiver(keeping) as receiver, client.get_queue_sender(keeping) as sender:
        send(client, dropping, "a", "b", time_to_live=SHORT)
        receiver.opened()  # before the time runs
        sender.send_messages(
            [ServiceBusMessage(body, time_to_live=SHORT) for body in ("locked", "deferred", "waiting")]
        )
        sender.send_messages(ServiceBusMessage("stays", time_to_live=dt.timedelta(days=49)))
        sender.schedule_messages(
            ServiceBusMessage("scheduled", time_to_live=SHORT),
            dt.datetime.now(dt.UTC) + dt.timedelta(hours=1),
        )
        locked, deferred = take(receiver, 2)
        receiver.defer_message(deferred)
        threading.Event().wait(4.2)  # its 2 s, the 2 s that expiry may take, and a little
        receiver.complete_message(locked)
        browsed = receiver.peek_messages(max_message_count=10, sequence_number=1)
        assert bodies(browsed) == ["deferred", "stays", "scheduled"]
        assert bodies(take(receiver)) == ["stays"]
        assert_empty(receiver)
        assert bodies(receiver.receive_deferred_messages(deferred.sequence_number)) == ["deferred"]
        with client.get_queue_receiver(keeping, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead_letters:
            moved = take_one(dead_letters)
            assert str(moved) == "waiting"
            assert moved.dead_letter_reason == "TTLExpiredException"
            assert_empty(dead_letters)
    with client.get_queue_receiver(dropping) as receiver:
        assert receiver.peek_messages(sequence_number=1) == []
    with client.get_queue_receiver(dropping, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead_letters:
        assert dead_letters.peek_messages() == []


def test_the_queues_time_to_live_caps_and_fills_in(client: Any, make_queue: Callable[..., str]) -> None:
    """Received, each shows what holds; browsed, one without its own time-to-live shows none.

    Req: E-04, E-05
    """
    queue = make_queue(default_message_time_to_live=dt.timedelta(minutes=10))
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages(ServiceBusMessage("none"))
        sender.send_messages(ServiceBusMessage("longer", time_to_live=dt.timedelta(hours=1)))
        sender.send_messages(ServiceBusMessage("shorter", time_to_live=dt.timedelta(minutes=1)))
        minutes = [dt.timedelta(minutes=n) for n in (10, 10, 1)]
        browsed = receiver.peek_messages(max_message_count=3)
        assert [message.time_to_live for message in browsed] == [None, *minutes[1:]]
        messages = take(receiver, 3)
        assert [message.time_to_live for message in messages] == minutes
        assert [message.expires_at_utc - message.enqueued_time_utc for message in messages] == minutes


def test_without_any_time_to_live_a_message_shows_none(client: Any, queue: str) -> None:
    """Req: E-06"""
    send(client, queue, "1")
    with client.get_queue_receiver(queue) as receiver:
        (browsed,) = receiver.peek_messages()
        message = take_one(receiver)
        assert (browsed.time_to_live, message.time_to_live, message.expires_at_utc) == (None, None, None)


def test_a_time_to_live_too_short_to_be_received_is_no_error(client: Any, queue: str) -> None:
    """Req: E-09"""
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages(ServiceBusMessage("gone", time_to_live=dt.timedelta(milliseconds=1)))
        assert_empty(receiver)
