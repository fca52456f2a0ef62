"""Changes: the facts that a store keeps, named by past participles.

Replay is "last record wins" per key; a fact about an unknown key is ignored. Locks are never facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from peeklock.broker.vocabulary.addresses import SequenceNumber
from peeklock.broker.vocabulary.descriptions import Description, RuleDescription
from peeklock.broker.vocabulary.message import Message


@dataclass(slots=True)
class MessageStored:
    """A record is new, or its state, count or properties changed. Key: (queue_id, message.position).

    `payload` is given once, for a new body; the engine places it and sets `message.body_row` and
    `message.body_slot`. The copies of one new body follow each other with the same `bytes` object, which is
    placed once and shared.
    """

    queue_id: int
    message: Message
    payload: bytes | None = None


@dataclass(slots=True)
class MessageRemoved:
    """A message left this queue (completed, expired, moved, cancelled). Key: as `MessageStored`."""

    queue_id: int
    message: Message


@dataclass(slots=True)
class NumbersIssued:
    """A queue's counters. Key: queue_id. Written once a batch for each queue that issued a number in it, and
    for an answer with a number under which nothing is stored yet."""

    queue_id: int
    next_position: int
    next_sequence_number: SequenceNumber
    last_enqueued_at_ms: int
    partitions: tuple[int, ...] = ()
    """Of a partitioned queue: the next number of each partition, without the roll-over."""


@dataclass(slots=True)
class MessageIdSeen:
    """Duplicate detection has seen a message id. Key: (queue_id, digest)."""

    queue_id: int
    digest: bytes
    """Keyed, 16 bytes."""
    seen_at_ms: int
    """0 = the id is free again: its message was cancelled before it was enqueued."""
    sequence_number: SequenceNumber
    """Of the first message; answers the scheduling of a duplicate (S-01)."""


@dataclass(slots=True)
class EntityStored:
    """An entity was created or updated. Key: entity_id; kept apart from the journal."""

    entity_id: int
    description: Description
    created_at_ms: int
    updated_at_ms: int
    deleting: bool = False
    """Of a topic: it is no longer found by name, and its subscriptions are being removed."""


@dataclass(slots=True)
class EntityRemoved:
    """An entity is gone, with its queues and rules; their space follows in slices. Key: entity_id; ids are
    never reused. A topic's subscriptions have facts of their own, before it."""

    entity_id: int


@dataclass(slots=True)
class RuleStored:
    """A subscription has this rule. Key: (entity_id, rule.name, case-insensitive); not in the journal."""

    entity_id: int
    rule: RuleDescription


@dataclass(slots=True)
class RuleRemoved:
    """A rule is gone. Key: as `RuleStored`."""

    entity_id: int
    name: str


@dataclass(slots=True)
class CursorStored:
    """A queue has this cursor. Key: (queue_id, name); kept apart from the journal."""

    queue_id: int
    name: str
    last_no: int
    """Number of its last claim; 0 = none yet."""
    committed_no: int
    """Claims up to this one were committed."""
    used_at_ms: int
    expires_after_ms: int
    """It is released and forgotten so long after its last use."""
    owner: str | None = None
    """The reader that it belongs to; None = the next one that reads."""
    unread_from_no: int | None = None
    """The owner has not read yet: until it does, another reader takes over, and later claims are released."""
    undone: tuple[int, int] | None = None
    """The first and the last number that the last restore skipped: claims under them were undone by it."""


@dataclass(slots=True)
class CursorRemoved:
    """A cursor is gone and its claims are released. Key: as `CursorStored`."""

    queue_id: int
    name: str


@dataclass(slots=True)
class ClaimStored:
    """A cursor holds these messages. Key: (queue_id, cursor, no); kept apart from the journal. Messages that
    have left the queue are no longer held."""

    queue_id: int
    cursor: str
    no: int
    positions: tuple[tuple[int, int], ...]
    """Runs of positions, ascending: (first, count)."""


@dataclass(slots=True)
class ClaimRemoved:
    """A claim was committed or released. Key: as `ClaimStored`."""

    queue_id: int
    cursor: str
    no: int


@dataclass(slots=True)
class FactStored:
    """A fact of the process that uses the store; the core neither makes nor reads it. Key: key; kept apart
    from the journal. Both are any text that UTF-8 can encode."""

    key: str
    value: str


@dataclass(slots=True)
class FactRemoved:
    """A fact of the process is gone. Key: as `FactStored`."""

    key: str


Change: TypeAlias = (
    MessageStored | MessageRemoved | NumbersIssued | MessageIdSeen | EntityStored | EntityRemoved |
    RuleStored | RuleRemoved | CursorStored | CursorRemoved | ClaimStored | ClaimRemoved |
    FactStored | FactRemoved
)  # fmt: skip

QUEUES_PER_ENTITY = 4
"""queue_id = entity_id * QUEUES_PER_ENTITY + SubQueue.value, or + SESSION_STATES."""

SESSION_STATES = 3
"""The states of an entity's sessions are messages of a queue without an address: body = state, `session_id` =
its session, `enqueued_at_ms` = when it was set. A new state is a new record."""
