"""Recovery: a namespace built from the facts of the store.

Replay is "last record wins", about 1 us a record. A fact about an unknown key is ignored: its entity was
deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter, itemgetter

from peeklock.broker.entities.entities import Entities
from peeklock.broker.entities.entity import Entity
from peeklock.broker.entities.fan_out import Rule
from peeklock.broker.queue.cursors import Cursors
from peeklock.broker.queue.message_queue import DEFERRED, SCHEDULED, MessageQueue
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.vocabulary.changes import (
    QUEUES_PER_ENTITY,
    SESSION_STATES,
    Change,
    ClaimRemoved,
    ClaimStored,
    CursorRemoved,
    CursorStored,
    EntityRemoved,
    EntityStored,
    MessageIdSeen,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
    RuleRemoved,
    RuleStored,
)
from peeklock.broker.vocabulary.commands import SequenceNumber, SubQueue
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS
from peeklock.broker.vocabulary.message import ACTIVE, NEVER_MS, Message

_position_of = attrgetter("position")


class Recovery:
    """State of the journal so far. The queues are empty until `finish`."""

    def __init__(self, entities: Entities) -> None:
        self._entities = entities
        self._records: dict[int, dict[int, Message]] = {}
        self._counters: dict[int, NumbersIssued] = {}
        self._ids: dict[int, list[MessageIdSeen]] = {}
        self._cursors: dict[int, dict[str, CursorStored]] = {}
        self._claims: dict[tuple[int, str], dict[int, ClaimStored]] = {}

    def restore_entity(self, stored: EntityStored) -> None:
        entity = self._entities.by_id(stored.entity_id)
        if entity is not None:
            entity.change(stored.description, self._entities.limits, stored.updated_at_ms)
            if stored.deleting:
                entity.mark_deleted()
            return
        first = stored.entity_id * QUEUES_PER_ENTITY
        self._entities.add(stored)
        for queue_id in range(first, first + QUEUES_PER_ENTITY):
            self._records[queue_id] = {}
        self._entities.next_entity_id = max(self._entities.next_entity_id, stored.entity_id + 1)

    def restore_rule(self, stored: RuleStored) -> None:
        subscription = self._entities.by_id(stored.entity_id)
        if subscription is not None:
            self._entities.put_rule(Rule.restored(subscription, stored.rule))

    def restore(self, changes: Iterable[Change]) -> None:
        """Apply one frame."""
        records = self._records
        for change in changes:
            kind = type(change)
            if kind is MessageStored:
                message = change.message  # type: ignore[union-attr]  # see `kind`
                known = records.get(change.queue_id)  # type: ignore[union-attr]  # see `kind`
                if known is not None:
                    known[message.position] = message
            elif kind is MessageRemoved:
                known = records.get(change.queue_id)  # type: ignore[union-attr]  # see `kind`
                if known is not None:
                    known.pop(change.message.position, None)  # type: ignore[union-attr]  # see `kind`
            elif isinstance(change, NumbersIssued):
                self._counters[change.queue_id] = change
            elif isinstance(change, MessageIdSeen):
                self._ids.setdefault(change.queue_id, []).append(change)
            elif isinstance(change, EntityStored):
                self.restore_entity(change)
            elif isinstance(change, EntityRemoved):
                self._remove_entity(change.entity_id)
            elif isinstance(change, CursorStored):
                self._cursors.setdefault(change.queue_id, {})[change.name] = change
            elif isinstance(change, CursorRemoved):
                self._cursors.get(change.queue_id, {}).pop(change.name, None)
            elif isinstance(change, ClaimStored):
                self._claims.setdefault((change.queue_id, change.cursor), {})[change.no] = change
            elif isinstance(change, ClaimRemoved):
                self._claims.get((change.queue_id, change.cursor), {}).pop(change.no, None)
            elif isinstance(change, RuleStored):
                self.restore_rule(change)
            elif isinstance(change, RuleRemoved):
                subscription = self._entities.by_id(change.entity_id)
                if subscription is not None:
                    self._entities.drop_rule(subscription, change.name)

    def _remove_entity(self, entity_id: int) -> None:
        entity = self._entities.by_id(entity_id)
        if entity is not None:
            first = entity_id * QUEUES_PER_ENTITY
            for queue_id in range(first, first + QUEUES_PER_ENTITY):
                del self._records[queue_id]
            self._entities.remove(entity)
            del self._entities.removed[entity_id]

    def finish(self, now_ms: int) -> None:
        """Fill the queues; the records of each are freed before the next."""
        for entity in self._entities:
            self._fill_transfers(entity)
            self._fill_states(entity)
            for queue in entity.queues():
                _fill(queue, self._records.pop(queue.queue_id), self._counters.get(queue.queue_id))
            for queue in entity.queues():  # needs the counters of the main queue
                _index_numbers(queue)
            duplicates = entity.main.duplicates
            if duplicates is not None:
                scheduled = {message.sequence_number for message in entity.main.scheduled}
                duplicates.restore(self._ids.pop(duplicates.queue_id, []), now_ms, scheduled)
            for queue in entity.queues():
                self._fill_cursors(queue, now_ms)
                queue.forward_stored_from(0)
                queue.set_timer()

    def _fill_transfers(self, entity: Entity) -> None:
        queue_id = entity.entity_id * QUEUES_PER_ENTITY + SubQueue.TRANSFER_DEAD_LETTER.value
        if self._records[queue_id] or queue_id in self._counters or queue_id in self._cursors:
            self._entities.transfers_of(entity)
        else:
            del self._records[queue_id]

    def _fill_cursors(self, queue: MessageQueue, now_ms: int) -> None:
        stored = self._cursors.pop(queue.queue_id, {})
        if not stored:
            return
        queue.cursors = Cursors(queue)
        for name, cursor in sorted(stored.items()):
            claims = self._claims.pop((queue.queue_id, name), {})
            queue.cursors.restore(cursor, [claims[no] for no in sorted(claims)], now_ms)
        if queue.sessions is None:
            queue.ready_queue.pass_over_claimed(queue)

    def _fill_states(self, entity: Entity) -> None:
        records = self._records.pop(entity.entity_id * QUEUES_PER_ENTITY + SESSION_STATES)
        sessions = entity.main.sessions
        if sessions is None:
            return
        for position in sorted(records):
            record = records[position]
            record.position = position
            sessions.restore_state(record)
        counters = self._counters.get(sessions.states.queue_id)
        if counters is not None:
            sessions.states.next_position = max(sessions.states.next_position, counters.next_position)


def _fill(queue: MessageQueue, records: dict[int, Message], counters: NumbersIssued | None) -> None:
    """Fill an empty queue. Nothing is locked; `advance` does what is due."""
    messages = list(map(records.__getitem__, sorted(records)))
    del records  # 42 to 84 bytes an entry
    active: list[Message] = []
    deferred: list[Message] = []
    scheduled: list[Message] = []
    size_bytes = 0
    enqueued_at_ms = 0
    for message in messages:
        position = message.position
        size_bytes += message.size_bytes
        # Equal numbers may be separate objects, of 32 bytes each: share them.
        if message.sequence_number == position:
            number: SequenceNumber = position  # type: ignore[assignment]  # no call for each message
            if message.enqueued_sequence_number == position:
                message.enqueued_sequence_number = number
            message.sequence_number = number
        if message.enqueued_at_ms == enqueued_at_ms:
            message.enqueued_at_ms = enqueued_at_ms
        else:
            enqueued_at_ms = message.enqueued_at_ms
        state = message.state
        if state == ACTIVE:
            message.state = ACTIVE
            active.append(message)
        elif state == DEFERRED:
            message.state = DEFERRED
            deferred.append(message)
        else:
            message.state = SCHEDULED
            scheduled.append(message)
    queue.size_bytes = size_bytes
    if queue.copied_by is not None:
        queue.copied_by.size_bytes += size_bytes
    queue.active.fill(zip(map(_position_of, active), active, strict=True))
    queue.deferred.fill(zip(map(_position_of, deferred), deferred, strict=True))
    queue.scheduled.fill(zip(map(_position_of, scheduled), scheduled, strict=True))
    if counters is not None:
        queue.next_position = counters.next_position
        queue.last_enqueued_at_ms = counters.last_enqueued_at_ms
        if queue.partitions is not None and counters.partitions:
            queue.partitions.nexts = list(counters.partitions)
    if messages:
        queue.next_position = max(queue.next_position, messages[-1].position + 1)
    if active:
        queue.last_enqueued_at_ms = max(queue.last_enqueued_at_ms, active[-1].enqueued_at_ms)
    for message in scheduled:
        queue.activation.note(message)
    if queue.sessions is not None:
        for message in messages:
            queue.sessions.stored(message)
        queue.sessions.serve(Outcome())  # there is no receiver yet
    if queue.expiry is not None:
        limited = queue.default_ttl_ms < UNLIMITED_MS
        for message in active:
            if limited or message.expires_at_ms != NEVER_MS:
                queue.expiry.note(message)


def _index_numbers(queue: MessageQueue) -> None:
    """Index a queue by number, once the counters of its main queue are known."""
    if queue.numbers is None:
        return
    entries = [(queue.key_of(message.sequence_number), message) for message in queue.all_messages()]
    queue.numbers.fill(sorted(entries, key=itemgetter(0)))
