"""The sessions of a queue that requires them.

Theory of operation. A session exists while it has messages, a state or a holder. Its messages are in its own
ready queue, by position, under its one lock: only the holder receives, and unsettled messages return when the
lock ends. Ids compare folded (`session_ids`); each message, state and holder keeps its spelling.

    available   not held, with an active message; in the order in which they became so (G-06)
    held        by one receiver link, in the order in which the locks lapse: all last equally long
    claimed     a cursor holds messages of it, and so the session (`cursors`)
    idle        neither: only deferred or scheduled messages, or a state

A lock that lapses frees its session at once; the holder's link is detached later (`lapsed`).

A receiver that asks for any session gets one of `available`, or waits in `waiting`: at the end of each
command one of the two is empty.

A state is a stored record in a separate queue (see `changes.SESSION_STATES`), so it is kept, reclaimed and
read like the body of a message.
Source: wire contract 2.6, 10.4, C27; semantics G-01 to G-07.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from peeklock.broker.queue import delivery
from peeklock.broker.queue.lapsed_sessions import LapsedSession, LapsedSessions
from peeklock.broker.queue.links import Consumer, Receivers
from peeklock.broker.queue.message_session import (
    NO_RECEIVERS,
    MessageSession,
    SessionLock,
    SessionLockState,
    SessionStates,
)
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.peek_lock import Lock
from peeklock.broker.queue.session_ids import folded
from peeklock.broker.vocabulary.commands import LinkId, LockToken, SessionRequest
from peeklock.broker.vocabulary.effects import DetachLink, LinkRefused, ReceiverOpened, SessionLockLapsed
from peeklock.broker.vocabulary.errors import SessionCannotBeLocked, SessionLockLost, SessionWaitTimedOut
from peeklock.broker.vocabulary.events import EventType
from peeklock.broker.vocabulary.message import Message, MessageState

if TYPE_CHECKING:
    from peeklock.broker.queue.cursor import Cursor
    from peeklock.broker.queue.message_queue import MessageQueue

WAIT_ENDS_SPARE: Final = 64
"""Entries of cancelled waits, beyond as many as receivers wait, before the heap is cleared."""


class MessageSessions:
    """All sessions of one queue."""

    __slots__ = (
        "_by_key",
        "_held",
        "_queue",
        "_touched",
        "_wait_ends",
        "available",
        "lapsed",
        "states",
        "waiting",
    )

    def __init__(self, queue: MessageQueue) -> None:
        self.states = SessionStates(queue)
        self.available: OrderedDict[str, MessageSession] = OrderedDict()
        self.lapsed = LapsedSessions()
        self.waiting: OrderedDict[LinkId, Consumer] = OrderedDict()
        self._queue = queue
        self._by_key: dict[str, MessageSession] = {}
        self._held: OrderedDict[str, MessageSession] = OrderedDict()
        self._touched: list[MessageSession] = []
        self._wait_ends: list[tuple[int, LinkId]] = []  # a heap; valid while the link waits

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[MessageSession]:
        return iter(self._by_key.values())

    def get(self, session_id: str) -> MessageSession | None:
        return self._by_key.get(folded(session_id))

    # Messages

    def session_of(self, message: Message) -> MessageSession:
        """Return the session of a stored message."""
        assert message.session_id is not None
        return self._by_key[folded(message.session_id)]

    def stored(self, message: Message) -> None:
        """Add a new message, with the highest position or scheduled."""
        assert message.session_id is not None
        session = self.named(message.session_id)
        if message.session_id == session.text:
            message.session_id = session.text  # one object for all its messages
        else:
            session.text = message.session_id
        if self._queue.partitions is not None:
            session.partitions |= 1 << self._queue.partitions.of_number(message.sequence_number)
        session.add(message.position)
        if message.state is MessageState.ACTIVE:
            session.active += 1
            self._touch(session)
        elif message.state is MessageState.DEFERRED:
            session.deferred += 1
        else:
            session.scheduled += 1

    def given_back(self, message: Message) -> None:
        """Make a message that is no longer locked available at its place."""
        session = self.session_of(message)
        session.give_back(message.position)
        self._touch(session)

    def deferred(self, message: Message) -> None:
        """Count an active message that was deferred."""
        session = self.session_of(message)
        session.active -= 1
        session.deferred += 1
        self._note_active(session)

    def removed(self, message: Message) -> None:
        """Forget a removed message."""
        session = self.session_of(message)
        session.discard(message.state, self._queue)
        self._note_active(session)
        self._forget_if_empty(session)

    def _note_active(self, session: MessageSession) -> None:
        if not session.active:
            session.returned.clear()
            self.available.pop(session.key, None)

    def named(self, session_id: str) -> MessageSession:
        key = folded(session_id)
        session = self._by_key.get(key)
        if session is None:
            session = self._by_key[key] = MessageSession(key)
        return session

    def _touch(self, session: MessageSession) -> None:
        """Offer a session with an available message to its cursor, to its holder, or to all receivers."""
        if session.cursor is not None:
            session.cursor.ready[session.key] = session
        elif session.lock is None:
            if session.key not in self.available:
                self.available[session.key] = session
        else:
            self.serve_later(session)

    def serve_later(self, session: MessageSession) -> None:
        """Deliver to the holder of a session when the queue is served next."""
        if not session.touched:
            session.touched = True
            self._touched.append(session)

    def _forget_if_empty(self, session: MessageSession) -> None:
        if session.is_empty:
            del self._by_key[session.key]

    # Holders

    def accept(self, receiver: Consumer, request: SessionRequest, out: Outcome) -> None:
        """Grant a receiver the session it asks for, or let it wait. Raises: SessionCannotBeLocked."""
        if request.session_id is None:
            receiver.wait_until_ms = request.wait_until_ms
            self.waiting[receiver.link] = receiver
            heappush(self._wait_ends, (request.wait_until_ms, receiver.link))
            if len(self._wait_ends) > 2 * len(self.waiting) + WAIT_ENDS_SPARE:
                self._wait_ends = [(waiter.wait_until_ms, link) for link, waiter in self.waiting.items()]
                heapify(self._wait_ends)
            self._queue.wake(request.wait_until_ms)
            self._hand_out(out)
            return
        known = self.get(request.session_id)
        if known is not None and known.lock is not None:
            if known.is_held(out.now_ms):
                raise SessionCannotBeLocked(
                    f"The requested session '{request.session_id}' of '{self._queue.name}' cannot be "
                    f"accepted. It may be locked by another receiver."
                )
            self._lapse(known, out)
        if known is not None and known.cursor is not None:
            raise SessionCannotBeLocked(
                f"The requested session '{request.session_id}' of '{self._queue.name}' cannot be accepted. "
                f"The cursor '{known.cursor.name}' holds messages of it."
            )
        session = self.named(request.session_id)
        self.available.pop(session.key, None)
        self._grant(session, receiver, request.session_id, out)

    def claimed(self, session: MessageSession, cursor: Cursor, count: int) -> None:
        """Note that a cursor holds `count` more messages of a session without a holder."""
        session.cursor = cursor
        session.claimed += count
        self.available.pop(session.key, None)

    def unclaimed(self, session: MessageSession) -> None:
        """Note that a cursor holds one message less; without any the session is free."""
        session.claimed -= 1
        if not session.claimed:
            assert session.cursor is not None
            session.cursor.ready.pop(session.key, None)
            session.cursor = None
            if session.active:
                self._touch(session)

    def requeue(self, session: MessageSession) -> None:
        """Put a session that a claim has searched behind the others."""
        if session.active:
            self._touch(session)

    def cancel(self, receiver: Consumer) -> None:
        """Forget a receiver that no longer waits."""
        self.waiting.pop(receiver.link, None)

    def holder_of(self, session_id: str, connection_id: int, now_ms: int) -> MessageSession:
        """Return a session that a link of the connection holds. Raises: SessionLockLost."""
        session = self.get(session_id)
        lock = None if session is None else session.lock
        if session is None or lock is None or lock.receiver.link.connection_id != connection_id:
            raise SessionLockLost(self._lost_text(session_id) + ": it is not held by this connection")
        if lock.locked_until_ms <= now_ms:
            raise SessionLockLost(
                f"{self._lost_text(session_id)}: it expired at {lock.locked_until_ms} ms, now {now_ms} ms"
            )
        return session

    def require_holder(self, lock: Lock, connection_id: int) -> None:
        """Check that a lock is under a session of the connection (L-14). Raises: SessionLockLost."""
        session = lock.session
        assert session is not None
        assert session.lock is not None
        if session.lock.receiver.link.connection_id != connection_id:
            raise SessionLockLost(
                f"{self._lost_text(session.lock.session_id)}: it is not held by this connection"
            )

    def renew(self, session: MessageSession, out: Outcome) -> int:
        """Renew the lock of a session for a whole duration; return until when."""
        assert session.lock is not None
        session.lock.locked_until_ms = out.now_ms + self._queue.lock_duration_ms
        self._held.move_to_end(session.key)
        out.session(EventType.SESSION_RENEWED, self._queue, session)
        return self._queue.shared.wall.shown_ms(session.lock.locked_until_ms)

    def release(self, session: MessageSession, out: Outcome, *, counted: bool) -> None:
        """End the lock of a session; its unsettled messages and the session are available again."""
        lock = session.lock
        assert lock is not None
        receiver = lock.receiver
        why = EventType.LOCK_LAPSED if counted else EventType.RELEASED
        for held in list(receiver.locks.values()):
            self._queue.give_back(held, out, counted=counted, why=why)
        self._free(session, out)

    def drop_locks(self, out: Outcome) -> None:
        """End all locks, which hold no message any more, and detach links: the entity changed (L-12)."""
        for session in list(self._held.values()):
            assert session.lock is not None
            receiver, session_id = session.lock.receiver, session.lock.session_id
            self._free(session, out)
            self._detach(receiver, self._lost_text(session_id) + ": the entity was changed", out)
        for receiver in self.lapsed.receivers():
            self._detach_lapsed(receiver, out)

    def rescan(self) -> None:
        """Start again in each session, after a change of what can be received."""
        for session in self._by_key.values():
            session.rescan()
            if session.cursor is not None:
                self._touch(session)

    def serve(self, out: Outcome) -> None:
        """Deliver available messages to the holders, and grant available sessions."""
        if self._touched:
            touched, self._touched = self._touched, []
            for session in touched:
                session.touched = False
                delivery.deliver(self._queue, session, out)
        if self.waiting:
            self._hand_out(out)

    def _hand_out(self, out: Outcome) -> None:
        while self.waiting and self.available:
            receiver = self.waiting.popitem(last=False)[1]
            session = self.available.popitem(last=False)[1]
            self._grant(session, receiver, self._text_of(session), out)

    def _grant(self, session: MessageSession, receiver: Consumer, session_id: str, out: Outcome) -> None:
        queue = self._queue
        before = self.lapsed.of(session.key)
        if before is not None:
            self._detach_lapsed(before, out)
        locked_until_ms = out.now_ms + queue.lock_duration_ms
        session.lock = SessionLock(receiver, session_id, locked_until_ms)
        session.receivers = Receivers()
        self._held[session.key] = session
        receiver.ready_queue = session
        out.session(EventType.SESSION_LOCKED, queue, session)
        out.effects.append(
            ReceiverOpened(
                receiver.link,
                queue.queue_id,
                queue.partitions is not None,
                session_id,
                queue.shared.wall.shown_ms(locked_until_ms),
            )
        )
        queue.wake(locked_until_ms)

    def _free(self, session: MessageSession, out: Outcome) -> None:
        lock = session.lock
        assert lock is not None
        out.session(EventType.SESSION_RELEASED, self._queue, session)
        session.lock = None
        session.receivers.remove(lock.receiver)
        session.receivers = NO_RECEIVERS
        lock.receiver.ready_queue = None
        del self._held[session.key]
        if session.active:
            self._touch(session)
        self._forget_if_empty(session)

    def _lapse(self, session: MessageSession, out: Outcome) -> int:
        """End a lock that has lapsed and keep its link for a while; return the number of its messages."""
        lock = session.lock
        assert lock is not None
        receiver = lock.receiver
        tokens = list(receiver.locks)
        drains = receiver.draining
        self.release(session, out, counted=True)
        if lock.used_late:
            self._detach(receiver, self._lost_text(lock.session_id), out)
            return len(tokens)
        lapsed = self.lapsed.add(receiver, session.key, lock.session_id, tokens, out.now_ms)
        self._queue.wake(lapsed.detach_at_ms)
        out.effects.append(SessionLockLapsed(receiver.link))
        if drains:
            lapsed.receivers.drain(receiver)
            delivery.deliver(self._queue, lapsed, out)
        return len(tokens)

    def used(
        self, session_id: str | None, tokens: Iterable[LockToken], connection_id: int | None, out: Outcome
    ) -> None:
        """Detach the link that used a session after its lock lapsed, at once or with the lapse (C7).

        Args:
            session_id: of the request,
            tokens: or lock tokens of messages.
            connection_id: of the request; None = over the link itself.
        """
        sessions = [lock.session for lock in map(self._queue.locks.get, tokens) if lock is not None]
        if session_id is not None:
            sessions.append(self.get(session_id))
        for session in sessions:
            lock = None if session is None else session.lock
            if lock is not None and connection_id in (None, lock.receiver.link.connection_id):
                lock.used_late |= lock.locked_until_ms <= out.now_ms
        used = [self.lapsed.with_token(token) for token in tokens]
        if session_id is not None:
            used.append(self.lapsed.of(folded(session_id)))
        for receiver in dict.fromkeys(used):
            if receiver is not None and connection_id in (None, receiver.link.connection_id):
                self._detach_lapsed(receiver, out)

    def _detach_lapsed(self, receiver: Consumer, out: Outcome) -> None:
        lapsed = receiver.ready_queue
        assert isinstance(lapsed, LapsedSession)
        self.lapsed.forget(receiver)
        self._detach(receiver, self._lost_text(lapsed.session_id), out)

    def _detach(self, receiver: Consumer, text: str, out: Outcome) -> None:
        self._queue.shared.links.forget(receiver)
        out.effects.append(DetachLink(receiver.link, SessionLockLost(text)))

    def _lost_text(self, session_id: str) -> str:
        return f"The session lock on '{session_id}' of '{self._queue.name}' has expired or been lost"

    def lock_states(self) -> dict[str, SessionLockState]:
        """Return the states of locks that are not FREE, by folded id."""
        found = dict.fromkeys(self.lapsed.keys(), SessionLockState.LAPSED)
        return found | dict.fromkeys(self._held, SessionLockState.HELD)

    # Time

    def advance(self, count_max: int, out: Outcome) -> int:
        """End what is due: locks of sessions, lapsed links, waits for a session; return the work done."""
        now_ms = out.now_ms
        lapsed: list[MessageSession] = []
        for session in self._held.values():
            assert session.lock is not None
            if session.lock.locked_until_ms > now_ms or len(lapsed) >= count_max:
                break
            lapsed.append(session)
        work = 0
        for session in lapsed:
            work += 1 + self._lapse(session, out)
        if lapsed:
            # Receivers whose wait ends at this instant are served first.
            self._hand_out(out)
        for receiver in self.lapsed.due(now_ms, count_max):
            self._detach_lapsed(receiver, out)
            work += 1
        while self.states.replaced and work < count_max:
            self.states.remove(self.states.replaced.pop(), out)
            work += 1
        ends = self._wait_ends
        while ends and ends[0][0] <= now_ms and work < count_max:
            link = heappop(ends)[1]
            work += 1
            waiter = self.waiting.pop(link, None)
            if waiter is not None:
                self._queue.shared.links.forget(waiter)
                error = SessionWaitTimedOut(
                    f"No session of '{self._queue.name}' became available while the receiver waited for one."
                )
                out.effects.append(LinkRefused(link, error))
        return work

    def next_ms(self) -> int:
        """When `advance` has something to do."""
        if self.states.replaced:
            return 0
        next_ms = self.lapsed.next_ms()
        for session in self._held.values():
            assert session.lock is not None
            next_ms = min(next_ms, session.lock.locked_until_ms)
            break
        ends = self._wait_ends
        while ends and ends[0][1] not in self.waiting:
            heappop(ends)
        return min(next_ms, ends[0][0]) if ends else next_ms

    # States

    def set_state(
        self, session: MessageSession, state: bytes | None, out: Outcome, session_id: str | None = None
    ) -> None:
        """Replace the state of a session; None clears it (G-03). `session_id`: of one that nobody holds."""
        out.session(EventType.SESSION_STATE_SET, self._queue, session, len(state or b""))
        if session.state is not None:
            self.states.remove(session.state, out)
            session.state = None
        if state is not None:
            spelled = session_id or session.text if session.lock is None else session.lock.session_id
            at_ms = self._queue.shared.wall.instant_ms(out.now_ms)
            session.state = self.states.put(spelled, state, at_ms, out)
        self._forget_if_empty(session)

    def lose_state(self, session: MessageSession, out: Outcome) -> None:
        """Clear the state of a session, held or not: it cannot be read."""
        assert session.state is not None
        self.states.remove(session.state, out)
        session.state = None
        self._forget_if_empty(session)

    def restore_state(self, record: Message) -> None:
        """Add a stored state, the oldest first: of several spellings the last one counts."""
        assert record.session_id is not None
        session = self.named(record.session_id)
        if session.state is not None:
            self.states.replaced.append(session.state)
        session.state = record
        self.states.restore(record)
        self.states.next_position = max(self.states.next_position, record.position + 1)

    def listed(self, updated_since_ms: int | None, skip: int, top: int) -> list[str]:
        """Return sessions by folded id: those with active or deferred messages or a state, or those whose
        state was set after an instant (G-07). Costs 0.4 us for each session there is."""
        if updated_since_ms is None:
            found = [
                key
                for key, session in self._by_key.items()
                if session.active or session.deferred or session.state is not None
            ]
        else:
            found = [
                key
                for key, session in self._by_key.items()
                if session.state is not None and session.state.enqueued_at_ms > updated_since_ms
            ]
        found.sort()
        return [self._text_of(self._by_key[key]) for key in found[skip : skip + top]]

    def _text_of(self, session: MessageSession) -> str:
        """Return the id in the spelling of a session's first message, else of its state."""
        first = session.first(self._queue) or session.state
        assert first is not None
        assert first.session_id is not None
        return first.session_id
