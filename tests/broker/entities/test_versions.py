"""Changes under the condition that what is changed is still as it was read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peeklock.broker.vocabulary.commands import (
    DeleteEntity,
    FindRule,
    IfMatch,
    RemoveRule,
    UpdateEntity,
    UpdateRule,
)
from peeklock.broker.vocabulary.descriptions import RuleDescription
from peeklock.broker.vocabulary.effects import Done, EntityFound, RulesFound
from peeklock.broker.vocabulary.errors import EntityNotFound, PreconditionFailed, RuleNotFound
from peeklock.rules.filters import SqlFilter
from tests.broker.harness import Broker

SUBSCRIPTION = "news/Subscriptions/all"


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create()
    made.create_topic()
    made.subscribe("all")
    return made


def update(broker: Broker, if_match: IfMatch, note: str) -> UpdateEntity:
    about = replace(broker.view().description, user_metadata=note)
    return UpdateEntity(about, broker.reply_to(), if_match)


def test_an_entity_is_changed_once_under_the_version_that_was_read(broker: Broker) -> None:
    """Req: A-01. Also within one millisecond."""
    read = broker.view().version
    changed = broker.one(update(broker, ("other", read), "first"), EntityFound).entity
    assert changed.version != read
    assert type(broker.refused(update(broker, (read,), "second"))) is PreconditionFailed
    assert broker.view().description.user_metadata == "first"
    broker.one(update(broker, (changed.version,), "third"), EntityFound)
    broker.restart()
    assert broker.view().version not in (read, changed.version)


def test_two_updates_in_one_millisecond_have_two_times(broker: Broker) -> None:
    broker.advance(60_000)
    broker.update(user_metadata="late")
    late = broker.view()
    broker.update(user_metadata="later")
    assert broker.view().updated_at_ms == late.updated_at_ms + 1
    assert broker.view().version != late.version


def test_an_entity_is_deleted_only_as_it_was_read(broker: Broker) -> None:
    """Req: A-01"""
    read = broker.view().version
    broker.update(user_metadata="changed")
    assert type(broker.refused(DeleteEntity("orders", broker.reply_to(), (read,)))) is PreconditionFailed
    assert type(broker.refused(DeleteEntity("orders", broker.reply_to(), ()))) is PreconditionFailed
    broker.one(DeleteEntity("ORDERS", broker.reply_to(), (broker.view().version,)), Done)
    broker.create()
    assert broker.view().version != read
    assert type(broker.refused(DeleteEntity("none", broker.reply_to(), (read,)))) is EntityNotFound


def test_a_rule_is_changed_and_removed_only_as_it_was_read(broker: Broker) -> None:
    """Req: A-01. 1 and 1.0 are equal, but not to a filter."""

    def found() -> RuleDescription:
        [rule] = broker.one(FindRule(SUBSCRIPTION, "$default", broker.reply_to()), RulesFound).rules
        return rule

    def change(value: float, *if_match: str) -> UpdateRule:
        rule = RuleDescription("$Default", SqlFilter("n = @n", (("@n", value),)))
        return UpdateRule(SUBSCRIPTION, rule, broker.reply_to(), if_match)

    first = found().version
    broker.one(change(1, first), RulesFound)
    second = found().version
    assert type(broker.refused(change(1.0, first))) is PreconditionFailed
    broker.one(change(1.0, second), RulesFound)
    assert len({first, second, found().version}) == 3
    assert type(broker.refused(RemoveRule(SUBSCRIPTION, "$Default", broker.reply_to(), (second,)))) is (
        PreconditionFailed
    )
    assert (
        type(broker.refused(RemoveRule(SUBSCRIPTION, "none", broker.reply_to(), (second,)))) is RuleNotFound
    )
    broker.one(RemoveRule(SUBSCRIPTION, "$Default", broker.reply_to(), (found().version,)), Done)
