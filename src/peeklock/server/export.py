"""The configuration file that a data folder agrees with, for `peeklock export`.

Owns: what is exported. Must not know: the form of the file, how a folder is read.
"""

from __future__ import annotations

from pathlib import Path

from peeklock.broker.descriptions import RuleDescription
from peeklock.server.config import format_config
from peeklock.store.looking import read_definitions


def export_config(folder: Path) -> str:
    """Give the text of the file. Raises: StoreFailed, StoreDamaged, StoreTooNew."""
    definitions = read_definitions(folder)
    descriptions = {entity.entity_id: entity.description for entity in definitions.entities}
    rules: dict[str, list[RuleDescription]] = {}
    for stored in definitions.rules:
        rules.setdefault(descriptions[stored.entity_id].name, []).append(stored.rule)
    return format_config(descriptions.values(), rules)
