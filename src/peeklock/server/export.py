"""The configuration file that a data folder agrees with, for `peeklock export`.

Owns: what is exported, and what a user must know of it. Must not know: the form of the file, how a folder is
read.
"""

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
    """What a folder gives."""

    text: str
    """The file."""
    warnings: tuple[str, ...]
    """What the file lacks, and why it would be refused over an empty folder, a line each; no keys."""


def export_config(folder: Path) -> Export:
    """Return the file. Raises: StoreFailed, StoreDamaged, StoreTooNew."""
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
    """Return the name of an entity, and of its topic."""
    yield description.name.lower()
    if isinstance(description, SubscriptionDescription):
        yield description.topic_name.lower()


def _warnings(entities: Collection[Description]) -> Iterator[str]:
    """Name the authorization rules, and the forwards whose target was deleted since they were set."""
    for entity in entities:
        if entity.authorization_rules:
            rules = ", ".join(rule.name for rule in entity.authorization_rules)
            kind = KINDS[type(entity)].value
            yield (
                f"the authorization rules {rules} of the {kind} '{entity.name}' and "
                f"their keys are not in the file, which has no place for them: set them by the "
                f"administration API where it is used"
            )
    names = {entity.name.lower() for entity in entities}
    for entity in entities:
        for setting, field in FORWARDS.items():
            target = getattr(entity, field)
            if target is not None and target.lower() not in names:
                kind = KINDS[type(entity)].value
                yield (
                    f"{setting} of the {kind} '{entity.name}' names '{target}', which was deleted: over an "
                    f"empty folder the broker refuses this file; create '{target}' again, or take {setting} "
                    f"out of the file"
                )
