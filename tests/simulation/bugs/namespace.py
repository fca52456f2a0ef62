"""Planted bugs in sessions, transactions and forwards: each subclasses the real namespace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from peeklock.broker.handlers.enlisted import Cancelled, Numbered, StateSet, size_of
from peeklock.broker.namespace import Namespace
from peeklock.broker.queue import delivery, message_sessions
from peeklock.broker.queue.delivery import ReadyQueue, deliver
from peeklock.broker.queue.lapsed_sessions import LapsedSession
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.message_sessions import MessageSessions
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.session_ids import folded
from peeklock.broker.queue.timers import FAR_MS
from peeklock.broker.vocabulary.changes import (
    QUEUES_PER_ENTITY,
    Change,
    ClaimStored,
    CursorStored,
    MessageIdSeen,
    MessageRemoved,
    MessageStored,
)
from peeklock.broker.vocabulary.commands import (
    Abandon,
    CancelScheduled,
    CloseLink,
    Command,
    Defer,
    Discharge,
    Enlist,
    LinkId,
    OpenReceiver,
    Send,
    SendBatch,
    UpdateDisposition,
)
from peeklock.broker.vocabulary.effects import Deliver, Effect, LinkRefused, ReceiverOpened
from peeklock.broker.vocabulary.errors import ServiceBusError, SessionCannotBeLocked
from peeklock.broker.vocabulary.message import MessageState
from tests.simulation.world.sizes import Patch

Answer = tuple[list[Change], list[Effect]]


class Watched(Namespace):
    """Passes every answer through `look`, and every command through `before`."""

    def apply(self, command: Command, now_ms: int) -> Answer:
        before = self.before(command, now_ms)
        return self.look(*(super().apply(command, now_ms) if before is None else before), now_ms)

    def advance(self, now_ms: int, items: int | None = None) -> Answer:
        return self.look(*super().advance(now_ms, items), now_ms)

    def before(self, command: Command, now_ms: int) -> Answer | None:
        """Answer a command in place of the real namespace, which does not get it then."""
        return None

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        """Inspect an answer, or return another one."""
        return changes, effects

    def reopened(self, changes: list[Change], effects: list[Effect]) -> Outcome:
        """Return the outcome of an answer, so that more can follow from it; `take` answers again."""
        self._out.changes, self._out.effects = changes, effects
        return self._out

    def queues_with_sessions(self) -> list[tuple[MessageQueue, MessageSessions]]:
        return [(queue, queue.sessions) for queue in self._queues.values() if queue.sessions is not None]


class UncountedDeferrals(Namespace):
    """Does not count a deferral."""

    def apply(self, command: Command, now_ms: int) -> Answer:
        if isinstance(command, Defer):
            queue = self._queues.get(command.queue_id)
            lock = None if queue is None else queue.held(command.lock_token, now_ms)
            if lock is not None and not lock.queue.holds_dead_letters:
                lock.message.delivery_count -= 1
        return super().apply(command, now_ms)


class CountedDeadLetters(Namespace):
    """Counts what is abandoned in a dead-letter queue."""

    def apply(self, command: Command, now_ms: int) -> Answer:
        counted: list[Change] = []
        if isinstance(command, Abandon):
            queue = self._queues.get(command.queue_id)
            lock = None if queue is None else queue.held(command.lock_token, now_ms)
            if lock is not None and lock.queue.holds_dead_letters:
                lock.message.delivery_count += 1
                counted.append(MessageStored(lock.queue.queue_id, lock.message))
        changes, effects = super().apply(command, now_ms)
        return counted + changes, effects


class SharedSessions(Watched):
    """Gives a held session to any client that names it, and does not detach its holder."""

    def before(self, command: Command, now_ms: int) -> Answer | None:
        if isinstance(command, OpenReceiver) and command.session is not None:
            for queue, sessions in self.queues_with_sessions():
                session = sessions.get(command.session.session_id or "")
                if session is not None and session.lock is not None and command.address.path == queue.name:
                    self._out.resume(command, now_ms)
                    sessions.release(session, self._out, counted=False)
                    changes, effects = self._out.take()
                    opened, told = super().apply(command, now_ms)
                    return changes + opened, effects + told
        return None


class SplitSessions(Namespace):
    """Takes each spelling of a session id for a separate session."""

    def apply(self, command: Command, now_ms: int) -> Answer:
        with _spelling_by_spelling():
            return super().apply(command, now_ms)

    def go_on(self, now_ms: int) -> Answer:
        with _spelling_by_spelling():
            return super().go_on(now_ms)

    def advance(self, now_ms: int, items: int | None = None) -> Answer:
        with _spelling_by_spelling():
            return super().advance(now_ms, items)

    def finish_restore(self, now_ms: int, next_entity_id: int) -> None:
        with _spelling_by_spelling():
            super().finish_restore(now_ms, next_entity_id)

    def check(self, now_ms: int) -> None:
        with _spelling_by_spelling():
            super().check(now_ms)


@contextmanager
def _spelling_by_spelling() -> Iterator[None]:
    message_sessions.folded = str  # type: ignore[assignment, attr-defined]  # the bug
    try:
        yield
    finally:
        message_sessions.folded = folded  # type: ignore[attr-defined]  # as it was


class EagerDetaches(Watched):
    """Detaches the link of a session together with the lapse of its lock."""

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        out = self.reopened(changes, effects)
        for _, sessions in self.queues_with_sessions():
            for receiver in sessions.lapsed.receivers():
                sessions._detach_lapsed(receiver, out)
        return out.take()


class ForgottenDetaches(Watched):
    """Never detaches the link of a lapsed session by itself."""

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        for _, sessions in self.queues_with_sessions():
            for receiver in sessions.lapsed.receivers():
                assert isinstance(receiver.ready_queue, LapsedSession)
                receiver.ready_queue.detach_at_ms = FAR_MS
        return changes, effects


class StaleDeliveries(Watched):
    """Delivers messages of a session also over the link whose lock has lapsed."""

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        for queue, sessions in self.queues_with_sessions():
            for receiver in sessions.lapsed.receivers():
                assert isinstance(receiver.ready_queue, LapsedSession)
                session = sessions.get(receiver.ready_queue.key)
                if session is None or not receiver.has_credit() or receiver.deletes:
                    continue
                for message in session.messages(queue):
                    if message.state is MessageState.ACTIVE:
                        receiver.deliveries += 1
                        receivers = receiver.ready_queue.receivers
                        receivers.credit_changed(receiver)
                        token, count = queue.new_token(), message.delivery_count
                        effects.append(
                            Deliver(
                                message, token, 0, count, None, message.state, message.overlay, receiver.link
                            )
                        )
                        break
        return changes, effects


class StrangeSettlements(Watched):
    """Lets every client settle the messages of a session."""

    def before(self, command: Command, now_ms: int) -> Answer | None:
        if isinstance(command, UpdateDisposition):
            for queue, _ in self.queues_with_sessions():
                for token in command.lock_tokens:
                    lock = queue.locks.get(token)
                    if lock is not None and lock.session is not None and lock.session.lock is not None:
                        holder = lock.session.lock.receiver.link.connection_id
                        command.reply_to, asker = (
                            command.reply_to._replace(connection_id=holder),
                            command.reply_to,
                        )
                        changes, effects = Namespace.apply(self, command, now_ms)
                        for effect in effects:
                            if getattr(effect, "reply_to", None) == command.reply_to:
                                effect.reply_to = asker  # type: ignore[union-attr]  # just seen
                        return changes, effects
        return None


class KeptSessions(Watched):
    """Refuses a session that a client of the process before held."""

    def __init__(self, kept: dict[tuple[int, str], tuple[int, int]], **settings: Any) -> None:
        """Keep the real namespace. `kept` outlives the process: (queue id, session id) -> (which process,
        locked until)."""
        super().__init__(**settings)
        self._kept = kept
        self._process = max((process for process, _ in kept.values()), default=0) + 1

    def before(self, command: Command, now_ms: int) -> Answer | None:
        if isinstance(command, OpenReceiver) and command.session is not None:
            key = folded(command.session.session_id or "")
            for queue, _ in self.queues_with_sessions():
                process, until_ms = self._kept.get((queue.queue_id, key), (self._process, 0))
                if command.address.path == queue.name and process < self._process and now_ms < until_ms:
                    return [], [LinkRefused(command.link, SessionCannotBeLocked("it was held before"))]
        return None

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        for effect in effects:
            if isinstance(effect, ReceiverOpened) and effect.session_id is not None:
                held = self._process, effect.locked_until_ms
                self._kept[effect.queue_id, folded(effect.session_id)] = held
        return changes, effects


class DisorderedSessions(Watched):
    """Puts what is given back behind all else of its session."""

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        for _, sessions in self.queues_with_sessions():
            for session in sessions:
                session._positions += session.returned
                session.returned = []
        return changes, effects

    def check(self, now_ms: int) -> None:
        """The order is wrong on purpose."""


class DeafToCancelling(Watched):
    """Gives a session also to a link that was closed while it waited for one."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._closed: set[LinkId] = set()

    def before(self, command: Command, now_ms: int) -> Answer | None:
        if isinstance(command, CloseLink):
            if any(command.link in sessions.waiting for _, sessions in self.queues_with_sessions()):
                self._closed.add(command.link)
            if command.link in self._closed:
                return [], []
        return None

    def check(self, now_ms: int) -> None:
        """Links are left over on purpose."""


class TornTransactions(Watched):
    """Does the second half of a transaction a little later."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._later: list[tuple[int, Any]] = []

    def before(self, command: Command, now_ms: int) -> Answer | None:
        if isinstance(command, Discharge) and not command.fail:
            transaction = self._transactions._running.get(command.transaction_id)
            if transaction is not None:
                half = len(transaction.commands) // 2
                self._later += [(now_ms, enlisted) for enlisted in transaction.commands[half:]]
                del transaction.commands[half:]
        return None

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        out = self.reopened(changes, effects)
        while self._later and self._later[0][0] < now_ms:
            enlisted = self._later.pop(0)[1]
            try:
                self._transactions._enlisting.check(enlisted, now_ms)
            except ServiceBusError:
                continue
            self._transactions._enlisting.perform(enlisted, None, out)
        return out.take()


class LostSettlements(Watched):
    """Forgets the settlements of a transaction."""

    def before(self, command: Command, now_ms: int) -> Answer | None:
        if isinstance(command, Discharge):
            transaction = self._transactions._running.get(command.transaction_id)
            if transaction is not None:
                transaction.commands = [c for c in transaction.commands if isinstance(c, Send | SendBatch)]
        return None


class KeptIds(Watched):
    """Does not free the id of a cancelled message."""

    def before(self, command: Command, now_ms: int) -> Answer | None:
        if isinstance(command, CancelScheduled):
            for queue in self._queues.values():
                if queue.duplicates is not None:
                    queue.duplicates.waiting.clear()
        return None


class VolatileFreedom(Watched):
    """Frees the id of a cancelled message only until the next restart."""

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        freed = [c for c in changes if isinstance(c, MessageIdSeen) and not c.seen_at_ms]
        return [change for change in changes if change not in freed], effects


class UnaskedSchedules(Watched):
    """Stores what is scheduled in a transaction that is rolled back."""

    def before(self, command: Command, now_ms: int) -> Answer | None:
        if not isinstance(command, Discharge) or not command.fail:
            return None
        transaction = self._transactions._running.get(command.transaction_id)
        schedules = (
            [] if transaction is None else [c for c in transaction.commands if isinstance(c, Numbered)]
        )
        out = self.reopened(*super(Watched, self).apply(command, now_ms))
        for schedule in schedules:
            self._transactions._enlisting.perform(schedule, None, out)
        return out.take()


class LeftStates(Watched):
    """Sets the states of a transaction that is rolled back."""

    def before(self, command: Command, now_ms: int) -> Answer | None:
        if not isinstance(command, Discharge) or not command.fail:
            return None
        transaction = self._transactions._running.get(command.transaction_id)
        states = [] if transaction is None else [c for c in transaction.commands if isinstance(c, StateSet)]
        out = self.reopened(*super(Watched, self).apply(command, now_ms))
        for state in states:
            with suppress(ServiceBusError):
                self._transactions._enlisting.perform(state, None, out)
        return out.take()


class HastyCancels(Watched):
    """Cancels at once what is cancelled in a transaction."""

    def before(self, command: Command, now_ms: int) -> Answer | None:
        if not isinstance(command, Enlist) or not isinstance(command.command, CancelScheduled):
            return None
        out = self.reopened(*super(Watched, self).apply(command, now_ms))
        transaction = self._transactions._running.get(command.transaction_id)
        if transaction is not None:
            for cancelled in [c for c in transaction.commands if isinstance(c, Cancelled)]:
                transaction.commands.remove(cancelled)
                transaction.size_bytes -= size_of(cancelled)
                transaction.control.connection.size_bytes -= size_of(cancelled)
                out.attribute_to_transaction(command, command.transaction_id)
                self._transactions._enlisting.perform(cancelled, None, out)
        return out.take()


class HeldAfterRollBacks(Watched):
    """Refuses to settle what was settled in a transaction that is rolled back."""

    def before(self, command: Command, now_ms: int) -> Answer | None:
        if not isinstance(command, Discharge) or not command.fail:
            return None
        transaction = self._transactions._running.get(command.transaction_id)
        answer = super(Watched, self).apply(command, now_ms)
        for lock in [] if transaction is None else transaction.locks:
            lock.transaction_id = command.transaction_id
        return answer

    def check(self, now_ms: int) -> None:
        """Locks are marked on purpose."""


class CopyingForwards(Watched):
    """Leaves a forwarded message where it was."""

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        stored = {
            (change.message.body_row, change.message.body_slot, change.queue_id // QUEUES_PER_ENTITY)
            for change in changes
            if isinstance(change, MessageStored) and change.message.body_row
        }

        def passed_on(change: Change) -> bool:
            if not isinstance(change, MessageRemoved):
                return False
            body = change.message.body_row, change.message.body_slot
            entity_id = change.queue_id // QUEUES_PER_ENTITY
            return any(found[:2] == body and found[2] != entity_id for found in stored)

        return [change for change in changes if not passed_on(change)], effects


class ForgottenClaims(Watched):
    """Forgets claims at a restart, though the store has them."""

    def finish_restore(self, now_ms: int, next_entity_id: int) -> None:
        super().finish_restore(now_ms, next_entity_id)
        for queue in self._queues.values():
            queue.cursors = None
            queue.ready_queue.rescan()
            for message in queue.active:
                message.lock = None


class VolatileClaims(Watched):
    """Answers a claim before it is durable."""

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        return [change for change in changes if not isinstance(change, ClaimStored)], effects


class TornCommits(Watched):
    """Removes what was claimed without a record of the commit."""

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        return [c for c in changes if not (isinstance(c, CursorStored) and c.committed_no)], effects


class GreedyClaims(Watched):
    """Delivers claimed messages to receivers too."""

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        for change in changes:
            if isinstance(change, ClaimStored):
                queue = self._queues[change.queue_id]
                if queue.sessions is None:
                    first = change.positions[0][0]
                    message = queue.active.get(first)
                    assert message is not None
                    message.lock = None
                    queue.make_available(message)
        return changes, effects


class OpenSessions(Watched):
    """Gives a session of which a cursor holds messages to receivers."""

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        for _, sessions in self.queues_with_sessions():
            for session in sessions:
                if session.cursor is not None and session.key not in sessions.available:
                    sessions.available[session.key] = session
        return changes, effects


def deliver_worn(queue: MessageQueue, ready: ReadyQueue, out: Outcome) -> None:
    """Deliver also messages whose count has reached a MaxDeliveryCount that was lowered since."""
    most, queue.max_delivery_count = queue.max_delivery_count, FAR_MS
    try:
        deliver(queue, ready, out)
    finally:
        queue.max_delivery_count = most


WORN_DELIVERIES: tuple[Patch, ...] = ((delivery, "deliver", deliver_worn),)
"""Puts `deliver_worn` in place of the real one."""
