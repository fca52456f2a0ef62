"""Topics and their subscriptions through the official client."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import partial
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
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from azure.servicebus.management import EntityStatus, SqlRuleAction, SqlRuleFilter

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.performatives import ACCEPTED
from peeklock.amqp.types import Int, Long
from peeklock.demo.broker import BrokerProcess
from tests.interop.clients import Links
from tests.interop.helpers import assert_empty, bodies, publish, send, take, take_one
from tests.interop.own_client import PEEK, OwnClient
from tests.simulation.actors.peer import error_condition

DEAD = ServiceBusSubQueue.DEAD_LETTER
TRANSFER_DEAD = ServiceBusSubQueue.TRANSFER_DEAD_LETTER
LOW = (1 << 48) - 1


def test_every_subscription_has_a_copy_of_its_own(
    client: Links, make_topic: Callable[..., str], administration: Any
) -> None:
    """Of single messages, lists and batches, in both modes; each with its own number, lock and count. What
    the sender set is the same in all, and the topic keeps nothing.

    Req: P-01, S-01, L-01, L-04, L-08
    """
    topic = make_topic("locked", "deleted", "late")
    with (
        client.get_topic_sender(topic) as sender,
        client.get_subscription_receiver(topic, "locked") as locked,
        client.get_subscription_receiver(
            topic, "deleted", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
        ) as deleted,
        client.get_subscription_receiver(topic, "late") as late,
    ):
        about: dict[str, Any] = {
            "message_id": "id",
            "subject": "news",
            "application_properties": {"n": 1, "flag": True},
        }
        sender.send_messages(ServiceBusMessage("1", **about))
        sender.send_messages([ServiceBusMessage("2"), ServiceBusMessage("3")])
        batch = sender.create_message_batch()
        batch.add_message(ServiceBusMessage("4"))
        sender.send_messages(batch)
        administration.delete_subscription(topic, "late")
        administration.create_subscription(topic, "late")
        sender.send_messages(ServiceBusMessage("5"))

        mine, gone = take(locked, 5), take(deleted, 5)
        for messages in (mine, gone):
            assert bodies(messages) == ["1", "2", "3", "4", "5"]
            assert [message.sequence_number for message in messages] == [1, 2, 3, 4, 5]
            assert [message.enqueued_sequence_number for message in messages] == [1, 2, 3, 4, 5]
            first = messages[0]
            assert (first.message_id, first.subject) == ("id", "news")
            assert first.application_properties == {b"n": 1, b"flag": True}
            assert [message.delivery_count for message in messages] == [0] * 5
        assert [one.enqueued_time_utc for one in mine] == [one.enqueued_time_utc for one in gone]
        with pytest.raises(ServiceBusError, match="was deleted"):
            late.receive_messages(max_wait_time=5)
        with client.get_subscription_receiver(topic, "late") as again:
            (only,) = again.peek_messages(max_message_count=9)
            assert (str(only), only.sequence_number, only.enqueued_sequence_number) == ("5", 1, 5)

        locked.abandon_message(mine[0])
        again = take_one(locked)
        assert (again.sequence_number, again.delivery_count) == (1, 1)
        for message in (again, *mine[1:]):
            locked.complete_message(message)
        assert locked.peek_messages(sequence_number=1) == []
        assert administration.get_topic_runtime_properties(topic).subscription_count == 3
        sizes = {
            each.name: each.total_message_count
            for each in administration.list_subscriptions_runtime_properties(topic)
        }
        assert sizes == {"locked": 0, "deleted": 0, "late": 1}


def test_a_copy_is_settled_like_a_message_of_a_queue(
    client: Links, make_topic: Callable[..., str], administration: Any
) -> None:
    """Completed, abandoned until it is worn out, deferred, dead-lettered, renewed, browsed; another
    subscription sees nothing of it, and the topic has no dead-letter queue.

    Req: P-01, L-05, L-06, L-07, L-08, L-09, L-10, L-11, L-14, L-17, S-11
    """
    topic = make_topic("other")
    administration.create_subscription(
        topic, "work", max_delivery_count=2, lock_duration=dt.timedelta(seconds=30)
    )
    publish(client, topic, "completed", "worn out", "deferred", "dead", "held")
    with (
        client.get_subscription_receiver(topic, "work") as receiver,
        client.get_subscription_receiver(topic, "work", sub_queue=DEAD) as of_dead,
        client.get_subscription_receiver(topic, "other") as other,
    ):
        completed, worn_out, deferred, dead, held = take(receiver, 5)
        left_s = (held.locked_until_utc - dt.datetime.now(dt.UTC)).total_seconds()
        assert 20 < left_s <= 31
        assert receiver.renew_message_lock(held) >= held.locked_until_utc
        receiver.complete_message(completed)
        receiver.defer_message(deferred)
        receiver.dead_letter_message(dead, reason="test", error_description="in a test")
        receiver.abandon_message(worn_out)
        receiver.abandon_message(take_one(receiver))
        with pytest.raises(MessageLockLostError):
            other.renew_message_lock(held)  # the lock is of the one copy
        browsed = receiver.peek_messages(max_message_count=9, sequence_number=1)
        assert [(str(one), one.state) for one in browsed] == [
            ("deferred", ServiceBusMessageState.DEFERRED),
            ("held", ServiceBusMessageState.ACTIVE),
        ]
        (fetched,) = receiver.receive_deferred_messages(deferred.sequence_number)
        receiver.complete_message(fetched)
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages(deferred.sequence_number)
        found = take(of_dead, 2)
        assert {(str(one), one.dead_letter_reason, one.sequence_number) for one in found} == {
            ("dead", "test", 4),
            ("worn out", "MaxDeliveryCountExceeded", 2),
        }
        assert {one.enqueued_sequence_number for one in found} == {2, 4}
        counts = administration.get_subscription_runtime_properties(topic, "work")
        assert (counts.active_message_count, counts.dead_letter_message_count) == (1, 2)
        for one in found:
            of_dead.complete_message(one)
        receiver.complete_message(held)
        assert bodies(take(other, 5)) == ["completed", "worn out", "deferred", "dead", "held"]


def test_a_subscription_may_have_sessions_where_another_has_none(
    any_client: Links, make_topic: Callable[..., str], administration: Any
) -> None:
    """Next and named sessions, their state, lock and deferred messages. What has no session id is a dead
    letter of the subscription that wants one, and its sender is not refused.

    Req: P-01, G-01, G-02, G-03, G-04, G-05, G-07
    """
    topic = make_topic("plain")
    administration.create_subscription(topic, "sessions", requires_session=True)
    with any_client.get_topic_sender(topic) as sender:
        sender.send_messages([ServiceBusMessage(body, session_id=body[0]) for body in ("b1", "a1", "b2")])
        sender.send_messages(ServiceBusMessage("none"))
    assert sorted(any_client.list_subscription_sessions(topic, "sessions")) == ["a", "b"]
    next_one = {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": 10}
    with (
        any_client.get_subscription_receiver(topic, "plain") as plain,
        any_client.get_subscription_receiver(topic, "sessions", sub_queue=DEAD) as of_dead,
        any_client.get_subscription_receiver(topic, "sessions", **next_one) as first,
    ):
        assert first.session.session_id == "b"
        one, two = take(first, 2)
        with (
            any_client.get_subscription_receiver(topic, "sessions", session_id="b") as refused,
            pytest.raises(SessionCannotBeLockedError),
        ):
            refused.opened()
        first.session.set_state("half way")
        first.session.renew_lock()
        first.defer_message(two)
        assert bodies(first.receive_deferred_messages(two.sequence_number)) == ["b2"]
        first.complete_message(one)
        first.close()
        with (
            any_client.get_subscription_receiver(topic, "sessions", session_id="b") as again,
            any_client.get_subscription_receiver(topic, "sessions", session_id="a") as of_a,
            any_client.get_topic_sender(topic) as sender,
        ):
            assert again.session.get_state() == b"half way"
            of_a.opened()
            with any_client.get_subscription_receiver(topic, "sessions", **next_one) as waiting:
                sender.send_messages(ServiceBusMessage("c1", session_id="c"))
                assert waiting.session.session_id == "c"
                assert str(take_one(waiting)) == "c1"
        assert bodies(take(plain, 5)) == ["b1", "a1", "b2", "none", "c1"]
        dead = take_one(of_dead)
        assert (str(dead), dead.dead_letter_reason) == ("none", "Session ID is null.")
        assert dead.enqueued_sequence_number == 4


def test_what_is_scheduled_is_copied_when_it_is_due(
    client: Links, make_topic: Callable[..., str], administration: Any
) -> None:
    """To the subscriptions that there are then, by the rules that they have then. Until then it can be
    cancelled; by the operation and by the message's own time.

    Req: S-05, S-06, S-07, S-08, P-01, P-02
    """
    topic = make_topic("early")
    with client.get_topic_sender(topic) as sender, client.get_subscription_receiver(topic, "early") as early:
        early.opened()
        due = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=2)
        numbers = sender.schedule_messages([ServiceBusMessage("1"), ServiceBusMessage("cancelled")], due)
        assert numbers == [1, 2]
        sender.send_messages(ServiceBusMessage("3", scheduled_enqueue_time_utc=due, subject="red"))
        counts = administration.get_topic_runtime_properties(topic)
        assert counts.scheduled_message_count == 3
        sender.cancel_scheduled_messages(numbers[1])
        with pytest.raises(MessageNotFoundError):
            sender.cancel_scheduled_messages(numbers[1])
        administration.create_subscription(topic, "late")
        administration.create_rule(topic, "late", "red", filter=SqlRuleFilter("sys.Label = 'red'"))
        administration.delete_rule(topic, "late", "$Default")
        came = take(early, 2)
        assert bodies(came) == ["1", "3"]
        assert [message.sequence_number for message in came] == [1, 2]
        assert [message.enqueued_sequence_number for message in came] == [1, 3]
        assert all(message.enqueued_time_utc >= due - dt.timedelta(milliseconds=1) for message in came)
        with client.get_subscription_receiver(topic, "late") as late:
            assert bodies(take(late)) == ["3"]
            assert_empty(late)


def test_a_topic_drops_what_it_has_seen(any_client: Links, make_topic: Callable[..., str]) -> None:
    """Sent again, in a batch, scheduled: no subscription gets it twice, also one that has completed it.

    Req: D-01, P-01, S-01
    """
    topic = make_topic("a", "b", requires_duplicate_detection=True)
    with (
        any_client.get_topic_sender(topic) as sender,
        any_client.get_subscription_receiver(topic, "a") as a,
        any_client.get_subscription_receiver(topic, "b") as b,
    ):
        sender.send_messages(ServiceBusMessage("1", message_id="one"))
        a.complete_message(take_one(a))
        sender.send_messages(
            [ServiceBusMessage("1 again", message_id="one"), ServiceBusMessage("2", message_id="two")]
        )
        due = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
        assert sender.schedule_messages(ServiceBusMessage("1", message_id="one"), due) == [1]
        sender.send_messages(ServiceBusMessage("3", message_id="three"))
        messages = take(b, 3)
        assert bodies(messages) == ["1", "2", "3"]
        assert [message.enqueued_sequence_number for message in messages] == [1, 2, 3]
        assert bodies(take(a, 2)) == ["2", "3"]


def test_a_partitioned_topic_and_its_subscriptions_count_in_each_partition(
    any_client: Links, make_topic: Callable[..., str]
) -> None:
    """A copy is in the partition that its message is in.

    Req: P-01, S-02, S-03
    """
    topic = make_topic("a", "b", enable_partitioning=True)
    with (
        any_client.get_topic_sender(topic) as sender,
        any_client.get_subscription_receiver(topic, "a") as a,
        any_client.get_subscription_receiver(topic, "b") as b,
    ):
        keys = [*"abcdefabcdef"]
        sender.send_messages([ServiceBusMessage(key, partition_key=key) for key in keys])
        sender.send_messages(ServiceBusMessage("x"))
        for receiver in (a, b):
            messages = take(receiver, 13)
            assert bodies(messages) == [*keys, "x"]
            partitions = {str(message): message.sequence_number >> 48 for message in messages}
            for message in messages:
                assert message.sequence_number >> 48 == message.enqueued_sequence_number >> 48
                assert message.sequence_number >> 48 == partitions[str(message)]
            per_partition: dict[int, list[int]] = {}
            for message in messages:
                per_partition.setdefault(message.sequence_number >> 48, []).append(
                    message.sequence_number & LOW
                )
            for numbers in per_partition.values():
                assert numbers == list(range(1, len(numbers) + 1))


def test_a_subscription_forwards_to_queues_and_topics_and_takes_what_is_forwarded(
    any_client: Links, make_topic: Callable[..., str], make_queue: Callable[..., str], administration: Any
) -> None:
    """A queue forwards to a topic, a subscription of that to a second topic, whose subscription forwards its
    dead letters; each target counts for itself and the first number is kept.

    Req: F-01, P-01, L-09
    """
    inner, outer, graves = make_topic("end"), make_topic("copy"), make_queue()
    door = make_queue(forward_to=outer)
    administration.create_subscription(outer, "on", forward_to=inner)
    administration.create_subscription(inner, "judge", forward_dead_lettered_messages_to=graves)
    with (
        any_client.get_subscription_receiver(inner, "end") as end,
        any_client.get_subscription_receiver(inner, "judge") as judge,
        any_client.get_subscription_receiver(outer, "copy") as copy,
        any_client.get_subscription_receiver(outer, "on") as forwarding,
        any_client.get_queue_receiver(graves) as visitor,
    ):
        publish(any_client, outer, "1")
        send(any_client, door, "2")
        messages = take(end, 2)
        assert bodies(messages) == ["1", "2"] == bodies(take(copy, 2))
        assert [message.sequence_number for message in messages] == [1, 2]
        assert [message.enqueued_sequence_number for message in messages] == [1, 1]
        bad = take_one(judge)
        judge.dead_letter_message(bad, reason="bad")
        dead = take_one(visitor)
        assert (str(dead), dead.dead_letter_reason) == ("1", "bad")
        assert dead.dead_letter_source == f"{inner}/Subscriptions/judge"
        with pytest.raises(ServiceBusError, match="TrackingId:"):
            forwarding.opened()
    counts = administration.get_subscription_runtime_properties(outer, "on")
    assert counts.total_message_count == 0


def test_what_lies_in_a_subscription_is_passed_on_once_it_forwards(
    any_client: Links, make_topic: Callable[..., str], make_queue: Callable[..., str], administration: Any
) -> None:
    """Before all that comes later; the queue drops what an action has given an id that it knows.

    Req: F-01, A-07, P-02, D-01
    """
    topic, queue = make_topic("s"), make_queue(requires_duplicate_detection=True)
    rename = SqlRuleAction("SET sys.MessageId = key")
    administration.create_rule(topic, "s", "rename", filter=SqlRuleFilter("EXISTS(key)"), action=rename)
    administration.delete_rule(topic, "s", "$Default")
    with any_client.get_topic_sender(topic) as sender, any_client.get_queue_receiver(queue) as receiver:

        def send(*numbers: int) -> None:
            sender.send_messages(
                [ServiceBusMessage(str(n), application_properties={"key": f"key-{n % 5}"}) for n in numbers]
            )

        send(0, 1, 2)
        subscription = administration.get_subscription(topic, "s")
        subscription.forward_to = queue
        administration.update_subscription(topic, subscription)
        send(3, 4, 5, 6)
        sender.send_messages(ServiceBusMessage("no key"))
        messages = take(receiver, 5)
        assert bodies(messages) == ["0", "1", "2", "3", "4"]
        assert [message.message_id for message in messages] == [f"key-{n}" for n in range(5)]
        assert [message.enqueued_sequence_number for message in messages] == [1, 2, 3, 4, 5]
        assert_empty(receiver)


def test_names_are_found_in_any_case_and_a_topics_may_have_slashes(
    any_client: Links, make_topic: Callable[..., str], administration: Any
) -> None:
    """And a body of nearly the largest size comes to each of several subscriptions.

    Req: P-01, L-17, T-10
    """
    topic = f"Region/News.{make_topic()}"
    administration.create_topic(topic)
    for name in ("All.Of-it", "Other"):
        administration.create_subscription(topic, name)
    body = bytes(range(256)) * 900
    upper = topic.upper()
    with (
        any_client.get_topic_sender(topic.lower()) as sender,
        any_client.get_subscription_receiver(upper, "all.of-it") as receiver,
        any_client.get_subscription_receiver(upper, "ALL.OF-IT", sub_queue=DEAD) as of_dead,
        any_client.get_subscription_receiver(
            topic, "Other", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE, prefetch_count=5
        ) as other,
    ):
        sender.send_messages(ServiceBusMessage(body))
        receiver.dead_letter_message(take_one(receiver), reason="test")
        for found in (take_one(of_dead), take_one(other)):
            assert b"".join(found.body) == body
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage(2 * body))
    assert [each.name for each in administration.list_subscriptions(topic)] == ["All.Of-it", "Other"]


def test_a_deleted_topic_is_gone_for_those_who_use_it(
    any_client: Links, make_topic: Callable[..., str], administration: Any
) -> None:
    """With its subscriptions and what is scheduled; a new one of that name starts from nothing.

    Req: P-01, T-03, A-01, S-01
    """
    topic = make_topic("s")
    with (
        any_client.get_topic_sender(topic) as sender,
        any_client.get_subscription_receiver(topic, "s") as receiver,
        any_client.get_subscription_receiver(topic, "s", sub_queue=DEAD) as of_dead,
    ):
        sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
        due = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
        sender.schedule_messages(ServiceBusMessage("3"), due)
        held = take_one(receiver)
        of_dead.opened()
        administration.delete_topic(topic)
        attempt: Callable[[], Any]
        for attempt in (
            lambda: sender.send_messages(ServiceBusMessage("4")),
            lambda: receiver.complete_message(held),
            lambda: of_dead.receive_messages(max_wait_time=5),
        ):
            with pytest.raises(ServiceBusError):
                attempt()
    administration.create_topic(topic)
    administration.create_subscription(topic, "s")
    with (
        any_client.get_topic_sender(topic) as sender,
        any_client.get_subscription_receiver(topic, "s") as receiver,
    ):
        sender.send_messages(ServiceBusMessage("new"))
        message = take_one(receiver)
        assert (str(message), message.sequence_number, message.enqueued_sequence_number) == ("new", 1, 1)
        assert administration.get_topic_runtime_properties(topic).scheduled_message_count == 0


def test_a_subscriptions_copy_that_cannot_be_passed_on_is_its_transfer_dead_letter(
    any_client: Links, make_topic: Callable[..., str], make_queue: Callable[..., str], administration: Any
) -> None:
    """Req: F-01, L-17"""
    topic, target = make_topic(), make_queue()
    administration.create_subscription(topic, "on", forward_to=target)
    properties = administration.get_queue(target)
    properties.status = EntityStatus.SEND_DISABLED
    administration.update_queue(properties)
    publish(any_client, topic, "lost on the way")
    with any_client.get_subscription_receiver(topic, "on", sub_queue=TRANSFER_DEAD) as receiver:
        message = take_one(receiver)
        assert (str(message), message.dead_letter_reason) == ("lost on the way", "MessagingEntityDisabled")
    counts = administration.get_subscription_runtime_properties(topic, "on")
    assert counts.transfer_dead_letter_message_count == 1


def test_topics_and_subscriptions_are_disabled_each_for_itself(
    any_client: Links, make_topic: Callable[..., str], administration: Any
) -> None:
    """A topic that is disabled takes nothing, and its subscriptions are received from; a subscription that
    is disabled for receiving collects.

    Req: A-04, A-07, P-01, T-03
    """
    topic = make_topic("open", "shut")
    subscription = administration.get_subscription(topic, "shut")
    subscription.status = EntityStatus.RECEIVE_DISABLED
    administration.update_subscription(topic, subscription)
    publish(any_client, topic, "1")
    properties = administration.get_topic(topic)
    properties.status = EntityStatus.SEND_DISABLED
    administration.update_topic(properties)
    with (
        any_client.get_topic_sender(topic) as sender,
        any_client.get_subscription_receiver(topic, "open") as receiver,
        any_client.get_subscription_receiver(topic, "shut") as shut,
    ):
        with pytest.raises(MessagingEntityDisabledError):
            sender.send_messages(ServiceBusMessage("2"))
        assert str(take_one(receiver)) == "1"
        with pytest.raises(MessagingEntityDisabledError):
            shut.receive_messages(max_wait_time=5)
    subscription.status = EntityStatus.ACTIVE
    administration.update_subscription(topic, subscription)
    with any_client.get_subscription_receiver(topic, "shut") as receiver:
        assert bodies(take(receiver)) == ["1"]


def test_a_change_of_the_topic_drops_the_locks_in_its_subscriptions(
    any_client: Links, make_topic: Callable[..., str], administration: Any
) -> None:
    """Nothing is counted for it; a change of rules leaves locks alone.

    Req: L-12, L-11, L-08, A-07, P-03
    """
    topic = make_topic("plain")
    administration.create_subscription(topic, "sessions", requires_session=True)
    publish(any_client, topic, "1", "2", session_id="s")
    with (
        any_client.get_subscription_receiver(topic, "plain") as plain,
        any_client.get_subscription_receiver(topic, "sessions", session_id="s") as sessions,
    ):
        held = take(plain, 2)
        of_session = take(sessions, 2)
        administration.create_rule(topic, "plain", "more")
        administration.delete_rule(topic, "sessions", "$Default")
        plain.complete_message(held[0])
        sessions.complete_message(of_session[0])
        properties = administration.get_topic(topic)
        properties.default_message_time_to_live = dt.timedelta(hours=1)
        administration.update_topic(properties)
        with pytest.raises(MessageLockLostError):
            plain.complete_message(held[1])
        with pytest.raises(SessionLockLostError):
            sessions.complete_message(of_session[1])
        again = take_one(plain)
        assert (str(again), again.delivery_count) == ("2", 0)


def test_what_cannot_be_done_with_a_topic_or_a_subscription_is_refused(
    client: Links, make_topic: Callable[..., str], broker: BrokerProcess
) -> None:
    """Neither a topic nor its dead-letter queue can be received from; a subscription cannot be sent to; one
    that is missing is not found. A peek at a topic sees no message that is not scheduled.

    Source: wire contract 1.7, 2.2: what does not exist may be refused when the token is put.

    Req: P-01, L-17, T-02, T-03
    """
    topic = make_topic("a")
    with (
        client.get_queue_receiver(topic) as of_topic,
        client.get_queue_receiver(topic, sub_queue=DEAD) as of_dead,
        client.get_queue_sender(f"{topic}/Subscriptions/a") as to_subscription,
        client.get_subscription_receiver(topic, "missing") as missing,
        client.get_subscription_receiver("missing", "a") as of_missing,
        client.get_topic_sender("missing") as to_missing,
    ):
        for link in (of_topic, of_dead, to_subscription):
            with pytest.raises(ServiceBusError, match="TrackingId:"):
                link.opened()
        expected = (ServiceBusAuthenticationError, MessagingEntityNotFoundError)
        for link in (missing, of_missing, to_missing):
            with pytest.raises(expected):
                link.opened()
    with OwnClient(broker.amqp_port) as own:  # the official client attaches before it browses
        request = {"from-sequence-number": Long(0), "message-count": Int(1)}
        assert own.ask(topic, PEEK, request)[:2] == (204, None)


def test_a_transaction_sends_to_a_topic_and_settles_in_a_subscription_or_does_neither(
    make_topic: Callable[..., str], broker: BrokerProcess
) -> None:
    """By our own engine as client: the official Python client has no transactions.

    Req: F-03, P-01, P-02
    """
    topic = make_topic("a", "b")
    with OwnClient(broker.amqp_port) as client:
        sender, coordinator = client.peer.attach_sender(topic), client.peer.attach_coordinator()
        client.until(lambda: sender.credit > 0 and coordinator.credit > 0)
        accepted: list[str | None] = []
        sender.send(encode_message(data=b"first"), lambda state: accepted.append(error_condition(state)))
        client.until(lambda: accepted == [None])
        link, (held,) = client.receive(f"{topic}/Subscriptions/a", 1)
        for fail, expected in ((True, (["first"], ["first"])), (False, (["second"], ["first", "second"]))):
            declared: list[bytes | None] = []

            def take_id(found: bytes | None, _: str | None, into: list[bytes | None] = declared) -> None:
                into.append(found)

            coordinator.declare(take_id)
            client.until(partial(bool, declared))
            (transaction,) = declared
            assert transaction is not None
            done: list[str | None] = []

            def tell(state: Any, done: list[str | None] = done) -> None:
                done.append(error_condition(state))

            def told(count: int, done: list[str | None] = done) -> bool:
                return len(done) == count

            sender.send(encode_message(data=b"second"), tell, txn_id=transaction)
            link.settle(held.delivery_id, ACCEPTED, tell, txn_id=transaction)
            client.until(partial(told, 2))
            coordinator.discharge(transaction, fail, tell)
            client.until(partial(told, 3))
            assert done == [None, None, None]
            assert tuple(client.browse(f"{topic}/Subscriptions/{name}") for name in "ab") == expected
