"""The configuration file of some entities, and what it lacks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from peeklock.broker.vocabulary.descriptions import (
    DEFAULT_RULE_NAME,
    KINDS,
    Description,
    RuleDescription,
)
from peeklock.config.file import Config, format_config
from peeklock.config.namespace_limits import NO_LIMITS, NamespaceLimits
from peeklock.config.settings import FORWARDS


@dataclass(frozen=True, slots=True)
class Export:
    """The result of an export."""

    text: str
    """The content of the file."""
    warnings: tuple[str, ...]
    """What the file lacks, and why it would be refused over an empty folder; contains no keys."""


def export_of(
    descriptions: Collection[Description],
    rules: Mapping[str, Iterable[RuleDescription]],
    limits: NamespaceLimits = NO_LIMITS,
) -> Export:
    """Return the configuration of these entities; `rules` are by path of a subscription, `limits` the
    namespace's own."""
    return Export(format_config(descriptions, rules, limits=limits), tuple(_warnings(descriptions)))


def file_of(config: Config) -> Export:
    """Return the file of a configuration that comes from elsewhere, with the Properties of its namespace."""
    rules: dict[str, list[RuleDescription]] = {}
    for entity in config.entities:
        given = entity.rules
        rules[entity.name] = (
            [RuleDescription(DEFAULT_RULE_NAME)] if given is None else [each.rule for each in given]
        )
    return export_of([entity.description for entity in config.entities], rules, config.limits)


def _warnings(entities: Collection[Description]) -> Iterator[str]:
    """Warn of authorization rules, and of forwards whose target was deleted since they were set."""
    for entity in entities:
        if entity.authorization_rules:
            rules = ", ".join(rule.name for rule in entity.authorization_rules)
            kind = KINDS[type(entity)].value
            yield (
                f"the authorization rules {rules} of the {kind} '{entity.name}' and their keys are not in "
                f"the file, whose format has none: set them through the administration API where it is used"
            )
    names = {entity.name.lower() for entity in entities}
    for entity in entities:
        for setting, field in FORWARDS.items():
            target = getattr(entity, field)
            if target is not None and target.lower() not in names:
                kind = KINDS[type(entity)].value
                yield (
                    f"{setting} of the {kind} '{entity.name}' names '{target}', which was deleted: over an "
                    f"empty folder the broker refuses this file; create '{target}' again, or remove "
                    f"{setting} from the file"
                )
