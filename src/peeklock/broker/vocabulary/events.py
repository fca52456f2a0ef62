"""Events: what happened to each message, session and entity, for the event log.

Changes state how things *are*, which is what a restart needs; events state what *happened*, and why. They are
recorded only while capture is on (`queue.recorder`) and are durable with the batch of their changes. An
event without a durable change (a delivery, a renewal) waits for the next batch, `FLUSH_MS` at most.

An event is a plain tuple with the fields of `Event`, since three are made for each message.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

from peeklock.broker.vocabulary.addresses import LockToken

FLUSH_MS = 1_000
"""How long an event waits at most for a batch."""


class EventType(IntEnum):
    """The store keeps the number; readers see the name in lower case.

    A life is that of one message in one queue or sub-queue, named by (entity, sequence number). It begins
    with ENQUEUED or SCHEDULED and ends with one of `ENDS`. A message that moves ends its life here, with
    `related_*` naming where it went, and begins another one there.
    """

    ENQUEUED = 1
    """Stored and active. Of a topic: arrived and numbered. `reason` is `sent via` for a message that is sent
    via this entity to another one, or says that the body is missing here."""
    SCHEDULED = 2
    """Stored until `scheduled_at_ms`."""
    ACTIVATED = 3
    """A scheduled message fell due and continues under `related_number`. If it was shifted, `scheduled_at_ms`
    differs from that of SCHEDULED."""
    DELIVERED = 4
    """Delivered to a receiver: under a lock (`lock_token`, `locked_until_ms`), or else deleted with it."""
    RENEWED = 5
    """The lock was renewed until `locked_until_ms`."""
    ABANDONED = 6
    """Given back by the receiver, counted. A dead-letter queue does not count."""
    RELEASED = 7
    """Given back, not counted; with a `reason` if no receiver requested it."""
    LOCK_LAPSED = 8
    """The lock ended without a settlement, counted: it expired, or (`reason`) its connection broke."""
    COMPLETED = 9
    """Done. With a `reason` if no receiver settled it: `receive-and-delete` or `cursor`."""
    DEFERRED = 10
    """Set aside until its number is requested, counted. With the `reason` `by request` no receiver held it,
    and it is not counted."""
    DEAD_LETTERED = 11
    """Moved to a dead-letter queue, `related_entity`; `reason` is its DeadLetterReason."""
    EXPIRED = 12
    """The time-to-live ended. `related_entity` is the dead-letter queue, if it went to one."""
    FORWARDED = 13
    """Passed on to `related_entity` under `related_number`; of a topic: to that many subscriptions."""
    CANCELLED = 14
    """A scheduled message was cancelled."""
    PURGED = 15
    """Deleted by a request that names messages, not by a receiver."""
    UNMATCHED = 16
    """No rule of the topic matched: accepted and dropped."""
    CLAIMED = 17
    """Held for the cursor `reason`, in its claim `related_number`."""
    CLAIM_RELEASED = 18
    """Given back by a cursor, not counted."""
    DUPLICATE_DROPPED = 19
    """Not stored: `sequence_number` is that of the first message with the id, `related_number` the one that
    it was given ahead, if any."""
    SESSION_LOCKED = 20
    SESSION_RENEWED = 21
    SESSION_RELEASED = 22
    SESSION_STATE_SET = 23
    """With the `reason` `by request` nobody held the session."""
    ENTITY_PRESENT = 24
    """Recorded for each entity at the start of an epoch; `reason` is its settings, as JSON."""
    ENTITY_CREATED = 25
    ENTITY_UPDATED = 26
    ENTITY_DELETED = 27
    """Ends all lives in the entity."""
    EPOCH_STARTED = 28
    """The broker started: earlier locks are gone. `reason` is, as JSON, `lock_grace_ms`: how long locks
    outlive a broken connection; null = until they lapse."""
    GAP = 29
    """Written by the exporter: batches `sequence_number` to `related_number` are missing, see `reason`."""
    NUMBER_ISSUED = 30
    """The number answers a request to schedule in a transaction. The message is SCHEDULED under it with the
    commit; not after a roll-back, nor as a duplicate."""

    CONNECTION_LOST = 31
    """A connection broke that held message locks: they end with its grace unless they are settled, or renewed
    over another connection, before."""
    CLOCK_STEPPED = 32
    """The wall clock was set, or an operator accepted it. `reason` is, as JSON, `step_ms` (0 = accepted), and
    how far the clock is ahead of the time since the start: `ahead_ms`, and `due_ahead_ms` for instants. The
    two differ while a step is not believed."""
    RESTORED = 33
    """The store was restored from a back-up, which ends with batch `sequence_number`: what later batches
    did, up to this one, is undone, and their numbers are not used again. The new life begins with batch
    `related_number`. `reason` is, as JSON, `backed_up_at`, `skipped_batches` and `skipped_numbers`."""


BY_REQUEST = "by request"
"""`reason` of DEFERRED and SESSION_STATE_SET without a receiver."""

NUMBERED_AHEAD = "numbered ahead"
"""`reason` of SCHEDULED after NUMBER_ISSUED."""

ENDS = frozenset(
    {
        EventType.ACTIVATED,
        EventType.COMPLETED,
        EventType.DEAD_LETTERED,
        EventType.EXPIRED,
        EventType.FORWARDED,
        EventType.CANCELLED,
        EventType.PURGED,
        EventType.UNMATCHED,
    }
)
"""Events that end the life of a message in its queue."""


class Event(NamedTuple):
    """The fields of an event, in the order of the tuples. Times are UTC ms, 0 = none."""

    type: int
    at_ms: int
    queue_id: int
    queue_name: str | None
    """Path of the queue, sub-queue or topic; None = no entity."""
    sequence_number: int
    enqueued_sequence_number: int
    delivery_count: int
    """After the event."""
    state: int
    """`MessageState` before the event."""
    size_bytes: int
    enqueued_at_ms: int
    expires_at_ms: int
    scheduled_at_ms: int
    locked_until_ms: int
    related_number: int
    connection_id: int
    related_entity: str | None
    session_id: str | None
    reason: str | None
    link_name: str | None
    """Name of the receiver's link on the wire; with DELIVERED and events of sessions."""
    transaction_id: bytes | None
    lock_token: LockToken | None
    head: bytes | None
    """Of a new message: the encoded properties section, or the whole message where bodies are captured."""
    connection_lost: int
    """1 = a lock ended because its connection broke (LOCK_LAPSED, SESSION_RELEASED)."""


EventTuple: TypeAlias = tuple[Any, ...]
"""The fields of an `Event` without names, made in a third of the time."""
