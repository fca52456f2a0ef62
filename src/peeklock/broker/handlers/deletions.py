"""Deletions of entities: a topic with many subscriptions goes in slices.

Theory of operation. A topic with more subscriptions than a slice is marked first: its links are detached, it
accepts no sends, and it and its subscriptions cannot be found by name. The mark is a fact. Its subscriptions
then go in slices, each durable by itself, and the topic with the last ones, which answers the request. Until
then its name is taken. After a crash `resume` continues.
Source: requirement A-03; slices are our choice.
"""

from __future__ import annotations

from itertools import islice

from peeklock.broker.entities.entities import Entities
from peeklock.broker.entities.entity import Entity
from peeklock.broker.entities.idle import IdleDeletion
from peeklock.broker.handlers.attachments import Attachments
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.shared import Shared
from peeklock.broker.queue.timers import FAR_MS, TimerKey
from peeklock.broker.vocabulary import commands as ask
from peeklock.broker.vocabulary.commands import ReplyTo
from peeklock.broker.vocabulary.effects import Done
from peeklock.broker.vocabulary.errors import EntityDeleted, InvalidOperation
from peeklock.broker.vocabulary.events import EventType

WORK = 6
"""Items of due work that a subscription counts: 13 us to remove it, 10 us to commit that."""


class Deletions:
    """The deletions of a namespace."""

    timer_key = TimerKey.DELETIONS

    def __init__(
        self,
        entities: Entities,
        shared: Shared,
        attachments: Attachments,
        slice_items: int,
        *,
        delete_lock: bool,
    ) -> None:
        self.timer_ms = FAR_MS
        self.idle = IdleDeletion(shared.timers, self.delete)
        self._entities = entities
        self._timers = shared.timers
        self._attachments = attachments
        self._delete_lock = delete_lock
        self._slice = slice_items
        self._topics: dict[int, tuple[Entity, ReplyTo | None]] = {}  # in turn

    def ask(self, command: ask.DeleteEntity, out: Outcome) -> None:
        """Handle a command."""
        entity = self._entities.found_as(command.path, command.if_match)
        if self._delete_lock:
            raise InvalidOperation(
                f"'{entity.name}' cannot be deleted: the namespace has the lock CanNotDelete"
            )
        if entity.topic is not None:  # the topic is in use
            entity.topic.main.accessed_at_ms = out.now_ms
        self.delete(entity, out, command.reply_to)

    def delete(self, entity: Entity, out: Outcome, reply_to: ReplyTo | None = None) -> None:
        """Delete an entity, at once or in slices, and answer."""
        if len(entity.subscriptions()) > self._slice:
            entity.mark_deleted()
            self._entities.hide(entity)
            self._detach(entity, out)
            self.idle.forget(entity)
            out.changes.append(entity.stored())
            self._begin(entity, reply_to, out.now_ms)
            return
        for subscription in entity.subscriptions():
            self._remove(subscription, out)
        self._remove(entity, out)
        if reply_to is not None:
            out.effects.append(Done(reply_to))

    def resume(self, now_ms: int) -> None:
        """Continue the deletions that a stop interrupted."""
        for entity in self._entities:
            if entity.deleting:
                self._begin(entity, None, now_ms)

    @property
    def is_busy(self) -> bool:
        """Whether a topic is being deleted."""
        return bool(self._topics)

    def _begin(self, topic: Entity, reply_to: ReplyTo | None, now_ms: int) -> None:
        self._topics[topic.entity_id] = topic, reply_to
        self._timers.set(self, now_ms)

    def advance(self, count_max: int, out: Outcome) -> int:
        """Remove subscriptions of the next topic, and the topic itself when none is left."""
        entity_id = next(iter(self._topics))
        topic, reply_to = self._topics.pop(entity_id)
        assert topic.fan_out is not None
        count = max(1, min(self._slice, count_max // WORK))
        subscriptions = list(islice(topic.fan_out.subscriptions.values(), count))
        for subscription in subscriptions:
            self._remove(subscription, out)
        if topic.fan_out.subscriptions:
            self._topics[entity_id] = topic, reply_to
        else:
            self._remove(topic, out)
            if reply_to is not None:
                out.effects.append(Done(reply_to))
        if self._topics:
            self._timers.set(self, out.now_ms)
        return WORK * len(subscriptions) + 1

    def _remove(self, entity: Entity, out: Outcome) -> None:
        """Remove an entity and its links; a topic has no subscriptions any more."""
        error = self._detach(entity, out)
        self.idle.forget(entity)
        for queue in entity.queues():
            if queue.cursors is not None:
                queue.cursors.abandon(error, out)
        if entity.topic is not None:
            topic = entity.topic.main  # the last use of the subscription counts for it
            topic.accessed_at_ms = max(
                topic.accessed_at_ms, *(queue.accessed_at_ms for queue in entity.queues())
            )
        out.entity(EventType.ENTITY_DELETED, entity.main, entity.description)
        out.changes.append(self._entities.remove(entity))

    def _detach(self, entity: Entity, out: Outcome) -> EntityDeleted:
        """Detach all links of an entity; return the error they get."""
        error = EntityDeleted(f"The messaging entity '{entity.name}' was deleted.")
        self._attachments.detach_all(list(entity.links.values()), error, out)
        return error

    def check(self) -> None:
        """Assert that marked topics are being deleted, and no others."""
        assert {entity.entity_id for entity in self._entities if entity.deleting} == set(self._topics)
        assert not self._topics or self.timer_ms < FAR_MS
        self.idle.check()
