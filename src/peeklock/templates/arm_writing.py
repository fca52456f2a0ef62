"""A configuration as an ARM template, and what the template lacks.

The name of the namespace is a parameter. Settings with their default are left out, as in Config.json. An
entity depends on those that it names, so that they are deployed first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from peeklock.broker.entities.validation import forwards_of
from peeklock.broker.vocabulary.descriptions import (
    DEFAULT_RULE_NAME,
    Description,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.quotas import STANDARD
from peeklock.config.exporting import Export
from peeklock.config.file import Config, EntityConfig
from peeklock.config.reconcile import targets_first
from peeklock.config.settings import FORWARDS, PROPERTIES, write_settings
from peeklock.rules.filters import (
    CORRELATION_FIELDS,
    CorrelationFilter,
    FalseFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from peeklock.templates.arm import SLASH

API_VERSION: Final = "2021-11-01"
"""The oldest stable one that has all settings here. Source: Learn, "Microsoft.ServiceBus resource types"."""

SCHEMA: Final = "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#"

NAMESPACE: Final = "Microsoft.ServiceBus/namespaces"
_NAME: Final = "namespaceName"

_MISSING: Final = ("UserMetadata",)
"""Settings that this version of the API does not have."""


def format_template(config: Config, tier: str = STANDARD.name) -> Export:
    """Return the ARM template of a namespace of a tier, and what it lacks."""
    return _Writing(config, tier).export()


@dataclass(slots=True)
class _Writing:
    config: Config
    tier: str
    warnings: list[str] = field(default_factory=list)

    def export(self) -> Export:
        resources: list[dict[str, Any]] = [
            {
                "type": NAMESPACE,
                "apiVersion": API_VERSION,
                "name": f"[parameters('{_NAME}')]",
                "location": "[resourceGroup().location]",
                "sku": {"name": self.tier, "tier": self.tier},
                "properties": {},
            }
        ]
        by_name = {entity.name.lower(): entity for entity in self.config.entities}
        wanted = {name: entity.description for name, entity in by_name.items()}
        there: dict[str, str] = {}
        for name in targets_first(wanted):
            resources += self._resources(by_name[name], wanted, there)
        template = {
            "$schema": SCHEMA,
            "contentVersion": "1.0.0.0",
            "parameters": {_NAME: {"type": "string", "defaultValue": self.config.namespace}},
            "resources": resources,
        }
        return Export(json.dumps(template, indent=2, ensure_ascii=False) + "\n", tuple(self.warnings))

    def _resources(
        self, entity: EntityConfig, wanted: Mapping[str, Description], there: dict[str, str]
    ) -> Iterator[dict[str, Any]]:
        """Yield an entity and its rules; `there` gets the id by which others depend on it."""
        description = entity.description
        match description:
            case QueueDescription():
                kind, names = "queues", [description.name.replace("/", SLASH)]
            case TopicDescription():
                kind, names = "topics", [description.name.replace("/", SLASH)]
            case SubscriptionDescription():
                topic = description.topic_name.replace("/", SLASH)
                kind, names = "topics/subscriptions", [topic, description.subscription_name]
        needed = [_id(NAMESPACE, [])]
        if isinstance(description, SubscriptionDescription):
            needed += [there[description.topic_name.lower()]]
        for target in forwards_of(description):
            if target.lower() in there:
                needed.append(there[target.lower()])
            elif target.lower() in wanted and target.lower() != description.name.lower():
                self._warn(entity, f"forwards in a cycle over '{target}': deploy the template twice")
        kind = f"{NAMESPACE}/{kind}"
        yield _resource(kind, names, needed, self._properties(entity, description))
        own = there[description.name.lower()] = _id(kind, names)
        for rule in self._rules(entity):
            yield _resource(f"{kind}/rules", [*names, rule.name], [own], self._rule(entity, rule))

    def _properties(self, entity: EntityConfig, description: Description) -> dict[str, Any]:
        settings = write_settings(description, _default(description))
        for key, field_ in FORWARDS.items():
            if key in settings:  # the name: an address has the host of this broker
                settings[key] = getattr(description, field_)
        for key in _MISSING:
            if key in settings:
                self._warn(entity, f"{key} is left out: version {API_VERSION} of the API has no such setting")
                del settings[key]
        return {_camel(key): settings[key] for key in PROPERTIES[type(description)] if key in settings}

    def _rules(self, entity: EntityConfig) -> tuple[RuleDescription, ...]:
        """Return the rules to write; without a rule Azure makes `$Default`, which matches all messages."""
        if entity.rules is None:
            return ()
        if not entity.rules:
            return (RuleDescription(DEFAULT_RULE_NAME, FalseFilter()),)
        return tuple(each.rule for each in entity.rules)

    def _rule(self, entity: EntityConfig, rule: RuleDescription) -> dict[str, Any]:
        written: dict[str, Any]
        match rule.filter:
            case TrueFilter():
                written = {"filterType": "SqlFilter", "sqlFilter": {"sqlExpression": "1=1"}}
            case FalseFilter():
                written = {"filterType": "SqlFilter", "sqlFilter": {"sqlExpression": "1=0"}}
            case SqlFilter():
                written = {"filterType": "SqlFilter", "sqlFilter": self._sql(entity, rule, rule.filter)}
            case CorrelationFilter():
                correlation = self._correlation(entity, rule, rule.filter)
                written = {"filterType": "CorrelationFilter", "correlationFilter": correlation}
        if rule.action is not None:
            written["action"] = self._sql(entity, rule, rule.action)
        return written

    def _sql(self, entity: EntityConfig, rule: RuleDescription, of: SqlFilter | SqlAction) -> dict[str, Any]:
        if of.parameters:
            names = ", ".join(name for name, _ in of.parameters)
            self._warn(
                entity, f"rule '{rule.name}' has the parameters {names}, which a template cannot have: write "
                f"their values into the expression"
            )  # fmt: skip
        return {"sqlExpression": of.expression}

    def _correlation(
        self, entity: EntityConfig, rule: RuleDescription, of: CorrelationFilter
    ) -> dict[str, Any]:
        written: dict[str, Any] = {
            _camel(name): getattr(of, field_)
            for field_, name in CORRELATION_FIELDS.items()
            if getattr(of, field_) is not None
        }
        pairs = {name: value for name, value in of.properties if isinstance(value, str)}
        for name in (name for name, _ in of.properties if name not in pairs):
            self._warn(
                entity,
                f"rule '{rule.name}' compares '{name}' with a value that is not a string, which a template "
                f"cannot have: the comparison is left out, and the rule matches more",
            )
        if pairs:
            written["properties"] = pairs
        return written

    def _warn(self, entity: EntityConfig, what: str) -> None:
        self.warnings.append(f"'{entity.name}': {what}")


def _default(description: Description) -> Description:
    """Return the entity with the defaults that an import gives it."""
    match description:
        case QueueDescription():
            return QueueDescription(description.name)
        case TopicDescription():
            return TopicDescription(description.name, support_ordering=not description.enable_partitioning)
    return SubscriptionDescription(description.topic_name, description.subscription_name)


def _resource(kind: str, names: list[str], needed: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    pattern = "/".join(f"{{{at}}}" for at in range(len(names) + 1))
    return {
        "type": kind,
        "apiVersion": API_VERSION,
        "name": f"[format('{pattern}', {_names(names)})]",
        "dependsOn": needed,
        "properties": _escaped(properties),
    }


def _id(kind: str, names: list[str]) -> str:
    return f"[resourceId('{kind}', {_names(names)})]"


def _names(names: list[str]) -> str:
    """Return the namespace and names as arguments; they contain no quotes."""
    return ", ".join([f"parameters('{_NAME}')", *(f"'{name}'" for name in names)])


def _camel(key: str) -> str:
    return key[0].lower() + key[1:]


def _escaped(value: Any) -> Any:
    """Return a value without expressions: a text in brackets gets another one."""
    match value:
        case str():
            return f"[{value}" if value.startswith("[") and value.endswith("]") else value
        case dict():
            return {_escaped(key): _escaped(part) for key, part in value.items()}
    return value
