"""Planted bugs in sessions, transactions and forwards: each subclasses the real namespace.

Owns: how each is broken. Must not know: how it is found (`bugs` says what must be).
"""

from __future__ import annotations

from typing import Any

from peeklock.broker.changes import (
    QUEUES_PER_ENTITY,
    Change,
    ClaimStored,
    CursorStored,
    MessageRemoved,
    MessageStored,
)
from peeklock.broker.commands import (
    CloseLink,
    Command,
    Discharge,
    Link,
    OpenReceiver,
    Send,
    SendBatch,
)
from peeklock.broker.effects import Effect, LinkRefused, ReceiverOpened
from peeklock.broker.errors import ServiceBusError, SessionCannotBeLocked
from peeklock.broker.message_queue import MessageQueue
from peeklock.broker.message_sessions import MessageSessions
from peeklock.broker.namespace import Namespace

Answer = tuple[list[Change], list[Effect]]


class Watched(Namespace):
    """Lets every answer pass through `look`, and every command through `before`."""

    def apply(self, command: Command, now_ms: int) -> Answer:
        before = self.before(command, now_ms)
        return self.look(*(super().apply(command, now_ms) if before is None else before), now_ms)

    def advance(self, now_ms: int) -> Answer:
        return self.look(*super().advance(now_ms), now_ms)

    def before(self, command: Command, now_ms: int) -> Answer | None:
        """Answer a command in place of the real namespace, which is not asked then."""
        return None

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        """Look at an answer, or give another one."""
        return changes, effects

    def queues_with_sessions(self) -> list[tuple[MessageQueue, MessageSessions]]:
        return [(queue, queue.sessions) for queue in self._queues.values() if queue.sessions is not None]


class SharedSessions(Watched):
    """Gives a session that is held to whoever names it, and does not tell its holder."""

    def before(self, command: Command, now_ms: int) -> Answer | None:
        if isinstance(command, OpenReceiver) and command.session is not None:
            for queue, sessions in self.queues_with_sessions():
                session = sessions.get(command.session.session_id or "")
                if session is not None and session.lock is not None and command.address.path == queue.name:
                    changes: list[Change] = []
                    effects: list[Effect] = []
                    sessions.release(session, now_ms, changes, effects, counted=False)
                    opened, told = super().apply(command, now_ms)
                    return changes + opened, effects + told
        return None


class KeptSessions(Watched):
    """Refuses a session that the process before had given to somebody."""

    def __init__(self, kept: dict[tuple[int, str], tuple[int, int]], **settings: Any) -> None:
        """`kept` outlives the process: (queue id, session id) -> (which process, locked until)."""
        super().__init__(**settings)
        self._kept = kept
        self._process = max((process for process, _ in kept.values()), default=0) + 1

    def before(self, command: Command, now_ms: int) -> Answer | None:
        if isinstance(command, OpenReceiver) and command.session is not None:
            session_id = command.session.session_id
            for queue, _ in self.queues_with_sessions():
                process, until_ms = self._kept.get((queue.queue_id, session_id or ""), (self._process, 0))
                if command.address.path == queue.name and process < self._process and now_ms < until_ms:
                    return [], [LinkRefused(command.link, SessionCannotBeLocked("it was held before"))]
        return None

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        for effect in effects:
            if isinstance(effect, ReceiverOpened) and effect.session_id is not None:
                held = self._process, effect.locked_until_ms
                self._kept[effect.queue_id, effect.session_id] = held
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
        self._closed: set[Link] = set()

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
            transaction = self._transactions._by_age.get(command.transaction_id)
            if transaction is not None:
                half = len(transaction.commands) // 2
                self._later += [(now_ms, enlisted) for enlisted in transaction.commands[half:]]
                del transaction.commands[half:]
        return None

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        while self._later and self._later[0][0] < now_ms:
            enlisted = self._later.pop(0)[1]
            try:
                self._operations.check(enlisted, now_ms)
            except ServiceBusError:
                continue
            self._operations.perform(enlisted, now_ms, changes, effects)
        return changes, effects


class LostSettlements(Watched):
    """Forgets what a transaction settles."""

    def before(self, command: Command, now_ms: int) -> Answer | None:
        if isinstance(command, Discharge):
            transaction = self._transactions._by_age.get(command.transaction_id)
            if transaction is not None:
                transaction.commands = [c for c in transaction.commands if isinstance(c, Send | SendBatch)]
        return None


class CopyingForwards(Watched):
    """Leaves what it passes on where it was."""

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
    """Knows nothing of claims after a restart, though the store does."""

    def finish_restore(self, now_ms: int, next_entity_id: int) -> None:
        super().finish_restore(now_ms, next_entity_id)
        for queue in self._queues.values():
            queue.cursors = None
            queue.line.look_again()
            for message in queue.active:
                message.lock = None


class VolatileClaims(Watched):
    """Answers a claim that is not durable."""

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        return [change for change in changes if not isinstance(change, ClaimStored)], effects


class TornCommits(Watched):
    """Removes what was claimed without saying that it is committed."""

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        return [c for c in changes if not (isinstance(c, CursorStored) and c.committed_no)], effects


class GreedyClaims(Watched):
    """Lets receivers have what is claimed, too."""

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        for change in changes:
            if isinstance(change, ClaimStored):
                queue = self._queues[change.queue_id]
                if queue.sessions is None:
                    first = change.positions[0][0]
                    message = queue.active.get(first)
                    assert message is not None
                    message.lock = None
                    queue.return_to_line(message)
        return changes, effects


class OpenSessions(Watched):
    """Gives a session of which a cursor holds messages to whoever comes."""

    def look(self, changes: list[Change], effects: list[Effect], now_ms: int) -> Answer:
        for _, sessions in self.queues_with_sessions():
            for session in sessions:
                if session.cursor is not None and session.session_id not in sessions.available:
                    sessions.available[session.session_id] = session
        return changes, effects
