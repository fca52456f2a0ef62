"""Entity definitions as JSON texts: few, read by people too, and open to fields of later releases' formats.

Owns: the text of a definition. Must not know: where it is kept.
"""

from __future__ import annotations

import dataclasses
import json
import zlib

from peeklock.broker.changes import EntityStored
from peeklock.broker.descriptions import EntityStatus, QueueDescription
from peeklock.store.base import StoreDamaged

KEY_PREFIX = "entity/"
NEXT_ENTITY_ID_KEY = "next_entity_id"


def key_of(entity_id: int) -> str:
    """Give the key of an entity's definition; keys sort by id."""
    return f"{KEY_PREFIX}{entity_id:012}"


def encode(entity: EntityStored) -> str:
    """Write a definition down."""
    queue = dataclasses.asdict(entity.description)
    queue["status"] = entity.description.status.value
    return json.dumps(
        {
            "entity_id": entity.entity_id,
            "created_at_ms": entity.created_at_ms,
            "updated_at_ms": entity.updated_at_ms,
            "queue": queue,
        },
        ensure_ascii=False,
        separators=(",", ":"),
    )


def decode(key: str, text: str) -> EntityStored:
    """Read a definition; fields that it lacks have their defaults. Raises: StoreDamaged."""
    try:
        record = json.loads(text)
        queue = dict(record["queue"])
        if "status" in queue:
            queue["status"] = EntityStatus(queue["status"])
        entity = EntityStored(
            record["entity_id"], QueueDescription(**queue), record["created_at_ms"], record["updated_at_ms"]
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDamaged(f"the definition {key} cannot be read: {error}") from error
    if key != key_of(entity.entity_id):
        raise StoreDamaged(f"the definition {key} says that it is {key_of(entity.entity_id)}")
    return entity


def checksum(key: str, text: str) -> int:
    """Give the CRC-32 of an entry, its key included."""
    return zlib.crc32(f"{key}={text}".encode())
