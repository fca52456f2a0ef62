"""The namespace: the single entry for commands, for time and for recovery.

`apply` and `advance` return changes and effects, and raise nothing for a client's fault. The same commands at
the same instants with the same tokens give the same answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from peeklock.broker.entities.entities import Entities
from peeklock.broker.handlers.dispatch import Handlers, cannot_fail
from peeklock.broker.handlers.figures import FiguresCount
from peeklock.broker.handlers.storing import SLICE_MESSAGES
from peeklock.broker.handlers.totals import Totals, TotalsCount
from peeklock.broker.queue import enqueue
from peeklock.broker.queue.counters import Counters, RequestCounters
from peeklock.broker.queue.graces import LOCK_GRACE_MS
from peeklock.broker.queue.invariants import check_queue
from peeklock.broker.queue.links import Consumer
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.recorder import Recorder
from peeklock.broker.queue.shared import Shared
from peeklock.broker.queue.wall_clock import CLOCK_STEP_LIMIT_MS, WallClock
from peeklock.broker.record.history import History
from peeklock.broker.record.history_recorder import HistoryRecorder
from peeklock.broker.recovery import Recovery
from peeklock.broker.vocabulary import commands as ask
from peeklock.broker.vocabulary import effects as do
from peeklock.broker.vocabulary.changes import Change, EntityStored, MessageIdSeen, NumbersIssued, RuleStored
from peeklock.broker.vocabulary.commands import Command, LockToken
from peeklock.broker.vocabulary.descriptions import (
    Description,
    EntityKind,
    RuleDescription,
    SubscriptionDescription,
)
from peeklock.broker.vocabulary.effects import Effect
from peeklock.broker.vocabulary.errors import ServiceBusError, SessionLockLost
from peeklock.broker.vocabulary.events import EventTuple, EventType
from peeklock.broker.vocabulary.message import Message
from peeklock.broker.vocabulary.quotas import TierLimits

SLICE = 1_000
"""Items of one `advance`, about: at 5 to 10 us each 10 ms at most."""


class Namespace:
    """The entities of one namespace, and the links to them."""

    def __init__(
        self,
        *,
        limits: TierLimits,
        tokens: Callable[[], LockToken],
        digest_key: bytes,
        enforce_quotas: bool = False,
        delete_lock: bool = False,
        first_sequence_number: int = 1,
        captures_body: Callable[[str], bool] | None = None,
        slice_items: int = SLICE_MESSAGES,
        lock_grace_ms: int | None = LOCK_GRACE_MS,
        clock_step_limit_ms: int = CLOCK_STEP_LIMIT_MS,
        history: History | None = None,
    ) -> None:
        """Make an empty namespace.

        Args:
            limits: of its tier.
            tokens: returns 16 random bytes, a GUID in .NET order.
            digest_key: at most 64 secret bytes, the same after a restart; keys the digests of message ids.
            enforce_quotas: enforce the size of entities and their number (A-05).
            delete_lock: refuse to delete entities; idle ones are deleted all the same (A-03).
            first_sequence_number: of each new queue, for tests of the roll-over (S-03).
            captures_body: whether events of a queue, by name, hold whole messages; None = no events.
            slice_items: messages of a batch, or subscriptions of a deleted topic, in one step.
            lock_grace_ms: how long a broken connection keeps its locks; None = until they lapse (L-13).
            clock_step_limit_ms: a larger step forwards of the wall clock makes nothing due.
            history: takes the messages that leave.
        """
        self._shared = shared = Shared(tokens, clock_step_limit_ms)
        self._recorder: Recorder | None = None
        if history is not None:
            self._recorder = HistoryRecorder(shared.timers, shared.wall, captures_body, history)
        elif captures_body is not None:
            self._recorder = Recorder(shared.timers, shared.wall, captures_body)
        self._out = Outcome(self._recorder)
        self.unfinished = False
        """Whether the last command, a checked batch of many messages, has steps left."""
        self.timers = shared.timers
        """When `advance` has something to do."""
        self._entities = entities = Entities(
            limits, shared, digest_key, enforce_quotas=enforce_quotas, first_position=first_sequence_number
        )
        self._queues = entities.queues
        self._lock_grace_ms = lock_grace_ms
        self._handlers = handlers = Handlers(
            entities, shared, slice_items, lock_grace_ms, delete_lock=delete_lock
        )
        self._operations = handlers.operations
        self._purging = handlers.purging
        self._deletions = handlers.deletions
        self._transactions = handlers.transactions
        self._recovery = Recovery(entities)
        self._table = {command: (*pair, RequestCounters()) for command, pair in handlers.table.items()}

    def apply(self, command: Command, now_ms: int) -> tuple[list[Change], list[Effect]]:
        """Do a command, or refuse it as a whole. While it is `unfinished`, `go_on` must come next."""
        out = self._out
        # Fields are set here, without a call of `Outcome`: each message takes this path twice or more.
        out.now_ms = now_ms
        out.copies = 0
        if self._recorder is not None:
            self._recorder.begin(command, now_ms)
        left: Command | None = command
        while left is not None:
            command = left
            handler, refusal, requests = self._table[type(command)]
            changed = len(out.changes)
            try:
                handler(command, out)
            except ServiceBusError as error:
                assert len(out.changes) == changed, "what is refused must change nothing"
                requests.count_refusal(error)
                # A plain value from here on: its frames hold the effects that will hold it, a cycle.
                error.__traceback__ = error.__context__ = error.__cause__ = None
                effect = refusal(command, error)
                if effect is not None:
                    out.effects.append(effect)
                if type(error) is SessionLockLost:
                    self._handlers.sessions.refused_session_lock(command, out)
                left = command.after(1) if isinstance(command, ask.Send | ask.Complete) else None
            else:
                requests.succeeded += 1 + out.further
                left = out.left
                out.further, out.left = 0, None
        if out.touched:
            self._serve_touched()
        self.unfinished = self._operations.storing is not None
        changes, effects = out.changes, out.effects
        out.changes = []
        out.effects = []
        return changes, effects

    def look_for_bodies(self, at_hand: Callable[[Message], bool]) -> None:
        """Set how to find out whether a body is in memory; receive-and-delete waits for those that are
        not."""
        self._shared.bodies.in_memory = at_hand

    def go_on(self, now_ms: int) -> tuple[list[Change], list[Effect]]:
        """Do the next step of the unfinished command, before any other."""
        out = self._out
        storing = self._operations.storing
        assert storing is not None, "no command is unfinished"
        out.resume(storing.command, now_ms)
        self._operations.store_on(out)
        if out.touched:
            self._serve_touched()
        self.unfinished = self._operations.storing is not None
        return out.take()

    def advance(self, now_ms: int, purged_max: int | None = None) -> tuple[list[Change], list[Effect]]:
        """Do a bounded slice of what is due; there is more while `timers.next_ms` is past.

        Args:
            purged_max: messages that a purge may examine, which then ends the call; None = the usual slice.
        """
        out = self._out
        out.begin_due(now_ms)
        left = SLICE
        while left > 0:
            due = self._shared.timers.take_due(now_ms)
            if due is None:
                break
            if due is self._purging and purged_max is not None:
                due.advance(purged_max, out)
                break
            left -= due.advance(left, out)
        if out.touched:
            self._serve_touched()
        return out.take()

    def _serve_touched(self) -> None:
        """Deliver in queues that got dead letters or forwarded messages."""
        out = self._out
        while out.touched:
            touched, out.touched = out.touched, {}
            for queue in touched.values():
                queue.serve(out)

    def numbers_issued(self) -> list[NumbersIssued]:
        """Return the counters of the queues that issued numbers since the last call."""
        issued, self._shared.issued = self._shared.issued, []
        numbers = []
        for issuer in issued:
            issuer.numbers_dirty = False
            if (fact := self._numbers_of(issuer.queue_id)) is not None:
                numbers.append(fact)
        return numbers

    def _numbers_of(self, queue_id: int) -> NumbersIssued | None:
        """Return the counters of a queue, or of the session states of one; None if it is gone."""
        queue = self._queues.get(queue_id)
        if queue is not None:
            return enqueue.numbers_issued(queue)
        states = self._entities.states.get(queue_id)
        return None if states is None else states.numbers_issued()

    @property
    def events_due(self) -> bool:
        """Whether events have waited long enough for a batch of their own."""
        return self._recorder is not None and self._recorder.captures and self._recorder.due

    def take_events(self) -> list[EventTuple] | None:
        """Return the events since the last call; None if none are recorded."""
        if self._recorder is None or not self._recorder.captures:
            return None
        return self._recorder.take()

    def flush_events(self) -> None:
        """Make a batch due for the events that wait."""
        if self._recorder is not None:
            self._recorder.flush()

    @property
    def wall(self) -> WallClock:
        """The difference between the wall clock and `now_ms`."""
        return self._shared.wall

    # Recovery and reclaim

    def restore_entity(self, stored: EntityStored) -> None:
        """Add a stored entity; all entities come before the first frame."""
        self._recovery.restore_entity(stored)

    def restore_rule(self, stored: RuleStored) -> None:
        """Add a stored rule; rules come after the entities."""
        self._recovery.restore_rule(stored)

    def restore(self, changes: Iterable[Change]) -> None:
        """Apply one frame of the journal, the oldest first."""
        self._recovery.restore(changes)

    def finish_restore(self, now_ms: int, next_entity_id: int) -> None:
        """Build indexes and timers. Nothing is locked; `advance` does what fell due meanwhile."""
        out = self._out
        out.begin_due(now_ms)
        self._recovery.finish(now_ms)
        for entity in self._entities:
            if not entity.deleting:
                self._deletions.idle.watch(entity, now_ms)
        self._deletions.resume(now_ms)
        self._entities.next_entity_id = max(self._entities.next_entity_id, next_entity_id)
        self._recovery = Recovery(self._entities)
        out.epoch_started(self._lock_grace_ms)
        for entity in self._entities:
            out.entity(EventType.ENTITY_PRESENT, entity.main, entity.description)

    def replaced_states(self) -> list[tuple[str, list[str]]]:
        """Return, by queue, the sessions whose stored state is replaced by one of another spelling (C27),
        until `advance` removes it."""
        found = []
        for entity in self._entities:
            states = entity.states
            if states is not None and states.replaced:
                found.append((entity.name, [str(record.session_id) for record in states.replaced]))
        return found

    def name_of(self, queue_id: int) -> str:
        """Return the path of a queue or topic; empty if it is gone."""
        queue = self._queues.get(queue_id)
        return "" if queue is None else queue.name

    def find(self, queue_id: int, position: int) -> Message | None:
        """Return a stored message."""
        return self._entities.find_stored(queue_id, position)

    def still_holds(self, change: NumbersIssued | MessageIdSeen, now_ms: int) -> Change | None:
        """Return the fact to write again when the frame of this one goes; None if it no longer holds."""
        if isinstance(change, NumbersIssued):
            return self._numbers_of(change.queue_id)
        queue = self._queues.get(change.queue_id)
        if queue is None:
            return None
        if queue.duplicates is not None and queue.duplicates.still_holds(change, now_ms):
            return change
        return None

    def removed_entity_messages(self, entity_id: int) -> Iterator[Message]:
        """Yield the messages of a deleted entity, once, at the pace of the caller."""
        entity = self._entities.removed.pop(entity_id, None)
        if entity is not None:
            yield from entity.all_messages()

    # Figures

    def entity_views(self) -> list[do.EntityView]:
        """Return all entities: queues, then topics, then subscriptions, each sorted by name."""
        return [
            entity.view()
            for kind in EntityKind
            for entity in self._entities.page(kind, 0, len(self._entities))[0]
        ]

    def definitions(self) -> tuple[list[Description], dict[str, list[RuleDescription]]]:
        """Return the entities that are not being deleted, and rules by path of a subscription."""
        found = [entity.description for entity in self._entities if not entity.deleting]
        rules = {
            each.name: self.rules(each.name) for each in found if isinstance(each, SubscriptionDescription)
        }
        return found, rules

    def rules(self, path: str) -> list[RuleDescription]:
        """Return the rules of a subscription, sorted by name. Raises: EntityNotFound, InvalidOperation."""
        return self._handlers.definitions.rules(path)

    @property
    def dropped_sends(self) -> int:
        """Pre-settled sends refused since the start, unknown to their senders (T-06)."""
        return self._operations.dropped_sends

    @property
    def failed_evaluations(self) -> int:
        """Failed evaluations of rules since the start, deleted topics included (P-04)."""
        return self._shared.failed_evaluations

    @property
    def is_deleting(self) -> bool:
        """Whether a topic is being deleted in slices."""
        return self._deletions.is_busy

    @property
    def is_purging(self) -> bool:
        """Whether a purge is under way."""
        return self._purging.is_busy

    @property
    def counters(self) -> Counters:
        """Counters since the start, deleted entities included."""
        return self._out.counters

    def entity_counters(self) -> dict[str, Counters]:
        """Return the counters of each entity since the start or its creation, by path."""
        return {entity.name: entity.counters for entity in self._entities}

    def requests(self) -> dict[str, RequestCounters]:
        """Return the counters of requests since the start, by operation such as `send_batch`.

        The broker's own releases of undelivered messages count as releases.
        """
        return {
            re.sub("(?<!^)(?=[A-Z])", "_", command.__name__).lower(): counters
            for command, (_, refusal, counters) in self._table.items()
            if refusal is not cannot_fail
        }

    def totals(self) -> Totals:
        """Return the figures of all entities at one instant; costs 2 to 5 us an entity."""
        count = self.count_totals()
        while not count.advance():
            pass
        return count.totals

    @property
    def size_bytes(self) -> int:
        """The size of all entities; 1 us an entity."""
        return sum(entity.size_bytes() for entity in self._entities)

    def count_totals(self) -> TotalsCount:
        """Return a count of the figures, to be done in slices."""
        known = Totals(
            entities=len(self._entities),
            connections=len(self._shared.links.connections),
            links=len(self._shared.links.by_link),
            dropped_sends=self.dropped_sends,
            failed_evaluations=self.failed_evaluations,
        )
        return TotalsCount(self._entities, known)

    def count_figures(self) -> FiguresCount:
        """Return a reading of the figures of each entity, to be done in slices."""
        return FiguresCount(self._entities)

    def check(self, now_ms: int) -> None:
        """Compare all indexes with each other; an assertion fails when they do not agree."""
        for queue in self._queues.values():
            check_queue(queue, now_ms)
        for entity in self._entities:
            if entity.fan_out is not None:
                entity.fan_out.check()
        self._handlers.attachments.check()
        links = self._shared.links.by_link.values()
        self._shared.bodies.check([link for link in links if isinstance(link, Consumer)])
        self._handlers.graces.check()
        self._transactions.check()
        self._deletions.check()
        self._handlers.searching.check()
