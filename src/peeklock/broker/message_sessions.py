"""The sessions of a queue that requires them.

Owns: which messages belong to which session, who holds it and until when, who waits for one, and the states.
Must not know: links beyond their credit, how messages are stored, the wire.

Theory of operation. A session exists while it has messages, a state or a holder. Its messages stand in its
own line, in order of position, and are under its one lock: only the holder receives, and all that is
unsettled returns when the lock ends.

    available   not held, and with an active message; in the order in which they became so (G-06)
    held        by one receiver link, in the order in which the locks lapse: all last equally long
    claimed     a cursor holds messages of it (see `cursors`), and so the session
    idle        neither: only deferred or scheduled messages, or a state

A receiver that wants any session is served from `available`, or waits in `waiting`. So at the end of each
command one of the two is empty.

A state is a stored record without a place in any line, in a queue of its own that nobody can name (see
`changes.SESSION_STATES`), so that it is kept, reclaimed and read back like the body of a message.
Source: wire contract 2.6, 10.4; semantics G-01 to G-07.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING

from peeklock.broker import delivery
from peeklock.broker.changes import Change
from peeklock.broker.commands import Link, SessionWish
from peeklock.broker.effects import DetachLink, Effect, LinkRefused, ReceiverOpened
from peeklock.broker.errors import SessionCannotBeLocked, SessionLockLost, SessionWaitTimedOut
from peeklock.broker.events import EventType
from peeklock.broker.message import Message, MessageState
from peeklock.broker.message_session import NOBODY, MessageSession, SessionLock, SessionStates
from peeklock.broker.peek_lock import Claim
from peeklock.broker.receivers import ReceiverLink, Receivers
from peeklock.broker.timers import FAR_MS

if TYPE_CHECKING:
    from peeklock.broker.cursors import Cursor
    from peeklock.broker.message_queue import MessageQueue

WAIT_ENDS_SPARE = 64
"""Entries of cancelled waits kept beyond as many as there are receivers waiting, before they are cleared."""


class MessageSessions:
    """All sessions of one queue."""

    __slots__ = ("_by_id", "_held", "_queue", "_touched", "_wait_ends", "available", "states", "waiting")

    def __init__(self, queue: MessageQueue) -> None:
        self.states = SessionStates(queue)
        self.available: OrderedDict[str, MessageSession] = OrderedDict()
        self.waiting: OrderedDict[Link, ReceiverLink] = OrderedDict()
        self._queue = queue
        self._by_id: dict[str, MessageSession] = {}
        self._held: OrderedDict[str, MessageSession] = OrderedDict()
        self._touched: list[MessageSession] = []
        self._wait_ends: list[tuple[int, Link]] = []  # a heap; counts while the link still waits

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[MessageSession]:
        return iter(self._by_id.values())

    def get(self, session_id: str) -> MessageSession | None:
        return self._by_id.get(session_id)

    # Messages

    def line_of(self, message: Message) -> MessageSession:
        """Give the session of a stored message."""
        assert message.session_id is not None
        return self._by_id[message.session_id]

    def stored(self, message: Message) -> None:
        """Take notice of a new message, which has the highest position so far."""
        assert message.session_id is not None
        session = self._session(message.session_id)
        message.session_id = session.session_id  # one text for all messages of a session
        session.add(message.position)
        if message.state is MessageState.ACTIVE:
            session.active += 1
            self._touch(session)
        elif message.state is MessageState.DEFERRED:
            session.deferred += 1
        else:
            session.scheduled += 1

    def given_back(self, message: Message) -> None:
        """Put a message that is no longer locked back into its place."""
        session = self.line_of(message)
        session.give_back(message.position)
        self._touch(session)

    def deferred(self, message: Message) -> None:
        """Take notice that an active message was set aside."""
        session = self.line_of(message)
        session.active -= 1
        session.deferred += 1

    def removed(self, message: Message) -> None:
        """Take notice that a message is gone."""
        session = self.line_of(message)
        if message.state is MessageState.ACTIVE:
            session.active -= 1
        elif message.state is MessageState.DEFERRED:
            session.deferred -= 1
        else:
            session.scheduled -= 1
        session.discard(self._queue)
        if not session.active:
            session.returned.clear()
            self.available.pop(session.session_id, None)
        self._forget_if_empty(session)

    def _session(self, session_id: str) -> MessageSession:
        session = self._by_id.get(session_id)
        if session is None:
            session = self._by_id[session_id] = MessageSession(session_id)
        return session

    def _touch(self, session: MessageSession) -> None:
        """Something of a session became available: to its holder, or to whoever asks for a session."""
        if session.cursor is not None:
            session.cursor.ready[session.session_id] = session
        elif session.lock is None:
            if session.session_id not in self.available:
                self.available[session.session_id] = session
        else:
            self.serve_later(session)

    def serve_later(self, session: MessageSession) -> None:
        """Deliver to the holder of a session when the queue is served next."""
        if not session.touched:
            session.touched = True
            self._touched.append(session)

    def _forget_if_empty(self, session: MessageSession) -> None:
        if session.is_empty:
            del self._by_id[session.session_id]

    # Holders

    def accept(
        self,
        receiver: ReceiverLink,
        wish: SessionWish,
        now_ms: int,
        changes: list[Change],
        effects: list[Effect],
    ) -> None:
        """Give a receiver the session it wants, or let it wait for one.

        Raises: SessionCannotBeLocked: another receiver holds it.
        """
        if wish.session_id is None:
            receiver.wait_until_ms = wish.wait_until_ms
            self.waiting[receiver.link] = receiver
            heappush(self._wait_ends, (wish.wait_until_ms, receiver.link))
            if len(self._wait_ends) > 2 * len(self.waiting) + WAIT_ENDS_SPARE:
                self._wait_ends = [(waiter.wait_until_ms, link) for link, waiter in self.waiting.items()]
                heapify(self._wait_ends)
            self._queue.wake(wish.wait_until_ms)
            self._hand_out(now_ms, effects)
            return
        known = self._by_id.get(wish.session_id)
        if known is not None and known.lock is not None:
            if known.is_held(now_ms):
                raise SessionCannotBeLocked(
                    f"The requested session '{wish.session_id}' of '{self._queue.name}' cannot be accepted. "
                    f"It may be locked by another receiver."
                )
            self._lapse(known, now_ms, changes, effects)
        if known is not None and known.cursor is not None:
            raise SessionCannotBeLocked(
                f"The requested session '{wish.session_id}' of '{self._queue.name}' cannot be accepted. "
                f"The cursor '{known.cursor.name}' holds messages of it."
            )
        session = self._session(wish.session_id)
        self.available.pop(session.session_id, None)
        self._grant(session, receiver, now_ms, effects)

    def claimed(self, session: MessageSession, cursor: Cursor, count: int) -> None:
        """Take notice that a cursor holds so many more messages of a session that no receiver holds."""
        session.cursor = cursor
        session.claimed += count
        self.available.pop(session.session_id, None)

    def unclaimed(self, session: MessageSession) -> None:
        """Take notice that a cursor holds one message of a session less; with the last one it is free."""
        session.claimed -= 1
        if not session.claimed:
            assert session.cursor is not None
            session.cursor.ready.pop(session.session_id, None)
            session.cursor = None
            if session.active:
                self._touch(session)

    def stands_again(self, session: MessageSession) -> None:
        """Put a session that was looked through for a claim back behind the others of its kind."""
        if session.active:
            self._touch(session)

    def cancel(self, receiver: ReceiverLink) -> None:
        """Forget a receiver that waits no longer."""
        self.waiting.pop(receiver.link, None)

    def holder_of(self, session_id: str, connection_id: int, now_ms: int) -> MessageSession:
        """Give a session that a link of a connection holds.

        Raises: SessionLockLost.
        """
        session = self._by_id.get(session_id)
        lock = None if session is None else session.lock
        if session is None or lock is None or lock.receiver.link[0] != connection_id:
            raise SessionLockLost(self._lost_text(session_id) + ": it is not held by this connection")
        if lock.locked_until_ms <= now_ms:
            raise SessionLockLost(
                f"{self._lost_text(session_id)}: it expired at {lock.locked_until_ms} ms, now {now_ms} ms"
            )
        return session

    def renew(self, session: MessageSession, now_ms: int) -> int:
        """Let a session's lock last for a whole duration from now on; answer until when."""
        assert session.lock is not None
        session.lock.locked_until_ms = now_ms + self._queue.lock_duration_ms
        self._held.move_to_end(session.session_id)
        if self._queue.shared.events is not None:
            self._queue.shared.events.session(EventType.SESSION_RENEWED, self._queue, session)
        return session.lock.locked_until_ms

    def release(
        self,
        session: MessageSession,
        now_ms: int,
        changes: list[Change],
        effects: list[Effect],
        *,
        counted: bool,
    ) -> None:
        """End a session's lock: what is unsettled is available again, at its place; so is the session."""
        lock = session.lock
        assert lock is not None
        receiver = lock.receiver
        why = EventType.LOCK_LAPSED if counted else EventType.RELEASED
        for held in list(receiver.locks.values()):
            self._queue.give_back(held, now_ms, changes, effects, counted=counted, why=why)
        self._free(session)

    def drop_locks(self, effects: list[Effect]) -> None:
        """End the locks of all sessions, which hold no message any more: the entity changed (L-12)."""
        for session in list(self._held.values()):
            assert session.lock is not None
            receiver = session.lock.receiver
            self._free(session)
            self._detach(receiver, self._lost_text(session.session_id) + ": the entity was changed", effects)

    def look_again(self) -> None:
        """Look at all messages from the start: what was passed over may be receivable now."""
        for session in self._by_id.values():
            session.look_again()
            if session.cursor is not None:
                self._touch(session)

    def serve(self, now_ms: int, changes: list[Change], effects: list[Effect]) -> None:
        """Deliver to the holders what became available, and hand out sessions that did."""
        if self._touched:
            touched, self._touched = self._touched, []
            for session in touched:
                session.touched = False
                delivery.deliver(self._queue, session, now_ms, changes, effects)
        if self.waiting:
            self._hand_out(now_ms, effects)

    def _hand_out(self, now_ms: int, effects: list[Effect]) -> None:
        while self.waiting and self.available:
            receiver = self.waiting.popitem(last=False)[1]
            session = self.available.popitem(last=False)[1]
            self._grant(session, receiver, now_ms, effects)

    def _grant(
        self, session: MessageSession, receiver: ReceiverLink, now_ms: int, effects: list[Effect]
    ) -> None:
        queue = self._queue
        locked_until_ms = now_ms + queue.lock_duration_ms
        session.lock = SessionLock(receiver, locked_until_ms)
        session.receivers = Receivers()
        self._held[session.session_id] = session
        receiver.line = session
        if queue.shared.events is not None:
            queue.shared.events.session(EventType.SESSION_LOCKED, queue, session)
        effects.append(
            ReceiverOpened(
                receiver.link,
                queue.queue_id,
                queue.message_size_bytes_max,
                queue.partitions is not None,
                session.session_id,
                locked_until_ms,
            )
        )
        queue.wake(locked_until_ms)

    def _free(self, session: MessageSession) -> None:
        lock = session.lock
        assert lock is not None
        if self._queue.shared.events is not None:
            self._queue.shared.events.session(EventType.SESSION_RELEASED, self._queue, session)
        session.lock = None
        session.receivers.remove(lock.receiver)
        session.receivers = NOBODY
        lock.receiver.line = None
        del self._held[session.session_id]
        if session.active:
            self._touch(session)
        self._forget_if_empty(session)

    def _lapse(
        self, session: MessageSession, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> int:
        """End a lock that has run out; answer how many messages it held."""
        assert session.lock is not None
        receiver = session.lock.receiver
        held = len(receiver.locks)
        self.release(session, now_ms, changes, effects, counted=True)
        self._detach(receiver, self._lost_text(session.session_id), effects)
        return held

    def _detach(self, receiver: ReceiverLink, text: str, effects: list[Effect]) -> None:
        self._queue.shared.links.forget(receiver)
        effects.append(DetachLink(receiver.link, SessionLockLost(text)))

    def _lost_text(self, session_id: str) -> str:
        return f"The session lock on '{session_id}' of '{self._queue.name}' has expired or been lost"

    # Time

    def advance(self, now_ms: int, count_max: int, changes: list[Change], effects: list[Effect]) -> int:
        """End what is due: locks of sessions, and waiting for one; answer the work done."""
        lapsed: list[MessageSession] = []
        for session in self._held.values():
            assert session.lock is not None
            if session.lock.locked_until_ms > now_ms or len(lapsed) >= count_max:
                break
            lapsed.append(session)
        work = 0
        for session in lapsed:
            work += 1 + self._lapse(session, now_ms, changes, effects)
        if lapsed:
            # Whoever has waited until just now is served first.
            self._hand_out(now_ms, effects)
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
                effects.append(LinkRefused(link, error))
        return work

    def next_ms(self) -> int:
        """When `advance` has something to do."""
        next_ms = FAR_MS
        for session in self._held.values():
            assert session.lock is not None
            next_ms = session.lock.locked_until_ms
            break
        ends = self._wait_ends
        while ends and ends[0][1] not in self.waiting:
            heappop(ends)
        return min(next_ms, ends[0][0]) if ends else next_ms

    # States

    def set_state(
        self, session: MessageSession, state: bytes | None, now_ms: int, changes: list[Change]
    ) -> None:
        """Replace the state of a session that is held; None clears it (G-03)."""
        if self._queue.shared.events is not None:
            self._queue.shared.events.session(
                EventType.SESSION_STATE_SET, self._queue, session, len(state or b"")
            )
        if session.state is not None:
            self.states.remove(session.state, changes)
            session.state = None
        if state is not None:
            session.state = self.states.put(session.session_id, state, now_ms, changes)

    def restore_state(self, record: Message) -> None:
        """Take in a state that was stored."""
        assert record.session_id is not None
        session = self._session(record.session_id)
        record.session_id = session.session_id
        session.state = record
        self.states.restore(record)
        self.states.next_position = max(self.states.next_position, record.position + 1)

    def listed(self, updated_since_ms: int | None, skip: int, top: int) -> list[str]:
        """Name sessions, oldest first: those with active or deferred messages or a state, or those whose
        state was set after an instant (G-07)."""
        if updated_since_ms is None:
            found = (
                session.session_id
                for session in self._by_id.values()
                if session.active or session.deferred or session.state is not None
            )
        else:
            found = (
                session.session_id
                for session in self._by_id.values()
                if session.state is not None and session.state.enqueued_at_ms > updated_since_ms
            )
        return list(islice(found, skip, skip + top))

    def check(self, now_ms: int) -> None:
        """Compare the indexes with each other; an assertion fails when they do not agree."""
        assert not (self.waiting and self.available)
        assert not self._touched or self._queue.timer_ms <= now_ms
        until = []
        for session_id, session in self._held.items():
            assert session.lock is not None
            assert session.lock.receiver.line is session
            assert self._by_id[session_id] is session
            until.append(session.lock.locked_until_ms)
        assert until == sorted(until)
        for session_id, session in self._by_id.items():
            assert session.session_id == session_id
            assert not session.is_empty
            assert (session.lock is not None) == (session_id in self._held)
            free = session.lock is None and session.cursor is None
            assert (session_id in self.available) == (free and session.active > 0)
            assert (session.cursor is None) == (session.claimed == 0)
            claimed = 0
            messages = list(session.messages(self._queue))
            positions = [message.position for message in messages]
            assert positions == sorted(set(positions))
            for state, count in (
                (MessageState.ACTIVE, session.active),
                (MessageState.DEFERRED, session.deferred),
                (MessageState.SCHEDULED, session.scheduled),
            ):
                assert count == sum(message.state is state for message in messages)
            for message in messages:
                assert message.session_id == session_id
                if isinstance(message.lock, Claim):
                    claimed += 1
                    assert message.lock.cursor is session.cursor
                elif message.lock is not None:
                    assert session.lock is not None
                    assert message.lock.session is session
                    assert message.lock.holder is session.lock.receiver.locks
            assert claimed == session.claimed
            returned = set(session.returned)
            assert len(returned) == len(session.returned)
            waiting = set(session._positions[session._next :]) | returned
            for message in messages:
                unlocked = message.state is MessageState.ACTIVE and message.lock is None
                if unlocked and not self._queue.has_expired(message, now_ms):
                    assert message.position in waiting
                    assert session.cursor is None or session_id in session.cursor.ready
            session.receivers.check()
        assert sum(len(list(s.messages(self._queue))) for s in self._by_id.values()) == sum(
            1 for _ in self._queue.all_messages()
        )
        assert self.states.size_bytes == sum(record.size_bytes for record in self.states.all_messages())
        for record in self.states.all_messages():
            assert record.session_id is not None
            assert self._by_id[record.session_id].state is record
