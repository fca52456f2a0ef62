"""Topics, and the transactions that this client does not have."""

from __future__ import annotations

from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import CorrelationRuleFilter, SqlRuleAction, SqlRuleFilter
from surroundings import NotOffered, Surroundings, complete_all, feature

from tests.interop.helpers import assert_empty, bodies, publish, take, take_one

NO_TRANSACTIONS = "It has no transactions."


@feature
def subscriptions(ours: Surroundings) -> None:
    topic = ours.topic("one", "two")
    publish(ours.client, topic, "x", "y")
    for name in ("one", "two"):
        with ours.client.get_subscription_receiver(topic, name) as receiver:
            messages = take(receiver, 2)
            assert bodies(messages) == ["x", "y"]
            complete_all(receiver, messages)
            assert_empty(receiver)


@feature
def rules(ours: Surroundings) -> None:
    topic = ours.topic("large", "red")
    chosen: dict[str, dict[str, Any]] = {
        "large": {"filter": SqlRuleFilter("size > 10"), "action": SqlRuleAction("SET size = 'large'")},
        "red": {"filter": CorrelationRuleFilter(label="paint", properties={"COLOR": "red"})},
    }
    for name, rule in chosen.items():
        ours.administration.create_rule(topic, name, "only", **rule)
        ours.administration.delete_rule(topic, name, "$Default")
    with ours.client.get_topic_sender(topic) as sender:
        messages: list[tuple[str, str, dict[Any, Any]]] = [
            ("small red", "paint", {"size": 1, "color": "red"}),
            ("large blue", "paint", {"size": 11, "color": "blue"}),
            ("red, no paint", "other", {"size": 2, "color": "red"}),
        ]
        for body, subject, own in messages:
            sender.send_messages(ServiceBusMessage(body, subject=subject, application_properties=own))
    with ours.client.get_subscription_receiver(topic, "large") as receiver:
        message = take_one(receiver)
        assert str(message) == "large blue"
        changed = {b"size": b"large", b"color": b"blue", b"RuleName": b"only"}  # the service adds the last
        assert message.application_properties == changed
        receiver.complete_message(message)
        assert_empty(receiver)
    with ours.client.get_subscription_receiver(topic, "red") as receiver:
        message = take_one(receiver)
        assert str(message) == "small red"
        receiver.complete_message(message)
        assert_empty(receiver)


@feature
def rule_manager(ours: Surroundings) -> None:
    raise NotOffered("It has no rule manager; rules are managed by its administration client.")


@feature
def transaction(ours: Surroundings) -> None:
    raise NotOffered(NO_TRANSACTIONS)


@feature
def cross_entity(ours: Surroundings) -> None:
    raise NotOffered(NO_TRANSACTIONS)
