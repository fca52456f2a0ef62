"""The steps that make a namespace agree with a configuration, and how they are shown; pure.

The plan is made from what is there, so a run that was interrupted goes on with what is left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from peeklock.admin.authorization_rules import with_keys
from peeklock.broker.vocabulary.descriptions import (
    AuthorizationRule,
    SubscriptionDescription,
)
from peeklock.broker.vocabulary.quotas import TIERS
from peeklock.config.file import Config, EntityConfig
from peeklock.config.form import ConfigError
from peeklock.config.hosts import HostNames
from peeklock.config.namespace_limits import write_limits
from peeklock.config.reconcile import EntityStep, NoRulesStep, RuleStep, Step, counted, steps_from
from peeklock.config.settings import PROPERTIES
from peeklock.moving.definitions import Definitions
from peeklock.templates.found import as_set


@dataclass(frozen=True, slots=True)
class Plan:
    """What has to be done."""

    steps: tuple[Step, ...]
    there: Definitions
    """What the target has before."""
    agreeing: int
    """Entities of the source that need no step."""
    notes: tuple[str, ...] = ()
    """What of the namespace itself is not made."""

    def lines(self) -> Iterator[str]:
        """Yield a line for each step, then the counts."""
        for step in self.steps:
            yield self._line(step)
        yield self.summary()

    def summary(self) -> str:
        """Return the counts in one line."""
        parts = [
            f"{count:,} {kind}{'' if count == 1 else 's'} to {'change' if changes else 'create'}"
            for (kind, changes), count in sorted(counted(self.steps).items(), key=_rank)
            if count
        ]
        parts.append(f"{self.agreeing:,} {'agrees' if self.agreeing == 1 else 'agree'} already")
        return f"plan: {', '.join(parts)}"

    def _line(self, step: Step) -> str:
        match step:
            case NoRulesStep():
                return f"remove  rule          {step.subscription} $Default"
            case RuleStep():
                verb = "change" if step.exists else "create"
                return f"{verb}  rule          {step.subscription} {step.rule.name}"
            case EntityStep():
                verb = "change" if step.exists else "create"
                name = step.description.name
                return f"{verb}  {step.kind:<12}  {name}{self._changes(step)}"

    def _changes(self, step: EntityStep) -> str:
        """Return which settings of an entity change."""
        if step.completes:
            return "  (its forwards)"
        old = self.there.entities.get(step.description.name.lower())
        if old is None:
            return ""
        known = {field: key for key, (field, _) in PROPERTIES[type(old)].items()}
        known["authorization_rules"] = "AuthorizationRules"
        new = step.description
        changed = [key for field, key in known.items() if getattr(old, field) != getattr(new, field)]
        return f"  ({', '.join(changed)})"


_KINDS = ("queue", "topic", "subscription", "rule")


def _rank(counts: tuple[tuple[str, bool], int]) -> tuple[bool, int]:
    (kind, changes), _ = counts
    return changes, _KINDS.index(kind)


def plan(config: Config, there: Definitions, hosts: HostNames, fresh_key: Callable[[], str]) -> Plan:
    """Return the steps to agree with a configuration.

    Args:
        config: what is wanted.
        there: what the target has.
        hosts: names of the target.
        fresh_key: returns a key for an authorization rule that comes without one.

    Raises: ConfigError with all problems; then nothing may be changed.
    """
    entities = tuple(_completed(entity, there, fresh_key) for entity in config.entities)
    named = {entity.name.lower() for entity in entities}
    problems = [
        f"{entity.path}: its topic '{entity.bare.topic_name}' is neither here nor in the target"
        for entity in entities
        if isinstance(entity.bare, SubscriptionDescription)
        and entity.bare.topic_name.lower() not in named | there.entities.keys()
    ]
    if problems:
        raise ConfigError(*problems)
    steps = steps_from(
        dict(there.entities), replace(config, entities=entities), there.rules, TIERS[there.tier], hosts
    )
    touched = {_owner(step).lower() for step in steps}
    agreeing = sum(entity.name.lower() not in touched for entity in entities)
    return Plan(tuple(steps), there, agreeing, tuple(_notes(config, there)))


_OPTIONS = {
    "Tier": "--tier",
    "HostNames": "--host-name",
    "MaxConnections": "--max-connections",
    "MaxSizeInMegabytes": "--max-size-mb",
    "MaxMessagesPerSecond": "--max-messages-per-second",
}
"""Of `peeklock namespaces create`, for each of the `Properties` of a namespace."""


def _notes(config: Config, there: Definitions) -> Iterator[str]:
    """Yield what of the namespace itself is not imported, why, and what to do: no request changes it."""
    properties = write_limits(config.limits)
    if (tier := properties.get("Tier", "")).lower() in ("", there.tier):
        properties.pop("Tier", None)
    else:
        yield f"the tier: the source has {tier}, the target {TIERS[there.tier].name}"
    if limits := [key for key in properties if key != "Tier"]:
        yield f"the limits {', '.join(limits)} of the namespace"
    if properties:
        words = json.dumps(properties)
        options = " ".join(
            f"{_OPTIONS[key]} {each}"
            for key, value in properties.items()
            for each in (value if isinstance(value, list) else [value])
        )
        yield (
            f"a namespace gets these when it is created or the broker starts: put {words} into the "
            f"Properties of the namespace in the Config.json of the target, and restart it; or import into a "
            f"new one, of `peeklock namespaces create NAME {options}`"
        )


def _owner(step: Step) -> str:
    return step.description.name if isinstance(step, EntityStep) else step.subscription


def _completed(entity: EntityConfig, there: Definitions, fresh_key: Callable[[], str]) -> EntityConfig:
    """Return an entity with forwards by name, and authorization rules with keys beside the existing ones."""
    settings: dict[str, Any] = as_set(entity.settings)
    old = there.entities.get(entity.name.lower())
    wanted: tuple[AuthorizationRule, ...] = settings.get("authorization_rules", ())
    if wanted:
        existing = () if old is None else old.authorization_rules
        keyed = with_keys(wanted, existing, fresh_key)
        names = {rule.name.lower() for rule in keyed}
        kept = [rule for rule in existing if rule.name.lower() not in names]
        settings["authorization_rules"] = (*kept, *keyed)
        if set(settings["authorization_rules"]) == set(existing):
            settings["authorization_rules"] = existing  # in another order
    return replace(entity, settings=settings)
