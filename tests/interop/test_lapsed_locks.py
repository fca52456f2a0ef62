"""What happens when a lock lapses. All scenarios lapse together, in one wait for each form of the client."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageLockLostError

from tests.interop.clients import Api, Links
from tests.interop.helpers import take, take_one

LOCK_S = 5
"""The shortest lock that a queue may have."""


@dataclass
class Lapsed:
    """Queues whose first messages were received `LOCK_S` and more ago, and never settled."""

    client: Any
    queues: dict[str, str]
    receivers: dict[str, Any]
    senders: dict[str, Any]
    messages: dict[str, list[Any]]

    def __getitem__(self, name: str) -> tuple[str, Any, list[Any]]:
        return self.queues[name], self.receivers[name], self.messages[name]


@pytest.fixture(scope="module")
def all_lapsed(clients: dict[str, Links], make_queue: Callable[..., str]) -> Iterator[dict[str, Lapsed]]:
    """Let the locks of all scenarios lapse at once, for each form of the client."""
    made = {form: Lapsed(client, {}, {}, {}, {}) for form, client in clients.items()}
    for lapsed in made.values():
        _open(lapsed, make_queue)
    for lapsed in made.values():
        _receive(lapsed)
    threading.Event().wait(LOCK_S + 0.5)
    yield made
    for lapsed in made.values():
        for link in (*lapsed.receivers.values(), *lapsed.senders.values()):
            link.__exit__(None, None, None)


@pytest.fixture
def lapsed(api: Api, all_lapsed: dict[str, Lapsed]) -> Lapsed:
    """The scenarios in one form of the client."""
    return all_lapsed[api.form]


def _open(lapsed: Lapsed, make_queue: Callable[..., str]) -> None:
    for name in ("link", "order", "deferred", "poison", "expired", "settled late"):
        lapsed.queues[name] = make_queue(
            lock_duration=dt.timedelta(seconds=LOCK_S),
            max_delivery_count=1 if name == "poison" else 10,
            dead_lettering_on_message_expiration=name == "expired",
        )
        lapsed.receivers[name] = lapsed.client.get_queue_receiver(lapsed.queues[name]).__enter__()
        lapsed.senders[name] = lapsed.client.get_queue_sender(lapsed.queues[name]).__enter__()


def _receive(lapsed: Lapsed) -> None:
    for name, receiver in lapsed.receivers.items():
        own: dict[str, Any] = {"time_to_live": dt.timedelta(seconds=LOCK_S - 1)} if name == "expired" else {}
        receiver.opened()  # before the time runs
        lapsed.senders[name].send_messages([ServiceBusMessage(body, **own) for body in ("1", "2", "3")])
        lapsed.messages[name] = messages = take(receiver, 2)
        if name == "deferred":
            receiver.defer_message(messages[0])
            lapsed.messages[name] = receiver.receive_deferred_messages(messages[0].sequence_number)


def _as_if_unaware(message: Any) -> Any:
    # The client checks its own clock first and sends nothing; without the annotation the broker must
    # answer.
    message._raw_amqp_message.annotations.pop(b"x-opt-locked-until", None)
    return message


def test_settling_after_the_lapse_is_lock_lost_and_the_message_comes_again(lapsed: Lapsed) -> None:
    """The answer is the broker's, over the link and through the management node, each time.

    Req: L-11, L-07, L-08, T-02
    """
    _, receiver, (first, second) = lapsed["link"]
    for _ in range(2):
        with pytest.raises(MessageLockLostError, match="TrackingId:"):
            receiver.complete_message(_as_if_unaware(first))
    with pytest.raises(MessageLockLostError, match="TrackingId:"):
        receiver.renew_message_lock(_as_if_unaware(second))
    again = take(receiver, 3)
    assert [str(message) for message in again] == ["1", "2", "3"]
    assert [message.delivery_count for message in again] == [1, 1, 0]
    # The lost token never settles the redelivery.
    with pytest.raises(MessageLockLostError):
        receiver.complete_message(_as_if_unaware(first))
    for message in again:
        receiver.complete_message(message)
    assert receiver.peek_messages(sequence_number=1) == []


@pytest.mark.parametrize("way", ["abandon_message", "defer_message", "dead_letter_message"])
def test_each_way_of_settling_says_that_the_lock_is_lost(lapsed: Lapsed, way: str) -> None:
    """Req: L-11, L-14"""
    _, receiver, (first, _) = lapsed["settled late"]
    with pytest.raises(MessageLockLostError):
        getattr(receiver, way)(_as_if_unaware(first))


def test_the_client_sees_a_lapse_by_its_own_clock(lapsed: Lapsed) -> None:
    """The message carries the lock's end, in UTC.

    Req: L-03, L-11
    """
    _, receiver, messages = lapsed["order"]
    with pytest.raises(MessageLockLostError):
        receiver.complete_message(messages[0])


def test_lapsed_messages_come_first_in_the_order_of_their_numbers(lapsed: Lapsed) -> None:
    """Req: L-07, L-04"""
    queue, _, messages = lapsed["order"]
    with lapsed.client.get_queue_receiver(queue) as other:
        again = take(other, 3)
    assert [message.sequence_number for message in again] == [1, 2, 3]
    assert not {message.lock_token for message in again} & {message.lock_token for message in messages}


def test_a_deferred_message_stays_deferred(lapsed: Lapsed) -> None:
    """Req: L-10, L-08"""
    _, receiver, (message,) = lapsed["deferred"]
    with pytest.raises(MessageLockLostError):
        receiver.complete_message(_as_if_unaware(message))
    (again,) = receiver.receive_deferred_messages(message.sequence_number)
    assert again.delivery_count == 2
    receiver.complete_message(again)


def test_a_lapse_counts_towards_the_dead_letter_queue(lapsed: Lapsed) -> None:
    """Req: L-08"""
    queue, receiver, _ = lapsed["poison"]
    assert str(take_one(receiver)) == "3"
    with lapsed.client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead_letters:
        moved = take(dead_letters, 2)
    assert [str(message) for message in moved] == ["1", "2"]
    assert {message.dead_letter_reason for message in moved} == {"MaxDeliveryCountExceeded"}


def test_a_locked_message_expires_when_its_lock_lapses_and_not_before(lapsed: Lapsed) -> None:
    """Its time-to-live ended while it was locked; expiry decides where it goes.

    Req: E-03, E-08
    """
    queue, _, _ = lapsed["expired"]
    with lapsed.client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead_letters:
        moved = take(dead_letters, 3)
    assert sorted(str(message) for message in moved) == ["1", "2", "3"]
    assert {message.dead_letter_reason for message in moved} == {"TTLExpiredException"}
