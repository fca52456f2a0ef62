"""`peeklock export`: the configuration file that a data folder agrees with, and what it lacks."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from peeklock.broker.vocabulary.descriptions import (
    KINDS,
    Description,
    RuleDescription,
    SubscriptionDescription,
)
from peeklock.config.file import format_config
from peeklock.config.settings import FORWARDS
from peeklock.store.sqlite.read_only import read_definitions


@dataclass(frozen=True, slots=True)
class Export:
    """The result of an export."""

    text: str
    """The content of the file."""
    warnings: tuple[str, ...]
    """What the file lacks, and why it would be refused over an empty folder; contains no keys."""


def export_config(folder: Path) -> Export:
    """Return the configuration of a data folder. Raises: StoreFailed, StoreDamaged, StoreTooNew."""
    definitions = read_definitions(folder)
    going = {entity.description.name.lower() for entity in definitions.entities if entity.deleting}
    descriptions = {
        entity.entity_id: entity.description
        for entity in definitions.entities
        if not going.intersection(_names(entity.description))
    }
    rules: dict[str, list[RuleDescription]] = {}
    for stored in definitions.rules:
        if stored.entity_id not in descriptions:
            continue
        rules.setdefault(descriptions[stored.entity_id].name, []).append(stored.rule)
    return Export(format_config(descriptions.values(), rules), tuple(_warnings(descriptions.values())))


def _names(description: Description) -> Iterator[str]:
    """Yield the name of an entity, and that of its topic."""
    yield description.name.lower()
    if isinstance(description, SubscriptionDescription):
        yield description.topic_name.lower()


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
