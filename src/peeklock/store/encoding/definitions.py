"""What is kept apart from the journal: entities, their rules, cursors with their claims, and the next free
entity id, as entries of `kv`.

Owns: the keys, what a batch does to the entries, what must hold between them. Must not know: tables, the text
of a definition.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from peeklock.broker.vocabulary.changes import (
    QUEUES_PER_ENTITY,
    Change,
    ClaimRemoved,
    ClaimStored,
    CursorRemoved,
    CursorStored,
    EntityRemoved,
    EntityStored,
    RuleRemoved,
    RuleStored,
)
from peeklock.broker.vocabulary.descriptions import SubscriptionDescription, TopicDescription
from peeklock.store.base import Definitions, StoreDamaged
from peeklock.store.encoding import cursors, entities, rules

NEXT_ENTITY_ID_KEY = "next_entity_id"
CREATED_AT_KEY = "created_at_ms"
"""When the namespace was made, UTC ms; written with the tables."""

KINDS = frozenset(
    (
        EntityStored,
        EntityRemoved,
        RuleStored,
        RuleRemoved,
        CursorStored,
        CursorRemoved,
        ClaimStored,
        ClaimRemoved,
    )
)
"""Facts that are kept here."""

Entry = tuple[str, str, int]
"""Key, text and checksum."""


@dataclass(slots=True)
class Entries:
    """What a batch does to the entries."""

    written: list[Entry] = field(default_factory=list)
    deleted: list[tuple[str, str]] = field(default_factory=list)
    """First and last key of what goes, once all is written."""
    next_entity_id: int = 1


def entries_of(changes: Sequence[Change], next_entity_id: int) -> Entries | None:
    """Return what the facts of a batch do to the entries, None for nothing; `next_entity_id` is what it was
    before."""
    if KINDS.isdisjoint(map(type, changes)):  # nearly always
        return None
    facts = [change for change in changes if type(change) in KINDS]
    found = Entries(next_entity_id=next_entity_id)
    texts: dict[str, str | None] = {}
    for fact in facts:
        match fact:
            case EntityStored():
                texts[entities.key_of(fact.entity_id)] = entities.encode(fact)
                found.next_entity_id = max(found.next_entity_id, fact.entity_id + 1)
                texts[NEXT_ENTITY_ID_KEY] = str(found.next_entity_id)
            case EntityRemoved():
                texts[entities.key_of(fact.entity_id)] = None
                # What was written of them in this very batch goes too: an id is never used again.
                found.deleted.append(rules.keys_of(fact.entity_id))
                found.deleted += cursors.keys_of(fact.entity_id)
            case RuleStored():
                texts[rules.key_of(fact.entity_id, fact.rule.name)] = rules.encode(fact)
            case RuleRemoved():
                texts[rules.key_of(fact.entity_id, fact.name)] = None
            case CursorStored():
                texts[cursors.cursor_key(fact.queue_id, fact.name)] = cursors.encode_cursor(fact)
            case CursorRemoved():
                texts[cursors.cursor_key(fact.queue_id, fact.name)] = None
            case ClaimStored():
                key = cursors.claim_key(fact.queue_id, fact.cursor, fact.no)
                texts[key] = cursors.encode_claim(fact)
            case ClaimRemoved():
                texts[cursors.claim_key(fact.queue_id, fact.cursor, fact.no)] = None
    for key, text in texts.items():
        if text is None:
            found.deleted.append((key, key))
        else:
            found.written.append((key, text, _checksum(key, text)))
    return found


class Reader:
    """Reads entries one by one, in any order; what must hold between them is known at the end."""

    def __init__(self) -> None:
        self._entities: dict[int, EntityStored] = {}
        self._rules: list[tuple[str, RuleStored]] = []
        self._cursors: list[tuple[str, CursorStored]] = []
        self._claims: list[tuple[str, ClaimStored]] = []
        self._next_entity_id = 1

    def add(self, key: str, text: str, checksum: int) -> None:
        """Read an entry. Raises: StoreDamaged."""
        if type(key) is not str or type(text) is not str:  # SQLite keeps the type beside each value
            raise StoreDamaged(f"the entry {key!r} is damaged: it is no text")
        found = _checksum(key, text)
        if found != checksum:
            raise StoreDamaged(
                f"the entry {key} fails its checksum: it says {checksum:08x}, its text gives {found:08x}"
            )
        if key.startswith(entities.KEY_PREFIX):
            entity = entities.decode(key, text)
            self._entities[entity.entity_id] = entity
        elif key.startswith(rules.KEY_PREFIX):
            self._rules.append((key, rules.decode(key, text)))
        elif key.startswith(cursors.CURSOR_PREFIX):
            self._cursors.append((key, cursors.decode_cursor(key, text)))
        elif key.startswith(cursors.CLAIM_PREFIX):
            self._claims.append((key, cursors.decode_claim(key, text)))
        elif key == NEXT_ENTITY_ID_KEY and text.isdecimal():
            self._next_entity_id = int(text)
        elif key == CREATED_AT_KEY and text.isdecimal():
            pass  # whoever opens the store reads it
        else:
            raise StoreDamaged(
                f"the entry {key} is of no kind that this release knows: it says {text[:80]!r}"
            )

    def read(self) -> Definitions:
        """Return what was read so far, as it is."""
        return Definitions(
            [entity for _, entity in sorted(self._entities.items())],
            [rule for _, rule in sorted(self._rules, key=itemgetter(0))],
            self._next_entity_id,
            [cursor for _, cursor in sorted(self._cursors, key=itemgetter(0))],
            [claim for _, claim in sorted(self._claims, key=itemgetter(0))],
        )

    def contradictions(self) -> list[str]:
        """Say what cannot be, once all entries were read."""
        found = []
        descriptions = {entity_id: entity.description for entity_id, entity in self._entities.items()}
        topics = {each.name.lower() for each in descriptions.values() if isinstance(each, TopicDescription)}
        for entity_id, description in sorted(descriptions.items()):
            if isinstance(description, SubscriptionDescription):
                topic_name = description.topic_name
                if topic_name.lower() not in topics:
                    key = entities.key_of(entity_id)
                    found.append(f"{key} is a subscription of the topic '{topic_name}', which is not there")
            if entity_id >= self._next_entity_id:
                next_id = f"{NEXT_ENTITY_ID_KEY} is {self._next_entity_id}"
                found.append(f"{next_id}, but there is an entity with the id {entity_id}")
        for key, rule in sorted(self._rules, key=itemgetter(0)):
            owner = descriptions.get(rule.entity_id)
            if owner is None:
                found.append(f"{key} is a rule of entity {rule.entity_id}, which is not there")
            elif not isinstance(owner, SubscriptionDescription):
                found.append(f"{key} is a rule of '{owner.name}', which is no subscription")
        last_nos = {(each.queue_id, each.name): each.last_no for _, each in self._cursors}
        for key, cursor in sorted(self._cursors, key=itemgetter(0)):
            entity_id = cursor.queue_id // QUEUES_PER_ENTITY
            if entity_id not in descriptions:
                found.append(f"{key} is a cursor of entity {entity_id}, which is not there")
        for key, claim in sorted(self._claims, key=itemgetter(0)):
            last_no = last_nos.get((claim.queue_id, claim.cursor))
            if last_no is None:
                found.append(f"{key} is a claim of the cursor '{claim.cursor}', which is not there")
            elif claim.no > last_no:
                found.append(f"{key} is claim {claim.no} of a cursor whose last one is {last_no}")
        return found


def created_at(created_at_ms: int) -> Entry:
    """Return the entry that says when the namespace was made."""
    return entry(CREATED_AT_KEY, str(created_at_ms))


def entry(key: str, text: str) -> Entry:
    """Return an entry with its checksum."""
    return key, text, _checksum(key, text)


def read_all(entries: Iterable[Entry]) -> Definitions:
    """Read all entries of a store. Raises: StoreDamaged."""
    reader = Reader()
    for entry in entries:
        reader.add(*entry)
    for contradiction in reader.contradictions():
        raise StoreDamaged(contradiction)
    return reader.read()


def _checksum(key: str, text: str) -> int:
    """Return the CRC-32 of an entry, its key included."""
    return zlib.crc32(f"{key}={text}".encode())
