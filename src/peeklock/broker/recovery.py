"""Building a namespace from the facts of the store.

Owns: replay, "last record wins". Must not know: how facts are read. A fact about an unknown key is ignored:
its entity was deleted. About 1 us a record, in one tight loop per frame.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

from peeklock.broker.changes import (
    Change,
    EntityRemoved,
    EntityStored,
    MessageIdSeen,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
)
from peeklock.broker.descriptions import UNLIMITED_MS
from peeklock.broker.entities import Entities
from peeklock.broker.message import NEVER_MS, Message
from peeklock.broker.message_queue import ACTIVE, DEFERRED, SCHEDULED, MessageQueue


class Recovery:
    """What the journal said so far. Nothing is in the queues until `finish`."""

    def __init__(self, entities: Entities) -> None:
        self._entities = entities
        self._records: dict[int, dict[int, Message]] = {}
        self._counters: dict[int, NumbersIssued] = {}
        self._ids: dict[int, list[MessageIdSeen]] = {}

    def restore_entity(self, stored: EntityStored) -> None:
        entity = self._entities.by_id(stored.entity_id)
        if entity is not None:
            entity.change(stored.description, self._entities.limits, stored.updated_at_ms)
            return
        for queue in self._entities.add(stored).queues():
            self._records[queue.queue_id] = {}
        self._entities.next_entity_id = max(self._entities.next_entity_id, stored.entity_id + 1)

    def restore(self, changes: Iterable[Change]) -> None:
        """Take in one frame."""
        records = self._records
        for change in changes:
            kind = type(change)
            if kind is MessageStored:
                message = change.message  # type: ignore[union-attr]  # the type was looked at once
                known = records.get(change.queue_id)  # type: ignore[union-attr]
                if known is not None:
                    known[message.position] = message
            elif kind is MessageRemoved:
                known = records.get(change.queue_id)  # type: ignore[union-attr]
                if known is not None:
                    known.pop(change.message.position, None)  # type: ignore[union-attr]
            elif isinstance(change, NumbersIssued):
                self._counters[change.queue_id] = change
            elif isinstance(change, MessageIdSeen):
                self._ids.setdefault(change.queue_id, []).append(change)
            elif isinstance(change, EntityStored):
                self.restore_entity(change)
            elif isinstance(change, EntityRemoved):
                self._remove_entity(change.entity_id)

    def _remove_entity(self, entity_id: int) -> None:
        entity = self._entities.by_id(entity_id)
        if entity is not None:
            for queue in entity.queues():
                del self._records[queue.queue_id]
            self._entities.remove(entity)
            del self._entities.removed[entity_id]

    def finish(self, now_ms: int) -> None:
        """Fill the queues; each one's records are let go before the next one's."""
        for entity in self._entities:
            for queue in (entity.main, entity.dead_letters):
                _fill(queue, self._records.pop(queue.queue_id), self._counters.get(queue.queue_id))
            _index_numbers(entity.dead_letters)
            duplicates = entity.main.duplicates
            if duplicates is not None:
                duplicates.restore(self._ids.pop(duplicates.queue_id, []), now_ms)
            entity.main.set_timer()
            entity.dead_letters.set_timer()


def _fill(queue: MessageQueue, records: dict[int, Message], counters: NumbersIssued | None) -> None:
    """Take in all messages of an empty queue. Nothing is locked; what is due follows by `advance`."""
    entries = sorted(records.items())
    active: list[tuple[int, Message]] = []
    deferred: list[tuple[int, Message]] = []
    scheduled: list[tuple[int, Message]] = []
    size_bytes = 0
    enqueued_at_ms = 0
    for entry in entries:
        position, message = entry
        size_bytes += message.size_bytes
        # Equal numbers came as objects of their own, at 32 bytes each: share them.
        message.position = position
        if message.sequence_number == position:
            if message.enqueued_sequence_number == position:
                message.enqueued_sequence_number = position
            message.sequence_number = position
        if message.enqueued_at_ms == enqueued_at_ms:
            message.enqueued_at_ms = enqueued_at_ms
        else:
            enqueued_at_ms = message.enqueued_at_ms
        state = message.state
        if state == ACTIVE:
            message.state = ACTIVE
            active.append(entry)
        elif state == DEFERRED:
            message.state = DEFERRED
            deferred.append(entry)
        else:
            message.state = SCHEDULED
            scheduled.append(entry)
    queue.size_bytes = size_bytes
    queue.active.fill(active)
    queue.deferred.fill(deferred)
    queue.scheduled.fill(scheduled)
    if counters is not None:
        queue.next_position = counters.next_position
        queue.last_enqueued_at_ms = counters.last_enqueued_at_ms
    if entries:
        queue.next_position = max(queue.next_position, entries[-1][0] + 1)
    if active:
        queue.last_enqueued_at_ms = max(queue.last_enqueued_at_ms, active[-1][1].enqueued_at_ms)
    for _, message in scheduled:
        queue.activation.note(message)
    if queue.expiry is not None:
        limited = queue.default_ttl_ms < UNLIMITED_MS
        for _, message in active:
            if limited or message.expires_at_ms != NEVER_MS:
                queue.expiry.note(message)


def _index_numbers(dead_letters: MessageQueue) -> None:
    """Index a dead-letter queue by number, once its main queue knows how many were issued."""
    assert dead_letters.numbers is not None
    entries = [(dead_letters.order_of(message), message) for message in dead_letters.all_messages()]
    dead_letters.numbers.fill(sorted(entries, key=itemgetter(0)))
