"""One session: its messages in order, its holder, its state.

Owns: the line of a session, the records of states. Must not know: who is given which session when
(`message_sessions`).

Positions of messages that are gone stay in a line until most of it names nothing; then it is compacted a few
places for each message that goes, while it is in use: what is kept stands in front, behind it the places
that were looked at, then the others.
Source: wire contract 10.4; semantics G-01, G-03.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from enum import Enum
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from peeklock.broker.queue.links import Consumer, Receivers
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.vocabulary.changes import (
    QUEUES_PER_ENTITY,
    SESSION_STATES,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
)
from peeklock.broker.vocabulary.message import Message

if TYPE_CHECKING:
    from peeklock.broker.queue.cursor import Cursor
    from peeklock.broker.queue.message_queue import MessageQueue

COMPACT_MIN = 64
"""Fewer positions of messages that are gone are left in a session's line."""

COMPACT_STEP = 4
"""Positions looked at for each message that goes, once a line is compacted: a long line would take 0.3 s a
million all at once, and sessions that are used alike would be due together."""

_NOWHERE = -1
"""Stands in a line for a position that was moved or dropped."""

NOBODY = Receivers()
"""Of all sessions that are not held: an empty one takes 700 bytes, and most sessions are not held."""


class SessionLockState(Enum):
    """Where the lock of a session is in its life. A session that a cursor holds is FREE of it."""

    FREE = 1
    HELD = 2
    LAPSED = 3
    """It has ended; the link that held it is there for a moment yet (wire contract C7)."""


TRANSITIONS: Final[dict[SessionLockState, frozenset[SessionLockState]]] = {
    SessionLockState.FREE: frozenset((SessionLockState.HELD,)),
    SessionLockState.HELD: frozenset((SessionLockState.FREE, SessionLockState.LAPSED)),
    SessionLockState.LAPSED: frozenset((SessionLockState.FREE, SessionLockState.HELD)),
}
"""The life of a session's lock: only a lapse keeps the link, and a new holder detaches it."""


class SessionLock:
    """A session held by a receiver link until an instant; at exactly `locked_until_ms` it counts as lost."""

    __slots__ = ("locked_until_ms", "receiver", "session_id", "used_late")

    def __init__(self, receiver: Consumer, session_id: str, locked_until_ms: int) -> None:
        self.receiver = receiver
        self.session_id = session_id  # as its holder spells it
        self.locked_until_ms = locked_until_ms
        self.used_late = False  # its holder used the session when it was lost, and its lapse was yet to come


class MessageSession:
    """One session: its messages in order, its state, its holder. It is the line of its messages."""

    __slots__ = (
        "_first_position",
        "_gone",
        "_kept",
        "_looked_at",
        "_next",
        "_positions",
        "active",
        "claimed",
        "cursor",
        "deferred",
        "key",
        "lock",
        "partitions",
        "receivers",
        "returned",
        "scheduled",
        "state",
        "text",
        "touched",
    )

    def __init__(self, key: str) -> None:
        self.key = key  # its id, folded
        self.text = key  # how its messages spell its id: the last one that came
        self.active = 0
        self.deferred = 0
        self.scheduled = 0
        self.state: Message | None = None
        self.lock: SessionLock | None = None
        self.claimed = 0  # active messages held for a cursor
        self.cursor: Cursor | None = None  # which holds the session as long as it holds one of them
        self.receivers = NOBODY  # its holder, while that has credit; an own one only while it is held
        self.returned: list[int] = []
        self.partitions = 0  # a bit for each that its messages are in, or were
        self.touched = False  # something became available for its holder
        self._positions: list[int] = []  # of all its messages in any state, ascending; some may be gone
        self._next = 0  # in _positions: those before it were handed out, or are gone
        self._gone = 0  # positions that name nothing any more
        self._first_position = 0  # no message of it has a lower one
        self._looked_at: int | None = (
            None  # in _positions: how far the compaction has come, None = none is on
        )
        self._kept = 0  # and how many of those are left, which stand in front

    @property
    def session(self) -> MessageSession:
        """Itself: all its messages are under its lock."""
        return self

    @property
    def is_empty(self) -> bool:
        return not (self.active or self.deferred or self.scheduled or self.state or self.lock)

    def is_held(self, now_ms: int) -> bool:
        return self.lock is not None and self.lock.locked_until_ms > now_ms

    def take(self, queue: MessageQueue) -> Message | None:
        """Give the available message with the lowest position, which is no longer available then."""
        active = queue.active
        while self.returned:
            message = active.get(heappop(self.returned))
            if message is not None:
                return message
        positions = self._positions
        at, end = self._next, len(positions)
        while at < end:
            message = active.get(positions[at])
            at += 1
            if message is not None and message.lock is None:
                self._next = at
                return message
        self._next = at
        return None

    def give_back(self, position: int) -> None:
        """Let the message at a position be available again, unless it is still to come."""
        at = self._next
        if self._looked_at is not None and at >= self._kept:
            at = max(at, self._looked_at)  # nothing stands between them
        if at == len(self._positions) or position < self._positions[at]:
            heappush(self.returned, position)

    def add(self, position: int) -> None:
        """Take notice of a new message. Only a scheduled one, numbered before it was stored, may have a
        position that is not the highest so far."""
        positions = self._positions
        if positions and position > positions[-1]:
            positions.append(position)
            return
        self._first_position = min(self._first_position, position)
        if not positions:
            positions.append(position)
            return
        start, end = 0, len(positions)
        if self._looked_at is not None:
            if self._kept and position < positions[self._kept - 1]:
                end = self._kept
            else:
                start = self._looked_at
        at = bisect_left(positions, position, start, end)
        positions.insert(at, position)
        if at < self._next:
            self._next += 1
        if self._looked_at is not None and at < self._kept:
            self._kept += 1
            self._looked_at += 1

    def discard(self, queue: MessageQueue) -> None:
        """Take notice that one message is gone; forget positions bit by bit once most name nothing."""
        self._gone += 1
        if self._looked_at is None:
            if self._gone < COMPACT_MIN or 2 * self._gone < len(self._positions):
                return
            self._looked_at = self._kept = 0
        self._compact(queue, self._looked_at)

    def _compact(self, queue: MessageQueue, at: int) -> None:
        """Move a few of the positions that still name something to the front."""
        positions = self._positions
        end = min(at + COMPACT_STEP, len(positions))
        for place in range(at, end):
            position = positions[place]
            positions[place] = _NOWHERE
            if queue.find(position) is None:
                self._gone -= 1
                continue
            positions[self._kept] = position
            if place >= self._next:
                self._next = min(self._next, self._kept)
            self._kept += 1
        self._looked_at = end
        if end == len(positions):
            del positions[self._kept :]
            self._next = min(self._next, self._kept)
            self._looked_at = None

    def look_again(self) -> None:
        """Begin at the start: what was passed over may be receivable now. Nothing may be locked, but for a
        cursor."""
        self.returned = []
        self._next = 0

    def first(self, queue: MessageQueue) -> Message | None:
        """Return the message with the lowest position, in any state."""
        for message in self.messages(queue, self._first_position):
            self._first_position = message.position  # those before it are passed over once
            return message
        return None

    def messages(self, queue: MessageQueue, from_position: int = 0) -> Iterator[Message]:
        """Go through its messages in any state, in order of position. The queue must not change meanwhile."""
        positions = self._positions
        sorted_parts = [(0, len(positions))]
        if self._looked_at is not None:
            sorted_parts = [(0, self._kept), (self._looked_at, len(positions))]
        for start, end in sorted_parts:
            for place in range(bisect_left(positions, from_position, start, end), end):
                message = queue.find(positions[place])
                if message is not None:
                    yield message


class SessionStates:
    """The states of an entity's sessions, as records of a queue of their own."""

    __slots__ = (
        "_copied_by",
        "_records",
        "_shared",
        "next_position",
        "numbers_dirty",
        "queue_id",
        "replaced",
        "size_bytes",
    )

    def __init__(self, queue: MessageQueue) -> None:
        self.queue_id = queue.queue_id // QUEUES_PER_ENTITY * QUEUES_PER_ENTITY + SESSION_STATES
        self.numbers_dirty = False
        self.next_position = 1
        self.size_bytes = 0
        self.replaced: list[Message] = []  # stored ones that later ones of other spellings stand for
        self._copied_by = queue.copied_by
        self._shared = queue.shared
        self._records: dict[int, Message] = {}

    def find(self, position: int) -> Message | None:
        return self._records.get(position)

    def all_messages(self) -> Iterator[Message]:
        yield from self._records.values()

    def put(self, session_id: str, state: bytes, instant_ms: int, out: Outcome) -> Message:
        """Store a state."""
        record = Message(len(state))
        record.session_id = session_id
        record.enqueued_at_ms = instant_ms
        record.position = self.next_position
        self.next_position += 1
        if not self.numbers_dirty:
            self.numbers_dirty = True
            self._shared.issued.append(self)
        self.restore(record)
        out.changes.append(MessageStored(self.queue_id, record, state))
        return record

    def restore(self, record: Message) -> None:
        self._records[record.position] = record
        self._add_size(record.size_bytes)

    def remove(self, record: Message, out: Outcome) -> None:
        del self._records[record.position]
        self._add_size(-record.size_bytes)
        out.changes.append(MessageRemoved(self.queue_id, record))

    def numbers_issued(self) -> NumbersIssued:
        """State the counter as a fact."""
        return NumbersIssued(self.queue_id, self.next_position, 0, 0)

    def _add_size(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        if self._copied_by is not None:
            self._copied_by.size_bytes += size_bytes
