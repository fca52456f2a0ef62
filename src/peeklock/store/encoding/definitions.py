"""The facts kept apart from the journal, as entries of `kv`: entities, rules, cursors, claims, the next id,
and the facts of the process.

Owns: the keys, the entries that a batch writes and deletes, and the consistency of all entries.
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
    FactRemoved,
    FactStored,
    RuleRemoved,
    RuleStored,
)
from peeklock.broker.vocabulary.descriptions import SubscriptionDescription, TopicDescription
from peeklock.store.base import Definitions, Entry, StoreDamaged
from peeklock.store.encoding import entities, rules

NEXT_ENTITY_ID_KEY = "next_entity_id"
CREATED_AT_KEY = "created_at_ms"
"""When the namespace was created, UTC ms; written with the tables."""
RELEASE_KEY = "release"
"""The release that gave the store its format: an older one, which cannot read the store, names it."""

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
        FactStored,
        FactRemoved,
    )
)
"""The types of these facts."""


@dataclass(slots=True)
class Entries:
    """The entries that a batch changes."""

    written: list[Entry] = field(default_factory=list)
    deleted: list[tuple[str, str]] = field(default_factory=list)
    """First and last key of each deleted range; deleted after the writes."""
    next_entity_id: int = 1


def entries_of(changes: Sequence[Change], next_entity_id: int) -> Entries | None:
    """Return the entries that a batch changes, None for none; `next_entity_id`: as before the batch."""
    if KINDS.isdisjoint(map(type, changes)):  # nearly always
        return None
    found = Entries(next_entity_id=next_entity_id)
    texts: dict[str, str | None] = {}
    for fact in changes:
        match fact:
            case EntityStored():
                texts[entities.key_of(fact.entity_id)] = entities.encode(fact)
                found.next_entity_id = max(found.next_entity_id, fact.entity_id + 1)
                texts[NEXT_ENTITY_ID_KEY] = str(found.next_entity_id)
            case EntityRemoved():
                texts[entities.key_of(fact.entity_id)] = None
                # Also what this batch wrote of them: an id is never used again.
                for prefix in (rules.KEY_PREFIX, entities.CURSOR_PREFIX, entities.CLAIM_PREFIX):
                    found.deleted.append(entities.keys_of(prefix, fact.entity_id))
            case RuleStored():
                texts[rules.key_of(fact.entity_id, fact.rule.name)] = rules.encode(fact)
            case RuleRemoved():
                texts[rules.key_of(fact.entity_id, fact.name)] = None
            case CursorStored():
                texts[entities.cursor_key(fact.queue_id, fact.name)] = entities.encode_cursor(fact)
            case CursorRemoved():
                texts[entities.cursor_key(fact.queue_id, fact.name)] = None
            case ClaimStored():
                key = entities.claim_key(fact.queue_id, fact.cursor, fact.no)
                texts[key] = entities.encode_claim(fact)
            case ClaimRemoved():
                texts[entities.claim_key(fact.queue_id, fact.cursor, fact.no)] = None
            case FactStored():
                texts[entities.fact_key(fact.key)] = fact.value
            case FactRemoved():
                texts[entities.fact_key(fact.key)] = None
    for key, text in texts.items():
        if text is None:
            found.deleted.append((key, key))
        else:
            found.written.append(entry(key, text))
    return found


class Reader:
    """Reads entries one by one, in any order; `contradictions` checks them against each other at the end."""

    def __init__(self) -> None:
        self._entities: dict[int, EntityStored] = {}
        self._rules: list[tuple[str, RuleStored]] = []
        self._cursors: list[tuple[str, CursorStored]] = []
        self._claims: list[tuple[str, ClaimStored]] = []
        self._facts: dict[str, str] = {}
        self._next_entity_id = 1

    def add(self, key: str, text: str, checksum: int) -> None:
        """Add an entry. Raises: StoreDamaged."""
        if type(key) is not str or type(text) is not str:  # SQLite keeps the type beside each value
            raise StoreDamaged(f"the entry {key!r} is damaged: it is not text")
        found = _checksum(key, text)
        if found != checksum:
            raise StoreDamaged(
                f"the entry {key} fails its checksum: stored {checksum:08x}, computed {found:08x}"
            )
        if key.startswith(entities.KEY_PREFIX):
            entity = entities.decode(key, text)
            self._entities[entity.entity_id] = entity
        elif key.startswith(rules.KEY_PREFIX):
            self._rules.append((key, rules.decode(key, text)))
        elif key.startswith(entities.CURSOR_PREFIX):
            self._cursors.append((key, entities.decode_cursor(key, text)))
        elif key.startswith(entities.CLAIM_PREFIX):
            self._claims.append((key, entities.decode_claim(key, text)))
        elif key.startswith(entities.FACT_PREFIX):
            self._facts[key.removeprefix(entities.FACT_PREFIX)] = text
        elif key == NEXT_ENTITY_ID_KEY and text.isdecimal():
            self._next_entity_id = int(text)
        elif (key == CREATED_AT_KEY and text.isdecimal()) or key == RELEASE_KEY:
            pass  # read when the store is opened
        else:
            raise StoreDamaged(f"the entry {key} is of an unknown kind: {text[:80]!r}")

    def read(self) -> Definitions:
        """Return the definitions added so far."""
        return Definitions(
            [entity for _, entity in sorted(self._entities.items())],
            [rule for _, rule in sorted(self._rules, key=itemgetter(0))],
            self._next_entity_id,
            [cursor for _, cursor in sorted(self._cursors, key=itemgetter(0))],
            [claim for _, claim in sorted(self._claims, key=itemgetter(0))],
            dict(sorted(self._facts.items())),
        )

    def contradictions(self) -> list[str]:
        """Return what contradicts each other in the entries; call it after the last `add`."""
        found = []
        descriptions = {entity_id: entity.description for entity_id, entity in self._entities.items()}
        topics = {each.name.lower() for each in descriptions.values() if isinstance(each, TopicDescription)}
        for entity_id, description in sorted(descriptions.items()):
            if isinstance(description, SubscriptionDescription):
                topic_name = description.topic_name
                if topic_name.lower() not in topics:
                    key = entities.key_of(entity_id)
                    found.append(f"{key} is a subscription of the topic '{topic_name}', which does not exist")
            if entity_id >= self._next_entity_id:
                next_id = f"{NEXT_ENTITY_ID_KEY} is {self._next_entity_id}"
                found.append(f"{next_id}, but there is an entity with the id {entity_id}")
        for key, rule in sorted(self._rules, key=itemgetter(0)):
            owner = descriptions.get(rule.entity_id)
            if owner is None:
                found.append(f"{key} is a rule of entity {rule.entity_id}, which does not exist")
            elif not isinstance(owner, SubscriptionDescription):
                found.append(f"{key} is a rule of '{owner.name}', which is not a subscription")
        last_nos = {(each.queue_id, each.name): each.last_no for _, each in self._cursors}
        for key, cursor in sorted(self._cursors, key=itemgetter(0)):
            entity_id = cursor.queue_id // QUEUES_PER_ENTITY
            if entity_id not in descriptions:
                found.append(f"{key} is a cursor of entity {entity_id}, which does not exist")
        for key, claim in sorted(self._claims, key=itemgetter(0)):
            last_no = last_nos.get((claim.queue_id, claim.cursor))
            if last_no is None:
                found.append(f"{key} is a claim of the cursor '{claim.cursor}', which does not exist")
            elif claim.no > last_no:
                found.append(f"{key} is claim {claim.no} of a cursor whose last one is {last_no}")
        return found


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
