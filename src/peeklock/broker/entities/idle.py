"""Deletion of idle entities (AutoDeleteOnIdle).

Theory of operation. A timer is due when the entity would be idle for long enough. Only then the last use is
read off its queues, and the timer set again if it was used; so use costs nothing here. The last use is the
latest of

    accessed_at_ms         of each sub-queue: sends, credit, deliveries, sessions accepted, deferred receives,
                           browsing and other requests
    arrived_at_ms          of the main queue: activated and forwarded messages
    `watch`                creation, update, start

Copies do not count as use of a subscription; any use of a subscription counts for its topic. The entity is in
use while a message is scheduled, or a receiver has credit or waits for a session. That has no event at its
end, so the entity is checked every `CHECK_AGAIN_MS`: it is deleted that late at most, and never early.
Messages and locks do not count.
Source: semantics A-03, F-02; Learn "Message expiration", section "Idleness".
"""

from __future__ import annotations

from collections.abc import Callable

from peeklock.broker.entities.entity import Entity
from peeklock.broker.queue.links import Consumer
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.timers import FAR_MS, Timers
from peeklock.broker.vocabulary.changes import QUEUES_PER_ENTITY
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS

CHECK_AGAIN_MS = 30_000
"""Interval of checks while an entity is in use. Our choice: a tenth of the shortest idle time."""

Delete = Callable[[Entity, Outcome], None]
"""Deletes an entity and all its links, and calls `IdleDeletion.forget`."""


class IdleDeletion:
    """Timers of the entities that have an idle time.

    `watch` must be called for each entity after a restart, when it is created, and at each update, even
    without a change; `forget` when it is deleted.
    """

    def __init__(self, timers: Timers, delete: Delete) -> None:
        self._timers = timers
        self._delete = delete
        self._watches: dict[int, _Watch] = {}  # by entity

    def watch(self, entity: Entity, now_ms: int) -> None:
        """Restart the idle time of an entity, with its present settings."""
        idle_ms = entity.description.auto_delete_on_idle_ms
        watch = self._watches.get(entity.entity_id)
        # "An entity with ForwardTo never counts as idle, since forwarding receives from it" F-02
        if idle_ms >= UNLIMITED_MS or entity.description.forward_to is not None:
            if watch is not None:
                self._timers.cancel(watch)
            return
        if watch is None:
            # One for the life of an entity: timers need different keys.
            watch = self._watches[entity.entity_id] = _Watch(entity, self._timers, self._delete)
        watch.start(now_ms, idle_ms)

    def forget(self, entity: Entity) -> None:
        """Remove the timer of a deleted entity."""
        watch = self._watches.pop(entity.entity_id, None)
        if watch is not None:
            self._timers.cancel(watch)

    def check(self) -> None:
        """Assert that each timer is early enough."""
        for entity_id, watch in self._watches.items():
            about = watch.entity.description
            assert watch.entity.entity_id == entity_id
            if about.forward_to is None and about.auto_delete_on_idle_ms < UNLIMITED_MS:
                assert watch.timer_ms <= watch.used_at_ms + watch.idle_ms


class _Watch:
    """Timer of one entity."""

    __slots__ = ("_delete", "_timers", "_was_in_use", "entity", "idle_ms", "timer_ms", "used_at_ms")

    def __init__(self, entity: Entity, timers: Timers, delete: Delete) -> None:
        self._timers = timers
        self._delete = delete
        self._was_in_use = False  # at the last check
        self.entity = entity
        self.used_at_ms = 0  # as far as known
        self.idle_ms = 0
        self.timer_ms = FAR_MS

    @property
    def timer_key(self) -> int:
        return -self.entity.entity_id * QUEUES_PER_ENTITY  # see `TimerKey`

    def start(self, now_ms: int, idle_ms: int) -> None:
        """Restart the idle time."""
        self.idle_ms = idle_ms
        self.used_at_ms = now_ms
        self._was_in_use = _is_in_use(self.entity)
        self._timers.set(self, now_ms + (CHECK_AGAIN_MS if self._was_in_use else idle_ms))

    def advance(self, count_max: int, out: Outcome) -> int:
        """Delete the entity if it was idle for long enough, else set the timer again."""
        now_ms = out.now_ms
        entity = self.entity
        is_in_use = _is_in_use(entity)
        self.used_at_ms = now_ms if is_in_use or self._was_in_use else self._last_used_ms(now_ms)
        self._was_in_use = is_in_use
        due_ms = now_ms + CHECK_AGAIN_MS if is_in_use else self.used_at_ms + self.idle_ms
        if due_ms <= now_ms:
            self._delete(entity, out)
        else:
            self._timers.set(self, due_ms)
        return 1 + len(entity.links) + len(entity.subscriptions())

    def _last_used_ms(self, now_ms: int) -> int:
        used_at_ms = self.used_at_ms
        for entity in (self.entity, *self.entity.subscriptions()):
            used_at_ms = max(used_at_ms, *(queue.accessed_at_ms for queue in entity.queues()))
        if self.entity.topic is None:
            used_at_ms = max(used_at_ms, self.entity.main.arrived_at_ms)
        return used_at_ms


def _is_in_use(entity: Entity) -> bool:
    if len(entity.main.scheduled):
        return True
    if any(each.main.forward_to is not None or _is_in_use(each) for each in entity.subscriptions()):
        return True  # forwarding receives, also from a subscription (F-02)
    return any(
        isinstance(link, Consumer) and (link.ready_queue is None or link.has_credit())
        for link in entity.links.values()
    )
