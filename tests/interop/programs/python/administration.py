"""Entities, rules, figures and keys through the administration client."""

from __future__ import annotations

import base64
import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    EntityStatus,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)
from surroundings import Surroundings, feature, refused, wait_until

from tests.interop.helpers import send, take_one

MINUTES_7 = dt.timedelta(minutes=7)

QUEUE_SETTINGS = {
    "auto_delete_on_idle": dt.timedelta(hours=1),
    "dead_lettering_on_message_expiration": True,
    "default_message_time_to_live": dt.timedelta(days=2),
    "duplicate_detection_history_time_window": MINUTES_7,
    "enable_batched_operations": False,
    "enable_partitioning": False,
    "lock_duration": dt.timedelta(seconds=17),
    "max_delivery_count": 3,
    "max_size_in_megabytes": 2048,
    "requires_duplicate_detection": True,
    "requires_session": True,
    "user_metadata": "a queue <&> more",
}

TOPIC_SETTINGS = {
    "auto_delete_on_idle": dt.timedelta(hours=1),
    "default_message_time_to_live": dt.timedelta(days=2),
    "duplicate_detection_history_time_window": MINUTES_7,
    "enable_batched_operations": False,
    "enable_partitioning": False,
    "max_size_in_megabytes": 2048,
    "requires_duplicate_detection": True,
    "support_ordering": True,
    "user_metadata": "a topic",
}

SUBSCRIPTION_SETTINGS = {
    "auto_delete_on_idle": dt.timedelta(hours=1),
    "dead_lettering_on_filter_evaluation_exceptions": False,
    "dead_lettering_on_message_expiration": True,
    "default_message_time_to_live": dt.timedelta(days=2),
    "enable_batched_operations": False,
    "lock_duration": dt.timedelta(seconds=17),
    "max_delivery_count": 3,
    "requires_session": True,
    "user_metadata": "a subscription",
}


def _assert_settings(properties: Any, settings: dict[str, Any]) -> None:
    assert {name: getattr(properties, name) for name in settings} == settings


@feature
def admin_queues(ours: Surroundings) -> None:
    admin, target, name = ours.administration, ours.queue(), ours.name()
    with refused(ResourceNotFoundError):
        admin.get_queue(name)
    created = admin.create_queue(
        name, forward_dead_lettered_messages_to=target, forward_to=target, **QUEUE_SETTINGS
    )
    _assert_settings(created, QUEUE_SETTINGS)
    assert created.forward_to.endswith(f"/{target}")
    address = created.forward_to.replace("sb:", "https:")
    admin.update_queue(created, forward_to=address)
    assert admin.get_queue(name).forward_to == address  # as it was given
    with refused(ResourceExistsError):
        admin.create_queue(name)
    properties = admin.get_queue(name)
    _assert_settings(properties, QUEUE_SETTINGS)
    properties.max_delivery_count, properties.status = 8, EntityStatus.SEND_DISABLED
    admin.update_queue(properties)
    found = admin.get_queue(name)
    assert (found.max_delivery_count, found.status) == (8, EntityStatus.SEND_DISABLED)
    assert found.lock_duration == QUEUE_SETTINGS["lock_duration"]
    assert name in {queue.name for queue in admin.list_queues()}
    admin.delete_queue(name)
    for call in (admin.get_queue, admin.delete_queue):
        with refused(ResourceNotFoundError):
            call(name)


@feature
def admin_topics(ours: Surroundings) -> None:
    admin, name = ours.administration, ours.name()
    with refused(ResourceNotFoundError):
        admin.get_topic(name)
    _assert_settings(admin.create_topic(name, **TOPIC_SETTINGS), TOPIC_SETTINGS)
    with refused(ResourceExistsError):
        admin.create_topic(name)
    properties = admin.get_topic(name)
    _assert_settings(properties, TOPIC_SETTINGS)
    properties.user_metadata = "changed"
    admin.update_topic(properties)
    assert admin.get_topic(name).user_metadata == "changed"
    assert name in {topic.name for topic in admin.list_topics()}
    admin.delete_topic(name)
    for call in (admin.get_topic, admin.delete_topic):
        with refused(ResourceNotFoundError):
            call(name)


@feature
def admin_subscriptions(ours: Surroundings) -> None:
    admin, topic = ours.administration, ours.topic("other")
    with refused(ResourceNotFoundError):
        admin.get_subscription(topic, "s")
    with refused(ResourceNotFoundError):
        admin.create_subscription(ours.name(), "s")
    _assert_settings(admin.create_subscription(topic, "s", **SUBSCRIPTION_SETTINGS), SUBSCRIPTION_SETTINGS)
    with refused(ResourceExistsError):
        admin.create_subscription(topic, "s")
    properties = admin.get_subscription(topic, "s")
    _assert_settings(properties, SUBSCRIPTION_SETTINGS)
    properties.lock_duration = dt.timedelta(seconds=18)
    admin.update_subscription(topic, properties)
    assert admin.get_subscription(topic, "s").lock_duration == dt.timedelta(seconds=18)
    assert [one.name for one in admin.list_subscriptions(topic)] == ["other", "s"]
    admin.delete_subscription(topic, "s")
    for call in (admin.get_subscription, admin.delete_subscription):
        with refused(ResourceNotFoundError):
            call(topic, "s")


@feature
def admin_rules(ours: Surroundings) -> None:
    admin, topic = ours.administration, ours.topic("s")
    with refused(ResourceNotFoundError):
        admin.get_rule(topic, "s", "sql")
    # Each type that the client can write; each comes back as it is (C35).
    typed: dict[str, Any] = {
        "size": 3,
        "large": 2**31,
        "price": 2.5,
        "color": "red",
        "fresh": True,
        "day": dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC),  # the client sends whole seconds
        "span": dt.timedelta(days=1, milliseconds=4),
    }
    parameters = {"@least": 10, **{f"@{name}": value for name, value in typed.items()}}
    admin.create_rule(
        topic,
        "s",
        "sql",
        filter=SqlRuleFilter("size > @least AND color = @color", parameters=parameters),
        action=SqlRuleAction("SET size = 'large'; REMOVE color", parameters=parameters),
    )
    correlation: dict[str, Any] = {"label": "paint", "correlation_id": "c", "properties": typed}
    admin.create_rule(topic, "s", "correlation", filter=CorrelationRuleFilter(**correlation))
    admin.create_rule(topic, "s", "true", filter=TrueRuleFilter())
    admin.create_rule(topic, "s", "false", filter=FalseRuleFilter())
    with refused(ResourceExistsError):
        admin.create_rule(topic, "s", "sql", filter=TrueRuleFilter())
    found = admin.get_rule(topic, "s", "sql")
    assert found.filter.sql_expression == "size > @least AND color = @color"
    assert found.filter.parameters == parameters
    assert [type(value) for value in found.filter.parameters.values()] == [*map(type, parameters.values())]
    assert found.action.sql_expression == "SET size = 'large'; REMOVE color"
    assert found.action.parameters == parameters
    found = admin.get_rule(topic, "s", "correlation").filter
    assert {name: getattr(found, name) for name in correlation} == correlation
    assert isinstance(admin.get_rule(topic, "s", "true").filter, TrueRuleFilter)
    assert isinstance(admin.get_rule(topic, "s", "false").filter, FalseRuleFilter)
    changed = admin.get_rule(topic, "s", "true")
    changed.filter = SqlRuleFilter("sys.Label = 'x'")
    admin.update_rule(topic, "s", changed)
    assert admin.get_rule(topic, "s", "true").filter.sql_expression == "sys.Label = 'x'"
    assert {rule.name for rule in admin.list_rules(topic, "s")} == {
        "$Default", "sql", "correlation", "true", "false"
    }  # fmt: skip
    admin.delete_rule(topic, "s", "true")
    with refused(ResourceNotFoundError):
        admin.get_rule(topic, "s", "true")


@feature
def admin_runtime(ours: Surroundings) -> None:
    admin, began = ours.administration, dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
    queue, topic = ours.queue(), ours.topic("s")
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    with ours.client.get_queue_sender(queue) as sender, ours.client.get_queue_receiver(queue) as receiver:
        sender.send_messages([ServiceBusMessage(body) for body in "abc"])
        sender.schedule_messages(ServiceBusMessage("later"), later)
        receiver.dead_letter_message(take_one(receiver), reason="why")
    with ours.client.get_topic_sender(topic) as sender:
        sender.send_messages([ServiceBusMessage("x"), ServiceBusMessage("y")])
        sender.schedule_messages(ServiceBusMessage("later"), later)

    def counts() -> tuple[int, ...]:
        told = admin.get_queue_runtime_properties(queue)
        return (
            told.active_message_count,
            told.scheduled_message_count,
            told.dead_letter_message_count,
            told.transfer_dead_letter_message_count,
            told.total_message_count,
        )

    wait_until(lambda: counts() == (2, 1, 1, 0, 4))
    told = admin.get_queue_runtime_properties(queue)
    assert told.size_in_bytes > 0
    assert began < told.created_at_utc <= told.updated_at_utc
    assert told.accessed_at_utc >= told.created_at_utc
    assert queue in {one.name for one in admin.list_queues_runtime_properties()}
    told = admin.get_topic_runtime_properties(topic)
    assert (told.subscription_count, told.scheduled_message_count) == (1, 1)
    assert began < told.created_at_utc
    wait_until(lambda: admin.get_subscription_runtime_properties(topic, "s").active_message_count == 2)
    told = admin.get_subscription_runtime_properties(topic, "s")
    assert (told.dead_letter_message_count, told.total_message_count) == (0, 2)
    assert began < told.created_at_utc


@feature
def admin_paging(ours: Surroundings) -> None:
    names = [ours.name() for _ in range(250)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ours.administration.create_queue, names))
    listed = [queue.name for queue in ours.administration.list_queues()]
    assert len(listed) == len(set(listed))
    assert set(names) <= set(listed)


@feature
def admin_authorization(ours: Surroundings) -> None:
    keys = [base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2)]
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        key_name="sender",
        rights=[AccessRights.SEND],
        primary_key=keys[0],
        secondary_key=keys[1],
    )
    queue = ours.queue(authorization_rules=[rule])
    (found,) = ours.administration.get_queue(queue).authorization_rules
    assert (found.key_name, found.rights) == ("sender", [AccessRights.SEND])
    assert [found.primary_key, found.secondary_key] == keys
    endpoint = ours.tls.split(";")[0]
    for key in keys:
        shown = f"{endpoint};SharedAccessKeyName=sender;SharedAccessKey={key}"
        client = ours.tls_client(shown, retry_total=0)
        send(client, queue, "x")
        expected = (ServiceBusAuthorizationError, ServiceBusAuthenticationError)
        with client.get_queue_receiver(queue) as receiver, refused(*expected):
            receiver.opened()


@feature
def admin_namespace(ours: Surroundings) -> None:
    told = ours.administration.get_namespace_properties()
    assert told.name
    assert told.messaging_sku == "Standard"
