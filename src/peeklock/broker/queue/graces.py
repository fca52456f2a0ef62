"""Graces: how long locks outlive their broken connection.

Theory of operation. All graces last equally long, so one queue of them is in order, and only its head has a
timer. A grace names the `Holder`s of its connection, not their locks, so a break costs as much as the
connection has links. A lock that is settled, renewed over another connection, or lapses by itself leaves its
holder; the rest is released in slices at the end. Nothing is stored: a restart frees every message, not
counted (L-12).
Source: wire contract C26; semantics L-08, L-13.
"""

from __future__ import annotations

from collections import deque

from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.peek_lock import Holder, Lock
from peeklock.broker.queue.shared import Shared
from peeklock.broker.queue.timers import FAR_MS, TimerKey
from peeklock.broker.vocabulary.events import EventType

LOCK_GRACE_MS = 5_000
"""Default. Our choice: a lost connection is back within it, a killed worker blocks messages no longer."""


class _Grace:
    """The locks of a broken connection."""

    __slots__ = ("_holders", "_left", "connection_id", "until_ms")

    def __init__(self, connection_id: int, holders: list[Holder], until_ms: int) -> None:
        self.connection_id = connection_id
        self.until_ms = until_ms
        self._holders = holders
        self._left: list[Lock] | None = None  # from its end on: locks to release, the last one first
        for holder in holders:
            holder.until_ms = until_ms

    def take(self) -> Lock | None:
        """Return the next lock that ends with this grace; None if none is left."""
        if self._left is None:
            # Once, not in slices: iteration over a dict starts at its first entry, freed ones included.
            self._left = [lock for holder in reversed(self._holders) for lock in reversed(holder.values())]
        while self._left:
            lock = self._left.pop()
            # Else it has ended, or its entity is deleted.
            if lock.queue.locks.get(lock.token) is lock and lock.holder.until_ms <= self.until_ms:
                return lock
        return None


class Graces:
    """The graces of a namespace."""

    timer_key = TimerKey.GRACES

    def __init__(self, shared: Shared, grace_ms: int | None) -> None:
        """Begin with none.

        Args:
            grace_ms: duration of each; None = a lock outlives its connection until it lapses.
        """
        self.timer_ms = FAR_MS
        self._shared = shared
        self._grace_ms = grace_ms
        self._queue: deque[_Grace] = deque()

    def begin(self, connection_id: int, holders: list[Holder], now_ms: int) -> None:
        """Begin the grace of a broken connection; no holder is empty."""
        if self._grace_ms is None:
            return
        self._queue.append(_Grace(connection_id, holders, now_ms + self._grace_ms))
        if len(self._queue) == 1:
            self._shared.timers.set(self, self._queue[0].until_ms)

    def advance(self, count_max: int, out: Outcome) -> int:
        """Release about `count_max` locks of graces that are over; return the work done."""
        now_ms = out.now_ms
        shared = self._shared
        copies = out.copies
        work = 0
        while self._queue and self._queue[0].until_ms <= now_ms:
            grace = self._queue[0]
            work += 1
            out.attribute_to_end(grace.connection_id, broken=True)
            # Forwards of dead letters count as work.
            while work + out.copies - copies <= count_max and (lock := grace.take()) is not None:
                work += 1
                lock.queue.give_back(
                    lock, out, counted=True, why=EventType.LOCK_LAPSED, reason="the connection broke"
                )
                out.touch(lock.queue)
            if work + out.copies - copies > count_max:
                break
            self._queue.popleft()
        out.attribute_to_time()  # for what else is due
        if self._queue:
            shared.timers.set(self, self._queue[0].until_ms)
        return work + out.copies - copies

    def check(self) -> None:
        """Assert that the queue agrees with the timer."""
        ends = [grace.until_ms for grace in self._queue]
        assert ends == sorted(ends)
        assert not ends or self.timer_ms <= ends[0]
