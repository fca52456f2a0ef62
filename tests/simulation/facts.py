"""The durable facts, folded from the committed batches, and what must hold between them whatever clients do.

Owns: a second, naive reading of `Change`: last record wins per key. Must not know: the broker's own
structures, or why a change was made; whoever knows (the checker) is asked through `explain`.

Each message of the simulation carries `uid=NNNNNNNN;` in its body, so that the body tells which send it came
from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from peeklock.amqp.codec import decode
from peeklock.broker.changes import (
    QUEUES_PER_ENTITY,
    Change,
    EntityRemoved,
    EntityStored,
    MessageIdSeen,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
)
from peeklock.broker.descriptions import QueueDescription
from peeklock.broker.message import MessageState
from peeklock.store.base import Batch, Frame

UID = re.compile(rb"uid=(\d{8});")

Key = tuple[int, int]
"""(queue id, position)."""


class Violation(Exception):
    """Something that must never happen has happened."""


def uid_of(payload: bytes) -> int:
    """Read the simulation's own number from a body."""
    found = UID.search(payload)
    if found is None:
        raise Violation(f"a body of {len(payload)} bytes without uid: {payload[:80]!r}")
    return int(found[1])


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
    uid: int = 0

    @property
    def in_dead_letter_queue(self) -> bool:
        return self.queue_id % QUEUES_PER_ENTITY != 0

    def key(self) -> Key:
        return self.queue_id, self.position

    def dead_letter_reason(self) -> str | None:
        """Read `DeadLetterReason` from the changed application properties."""
        if self.overlay is None:
            return None
        properties: Any = decode(self.overlay)[0]
        return properties.get("DeadLetterReason")

    def __str__(self) -> str:
        return (
            f"queue {self.queue_id} position {self.position} sequence {self.sequence_number}"
            f" {self.state.name}"
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
    """World time at which the batch before was taken: nothing in this one was decided earlier."""
    taken_ms: int


@dataclass(slots=True)
class Commit:
    """When a batch came about, in world time, and the broker's clock relative to it."""

    no: int
    opened_ms: int
    taken_ms: int
    landed_ms: int
    offset_ms: int

    @property
    def opened_broker_ms(self) -> int:
        return self.opened_ms + self.offset_ms

    @property
    def taken_broker_ms(self) -> int:
        return self.taken_ms + self.offset_ms


@dataclass(slots=True)
class Life:
    """All that was ever durable about one uid."""

    records: list[tuple[Record, Commit]] = field(default_factory=list)
    removed: Commit | None = None
    """The commit after which it was nowhere any more."""


def snapshot(batch: Batch, opened_ms: int, taken_ms: int) -> Snapshot:
    """Copy what a batch says, at the moment it is taken."""
    return Snapshot(
        batch.no,
        [_copy(change) for change in batch.changes],
        {row: list(payloads) for row, payloads in batch.body_rows.items()},
        list(batch.dropped_rows),
        opened_ms,
        taken_ms,
    )


def _copy(change: Change) -> Record | tuple[Key, ...] | Change:
    kind = type(change)
    if kind is MessageStored:
        m = change.message
        return Record(
            change.queue_id, m.position, m.sequence_number, m.enqueued_sequence_number, m.state,
            m.delivery_count, m.enqueued_at_ms, m.expires_at_ms, m.scheduled_at_ms, m.body_row, m.body_slot,
            m.overlay,
        )  # fmt: skip
    if kind is MessageRemoved:
        return ((change.queue_id, change.message.position),)
    if kind is NumbersIssued:
        return NumbersIssued(
            change.queue_id, change.next_position, change.next_sequence_number, change.last_enqueued_at_ms
        )
    return change


class Facts:
    """What is on stable storage."""

    def __init__(self, explain: Callable[[Record, list[Record], Commit], str | None]) -> None:
        """`explain(record, born, commit)` says why a removed record may be gone, given the records of the
        same uid that the commit has put elsewhere; None = there is no reason.
        """
        self._explain = explain
        self.live: dict[Key, Record] = {}
        self.where: dict[int, Key] = {}
        self.rows: dict[int, list[int]] = {}
        self.numbers: dict[int, NumbersIssued] = {}
        self.entities: dict[int, EntityStored] = {}
        self.descriptions: dict[int, list[QueueDescription]] = {}
        """Every description an entity ever had, by entity id."""
        self.lives: dict[int, Life] = {}
        self.last_no = 0
        self._next_position: dict[int, int] = {}
        self._last_enqueued_ms: dict[int, int] = {}

    def description(self, queue_id: int) -> QueueDescription:
        return self.entities[queue_id // QUEUES_PER_ENTITY].description

    def history(self, queue_id: int) -> list[QueueDescription]:
        return self.descriptions[queue_id // QUEUES_PER_ENTITY]

    def life(self, uid: int) -> Life:
        life = self.lives.get(uid)
        if life is None:
            life = self.lives[uid] = Life()
        return life

    # A batch has become durable

    def apply(self, batch: Snapshot, commit: Commit) -> list[Record]:
        """Fold a batch in; give the records it has put in a place new to them. Raises: Violation."""
        if batch.no != self.last_no + 1:
            raise Violation(f"batch {batch.no} follows batch {self.last_no}")
        self.last_no = batch.no
        for row, payloads in batch.rows.items():
            if row in self.rows:
                raise Violation(f"body row {row} is written twice")
            self.rows[row] = [uid_of(payload) for payload in payloads]
        born: list[Record] = []
        removed: list[Record] = []
        for change in batch.changes:
            kind = type(change)
            if kind is Record:
                self._stored(change, born, commit)
            elif kind is tuple:
                gone = self.live.pop(change[0], None)
                if gone is not None:
                    removed.append(gone)
            elif kind is NumbersIssued:
                self._numbers(change)
            elif kind is EntityStored:
                self.entities[change.entity_id] = change
                self.descriptions.setdefault(change.entity_id, []).append(change.description)
            elif kind is not MessageIdSeen:
                assert kind is EntityRemoved
                raise Violation(f"an entity was removed that nobody deleted: {change}")
        self._moves(born, removed, commit)
        for row in batch.dropped:
            self.rows.pop(row, None)
        for record in born:
            if record.key() in self.live and record.row not in self.rows:
                raise Violation(f"the body of a live message is not stored: {record}")
        if batch.dropped:
            dropped = set(batch.dropped)
            for record in self.live.values():
                if record.row in dropped:
                    raise Violation(f"body row {record.row} was dropped with a live message in it: {record}")
        return born

    def _stored(self, record: Record, born: list[Record], commit: Commit) -> None:
        row = self.rows.get(record.row)
        if row is None or record.slot >= len(row):
            raise Violation(f"a record names a body that is not stored: {record}")
        record.uid = row[record.slot]
        before = self.live.get(record.key())
        if before is not None:
            self._changed(before, record)
        else:
            self._born(record)
            born.append(record)
        self.live[record.key()] = record
        life = self.life(record.uid)
        life.records.append((record, commit))
        life.removed = None

    def _changed(self, before: Record, record: Record) -> None:
        if (before.uid, before.sequence_number, before.enqueued_at_ms) != (
            record.uid, record.sequence_number, record.enqueued_at_ms,
        ):  # fmt: skip
            raise Violation(f"a message became another: {before} -> {record}")
        if record.delivery_count < before.delivery_count:
            raise Violation(f"the delivery count went down: {before} -> {record}")
        if record.state is not before.state and (before.state, record.state) != (
            MessageState.ACTIVE, MessageState.DEFERRED,
        ):  # fmt: skip
            raise Violation(f"no message may change its state like this: {before} -> {record}")

    def _born(self, record: Record) -> None:
        """Check numbers: positions and sequence numbers are issued in order, without gap, and never again."""
        queue_id = record.queue_id
        expected = self._next_position.get(queue_id, 1)
        if record.position != expected:
            what = "used again" if record.position < expected else "skipped"
            raise Violation(f"a number is {what}: {record}, expected position {expected}")
        self._next_position[queue_id] = expected + 1
        if record.in_dead_letter_queue:
            return
        if record.sequence_number != record.position:
            raise Violation(f"sequence number and position differ: {record}")
        if record.state is MessageState.ACTIVE:
            if record.enqueued_at_ms < self._last_enqueued_ms.get(queue_id, 0):
                raise Violation(f"enqueued time goes backwards: {record} at {record.enqueued_at_ms}")
            self._last_enqueued_ms[queue_id] = record.enqueued_at_ms

    def _numbers(self, change: NumbersIssued) -> None:
        before = self.numbers.get(change.queue_id)
        if before is not None and (
            change.next_position < before.next_position
            or change.next_sequence_number < before.next_sequence_number
            or change.last_enqueued_at_ms < before.last_enqueued_at_ms
        ):
            raise Violation(f"counters go backwards: {before} -> {change}")
        self.numbers[change.queue_id] = change

    def _moves(self, born: list[Record], removed: list[Record], commit: Commit) -> None:
        """Check that each uid is in one place, and that each removal has a reason."""
        placed: dict[int, list[Record]] = {}
        for record in born:
            placed.setdefault(record.uid, []).append(record)
        for record in removed:
            elsewhere = [other for other in placed.get(record.uid, ()) if other.key() != record.key()]
            if self._explain(record, elsewhere, commit) is None:
                raise Violation(f"a message is gone and nobody asked for it: {record}")
            if self.where.get(record.uid) == record.key():
                del self.where[record.uid]
            if not any(other.key() in self.live for other in elsewhere):
                self.life(record.uid).removed = commit
        for record in born:
            if record.key() not in self.live:
                continue
            place = self.where.get(record.uid)
            if place is not None and place != record.key():
                raise Violation(f"a message is in two places: {record} and {self.live[place]}")
            self.where[record.uid] = record.key()
        for queue_id in {record.queue_id for record in born}:
            issued = self.numbers.get(queue_id)
            if issued is None or issued.next_position < self._next_position[queue_id]:
                raise Violation(f"numbers were issued that the batch does not tell of: {issued}")

    # Recovery

    def compare(self, frames: Iterable[Frame], bodies: dict[int, list[bytes]]) -> None:
        """Check that what the store gives back at a restart is what was committed. Raises: Violation."""
        live: dict[Key, Record] = {}
        numbers: dict[int, tuple[int, int]] = {}
        for frame in frames:
            for change in frame.changes:
                kind = type(change)
                if kind is MessageStored:
                    record = _copy(change)
                    assert isinstance(record, Record)
                    live[record.key()] = record
                elif kind is MessageRemoved:
                    live.pop((change.queue_id, change.message.position), None)
                elif kind is NumbersIssued:
                    numbers[change.queue_id] = change.next_position, change.next_sequence_number
        for key, record in live.items():
            expected = self.live.get(key)
            if expected is None:
                raise Violation(f"the store gives back a message that was removed: {record}")
            if record.row not in bodies:
                raise Violation(f"the store gives back a record with another body: {record} for {expected}")
            record.uid = uid_of(bodies[record.row][record.slot])
            if record != expected:
                raise Violation(f"the store gives back another record: {record} for {expected}")
        for key, expected in self.live.items():
            if key not in live:
                raise Violation(f"the store has lost a message: {expected}")
        for queue_id, issued in self.numbers.items():
            if numbers.get(queue_id) != (issued.next_position, issued.next_sequence_number):
                raise Violation(f"the store has lost counters: {numbers.get(queue_id)} for {issued}")
