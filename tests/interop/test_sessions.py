"""Message sessions through the official client, while their locks hold."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import (
    MessageNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
)

from tests.interop.clients import Links
from tests.interop.helpers import assert_empty, bodies, take, take_one

STATE_BYTES_MAX = 256 * 1024
"""On the standard tier."""


@pytest.fixture
def queue(make_queue: Callable[..., str]) -> str:
    """A fresh queue that requires sessions; a message may be delivered twice."""
    return make_queue(requires_session=True, max_delivery_count=2)


def message(body: str, session_id: str | None = None, **settings: Any) -> ServiceBusMessage:
    """Return a message whose session is named by the body's letters, unless it is given."""
    return ServiceBusMessage(body, session_id=session_id or body.rstrip("0123456789"), **settings)


def send(client: Any, queue: str, *texts: str) -> None:
    """Send messages in one list."""
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([message(text) for text in texts])


def accept(client: Any, queue: str, session_id: Any = NEXT_AVAILABLE_SESSION, **options: Any) -> Any:
    """Return a receiver of a session, which waits 10 s for the next one."""
    return client.get_queue_receiver(queue, session_id=session_id, max_wait_time=10, **options)


def test_a_named_session_is_received_in_order_by_its_holder_alone(client: Links, queue: str) -> None:
    """Others hold other sessions meanwhile; closing the receiver frees the session at once, uncounted.

    Req: G-01, G-02, G-04, L-13
    """
    send(client, queue, "a1", "b1", "a2", "b2", "a3")
    with accept(client, queue, "a") as first, accept(client, queue, "b") as other:
        assert first.session.session_id == "a"
        left_s = (first.session.locked_until_utc - dt.datetime.now(dt.UTC)).total_seconds()
        assert 50 < left_s <= 61
        messages = take(first, 3)
        assert bodies(messages) == ["a1", "a2", "a3"]
        assert {found.session_id for found in messages} == {"a"}
        assert {found.locked_until_utc for found in messages} == {None}  # the lock is the session's
        with pytest.raises(SessionCannotBeLockedError, match="TrackingId:"), accept(client, queue, "a") as no:
            no.opened()
        assert bodies(take(other, 2)) == ["b1", "b2"]
        assert_empty(first)
        first.complete_message(messages[0])
        send(client, queue, "a4")
        assert str(take_one(first)) == "a4"
        first.close()
        with accept(client, queue, "a") as again:
            rest = take(again, 3)
    assert bodies(rest) == ["a2", "a3", "a4"]
    assert [found.delivery_count for found in rest] == [0, 0, 0]


def test_a_session_by_any_spelling_of_its_id(any_client: Links, queue: str) -> None:
    """Its receiver gets the spelling that it asked for, or that of the first message. Req: C27, G-01"""
    with any_client.get_queue_sender(queue) as sender:
        sender.send_messages([message(body, body) for body in ("Ärger", "ärger", "other")])
    with accept(any_client, queue, "ÄRGER") as receiver:
        assert receiver.session.session_id == "ÄRGER"
        messages = take(receiver, 2)
        assert [found.session_id for found in messages] == bodies(messages) == ["Ärger", "ärger"]
        receiver.session.set_state("kept")
        receiver.complete_message(messages[0])
        receiver.defer_message(messages[1])
    with accept(any_client, queue, "äRGER") as receiver:
        assert receiver.session.get_state() == b"kept"
        assert bodies(receiver.receive_deferred_messages(messages[1].sequence_number)) == ["ärger"]
    with any_client.get_queue_sender(queue) as sender:
        sender.send_messages(message("late", "ÄRger"))
    with accept(any_client, queue) as first, accept(any_client, queue) as second:
        assert {first.session.session_id, second.session.session_id} == {"other", "ärger"}


def test_receivers_get_the_next_sessions_and_wait_while_there_is_none(client: Links, queue: str) -> None:
    """Each another one; with none available as long as it says, and it takes the first that becomes so.

    Req: G-04, G-06
    """
    send(client, queue, "b1", "a1", "b2", "c1")
    with (
        accept(client, queue) as one,
        accept(client, queue) as two,
        accept(client, queue) as three,
        client.get_queue_sender(queue) as sender,
    ):
        given = {}
        for receiver in (one, two, three):
            given[receiver.session.session_id] = bodies(take(receiver, 1))
        assert given == {"a": ["a1"], "b": ["b1"], "c": ["c1"]}
        in_vain = client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1)
        started = time.monotonic()
        with in_vain as nobody, pytest.raises(OperationTimeoutError, match="TrackingId:"):
            nobody.opened()
        assert time.monotonic() - started < 8
        with accept(client, queue) as waiting:
            sender.send_messages(message("d1"))
            assert waiting.session.session_id == "d"
            assert str(take_one(waiting)) == "d1"


def test_the_longest_available_comes_first(any_client: Links, queue: str) -> None:
    """Req: G-06"""
    send(any_client, queue, "b1", "a1", "b2", "c1")
    given = []
    for _ in range(3):
        with accept(any_client, queue) as receiver:
            given.append(receiver.session.session_id)
            (found,) = take(receiver, 1)
            receiver.complete_message(found)
    # b became available again after c.
    assert given == ["b", "a", "c"]


def test_a_session_has_a_state(client: Links, queue: str) -> None:
    """Bytes and text, none at first and after clearing; it outlives its receiver, and needs no message. Too
    large a state leaves the old one.

    Req: G-03, G-07
    """
    with accept(client, queue, "s") as receiver, accept(client, queue, "other") as other:
        session = receiver.session
        assert session.get_state() is None
        session.set_state("héllo")
        assert session.get_state() == "héllo".encode()
        session.set_state(b"")
        assert session.get_state() is None  # the empty state is none
        large = bytes(range(256)) * (STATE_BYTES_MAX // 256)
        session.set_state(large)
        assert session.get_state() == large
        with pytest.raises(ServiceBusError, match="TrackingId:"):
            session.set_state(large + b"x")
        assert session.get_state() == large
        assert other.session.get_state() is None
        receiver.close()
    assert client.list_queue_sessions(queue) == ["s"]
    with accept(client, queue, "s") as again:
        assert again.session.get_state() == large
        again.session.set_state(None)
        assert again.session.get_state() is None
    assert client.list_queue_sessions(queue) == []


def test_sessions_are_listed(client: Links, queue: str) -> None:
    """Those with messages or state, more than a page of them; or those whose state was set since a time.

    Req: G-07, G-03
    """
    names = [f"session {number}" for number in range(250)]
    with client.get_queue_sender(queue) as sender, accept(client, queue, "with state") as receiver:
        assert client.list_queue_sessions(queue) == []
        sender.send_messages([message("x", name) for name in names])
        before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
        receiver.session.set_state("x")
        assert sorted(client.list_queue_sessions(queue)) == sorted([*names, "with state"])
        assert client.list_queue_sessions(queue, state_updated_after=before) == ["with state"]
        hence = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
        assert client.list_queue_sessions(queue, state_updated_after=hence) == []


def test_the_lock_is_renewed(client: Links, queue: str) -> None:
    """Req: G-02"""
    with accept(client, queue, "s") as receiver:
        before = receiver.session.locked_until_utc
        threading.Event().wait(0.05)
        until = receiver.session.renew_lock()
        assert before < until == receiver.session.locked_until_utc


def test_every_way_of_settling_works_in_a_session(any_client: Links, queue: str) -> None:
    """What is dead-lettered is read without a session, and keeps its id.

    Req: G-01, L-05, L-06, L-08, L-09, L-17
    """
    send(any_client, queue, "s1", "s2", "s3", "s4")
    dead_letters = any_client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    with accept(any_client, queue, "s") as receiver, dead_letters:
        completed, dead, abandoned, deferred = take(receiver, 4)
        receiver.defer_message(deferred)
        receiver.abandon_message(abandoned)
        receiver.dead_letter_message(dead, reason="asked for", error_description="by a test")
        receiver.complete_message(completed)
        again = take_one(receiver)
        assert (str(again), again.delivery_count, again.sequence_number) == ("s3", 1, 3)
        receiver.abandon_message(again)  # for the second time: that is the limit
        assert_empty(receiver)
        found = take(dead_letters, 2)
        assert [(str(one), one.session_id, one.dead_letter_reason) for one in found] == [
            ("s2", "s", "asked for"),
            ("s3", "s", "MaxDeliveryCountExceeded"),
        ]
        for one in found:
            dead_letters.complete_message(one)
        assert bodies(receiver.peek_messages(max_message_count=10)) == ["s4"]


def test_deferred_messages_are_fetched_by_who_holds_their_session(
    client: Links, make_queue: Callable[..., str]
) -> None:
    """In either mode; who holds another session finds nothing.

    Req: G-05, L-10
    """
    queue = make_queue(requires_session=True)
    send(client, queue, "a1", "a2", "a3")
    with accept(client, queue, "a") as holder, accept(client, queue, "b") as other:
        numbers = []
        for found in take(holder, 3):
            holder.defer_message(found)
            numbers.append(found.sequence_number)
        assert_empty(holder)
        with pytest.raises(ServiceBusError, match="TrackingId:"):
            other.receive_deferred_messages(numbers[0])
        first, second = holder.receive_deferred_messages(numbers[:2])
        assert first.state == ServiceBusMessageState.DEFERRED
        holder.complete_message(first)
        holder.abandon_message(second)
        (second,) = holder.receive_deferred_messages(numbers[1])
        assert second.delivery_count == 2
        holder.complete_message(second)
        holder.close()
        with accept(client, queue, "a", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as deleting:
            assert bodies(deleting.receive_deferred_messages(numbers[2])) == ["a3"]
            with pytest.raises(MessageNotFoundError):
                deleting.receive_deferred_messages(numbers[2])
    assert client.list_queue_sessions(queue) == []


def test_scheduled_messages_join_their_session_when_they_are_due(any_client: Links, queue: str) -> None:
    """A receiver that waits for the next session gets it then.

    Req: G-05, S-05, S-06
    """
    with any_client.get_queue_sender(queue) as sender, accept(any_client, queue, "held") as holder:
        holder.opened()
        now = dt.datetime.now(dt.UTC)
        (cancelled,) = sender.schedule_messages(message("x", "other"), now + dt.timedelta(hours=1))
        assert any_client.list_queue_sessions(queue) == []
        sender.cancel_scheduled_messages(cancelled)
        due = now + dt.timedelta(seconds=1)
        sender.schedule_messages([message("1", "held"), message("2", "free")], due)
        with accept(any_client, queue) as waiting:
            assert waiting.session.session_id == "free"
            assert str(take_one(waiting)) == "2"
        assert str(take_one(holder)) == "1"
        assert dt.datetime.now(dt.UTC) >= due


def test_received_and_deleted_within_a_session(any_client: Links, queue: str) -> None:
    """Browsing shows the session's own messages alone, in any state.

    Req: L-01, G-01, S-11
    """
    send(any_client, queue, "a1", "b1", "a2", "b2", "a3")
    deleting = accept(any_client, queue, "a", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    with deleting as receiver, accept(any_client, queue, "b") as other:
        browsed = receiver.peek_messages(max_message_count=10)
        assert [(str(found), found.sequence_number) for found in browsed] == [("a1", 1), ("a2", 3), ("a3", 5)]
        assert bodies(receiver.peek_messages(max_message_count=10, sequence_number=2)) == ["a2", "a3"]
        assert bodies(take(receiver, 2)) == ["a1", "a2"]
        other.defer_message(take_one(other))
        browsed = other.peek_messages(max_message_count=10, sequence_number=1)
        assert [found.state for found in browsed] == [
            ServiceBusMessageState.DEFERRED,
            ServiceBusMessageState.ACTIVE,
        ]
        assert bodies(receiver.peek_messages(max_message_count=10, sequence_number=1)) == ["a3"]


def test_who_may_not_send_or_receive(any_client: Links, queue: str) -> None:
    """Messages without a session, alone or among others; receivers without one; sessions of dead letters.

    Req: G-01, L-17, T-02, T-03, T-07
    """
    with (
        any_client.get_queue_sender(queue) as sender,
        any_client.get_queue_receiver(queue) as plain,
        accept(any_client, f"{queue}/$DeadLetterQueue", "s") as of_dead_letters,
        accept(any_client, queue, "s" * 129) as too_long,
        accept(any_client, queue, "s") as receiver,
    ):
        for refused in (plain, of_dead_letters, too_long):
            with pytest.raises(ServiceBusError, match="TrackingId:"):
                refused.opened()
        without = ServiceBusMessage("without")
        mismatched = message("s1")
        mismatched.raw_amqp_message.annotations = {b"x-opt-partition-key": "p"}  # the client would not do it
        hence = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
        attempt: Callable[[], Any]
        for attempt in (
            lambda: sender.send_messages(without),
            lambda: sender.send_messages([message("s1"), without]),
            lambda: sender.send_messages(mismatched),
            lambda: sender.schedule_messages([message("s1"), without], hence),
        ):
            with pytest.raises(ServiceBusError, match="TrackingId:"):
                attempt()
        assert receiver.peek_messages(sequence_number=1) == []
        sender.send_messages(message("s1"))
        assert take_one(receiver).sequence_number == 1


def test_sessions_are_processed_one_after_the_other_in_order_by_several_consumers(
    any_client: Links, queue: str
) -> None:
    """Each consumer holds a session until it has nothing more; no session is ever in two hands, although
    messages of all are mixed in the queue.

    Req: G-01, G-06, S-12
    """
    names, numbers = "abcdef", range(1, 6)
    send(any_client, queue, *(f"{name}{number}" for number in numbers for name in names))
    processed: list[tuple[str, str]] = []

    def consume(consumer: str) -> None:
        for _ in range(len(names) // 3):
            with accept(any_client, queue) as receiver:
                for found in take(receiver, len(numbers)):
                    processed.append((str(found), consumer))
                    receiver.complete_message(found)
                receiver.close()

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(consume, consumer) for consumer in "123"]:
            done.result(60)
    for name in names:
        of_session = [(body, consumer) for body, consumer in processed if body.startswith(name)]
        assert [body for body, _ in of_session] == [f"{name}{number}" for number in numbers]
        assert len({consumer for _, consumer in of_session}) == 1
    assert len({consumer for _, consumer in processed}) == 3
