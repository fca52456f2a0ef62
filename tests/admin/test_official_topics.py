"""Topics, subscriptions and rules by the official Python administration client, sync and aio, unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncClient
from azure.servicebus.management import (
    ApiVersion,
    CorrelationRuleFilter,
    EntityStatus,
    FalseRuleFilter,
    RuleProperties,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from peeklock.amqp.messaging import Sections
from peeklock.broker.vocabulary.commands import Send
from peeklock.broker.vocabulary.message import Message
from peeklock.broker.vocabulary.quotas import BASIC, PREMIUM
from tests.admin.official import FOREVER, administer, refusal
from tests.admin.serving import Served, now_ms

pytestmark = pytest.mark.interop


# Topics


def test_a_topic_is_created_read_and_deleted(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01."""
    assert client.create_topic("news").name == "news"
    read = client.get_topic("News")
    assert read.default_message_time_to_live == FOREVER
    assert read.duplicate_detection_history_time_window == timedelta(minutes=10)
    assert read.auto_delete_on_idle == FOREVER
    assert read.max_size_in_megabytes == 1024
    assert read.max_message_size_in_kilobytes == 256
    assert read.requires_duplicate_detection is False
    assert read.enable_batched_operations is True
    assert read.enable_partitioning is False
    assert read.enable_express is False
    assert read.filtering_messages_before_publishing is False
    assert read.support_ordering is True
    assert read.status == EntityStatus.ACTIVE
    assert read.availability_status == "Available"
    assert not read.authorization_rules
    client.delete_topic("NEWS")
    with pytest.raises(ResourceNotFoundError):
        client.get_topic("news")


def test_every_setting_of_a_topic_makes_the_round_trip(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01."""
    settings: dict[str, Any] = {
        "default_message_time_to_live": timedelta(minutes=11),
        "max_size_in_megabytes": 3072,
        "requires_duplicate_detection": True,
        "duplicate_detection_history_time_window": timedelta(minutes=12),
        "enable_batched_operations": False,
        "status": EntityStatus.SEND_DISABLED,
        "support_ordering": False,
        "auto_delete_on_idle": timedelta(minutes=5),
        "enable_express": True,
        "user_metadata": " <note> & more é ",
    }
    client.create_topic("tenant/news.eu-1_x", **settings)
    read = client.get_topic("tenant/news.eu-1_x")
    assert {name: getattr(read, name) for name in settings} == settings


def test_a_partitioned_topic_shows_the_size_of_all_its_partitions(
    client: ServiceBusAdministrationClient,
) -> None:
    """Req: A-01. What was read can be written back."""
    topic = client.create_topic("news", enable_partitioning=True, max_size_in_megabytes=2048)
    assert (topic.enable_partitioning, topic.max_size_in_megabytes) == (True, 32_768)
    client.update_topic(topic, user_metadata="changed")
    read = client.get_topic("news")
    assert (read.max_size_in_megabytes, read.support_ordering) == (32_768, False)


def test_settings_may_be_given_as_text_and_as_dictionaries(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01. Source: the client's own tests, wire contract 7.8."""
    topic = client.create_topic("news", auto_delete_on_idle="PT10M", default_message_time_to_live="PT11M")
    assert topic.auto_delete_on_idle == timedelta(minutes=10)
    client.update_topic({**dict(topic), "default_message_time_to_live": "PT11M2S"}, support_ordering=False)
    read = client.get_topic("news")
    assert (read.default_message_time_to_live, read.support_ordering) == (timedelta(seconds=662), False)
    subscription = client.create_subscription("news", "eu", lock_duration="PT13S")
    client.update_subscription("news", {**dict(subscription), "auto_delete_on_idle": "PT10M1S"})
    found = client.get_subscription("news", "eu")
    assert (found.lock_duration, found.auto_delete_on_idle) == (timedelta(seconds=13), timedelta(seconds=601))


def test_the_oldest_version_of_the_protocol_is_served(served: Served) -> None:
    """Req: A-01. Source: the client's own tests."""
    with ServiceBusAdministrationClient.from_connection_string(
        served.connection_string,
        connection_verify=served.certificate,
        retry_total=0,
        api_version=ApiVersion.V2017_04,
    ) as old:
        old.create_topic("news")
        old.create_subscription("news", "eu")
        old.create_rule("news", "eu", "r", filter=SqlRuleFilter("a = 1"))
        assert [topic.name for topic in old.list_topics()] == ["news"]
        assert [found.name for found in old.list_subscriptions("news")] == ["eu"]
        assert [rule.name for rule in old.list_rules("news", "eu")] == ["$Default", "r"]
        with pytest.raises(HttpResponseError):
            old.create_topic("other", max_message_size_in_kilobytes=1024)
        old.delete_topic("news")


def test_a_topic_is_updated_with_what_was_read(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01, A-07."""
    topic = client.create_topic("news", requires_duplicate_detection=True)
    topic.default_message_time_to_live = timedelta(minutes=2)
    client.update_topic(topic)
    read = client.get_topic("news")
    assert read.default_message_time_to_live == timedelta(minutes=2)
    client.update_topic(read, status=EntityStatus.DISABLED)
    read = client.get_topic("news")
    assert (read.status, read.requires_duplicate_detection) == (EntityStatus.DISABLED, True)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"requires_duplicate_detection": True}, "RequiresDuplicateDetection"),
        ({"enable_partitioning": True}, "EnablePartitioning"),
        (
            {"duplicate_detection_history_time_window": timedelta(days=25)},
            "DuplicateDetectionHistoryTimeWindow",
        ),
        ({"default_message_time_to_live": timedelta(0)}, "DefaultMessageTimeToLive"),
        ({"auto_delete_on_idle": timedelta(minutes=4)}, "AutoDeleteOnIdle"),
        ({"max_message_size_in_kilobytes": 54321}, "MaxMessageSizeInKilobytes"),
        ({"user_metadata": "x" * 1025}, "UserMetadata"),
    ],
)
def test_a_change_of_a_topic_that_is_not_allowed_is_a_400_and_changes_nothing(
    client: ServiceBusAdministrationClient, change: dict[str, Any], named: str
) -> None:
    """Req: A-01, A-05. Source: wire contract 7.8."""
    topic = client.create_topic("news")
    with pytest.raises(HttpResponseError, match=named) as failure:
        client.update_topic(topic, **change)
    assert refusal(failure) == 400
    assert dict(client.get_topic("news")) == dict(topic)


@pytest.mark.parametrize("name", ["", "a//b", "ne ws", "ne:ws", "n" * 261, "$news", "é"])
def test_a_topic_s_name_that_breaks_the_rules_is_a_400(
    client: ServiceBusAdministrationClient, name: str
) -> None:
    """Req: A-01. Source: wire contract 7.8."""
    with pytest.raises(HttpResponseError) as failure:
        client.create_topic(name)
    assert refusal(failure) == 400


def test_queues_and_topics_share_their_names(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01. Source: wire contract 7.8: one name space, case-insensitive."""
    client.create_queue("orders")
    client.create_topic("news")
    for create in (
        lambda: client.create_topic("Orders"),
        lambda: client.create_queue("NEWS"),
        lambda: client.create_topic("News"),
    ):
        with pytest.raises(ResourceExistsError) as failure:
            create()
        assert refusal(failure) == 409
    assert [queue.name for queue in client.list_queues()] == ["orders"]
    assert [topic.name for topic in client.list_topics()] == ["news"]


def test_a_topic_cannot_be_updated_into_a_queue(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01."""
    topic = client.create_topic("news")
    queue = client.create_queue("orders")
    topic.name, queue.name = "orders", "news"
    update: Callable[[], None]
    for update in (lambda: client.update_topic(topic), lambda: client.update_queue(queue)):
        with pytest.raises(HttpResponseError) as failure:
            update()
        assert refusal(failure) in (400, 404)
    assert client.get_topic("news").name == "news"
    assert client.get_queue("orders").name == "orders"


def test_topics_are_listed_sorted_and_paged(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01. The client asks for 100 at a time."""
    names = sorted(f"topic-{number:03d}" for number in range(105))
    for name in reversed(names):
        client.create_topic(name)
    assert [topic.name for topic in client.list_topics()] == names
    assert [topic.name for topic in client.list_topics_runtime_properties()] == names
    assert [topic.name for topic in client.list_topics(start_index=100, max_page_size=2)] == names[100:]
    assert list(client.list_topics(start_index=105)) == []


def test_the_basic_tier_has_no_topics(tmp_path: Any) -> None:
    """Req: A-05. Source: wire contract 10.2."""
    with administer(Served(tmp_path, BASIC)) as client:
        with pytest.raises(HttpResponseError, match="tier Basic has no topics") as failure:
            client.create_topic("news")
        assert refusal(failure) == 400


def test_the_premium_tier_lets_a_topic_s_message_size_be_set(tmp_path: Any) -> None:
    """Req: A-05."""
    with administer(Served(tmp_path, PREMIUM)) as client:
        topic = client.create_topic("news", max_message_size_in_kilobytes=12345)
        assert topic.max_message_size_in_kilobytes == 12345
        assert client.create_topic("other").max_message_size_in_kilobytes == 1024


# Subscriptions


def test_a_subscription_is_created_read_and_deleted(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01."""
    client.create_topic("tenant/news")
    assert client.create_subscription("tenant/news", "Eu").name == "Eu"
    assert [found.name for found in client.list_subscriptions("TENANT/news")] == ["Eu"]
    read = client.get_subscription("Tenant/News", "EU")
    assert read.lock_duration == timedelta(minutes=1)
    assert read.requires_session is False
    assert read.default_message_time_to_live == FOREVER
    assert read.dead_lettering_on_message_expiration is False
    assert read.dead_lettering_on_filter_evaluation_exceptions is True
    assert read.max_delivery_count == 10
    assert read.enable_batched_operations is True
    assert read.status == EntityStatus.ACTIVE
    assert read.auto_delete_on_idle == FOREVER
    assert read.availability_status == "Available"
    assert (read.forward_to, read.forward_dead_lettered_messages_to, read.user_metadata) == (None,) * 3
    client.delete_subscription("TENANT/news", "eu")
    with pytest.raises(ResourceNotFoundError):
        client.get_subscription("tenant/news", "eu")


def test_every_setting_of_a_subscription_makes_the_round_trip(
    client: ServiceBusAdministrationClient,
) -> None:
    """Req: A-01."""
    client.create_topic("news")
    settings: dict[str, Any] = {
        "lock_duration": timedelta(seconds=13),
        "requires_session": True,
        "default_message_time_to_live": timedelta(minutes=11),
        "dead_lettering_on_message_expiration": True,
        "dead_lettering_on_filter_evaluation_exceptions": False,
        "max_delivery_count": 14,
        "enable_batched_operations": False,
        "status": EntityStatus.RECEIVE_DISABLED,
        "user_metadata": " <note> & more é ",
        "auto_delete_on_idle": timedelta(minutes=5),
    }
    client.create_subscription("news", "eu.a-b_1", **settings)
    read = client.get_subscription("news", "eu.a-b_1")
    assert {name: getattr(read, name) for name in settings} == settings


def test_a_subscription_may_forward(client: ServiceBusAdministrationClient, served: Served) -> None:
    """Req: A-01, F-01."""
    here = f"sb://localhost:{served.port}"
    client.create_topic("news")
    client.create_queue("last")
    made = client.create_subscription(
        "news", "eu", forward_to="last", forward_dead_lettered_messages_to=f"{here}/last"
    )
    assert (made.forward_to, made.forward_dead_lettered_messages_to) == (f"{here}/last",) * 2
    made.forward_to = None
    client.update_subscription("news", made)
    read = client.get_subscription("news", "eu")
    assert (read.forward_to, read.forward_dead_lettered_messages_to) == (None, f"{here}/last")
    client.update_subscription("news", made, forward_to="news")
    assert client.get_subscription("news", "eu").forward_to == f"{here}/news"
    with pytest.raises(HttpResponseError, match="there is no such queue or topic") as failure:
        client.update_subscription("news", made, forward_to="gone")
    assert refusal(failure) == 400


def test_a_subscription_is_updated_with_what_was_read(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01, A-07."""
    client.create_topic("news")
    subscription = client.create_subscription("news", "eu", requires_session=True)
    subscription.lock_duration = timedelta(seconds=30)
    client.update_subscription("news", subscription)
    read = client.get_subscription("news", "eu")
    assert (read.lock_duration, read.requires_session) == (timedelta(seconds=30), True)
    client.update_subscription("news", dict(read), max_delivery_count=3)
    assert client.get_subscription("news", "eu").max_delivery_count == 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"requires_session": True}, "RequiresSession"),
        ({"lock_duration": timedelta(days=25)}, "LockDuration"),
        ({"lock_duration": timedelta(seconds=4)}, "LockDuration"),
        ({"max_delivery_count": 0}, "MaxDeliveryCount"),
        ({"default_message_time_to_live": timedelta(0)}, "DefaultMessageTimeToLive"),
        ({"auto_delete_on_idle": timedelta(minutes=4)}, "AutoDeleteOnIdle"),
        ({"user_metadata": "x" * 1025}, "UserMetadata"),
    ],
)
def test_a_change_of_a_subscription_that_is_not_allowed_is_a_400_and_changes_nothing(
    client: ServiceBusAdministrationClient, change: dict[str, Any], named: str
) -> None:
    """Req: A-01. Source: wire contract 7.8."""
    client.create_topic("news")
    subscription = client.create_subscription("news", "eu")
    with pytest.raises(HttpResponseError, match=named) as failure:
        client.update_subscription("news", subscription, **change)
    assert refusal(failure) == 400
    assert dict(client.get_subscription("news", "eu")) == dict(subscription)


@pytest.mark.parametrize("name", ["", "e u", "e:u", "e/u", "e" * 51, "$eu", "é"])
def test_a_subscription_s_name_that_breaks_the_rules_is_a_400(
    client: ServiceBusAdministrationClient, name: str
) -> None:
    """Req: A-01. Source: wire contract 7.8: at most 50 characters, no slash."""
    client.create_topic("news")
    with pytest.raises(HttpResponseError) as failure:
        client.create_subscription("news", name)
    assert refusal(failure) == 400


def test_a_subscription_s_name_is_taken_within_its_topic(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01."""
    client.create_topic("news")
    client.create_topic("other")
    client.create_subscription("news", "eu")
    client.create_subscription("other", "eu")
    with pytest.raises(ResourceExistsError) as failure:
        client.create_subscription("news", "Eu")
    assert refusal(failure) == 409


def test_what_is_absent_below_a_topic_is_not_found(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01."""
    client.create_topic("news")
    subscription = client.create_subscription("news", "eu")
    rule = client.create_rule("news", "eu", "r")
    with_404: list[Callable[[], Any]] = [
        lambda: client.delete_topic("gone"),
        lambda: client.create_subscription("gone", "eu"),
        lambda: client.update_subscription("gone", subscription),
        lambda: client.delete_subscription("news", "gone"),
        lambda: list(client.list_subscriptions("gone")),
        lambda: client.create_rule("news", "gone", "r"),
        lambda: client.update_rule("news", "gone", rule),
        lambda: client.delete_rule("news", "eu", "gone"),
        lambda: client.delete_rule("news", "gone", "r"),
        lambda: list(client.list_rules("news", "gone")),
        lambda: list(client.list_rules("gone", "eu")),
    ]
    rule.name = "gone"
    with_404.append(lambda: client.update_rule("news", "eu", rule))
    for ask in with_404:
        with pytest.raises(HttpResponseError) as failure:
            ask()
        assert refusal(failure) == 404
    for look_up in (
        lambda: client.get_topic("gone"),
        lambda: client.get_topic_runtime_properties("gone"),
        lambda: client.get_subscription("news", "gone"),
        lambda: client.get_subscription("gone", "eu"),
        lambda: client.get_subscription_runtime_properties("news", "gone"),
        lambda: client.get_rule("news", "eu", "gone"),
        lambda: client.get_rule("news", "gone", "r"),
    ):
        with pytest.raises(ResourceNotFoundError):
            look_up()


def test_a_queue_has_no_subscriptions(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01."""
    client.create_queue("orders")
    for ask in (
        lambda: client.create_subscription("orders", "eu"),
        lambda: list(client.list_subscriptions("orders")),
    ):
        with pytest.raises(HttpResponseError) as failure:
            ask()
        assert refusal(failure) in (400, 404)


def test_subscriptions_are_listed_sorted_and_paged(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01. The client asks for 100 at a time."""
    client.create_topic("news")
    client.create_topic("other")
    names = sorted(f"s{number:03d}" for number in range(105))
    for name in reversed(names):
        client.create_subscription("news", name)
    assert [found.name for found in client.list_subscriptions("News")] == names
    assert [found.name for found in client.list_subscriptions_runtime_properties("news")] == names
    assert list(client.list_subscriptions("other")) == []


def test_a_topic_goes_with_its_subscriptions(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01."""
    client.create_topic("news")
    client.create_subscription("news", "eu")
    client.delete_topic("news")
    client.create_topic("news")
    assert list(client.list_subscriptions("news")) == []


# Figures


def test_runtime_properties_of_fresh_entities(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01. Source: wire contract 7.8, [T]: times present, counts 0, size an int."""
    before = datetime.now(UTC) - timedelta(seconds=1)
    client.create_topic("news")
    client.create_subscription("news", "eu")
    topic = client.get_topic_runtime_properties("news")
    subscription = client.get_subscription_runtime_properties("news", "eu")
    for about in (topic, subscription):
        assert about.created_at_utc is not None
        assert before < about.created_at_utc.replace(tzinfo=UTC) < datetime.now(UTC) + timedelta(seconds=1)
        assert about.updated_at_utc is not None
        assert about.accessed_at_utc is not None
    assert (topic.name, topic.size_in_bytes, topic.subscription_count) == ("news", 0, 1)
    assert topic.scheduled_message_count == 0
    counts = (
        subscription.total_message_count,
        subscription.active_message_count,
        subscription.dead_letter_message_count,
        subscription.transfer_message_count,
        subscription.transfer_dead_letter_message_count,
    )
    assert (subscription.name, counts) == ("eu", (0, 0, 0, 0, 0))


def test_a_topic_counts_its_filters_by_kind(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01. Source: wire contract 7.4, [T]: `$Default` and one SQL filter are 2, correlation 1."""
    client.create_topic("news")
    client.create_subscription("news", "eu")
    client.create_rule("news", "eu", "sql", filter=SqlRuleFilter("a = 1"))
    client.create_rule("news", "eu", "correlation", filter=CorrelationRuleFilter(label="a"))
    about = client.get_topic_runtime_properties("news")
    assert (about.sql_filter_count, about.correlation_filter_count) == (2, 1)
    client.create_subscription("news", "us")
    client.delete_rule("news", "eu", "correlation")
    about = client.get_topic_runtime_properties("news")
    assert (about.subscription_count, about.sql_filter_count, about.correlation_filter_count) == (2, 3, 0)


def test_messages_are_counted_where_they_are(client: ServiceBusAdministrationClient, served: Served) -> None:
    """Req: A-01. Scheduled ones in the topic, copies in the subscriptions. Source: wire contract 7.8."""
    client.create_topic("news")
    client.create_subscription("news", "eu")
    client.create_subscription("news", "us")
    client.delete_rule("news", "us", "$Default")
    client.create_rule("news", "us", "none", filter=FalseRuleFilter())

    def send() -> None:
        namespace = served.world.namespace
        (topic,) = [view for view in namespace.entity_views() if view.description.name == "news"]
        for scheduled_at_ms in (None, now_ms() + 600_000):
            message = Message(11, scheduled_at_ms=scheduled_at_ms)
            namespace.apply(
                Send(topic.entity_id * 4, message, Sections(b"\0SwA\x0bhello world"), None), now_ms()
            )

    served.on_loop(send)
    topic = client.get_topic_runtime_properties("news")
    assert topic.scheduled_message_count == 1
    assert topic.size_in_bytes is not None
    assert topic.size_in_bytes >= 22
    eu = client.get_subscription_runtime_properties("news", "eu")
    assert (eu.total_message_count, eu.active_message_count) == (1, 1)
    us = client.get_subscription_runtime_properties("news", "us")
    assert (us.total_message_count, us.active_message_count) == (0, 0)


# Rules

VALUES: dict[str, Any] = {
    "@text": "a <b> & c",
    "@small": 2,
    "@large": 2**31 + 2,
    "@negative": -(2**31),
    "@real": 1.5,
    "@yes": True,
    "@no": False,
    "@span": timedelta(days=1, hours=2, minutes=3, milliseconds=4),
    "@time": datetime(2020, 7, 5, 11, 12, 13, tzinfo=UTC),
    "@naive": datetime(2020, 7, 5, 11, 12, 13),  # noqa: DTZ001 -- [T] wants it back so
}


@pytest.fixture
def subscribed(client: ServiceBusAdministrationClient) -> ServiceBusAdministrationClient:
    """A client with the subscription `eu` of the topic `news`."""
    client.create_topic("news")
    client.create_subscription("news", "eu")
    return client


def test_a_subscription_begins_with_a_rule_for_all_messages(
    subscribed: ServiceBusAdministrationClient,
) -> None:
    """Req: P-03, A-01. Source: wire contract 7.5."""
    (rule,) = subscribed.list_rules("news", "eu")
    assert (rule.name, rule.action) == ("$Default", None)
    assert type(rule.filter) is TrueRuleFilter
    assert rule.filter.sql_expression == "1=1"
    found = subscribed.get_rule("news", "eu", "$default")
    assert found.created_at_utc is not None
    assert found.created_at_utc.replace(tzinfo=UTC) > datetime.now(UTC) - timedelta(minutes=1)
    subscribed.delete_rule("news", "eu", "$Default")
    assert list(subscribed.list_rules("news", "eu")) == []


def test_each_kind_of_filter_makes_the_round_trip(subscribed: ServiceBusAdministrationClient) -> None:
    """Req: P-02, P-03, A-01."""
    expression = " ".join(f"AND {name[1:]} = {name}" for name in VALUES)[4:]
    filters: dict[str, Any] = {
        "r-sql": SqlRuleFilter(expression, parameters=VALUES),
        "r-plain": SqlRuleFilter("sys.Label LIKE 'a%' AND user.b <> 'O''Brien' OR c < 1"),
        "r-true": TrueRuleFilter(),
        "r-false": FalseRuleFilter(),
        "r-correlation": CorrelationRuleFilter(
            correlation_id="c", message_id="m", to="t", reply_to="r", label="l", session_id="s",
            reply_to_session_id="rs", content_type="ct",
            properties={name[1:]: value for name, value in VALUES.items()},
        ),
    }  # fmt: skip
    for name, asked in filters.items():
        subscribed.create_rule("news", "eu", name, filter=asked)
        found: Any = subscribed.get_rule("news", "eu", name.upper()).filter
        assert type(found) is type(asked)
        if isinstance(asked, CorrelationRuleFilter):
            assert vars(found) == vars(asked)
            assert list(found.properties) == list(asked.properties or ())
        else:
            # What a client says beside "always false" is its own affair: Python's is 1>1, the service's 1=0.
            if not isinstance(asked, FalseRuleFilter):
                assert found.sql_expression == asked.sql_expression
            assert dict(found.parameters) == (asked.parameters or {})
    listed: list[Any] = list(subscribed.list_rules("news", "eu"))
    assert [rule.name for rule in listed] == ["$Default", *sorted(filters)]
    assert dict(listed[-2].filter.parameters) == VALUES


def test_an_action_makes_the_round_trip(subscribed: ServiceBusAdministrationClient) -> None:
    """Req: P-02, P-03, A-01."""
    expression = "; ".join(f"SET {name[1:]} = {name}" for name in VALUES)
    subscribed.create_rule("news", "eu", "r", action=SqlRuleAction(expression, parameters=VALUES))
    rule: Any = subscribed.get_rule("news", "eu", "r")
    assert type(rule.filter) is TrueRuleFilter
    assert rule.action.sql_expression == expression
    assert dict(rule.action.parameters) == VALUES
    assert list(rule.action.parameters) == list(VALUES)


def test_a_rule_is_updated_and_loses_its_action(subscribed: ServiceBusAdministrationClient) -> None:
    """Req: P-03, A-01. Source: wire contract 7.6, [T]."""
    subscribed.create_rule("news", "eu", "rule", filter=SqlRuleFilter("Priority = 'low'"))
    rule: Any = subscribed.get_rule("news", "eu", "rule")
    rule.filter = CorrelationRuleFilter(correlation_id="testcid")
    rule.action = SqlRuleAction("SET Priority = 'low'")
    subscribed.update_rule("news", "eu", rule)
    rule = subscribed.get_rule("news", "eu", "rule")
    assert rule.filter.correlation_id == "testcid"
    assert rule.action.sql_expression == "SET Priority = 'low'"
    changed = CorrelationRuleFilter(correlation_id="updatedcid")
    subscribed.update_rule("news", "eu", dict(rule), filter=changed, action=None)
    rule = subscribed.get_rule("news", "eu", "rule")
    assert (rule.filter.correlation_id, rule.action) == ("updatedcid", None)


def test_a_rule_s_name_is_taken_within_its_subscription(subscribed: ServiceBusAdministrationClient) -> None:
    """Req: P-03, A-01."""
    subscribed.create_rule("news", "eu", "rule")
    for name in ("Rule", "$default"):
        with pytest.raises(ResourceExistsError) as failure:
            subscribed.create_rule("news", "eu", name)
        assert refusal(failure) == 409


@pytest.mark.parametrize("name", ["r r", "r:r", "r/r", "r" * 51, "é", "$", "$-"])
def test_a_rule_s_name_that_breaks_the_rules_is_a_400(
    subscribed: ServiceBusAdministrationClient, name: str
) -> None:
    """Req: A-01, C32. Source: wire contract 7.8: at most 50 characters, no slash."""
    with pytest.raises(HttpResponseError) as failure:
        subscribed.create_rule("news", "eu", name)
    assert refusal(failure) == 400


@pytest.mark.parametrize("end", [".", "-", "_", "--", "__"])
def test_names_of_subscriptions_and_rules_may_begin_and_end_with_punctuation(
    subscribed: ServiceBusAdministrationClient, end: str
) -> None:
    """Req: C32"""
    topic = f"{end}Fault{end}"
    subscribed.create_topic(topic)
    for name in (f"eu{end}", f"{end}eu", f"{end}eu{end}"):
        subscribed.create_subscription(topic, name, max_delivery_count=2**31 - 1)
        subscribed.create_rule(topic, name, f"{end}rule{end}")
        assert subscribed.get_subscription(topic, name).max_delivery_count == 2**31 - 1
        rules = {rule.name for rule in subscribed.list_rules(topic, name)}
        assert rules == {"$Default", f"{end}rule{end}"}
        subscribed.delete_rule(topic, name, f"{end}rule{end}")
        subscribed.delete_subscription(topic, name)
    assert list(subscribed.list_subscriptions(topic)) == []


@pytest.mark.parametrize(
    ("filter_", "action", "said"),
    [
        (SqlRuleFilter("a = "), None, "position"),
        (SqlRuleFilter("a = 1 AND"), None, "position"),
        (SqlRuleFilter("sys.Colour = 1"), None, "Colour"),
        (SqlRuleFilter("a = @missing"), None, "@missing"),
        (SqlRuleFilter(""), None, ""),
        (SqlRuleFilter("a = '" + "x" * 1024 + "'"), None, "1024"),
        (CorrelationRuleFilter(), None, ""),
        (TrueRuleFilter(), SqlRuleAction("SET a 1"), "position"),
        (TrueRuleFilter(), SqlRuleAction("DELETE a"), "position"),
    ],
)
def test_a_rule_that_cannot_be_is_a_400_that_says_where_and_why(
    subscribed: ServiceBusAdministrationClient, filter_: Any, action: Any, said: str
) -> None:
    """Req: P-02, A-01."""
    with pytest.raises(HttpResponseError) as failure:
        subscribed.create_rule("news", "eu", "r", filter=filter_, action=action)
    assert refusal(failure) == 400
    assert said in str(failure.value)
    rule = subscribed.get_rule("news", "eu", "$Default")
    with pytest.raises(HttpResponseError) as failure:
        subscribed.update_rule("news", "eu", rule, filter=filter_, action=action)
    assert refusal(failure) == 400
    (left,) = subscribed.list_rules("news", "eu")
    assert (left.name, type(left.filter), left.action) == ("$Default", TrueRuleFilter, None)


def test_rules_are_listed_sorted_and_paged(subscribed: ServiceBusAdministrationClient) -> None:
    """Req: P-03, A-01. The client asks for 100 at a time."""
    names = sorted(f"r{number:03d}" for number in range(99, -1, -1))
    for name in reversed(names):
        subscribed.create_rule("news", "eu", name)
    assert [rule.name for rule in subscribed.list_rules("news", "eu")] == ["$Default", *names]


def test_the_aio_client_does_the_same(served: Served) -> None:
    """Req: A-01, P-03."""

    async def story() -> None:
        # The aio transport takes no file of trusted certificates, only "do not verify".
        async with AsyncClient.from_connection_string(
            served.connection_string, connection_verify=False, retry_total=0
        ) as client:
            topic = await client.create_topic("aio/news", default_message_time_to_live=timedelta(hours=1))
            topic.user_metadata = "changed"
            await client.update_topic(topic)
            assert (await client.get_topic("aio/news")).user_metadata == "changed"
            subscription = await client.create_subscription("aio/news", "eu", max_delivery_count=3)
            subscription.lock_duration = timedelta(seconds=9)
            await client.update_subscription("aio/news", subscription)
            read = await client.get_subscription("aio/news", "eu")
            assert (read.lock_duration, read.max_delivery_count) == (timedelta(seconds=9), 3)
            asked = SqlRuleFilter("a = @a", parameters={"@a": 1.5})
            await client.create_rule("aio/news", "eu", "r", filter=asked, action=SqlRuleAction("SET b = 1"))
            rule = await client.get_rule("aio/news", "eu", "r")
            assert isinstance(rule.filter, SqlRuleFilter)
            assert rule.filter.parameters is not None
            assert dict(rule.filter.parameters) == {"@a": 1.5}
            await client.update_rule("aio/news", "eu", rule, action=None)
            rules: list[RuleProperties] = [rule async for rule in client.list_rules("aio/news", "eu")]
            assert [(rule.name, rule.action) for rule in rules] == [("$Default", None), ("r", None)]
            about = await client.get_topic_runtime_properties("aio/news")
            assert (about.subscription_count, about.sql_filter_count) == (1, 2)
            figures = await client.get_subscription_runtime_properties("aio/news", "eu")
            assert figures.total_message_count == 0
            assert [found.name async for found in client.list_subscriptions("aio/news")] == ["eu"]
            assert [found.name async for found in client.list_topics()] == ["aio/news"]
            await client.delete_rule("aio/news", "eu", "r")
            with pytest.raises(ResourceNotFoundError):
                await client.get_rule("aio/news", "eu", "r")
            await client.delete_subscription("aio/news", "eu")
            await client.delete_topic("aio/news")
            with pytest.raises(ResourceNotFoundError):
                await client.get_topic("aio/news")

    asyncio.run(story())
