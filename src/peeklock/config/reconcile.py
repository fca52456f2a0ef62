"""The commands that make the namespace agree with a configuration file.

An entity may forward to one further down in the file: the commands come targets first, where a topic's
messages continue to its subscriptions. In a cycle of new entities one comes before its target: it is created
without its forwards, which are set at the end. So no command lacks its target.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from peeklock.admin.forwards import authority_of
from peeklock.broker.entities.validation import checked, checked_update, forwards_of
from peeklock.broker.vocabulary.commands import (
    AddRule,
    CreateEntity,
    RemoveRule,
    ReplyTo,
    UpdateEntity,
    UpdateRule,
)
from peeklock.broker.vocabulary.descriptions import (
    DEFAULT_RULE_NAME,
    GIVEN_FORWARDS,
    KINDS,
    Description,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.effects import EntityView
from peeklock.broker.vocabulary.errors import ServiceBusError
from peeklock.broker.vocabulary.quotas import TierLimits
from peeklock.config.file import Config, EntityConfig
from peeklock.config.form import ConfigError
from peeklock.config.hosts import HostNames
from peeklock.config.settings import FORWARDS, IMMUTABLE, PROPERTIES
from peeklock.rules.compiled import compile_action, compile_filter
from peeklock.rules.errors import RuleError
from peeklock.rules.filters import CorrelationFilter, FalseFilter, Filter, SqlAction, SqlFilter


@dataclass(frozen=True, slots=True)
class EntityStep:
    """Create or change an entity; a call with the reply-to returns the command."""

    path: str
    description: Description
    exists: bool
    rule: RuleDescription | None = None
    """First rule of a new subscription; None = the default one."""
    completes: bool = False
    """Sets the forwards of an entity that was created before its target."""

    @property
    def kind(self) -> str:
        return KINDS[type(self.description)].value

    def __call__(self, reply_to: ReplyTo) -> CreateEntity | UpdateEntity:
        if self.exists:
            return UpdateEntity(self.description, reply_to)
        return CreateEntity(self.description, reply_to, self.rule)


@dataclass(frozen=True, slots=True)
class RuleStep:
    """Add or change a rule of a subscription."""

    path: str
    subscription: str
    rule: RuleDescription
    exists: bool
    kind = "rule"

    def __call__(self, reply_to: ReplyTo) -> AddRule | UpdateRule:
        if self.exists:
            return UpdateRule(self.subscription, self.rule, reply_to)
        return AddRule(self.subscription, self.rule, reply_to)


@dataclass(frozen=True, slots=True)
class NoRulesStep:
    """Remove the initial rule of a new subscription without rules."""

    path: str
    subscription: str

    def __call__(self, reply_to: ReplyTo) -> RemoveRule:
        return RemoveRule(self.subscription, DEFAULT_RULE_NAME, reply_to)


Step: TypeAlias = EntityStep | RuleStep | NoRulesStep
"""Makes one command; `path` is the JSON path of its cause."""


def reconcile(
    config: Config,
    existing: Iterable[EntityView],
    rules: Mapping[str, Iterable[RuleDescription]],
    limits: TierLimits,
    hosts: HostNames,
) -> list[Step]:
    """Return the commands that make the namespace agree with the file; none for what agrees already.

    Only what the file names changes: other settings, entities and rules stay.

    Args:
        config: the file.
        existing: all present entities.
        rules: path of a subscription, in lower case, -> its present rules; at least of those in the file.
        limits: of the tier.
        hosts: names of this broker in forwards.

    Raises: ConfigError for a value out of the tier's range, an existing entity that differs in what cannot be
    changed, a wrong expression, or a forward to nowhere or to another host; then no command may run.
    Source: requirement A-02.
    """
    found = {view.description.name.lower(): view.description for view in existing}
    return steps_from(found, config, rules, limits, hosts)


def steps_from(
    found: dict[str, Description],
    config: Config,
    rules: Mapping[str, Iterable[RuleDescription]],
    limits: TierLimits,
    hosts: HostNames,
) -> list[Step]:
    """Return what `reconcile` does; `found`: all present entities, by name in lower case."""
    steps: dict[str, EntityStep] = {}
    rule_steps: dict[str, list[Step]] = {}
    problems: list[str] = []
    for entity in config.entities:
        name = entity.name.lower()
        old = found.get(name)
        new = _agreeing(entity, old, limits, problems)
        changed = list(_changed_rules(entity, rules.get(name, ())))
        problems += _expression_problems(changed)
        rule_steps[name] = [*changed]
        if new is None or new == old:
            continue
        if old is not None:
            steps[name] = EntityStep(entity.path, new, exists=True)
        elif entity.rules == ():
            # It receives no message until that rule is removed.
            nothing = RuleDescription(DEFAULT_RULE_NAME, FalseFilter())
            steps[name] = EntityStep(entity.path, new, exists=False, rule=nothing)
            rule_steps[name] = [NoRulesStep(entity.path, entity.name)]
        else:
            first = changed[0].rule if changed else None
            steps[name] = EntityStep(entity.path, new, exists=False, rule=first)
            rule_steps[name] = [*changed[1:]]
    wanted = found | {name: step.description for name, step in steps.items()}
    problems += _forward_problems(config, wanted, steps)
    problems += _host_problems(config, found, hosts)
    if problems:
        raise ConfigError(*problems)
    return _ordered(wanted, found, steps, rule_steps)


def _ordered(
    wanted: Mapping[str, Description],
    found: Iterable[str],
    steps: Mapping[str, EntityStep],
    rule_steps: Mapping[str, Iterable[Step]],
) -> list[Step]:
    """Return the steps in an order in which no target is missing; `found` names what exists now."""
    there = {*found}
    ordered: list[Step] = []
    last: list[Step] = []
    for name in targets_first(wanted):
        step = steps.get(name)
        if step is not None:
            there.add(name)
            early = any(target in wanted and target not in there for target in _targets(step.description))
            if not early:
                ordered.append(step)
            elif step.exists:
                last.append(step)
            else:
                ordered.append(replace(step, description=_without_forwards(step.description)))
                last.append(EntityStep(step.path, step.description, exists=True, completes=True))
        ordered += rule_steps.get(name, ())
    return ordered + last


def _without_forwards(description: Description) -> Description:
    assert not isinstance(description, TopicDescription)
    return replace(description, forward_to=None, forward_dead_lettered_to=None)


def counted(steps: Iterable[Step]) -> Counter[tuple[str, bool]]:
    """Return counts by kind and whether it is a change. The rule of a new subscription counts."""
    counts: Counter[tuple[str, bool]] = Counter()
    for step in steps:
        match step:
            case NoRulesStep():
                counts["rule", False] -= 1
            case EntityStep(completes=True):
                pass  # counted with its creation
            case EntityStep(rule=RuleDescription()):
                counts.update([(step.kind, step.exists), ("rule", False)])
            case _:
                counts[step.kind, step.exists] += 1
    return counts


# Entities


def _agreeing(
    entity: EntityConfig, old: Description | None, limits: TierLimits, problems: list[str]
) -> Description | None:
    """Return an entity that agrees with the file; None = there are problems."""
    try:
        if old is None:
            return checked(entity.description, limits)
        fixed = _fixed(entity, old)
        problems += fixed
        return None if fixed else checked_update(old, replace(old, **entity.settings), limits)
    except ServiceBusError as failure:
        problems.append(f"{entity.path}.Properties: {failure}")
        return None


def _fixed(entity: EntityConfig, old: Description) -> list[str]:
    """Return a problem for each difference that would need another entity."""
    kind = KINDS[type(old)].value
    if type(old) is not type(entity.bare):
        return [f"{entity.path}: {old.name!r} is a {kind}; choose another name, or delete the {kind} first"]
    settings = {key: field for key, (field, _) in PROPERTIES[type(old)].items() if key in IMMUTABLE}
    return [
        f"{entity.path}.Properties.{key}: is {json.dumps(getattr(old, field))} on the existing {kind} "
        f"{old.name!r} and cannot be changed; correct the file, or delete the {kind} first"
        for key, field in settings.items()
        if entity.settings.get(field, getattr(old, field)) != getattr(old, field)
    ]


# Rules


def _changed_rules(entity: EntityConfig, existing: Iterable[RuleDescription]) -> Iterator[RuleStep]:
    found = {rule.name.lower(): rule for rule in existing}
    for rule in entity.rules or ():
        old = found.get(rule.rule.name.lower())
        if old is None or not _do_the_same(old, rule.rule):
            yield RuleStep(rule.path, entity.name, rule.rule, exists=old is not None)


def _do_the_same(one: RuleDescription, other: RuleDescription) -> bool:
    # As strings: 1, 1.0 and True are equal, but differ for a filter.
    return repr(_meaning(one)) == repr(_meaning(other))


def _meaning(rule: RuleDescription) -> tuple[Filter, SqlAction | None]:
    """Return what a rule does, without how its values were given."""
    filter, action = rule.filter, rule.action
    if isinstance(filter, SqlFilter | CorrelationFilter):
        filter = replace(filter, as_given=())
    return filter, None if action is None else replace(action, as_given=())


def _expression_problems(steps: Iterable[RuleStep]) -> Iterator[str]:
    for step in steps:
        where = f"{step.path}.Properties"
        try:
            compile_filter(step.rule.filter)
        except RuleError as failure:
            correlation = isinstance(step.rule.filter, CorrelationFilter)
            yield f"{where}.{'CorrelationFilter' if correlation else 'SqlFilter.SqlExpression'}: {failure}"
        try:
            if step.rule.action is not None:
                compile_action(step.rule.action)
        except RuleError as failure:
            yield f"{where}.Action.SqlExpression: {failure}"


# Forwards


def _forward_problems(
    config: Config, wanted: Mapping[str, Description], steps: Mapping[str, EntityStep]
) -> Iterator[str]:
    """Report forwards to nowhere; those of an entity that agrees already may stay."""
    for entity in config.entities:
        for key, field in FORWARDS.items():
            target = entity.settings.get(field)
            if target is None or entity.name.lower() not in steps:
                continue
            if isinstance(wanted.get(target.lower()), SubscriptionDescription | None):
                yield (
                    f"{entity.path}.Properties.{key}: there is no queue or topic {target!r}, "
                    "in the file or from before"
                )


def _host_problems(config: Config, found: Mapping[str, Description], hosts: HostNames) -> Iterator[str]:
    """Report forwards by an address of another host; one that is set already may stay."""
    for entity in config.entities:
        old = found.get(entity.name.lower())
        for key, field in FORWARDS.items():
            address = entity.settings.get(GIVEN_FORWARDS[field])
            if address is None or hosts.owns(authority_of(address)):
                continue
            if old is None or getattr(old, GIVEN_FORWARDS[field]) != address:
                yield (
                    f"{entity.path}.Properties.{key}: the host in {address!r} is not known as this broker's; "
                    f"give the name alone, or start with --host-name"
                )


def _flows(wanted: Mapping[str, Description]) -> dict[str, list[str]]:
    """Return where messages may go next from each entity; from a topic to its subscriptions."""
    flows = {name: _targets(description) for name, description in wanted.items()}
    for name, description in wanted.items():
        if isinstance(description, SubscriptionDescription):
            flows.setdefault(description.topic_name.lower(), []).append(name)
    return flows


def _targets(description: Description) -> list[str]:
    return [target.lower() for target in forwards_of(description)]


def targets_first(wanted: Mapping[str, Description]) -> Iterator[str]:
    """Yield entities so that each comes after its topic and after those that its messages may go to.

    In a cycle one comes before a target; a subscription never comes before its topic.
    """
    flows = _flows(wanted)
    after: dict[str, list[str]] = {}
    for name, description in wanted.items():
        after[name] = targets = _targets(description)
        for target in [*targets]:
            if isinstance(wanted.get(target), TopicDescription):
                targets += flows[target]
        if isinstance(description, SubscriptionDescription):
            targets.append(description.topic_name.lower())
    begun: set[str] = set()
    done: set[str] = set()
    for first in after:
        left = [first]
        while left:
            name = left[-1]
            if name not in begun:
                begun.add(name)
                left += [target for target in after.get(name, ()) if target not in begun]
                continue
            left.pop()
            if name not in done:
                done.add(name)
                yield name
