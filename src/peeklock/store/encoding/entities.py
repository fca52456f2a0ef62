"""Entities, cursors and claims as JSON texts, which people read and later formats add fields to.

The settings of an entity are under the name of its kind: "queue", "topic" or "subscription". The keys of what
an entity has begin with its id, so that one range covers all of it. Names in keys are percent-encoded, since
a name may contain the separator; the text has the name as it is. A fact of the process is its own
text, under its own key: both are kept as they are.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from peeklock.broker.vocabulary.changes import QUEUES_PER_ENTITY, ClaimStored, CursorStored, EntityStored
from peeklock.broker.vocabulary.descriptions import GIVEN_FORWARDS, KINDS, AuthorizationRule, EntityStatus
from peeklock.store.base import StoreDamaged

KEY_PREFIX = "entity/"
CURSOR_PREFIX = "cursor/"
CLAIM_PREFIX = "claim/"
FACT_PREFIX = "fact/"
RULES = "authorization_rules"

_CLASSES = {kind.value: description for description, kind in KINDS.items()}


def key_of(entity_id: int) -> str:
    """Return the key of an entity's definition; keys sort by id."""
    return f"{KEY_PREFIX}{entity_id:012}"


def cursor_key(queue_id: int, name: str) -> str:
    """Return the key of a cursor."""
    return f"{CURSOR_PREFIX}{_owner(queue_id)}/{quote(name, safe='')}"


def claim_key(queue_id: int, cursor: str, no: int) -> str:
    """Return the key of a claim; the claims of a cursor sort by number."""
    return f"{CLAIM_PREFIX}{_owner(queue_id)}/{quote(cursor, safe='')}/{no:020}"


def fact_key(key: str) -> str:
    """Return the key of a fact of the process."""
    return f"{FACT_PREFIX}{key}"


def keys_of(prefix: str, entity_id: int) -> tuple[str, str]:
    """Return two keys between which are all keys of an entity with this prefix, and no others."""
    return f"{prefix}{entity_id:012}/", f"{prefix}{entity_id:012}0"  # "0" is the character after "/"


def encode(entity: EntityStored) -> str:
    """Return the text of an entity."""
    settings = dataclasses.asdict(entity.description)
    settings["status"] = entity.description.status.value
    if not settings.get(RULES):
        settings.pop(RULES, None)  # few entities have any
    for given in GIVEN_FORWARDS.values():
        if settings.get(given) is None:
            settings.pop(given, None)
    marks = {"deleting": True} if entity.deleting else {}
    return dump(
        {
            "entity_id": entity.entity_id,
            "created_at_ms": entity.created_at_ms,
            "updated_at_ms": entity.updated_at_ms,
            **marks,
            KINDS[type(entity.description)].value: settings,
        }
    )


def decode(key: str, text: str) -> EntityStored:
    """Return the entity of a text; settings that it lacks have their defaults. Raises: StoreDamaged."""
    with reading("definition", key):
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
    check_key("definition", key, key_of(entity_id))
    return entity


def encode_cursor(stored: CursorStored) -> str:
    """Return the text of a cursor."""
    record = dataclasses.asdict(stored)
    return dump({name: value for name, value in record.items() if value is not None})


def decode_cursor(key: str, text: str) -> CursorStored:
    """Return the cursor of a text. Raises: StoreDamaged."""
    with reading("cursor", key):
        record = json.loads(text)
        queue_id, name = int(record["queue_id"]), str(record["name"])
        numbers = ("last_no", "committed_no", "used_at_ms", "expires_after_ms")
        last_no, committed_no, used_at_ms, expires_after_ms = (int(record[number]) for number in numbers)
        stored = CursorStored(
            queue_id,
            name,
            last_no,
            committed_no,
            used_at_ms,
            expires_after_ms,
            record.get("owner"),
            record.get("unread_from_no"),
            None if "undone" not in record else _pair(record["undone"]),
        )
    check_key("cursor", key, cursor_key(stored.queue_id, stored.name))
    return stored


def _pair(numbers: list[Any]) -> tuple[int, int]:
    first, last = map(int, numbers)
    return first, last


def encode_claim(stored: ClaimStored) -> str:
    """Return the text of a claim."""
    return dump(dataclasses.asdict(stored))


def decode_claim(key: str, text: str) -> ClaimStored:
    """Return the claim of a text. Raises: StoreDamaged."""
    with reading("claim", key):
        record = json.loads(text)
        positions = tuple((int(first), int(count)) for first, count in record["positions"])
        stored = ClaimStored(int(record["queue_id"]), str(record["cursor"]), int(record["no"]), positions)
    check_key("claim", key, claim_key(stored.queue_id, stored.cursor, stored.no))
    return stored


def dump(record: dict[str, Any]) -> str:
    """Return a record as JSON text."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


@contextmanager
def reading(what: str, key: str) -> Iterator[None]:
    """Raise errors about the content of a text as `StoreDamaged`."""
    try:
        yield
    except KeyError as error:
        raise StoreDamaged(f"the {what} {key} cannot be read: it has no {error}") from error
    except (ValueError, TypeError, ArithmeticError) as error:
        raise StoreDamaged(f"the {what} {key} cannot be read: {error}") from error


def check_key(what: str, key: str, own_key: str) -> None:
    """Check that a text is under the key that it names. Raises: StoreDamaged."""
    if key != own_key:
        raise StoreDamaged(f"the {what} {key} contains {own_key}")


def _owner(queue_id: int) -> str:
    entity_id, sub_queue = divmod(queue_id, QUEUES_PER_ENTITY)
    return f"{entity_id:012}/{sub_queue}"


def _rule(rights: Iterable[str], **settings: Any) -> AuthorizationRule:
    return AuthorizationRule(rights=tuple(rights), **settings)
