"""The figures of each entity, read in slices: an entity as it is in its turn, a deleted one not at all."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from peeklock.broker.entities.entities import Entities
from peeklock.broker.entities.entity import Entity
from peeklock.broker.queue.counters import Counters
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.vocabulary.descriptions import KINDS, EntityKind, EntityStatus

SLICE = 25
"""Entities in one slice: with their lines of text, half a millisecond to 1 ms. Our choice."""


class EntityFigures(NamedTuple):
    """One entity now. Counts are messages."""

    entity_id: int
    name: str
    """The path."""
    counters: Counters
    """Since the start; the object itself, which counts on."""
    active: int
    deferred: int
    scheduled: int
    dead_letters: int
    """With transfer dead letters."""
    size_bytes: int
    oldest_enqueued_at_ms: int | None
    """Of the active messages, UTC ms; None = there is none."""
    transfer_dead_letters: int
    kind: EntityKind
    status: EntityStatus
    is_hidden: bool
    """Whether it or its topic is being deleted."""


class FiguresCount:
    """A reading under way, over the entities that existed at its start."""

    def __init__(self, entities: Entities) -> None:
        """Read nothing yet."""
        self._entities = entities
        self._left = iter(list(entities))

    def advance(self) -> list[EntityFigures] | None:
        """Return the figures of the next slice; None = that was all."""
        found = [*islice(self._left, SLICE)]
        if not found:
            return None
        by_id = self._entities.by_id
        return [_figures(entity) for entity in found if by_id(entity.entity_id) is entity]


def oldest_enqueued_at_ms(entity: Entity) -> int | None:
    """Return when the first active message was enqueued, UTC ms; None = there is none."""
    active = entity.main.active
    oldest = active.first_from(0) if active else None
    return None if oldest is None else oldest.enqueued_at_ms


def _figures(entity: Entity) -> EntityFigures:
    main, about = entity.main, entity.description
    transfer_dead_letters = _count(entity.transfers)
    return EntityFigures(
        entity.entity_id,
        entity.name,
        entity.counters,
        len(main.active),
        len(main.deferred),
        len(main.scheduled),
        _count(entity.dead_letters) + transfer_dead_letters,
        entity.size_bytes(),
        oldest_enqueued_at_ms(entity),
        transfer_dead_letters,
        KINDS[type(about)],
        about.status,
        entity.is_hidden,
    )


def _count(queue: MessageQueue | None) -> int:
    return 0 if queue is None else len(queue.active) + len(queue.deferred)
