"""AuthorizationRules of queues and topics, as a playbook and with the official client."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus.management import AuthorizationRule as OfficialRule
from azure.servicebus.management import ServiceBusAdministrationClient
from hypothesis import given
from hypothesis import strategies as st

from peeklock.admin.api import Pending, Response
from peeklock.admin.authorization_rules import read_authorization_rules, write_authorization_rules
from peeklock.admin.reading import Description
from peeklock.broker.vocabulary.changes import EntityStored
from peeklock.broker.vocabulary.commands import LookUp, UpdateEntity
from peeklock.broker.vocabulary.descriptions import (
    RIGHTS,
    AuthorizationRule,
    QueueDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.effects import EntitiesFound, EntityFound, EntityView, Failed
from peeklock.broker.vocabulary.errors import PreconditionFailed
from tests.admin.asking import CONNECT, NOW_MS, PYTHON_ENTRY, REPLY_TO, Client, detail
from tests.admin.official import refusal
from tests.admin.serving import Served
from tests.admin.strategies import XML_TEXT

RULE = AuthorizationRule("sender", ("Send",), "first key", "second key", NOW_MS, NOW_MS + 1)
WRITTEN = (
    '<AuthorizationRules><AuthorizationRule i:type="SharedAccessAuthorizationRule">'
    "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
    "<Rights><AccessRights>Send</AccessRights></Rights>"
    "<CreatedTime>2024-01-01T00:00:00.500Z</CreatedTime><ModifiedTime>2024-01-01T00:00:00.501Z</ModifiedTime>"
    "<KeyName>sender</KeyName><PrimaryKey>first key</PrimaryKey><SecondaryKey>second key</SecondaryKey>"
    "</AuthorizationRule></AuthorizationRules>"
)
BARE_RULE = (
    "<AuthorizationRule><Rights><AccessRights>Send</AccessRights></Rights><KeyName>{}</KeyName>"
    "</AuthorizationRule>"
)


@pytest.fixture
def asking() -> Client:
    return Client()


def queue(rules: str = "") -> str:
    rules = f"<AuthorizationRules>{rules}</AuthorizationRules>" if rules else ""
    return PYTHON_ENTRY.format(f"<QueueDescription>{rules}</QueueDescription>")


def found(description: Any, updated_at_ms: int = NOW_MS) -> EntityFound:
    return EntityFound(REPLY_TO, EntityView(1, description, NOW_MS, updated_at_ms, 0, 0, 0, 0, 0, 0))


def rules_of(command: Any) -> tuple[AuthorizationRule, ...]:
    rules: tuple[AuthorizationRule, ...] = command.description.authorization_rules
    return rules


def parsed(markup: str) -> tuple[AuthorizationRule, ...]:
    root = f'<x xmlns="{CONNECT[1:-1]}" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{markup}</x>'
    return read_authorization_rules(Description(ElementTree.fromstring(root)), "AuthorizationRules")


# Both ways


@pytest.mark.parametrize("kind", [QueueDescription, TopicDescription])
def test_rules_are_written_in_the_service_s_order(asking: Client, kind: Any) -> None:
    """Req: R-04, A-01. Source: wire contract 7.3."""
    answer = asking.answer("GET", "/orders", effect=found(kind("orders", authorization_rules=(RULE,))))
    assert f"<IsAnonymousAccessible>false</IsAnonymousAccessible>{WRITTEN}<Status>" in answer.body.decode()


@pytest.mark.parametrize(("status", "headers"), [(201, {}), (200, {"if_match": '"1"'})])
def test_the_answer_to_a_put_has_no_times_of_rules(
    asking: Client, status: int, headers: dict[str, str]
) -> None:
    """Req: R-04, A-01. Source: wire contract C16; a list and a look-up have them."""
    about = found(QueueDescription("orders", authorization_rules=(RULE,)))
    body = PYTHON_ENTRY.format(
        "<QueueDescription><RequiresDuplicateDetection>false</RequiresDuplicateDetection>"
        "<RequiresSession>false</RequiresSession><EnablePartitioning>false</EnablePartitioning>"
        "<AuthorizationRules/></QueueDescription>"
    )
    answer = asking.answer("PUT", "/orders", body, effect=about, **headers)
    assert answer.status == status
    assert re.sub("<(Created|Modified)Time>.*</(Created|Modified)Time>", "", WRITTEN) in answer.body.decode()
    listed = EntitiesFound(REPLY_TO, [about.entity], more=False)
    assert WRITTEN in asking.answer("GET", "/$Resources/queues", effect=listed).body.decode()


TEXTS = XML_TEXT.map(str.strip).filter(bool)
RULES = st.builds(
    AuthorizationRule,
    TEXTS,
    st.lists(st.sampled_from(RIGHTS), unique=True).map(tuple),
    TEXTS,
    TEXTS,
)


@given(st.lists(RULES, max_size=5))
def test_what_was_written_is_read(rules: list[AuthorizationRule]) -> None:
    assert parsed(write_authorization_rules(rules, with_times=True)) == tuple(rules)


def test_rules_are_read_whatever_is_left_out(asking: Client) -> None:
    """Fresh keys for those that come without; times are the broker's. Req: R-04"""
    body = queue(WRITTEN.replace("AuthorizationRules>", "x>")[3:-4] + BARE_RULE.format("other"))
    assert rules_of(asking.command("PUT", "/orders", body)) == (
        replace(RULE, created_at_ms=0, modified_at_ms=0),
        AuthorizationRule("other", ("Send",), "fresh key 1", "fresh key 2"),
    )


# Updates


def test_a_rule_that_comes_back_without_keys_keeps_them(asking: Client) -> None:
    """Req: R-04"""
    body = queue(BARE_RULE.format("SENDER") + BARE_RULE.format("other"))
    looking = asking.ask("PUT", "/orders", body, if_match="*")
    assert isinstance(looking, Pending)
    assert isinstance(looking.command, LookUp)
    updating = looking.render(found(QueueDescription("orders", authorization_rules=(RULE,))))
    assert isinstance(updating, Pending)
    assert rules_of(updating.command) == (
        AuthorizationRule("SENDER", ("Send",), "first key", "second key"),
        AuthorizationRule("other", ("Send",), "fresh key 1", "fresh key 2"),
    )


@pytest.mark.parametrize(("element", "kept"), [("", True), ("<AuthorizationRules/>", False)])
def test_an_update_without_the_element_keeps_all_rules_an_empty_one_removes_them(
    asking: Client, element: str, kept: bool
) -> None:
    """Our choice; the official clients send the element always."""
    body = PYTHON_ENTRY.format(f"<QueueDescription>{element}</QueueDescription>")
    looking = asking.ask("PUT", "/orders", body, if_match="*")
    assert isinstance(looking, Pending)
    updating = looking.render(found(QueueDescription("orders", authorization_rules=(RULE,))))
    assert isinstance(updating, Pending)
    assert rules_of(updating.command) == ((RULE,) if kept else ())


def test_an_update_begins_anew_when_somebody_else_was_faster(asking: Client) -> None:
    """A key that was rotated between the look-up and the update must not come back."""
    old = QueueDescription("orders", authorization_rules=(RULE,))
    new = QueueDescription("orders", authorization_rules=(replace(RULE, primary_key="rotated"),))
    step = asking.ask("PUT", "/orders", queue(BARE_RULE.format("sender")), if_match="*")
    for description, updated_at_ms, key in ((old, 1, "first key"), (new, 2, "rotated")):
        assert isinstance(step, Pending)
        assert isinstance(step.command, LookUp)
        step = step.render(found(description, updated_at_ms))
        assert isinstance(step, Pending)
        assert isinstance(step.command, UpdateEntity)
        assert step.command.if_match == (f"1-{updated_at_ms}",)
        assert rules_of(step.command)[0].primary_key == key
        step = step.render(Failed(REPLY_TO, PreconditionFailed("changed since")))
    assert isinstance(step, Pending)


def test_a_client_s_own_condition_is_told_as_failed(asking: Client) -> None:
    looking = asking.ask("PUT", "/orders", queue(BARE_RULE.format("sender")), if_match='"1-1", "1-2"')
    assert isinstance(looking, Pending)
    updating = looking.render(found(QueueDescription("orders", authorization_rules=(RULE,)), 2))
    assert isinstance(updating, Pending)
    assert isinstance(updating.command, UpdateEntity)
    assert updating.command.if_match == ("1-1", "1-2")
    answer = updating.render(Failed(REPLY_TO, PreconditionFailed("changed since")))
    assert isinstance(answer, Response)
    assert answer.status == 412


# Refusals


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("<AuthorizationRule/>", "no KeyName"),
        ('<AuthorizationRule i:type="AllowRule"><KeyName>a</KeyName></AuthorizationRule>', "'AllowRule'"),
        (
            "<AuthorizationRule><ClaimType>nameidentifier</ClaimType><KeyName>a</KeyName></AuthorizationRule>",
            "'nameidentifier'",
        ),
        (
            "<AuthorizationRule><KeyName>a</KeyName><PrimaryKey>s3cret</PrimaryKey>"
            "<PrimaryKey>s3cret</PrimaryKey></AuthorizationRule>",
            "more than one PrimaryKey",
        ),
    ],
)
def test_a_rule_that_cannot_be_read_is_a_400(asking: Client, rule: str, says: str) -> None:
    answer = asking.answer("PUT", "/orders", queue(rule))
    assert answer.status == 400
    assert says in detail(answer)
    assert "s3cret" not in detail(answer) + repr(asking.logged)


def test_a_subscription_has_none(asking: Client) -> None:
    body = PYTHON_ENTRY.format(
        f"<SubscriptionDescription><AuthorizationRules>{BARE_RULE.format('a')}</AuthorizationRules>"
        "</SubscriptionDescription>"
    )
    answer = asking.answer("PUT", "/news/subscriptions/all", body)
    assert answer.status == 400
    assert "those of its topic apply" in detail(answer)


# The official client


def official(name: str, *rights: str, **keys: Any) -> OfficialRule:
    return OfficialRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=list(rights),
        key_name=name,
        **keys,
    )


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_the_official_client_creates_reads_rotates_and_removes(
    client: ServiceBusAdministrationClient, served: Served, kind: str
) -> None:
    """Req: R-04, A-01"""
    create, get, update, listed = (
        getattr(client, f"{verb}_{kind}{'s' if verb == 'list' else ''}")
        for verb in ("create", "get", "update", "list")
    )
    made = create(
        "Orders",
        authorization_rules=[
            official("Owner", "Send", "Listen", "Manage", primary_key="first <&> é", secondary_key="second"),
            official("sender", "Send"),
        ],
    )
    read = get("orders")
    owner, sender = read.authorization_rules
    no_times = {"created_at_utc": None, "modified_at_utc": None}  # in the answer to a PUT: C16
    assert [vars(rule) for rule in made.authorization_rules] == [
        vars(rule) | no_times for rule in (owner, sender)
    ]
    assert (owner.type, owner.claim_type, owner.claim_value) == (
        "SharedAccessAuthorizationRule",
        "SharedAccessKey",
        "None",
    )
    assert (owner.primary_key, owner.secondary_key) == ("first <&> é", "second")
    assert owner.rights == ["Send", "Listen", "Manage"]
    assert len({sender.primary_key, sender.secondary_key}) == 2
    assert len(sender.primary_key) == 44
    assert datetime.now(UTC) - sender.created_at_utc < timedelta(minutes=1)

    sender.primary_key = "rotated"
    update(read)
    [other] = listed()
    rotated = other.authorization_rules[1]
    assert (rotated.primary_key, rotated.secondary_key) == ("rotated", sender.secondary_key)
    assert rotated.created_at_utc == sender.created_at_utc
    assert rotated.modified_at_utc > sender.modified_at_utc
    assert other.authorization_rules[0].modified_at_utc == owner.modified_at_utc

    update(other, authorization_rules=[official("OWNER", "Listen")])
    [only] = get("orders").authorization_rules
    assert (only.key_name, only.rights, only.primary_key) == ("OWNER", ["Listen"], "first <&> é")
    other.authorization_rules = []
    update(other)
    assert not get("orders").authorization_rules
    assert "rotated" not in repr(served.world.logged) + repr(served.world.commands)


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ([official("a", "Manage")], "Send and Listen as well"),
        ([official("a")], "has no rights"),
        ([official("a", "Read")], "'Read'"),
        ([official("a", "Send"), official("A", "Send")], "twice"),
        ([official(f"a{n}", "Send") for n in range(13)], "at most 12"),
        ([official("a", "Send", primary_key="x" * 257)], "primary key"),
    ],
)
def test_the_official_client_is_told_what_is_wrong(
    client: ServiceBusAdministrationClient, rules: list[OfficialRule], says: str
) -> None:
    """Req: R-04"""
    with pytest.raises(HttpResponseError, match=says) as failure:
        client.create_queue("orders", authorization_rules=rules)
    assert refusal(failure) == 400
    assert list(client.list_queues()) == []


def test_a_fact_shows_no_key() -> None:
    assert "key" not in repr(EntityStored(1, QueueDescription("q", authorization_rules=(RULE,)), 0, 0))
