"""`peeklock export` of a data folder, which a broker may use meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from peeklock.broker.vocabulary.descriptions import Description, RuleDescription, SubscriptionDescription
from peeklock.config.exporting import Export, export_of
from peeklock.store.sqlite.read_only import read_definitions


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
    return export_of(descriptions.values(), rules)


def _names(description: Description) -> Iterator[str]:
    """Yield the name of an entity, and that of its topic."""
    yield description.name.lower()
    if isinstance(description, SubscriptionDescription):
        yield description.topic_name.lower()
