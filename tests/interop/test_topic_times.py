"""Topics and their subscriptions as time passes, through the official client.

On a broker whose clock is moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageLockLostError
from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter

from peeklock.amqp.types import Int, Long
from peeklock.testing.served import ServedBroker
from tests.interop.clients import Background, Links
from tests.interop.helpers import assert_empty, bodies, publish, take, take_one
from tests.interop.own_client import PEEK, OwnClient

DEAD = ServiceBusSubQueue.DEAD_LETTER
MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def served() -> Iterator[ServedBroker]:
    with ServedBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def admin(served: ServedBroker) -> Iterator[Any]:
    with ServiceBusAdministrationClient.from_connection_string(
        served.connection_string, connection_verify=False
    ) as client:
        yield client


@pytest.fixture(scope="module")
def client(served: ServedBroker, background: Background) -> Iterator[Links]:
    with ServiceBusClient.from_connection_string(served.connection_string, retry_total=0) as made:
        yield Links(made, background)
        background.join()


def test_the_shorter_time_to_live_of_topic_and_subscription_applies(
    served: ServedBroker, admin: Any, client: Links
) -> None:
    """And a message's own where that is shorter still. A receiver sees which; what expires is a dead letter
    of the subscription that says so.

    Req: E-07, E-04, E-05, E-08, P-01
    """
    admin.create_topic("lives", default_message_time_to_live=10 * MINUTE)
    for name, minutes in (("longer", 60), ("shorter", 5)):
        admin.create_subscription(
            "lives",
            name,
            default_message_time_to_live=minutes * MINUTE,
            dead_lettering_on_message_expiration=True,
        )
    admin.create_subscription("lives", "none")
    with (
        client.get_topic_sender("lives") as sender,
        client.get_subscription_receiver("lives", "longer") as longer,
        client.get_subscription_receiver("lives", "shorter") as shorter,
        client.get_subscription_receiver("lives", "none") as none,
        client.get_subscription_receiver("lives", "longer", sub_queue=DEAD) as of_longer,
        client.get_subscription_receiver("lives", "shorter", sub_queue=DEAD) as of_shorter,
    ):
        sender.send_messages(ServiceBusMessage("own", time_to_live=MINUTE))
        sender.send_messages(ServiceBusMessage("far", time_to_live=90 * MINUTE))
        sender.send_messages(ServiceBusMessage("plain"))
        for receiver, minutes in ((longer, 10), (shorter, 5), (none, 10)):
            messages = take(receiver, 3)
            assert [one.time_to_live for one in messages] == [MINUTE, minutes * MINUTE, minutes * MINUTE]
            for one in messages:
                assert one.expires_at_utc - one.enqueued_time_utc == one.time_to_live
                receiver.abandon_message(one)
        served.advance(2 * MINUTE)
        assert_empty_of(none, "own")
        for dead_letters in (of_longer, of_shorter):
            (dead,) = take(dead_letters)
            assert str(dead) == "own"
            dead_letters.complete_message(dead)
        served.advance(4 * MINUTE)
        found = take(of_shorter, 2)
        assert bodies(found) == ["far", "plain"]
        assert {one.dead_letter_reason for one in found} == {"TTLExpiredException"}
        assert_empty(of_longer)
        served.advance(5 * MINUTE)
        assert bodies(take(of_longer, 2)) == ["far", "plain"]
        assert none.peek_messages(sequence_number=1) == []


def assert_empty_of(receiver: Any, body: str) -> None:
    """Check that no message with that body can be browsed."""
    assert body not in bodies(receiver.peek_messages(max_message_count=10, sequence_number=1))


def test_a_lock_lapses_in_one_subscription_and_can_be_renewed_in_another(
    served: ServedBroker, admin: Any, client: Links
) -> None:
    """Req: P-01, L-03, L-07, L-08, L-11, L-18"""
    admin.create_topic("locks")
    for name in ("lapses", "renewed"):
        admin.create_subscription("locks", name, lock_duration=MINUTE)
    publish(client, "locks", "1")
    with (
        client.get_subscription_receiver("locks", "lapses") as lapses,
        client.get_subscription_receiver("locks", "renewed") as renewed,
    ):
        lost, held = take_one(lapses), take_one(renewed)
        for _ in range(3):
            served.advance(timedelta(seconds=50))
            renewed.renew_message_lock(held)
        with pytest.raises(MessageLockLostError):
            lapses.complete_message(lost)
        again = take_one(lapses)
        assert (again.delivery_count, held.delivery_count) == (1, 0)
        renewed.complete_message(held)
        lapses.complete_message(again)


def test_what_is_scheduled_far_ahead_is_judged_when_it_is_due(
    served: ServedBroker, admin: Any, client: Links
) -> None:
    """By the rules of that day; its time-to-live counts from then, and it joins the end of the order.

    Req: S-05, S-07, P-02, E-07
    """
    admin.create_topic("days", default_message_time_to_live=timedelta(days=2))
    admin.create_subscription("days", "old")
    start = datetime.fromtimestamp(served.now_ms() // 1000, UTC)
    with (
        client.get_topic_sender("days") as sender,
        client.get_subscription_receiver("days", "old") as old,
    ):
        for day in (30, 1):
            about: dict[Any, Any] = {"day": day}
            message = ServiceBusMessage(str(day), application_properties=about)
            sender.schedule_messages(message, start + timedelta(days=day))
        served.advance(timedelta(days=1, minutes=1))
        (first,) = take(old)
        assert (str(first), first.enqueued_time_utc) == ("1", start + timedelta(days=1))
        admin.create_subscription("days", "new")
        admin.create_rule("days", "new", "late", filter=SqlRuleFilter("day > 7"))
        admin.delete_rule("days", "new", "$Default")
        admin.delete_rule("days", "old", "$Default")
        sender.send_messages(ServiceBusMessage("to nobody", application_properties={"day": 1}))
        served.advance(timedelta(days=29))
        with client.get_subscription_receiver("days", "new") as new:
            (second,) = take(new)
            assert (str(second), second.sequence_number) == ("30", 1)
            assert second.enqueued_time_utc == start + timedelta(days=30)
            assert second.time_to_live == timedelta(days=2)
        assert old.peek_messages(max_message_count=9, sequence_number=1) == []


def test_many_that_are_due_at_once_are_judged_and_keep_their_order(
    served: ServedBroker, admin: Any, client: Links
) -> None:
    """Their bodies must be read again for that; later messages come behind them.

    Req: S-05, S-07, S-01, P-02
    """
    admin.create_topic("crowd")
    for name in ("all", "even"):
        admin.create_subscription("crowd", name)
    admin.create_rule("crowd", "even", "even", filter=SqlRuleFilter("n % 2 = 0"))
    admin.delete_rule("crowd", "even", "$Default")
    due = datetime.fromtimestamp(served.now_ms() // 1000, UTC) + timedelta(hours=1)

    def numbered(*numbers: int) -> list[ServiceBusMessage]:
        return [ServiceBusMessage("x" * 3000, application_properties={"n": n}) for n in numbers]

    with (
        client.get_topic_sender("crowd") as sender,
        client.get_subscription_receiver("crowd", "all") as every,
        client.get_subscription_receiver("crowd", "even") as even,
    ):
        sender.schedule_messages(numbered(*range(60)), due)
        served.advance(timedelta(hours=1))
        sender.send_messages(numbered(60))
        for receiver, expected in ((every, range(61)), (even, range(0, 61, 2))):
            messages = take(receiver, len(expected))
            assert [one.application_properties[b"n"] for one in messages] == list(expected)
            assert [one.sequence_number for one in messages] == list(range(1, len(expected) + 1))


def test_an_id_is_new_again_when_the_topics_window_has_passed(
    served: ServedBroker, admin: Any, client: Links
) -> None:
    """Req: D-01, P-01"""
    admin.create_topic(
        "ids", requires_duplicate_detection=True, duplicate_detection_history_time_window=MINUTE
    )
    admin.create_subscription("ids", "s")
    for seconds in (0, 50, 20):
        served.advance(timedelta(seconds=seconds))
        publish(client, "ids", "x", message_id="id")
    with client.get_subscription_receiver("ids", "s") as receiver:
        messages = take(receiver, 2)
        assert [one.enqueued_sequence_number for one in messages] == [1, 2]
        assert_empty(receiver)


def exists(admin: Any, topic: str, subscription: str | None = None) -> bool:
    """Return whether there is a topic, or a subscription of it. The request is no use of it."""
    try:
        if subscription is None:
            admin.get_topic(topic)
        else:
            admin.get_subscription(topic, subscription)
    except ResourceNotFoundError:
        return False
    return True


def test_subscriptions_and_topics_go_when_they_are_not_used(
    served: ServedBroker, admin: Any, client: Links
) -> None:
    """Copies that come are no use of a subscription; a rule added is, and a receiver that waits. What is done
    with a subscription is use of its topic, and one that forwards keeps it always.

    Req: A-03, F-02, P-01
    """
    idle = {"auto_delete_on_idle": 5 * MINUTE}
    for topic in ("idle", "watched", "passing"):
        admin.create_topic(topic, **idle)
        admin.create_subscription(topic, "own", **idle)
    admin.create_queue("target")
    admin.create_subscription("passing", "on", forward_to="target", **idle)
    with OwnClient(served.port) as waiting:
        link, _ = waiting.receive("watched/Subscriptions/own", 0)
        link.flow(1)  # the official client takes its credit back when a call ends
        waiting.ask("target", PEEK, {"from-sequence-number": Long(0), "message-count": Int(1)})
        served.advance(3 * MINUTE)
        publish(client, "idle", "1")
        publish(client, "passing", "1")
        served.advance(3 * MINUTE)
        assert exists(admin, "idle")
        assert not exists(admin, "idle", "own"), "copies that came did not keep it"
        admin.create_subscription("idle", "other", **idle)
        served.advance(4 * MINUTE)
        admin.create_rule("idle", "other", "more")
        served.advance(4 * MINUTE)
        assert exists(admin, "idle", "other"), "a new rule kept it"
        served.advance(6 * MINUTE)
        assert not exists(admin, "idle")
        assert exists(admin, "watched", "own")
        assert exists(admin, "watched")
        assert exists(admin, "passing", "on")
        assert not exists(admin, "passing", "own")
        assert admin.get_queue_runtime_properties("target").active_message_count == 1
