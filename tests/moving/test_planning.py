"""The plan of an import: steps from what is there, and how they are shown.

Req: A-02.
"""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest

from peeklock.broker.vocabulary.descriptions import (
    AuthorizationRule,
    Description,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.cli.namespaces import _properties, create_namespace
from peeklock.config.file import Config, EntityConfig, parse_config
from peeklock.config.form import ConfigError
from peeklock.config.hosts import HostNames
from peeklock.config.reconcile import EntityStep
from peeklock.moving.definitions import Definitions, as_source
from peeklock.moving.planning import Plan, plan
from peeklock.rules.filters import FalseFilter


def there(*entities: Description, **rules: tuple[RuleDescription, ...]) -> Definitions:
    found = {each.name.lower(): each for each in entities}
    return Definitions(
        "there", "standard", found, {f"t/subscriptions/{key}": of for key, of in rules.items()}
    )


def config(**namespace: Any) -> Config:
    given = {"UserConfig": {"Namespaces": [{"Name": "ns", **namespace}]}}
    return parse_config(json.dumps(given).encode())[0]


def planned(wanted: Config, present: Definitions) -> Plan:
    numbers = count(1)
    return plan(wanted, present, HostNames(), lambda: f"key {next(numbers)}")


def test_each_step_has_a_line_and_changes_name_their_settings() -> None:
    rule = {"Name": "r", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "a = 1"}}}
    wanted = config(
        Queues=[
            {"Name": "new"},
            {"Name": "old", "Properties": {"LockDuration": "PT5S", "MaxDeliveryCount": 3}},
            {"Name": "same", "Properties": {"ForwardTo": "sb://elsewhere/old"}},
        ],
        Topics=[
            {
                "Name": "t",
                "Subscriptions": [{"Name": "none", "Rules": "None"}, {"Name": "s", "Rules": [rule]}],
            }
        ],
    )
    present = there(
        QueueDescription("old"),
        QueueDescription("same", forward_to="old"),
        TopicDescription("T"),
        SubscriptionDescription("T", "s"),
        s=(RuleDescription("R", FalseFilter()),),
    )
    made = planned(wanted, present)
    assert sorted(made.lines()) == [
        "change  queue         old  (LockDuration, MaxDeliveryCount)",
        "change  rule          t/Subscriptions/s r",
        "create  queue         new",
        "create  subscription  t/Subscriptions/none",
        "plan: 1 queue to create, 1 subscription to create, 1 queue to change, 1 rule to change, 2 agree "
        "already",
        "remove  rule          t/Subscriptions/none $Default",
    ]


def test_a_circle_of_forwards_is_closed_at_the_end() -> None:
    wanted = config(
        Queues=[
            {"Name": "a", "Properties": {"ForwardTo": "b"}},
            {"Name": "b", "Properties": {"ForwardTo": "a"}},
        ]
    )
    lines = list(planned(wanted, there()).lines())
    assert len(lines) == 4
    assert lines[2].endswith("(its forwards)")
    assert lines[3] == "plan: 2 queues to create, 0 agree already"


def test_what_was_done_is_not_done_again() -> None:
    wanted = config(Queues=[{"Name": "a"}, {"Name": "b"}, {"Name": "c"}])
    steps = planned(wanted, there()).steps
    assert len(steps) == 3
    [first, *_] = steps
    assert isinstance(first, EntityStep)
    rest = planned(wanted, there(first.description))
    assert rest.steps == steps[1:]
    assert rest.agreeing == 1


def test_authorization_rules_get_keys_and_stay_beside_the_existing_ones() -> None:
    rules = (AuthorizationRule("new", ("Send",), "", ""), AuthorizationRule("Old", ("Send",), "", ""))
    entity = EntityConfig("x", QueueDescription("q"), {"authorization_rules": rules})
    old = AuthorizationRule("old", ("Listen",), "p", "s")
    other = AuthorizationRule("other", ("Listen",), "p", "s")
    present = there(QueueDescription("q", authorization_rules=(old, other)))
    made = planned(Config("ns", (entity,)), present)
    [step] = made.steps
    assert isinstance(step, EntityStep)
    assert step.description.authorization_rules == (
        other,
        AuthorizationRule("new", ("Send",), "key 1", "key 2"),
        AuthorizationRule("Old", ("Send",), "p", "s"),
    )
    assert "(AuthorizationRules)" in next(made.lines())
    again = planned(Config("ns", (entity,)), there(step.description))
    assert again.steps == ()


def test_a_subscription_needs_its_topic() -> None:
    entity = EntityConfig("resources[3]", SubscriptionDescription("t", "s"), {})
    with pytest.raises(ConfigError, match=r"resources\[3\]: its topic 't' is neither here nor in the target"):
        planned(Config("ns", (entity,)), there())
    assert len(planned(Config("ns", (entity,)), there(TopicDescription("T"))).steps) == 1


def test_what_cannot_be_changed_is_named() -> None:
    wanted = config(Queues=[{"Name": "q", "Properties": {"RequiresSession": True}}, {"Name": "t"}])
    with pytest.raises(ConfigError) as refused:
        planned(wanted, there(QueueDescription("q"), TopicDescription("t")))
    assert len(refused.value.problems) == 2


def test_a_namespace_agrees_with_itself() -> None:
    rules = AuthorizationRule("r", ("Send",), "p", "s")
    present = there(
        QueueDescription("q", forward_to="t", max_size_mb=5120, authorization_rules=(rules,)),
        TopicDescription("t", enable_partitioning=True, support_ordering=False),
        SubscriptionDescription("t", "none"),
        SubscriptionDescription("t", "s"),
        none=(),
        s=(RuleDescription("$Default"),),
    )
    found = as_source(present)
    assert planned(found.configs[0], present).steps == ()
    assert found.configs[0].limits.tier == "standard"
    steps = planned(found.configs[0], there()).steps
    made = {step.description.name: step.description for step in steps if isinstance(step, EntityStep)}
    assert made == {each.name: each for each in present.entities.values()}


def test_limits_of_the_namespace_are_noted() -> None:
    limits = {"Tier": "Premium", "MaxConnections": 5, "HostNames": ["a.example"]}
    assert planned(config(Properties=limits), there()).notes == (
        "the tier: the source has Premium, the target Standard",
        "the limits HostNames, MaxConnections of the namespace",
        'a namespace gets these when it is created or the broker starts: put {"Tier": "Premium", '
        '"HostNames": ["a.example"], "MaxConnections": 5} into the Properties of the namespace in the '
        "Config.json of the target, and restart it; or import into a new one, of `peeklock namespaces create "
        "NAME --tier Premium --host-name a.example --max-connections 5`",
    )
    assert planned(config(Properties={"Tier": "Standard"}), there()).notes == ()


def test_what_is_said_to_do_about_limits_is_what_the_command_takes() -> None:
    """Each of the `Properties` of a namespace has its option of `peeklock namespaces create`."""
    limits = {
        "Tier": "Premium",
        "HostNames": ["a.example", "b.example"],
        "MaxConnections": 5,
        "MaxSizeInMegabytes": 6,
        "MaxMessagesPerSecond": 7,
    }
    note = planned(config(Properties=limits), there()).notes[-1]
    assert json.dumps(limits) in note
    arguments = note.split("namespaces create ")[1].rstrip("`").split()
    given = create_namespace.make_context("create", arguments).params
    assert (
        _properties(
            given["tier"],
            given["host_names"],
            given["max_connections"],
            given["max_size_mb"],
            given["max_messages_per_second"],
        )
        == limits
    )
