"""Commands about sessions: renew the lock, get and set the state, show, list."""

from __future__ import annotations

from peeklock.broker.entities.entities import Entities
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.message_session import MessageSession
from peeklock.broker.queue.message_sessions import MessageSessions
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.shared import Shared
from peeklock.broker.vocabulary import commands as ask
from peeklock.broker.vocabulary import effects as do
from peeklock.broker.vocabulary.errors import (
    ArgumentOutOfRange,
    InvalidOperation,
    LowSpace,
    MessageSizeExceeded,
    SessionCannotBeLocked,
)
from peeklock.broker.vocabulary.extension_commands import ReplaceSessionState
from peeklock.broker.vocabulary.message import MessageView

_ByLockToken = ask.Complete | ask.Abandon | ask.Defer | ask.DeadLetter | ask.Release
_BySessionId = ask.ReceiveDeferred | ask.RenewSessionLock | ask.GetSessionState | ask.SetSessionState


def held_session(
    queue: MessageQueue, session_id: str | None, reply_to: ask.ReplyTo, now_ms: int
) -> MessageSession:
    """Return a session that the connection holds. Raises: SessionLockLost, InvalidOperation."""
    assert queue.sessions is not None
    if session_id is None:
        raise InvalidOperation(f"'{queue.name}' requires sessions: the request names none")
    return queue.sessions.holder_of(session_id, reply_to.connection_id, now_ms)


def with_sessions(entities: Entities, address: ask.Address) -> tuple[MessageQueue, MessageSessions]:
    """Return a queue and its sessions. Raises: InvalidOperation, and as `Entities.readable`."""
    queue = entities.readable(address)
    if queue.sessions is None:
        raise InvalidOperation(f"'{queue.name}' does not require sessions and has none")
    return queue, queue.sessions


def require_state(
    entities: Entities, shared: Shared, queue: MessageQueue, session: MessageSession, state: bytes | None
) -> None:
    """Check that a session can have this state. Raises: MessageSizeExceeded, LowSpace, QuotaExceeded."""
    size_bytes = len(state or b"")
    size_max = entities.limits.session_state_bytes_max
    if size_bytes > size_max:
        raise MessageSizeExceeded(
            f"the state of session '{session.text}' of '{queue.name}' is {size_bytes} bytes, the "
            f"limit is {size_max}"
        )
    if size_bytes and shared.low_space:
        raise LowSpace(f"'{queue.name}' accepts no session state: the broker's disk is nearly full")
    growth_bytes = state_growth(session, state)
    if growth_bytes:
        entity = entities.of_queue(queue.queue_id)
        assert entity is not None
        entities.require_room(entity, growth_bytes)


def state_growth(session: MessageSession, state: bytes | None) -> int:
    """Return by how many bytes the state of a session would grow."""
    before = 0 if session.state is None else session.state.size_bytes
    return max(0, len(state or b"") - before)


class SessionOperations:
    """Handlers of commands about sessions."""

    def __init__(self, entities: Entities, shared: Shared) -> None:
        self._entities = entities
        self._queues = entities.queues
        self._shared = shared

    def renew_session(self, command: ask.RenewSessionLock, out: Outcome) -> None:
        queue, sessions = with_sessions(self._entities, command.address)
        session = held_session(queue, command.session_id, command.reply_to, out.now_ms)
        out.effects.append(do.SessionLockRenewed(command.reply_to, sessions.renew(session, out)))

    def get_session_state(self, command: ask.GetSessionState, out: Outcome) -> None:
        queue, _ = with_sessions(self._entities, command.address)
        state = held_session(queue, command.session_id, command.reply_to, out.now_ms).state
        views = [] if state is None else [MessageView(state, None, 0, 0, None, state.state, None)]
        out.effects.append(do.MessagesFound(command.reply_to, views))

    def set_session_state(self, command: ask.SetSessionState, out: Outcome) -> None:
        queue, sessions = with_sessions(self._entities, command.address)
        session = held_session(queue, command.session_id, command.reply_to, out.now_ms)
        require_state(self._entities, self._shared, queue, session, command.state)
        queue.accessed_at_ms = out.now_ms
        sessions.set_state(session, command.state, out)
        out.effects.append(do.Done(command.reply_to))

    def replace_session_state(self, command: ReplaceSessionState, out: Outcome) -> None:
        queue, sessions = with_sessions(self._entities, command.address)
        found = sessions.get(command.session_id) or MessageSession(command.session_id)
        if found.lock is not None:
            raise SessionCannotBeLocked(
                f"session '{command.session_id}' of '{queue.name}' is held by a receiver, which alone can "
                f"set its state"
            )
        require_state(self._entities, self._shared, queue, found, command.state)
        queue.accessed_at_ms = out.now_ms
        if found.state is not None or command.state is not None:
            session = sessions.named(command.session_id)
            if found.is_empty:
                session.text = command.session_id
            sessions.set_state(session, command.state, out, command.session_id)
        out.effects.append(do.Done(command.reply_to))

    def refused_session_lock(self, command: ask.Command, out: Outcome) -> None:
        """Note that a command was refused for a lost session lock, which is a use of the session."""
        asked = command.command if isinstance(command, ask.Enlist) else command
        if isinstance(asked, _ByLockToken):
            sessions = self._queues[asked.queue_id].sessions
            assert sessions is not None
            sessions.used(None, (asked.lock_token,), None, out)
            return
        assert isinstance(asked, ask.UpdateDisposition | _BySessionId)
        _, sessions = with_sessions(self._entities, asked.address)
        tokens = asked.lock_tokens if isinstance(asked, ask.UpdateDisposition) else ()
        sessions.used(asked.session_id, tokens, asked.reply_to.connection_id, out)

    def show_session(self, command: ask.ShowSession, out: Outcome) -> None:
        queue, sessions = with_sessions(self._entities, command.address)
        queue.accessed_at_ms = out.now_ms
        found = sessions.get(command.session_id) or MessageSession(command.session_id)
        lock, state = found.lock, found.state
        held = lock is not None and lock.locked_until_ms > out.now_ms
        out.effects.append(
            do.SessionShown(
                command.reply_to,
                found.text,
                self._shared.wall.shown_ms(lock.locked_until_ms) if lock is not None and held else 0,
                found.active,
                found.deferred,
                found.scheduled,
                None if state is None else MessageView(state, None, 0, 0, None, state.state, None),
                lock.receiver.link.connection_id if lock is not None and held else 0,
                lock.receiver.name if lock is not None and held else None,
            )
        )

    def list_sessions(self, command: ask.ListSessions, out: Outcome) -> None:
        if command.skip < 0 or command.top < 0:
            raise ArgumentOutOfRange(f"skip {command.skip} and top {command.top} must not be negative")
        _, sessions = with_sessions(self._entities, command.address)
        found = sessions.listed(command.updated_since_ms, command.skip, command.top)
        out.effects.append(do.SessionsFound(command.reply_to, found, command.skip + len(found)))
