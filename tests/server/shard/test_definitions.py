"""What became of entities and rules is told in the log, whoever asked for it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from peeklock.broker.namespace import Namespace
from peeklock.broker.vocabulary.changes import Change, EntityRemoved, EntityStored, RuleStored
from peeklock.broker.vocabulary.commands import (
    AddRule,
    Command,
    CreateEntity,
    DeleteEntity,
    LockToken,
    RemoveRule,
    ReplyTo,
    UpdateEntity,
    UpdateRule,
)
from peeklock.broker.vocabulary.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.quotas import STANDARD
from peeklock.rules.filters import CorrelationFilter, FalseFilter, SqlAction, SqlFilter
from peeklock.server.line_limits import WINDOW_MS
from peeklock.server.shard.definitions import DEFINITIONS, LINES_MAX, DefinitionLog

REPLY_TO = ReplyTo(0, 0, 1)
ALL = "news/Subscriptions/all"


@pytest.fixture(autouse=True)
def _information(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "peeklock")


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[object, ...]]:
    """Return the event and the values of its fields of each line so far, and forget them."""
    lines: list[Any] = [*caplog.records]
    caplog.clear()
    return [(line.getMessage(), *line.fields.values()) for line in lines]


def changes(namespace: Namespace, *commands: Command) -> list[Change]:
    found = [change for command in commands for change in namespace.apply(command, 1)[0]]
    return [change for change in found if type(change) in DEFINITIONS]


def test_each_change_of_an_entity_or_rule_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    namespace = Namespace(limits=STANDARD, tokens=lambda: LockToken(b""), digest_key=b"")
    definitions = DefinitionLog()
    facts = changes(namespace, CreateEntity(QueueDescription("before"), REPLY_TO))
    definitions.take(facts, 1)
    assert told(caplog) == []  # a start is told as a whole

    definitions.begin(namespace.entity_views())
    definitions.take(
        changes(
            namespace,
            UpdateEntity(QueueDescription("before", max_delivery_count=3), REPLY_TO),
            CreateEntity(TopicDescription("news"), REPLY_TO),
            CreateEntity(SubscriptionDescription("news", "all"), REPLY_TO),
            AddRule(ALL, RuleDescription("r", SqlFilter("x = 1"), SqlAction("SET y = 2")), REPLY_TO),
            UpdateRule(ALL, RuleDescription("r", FalseFilter()), REPLY_TO),
            UpdateRule(ALL, RuleDescription("r", CorrelationFilter(label="ü")), REPLY_TO),
            UpdateRule(ALL, RuleDescription("r", SqlFilter(f"x = '{'y' * 195}'")), REPLY_TO),
            UpdateRule(ALL, RuleDescription("r", SqlFilter(f"x = '{'y' * 194}'")), REPLY_TO),
            RemoveRule(ALL, "R", REPLY_TO),
        ),
        now_ms=1,
    )
    assert told(caplog) == [
        ("entity changed", "queue", "before"),
        ("entity created", "topic", "news"),
        ("entity created", "subscription", ALL),
        ("rule set", ALL, "$Default", "True"),
        ("rule set", ALL, "r", "x = 1", "SET y = 2"),
        ("rule set", ALL, "r", "False"),
        ("rule set", ALL, "r", '{"Label": "ü"}'),
        ("rule set", ALL, "r", f"x = '{'y' * 195}..."),
        ("rule set", ALL, "r", f"x = '{'y' * 194}'"),
        ("rule removed", ALL, "r"),
    ]
    definitions.take(
        changes(namespace, DeleteEntity("news", REPLY_TO), DeleteEntity("before", REPLY_TO)), now_ms=1
    )
    assert told(caplog) == [
        ("entity deleted", "subscription", ALL),
        ("entity deleted", "topic", "news"),
        ("entity deleted", "queue", "before"),
    ]


def test_an_entity_that_was_idle_for_too_long_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """Req: A-03."""
    namespace = Namespace(limits=STANDARD, tokens=lambda: LockToken(b""), digest_key=b"")
    changes(namespace, CreateEntity(QueueDescription("reply", auto_delete_on_idle_ms=300_000), REPLY_TO))
    definitions = DefinitionLog()
    definitions.begin(namespace.entity_views())
    definitions.take(namespace.advance(400_000)[0], 1)
    assert told(caplog) == [("entity deleted", "queue", "reply")]


def test_an_entity_that_goes_while_the_broker_starts_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """Its removal was decided before the log knew of it, and is durable after."""
    namespace = Namespace(limits=STANDARD, tokens=lambda: LockToken(b""), digest_key=b"")
    changes(namespace, CreateEntity(QueueDescription("q"), REPLY_TO))
    facts = changes(namespace, DeleteEntity("q", REPLY_TO))
    definitions = DefinitionLog()
    definitions.begin(namespace.entity_views())
    definitions.take(facts, 1)
    assert told(caplog) == []


def test_a_client_that_changes_rules_in_a_loop_does_not_bury_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Req: R-05. What was left out is counted, and told once the window is over."""
    rule = RuleStored(1, RuleDescription("r"))
    definitions = DefinitionLog()
    definitions.begin([])
    definitions.take([EntityStored(1, SubscriptionDescription("news", "all"), 0, 0)], 1_000)
    definitions.take([rule] * LINES_MAX, 2_000)
    definitions.take([EntityRemoved(1)], 3_000)
    assert told(caplog)[1:] == [("rule set", ALL, "r", "True")] * (LINES_MAX - 1)
    definitions.tick(1_000 + WINDOW_MS - 1)
    assert told(caplog) == []
    definitions.tick(1_000 + WINDOW_MS)
    definitions.tick(1_000 + WINDOW_MS)
    left_out = ("lines about entities and rules left out", 2)
    assert told(caplog) == [left_out]

    definitions.take([EntityStored(1, QueueDescription("q"), 0, 0)] * (LINES_MAX + 2), 200_000)
    caplog.clear()
    definitions.take([EntityRemoved(1)], 200_000 + WINDOW_MS)
    assert told(caplog) == [left_out, ("entity deleted", "queue", "q")]
