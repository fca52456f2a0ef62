"""The durable facts, folded from the committed batches, and what must hold between them whatever clients do.

Owns: a second, naive reading of `Change`: last record wins per key. Must not know: the broker's own
structures, or why a change was made; whoever knows (the checker) is asked through `Judge`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from peeklock.broker.changes import (
    QUEUES_PER_ENTITY,
    EntityRemoved,
    EntityStored,
    MessageIdSeen,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
)
from peeklock.broker.descriptions import QueueDescription
from peeklock.broker.message import MessageState
from peeklock.store.base import Frame
from tests.simulation.records import (
    MAIN,
    PARTITION_SHIFT,
    Commit,
    Key,
    Life,
    Record,
    Snapshot,
    Violation,
    copied,
    uid_of,
)


class Judge(Protocol):
    """Who knows why something may have happened."""

    def explain(self, record: Record, elsewhere: list[Record], commit: Commit) -> str | None:
        """Say why a removed record may be gone, given the records of the same uid that the commit has put
        elsewhere; None = there is no reason."""

    def explain_entity(self, entity: EntityStored, commit: Commit) -> str | None:
        """Say why an entity may be gone."""


@dataclass(slots=True)
class Outcome:
    """What a batch did beyond its records."""

    born: list[Record] = field(default_factory=list)
    """The records it has put in a place new to them."""
    removed: list[Record] = field(default_factory=list)
    unrecorded: dict[int, list[int]] = field(default_factory=dict)
    """Queue id -> sequence numbers that were issued, without a record of that queue that has them."""


class Facts:
    """What is on stable storage."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.live: dict[Key, Record] = {}
        self.where: dict[int, Key] = {}
        self.rows: dict[int, list[int]] = {}
        self.numbers: dict[int, NumbersIssued] = {}
        self.entities: dict[int, EntityStored] = {}
        self.descriptions: dict[int, list[tuple[int, QueueDescription]]] = {}
        """Every description an entity ever had with the number of its batch, by entity id."""
        self.gone: dict[int, Commit] = {}
        """Entities that were removed."""
        self.lives: dict[int, Life] = {}
        self.states: dict[tuple[int, str], Record] = {}
        """(entity id, session id) -> the record of the session's state."""
        self.last_no = 0
        self._of_gone: set[Key] = set()
        """Messages that went with their entity."""
        self._next_position: dict[int, int] = {}
        self._next_in_partition: dict[tuple[int, int], int] = {}
        self._last_enqueued_ms: dict[int, int] = {}

    def description(self, queue_id: int) -> QueueDescription:
        """Give the latest description of an entity, also of one that is gone."""
        return self.descriptions[queue_id // QUEUES_PER_ENTITY][-1][1]

    def history(self, queue_id: int) -> list[QueueDescription]:
        return [description for _, description in self.descriptions[queue_id // QUEUES_PER_ENTITY]]

    def possible(self, entity_id: int, commit: Commit) -> list[QueueDescription]:
        """Give the descriptions that may have held when something in a commit was decided."""
        before = [d for no, d in self.descriptions.get(entity_id, ()) if no < commit.no]
        return before[-1:] + [d for no, d in self.descriptions.get(entity_id, ()) if no == commit.no]

    def named(self, name: str) -> list[int]:
        """Give the ids of all entities that ever had a name, the latest last."""
        return [i for i, held in self.descriptions.items() if held[0][1].name == name]

    def life(self, uid: int) -> Life:
        life = self.lives.get(uid)
        if life is None:
            life = self.lives[uid] = Life()
        return life

    def messages(self) -> list[Record]:
        """Give all that is there, but for the states of sessions."""
        return [record for record in self.live.values() if not record.is_state]

    # A batch has become durable

    def apply(self, batch: Snapshot, commit: Commit) -> Outcome:
        """Fold a batch in. Raises: Violation."""
        if batch.no != self.last_no + 1:
            raise Violation(f"batch {batch.no} follows batch {self.last_no}")
        self.last_no = batch.no
        for row, payloads in batch.rows.items():
            if row in self.rows:
                raise Violation(f"body row {row} is written twice")
            self.rows[row] = [uid_of(payload) for payload in payloads]
        outcome = Outcome()
        issued: list[tuple[NumbersIssued | None, NumbersIssued]] = []
        for change in batch.changes:
            if isinstance(change, Record):
                self._stored(change, outcome, commit)
            elif isinstance(change, tuple):
                self._removed(change[0], outcome)
            elif isinstance(change, NumbersIssued):
                issued.append((self._numbers(change), change))
            elif isinstance(change, EntityStored):
                self.entities[change.entity_id] = change
                self.descriptions.setdefault(change.entity_id, []).append((batch.no, change.description))
            elif isinstance(change, EntityRemoved):
                self._entity_removed(change.entity_id, commit)
            else:
                assert isinstance(change, MessageIdSeen)
        for before, after in issued:
            self._count(before, after, outcome)
        self._moves(outcome, commit)
        self._check_rows(batch, outcome)
        return outcome

    def _stored(self, record: Record, outcome: Outcome, commit: Commit) -> None:
        if record.key() in self._of_gone:
            return  # copied forward before its space is won back: nobody reads it any more
        if record.entity_id not in self.entities:
            raise Violation(f"a message is stored in an entity that is not there: {record}")
        row = self.rows.get(record.row)
        if row is None or record.slot >= len(row):
            raise Violation(f"a record names a body that is not stored: {record}")
        record.uid = row[record.slot]
        before = self.live.get(record.key())
        if before is not None:
            self._changed(before, record)
        else:
            self._born(record)
            outcome.born.append(record)
        self.live[record.key()] = record
        life = self.life(record.uid)
        life.records.append((record, commit))
        life.removed = None
        if record.is_state:
            assert record.session_id is not None
            self.states[record.entity_id, record.session_id] = record

    def _removed(self, key: Key, outcome: Outcome) -> None:
        gone = self.live.pop(key, None)
        if gone is None:
            return
        outcome.removed.append(gone)
        if gone.is_state:
            assert gone.session_id is not None
            if self.states.get((gone.entity_id, gone.session_id)) is gone:
                del self.states[gone.entity_id, gone.session_id]

    def _entity_removed(self, entity_id: int, commit: Commit) -> None:
        entity = self.entities.pop(entity_id, None)
        if entity is None or self._judge.explain_entity(entity, commit) is None:
            raise Violation(f"an entity is gone and nobody asked for it: {entity}")
        self.gone[entity_id] = commit
        for record in [record for record in self.live.values() if record.entity_id == entity_id]:
            del self.live[record.key()]
            self._of_gone.add(record.key())
            self.life(record.uid).removed = commit
            self.where.pop(record.uid, None)
        for key in [key for key in self.states if key[0] == entity_id]:
            del self.states[key]

    def _changed(self, before: Record, record: Record) -> None:
        if (before.uid, before.sequence_number, before.enqueued_at_ms, before.session_id) != (
            record.uid, record.sequence_number, record.enqueued_at_ms, record.session_id,
        ):  # fmt: skip
            raise Violation(f"a message became another: {before} -> {record}")
        if record.delivery_count < before.delivery_count:
            raise Violation(f"the delivery count went down: {before} -> {record}")
        if record.state is not before.state and (before.state, record.state) != (
            MessageState.ACTIVE, MessageState.DEFERRED,
        ):  # fmt: skip
            raise Violation(f"no message may change its state like this: {before} -> {record}")

    # Numbers

    def _born(self, record: Record) -> None:
        """Check numbers: positions and sequence numbers are issued in order and never again."""
        queue_id = record.queue_id
        expected = self._next_position.get(queue_id, 1)
        if record.position < expected:
            raise Violation(f"a number is used again: {record}, expected position {expected}")
        if record.position > expected and (record.is_dead or record.is_state):
            raise Violation(f"a number is skipped: {record}, expected position {expected}")
        self._next_position[queue_id] = record.position + 1
        if record.sub != MAIN:
            return
        if self.description(queue_id).enable_partitioning:
            partition, order = record.sequence_number >> PARTITION_SHIFT, record.sequence_number
            if not 0 <= partition < 16:
                raise Violation(f"no partition has this number: {record}")
            expected = self._next_in_partition.get((queue_id, partition), partition << PARTITION_SHIFT | 1)
            if order < expected:
                raise Violation(f"a partition's number is used again: {record}, expected {expected:#x}")
            self._next_in_partition[queue_id, partition] = order + 1
        elif record.sequence_number != record.position:
            raise Violation(f"sequence number and position differ: {record}")
        if record.state is MessageState.ACTIVE:
            if record.enqueued_at_ms < self._last_enqueued_ms.get(queue_id, 0):
                raise Violation(f"enqueued time goes backwards: {record} at {record.enqueued_at_ms}")
            self._last_enqueued_ms[queue_id] = record.enqueued_at_ms

    def _numbers(self, change: NumbersIssued) -> NumbersIssued | None:
        before = self.numbers.get(change.queue_id)
        if before is not None and (
            change.next_position < before.next_position
            or change.next_sequence_number < before.next_sequence_number
            or change.last_enqueued_at_ms < before.last_enqueued_at_ms
            or any(new < old for new, old in zip(change.partitions, before.partitions, strict=True))
        ):
            raise Violation(f"counters go backwards: {before} -> {change}")
        self.numbers[change.queue_id] = change
        return before

    def _count(self, before: NumbersIssued | None, after: NumbersIssued, outcome: Outcome) -> None:
        """Find the numbers that a batch issued without a record."""
        queue_id = after.queue_id
        if queue_id % QUEUES_PER_ENTITY != MAIN or queue_id // QUEUES_PER_ENTITY not in self.entities:
            return
        used = {record.sequence_number for record in outcome.born if record.queue_id == queue_id}
        if after.partitions:
            issued = [
                partition << PARTITION_SHIFT | order
                for partition, next_order in enumerate(after.partitions)
                for order in range(1 if before is None else before.partitions[partition], next_order)
            ]
            if after.next_position - (1 if before is None else before.next_position) != len(issued):
                raise Violation(f"positions and numbers were not issued together: {before} -> {after}")
            for partition, next_order in enumerate(after.partitions):
                self._next_in_partition[queue_id, partition] = partition << PARTITION_SHIFT | next_order
        else:
            issued = list(range(1 if before is None else before.next_position, after.next_position))
        self._next_position[queue_id] = after.next_position
        if unrecorded := [number for number in issued if number not in used]:
            outcome.unrecorded[queue_id] = unrecorded

    # Places

    def _moves(self, outcome: Outcome, commit: Commit) -> None:
        """Check that each uid is in one place, and that each removal has a reason."""
        placed: dict[int, list[Record]] = {}
        for record in outcome.born:
            placed.setdefault(record.uid, []).append(record)
        for record in outcome.removed:
            elsewhere = [other for other in placed.get(record.uid, ()) if other.key() != record.key()]
            if self._judge.explain(record, elsewhere, commit) is None:
                raise Violation(f"a message is gone and nobody asked for it: {record}")
            if self.where.get(record.uid) == record.key():
                del self.where[record.uid]
            if not any(other.key() in self.live for other in elsewhere):
                self.life(record.uid).removed = commit
        for record in outcome.born:
            if record.key() not in self.live:
                continue
            place = self.where.get(record.uid)
            if place is not None and place != record.key():
                raise Violation(f"a message is in two places: {record} and {self.live[place]}")
            self.where[record.uid] = record.key()
        for queue_id in {record.queue_id for record in outcome.born if record.entity_id in self.entities}:
            issued = self.numbers.get(queue_id)
            if issued is None or issued.next_position < self._next_position[queue_id]:
                raise Violation(f"numbers were issued that the batch does not tell of: {issued}")

    def _check_rows(self, batch: Snapshot, outcome: Outcome) -> None:
        for row in batch.dropped:
            self.rows.pop(row, None)
        for record in outcome.born:
            if record.key() in self.live and record.row not in self.rows:
                raise Violation(f"the body of a live message is not stored: {record}")
        if batch.dropped:
            dropped = set(batch.dropped)
            for record in self.live.values():
                if record.row in dropped:
                    raise Violation(f"body row {record.row} was dropped with a live message in it: {record}")

    # Recovery

    def compare(self, frames: Iterable[Frame], bodies: dict[int, list[bytes]]) -> None:
        """Check that what the store gives back at a restart is what was committed. Raises: Violation."""
        live: dict[Key, Record] = {}
        numbers: dict[int, NumbersIssued] = {}
        for frame in frames:
            for change in frame.changes:
                if isinstance(change, MessageStored):
                    record = copied(change)
                    assert isinstance(record, Record)
                    live[record.key()] = record
                elif isinstance(change, MessageRemoved):
                    live.pop((change.queue_id, change.message.position), None)
                elif isinstance(change, NumbersIssued):
                    numbers[change.queue_id] = change
        for key, record in live.items():
            if record.entity_id not in self.entities:
                continue  # its entity was removed
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
            if queue_id // QUEUES_PER_ENTITY in self.entities and numbers.get(queue_id) != issued:
                raise Violation(f"the store has lost counters: {numbers.get(queue_id)} for {issued}")
