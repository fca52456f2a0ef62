"""One session: its messages in order, its holder, its state.

Positions of removed messages stay in a session until most are stale; then it is compacted, a few positions
for each message that is removed: kept positions move to the front, behind them are the cleared places, then
the rest.
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
from peeklock.broker.vocabulary.addresses import NOT_NUMBERED
from peeklock.broker.vocabulary.changes import (
    QUEUES_PER_ENTITY,
    SESSION_STATES,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
)
from peeklock.broker.vocabulary.message import Message, MessageState

if TYPE_CHECKING:
    from peeklock.broker.queue.cursor import Cursor
    from peeklock.broker.queue.message_queue import MessageQueue

COMPACT_MIN = 64
"""Stale positions that a session may have before it is compacted."""

COMPACT_STEP: Final = 4
"""Positions compacted for each removed message: all at once would take 0.3 s a million, and sessions in
similar use would be due together."""

_NOWHERE: Final = -1
"""In place of a position that was moved or dropped."""

NO_RECEIVERS: Final = Receivers()
"""Of all sessions that are not held, as most are: an empty one takes 700 bytes."""


class SessionLockState(Enum):
    """Life of a session's lock. A session that a cursor holds is FREE."""

    FREE = 1
    HELD = 2
    LAPSED = 3
    """It has ended; its link stays for a while (wire contract C7)."""


TRANSITIONS: Final[dict[SessionLockState, frozenset[SessionLockState]]] = {
    SessionLockState.FREE: frozenset((SessionLockState.HELD,)),
    SessionLockState.HELD: frozenset((SessionLockState.FREE, SessionLockState.LAPSED)),
    SessionLockState.LAPSED: frozenset((SessionLockState.FREE, SessionLockState.HELD)),
}
"""Only a lapse keeps the link, and a new holder detaches it."""


class SessionLock:
    """A session held by a receiver link; at exactly `locked_until_ms` it is lost."""

    __slots__ = ("locked_until_ms", "receiver", "session_id", "used_late")

    def __init__(self, receiver: Consumer, session_id: str, locked_until_ms: int) -> None:
        self.receiver = receiver
        self.session_id = session_id  # in the holder's spelling
        self.locked_until_ms = locked_until_ms
        self.used_late = False  # the holder used the session after its end, before the lapse was processed


class MessageSession:
    """One session: its messages, its state, its holder. It is the ready queue of its messages."""

    __slots__ = (
        "_compacted",
        "_first_position",
        "_gone",
        "_kept",
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
        self.key = key  # the folded id
        self.text = key  # the id as the last message spells it
        self.active = 0
        self.deferred = 0
        self.scheduled = 0
        self.state: Message | None = None
        self.lock: SessionLock | None = None
        self.claimed = 0  # active messages held for a cursor
        self.cursor: Cursor | None = None  # that holds them, and so the session
        self.receivers = NO_RECEIVERS  # the holder while it has credit; shared if the session is not held
        self.returned: list[int] = []
        self.partitions = 0  # a bit for each that its messages are in, or were
        self.touched = False  # a message became available for its holder
        self._positions: list[int] = []  # of its messages in any state, ascending; some are stale
        self._next = 0  # index: earlier ones are delivered or stale
        self._gone = 0  # number of stale ones
        self._first_position = 0  # not higher than its first message
        self._compacted: int | None = None  # index: how far the compaction is, None = none is under way
        self._kept = 0  # positions that it has moved to the front

    @property
    def session(self) -> MessageSession:
        """Itself: its messages are under its lock."""
        return self

    @property
    def is_empty(self) -> bool:
        return not (self.active or self.deferred or self.scheduled or self.state or self.lock)

    def is_held(self, now_ms: int) -> bool:
        return self.lock is not None and self.lock.locked_until_ms > now_ms

    def take(self, queue: MessageQueue) -> Message | None:
        """Take the available message with the lowest position."""
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
        """Make the message at a position available again, unless it is yet to come."""
        at = self._next
        if self._compacted is not None and at >= self._kept:
            at = max(at, self._compacted)  # nothing is between them
        if at == len(self._positions) or position < self._positions[at]:
            heappush(self.returned, position)

    def add(self, position: int) -> None:
        """Add a new message. Only one that was numbered ahead may not have the highest position."""
        positions = self._positions
        if positions and position > positions[-1]:
            positions.append(position)
            return
        self._first_position = min(self._first_position, position)
        if not positions:
            positions.append(position)
            return
        start, end = 0, len(positions)
        if self._compacted is not None:
            if self._kept and position < positions[self._kept - 1]:
                end = self._kept
            else:
                start = self._compacted
        at = bisect_left(positions, position, start, end)
        positions.insert(at, position)
        if at < self._next:
            self._next += 1
        if self._compacted is not None and at < self._kept:
            self._kept += 1
            self._compacted += 1

    def discard(self, state: MessageState, queue: MessageQueue) -> None:
        """Note that a message in a state was removed, and compact a little if most positions are stale."""
        if state is MessageState.ACTIVE:
            self.active -= 1
        elif state is MessageState.DEFERRED:
            self.deferred -= 1
        else:
            self.scheduled -= 1
        self._gone += 1
        if self._compacted is None:
            if self._gone < COMPACT_MIN or 2 * self._gone < len(self._positions):
                return
            self._compacted = self._kept = 0
        self._compact(queue, self._compacted)

    def _compact(self, queue: MessageQueue, at: int) -> None:
        """Move a few valid positions to the front."""
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
        self._compacted = end
        if end == len(positions):
            del positions[self._kept :]
            self._next = min(self._next, self._kept)
            self._compacted = None

    def rescan(self) -> None:
        """Start again, after a change of what can be received. Only cursors may hold messages."""
        self.returned = []
        self._next = 0

    def first(self, queue: MessageQueue) -> Message | None:
        """Return the message with the lowest position, in any state."""
        for message in self.messages(queue, self._first_position):
            self._first_position = message.position  # skips earlier ones next time
            return message
        return None

    def messages(self, queue: MessageQueue, from_position: int = 0) -> Iterator[Message]:
        """Yield its messages in any state, by position. The queue must not change meanwhile."""
        positions = self._positions
        sorted_parts = [(0, len(positions))]
        if self._compacted is not None:
            sorted_parts = [(0, self._kept), (self._compacted, len(positions))]
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
        self.replaced: list[Message] = []  # stored states replaced by one of another spelling
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
        """Return the counter as a fact."""
        return NumbersIssued(self.queue_id, self.next_position, NOT_NUMBERED, 0)

    def _add_size(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        if self._copied_by is not None:
            self._copied_by.size_bytes += size_bytes
