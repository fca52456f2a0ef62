"""Cursors and their claims as JSON texts.

Owns: the text of each, its key. Must not know: where it is kept, what a claim means.

The keys of what an entity has begin with its id, so that all of it goes with one range. A name stands in them
percent-encoded, since it may have any character, the separator among them; the text has it as it is.
"""

from __future__ import annotations

import json
from urllib.parse import quote

from peeklock.broker.vocabulary.changes import QUEUES_PER_ENTITY, ClaimStored, CursorStored
from peeklock.store.base import StoreDamaged

CURSOR_PREFIX = "cursor/"
CLAIM_PREFIX = "claim/"


def cursor_key(queue_id: int, name: str) -> str:
    """Return the key of a cursor."""
    return f"{CURSOR_PREFIX}{_owner(queue_id)}/{quote(name, safe='')}"


def claim_key(queue_id: int, cursor: str, no: int) -> str:
    """Return the key of a claim: those of a cursor stand together, in ascending order."""
    return f"{CLAIM_PREFIX}{_owner(queue_id)}/{quote(cursor, safe='')}/{no:020}"


def keys_of(entity_id: int) -> list[tuple[str, str]]:
    """Return pairs of keys between which all of an entity's cursors and claims are and nothing else is."""
    # "0" is the character that follows "/".
    return [
        (f"{prefix}{entity_id:012}/", f"{prefix}{entity_id:012}0") for prefix in (CURSOR_PREFIX, CLAIM_PREFIX)
    ]


def encode_cursor(stored: CursorStored) -> str:
    """Write a cursor down."""
    return _text(
        {
            "queue_id": stored.queue_id,
            "name": stored.name,
            "last_no": stored.last_no,
            "committed_no": stored.committed_no,
            "used_at_ms": stored.used_at_ms,
            "expires_after_ms": stored.expires_after_ms,
        }
    )


def decode_cursor(key: str, text: str) -> CursorStored:
    """Read a cursor. Raises: StoreDamaged."""
    try:
        record = json.loads(text)
        numbers = ("last_no", "committed_no", "used_at_ms", "expires_after_ms")
        stored = CursorStored(
            int(record["queue_id"]), str(record["name"]), *(int(record[number]) for number in numbers)
        )
    except KeyError as error:
        raise StoreDamaged(f"the cursor {key} cannot be read: it has no {error}") from error
    except (ValueError, TypeError) as error:
        raise StoreDamaged(f"the cursor {key} cannot be read: {error}") from error
    _compare("cursor", key, cursor_key(stored.queue_id, stored.name))
    return stored


def encode_claim(stored: ClaimStored) -> str:
    """Write a claim down."""
    return _text(
        {
            "queue_id": stored.queue_id,
            "cursor": stored.cursor,
            "no": stored.no,
            "positions": stored.positions,
        }
    )


def decode_claim(key: str, text: str) -> ClaimStored:
    """Read a claim. Raises: StoreDamaged."""
    try:
        record = json.loads(text)
        positions = tuple((int(first), int(count)) for first, count in record["positions"])
        stored = ClaimStored(int(record["queue_id"]), str(record["cursor"]), int(record["no"]), positions)
    except KeyError as error:
        raise StoreDamaged(f"the claim {key} cannot be read: it has no {error}") from error
    except (ValueError, TypeError) as error:
        raise StoreDamaged(f"the claim {key} cannot be read: {error}") from error
    _compare("claim", key, claim_key(stored.queue_id, stored.cursor, stored.no))
    return stored


def _owner(queue_id: int) -> str:
    entity_id, sub_queue = divmod(queue_id, QUEUES_PER_ENTITY)
    return f"{entity_id:012}/{sub_queue}"


def _text(record: dict[str, object]) -> str:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def _compare(what: str, key: str, own_key: str) -> None:
    if key != own_key:
        raise StoreDamaged(f"the {what} {key} says that it is {own_key}")
