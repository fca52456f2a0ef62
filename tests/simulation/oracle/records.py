"""The durable facts as plain copies: the content of a batch when it was taken.

Owns: `Record`, one message as it was in one batch, and how it is copied out of the broker's own objects,
which change after that. Must not know: what may become of a record (`facts`), or why (`reasons`).

Each message of the simulation, and each state of a session, carries `uid=NNNNNNNN;` in its body, so that a
body identifies its send. `copies` finds out later which of a topic's copies a record is.
"""

from __future__ import annotations

import re
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from peeklock.amqp.codec import decode
from peeklock.amqp.types import Symbol
from peeklock.broker.vocabulary.changes import (
    QUEUES_PER_ENTITY,
    SESSION_STATES,
    Change,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
)
from peeklock.broker.vocabulary.message import MessageState
from peeklock.store.base import Batch
from tests.simulation.oracle.rulebook import PROPERTIES, Traits
from tests.simulation.oracle.spellings import session_of
from tests.simulation.world.clocks import Clock

UID = re.compile(rb"uid=(\d{8});")

UIDS_OF_A_NAMESPACE = 50_000_000
"""The uids of two namespaces of one process are below this number and above it."""

MAIN, DEAD_LETTER, TRANSFER_DEAD_LETTER = 0, 1, 2
"""Values of `Record.sub`, beside `SESSION_STATES`."""

PARTITION_SHIFT = 48
"""A partitioned queue's sequence number has the partition above these bits (S-02)."""

Key = tuple[int, int]
"""(queue id, position)."""


class Violation(Exception):
    """Something has happened that must never happen."""


def uid_of(payload: bytes) -> int:
    """Return the simulation's own number in a body."""
    found = UID.search(payload)
    if found is None:
        raise Violation(f"a body of {len(payload)} bytes without uid: {payload[:80]!r}")
    return int(found[1])


def require_own(uid: int, first_uid: int, what: str) -> None:
    """Raise Violation if a body is of the other namespace; `what` has happened to it."""
    if uid // UIDS_OF_A_NAMESPACE != first_uid // UIDS_OF_A_NAMESPACE:
        raise Violation(f"uid {uid} of another namespace was {what}")


@dataclass(slots=True)
class Record:
    """A message's record as it was when its batch was taken."""

    queue_id: int
    position: int
    sequence_number: int
    enqueued_sequence_number: int
    state: MessageState
    delivery_count: int
    enqueued_at_ms: int
    expires_at_ms: int
    scheduled_at_ms: int | None
    row: int
    slot: int
    overlay: bytes | None
    session_id: str | None = None
    hops: int = 0
    dead_letter_source: str | None = None
    uid: int = 0
    """Which message it is: the uid in its body, or a number given to a topic's copy of that."""
    body_uid: int = 0

    @property
    def entity_id(self) -> int:
        return self.queue_id // QUEUES_PER_ENTITY

    @property
    def sub(self) -> int:
        """Which queue of the entity."""
        return self.queue_id % QUEUES_PER_ENTITY

    @property
    def is_dead(self) -> bool:
        """It is in a dead-letter queue, of either kind."""
        return self.sub in (DEAD_LETTER, TRANSFER_DEAD_LETTER)

    @property
    def is_state(self) -> bool:
        """It is the state of a session."""
        return self.sub == SESSION_STATES

    @property
    def session(self) -> str | None:
        """The session, however the message spells it."""
        return None if self.session_id is None else session_of(self.session_id)

    def key(self) -> Key:
        return self.queue_id, self.position

    def dead_letter_reason(self) -> str | None:
        """Return `DeadLetterReason` from the changed application properties."""
        if self.overlay is None:
            return None
        properties: Any = decode(self.overlay)[0]
        reason: str | None = properties.get("DeadLetterReason")
        return reason

    def traits(self, sent: Traits) -> Traits:
        """Return what rules see of a message that was sent with `sent`."""
        if self.overlay is None:
            return sent
        changed: Any = decode(self.overlay)[0]
        properties = dict(sent.properties)
        label, session_id = sent.label, sent.session_id
        for name, value in changed.items():
            if isinstance(name, bytes):
                properties.pop(name.decode(), None)
            elif not isinstance(name, Symbol):
                if name.lower() in PROPERTIES:
                    properties[name] = value
            elif name == "subject":
                label = value
            elif name == "group-id":
                session_id = value
        return Traits(properties, label, session_id)

    def __str__(self) -> str:
        session = "" if self.session_id is None else f" session {self.session_id!r}"
        hops = f" hops {self.hops}" if self.hops else ""
        return (
            f"queue {self.queue_id} position {self.position} sequence {self.sequence_number:#x}"
            f" {self.state.name}{session}{hops}"
            f" count {self.delivery_count} row {self.row}.{self.slot} uid {self.uid}"
        )


@dataclass(slots=True)
class Snapshot:
    """A batch, copied when it was taken: records change after that."""

    no: int
    changes: list[Record | tuple[Key, ...] | Change]
    """A `Record` for a stored message, a one-element tuple of its key for a removed one, else the change
    itself."""
    rows: dict[int, list[bytes]]
    dropped: list[int]
    opened_ms: int
    """Time at which the batch before was taken: nothing in this one was decided earlier."""
    taken_ms: int


@dataclass(slots=True, eq=False)
class Commit:
    """A batch that has landed, and when."""

    no: int
    opened_ms: int
    taken_ms: int
    landed_ms: int
    clock: Clock
    """When it landed; of its process."""
    earliest_ms: int
    latest_ms: int
    """Between these instants, as the broker believed its clock, all in it was decided."""


@dataclass(slots=True)
class Life:
    """All that was ever durable about one uid."""

    records: list[tuple[Record, Commit]] = field(default_factory=list)
    removed: Commit | None = None
    """The commit after which it was nowhere any more."""
    copies: list[int] = field(default_factory=list)
    """The uids of a topic's copies of it."""
    copied: Commit | None = None
    """The commit in which that was."""

    @property
    def has_trace(self) -> bool:
        """A part of it was on stable storage at some time."""
        return bool(self.records or self.copies)


def snapshot(batch: Batch, opened_ms: int, taken_ms: int) -> Snapshot:
    """Copy a batch at the moment it is taken."""
    return Snapshot(
        batch.no,
        [copied(change) for change in batch.changes],
        {row: list(payloads) for row, payloads in batch.body_rows.items()},
        list(batch.dropped_rows),
        opened_ms,
        taken_ms,
    )


def copied(change: Change) -> Record | tuple[Key, ...] | Change:
    """Copy a change, as `Snapshot.changes` has it."""
    if isinstance(change, MessageStored):
        m = change.message
        return Record(
            change.queue_id, m.position, m.sequence_number, m.enqueued_sequence_number, m.state,
            m.delivery_count, m.enqueued_at_ms, m.expires_at_ms, m.scheduled_at_ms, m.body_row, m.body_slot,
            m.overlay, m.session_id, m.hops, m.dead_letter_source,
        )  # fmt: skip
    if isinstance(change, MessageRemoved):
        return ((change.queue_id, change.message.position),)
    if isinstance(change, NumbersIssued):
        return NumbersIssued(
            change.queue_id,
            change.next_position,
            change.next_sequence_number,
            change.last_enqueued_at_ms,
            change.partitions,
        )
    return change


def frozen(batch: Batch) -> Batch:
    """Copy a batch with its records, as a real store encodes it before anything else happens."""
    return Batch(
        batch.no,
        [_copied(change) for change in batch.changes],
        {row: list(payloads) for row, payloads in batch.body_rows.items()},
        list(batch.dropped_rows),
        batch.dropped_bytes,
        batch.truncate_before,
        batch.events,
        batch.events_exported_to,
    )


def _copied(change: Change) -> Change:
    if isinstance(change, MessageStored | MessageRemoved):
        change = copy(change)
        change.message = copy(change.message)
        change.message.lock = None
    elif isinstance(change, NumbersIssued):
        change = copy(change)
    return change
