"""Deleting entities that nobody uses (AutoDeleteOnIdle).

Owns: when an entity is looked at, and whether it was idle until then. Must not know: how an entity is
deleted.

Theory of operation. An entity is looked at when it would be idle long enough if nothing happened any more.
Whatever happened meanwhile is read off its queues then, and it is looked at again when that makes it due; so
use costs nothing here. The last use of a queue is the latest of

    accessed_at_ms         of each of its sub-queues: sends, credit given, deliveries, sessions accepted,
                           deferred receives, browsing, and whatever else a client asks for
    arrived_at_ms          of the main queue: scheduled messages that became active, forwarded ones that came
    here                   creation, update, start-up: `watch`

Copies that come to a subscription are no use of it; whatever is done with a subscription is use of its topic.

It is in use at the moment while a message is scheduled or a receiver has credit or waits for a session.
Nobody says when that ends, so it is looked at again and again until then: such a queue is deleted
`LOOK_AGAIN_MS` late at most, and never early. Messages that lie there do not count, nor do locked ones.
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

LOOK_AGAIN_MS = 30_000
"""How often an entity is looked at that was in use when it might have been idle. Our choice: a tenth of the
shortest idle time."""

Delete = Callable[[Entity, Outcome], None]
"""Deletes an entity with all that is attached to it and calls `IdleDeletion.forget` for it."""


class IdleDeletion:
    """Watches over the entities that are to be deleted when idle.

    Whoever changes entities calls `watch` after an entity was created, at each update of it (also one that
    changes nothing), and once for each entity when all are restored; and `forget` when one is deleted.
    """

    def __init__(self, timers: Timers, delete: Delete) -> None:
        self._timers = timers
        self._delete = delete
        self._watches: dict[int, _Watch] = {}  # by entity

    def watch(self, entity: Entity, now_ms: int) -> None:
        """Start an entity's idle clock anew, by the settings that it has now."""
        idle_ms = entity.description.auto_delete_on_idle_ms
        watch = self._watches.get(entity.entity_id)
        # "An entity with ForwardTo never counts as idle, since forwarding receives from it" F-02
        if idle_ms >= UNLIMITED_MS or entity.description.forward_to is not None:
            if watch is not None:
                self._timers.cancel(watch)
            return
        if watch is None:
            # One for an entity's whole life: timers cannot tell two of one key apart.
            watch = self._watches[entity.entity_id] = _Watch(entity, self._timers, self._delete)
        watch.start(now_ms, idle_ms)

    def forget(self, entity: Entity) -> None:
        """Look at a deleted entity no more."""
        watch = self._watches.pop(entity.entity_id, None)
        if watch is not None:
            self._timers.cancel(watch)

    def check(self) -> None:
        """Whatever may be idle is looked at in time."""
        for entity_id, watch in self._watches.items():
            about = watch.entity.description
            assert watch.entity.entity_id == entity_id
            if about.forward_to is None and about.auto_delete_on_idle_ms < UNLIMITED_MS:
                assert watch.timer_ms <= watch.used_at_ms + watch.idle_ms


class _Watch:
    """One entity under watch: called when it may have been idle for long enough."""

    __slots__ = ("_delete", "_timers", "_was_in_use", "entity", "idle_ms", "timer_ms", "used_at_ms")

    def __init__(self, entity: Entity, timers: Timers, delete: Delete) -> None:
        self._timers = timers
        self._delete = delete
        self._was_in_use = False  # when it was looked at last
        self.entity = entity
        self.used_at_ms = 0  # as far as is known
        self.idle_ms = 0
        self.timer_ms = FAR_MS

    @property
    def timer_key(self) -> int:
        return -self.entity.entity_id * QUEUES_PER_ENTITY  # see `TimerKey`

    def start(self, now_ms: int, idle_ms: int) -> None:
        """Begin anew."""
        self.idle_ms = idle_ms
        self.used_at_ms = now_ms
        self._was_in_use = _is_in_use(self.entity)
        self._timers.set(self, now_ms + (LOOK_AGAIN_MS if self._was_in_use else idle_ms))

    def advance(self, count_max: int, out: Outcome) -> int:
        """Delete the entity if it was idle for long enough, else look again when it may have been."""
        now_ms = out.now_ms
        entity = self.entity
        is_in_use = _is_in_use(entity)
        self.used_at_ms = now_ms if is_in_use or self._was_in_use else self._last_used_ms(now_ms)
        self._was_in_use = is_in_use
        due_ms = now_ms + LOOK_AGAIN_MS if is_in_use else self.used_at_ms + self.idle_ms
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
