"""Entities that forward, through the official clients."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import EntityStatus

from tests.interop.clients import Links
from tests.interop.helpers import assert_empty, bodies, send, take, take_one

DEAD = ServiceBusSubQueue.DEAD_LETTER
TRANSFER_DEAD = ServiceBusSubQueue.TRANSFER_DEAD_LETTER


def chain(make_queue: Callable[..., str], length: int, **settings: Any) -> list[str]:
    """Make queues of which each forwards to the next; the settings are of the last."""
    names = [make_queue(**settings)]
    while len(names) < length:
        names.append(make_queue(forward_to=names[-1]))
    return names[::-1]


def test_a_message_comes_to_the_end_of_a_chain(
    client: Links, make_queue: Callable[..., str], administration: Any
) -> None:
    """With the number of where it was sent; each queue counts its own. What is scheduled goes when it is due,
    and nothing is left on the way.

    Req: F-01, S-01, S-05
    """
    first, middle, last = chain(make_queue, 3)
    send(client, last, "straight")
    with (
        client.get_queue_receiver(last) as receiver,
        client.get_queue_sender(first) as sender,
        client.get_queue_receiver(first) as of_first,
        client.get_queue_receiver(first, sub_queue=DEAD) as of_dead,
    ):
        assert str(take_one(receiver)) == "straight"
        sender.send_messages(ServiceBusMessage("1", message_id="id", subject="subject"))
        sender.send_messages([ServiceBusMessage("2"), ServiceBusMessage("3")])
        due = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=0.5)
        sender.schedule_messages(ServiceBusMessage("4"), due)
        messages = take(receiver, 4)
        assert bodies(messages) == ["1", "2", "3", "4"]
        assert [message.sequence_number for message in messages] == [2, 3, 4, 5]
        assert [message.enqueued_sequence_number for message in messages[:3]] == [1, 2, 3]
        assert (messages[0].message_id, messages[0].subject) == ("id", "subject")
        assert [message.delivery_count for message in messages] == [0] * 4
        assert messages[3].enqueued_time_utc >= due - dt.timedelta(milliseconds=1)
        for message in messages:
            receiver.complete_message(message)
        with pytest.raises(ServiceBusError, match="TrackingId:"):
            of_first.opened()
        assert_empty(of_dead)
    for name in (first, middle):
        assert administration.get_queue_runtime_properties(name).total_message_count == 0


def test_dead_letters_are_forwarded_and_tell_where_they_come_from(
    any_client: Links, make_queue: Callable[..., str]
) -> None:
    """By a receiver's settlement, by the maximum of deliveries, by expiry.

    Req: F-01, L-08, L-09, E-08
    """
    graves = make_queue()
    work = make_queue(
        forward_dead_lettered_messages_to=graves,
        max_delivery_count=1,
        dead_lettering_on_message_expiration=True,
    )
    with any_client.get_queue_receiver(work) as receiver, any_client.get_queue_receiver(graves) as visitor:
        visitor.opened()
        send(any_client, work, "asked for", "worn out")
        # Its time begins again where it arrives, which is enough for a receiver that waits for it.
        send(any_client, work, "expired", time_to_live=dt.timedelta(seconds=3))
        asked_for, worn_out = take(receiver, 2)
        receiver.dead_letter_message(asked_for, reason="test", error_description="in a test")
        receiver.abandon_message(worn_out)
        found = take(visitor, 3)
        found.sort(key=lambda message: message.enqueued_sequence_number)
        assert [(str(message), message.dead_letter_reason) for message in found] == [
            ("asked for", "test"),
            ("worn out", "MaxDeliveryCountExceeded"),
            ("expired", "TTLExpiredException"),
        ]
        assert {message.dead_letter_source for message in found} == {work}
        assert sorted(message.sequence_number for message in found) == [1, 2, 3]
        assert [message.enqueued_sequence_number for message in found] == [1, 2, 3]
        assert [message.delivery_count for message in found] == [0, 0, 0]
        assert found[0].dead_letter_error_description == "in a test"
        for message in found:
            visitor.complete_message(message)


def test_what_cannot_be_passed_on_goes_to_the_transfer_dead_letter_queue(
    any_client: Links, make_queue: Callable[..., str], administration: Any
) -> None:
    """The target is disabled for sending, or wants a session, or is gone: the sender does not learn of it.

    Req: F-01, A-04, L-17
    """
    disabled, gone = make_queue(), make_queue()
    of_sessions = make_queue(requires_session=True)
    sources = {reason: make_queue(forward_to=target) for reason, target in (
        ("MessagingEntityDisabled", disabled),
        ("MessagingEntityNotFound", gone),
        ("Session ID is null.", of_sessions),
    )}  # fmt: skip
    properties = administration.get_queue(disabled)
    properties.status = EntityStatus.SEND_DISABLED
    administration.update_queue(properties)
    administration.delete_queue(gone)
    for source in sources.values():
        send(any_client, source, "lost on the way")
    receivers = [
        (reason, source, any_client.get_queue_receiver(source, sub_queue=TRANSFER_DEAD).__enter__())
        for reason, source in sources.items()
    ]
    for reason, source, receiver in receivers:
        message = take_one(receiver)
        assert (str(message), message.dead_letter_reason) == ("lost on the way", reason)
        assert message.sequence_number == message.enqueued_sequence_number == 1
        counts = administration.get_queue_runtime_properties(source)
        assert (counts.transfer_dead_letter_message_count, counts.active_message_count) == (1, 0)
        receiver.complete_message(message)
        assert receiver.peek_messages(sequence_number=1) == []
        receiver.__exit__()


def test_a_message_with_a_session_id_is_forwarded_into_its_session(
    any_client: Links, make_queue: Callable[..., str]
) -> None:
    """Req: F-01, G-01, S-02"""
    first, _, last = chain(make_queue, 3, requires_session=True, enable_partitioning=True)
    with any_client.get_queue_sender(first) as sender:
        sender.send_messages([ServiceBusMessage(body, session_id="s") for body in "123"])
    with any_client.get_queue_receiver(last, session_id="s") as receiver:
        messages = take(receiver, 3)
        assert bodies(messages) == ["1", "2", "3"]
        assert {message.session_id for message in messages} == {"s"}
        assert len({message.sequence_number >> 48 for message in messages}) == 1


def test_a_fifth_hop_ends_in_the_dead_letter_queue(any_client: Links, make_queue: Callable[..., str]) -> None:
    """Source: Learn "Chaining Service Bus entities with autoforwarding": "You can't create a chain that
    exceeds four hops. Messages that exceed four hops are dead-lettered."

    Req: F-01
    """
    names = chain(make_queue, 6)
    send(any_client, names[0], "far")
    send(any_client, names[1], "near")
    with (
        any_client.get_queue_receiver(names[4], sub_queue=DEAD) as last_but_one,
        any_client.get_queue_receiver(names[5]) as last,
    ):
        dead = take_one(last_but_one)
        assert (str(dead), dead.dead_letter_reason) == ("far", "MaxTransferHopCountExceeded")
        assert dead.enqueued_sequence_number == 1
        assert bodies(take(last)) == ["near"]
        assert_empty(last)


def test_what_was_there_is_passed_on_once_the_queue_forwards(
    client: Links, make_queue: Callable[..., str], administration: Any
) -> None:
    """A receiver that is attached loses its link. A circle may be defined.

    Req: F-01, A-07
    """
    target, source = make_queue(), make_queue()
    send(client, source, "1", "2", "3")
    with client.get_queue_receiver(source) as receiver, client.get_queue_receiver(target) as other:
        held = take_one(receiver)
        properties = administration.get_queue(source)
        properties.forward_to = target
        administration.update_queue(properties)
        found = take(other, 3)
        assert bodies(found) == ["1", "2", "3"]
        assert [message.enqueued_sequence_number for message in found] == [1, 2, 3]
        with pytest.raises(ServiceBusError):
            receiver.complete_message(held)
        with pytest.raises(ServiceBusError):
            receiver.receive_messages(max_wait_time=5)
    properties = administration.get_queue(target)
    properties.forward_to = source
    administration.update_queue(properties)
    assert administration.get_queue(target).forward_to.endswith(f"/{source}")


def test_messages_in_circles_end_as_dead_letters(
    any_client: Links, make_queue: Callable[..., str], make_topic: Callable[..., str], administration: Any
) -> None:
    """Of a queue that forwards to itself, of one with sessions in a circle of two, and of a topic to which
    its subscriptions forward: as many as four hops make, and no more.

    Req: F-01, G-01, P-01
    """
    alone, first = make_queue(), make_queue(requires_session=True)
    second = make_queue(forward_to=first)
    topic = make_topic("a", "b")
    for name, target in ((alone, alone), (first, second)):
        administration.update_queue(administration.get_queue(name), forward_to=target)
    for name in ("a", "b"):
        subscription = administration.get_subscription(topic, name)
        administration.update_subscription(topic, subscription, forward_to=topic)
    send(any_client, alone, "alone")
    with any_client.get_queue_sender(first) as sender, any_client.get_topic_sender(topic) as to_topic:
        sender.send_messages(ServiceBusMessage("in two", session_id="s"))
        to_topic.send_messages(ServiceBusMessage("many"))
    for name, body in ((alone, "alone"), (first, "in two")):
        with any_client.get_queue_receiver(name, sub_queue=DEAD) as receiver:
            dead = take_one(receiver)
            assert (str(dead), dead.dead_letter_reason) == (body, "MaxTransferHopCountExceeded")
            assert dead.enqueued_sequence_number == 1
            assert_empty(receiver)
    for name in ("a", "b"):
        with any_client.get_subscription_receiver(topic, name, sub_queue=DEAD) as receiver:
            found = take(receiver, 16)
            assert bodies(found) == ["many"] * 16
            assert {message.dead_letter_reason for message in found} == {"MaxTransferHopCountExceeded"}
            assert_empty(receiver)
        counts = administration.get_subscription_runtime_properties(topic, name)
        assert (counts.active_message_count, counts.dead_letter_message_count) == (0, 16)


def test_at_most_10_000_copies_follow_from_one_message(
    any_client: Links, make_topic: Callable[..., str], administration: Any
) -> None:
    """Thirty subscriptions forward to their topic. What goes beyond is a dead letter of the subscription that
    was to forward it; each copy is one, unless it became thirty others.

    Req: F-01, P-05
    """
    names = [f"s{number}" for number in range(30)]
    topic = make_topic(*names)
    for name in names:
        subscription = administration.get_subscription(topic, name)
        administration.update_subscription(topic, subscription, forward_to=topic)
    with any_client.get_topic_sender(topic) as sender:
        sender.send_messages(ServiceBusMessage("many"))
    deadline = time.monotonic() + 30
    dead = before = -1
    while dead != before or dead < 30:
        assert time.monotonic() < deadline
        before = dead
        counts = [administration.get_subscription_runtime_properties(topic, name) for name in names]
        dead = sum(found.dead_letter_message_count for found in counts)
        if any(found.active_message_count for found in counts):
            dead = -1
    copies = (dead - 1) * 30 // 29  # of n copies, all but n/30 - 1 are dead letters
    assert 10_000 - 60 < copies <= 10_000
    with any_client.get_subscription_receiver(topic, names[-1], sub_queue=DEAD) as receiver:
        assert take_one(receiver).dead_letter_reason == "MaxTransferHopCountExceeded"
