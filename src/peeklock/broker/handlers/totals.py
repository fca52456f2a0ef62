"""The figures of a whole namespace, added up a slice of its entities at a time.

Owns: what is added up, and how far a count has come. Must not know: who asks, when the next slice is due.

Theory of operation. A count goes through the entities that there were when it began. One that is deleted
before its turn is left out, one that is created meanwhile is not among them, and each of the others counts
once, as it is when its turn comes. So a namespace of up to `SLICE` entities is counted at one instant. In a
larger one a message that moves to another entity during the count may be counted in both or in neither.
Counters that are always right would have to be touched by every send and every settlement.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from peeklock.broker.entities.entities import Entities
from peeklock.broker.entities.entity import Entity

SLICE = 250
"""Entities that one slice adds up: at 2 to 5 us each, a millisecond."""


@dataclass(slots=True)
class Totals:
    """Counters over a whole namespace, for health and measurements."""

    entities: int = 0
    connections: int = 0
    links: int = 0
    active_messages: int = 0
    deferred_messages: int = 0
    scheduled_messages: int = 0
    dead_letters: int = 0
    """Transfer dead letters among them."""
    sessions: int = 0
    locks: int = 0
    cursors: int = 0
    claimed_messages: int = 0
    """Held for cursors."""
    size_bytes: int = 0
    dropped_sends: int = 0
    """Pre-settled sends that were refused, of which nobody else is told (T-06)."""
    unmatched_messages: int = 0
    """Messages that no rule of their topic chose since start: accepted and gone."""
    failed_evaluations: int = 0
    """Filters and actions that could not be evaluated for a message since start."""


class TotalsCount:
    """A count under way."""

    def __init__(self, entities: Entities, totals: Totals) -> None:
        """Begin; `totals` has what is known of the namespace as a whole."""
        self.totals = totals
        """Complete once `advance` has answered so."""
        self._entities = entities
        self._left = iter(list(entities))

    def advance(self) -> bool:
        """Add up a slice; return whether that was the last one."""
        count = 0
        for entity in islice(self._left, SLICE):
            count += 1
            if self._entities.by_id(entity.entity_id) is entity:
                self._add(entity)
        return count < SLICE

    def _add(self, entity: Entity) -> None:
        totals, main = self.totals, entity.main
        totals.active_messages += len(main.active)
        totals.deferred_messages += len(main.deferred)
        totals.scheduled_messages += len(main.scheduled)
        if entity.dead_letters is not None:
            totals.dead_letters += len(entity.dead_letters.active) + len(entity.dead_letters.deferred)
        if entity.fan_out is not None:
            totals.unmatched_messages += entity.fan_out.unmatched
        if entity.transfers is not None:
            totals.dead_letters += len(entity.transfers.active) + len(entity.transfers.deferred)
        if main.sessions is not None:
            totals.sessions += len(main.sessions)
        for queue in entity.queues():
            totals.locks += len(queue.locks)
            if queue.cursors is not None:
                totals.cursors += len(queue.cursors)
                totals.claimed_messages += queue.cursors.claimed_count
        if entity.topic is None:  # its topic counts it
            totals.size_bytes += entity.size_bytes()
