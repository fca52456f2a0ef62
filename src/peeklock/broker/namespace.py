"""The namespace: everything a client can ask for comes in here, and only here.

Owns: the dispatch of commands, how a refusal is answered, entities' lives. Must not know: the wire, the
store, the clock. `apply` and `advance` answer what became true and what follows; neither raises for what a
client did.

Deterministic: the same commands at the same instants with the same tokens give the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NoReturn

from peeklock.broker import commands as ask
from peeklock.broker import effects as do
from peeklock.broker.attachments import Attachments
from peeklock.broker.changes import (
    Change,
    EntityStored,
    MessageIdSeen,
    NumbersIssued,
    RuleRemoved,
    RuleStored,
)
from peeklock.broker.commands import Command
from peeklock.broker.cursor_operations import CursorOperations
from peeklock.broker.descriptions import DEFAULT_RULE_NAME, EntityKind, RuleDescription
from peeklock.broker.effects import Effect
from peeklock.broker.entities import Entities
from peeklock.broker.entity import Entity
from peeklock.broker.errors import (
    EntityDeleted,
    EntityDisabled,
    InvalidOperation,
    ServiceBusError,
)
from peeklock.broker.events import EventTuple, EventType
from peeklock.broker.forwarding import Forwarding
from peeklock.broker.idle import IdleDeletion
from peeklock.broker.integrity import check_queue
from peeklock.broker.message import Message
from peeklock.broker.message_queue import MessageQueue
from peeklock.broker.operations import Operations
from peeklock.broker.purging import Purging
from peeklock.broker.quotas import TierLimits
from peeklock.broker.receivers import ReceiverLink
from peeklock.broker.recovery import Recovery
from peeklock.broker.shared import Shared
from peeklock.broker.transactions import Transactions
from peeklock.broker.validation import drops_locks

SLICE = 1_000
"""Items one `advance` handles, about: at 5 to 10 us each it takes 10 ms at most."""

_Handler = Callable[[Any, int, list[Change], list[Effect]], None]
_Refusal = Callable[[Any, ServiceBusError], "Effect | None"]


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


class Namespace:
    """All entities of one namespace and whoever is attached to them."""

    def __init__(
        self,
        *,
        limits: TierLimits,
        tokens: Callable[[], bytes],
        digest_key: bytes,
        enforce_quotas: bool = False,
        delete_lock: bool = False,
        first_sequence_number: int = 1,
        captures_body: Callable[[str], bool] | None = None,
    ) -> None:
        """Make an empty namespace.

        Args:
            limits: of its tier.
            tokens: gives 16 random bytes a call, in .NET order of a GUID.
            digest_key: at most 64 secret bytes, kept over restarts: keys the digests of message ids.
            enforce_quotas: hold entities to their size and the namespace to its number of entities (A-05).
            delete_lock: refuse to delete entities when asked; idle ones go all the same (A-03).
            first_sequence_number: of each new queue; a test of the roll-over sets it high (S-03).
            captures_body: what happens is recorded; this says of a queue's name whether with whole messages.
                None = nothing is recorded.
        """
        self._shared = Shared(tokens, captures_body)
        self._events = self._shared.events
        self._entities = Entities(
            limits,
            self._shared,
            digest_key,
            enforce_quotas=enforce_quotas,
            first_position=first_sequence_number,
        )
        self._queues = self._entities.queues
        self._shared.forwarding = Forwarding(self._entities)
        self._delete_lock = delete_lock
        self._attachments = Attachments(self._entities, self._shared)
        self._operations = operations = Operations(self._entities, self._shared)
        self._transactions = Transactions(limits, operations, self._shared)
        cursors = CursorOperations(self._entities)
        self._purging = Purging(self._entities, self._shared)
        self._idle = IdleDeletion(self._shared.timers, self._remove)
        self._recovery: Recovery | None = None
        self._handlers: dict[type, tuple[_Handler, _Refusal]] = {
            ask.OpenSender: (self._attachments.open_sender, _refuse_link),
            ask.OpenReceiver: (self._attachments.open_receiver, _refuse_link),
            ask.OpenCoordinator: (self._transactions.open_coordinator, _refuse_link),
            ask.CloseLink: (self._close_link, _cannot_fail),
            ask.SetCredit: (self._attachments.set_credit, _cannot_fail),
            ask.DropConnection: (self._drop_connection, _cannot_fail),
            ask.Send: (operations.send, operations.reject),
            ask.SendBatch: (operations.send_batch, operations.reject),
            ask.Complete: (operations.complete, _fail_settlement),
            ask.Abandon: (operations.settle, _fail_settlement),
            ask.Defer: (operations.settle, _fail_settlement),
            ask.DeadLetter: (operations.settle, _fail_settlement),
            ask.Release: (operations.release, _fail_settlement),
            ask.RenewLocks: (operations.renew_locks, _fail),
            ask.Peek: (operations.peek, _fail),
            ask.Schedule: (operations.schedule, _fail),
            ask.CancelScheduled: (operations.cancel_scheduled, _fail),
            ask.ReceiveDeferred: (operations.receive_deferred, _fail),
            ask.UpdateDisposition: (operations.update_disposition, _fail),
            ask.DeleteMessages: (operations.delete_messages, _fail),
            ask.PurgeMessages: (self._purging.purge, _fail),
            ask.Fetched: (operations.fetched, _cannot_fail),
            ask.RenewSessionLock: (operations.renew_session, _fail),
            ask.GetSessionState: (operations.get_session_state, _fail),
            ask.SetSessionState: (operations.set_session_state, _fail),
            ask.ListSessions: (operations.list_sessions, _fail),
            ask.ClaimMessages: (cursors.claim, _fail),
            ask.ReadClaim: (cursors.read, _fail),
            ask.CommitClaims: (cursors.commit, _fail),
            ask.ReleaseCursor: (cursors.release, _fail),
            ask.ListCursors: (cursors.list_cursors, _fail),
            ask.Declare: (self._transactions.declare, _reject),
            ask.Discharge: (self._transactions.discharge, _reject),
            ask.Enlist: (self._transactions.enlist, self._refuse_enlisted),
            ask.LookUp: (self._look_up, _fail),
            ask.CreateEntity: (self._create_entity, _fail),
            ask.UpdateEntity: (self._update_entity, _fail),
            ask.DeleteEntity: (self._delete_entity, _fail),
            ask.ListEntities: (self._list_entities, _fail),
            ask.AddRule: (self._add_rule, _fail),
            ask.UpdateRule: (self._update_rule, _fail),
            ask.RemoveRule: (self._remove_rule, _fail),
            ask.FindRule: (self._find_rule, _fail),
            ask.ListRules: (self._list_rules, _fail),
            ask.LimitSending: (operations.limit_sending, _cannot_fail),
        }

    def apply(self, command: Command, now_ms: int) -> tuple[list[Change], list[Effect]]:
        """Do what a command asks, or refuse it as a whole."""
        changes: list[Change] = []
        effects: list[Effect] = []
        self._shared.copies = 0
        if self._events is not None:
            self._events.begin(command, now_ms)
        handler, refusal = self._handlers[type(command)]
        try:
            handler(command, now_ms, changes, effects)
        except ServiceBusError as error:
            assert not changes, "a refused command must change nothing"
            effect = refusal(command, error)
            if effect is not None:
                effects.append(effect)
        if self._shared.touched:
            self._serve_touched(now_ms, changes, effects)
        return changes, effects

    def advance(self, now_ms: int) -> tuple[list[Change], list[Effect]]:
        """Do what is due, a bounded slice a call: while `next_deadline_ms` is past there is more."""
        changes: list[Change] = []
        effects: list[Effect] = []
        if self._events is not None:
            self._events.begin_due(now_ms)
        left = SLICE
        while left > 0:
            due = self._shared.timers.take_due(now_ms)
            if due is None:
                break
            left -= due.advance(now_ms, left, changes, effects)
        if self._shared.touched:
            self._serve_touched(now_ms, changes, effects)
        return changes, effects

    def _serve_touched(self, now_ms: int, changes: list[Change], effects: list[Effect]) -> None:
        """Deliver in queues that got messages without being named: dead letters, forwarded ones."""
        while self._shared.touched:
            touched, self._shared.touched = self._shared.touched, {}
            for queue in touched.values():
                queue.serve(now_ms, changes, effects)

    def next_deadline_ms(self) -> int | None:
        """When `advance` has something to do; None when it never has."""
        return self._shared.timers.next_ms()

    def numbers_issued(self) -> list[NumbersIssued]:
        """State the counters of the queues that issued numbers since the last call."""
        issued = self._shared.issued
        self._shared.issued = []
        for queue in issued:
            queue.numbers_dirty = False
        states = self._entities.states
        return [
            queue.numbers_issued()
            for queue in issued
            if queue.queue_id in self._queues or queue.queue_id in states
        ]

    @property
    def events_due(self) -> bool:
        """Whether events have waited long enough for a batch of their own."""
        return self._events is not None and self._events.due

    def take_events(self) -> list[EventTuple] | None:
        """Give what happened since the last call; None while nothing is recorded."""
        return None if self._events is None else self._events.take()

    def flush_events(self) -> None:
        """Let no event wait any longer."""
        if self._events is not None:
            self._events.flush()

    # Links and connections

    def _close_link(
        self, command: ask.CloseLink, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        self._transactions.close_coordinator(command.link)
        self._attachments.close_link(command, now_ms, changes, effects)

    def _drop_connection(
        self, command: ask.DropConnection, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        self._transactions.drop_connection(command.connection_id)
        self._attachments.drop_connection(command, now_ms, changes, effects)

    def _refuse_enlisted(self, command: ask.Enlist, error: ServiceBusError) -> Effect | None:
        """Refuse a command of a transaction as it would be without one."""
        return self._handlers[type(command.command)][1](command.command, error)

    # Entities

    def _look_up(
        self, command: ask.LookUp, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        effects.append(do.EntityFound(command.reply_to, self._entities.find(command.address.path).view()))

    def _create_entity(
        self, command: ask.CreateEntity, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        entity = self._entities.create(command.description, now_ms)
        if entity.topic is not None:
            try:
                rule = self._entities.new_rule(
                    entity, command.rule or RuleDescription(DEFAULT_RULE_NAME), now_ms
                )
            except ServiceBusError:
                self._entities.remove(entity)  # its id is not used again
                del self._entities.removed[entity.entity_id]
                raise
            self._entities.put_rule(rule)
            self._touch_topic(entity, now_ms)
        self._idle.watch(entity, now_ms)
        changes.append(entity.stored())
        changes += [RuleStored(entity.entity_id, rule.description) for rule in entity.rules.values()]
        if self._events is not None:
            self._events.entity(EventType.ENTITY_CREATED, entity)
        effects.append(do.EntityFound(command.reply_to, entity.view()))

    def _update_entity(
        self, command: ask.UpdateEntity, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        entity, description = self._entities.checked_update(command.description, command.if_match, now_ms)
        subscriptions = entity.subscriptions()
        if description != entity.description:
            if drops_locks(entity.description, description):
                for queue in _all_queues(entity, subscriptions):
                    queue.drop_locks(effects)
            # Later than the last time in any case: clients know by it what they have read.
            updated_at_ms = max(now_ms, entity.updated_at_ms + 1)
            entity.change(description, self._entities.limits, updated_at_ms)
            changes.append(entity.stored())
            if self._events is not None:
                self._events.entity(EventType.ENTITY_UPDATED, entity)
            for subscription in subscriptions:
                subscription.apply_settings(self._entities.limits)
        self._touch_topic(entity, now_ms)
        self._idle.watch(entity, now_ms)
        effects.append(do.EntityFound(command.reply_to, entity.view()))
        receivers = [opened for opened in entity.links.values() if isinstance(opened, ReceiverLink)]
        if not entity.receives:
            error: ServiceBusError = EntityDisabled(
                f"'{entity.name}' is {description.status.value}: nothing can be received from it"
            )
            self._attachments.detach_all(receivers, error, now_ms, changes, effects)
        elif description.forward_to is not None:
            error = InvalidOperation(
                f"It is not possible to receive from '{entity.name}': it forwards to "
                f"'{description.forward_to}' now."
            )
            of_main = [opened for opened in receivers if opened.queue_id == entity.main.queue_id]
            self._attachments.detach_all(of_main, error, now_ms, changes, effects)
        for queue in _all_queues(entity, subscriptions):
            queue.serve(now_ms, changes, effects)

    def _delete_entity(
        self, command: ask.DeleteEntity, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        entity = self._entities.found_as(command.path, command.if_match)
        if self._delete_lock:
            raise InvalidOperation(
                f"'{entity.name}' cannot be deleted: the namespace has the lock CanNotDelete"
            )
        self._touch_topic(entity, now_ms)
        self._remove(entity, now_ms, changes, effects)
        effects.append(do.Done(command.reply_to))

    def _remove(self, entity: Entity, now_ms: int, changes: list[Change], effects: list[Effect]) -> None:
        """Take an entity away, with all that is attached to it; a topic's subscriptions first."""
        for subscription in entity.subscriptions():
            self._remove(subscription, now_ms, changes, effects)
        error = EntityDeleted(f"The messaging entity '{entity.name}' was deleted.")
        self._attachments.detach_all(list(entity.links.values()), error, now_ms, changes, effects)
        self._idle.forget(entity)
        for queue in entity.queues():
            if queue.cursors is not None:
                queue.cursors.abandon(error, effects)
        if entity.topic is not None:
            topic = entity.topic.main  # the last use of its subscription stays one of its own
            topic.accessed_at_ms = max(
                topic.accessed_at_ms, *(queue.accessed_at_ms for queue in entity.queues())
            )
        if self._events is not None:
            self._events.entity(EventType.ENTITY_DELETED, entity)
        changes.append(self._entities.remove(entity))

    def _list_entities(
        self, command: ask.ListEntities, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        entities, more = self._entities.page(command.kind, command.skip, command.top, command.topic)
        effects.append(do.EntitiesFound(command.reply_to, [entity.view() for entity in entities], more))

    def _touch_topic(self, entity: Entity, now_ms: int) -> None:
        """Take note that something was done with a topic's subscription: the topic is in use (A-03)."""
        if entity.topic is not None:
            entity.topic.main.accessed_at_ms = now_ms

    # Rules

    def _add_rule(
        self, command: ask.AddRule, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        subscription = self._entities.subscription(command.path)
        rule = self._entities.new_rule(subscription, command.rule, now_ms)
        self._entities.put_rule(rule)
        subscription.main.accessed_at_ms = now_ms  # "no new rule" A-03
        self._touch_topic(subscription, now_ms)
        changes.append(RuleStored(subscription.entity_id, rule.description))
        effects.append(do.RulesFound(command.reply_to, [rule.description]))

    def _update_rule(
        self, command: ask.UpdateRule, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        subscription = self._entities.subscription(command.path)
        new = self._entities.changed_rule(subscription, command.rule, command.if_match)
        self._touch_topic(subscription, now_ms)
        # Also when they seem equal: 1 and True are, but not to a filter.
        self._entities.put_rule(new)
        changes.append(RuleStored(subscription.entity_id, new.description))
        effects.append(do.RulesFound(command.reply_to, [new.description]))

    def _remove_rule(
        self, command: ask.RemoveRule, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        subscription = self._entities.subscription(command.path)
        rule = self._entities.rule(subscription, command.name, command.if_match)
        self._entities.drop_rule(subscription, command.name)
        self._touch_topic(subscription, now_ms)
        changes.append(RuleRemoved(subscription.entity_id, rule.description.name))
        effects.append(do.Done(command.reply_to))

    def _find_rule(
        self, command: ask.FindRule, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        subscription = self._entities.subscription(command.path)
        rule = self._entities.rule(subscription, command.name)
        effects.append(do.RulesFound(command.reply_to, [rule.description]))

    def _list_rules(
        self, command: ask.ListRules, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        skip, end = max(command.skip, 0), max(command.skip, 0) + max(command.top, 0)
        rules = self.rules(command.path)
        effects.append(do.RulesFound(command.reply_to, rules[skip:end], end < len(rules)))

    # Recovery and reclaim

    def restore_entity(self, stored: EntityStored) -> None:
        """Take in an entity that the store has; all of them come before the first frame."""
        self._recovering().restore_entity(stored)

    def restore_rule(self, stored: RuleStored) -> None:
        """Take in a rule that the store has, after the entities."""
        self._recovering().restore_rule(stored)

    def restore(self, changes: Iterable[Change]) -> None:
        """Take in one frame of the journal; frames come in order, oldest first."""
        self._recovering().restore(changes)

    def finish_restore(self, now_ms: int, next_entity_id: int) -> None:
        """Build the indexes and timers; nothing is locked. What fell due meanwhile follows by `advance`."""
        self._recovering().finish(now_ms)
        for entity in self._entities:
            self._idle.watch(entity, now_ms)
        self._entities.next_entity_id = max(self._entities.next_entity_id, next_entity_id)
        self._recovery = None
        if self._events is not None:
            self._events.begin_due(now_ms)
            self._events.epoch_started()
            for entity in self._entities:
                self._events.entity(EventType.ENTITY_PRESENT, entity)

    def _recovering(self) -> Recovery:
        if self._recovery is None:
            self._recovery = Recovery(self._entities)
        return self._recovery

    def find(self, queue_id: int, position: int) -> Message | None:
        """Give a message that is stored now."""
        return self._entities.find_stored(queue_id, position)

    def still_holds(self, change: NumbersIssued | MessageIdSeen, now_ms: int) -> Change | None:
        """Give what has to be written again when this fact's frame goes, None when it holds no more."""
        queue = self._queues.get(change.queue_id)
        if isinstance(change, NumbersIssued):
            issuer = queue or self._entities.states.get(change.queue_id)
            return None if issuer is None else issuer.numbers_issued()
        if queue is None:
            return None
        if queue.duplicates is not None and queue.duplicates.still_holds(change, now_ms):
            return change
        return None

    def removed_entity_messages(self, entity_id: int) -> Iterator[Message]:
        """Hand out the messages of a deleted entity, once; the caller takes them at its own pace."""
        entity = self._entities.removed.pop(entity_id, None)
        if entity is not None:
            yield from entity.all_messages()

    # Figures

    def entity_views(self) -> list[do.EntityView]:
        """Show all entities, queues, then topics, then subscriptions, each kind sorted by name."""
        return [
            entity.view()
            for kind in EntityKind
            for entity in self._entities.page(kind, 0, len(self._entities))[0]
        ]

    def rules(self, path: str) -> list[RuleDescription]:
        """Show the rules of a subscription, sorted by name. Raises: EntityNotFound, InvalidOperation."""
        rules = self._entities.subscription(path).rules.values()
        return sorted((rule.description for rule in rules), key=attrgetter("name"))

    @property
    def dropped_sends(self) -> int:
        """Pre-settled sends that were refused since start: their sender learns nothing (T-06)."""
        return self._operations.dropped_sends

    @property
    def failed_evaluations(self) -> int:
        """Rules that could not be evaluated for a message since start, of topics that are gone too (P-04)."""
        return self._shared.failed_evaluations

    @property
    def is_purging(self) -> bool:
        """Whether a purge is under way, which has time."""
        return self._purging.is_busy

    def totals(self) -> Totals:
        """Add up the figures of all queues; costs about 2 us an entity."""
        totals = Totals(
            entities=len(self._entities),
            connections=len(self._shared.links.connections),
            links=len(self._shared.links.by_link),
            dropped_sends=self.dropped_sends,
            failed_evaluations=self.failed_evaluations,
        )
        for entity in self._entities:
            totals.active_messages += len(entity.main.active)
            totals.deferred_messages += len(entity.main.deferred)
            totals.scheduled_messages += len(entity.main.scheduled)
            if entity.dead_letters is not None:
                totals.dead_letters += len(entity.dead_letters.active) + len(entity.dead_letters.deferred)
            if entity.fan_out is not None:
                totals.unmatched_messages += entity.fan_out.unmatched
            if entity.transfers is not None:
                totals.dead_letters += len(entity.transfers.active) + len(entity.transfers.deferred)
            if entity.main.sessions is not None:
                totals.sessions += len(entity.main.sessions)
            for queue in entity.queues():
                totals.locks += len(queue.locks)
                if queue.cursors is not None:
                    totals.cursors += len(queue.cursors)
                    totals.claimed_messages += queue.cursors.claimed_count
            if entity.topic is None:  # its topic counts it
                totals.size_bytes += entity.size_bytes()
        return totals

    def check(self, now_ms: int) -> None:
        """Compare all indexes with each other; an assertion fails when they do not agree."""
        for queue in self._queues.values():
            check_queue(queue, now_ms)
        for entity in self._entities:
            if entity.fan_out is not None:
                entity.fan_out.check()
        self._attachments.check()
        self._transactions.check()
        self._idle.check()


def _all_queues(entity: Entity, subscriptions: list[Entity]) -> list[MessageQueue]:
    return [queue for each in (entity, *subscriptions) for queue in each.queues()]


def _refuse_link(
    command: ask.OpenSender | ask.OpenReceiver | ask.OpenCoordinator, error: ServiceBusError
) -> Effect:
    return do.LinkRefused(command.link, error)


def _reject(command: ask.Declare | ask.Discharge, error: ServiceBusError) -> Effect:
    return do.Rejected(command.reply_to, error)


def _fail_settlement(command: ask.Complete, error: ServiceBusError) -> Effect | None:
    return None if command.reply_to is None else do.SettlementFailed(command.reply_to, error)


def _fail(command: ask.Peek, error: ServiceBusError) -> Effect:
    return do.Failed(command.reply_to, error)


def _cannot_fail(command: Command, error: ServiceBusError) -> NoReturn:
    raise AssertionError(f"{type(command).__name__} has nobody to tell: {error}") from error
