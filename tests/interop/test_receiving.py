"""Receiving and settling through the official client, while locks hold."""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
)

from bench.delay import delayed_path
from peeklock.demo.broker import BrokerProcess
from tests.interop.clients import Api, Background, Links
from tests.interop.helpers import assert_empty, bodies, send, take, take_one

DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE


def _dead_letters(client: Any, queue: str, **options: Any) -> Any:
    return client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER, **options)


def test_receive_and_delete_removes_at_delivery_and_takes_no_lock(client: Any, queue: str) -> None:
    """Req: L-01"""
    send(client, queue, "1", "2", "3")
    with client.get_queue_receiver(queue, receive_mode=DELETE) as receiver:
        messages = take(receiver, 3)
        assert bodies(messages) == ["1", "2", "3"]
        assert [message.locked_until_utc for message in messages] == [None] * 3
        assert [message.delivery_count for message in messages] == [0] * 3
        with pytest.raises(ValueError, match="RECEIVE_AND_DELETE"):
            receiver.complete_message(messages[0])
        assert receiver.peek_messages(sequence_number=1) == []


def test_a_locked_message_is_given_to_no_other_receiver(client: Any, queue: str) -> None:
    """Req: L-02, L-03"""
    send(client, queue, "1", "2")
    with client.get_queue_receiver(queue) as one, client.get_queue_receiver(queue) as other:
        first = take_one(one)
        left_s = (first.locked_until_utc - dt.datetime.now(dt.UTC)).total_seconds()
        assert 50 < left_s <= 61  # the default is a minute
        second = take_one(other)
        assert bodies([first, second]) == ["1", "2"]
        assert_empty(other)
        one.complete_message(first)
        other.complete_message(second)
        assert one.peek_messages() == []


def test_complete_removes_and_settling_again_is_refused_by_the_client(client: Any, queue: str) -> None:
    """Req: L-05"""
    send(client, queue, "1")
    with client.get_queue_receiver(queue) as receiver:
        message = take_one(receiver)
        assert receiver.complete_message(message) is None
        with pytest.raises(MessageAlreadySettled):
            receiver.abandon_message(message)
        assert receiver.peek_messages(sequence_number=1) == []


def test_an_abandoned_message_comes_back_in_its_place_with_a_new_lock(client: Any, queue: str) -> None:
    """Req: L-04, L-06, L-07, L-08"""
    send(client, queue, "1", "2", "3")
    with client.get_queue_receiver(queue) as receiver:
        messages = take(receiver, 2)
        receiver.abandon_message(messages[0])
        again = take(receiver, 2)
        assert bodies(again) == ["1", "3"]
        assert [message.delivery_count for message in again] == [1, 0]
        assert again[0].lock_token != messages[0].lock_token
        assert again[0].sequence_number == messages[0].sequence_number
        assert again[0].message_id == messages[0].message_id


def test_the_lock_token_is_the_same_wherever_it_stands(client: Any, queue: str) -> None:
    """Req: L-04"""
    send(client, queue, "1", "2")
    with client.get_queue_receiver(queue) as receiver:
        messages = take(receiver, 2)
        for message in messages:
            annotation = message.raw_amqp_message.delivery_annotations[b"x-opt-lock-token"]
            assert message.lock_token == annotation
            receiver.renew_message_lock(message)
        assert messages[0].lock_token != messages[1].lock_token


def test_a_deferred_message_is_fetched_by_number_only(client: Any, queue: str) -> None:
    """In either mode; still browsed; other numbers are not found, and then nothing is taken.

    Req: L-10
    """
    send(client, queue, "1", "2", "3")
    with (
        client.get_queue_receiver(queue) as receiver,
        client.get_queue_receiver(queue, receive_mode=DELETE) as deleting,
    ):
        for message in take(receiver, 2):
            receiver.defer_message(message)
        waiting = take_one(receiver)
        assert str(waiting) == "3"
        assert_empty(receiver)
        browsed = receiver.peek_messages(max_message_count=10, sequence_number=1)
        assert [message.state for message in browsed] == [
            ServiceBusMessageState.DEFERRED,
            ServiceBusMessageState.DEFERRED,
            ServiceBusMessageState.ACTIVE,
        ]
        with pytest.raises(MessageNotFoundError, match="TrackingId:"):
            receiver.receive_deferred_messages([1, 3])
        (first,) = receiver.receive_deferred_messages(1)
        assert first.state == ServiceBusMessageState.DEFERRED
        assert first.locked_until_utc is not None
        assert first.delivery_count == 1
        receiver.renew_message_lock(first)
        receiver.complete_message(first)
        (second,) = deleting.receive_deferred_messages([2])
        assert str(second) == "2"
        assert second.locked_until_utc is None
        for number in (1, 2):
            with pytest.raises(MessageNotFoundError):
                receiver.receive_deferred_messages(number)
        receiver.complete_message(waiting)
        assert receiver.peek_messages(sequence_number=1) == []


def test_a_fetched_deferred_message_can_be_settled_in_each_way(client: Any, queue: str) -> None:
    """Abandoned and deferred again it stays deferred; dead-lettered it moves.

    Req: L-10, L-14, L-09
    """
    send(client, queue, "1", "2", "3")
    with client.get_queue_receiver(queue) as receiver, _dead_letters(client, queue) as dead_letters:
        for message in take(receiver, 3):
            receiver.defer_message(message)
        abandoned, deferred, dead = receiver.receive_deferred_messages([1, 2, 3])
        receiver.abandon_message(abandoned)
        receiver.defer_message(deferred)
        receiver.dead_letter_message(dead, reason="tired", error_description="of waiting")
        assert_empty(receiver)
        again = receiver.receive_deferred_messages([1, 2])
        assert [message.delivery_count for message in again] == [2, 2]
        for message in again:
            receiver.complete_message(message)
        moved = take_one(dead_letters)
        assert moved.delivery_count == 1
        assert (moved.dead_letter_reason, moved.dead_letter_error_description) == ("tired", "of waiting")


def test_a_dead_lettered_message_keeps_itself_and_says_why(client: Any, queue: str) -> None:
    """The dead-letter queue reads, browses, defers and completes like any queue, and cannot be sent to.

    Req: L-09, L-17, L-15
    """
    send(client, queue, "1", "2", "3", application_properties={"colour": "blue"}, subject="about")
    with client.get_queue_receiver(queue) as receiver, _dead_letters(client, queue) as dead_letters:
        for message in take(receiver, 3):
            reason = f"reason {message}"
            receiver.dead_letter_message(message, reason=reason, error_description="a longer story")
        assert receiver.peek_messages(sequence_number=1) == []
        assert bodies(dead_letters.peek_messages(max_message_count=5)) == ["1", "2", "3"]
        first, second, third = take(dead_letters, 3)
        assert first.dead_letter_reason == "reason 1"
        assert first.dead_letter_error_description == "a longer story"
        assert first.application_properties[b"colour"] == b"blue"
        assert first.subject == "about"
        assert first.sequence_number == 1
        assert first.enqueued_time_utc is not None
        dead_letters.complete_message(first)
        dead_letters.abandon_message(second)
        dead_letters.defer_message(third)
        dead_letters.complete_message(take_one(dead_letters))
        (fetched,) = dead_letters.receive_deferred_messages(third.sequence_number)
        dead_letters.complete_message(fetched)
        assert dead_letters.peek_messages(sequence_number=1) == []


def test_dead_lettering_needs_neither_reason_nor_description(client: Any, queue: str) -> None:
    """Req: L-09"""
    send(client, queue, "1")
    with client.get_queue_receiver(queue) as receiver, _dead_letters(client, queue) as dead_letters:
        receiver.dead_letter_message(take_one(receiver))
        moved = take_one(dead_letters)
        assert (moved.dead_letter_reason, moved.dead_letter_error_description) == (None, None)


def test_a_message_is_delivered_as_often_as_the_queue_allows(
    client: Any, make_queue: Callable[..., str]
) -> None:
    """Req: L-08"""
    queue = make_queue(max_delivery_count=3)
    send(client, queue, "poison", "good", message_id="p")
    with client.get_queue_receiver(queue) as receiver, _dead_letters(client, queue) as dead_letters:
        for attempt in range(3):
            message = take_one(receiver)
            assert (str(message), message.delivery_count) == ("poison", attempt)
            receiver.abandon_message(message)
        assert str(take_one(receiver)) == "good"
        moved = take_one(dead_letters)
        assert moved.dead_letter_reason == "MaxDeliveryCountExceeded"
        assert moved.dead_letter_error_description
        assert moved.message_id == "p"


def test_a_deferral_is_a_delivery_and_dead_letters_are_not_counted(
    client: Any, make_queue: Callable[..., str]
) -> None:
    """Over the link, and by the management node for a message that was received by number.

    Req: L-08, L-10, L-14, L-17
    """
    queue = make_queue(max_delivery_count=2)
    send(client, queue, "1")
    with client.get_queue_receiver(queue) as receiver, _dead_letters(client, queue) as dead_letters:
        found = take_one(receiver)
        for attempt in range(2):
            assert found.delivery_count == attempt
            receiver.defer_message(found)
            if not attempt:
                (found,) = receiver.receive_deferred_messages(1)
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages(1)
        for _ in range(2):
            moved = take_one(dead_letters)
            assert (moved.dead_letter_reason, moved.delivery_count) == ("MaxDeliveryCountExceeded", 2)
            dead_letters.abandon_message(moved)
        dead_letters.defer_message(take_one(dead_letters))
        (fetched,) = dead_letters.receive_deferred_messages(1)
        assert fetched.delivery_count == 2
        dead_letters.complete_message(fetched)


def test_renewing_moves_the_end_of_the_lock(client: Any, make_queue: Callable[..., str]) -> None:
    """Req: L-03"""
    queue = make_queue(lock_duration=dt.timedelta(minutes=5))
    send(client, queue, "1")
    with client.get_queue_receiver(queue) as receiver:
        message = take_one(receiver)
        before = message.locked_until_utc
        threading.Event().wait(0.05)
        until = receiver.renew_message_lock(message)
        assert until == message.locked_until_utc
        assert dt.timedelta(0) < until - before < dt.timedelta(seconds=30)
        receiver.complete_message(message)


def test_any_receiver_settles_by_the_lock_token(client: Any, queue: str) -> None:
    """The link that received it is closed, so the client goes through the management node.

    Req: L-14, L-13
    """
    send(client, queue, "1", "2", "3", "4")
    first = client.get_queue_receiver(queue)
    messages = take(first, 4)
    first.close()
    with client.get_queue_receiver(queue) as other, _dead_letters(client, queue) as dead_letters:
        assert_empty(other)  # a proper close leaves the locks
        other.complete_message(messages[0])
        other.abandon_message(messages[1])
        other.defer_message(messages[2])
        other.dead_letter_message(messages[3], reason="by another", error_description="receiver")
        again = take_one(other)
        assert (str(again), again.delivery_count) == ("2", 1)
        assert bodies(other.receive_deferred_messages(3)) == ["3"]
        assert take_one(dead_letters).dead_letter_reason == "by another"


def test_an_unknown_lock_token_is_a_lost_lock(client: Any, queue: str) -> None:
    """Settled by another receiver meanwhile: the same error each time, and nothing else changes.

    Req: L-11, L-14, T-03
    """
    send(client, queue, "1")
    with client.get_queue_receiver(queue) as receiver, client.get_queue_receiver(queue) as other:
        message = take_one(receiver)
        other.abandon_message(copy.copy(message))  # a copy, since the client remembers what is settled
        again = take_one(other)
        assert again.lock_token != message.lock_token
        for _ in range(2):  # first over the link, then through the management node
            with pytest.raises(MessageLockLostError, match="TrackingId:"):
                receiver.complete_message(message)
            with pytest.raises(MessageLockLostError, match="TrackingId:"):
                receiver.renew_message_lock(message)
        other.complete_message(again)


def test_competing_receivers_get_each_message_once(client: Any, queue: str) -> None:
    """Req: L-02"""
    send(client, queue, *map(str, range(60)))
    seen: list[str] = []
    with contextlib.ExitStack() as stack:
        receivers = [stack.enter_context(client.get_queue_receiver(queue)) for _ in range(4)]
        for receiver in itertools.cycle(receivers):
            for message in take(receiver, 3):
                seen.append(str(message))
                receiver.complete_message(message)
            if len(seen) == 60:
                break
        for receiver in receivers:
            assert_empty(receiver)
    assert sorted(seen, key=int) == [str(n) for n in range(60)]


def test_prefetched_messages_are_locked_for_their_receiver_and_given_back_at_close(
    client: Any, queue: str
) -> None:
    """Releasing counts no delivery.

    Req: L-16, L-08
    """
    send(client, queue, *map(str, range(20)))
    with client.get_queue_receiver(queue) as other:
        with client.get_queue_receiver(queue, prefetch_count=20) as receiver:
            first = take_one(receiver)
            receiver.complete_message(first)
        messages = take(other, 19)
        assert bodies(messages) == [str(n) for n in range(1, 20)]
        assert {message.delivery_count for message in messages} == {0}


def test_an_open_receiver_that_does_not_receive_holds_nothing(client: Any, queue: str) -> None:
    """Credit belongs to a receive call.

    Req: L-16
    """
    with client.get_queue_receiver(queue) as idle, client.get_queue_receiver(queue) as busy:
        assert idle.peek_messages() == []
        send(client, queue, "1", "2", "3")
        assert bodies(take(busy, 3)) == ["1", "2", "3"]


def test_no_more_comes_than_was_asked_for(client: Any, queue: str) -> None:
    """Req: L-16"""
    send(client, queue, *map(str, range(10)))
    with client.get_queue_receiver(queue) as one, client.get_queue_receiver(queue) as other:
        assert bodies(take(one, 4)) == ["0", "1", "2", "3"]
        assert bodies(take(other, 6)) == ["4", "5", "6", "7", "8", "9"]


def test_iterating_ends_when_nothing_came_for_a_while(client: Any, queue: str) -> None:
    """Req: L-02, T-11"""
    send(client, queue, *map(str, range(5)))
    with client.get_queue_receiver(queue, max_wait_time=2) as receiver:
        seen = []
        for message in receiver:
            seen.append(str(message))
            receiver.complete_message(message)
        assert seen == ["0", "1", "2", "3", "4"]
        assert receiver.peek_messages(sequence_number=1) == []


def test_a_waiting_receiver_gets_a_message_as_soon_as_it_is_sent(client: Any, queue: str) -> None:
    """Req: L-02"""
    with client.get_queue_receiver(queue) as receiver:
        sending = threading.Timer(0.3, send, (client, queue, "at last"))
        sending.start()
        message = take_one(receiver)
        sending.join()
        assert str(message) == "at last"


def test_browsing_starts_where_asked_and_takes_nothing(client: Any, queue: str) -> None:
    """Req: S-11"""
    send(client, queue, *map(str, range(1, 11)))
    with client.get_queue_receiver(queue) as receiver:
        locked = take(receiver, 2)
        # Without a number the client continues behind what it has received or browsed.
        assert bodies(receiver.peek_messages()) == ["3"]
        assert bodies(receiver.peek_messages(max_message_count=2)) == ["4", "5"]
        assert bodies(receiver.peek_messages(max_message_count=3, sequence_number=7)) == ["7", "8", "9"]
        assert bodies(receiver.peek_messages(max_message_count=30, sequence_number=9)) == ["9", "10"]
        assert receiver.peek_messages(max_message_count=3, sequence_number=11) == []
        browsed = receiver.peek_messages(max_message_count=30, sequence_number=1)
        assert [message.sequence_number for message in browsed] == list(range(1, 11))
        assert {message.delivery_count for message in browsed} == {0}
        with pytest.raises(ValueError, match="peek"):
            receiver.complete_message(browsed[0])
        for message in locked:
            receiver.complete_message(message)
        assert bodies(take(receiver, 8)) == [str(n) for n in range(3, 11)]


def test_messages_of_any_size_come_whole_and_in_order(client: Any, queue: str) -> None:
    """Sizes around the frame size of 64 KiB.

    Req: T-10
    """
    sizes = [0, 1, 65_000, 65_400, 65_536, 66_000, 131_072, 250_000]
    with client.get_queue_sender(queue) as sender:
        for size in sizes:
            sender.send_messages(ServiceBusMessage(b"\xa5" * size))
    with client.get_queue_receiver(queue, prefetch_count=10) as receiver:
        messages = take(receiver, len(sizes))
        assert [len(b"".join(message.body)) for message in messages] == sizes
        for message in messages:
            receiver.complete_message(message)
        assert receiver.peek_messages(sequence_number=1) == []


def test_a_broken_connection_gives_its_messages_back_at_once(
    api: Api, client: Any, broker: BrokerProcess, queue: str, background: Background
) -> None:
    """The path to the client is cut without a word of AMQP; the lock would have lasted a minute.

    Req: L-13, L-08
    """
    send(client, queue, "1", "2")
    path = contextlib.ExitStack()
    port = path.enter_context(delayed_path(broker.amqp_port, 0.001))
    far_string = broker.connection_string.replace(f":{broker.amqp_port};", f":{port};")
    far_client = Links(api.client(far_string, retry_total=0), background)
    with far_client.get_queue_receiver(queue) as far, client.get_queue_receiver(queue) as receiver:
        held = take_one(far)
        path.close()
        again = take(receiver, 2)
        # The broker may read this client's credit before it reads that the other's connection is gone.
        assert {str(message): message.delivery_count for message in again} == {"1": 1, "2": 0}
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(held)
