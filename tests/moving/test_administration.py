"""The administration as a client: what it reads and makes, waits for a busy service, and failures by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta

import pytest
from azure.servicebus.management import (
    AuthorizationRule,
    CorrelationRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
)

from peeklock.broker.vocabulary.commands import NOWHERE, CreateEntity, UpdateEntity
from peeklock.broker.vocabulary.descriptions import (
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.cli.running import find
from peeklock.client.requests import ATTEMPTS_MAX, AdministrationError, Reply, Requests
from peeklock.config.reconcile import EntityStep
from peeklock.config.settings import PROPERTIES
from peeklock.moving.administration import Administration
from peeklock.moving.definitions import read_definitions
from peeklock.rules.filters import CorrelationFilter, SqlAction, SqlFilter
from peeklock.testing.served import ServedBroker


def administration_of(connection_string: str) -> Administration:
    return Administration(find(connection_string=connection_string).requests())


@pytest.fixture(scope="module")
def served() -> Iterator[ServedBroker]:
    with ServedBroker() as broker:
        yield broker


def test_what_the_official_client_makes_is_read(served: ServedBroker) -> None:
    """Req: A-02. Names of settings are those of Config.json in lower case with underscores."""
    with ServiceBusAdministrationClient.from_connection_string(
        served.connection_string, connection_verify=served.ca_file
    ) as official:
        rule = AuthorizationRule(
            type="SharedAccessAuthorizationRule",
            claim_type="SharedAccessKey",
            claim_value="None",
            key_name="worker",
            primary_key="a" * 44,
            secondary_key="b" * 44,
            rights=["Listen"],
        )
        official.create_queue("dead")
        official.create_queue(
            "made/it",
            lock_duration=timedelta(seconds=20),
            enable_partitioning=True,
            max_size_in_megabytes=2048,
            forward_dead_lettered_messages_to="dead",
            authorization_rules=[rule],
            user_metadata="für später",
            status="ReceiveDisabled",
        )
        official.create_topic("news", default_message_time_to_live=timedelta(days=1))
        official.create_subscription("news", "sport", max_delivery_count=3)
        official.create_rule("news", "sport", "goals", filter=SqlRuleFilter("a > @a", {"@a": 3}))
        official.create_rule(
            "news", "sport", "eu", filter=CorrelationRuleFilter(label="x"), action=SqlRuleAction("SET b = 1")
        )
        official.delete_rule("news", "sport", "$Default")
        shown = official.get_queue("made/it")
    found = read_definitions(administration_of(served.connection_string))
    assert found.tier == "standard"
    made = found.entities["made/it"]
    assert isinstance(made, QueueDescription)
    assert (made.max_size_mb, made.forward_dead_lettered_to) == (2048, "dead")
    assert (made.status, made.user_metadata) == (EntityStatus.RECEIVE_DISABLED, "für später")
    [kept] = made.authorization_rules
    assert (kept.name, kept.rights, kept.primary_key, kept.modified_at_ms) == (
        "worker", ("Listen",), "a" * 44, 0
    )  # fmt: skip
    for key, (field, _) in PROPERTIES[QueueDescription].items():
        attribute = getattr(shown, re.sub("(?<!^)([A-Z])", r"_\1", key).lower(), None)
        if isinstance(attribute, int | bool) and key != "MaxSizeInMegabytes":
            assert getattr(made, field) in (attribute, None), key
    assert found.entities["news"] == TopicDescription("news", default_ttl_ms=86_400_000)
    assert found.entities["news/subscriptions/sport"] == SubscriptionDescription(
        "news", "sport", max_delivery_count=3
    )
    rules = {rule.name: (rule.filter, rule.action) for rule in found.rules["news/subscriptions/sport"]}
    sql, correlation = rules["goals"][0], rules["eu"][0]
    assert isinstance(sql, SqlFilter)
    assert (sql.expression, sql.parameters) == ("a > @a", (("@a", 3),))
    assert correlation == CorrelationFilter(label="x")
    assert rules["eu"][1] == SqlAction("SET b = 1")
    assert len(rules) == 2


def test_more_than_a_page_is_read(served: ServedBroker) -> None:
    administration = administration_of(served.connection_string)
    for number in range(205):
        administration.create(QueueDescription(f"many-{number:03}"))
    names = [each.name for each in administration.queues() if each.name.startswith("many-")]
    assert names == [f"many-{number:03}" for number in range(205)]
    assert not administration.create(QueueDescription("many-001"))


def test_an_update_keeps_what_was_read(served: ServedBroker) -> None:
    administration = administration_of(served.connection_string)
    made = QueueDescription("kept", enable_partitioning=True, max_size_mb=3072, requires_session=True)
    step = EntityStep("", made, exists=False)
    administration.carry_out(step)
    changed = QueueDescription(
        "kept", enable_partitioning=True, max_size_mb=4096, requires_session=True, lock_duration_ms=7_000
    )
    administration.carry_out(EntityStep("", changed, exists=True))
    assert isinstance(step(NOWHERE), CreateEntity)
    assert isinstance(EntityStep("", changed, exists=True)(NOWHERE), UpdateEntity)
    assert read_definitions(administration).entities["kept"] == changed


# A service that is busy, cut or something else


class Scripted:
    """Answers of a service, one after another; the last one is repeated."""

    def __init__(self, *replies: Reply | Exception) -> None:
        self.replies = list(replies)
        self.asked: list[tuple[str, str]] = []
        self.pauses: list[float] = []

    def __call__(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        self.asked.append((method, path))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def administration(self) -> Administration:
        return Administration(Requests(self, "the source", self.pauses.append))


INFO = Reply(
    200,
    b'<entry xmlns="a"><title>n</title><content><NamespaceInfo><MessagingSKU>Premium</MessagingSKU>'
    b"<Name>n</Name></NamespaceInfo></content></entry>",
    {},
)


def busy(status: int = 429, retry_after: str = "") -> Reply:
    body = b"<Error><Code>429</Code><Detail>slow &amp; busy</Detail></Error>"
    return Reply(status, body, {"retry-after": retry_after})


def test_a_busy_service_is_asked_again_after_what_it_says() -> None:
    service = Scripted(busy(429, "7"), busy(503), busy(429, "9999"), INFO)
    assert service.administration().info() == ("n", "premium")
    assert service.pauses == [7, 2, 30]


def test_a_service_that_stays_busy_is_named() -> None:
    service = Scripted(busy())
    with pytest.raises(AdministrationError) as refused:
        service.administration().info()
    assert str(refused.value) == (
        "the source refused GET /$namespaceinfo with 429: slow & busy; it is busy after 6 attempts: run the "
        "command again later"
    )
    assert len(service.asked) == ATTEMPTS_MAX
    assert service.pauses == [1, 2, 4, 8, 16]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(401, b"", {}), "the source refused GET /$namespaceinfo with 401: no reason is given; give a"),
        (Reply(200, b"<html/>", {}), "the source does not answer as Service Bus does"),
        (Reply(200, b"{", {}), "The body is not XML"),
        (Reply(200, b"<feed/>", {}), "does not say what tier it has: it is not Service Bus"),
        (Reply(200, b'<!DOCTYPE a [<!ENTITY b "c">]><feed/>', {}), "has a document type"),
    ],
)
def test_what_is_no_administration_is_named(reply: Reply, said: str) -> None:
    with pytest.raises(AdministrationError, match=re.escape(said)):
        Scripted(reply).administration().info()


def test_an_entity_that_cannot_be_read_is_named() -> None:
    content = b"<QueueDescription><Status>Restoring</Status></QueueDescription>"
    feed = b"<feed><entry><title>odd</title><content>" + content + b"</content></entry></feed>"
    with pytest.raises(AdministrationError, match="'odd' of the source cannot be read: The value 'Rest"):
        list(Scripted(Reply(200, feed, {})).administration().queues())


def test_a_tier_that_is_not_known_is_named() -> None:
    gold = Reply(200, INFO.body.replace(b"Premium", b"Gold"), {})
    with pytest.raises(AdministrationError, match="the tier 'gold' of the source is not known"):
        read_definitions(Scripted(gold).administration())


def test_a_namespace_without_topics_is_not_asked_for_them() -> None:
    basic = Reply(200, INFO.body.replace(b"Premium", b"Basic"), {})
    service = Scripted(basic, Reply(200, b"<feed/>", {}))
    assert read_definitions(service.administration()).entities == {}
    assert [path.split("?")[0] for _, path in service.asked] == ["/$namespaceinfo", "/$Resources/queues"]


def test_a_connection_that_is_cut_fails_as_it_is() -> None:
    service = Scripted(INFO, OSError("cut"))
    with pytest.raises(OSError, match="cut"):
        read_definitions(service.administration())
    assert [method for method, _ in service.asked] == ["GET", "GET"]
