"""Authorization rules of an entity: what they may be, when they were made and changed, who sees the keys."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from peeklock.broker.vocabulary.changes import EntityStored
from peeklock.broker.vocabulary.commands import CreateEntity, UpdateEntity
from peeklock.broker.vocabulary.descriptions import AuthorizationRule, QueueDescription, TopicDescription
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.store.encoding import entities
from tests.broker.harness import START_MS, Broker

SENDER = AuthorizationRule("sender", ("Send",), "first secret", "second secret")
OWNER = AuthorizationRule("Owner", ("Send", "Manage", "Listen"), "a" * 256, "b")


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create(authorization_rules=(SENDER, OWNER))
    return made


def rules_of(broker: Broker, name: str = "orders") -> tuple[AuthorizationRule, ...]:
    return broker.view(name).description.authorization_rules


def at(rule: AuthorizationRule, created_at_ms: int, modified_at_ms: int) -> AuthorizationRule:
    return replace(rule, created_at_ms=created_at_ms, modified_at_ms=modified_at_ms)


def test_a_rule_is_stamped_and_kept_over_a_restart(broker: Broker) -> None:
    """Req: R-04. What a client says of the times does not count."""
    topic = TopicDescription("news", authorization_rules=(at(SENDER, 1, 2),))
    broker.do(CreateEntity(topic, broker.reply_to()))
    broker.restart()
    assert rules_of(broker) == (at(SENDER, START_MS, START_MS), at(OWNER, START_MS, START_MS))
    assert rules_of(broker, "news") == (at(SENDER, START_MS, START_MS),)


def test_rules_are_replaced_as_a_set_and_only_what_changed_is_stamped(broker: Broker) -> None:
    broker.advance(1000)
    other = replace(OWNER, name="other")
    broker.update(authorization_rules=(replace(SENDER, primary_key="rotated"), other))
    now_ms = START_MS + 1000
    assert rules_of(broker) == (
        at(replace(SENDER, primary_key="rotated"), START_MS, now_ms),
        at(other, now_ms, now_ms),
    )


def test_rules_that_come_back_as_they_are_write_nothing(broker: Broker) -> None:
    broker.advance(1000)
    before = len(broker.facts)
    broker.update(authorization_rules=rules_of(broker))
    broker.update(authorization_rules=(SENDER, OWNER))
    assert len(broker.facts) == before
    assert broker.view().updated_at_ms == START_MS


def test_a_change_of_rules_leaves_locks_alone(broker: Broker) -> None:
    """Req: L-12"""
    broker.send()
    [delivery] = broker.receive()
    broker.update(authorization_rules=())
    broker.complete(delivery)


@pytest.mark.parametrize("count", [12, 13])
def test_an_entity_has_at_most_twelve(count: int) -> None:
    broker = Broker()
    rules = tuple(replace(SENDER, name=f"rule{n}") for n in range(count))
    command = CreateEntity(QueueDescription("orders", authorization_rules=rules), broker.reply_to())
    if count > 12:
        assert "at most 12" in str(broker.refused(command))
        assert not broker.facts
    else:
        broker.do(command)
        assert len(rules_of(broker)) == 12


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": ""}, "0 characters"),
        ({"name": "x" * 257}, "257 characters"),
        ({"name": "OWNER"}, "twice"),
        ({"name": "half \ud800"}, "surrogate"),
        ({"rights": ()}, "has no rights"),
        ({"rights": ("Send", "Send")}, "a right twice"),
        ({"rights": ("Read",)}, "'Read'"),
        ({"rights": ("Manage",)}, "Send and Listen as well"),
        ({"rights": ("Manage", "Send")}, "Send and Listen as well"),
        ({"primary_key": ""}, "primary key"),
        ({"primary_key": "secret" * 50}, "primary key"),
        ({"secondary_key": ""}, "secondary key"),
        ({"secondary_key": "secret" * 50}, "secondary key"),
    ],
)
def test_a_wrong_rule_is_refused_and_nothing_changes(
    broker: Broker, change: dict[str, Any], says: str
) -> None:
    rules = (replace(SENDER, **change), OWNER)
    before = len(broker.facts)
    for command in (
        UpdateEntity(QueueDescription("orders", authorization_rules=rules), broker.reply_to()),
        CreateEntity(QueueDescription("new", authorization_rules=rules), broker.reply_to()),
    ):
        refusal = broker.refused(command)
        assert type(refusal) is ArgumentInvalid
        assert says in str(refusal)
        assert "secret" not in str(refusal)
    assert len(broker.facts) == before


def test_no_repr_has_a_key(broker: Broker) -> None:
    """Req: R-04"""
    for shown in (broker.view(), broker.facts, broker.view().description):
        assert "sender" in repr(shown)
        assert "secret" not in repr(shown)


def test_the_event_log_gets_names_and_rights_and_no_key() -> None:
    broker = Broker(captures_body=lambda name: False)
    broker.create(authorization_rules=(SENDER,))
    [settings] = [event.reason for event in broker.events if event.reason]
    assert json.loads(settings)["authorization_rules"] == [{"name": "sender", "rights": ["Send"]}]
    assert "secret" not in repr(broker.events)


def test_a_definition_is_read_as_it_was_written() -> None:
    stored = EntityStored(7, QueueDescription("orders", authorization_rules=(at(SENDER, 1, 2), OWNER)), 3, 4)
    assert entities.decode(entities.key_of(7), entities.encode(stored)) == stored
