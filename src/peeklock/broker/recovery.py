"""Building a namespace from the facts of the store.

Owns: replay, "last record wins". Must not know: how facts are read. A fact about an unknown key is ignored:
its entity was deleted. About 1 us a record, in one tight loop per frame.
"""

from __future__ import annotations

from collections.abc import Iterable

from peeklock.broker.changes import (
    Change,
    EntityRemoved,
    EntityStored,
    MessageIdSeen,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
)
from peeklock.broker.entities import Entities
from peeklock.broker.message import Message


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
                queue.restore(self._records.pop(queue.queue_id), self._counters.get(queue.queue_id))
            entity.dead_letters.restore_order_of_numbers()
            duplicates = entity.main.duplicates
            if duplicates is not None:
                duplicates.restore(self._ids.pop(duplicates.queue_id, []))
            entity.main.set_timer(now_ms)
