"""Files of other tools as configurations: ARM templates as Bicep and Azure write them, a state of Terraform,
and mistakes in them.

Req: A-02.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.broker.vocabulary.descriptions import (
    AuthorizationRule,
    Description,
    EntityStatus,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.config.file import Config
from peeklock.config.form import ConfigError
from peeklock.rules.filters import CorrelationFilter, SqlAction, SqlFilter
from peeklock.templates.found import Found
from peeklock.templates.sources import read_source

FILES = Path(__file__).parent / "files"

DAY_MS = 86_400_000


def read(name: str, **parameters: str) -> Found:
    return read_source((FILES / name).read_bytes(), parameters)


def descriptions(config: Config) -> list[Description]:
    return [entity.description for entity in config.entities]


def rules(config: Config) -> dict[str, list[RuleDescription]]:
    return {
        entity.name: [each.rule for each in entity.rules]
        for entity in config.entities
        if entity.rules is not None
    }


def test_a_classic_template_with_children_and_a_loop() -> None:
    found = read("classic.json", busName="bus")
    [config] = found.configs
    assert (config.namespace, config.limits.tier) == ("bus", "standard")
    worker = AuthorizationRule("worker", ("Listen",), "", "")
    assert sorted(descriptions(config), key=lambda each: each.name) == [
        QueueDescription("invoices", lock_duration_ms=30_000, max_delivery_count=4),
        TopicDescription("news-sport", default_ttl_ms=14 * DAY_MS),
        SubscriptionDescription(
            "news-sport", "goals", forward_to="orders", dead_lettering_on_filter_errors=False
        ),
        QueueDescription(
            "orders", lock_duration_ms=30_000, max_delivery_count=3, authorization_rules=(worker,)
        ),
    ]
    wanted = RuleDescription("few", SqlFilter("goals > 3"), SqlAction("SET sys.Label = 'few'"))
    assert rules(config) == {"news-sport/Subscriptions/goals": [wanted]}
    assert found.notes == (
        "resources[0].resources[1]: the key 'app' of the namespace is not imported; make one with "
        "`peeklock keys add DIR app --rights Send,Listen`",
        "resources[3]: left out, since its condition is not true",
    )


def test_what_bicep_compiles_with_symbolic_names_a_loop_and_a_module() -> None:
    found = read("bicep.json")
    [config] = found.configs
    assert config.namespace == "bus-<uniqueString(resourceGroup().id)>"
    assert config.limits.tier == "premium"
    assert descriptions(config) == [
        QueueDescription("orders", requires_session=True, max_message_size_kb=2048),
        QueueDescription("a/b", max_message_size_kb=2048),
        TopicDescription("events", requires_duplicate_detection=True, duplicate_window_ms=300_000),
        SubscriptionDescription("events", "eu", dead_lettering_on_expiration=True),
        SubscriptionDescription("events", "us", dead_lettering_on_expiration=True),
    ]
    assert rules(config) == {
        f"events/Subscriptions/{label}": [
            RuleDescription("region", CorrelationFilter(label=label, properties=(("kind", "sale"),)))
        ]
        for label in ("eu", "us")
    }
    assert [entity.path for entity in config.entities] == [
        "resources.queue#0",
        "resources.queue#1",
        "resources.events.properties.template.resources[0]",
        "resources.events.properties.template.resources[1]#0",
        "resources.events.properties.template.resources[1]#1",
    ]
    assert found.notes == (
        "resources.bus.properties.disableLocalAuth: is not offered for a namespace",
        "resources.other: Microsoft.KeyVault/vaults 'vault' is not a resource of Service Bus",
        "resources.network: Microsoft.ServiceBus/namespaces/networkRuleSets "
        "'bus-<uniqueString(resourceGroup().id)>/default' is not offered",
    )


def test_what_azure_exports_is_read_as_it_was_set() -> None:
    found = read("exported.json")
    [config] = found.configs
    assert found.notes == ()
    assert descriptions(config) == [
        TopicDescription("sales", enable_partitioning=True, support_ordering=False),
        SubscriptionDescription(
            "sales", "all", status=EntityStatus.DISABLED, dead_lettering_on_filter_errors=False
        ),
    ]
    assert rules(config) == {"sales/Subscriptions/all": [RuleDescription("$Default")]}


def test_a_state_of_terraform_with_the_keys_of_its_entities() -> None:
    found = read("state.json")
    [config] = found.configs
    assert (config.namespace, config.limits.tier) == ("shop-bus", "standard")
    worker = AuthorizationRule("worker", ("Listen",), "Zmlyc3Qta2V5", "c2Vjb25kLWtleQ==")
    assert descriptions(config) == [
        QueueDescription(
            "orders",
            lock_duration_ms=45_000,
            max_size_mb=2048,
            requires_session=True,
            default_ttl_ms=7_200_000,
            dead_lettering_on_expiration=True,
            max_delivery_count=7,
            authorization_rules=(worker,),
        ),
        TopicDescription("news", max_size_mb=5120, enable_partitioning=True, support_ordering=False),
        SubscriptionDescription(
            "news",
            "sport",
            forward_dead_lettered_to="orders",
            max_delivery_count=3,
            dead_lettering_on_filter_errors=False,
        ),
    ]
    assert rules(config) == {
        "news/Subscriptions/sport": [
            RuleDescription("goals", SqlFilter("goals > 3"), SqlAction("SET sys.Label = 'goal'")),
            RuleDescription("region", CorrelationFilter(label="sport", properties=(("region", "eu"),))),
        ]
    }
    assert config.entities[0].path == 'module.queues.azurerm_servicebus_queue.queue["orders"]'
    assert found.notes == (
        "azurerm_servicebus_namespace_authorization_rule.app: the key 'app' of the namespace is not "
        "imported; make one with `peeklock keys add DIR app --rights Send,Listen`",
        "azurerm_servicebus_namespace_network_rule_set.rules: is not offered",
    )


# Parameters


def test_a_parameters_file_and_the_command_line_give_values_which_win_in_this_order() -> None:
    data = (FILES / "classic.json").read_bytes()
    file = {
        "parameters": {"busName": {"value": "file"}, "lock": {"value": "PT10S"}, "sku": {"value": "Basic"}}
    }
    texts = {"lock": "PT20S", "queueNames": '["orders"]', "withAudit": "true"}
    [config] = read_source(data, texts, json.dumps(file).encode()).configs
    assert (config.namespace, config.limits.tier) == ("file", "basic")
    named = {each.name: each for each in descriptions(config)}
    assert "audit" in named
    assert named["orders"].lock_duration_ms == 20_000


@pytest.mark.parametrize(
    ("texts", "file", "said"),
    [
        ({}, None, "resources[0].name"),
        (
            {"lock": "x", "busName": "b"},
            None,
            "resources[1]#0.properties.lockDuration: 'x' is not an ISO 8601",
        ),
        ({"nothing": "x"}, None, "--parameter nothing: the template has no such parameter; it has busname"),
        ({"queueNames": "x"}, None, "--parameter queueNames: 'x' is not JSON of the type array"),
        ({}, b"[]", "the parameters file: has no object 'parameters'"),
        ({}, b"{", "the parameters file: line 1 column 2: not JSON"),
    ],
)
def test_wrong_parameters_are_named(texts: dict[str, str], file: bytes | None, said: str) -> None:
    data = (FILES / "classic.json").read_bytes()
    if said == "resources[0].name":  # a namespace without a name keeps its entities
        [config] = read_source(data).configs
        assert config.namespace == "<parameters('busName')>"
        return
    with pytest.raises(ConfigError) as refused:
        read_source(data, texts, file)
    assert said in str(refused.value)


# Mistakes


def template(*resources: Any, **more: Any) -> bytes:
    return json.dumps({"contentVersion": "1.0.0.0", "resources": list(resources), **more}).encode()


def queue(**properties: Any) -> dict[str, Any]:
    return {"type": "Microsoft.ServiceBus/namespaces/queues", "name": "ns/q", "properties": properties}


def rule(**properties: Any) -> list[dict[str, Any]]:
    kind = "Microsoft.ServiceBus/namespaces/topics"
    return [
        {"type": kind, "name": "ns/t"},
        {"type": f"{kind}/subscriptions", "name": "ns/t/s"},
        {"type": f"{kind}/subscriptions/rules", "name": "ns/t/s/r", "properties": properties},
    ]


def state(*attributes: Any, **more: Any) -> bytes:
    instances = [{"attributes": each} for each in attributes]
    held = {"mode": "managed", "type": "azurerm_servicebus_queue", "name": "q", "instances": instances}
    return json.dumps({"version": 4, "lineage": "x", "resources": [{**held, **more}]}).encode()


NAMED = {"type": "Microsoft.ServiceBus/namespaces/queues"}

MISTAKES: list[tuple[bytes, str]] = [
    (template(queue(maxDeliveryCount="3")), "resources[0].properties.maxDeliveryCount: '3' is not a whole"),
    (template(queue(status="Restoring")), "resources[0].properties.status: 'Restoring' is none of"),
    (template(queue(lockDuration="[concat(1]")), "resources[0].properties.lockDuration: 'concat(1'"),
    (
        template(queue(lockDuration="[reference('x').lock]")),
        "properties.lockDuration: only Azure knows reference('x').lock: write its value into the template",
    ),
    (template({**NAMED, "name": "ns"}), "resources[0].name: 'ns' has not a name for each part"),
    (template({**NAMED, "name": "ns/q q"}), "resources[0]: 'q q' is not a name"),
    (
        template({**NAMED, "name": "[concat('ns/', newGuid())]"}),
        "resources[0].name: only Azure knows newGuid()",
    ),
    (template({**NAMED}), "resources[0]: is not a resource with a type and a name"),
    (template("x"), "resources[0]: 'x' is not a resource"),
    (template(queue(), queue()), "resources[1]: 'q' is the name of resources[0] already"),
    (template({**queue(), "copy": {"name": "c", "count": -1}}), "resources[0].copy.count: -1 is not a count"),
    (template({**queue(), "copy": {"count": 1}}), "resources[0].copy: is not a loop with a name"),
    (template({**queue(), "condition": "[reference('x')]"}), "resources[0].condition: only Azure knows"),
    (
        template({"type": "Microsoft.ServiceBus/namespaces", "name": "n", "sku": {"name": "Gold"}}),
        "resources[0].sku.name: 'Gold' is none of the tiers",
    ),
    (template(*rule(filterType="X")), "resources[2].properties.filterType: 'X' is not SqlFilter"),
    (template(*rule(filterType="SqlFilter", sqlFilter={"a": 1})), "sqlFilter.sqlExpression: is not a string"),
    (
        template(*rule(filterType="CorrelationFilter", correlationFilter={"lable": "x"})),
        "resources[2].properties.correlationFilter.lable: 'x' is not a string of a known property",
    ),
    (
        template(*rule(filterType="CorrelationFilter", correlationFilter={"properties": {"a": []}})),
        "correlationFilter.properties.a: a list is not a value",
    ),
    (template(rule()[2]), "resources[0]: its owner 't/subscriptions/s' is not defined here"),
    (
        template(
            {"type": f"{NAMED['type']}/authorizationRules", "name": "n/q/r", "properties": {"rights": 1}}
        ),
        "resources[0].properties.rights: 1 is not a list of rights",
    ),
    (b'{"resources": 1, "contentVersion": "1"}', "resources: 1 is neither a list nor an object"),
    (b'{"version": 3, "terraform_version": "0.11"}', "version: 3 is not 4: write the state with"),
    (b'{"format_version": "1.0", "terraform_version": "1.9"}', "version: null is not 4"),
    (state({"id": "x"}), "azurerm_servicebus_queue.q.id: 'x' names no namespace of Service Bus"),
    (
        state({"id": "/namespaces/n/queues/q", "lock_duration": "1m"}),
        "azurerm_servicebus_queue.q.lock_duration: '1m' is not an ISO 8601 duration",
    ),
    (b'{"planned_values": {}, "terraform_version": "1"}', "version: null is not 4"),
    (b'{"planned_values": {}}', "is a plan of Terraform: take the state"),
    (
        b'{"$schema": "deploymentParameters.json", "parameters": {}}',
        "is a parameters file: give the template",
    ),
    (b"[]", "a list is not a Config.json, an ARM template (`bicep build` makes one) or a Terraform state"),
    (b"resource x", "not JSON"),
]


@pytest.mark.parametrize(("data", "said"), MISTAKES, ids=[said[:40] for _, said in MISTAKES])
def test_a_mistake_is_named_with_its_place(data: bytes, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_source(data)
    assert said in str(refused.value)


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        read_source(template(queue(lockDuration=1), {**queue(status="x"), "name": "ns/other"}))
    assert len(refused.value.problems) == 2


def test_what_is_not_offered_is_noted() -> None:
    data = template(
        queue(clever=True, createdAt="x", isClientAffine=False, lockDuration=None),
        {"type": "Microsoft.ServiceBus/namespaces/disasterRecoveryConfigs", "name": "ns/alias"},
        {
            "type": "Microsoft.Resources/deployments",
            "name": "d",
            "properties": {"templateLink": {"uri": "x"}},
        },
    )
    assert read_source(data).notes == (
        "resources[0].properties.clever: is not a setting that is offered for a queue",
        "resources[1]: Microsoft.ServiceBus/namespaces/disasterRecoveryConfigs 'ns/alias' is not offered",
        "resources[2]: the template of this deployment is elsewhere: build it into this file, as `bicep "
        "build` does",
    )


def test_a_problem_of_the_configuration_has_the_place_in_the_source() -> None:
    arm, state_of = read("classic.json", busName="b"), read("state.json")
    problem = "a.b[0].Properties.DefaultMessageTimeToLive: x.Properties.Y: z"
    assert arm.place(problem) == "a.b[0].properties.defaultMessageTimeToLive: x.Properties.Y: z"
    assert state_of.place(problem) == "a.b[0].default_message_ttl: x.Properties.Y: z"
    assert state_of.place("a.b.Properties.LockDuration: x") == "a.b.lock_duration: x"
    assert state_of.place("a.b.Properties: x") == "a.b: x"
    assert arm.place("a.b: x") == "a.b: x"
    assert Found(()).place(problem) == problem


def test_only_a_template_has_parameters() -> None:
    with pytest.raises(ConfigError, match="only such a template has parameters"):
        read_source(b'{"UserConfig": {"Namespaces": [{"Name": "x"}]}}', {"a": "b"})


def test_deployments_in_deployments_end() -> None:
    held: dict[str, Any] = queue()
    for _ in range(30):
        inner = {"template": {"resources": [held]}}
        held = {"type": "Microsoft.Resources/deployments", "name": "d", "properties": inner}
    with pytest.raises(ConfigError, match="is nested deeper than 20 deployments"):
        read_source(template(held))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["[x()]", "[concat('a')]", "ns/q", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "name", "properties", "copy", "resources", "sku", "count", "value"]),
            inner,
        )
    ),
    max_leaves=20,
)


@given(JSON, st.sampled_from(["", "/queues", "/topics/subscriptions/rules", "/authorizationRules"]))
def test_any_template_is_read_or_refused(content: Any, kind: str) -> None:
    resource = {"type": f"Microsoft.ServiceBus/namespaces{kind}", "name": "ns/a/b/c", "properties": content}
    for data in (template(resource), template(content), template(variables=content, parameters=content)):
        with suppress(ConfigError):
            read_source(data)


@given(JSON)
def test_any_state_is_read_or_refused(content: Any) -> None:
    attributes = {"id": "/namespaces/n/queues/q", "lock_duration": content, "forward_to": content}
    for data in (
        state(attributes, content),
        state(attributes, name=content, module=content),
        state(instances=content),
        state(attributes, type="azurerm_servicebus_subscription_rule", mode=content),
    ):
        with suppress(ConfigError):
            read_source(data)
