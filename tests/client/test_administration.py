"""The administration of the client, against a broker; the official client is the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from azure.servicebus.management import CorrelationRuleFilter, SqlRuleAction, SqlRuleFilter

from peeklock.admin import elements
from peeklock.client.administration import Administration
from peeklock.client.connection_string import ConnectionString
from peeklock.client.durations import UNLIMITED, iso_duration, parse_duration, short_duration
from peeklock.client.entities import ELEMENTS, SETTINGS, Entity, Kind, Value, subscription_path
from peeklock.client.requests import AdministrationError
from peeklock.client.rules import Correlation, Rule, Sql, Typed
from peeklock.testing.served import ServedBroker
from tests.client.test_credentials import Credential, issuer, process
from tests.client.test_credentials import settings as web_settings

__all__ = ["issuer", "process"]


@pytest.fixture(scope="module")
def ours(broker: ServedBroker) -> Administration:
    return Administration.of(ConnectionString.parse(broker.connection_string))


def test_the_settings_are_the_broker_s_in_its_order() -> None:
    tables = {
        "queue": elements.QUEUE_ELEMENTS,
        "topic": elements.TOPIC_ELEMENTS,
        "subscription": elements.SUBSCRIPTION_ELEMENTS,
    }
    for kind, rows in tables.items():
        assert [row.element for row in rows if isinstance(row, elements.Setting)] == [*ELEMENTS[kind]]  # type: ignore[index]  # a kind is a literal
    assert {name for names in ELEMENTS.values() for name in names} - {"AuthorizationRules"} == set(SETTINGS)
    for kept in elements.KEPT.values():
        for name in kept:
            assert name == "AuthorizationRules" or SETTINGS[name].fixed


_VALUES: dict[str, Value] = {
    "LockDuration": timedelta(seconds=30),
    "MaxSizeInMegabytes": 2048,
    "RequiresDuplicateDetection": True,
    "RequiresSession": True,
    "DefaultMessageTimeToLive": timedelta(days=14, hours=1, seconds=1.5),
    "DeadLetteringOnMessageExpiration": True,
    "DeadLetteringOnFilterEvaluationExceptions": False,
    "DuplicateDetectionHistoryTimeWindow": timedelta(minutes=1),
    "MaxDeliveryCount": 3,
    "Status": "SendDisabled",
    "ForwardDeadLetteredMessagesTo": "target",
    "UserMetadata": "a <note> & more",
    "AutoDeleteOnIdle": timedelta(hours=1),
}


@pytest.mark.parametrize("kind", ["queue", "topic", "subscription"])
def test_settings_go_both_ways_and_an_update_keeps_the_others(
    ours: Administration, administration: Any, kind: Kind
) -> None:
    """Req: A-01."""
    for path, other in (("target", "queue"), ("parent", "topic")):
        if ours.entity(path) is None:
            ours.create(other, path, {})  # type: ignore[arg-type]  # a literal
    path = subscription_path("parent", "sub") if kind == "subscription" else f"all-{kind}"
    given = {name: value for name, value in _VALUES.items() if name in ELEMENTS[kind]}
    if kind == "subscription":
        given["Status"] = "ReceiveDisabled"
    made = ours.create(kind, path, given)
    assert {name: made.settings[name] for name in given} == given
    found = ours.entity(path)
    assert found == made
    assert found is not None
    updated = ours.update(found, {"UserMetadata": "", "DefaultMessageTimeToLive": UNLIMITED})
    assert "UserMetadata" not in updated.settings
    assert {**updated.settings, "UserMetadata": given["UserMetadata"]} == {
        **made.settings,
        "DefaultMessageTimeToLive": UNLIMITED,
    }
    listed: dict[Kind, Callable[[], Iterator[Entity]]] = {
        "queue": ours.queues,
        "topic": ours.topics,
        "subscription": partial(ours.subscriptions, "parent"),
    }
    assert updated.path in [each.path for each in listed[kind]()]
    ours.delete(path)
    assert ours.entity(path) is None


def test_an_update_keeps_the_keys_of_an_entity(ours: Administration, administration: Any) -> None:
    from azure.servicebus.management import AccessRights, AuthorizationRule

    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[AccessRights.SEND],
        key_name="web",
        primary_key="A" * 43 + "=",
        secondary_key="B" * 43 + "=",
    )
    administration.create_queue("keyed", authorization_rules=[rule])
    found = ours.entity("keyed")
    assert found is not None
    ours.update(found, {"MaxDeliveryCount": 5})
    [kept] = administration.get_queue("keyed").authorization_rules
    assert (kept.key_name, kept.primary_key) == ("web", "A" * 43 + "=")


def test_figures_are_those_of_the_official_client(
    ours: Administration, administration: Any, client: Any
) -> None:
    """Req: A-01."""
    from azure.servicebus import ServiceBusMessage

    administration.create_queue("counted")
    with client.get_queue_sender("counted") as sender:
        sender.send_messages([ServiceBusMessage("x" * 100) for _ in range(3)])
    found = ours.entity("counted")
    official = administration.get_queue_runtime_properties("counted")
    assert found is not None
    assert (found.messages, found.counts["ActiveMessageCount"], found.size_bytes) == (
        3,
        3,
        official.size_in_bytes,
    )


def test_rules_go_both_ways(ours: Administration, administration: Any) -> None:
    """Req: A-01."""
    ours.create("topic", "ruled", {})
    first = Rule("first", Sql("a = @p", (("@p", Typed("5", "int")),)), Sql("SET b = 1 & 2 <> 3"))
    ours.create("subscription", "ruled/Subscriptions/s", {}, Rule("first", Sql("a < 1 AND b > 2")))
    assert [rule.name for rule in ours.rules("ruled", "s")] == ["first"]
    first = Rule("first", Sql("a = @p", (("@p", Typed("5", "int")),)), Sql("SET b = 1"))
    ours.update_rule("ruled", "s", first)
    rules = [
        first,
        Rule("all", True),
        Rule("none", False),
        Rule(
            "same",
            Correlation(
                (("CorrelationId", "c"), ("Label", "<paid>")),
                (
                    ("n", Typed("5", "long")),
                    ("t", Typed("2020-01-01T00:00:00Z", "dateTime")),
                    ("x", Typed("y")),
                ),
            ),
        ),
    ]
    for rule in rules[1:]:
        ours.create_rule("ruled", "s", rule)
    for rule in rules:
        found = ours.rule("ruled", "s", rule.name)
        assert found is not None
        assert (found.filter, found.action) == (rule.filter, rule.action)
    official = administration.get_rule("ruled", "s", "same").filter
    assert isinstance(official, CorrelationRuleFilter)
    assert (official.label, (official.properties or {})["n"]) == ("<paid>", 5)
    other = SqlRuleFilter("x = @a", parameters={"@a": "text"})
    administration.create_rule("ruled", "s", "theirs", filter=other, action=SqlRuleAction("SET q = 2"))
    theirs = ours.rule("ruled", "s", "theirs")
    assert theirs is not None
    assert (theirs.filter, theirs.action) == (Sql("x = @a", (("@a", Typed("text")),)), Sql("SET q = 2"))
    ours.delete_rule("ruled", "s", "theirs")
    assert ours.rule("ruled", "s", "theirs") is None


def test_long_lists_come_in_pages(ours: Administration) -> None:
    for number in range(120):
        ours.create("queue", f"many/{number:03}", {})
    assert len([each for each in ours.queues() if each.path.startswith("many/")]) == 120


def test_refusals_have_their_status_and_reason(ours: Administration) -> None:
    with pytest.raises(AdministrationError, match="LockDuration") as raised:
        ours.create("queue", "locked", {"LockDuration": timedelta(hours=1)})
    assert raised.value.status == 400
    with pytest.raises(AdministrationError, match="could not be found"):
        ours.delete("nowhere")
    with pytest.raises(ValueError, match="a topic has no setting LockDuration"):
        ours.create("topic", "t", {"LockDuration": timedelta(seconds=5)})


def test_web_tokens_and_rights(process: Any, issuer: Any) -> None:
    """Req: R-04."""
    boss = Administration.of(web_settings(process, Credential(issuer, "boss")))
    assert [each.path for each in boss.queues()] == ["orders"]
    worker = Administration.of(web_settings(process, Credential(issuer, "worker")))
    with pytest.raises(AdministrationError, match="a connection string whose key has Manage"):
        list(worker.queues())


def test_over_tls(broker: ServedBroker) -> None:
    """Req: T-11."""
    text = broker.connection_string.replace("UseDevelopmentEmulator=true;", "")
    trusting = Administration.of(ConnectionString.parse(text, ca_file=broker.ca_file))
    assert trusting.entity("nothing-here") is None
    with pytest.raises(OSError, match="certificate verify failed"):
        list(Administration.of(ConnectionString.parse(text)).queues())


@pytest.mark.parametrize(
    ("text", "iso", "short"),
    [
        ("5m", "PT5M", "5m"),
        ("1h30m", "PT1H30M", "1h30m"),
        ("PT90M", "PT1H30M", "1h30m"),
        ("7d", "P7D", "7d"),
        ("1d1.5s", "P1DT1.5S", "1d1.5s"),
        ("0s", "PT0S", "0s"),
        ("never", "P10675199DT2H48M5.4775807S", "never"),
        ("P10675199DT2H48M5.4775807S", "P10675199DT2H48M5.4775807S", "never"),
    ],
)
def test_spans_of_time(text: str, iso: str, short: str) -> None:
    assert iso_duration(parse_duration(text)) == iso
    assert short_duration(parse_duration(text)) == short


@pytest.mark.parametrize("text", ["", "5", "m", "P", "PT", "5x", "-5m", "1m1h", "99999999d"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="span"):
        parse_duration(text)
