"""What happened, for whoever reads along: the life of every message as events.

Owns: the vocabulary of events and the list that fills during a batch. Must not know: who reads them, how they
are stored or written, queues beyond their id and name.

Changes say how things *are*, which is all that a restart needs; events say what *happened* and why, which is
what people ask about. They are recorded only while capture is on (see `recorder`), ride in the batch of the
changes they belong to, and so are durable with them, or not at all. What changes nothing durable (a delivery,
a renewal, a lock that lapsed unseen) waits for the next batch; one is made for it within `FLUSH_MS`.

An event is a plain tuple, since three of them are made for each message: the fields of `Event`, in order.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

FLUSH_MS = 1_000
"""So long at most an event that nothing durable follows waits for a batch."""


class EventType(IntEnum):
    """What happened. The number is what the store keeps, the name in lower case what readers see.

    A life is that of one message in one queue or sub-queue, named by (entity, sequence number). It begins
    with ENQUEUED or SCHEDULED and ends with one of `ENDS`. A message that goes elsewhere ends here, with
    `related_*` saying where it went, and begins a life there.
    """

    ENQUEUED = 1
    """It is stored and active. Of a topic: it has arrived and been numbered. `reason` is `sent via` where it
    was sent to another entity via this one, so that it only passes, or says that its body is not here."""
    SCHEDULED = 2
    """It is stored and waits for `scheduled_at_ms`."""
    ACTIVATED = 3
    """A scheduled message fell due. It goes on under a new number: `related_number`. `scheduled_at_ms` is
    later or earlier than SCHEDULED said where it was shifted."""
    DELIVERED = 4
    """Handed to a receiver: under a lock (`lock_token`, `locked_until_ms`) or, without, deleted with it."""
    RENEWED = 5
    """Its lock lasts until `locked_until_ms` now."""
    ABANDONED = 6
    """Given back by its receiver, counted. In a dead-letter queue nothing is counted."""
    RELEASED = 7
    """Given back without being counted: `reason` says why, where no receiver asked for it."""
    LOCK_LAPSED = 8
    """Its lock ended without a settlement, counted: time was up, or (`reason`) its connection broke and the
    grace is over."""
    COMPLETED = 9
    """Gone for good. `reason` where no receiver said so: `receive-and-delete` or `cursor`."""
    DEFERRED = 10
    """Set aside until asked for by number, counted."""
    DEAD_LETTERED = 11
    """Moved to a dead-letter queue, `related_entity`; `reason` is its DeadLetterReason."""
    EXPIRED = 12
    """Its time-to-live ended. `related_entity` is the dead-letter queue it went to, if any."""
    FORWARDED = 13
    """Passed on to `related_entity` under `related_number`; of a topic: copied to `related_number`
    subscriptions."""
    CANCELLED = 14
    """A scheduled message was cancelled."""
    PURGED = 15
    """Deleted with others, by request."""
    UNMATCHED = 16
    """No rule of its topic chose it: accepted and gone."""
    CLAIMED = 17
    """Held for a cursor: `reason` is the cursor's name, `related_number` the number of the claim."""
    CLAIM_RELEASED = 18
    """Given back by a cursor, not counted."""
    DUPLICATE_DROPPED = 19
    """Not stored: `sequence_number` is that of the first message with its id, `related_number` the one that
    it was given ahead, if it was."""
    SESSION_LOCKED = 20
    SESSION_RENEWED = 21
    SESSION_RELEASED = 22
    SESSION_STATE_SET = 23
    ENTITY_PRESENT = 24
    """Told of each entity at the start of an epoch; `reason` holds its settings, as JSON."""
    ENTITY_CREATED = 25
    ENTITY_UPDATED = 26
    ENTITY_DELETED = 27
    """It ends all lives in the entity."""
    EPOCH_STARTED = 28
    """The broker started: no lock from before it holds any more. `reason` holds, as JSON, `lock_grace_ms`:
    how long the locks of a connection outlive its break; null = until they lapse."""
    GAP = 29
    """Written by the exporter: batches `sequence_number` up to `related_number` are not in the log;
    `reason` says why."""
    NUMBER_ISSUED = 30
    """A request to schedule in a transaction was answered with this number. The message is SCHEDULED under it
    with the commit; after a roll-back, or as a duplicate, it never is."""

    CONNECTION_LOST = 31
    """A connection broke that held locks of messages: they end with its grace, unless they are settled or
    renewed by others before."""
    CLOCK_STEPPED = 32
    """The wall clock was set, or an operator believes it now. `reason` holds, as JSON, `step_ms` (0 = nobody
    set it), and how far it is ahead of the time that has passed since the start: `ahead_ms`, `due_ahead_ms`
    for instants, which differ while the step is taken for an error."""


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
"""Events after which nothing happens to a message in its queue."""


class Event(NamedTuple):
    """The fields of an event, in the order in which tuples have them. Times are UTC ms, 0 = none."""

    type: int
    at_ms: int
    queue_id: int
    queue_name: str | None
    """Path of the queue, sub-queue or topic; None where no entity is concerned."""
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
    """With DELIVERED and what concerns sessions: the receiver's link, as its peer calls it."""
    transaction_id: bytes | None
    lock_token: bytes | None
    head: bytes | None
    """Of a new message: the encoded properties section, or the whole encoded message where bodies are
    captured."""
    connection_lost: int
    """1: a lock ended because its connection broke (with LOCK_LAPSED and SESSION_RELEASED)."""


EventTuple: TypeAlias = tuple[Any, ...]
"""The fields of an `Event` without names, which costs a third of the time to make."""
