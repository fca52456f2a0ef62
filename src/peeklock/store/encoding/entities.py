"""Entity definitions as JSON texts: few, read by people too, and open to fields of later releases' formats.

Owns: the text of a definition. Must not know: where it is kept.

The kind of an entity is the name under which its settings stand: "queue", "topic" or "subscription".
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from peeklock.broker.vocabulary.changes import EntityStored
from peeklock.broker.vocabulary.descriptions import GIVEN_FORWARDS, KINDS, AuthorizationRule, EntityStatus
from peeklock.store.base import StoreDamaged

KEY_PREFIX = "entity/"

_CLASSES = {kind.value: description for description, kind in KINDS.items()}


RULES = "authorization_rules"


def key_of(entity_id: int) -> str:
    """Return the key of an entity's definition; keys sort by id."""
    return f"{KEY_PREFIX}{entity_id:012}"


def encode(entity: EntityStored) -> str:
    """Write a definition down."""
    settings = dataclasses.asdict(entity.description)
    settings["status"] = entity.description.status.value
    if not settings.get(RULES):
        settings.pop(RULES, None)  # few entities have any
    for given in GIVEN_FORWARDS.values():
        if settings.get(given) is None:
            settings.pop(given, None)
    marks = {"deleting": True} if entity.deleting else {}
    return json.dumps(
        {
            "entity_id": entity.entity_id,
            "created_at_ms": entity.created_at_ms,
            "updated_at_ms": entity.updated_at_ms,
            **marks,
            KINDS[type(entity.description)].value: settings,
        },
        ensure_ascii=False,
        separators=(",", ":"),
    )


def decode(key: str, text: str) -> EntityStored:
    """Read a definition; settings that it lacks have their defaults. Raises: StoreDamaged."""
    try:
        record = dict(json.loads(text))
        entity_id, created_at_ms, updated_at_ms = (
            int(record.pop(name)) for name in ("entity_id", "created_at_ms", "updated_at_ms")
        )
        deleting = bool(record.pop("deleting", False))
        [(kind, settings)] = record.items()
        if kind not in _CLASSES:
            raise ValueError(f"it is of the unknown kind '{kind}'")
        settings = dict(settings)
        if "status" in settings:
            settings["status"] = EntityStatus(settings["status"])
        if RULES in settings:
            settings[RULES] = tuple(_rule(**rule) for rule in settings[RULES])
        description = _CLASSES[kind](**settings)
        entity = EntityStored(entity_id, description, created_at_ms, updated_at_ms, deleting)
    except KeyError as error:
        raise StoreDamaged(f"the definition {key} cannot be read: it has no {error}") from error
    except (ValueError, TypeError) as error:
        raise StoreDamaged(f"the definition {key} cannot be read: {error}") from error
    if key != key_of(entity_id):
        raise StoreDamaged(f"the definition {key} says that it is {key_of(entity_id)}")
    return entity


def _rule(rights: Iterable[str], **settings: Any) -> AuthorizationRule:
    return AuthorizationRule(rights=tuple(rights), **settings)
