"""Figures of a whole namespace, added up in slices of its entities.

Theory of operation. A count passes over the entities that existed at its start, each once and as it is in its
turn; deleted ones are left out. So a namespace of up to `SLICE` entities is counted at one instant; in a
larger one a message that moves may be counted twice or not at all. Counters that are always right would cost
every send and settlement.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from peeklock.broker.entities.entities import Entities
from peeklock.broker.entities.entity import Entity
from peeklock.broker.handlers.figures import oldest_enqueued_at_ms
from peeklock.broker.queue.cursor import Cursor
from peeklock.broker.queue.cursor_views import view_of_cursor
from peeklock.broker.queue.message_queue import MessageQueue

SLICE = 250
"""Entities in one slice: at 2 to 5 us each, a millisecond."""


READERS_MAX = 1_000
"""Cursors that are shown one by one: the figures of 1,000 take 10 ms. Our choice."""


@dataclass(slots=True)
class Reader:
    """One cursor, and what its reader has before it."""

    entity: str
    """The path of its queue."""
    cursor: str
    owner: str | None
    has_read: bool
    """False = another reader may take the cursor."""
    used_at_ms: int
    """UTC."""
    claims: int
    claimed_messages: int
    backlog: int
    oldest_enqueued_at_ms: int | None


@dataclass(slots=True)
class Totals:
    """Figures for health and measurements."""

    entities: int = 0
    connections: int = 0
    links: int = 0
    active_messages: int = 0
    deferred_messages: int = 0
    scheduled_messages: int = 0
    dead_letters: int = 0
    """With transfer dead letters."""
    sessions: int = 0
    locks: int = 0
    cursors: int = 0
    claimed_messages: int = 0
    """Held for cursors."""
    readers: list[Reader] = field(default_factory=list)
    """Of `READERS_MAX` cursors at most."""
    size_bytes: int = 0
    oldest_enqueued_at_ms: int | None = None
    """Of all active messages, UTC ms; None = there is none."""
    dropped_sends: int = 0
    """Pre-settled sends that were refused, unknown to their senders (T-06)."""
    unmatched_messages: int = 0
    """Messages since the start that no rule matched: accepted and dropped."""
    failed_evaluations: int = 0
    """Failed evaluations of filters and actions since the start."""


class TotalsCount:
    """A count under way."""

    def __init__(self, entities: Entities, totals: Totals) -> None:
        """Begin with the figures of the namespace as a whole."""
        self.totals = totals
        """Complete once `advance` has returned True."""
        self._entities = entities
        self._left = iter(list(entities))

    def advance(self) -> bool:
        """Add up a slice; return whether it was the last one."""
        count = 0
        for entity in islice(self._left, SLICE):
            count += 1
            if self._entities.by_id(entity.entity_id) is entity:
                self._add(entity)
        return count < SLICE

    def _add(self, entity: Entity) -> None:
        totals, main = self.totals, entity.main
        oldest_ms = oldest_enqueued_at_ms(entity)
        if oldest_ms is not None and oldest_ms < (totals.oldest_enqueued_at_ms or oldest_ms + 1):
            totals.oldest_enqueued_at_ms = oldest_ms
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
                for cursor in queue.cursors.sorted()[: READERS_MAX - len(totals.readers)]:
                    totals.readers.append(_reader(queue, cursor))
        if entity.topic is None:  # a topic counts its subscriptions
            totals.size_bytes += entity.size_bytes()


def _reader(queue: MessageQueue, cursor: Cursor) -> Reader:
    view = view_of_cursor(queue, cursor)
    return Reader(
        queue.name,
        view.name,
        view.owner,
        view.has_read,
        view.used_at_ms,
        len(view.claims),
        sum(count for _, count, _ in view.claims),
        view.backlog,
        view.oldest_enqueued_at_ms,
    )
