"""What became true: the facts that a store keeps, past participles.

Owns: the vocabulary of durable facts. Must not know: how they are encoded or where. Replay is "last record
wins" per key; a fact about an unknown key is ignored. Locks are never facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from peeklock.broker.vocabulary.descriptions import Description, RuleDescription
from peeklock.broker.vocabulary.message import Message


@dataclass(slots=True)
class MessageStored:
    """The whole record of a message is now this: it is new, or its state, count or properties changed.

    Key: (queue_id, message.position). `payload` is given once, when the body is new; the engine places it and
    sets `message.body_row` and `message.body_slot`. The copies of one new body, one for each subscription,
    come one after another with the same `bytes` object: it is placed once and shared.
    """

    queue_id: int
    message: Message
    payload: bytes | None = None


@dataclass(slots=True)
class MessageRemoved:
    """The message is gone from this queue (completed, expired, moved, cancelled). Key: (queue_id,
    message.position)."""

    queue_id: int
    message: Message


@dataclass(slots=True)
class NumbersIssued:
    """A queue's counters. Key: queue_id. Written once per batch for each queue that issued a number in it,
    and for an answer that names a number under which nothing is stored yet."""

    queue_id: int
    next_position: int
    next_sequence_number: int
    last_enqueued_at_ms: int
    partitions: tuple[int, ...] = ()
    """Of a partitioned queue: the number each partition issues next, counted on where they roll over."""


@dataclass(slots=True)
class MessageIdSeen:
    """A message id counts as seen by duplicate detection until its window ends. Key: (queue_id, digest)."""

    queue_id: int
    digest: bytes
    """16 bytes, keyed."""
    seen_at_ms: int
    """0 = the id is free again: the message with this number was cancelled before it was enqueued."""
    sequence_number: int
    """Number of the first message, answered to a scheduling of its duplicate (S-01)."""


@dataclass(slots=True)
class EntityStored:
    """An entity was created or updated. Key: entity_id; kept apart from the journal."""

    entity_id: int
    description: Description
    created_at_ms: int
    updated_at_ms: int
    deleting: bool = False
    """Of a topic: it is gone for everybody, and its subscriptions are being removed."""


@dataclass(slots=True)
class EntityRemoved:
    """An entity, all its queues and rules are gone; their space follows in slices. Key: entity_id; ids are
    never reused. The subscriptions of a topic are removed by facts of their own, before it."""

    entity_id: int


@dataclass(slots=True)
class RuleStored:
    """A subscription has this rule. Key: (entity_id, rule.name without regard to case); kept apart from the
    journal."""

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
    """Number of its last claim; the next one is one higher. 0 = none yet."""
    committed_no: int
    """Claims up to this one were committed."""
    used_at_ms: int
    expires_after_ms: int
    """So long after its last use it is released and forgotten."""


@dataclass(slots=True)
class CursorRemoved:
    """A cursor is gone, its claims were released. Key: as `CursorStored`."""

    queue_id: int
    name: str


@dataclass(slots=True)
class ClaimStored:
    """A cursor holds these messages. Key: (queue_id, cursor, no); kept apart from the journal. What of them
    is not in the queue any more was removed since."""

    queue_id: int
    cursor: str
    no: int
    positions: tuple[tuple[int, int], ...]
    """Runs of positions: (first, how many), ascending."""


@dataclass(slots=True)
class ClaimRemoved:
    """A claim was committed or released. Key: as `ClaimStored`."""

    queue_id: int
    cursor: str
    no: int


Change: TypeAlias = (
    MessageStored | MessageRemoved | NumbersIssued | MessageIdSeen | EntityStored | EntityRemoved |
    RuleStored | RuleRemoved | CursorStored | CursorRemoved | ClaimStored | ClaimRemoved
)  # fmt: skip

QUEUES_PER_ENTITY = 4
"""queue_id = entity_id * QUEUES_PER_ENTITY + SubQueue.value, or + SESSION_STATES."""

SESSION_STATES = 3
"""The states of an entity's sessions are stored as messages of a queue that nobody can name: body = state,
`session_id` = whose, `enqueued_at_ms` = when it was set. A new state is a new record, like any move."""
