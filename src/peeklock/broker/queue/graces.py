"""Locks over broken connections: they end when the grace of their connection is over.

Owns: which graces run, in the order of the breaks, and what their end does to locks. Must not know: what
breaks a connection, in which order the locks of a queue lapse. A lock that reaches its own end before that of
its grace lapses as any other.

Theory of operation. All graces last alike, so one queue of them is in order, and only its head has a timer. A
grace names the `Holder`s of its connection and not their locks, so a break costs as much as the connection
has links. What is settled, is renewed over another connection or lapses leaves its holder; what is left at
the end of the grace is released in slices. Nothing of this is stored: a restart frees every message,
uncounted (L-12).
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
"""How long the locks of a broken connection are kept unless something else is asked for. Our choice: a client
that lost its connection is back within it, and a worker that was killed holds up its messages no longer."""


class _Grace:
    """The locks that a broken connection has left."""

    __slots__ = ("_holders", "_left", "connection_id", "until_ms")

    def __init__(self, connection_id: int, holders: list[Holder], until_ms: int) -> None:
        self.connection_id = connection_id
        self.until_ms = until_ms
        self._holders = holders
        self._left: list[Lock] | None = None  # from its end on: what is to be released, the last one first
        for holder in holders:
            holder.until_ms = until_ms

    def take(self) -> Lock | None:
        """Return the next lock that ends with this grace; None when there is none."""
        if self._left is None:
            # Once, and not a slice at a time: a dict is gone through from its first entry, freed ones too.
            self._left = [lock for holder in reversed(self._holders) for lock in reversed(holder.values())]
        while self._left:
            lock = self._left.pop()
            # Else it has ended since, or its entity is gone.
            if lock.queue.locks.get(lock.token) is lock and lock.holder.until_ms <= self.until_ms:
                return lock
        return None


class Graces:
    """The graces of a namespace."""

    timer_key = TimerKey.GRACES

    def __init__(self, shared: Shared, grace_ms: int | None) -> None:
        """Begin with none.

        Args:
            grace_ms: how long each lasts; None = a lock outlives its connection until its own end.
        """
        self.timer_ms = FAR_MS
        self._shared = shared
        self._grace_ms = grace_ms
        self._queue: deque[_Grace] = deque()

    def begin(self, connection_id: int, holders: list[Holder], now_ms: int) -> None:
        """Begin the grace of the locks of a broken connection; `holders` has none that is empty."""
        if self._grace_ms is None:
            return
        self._queue.append(_Grace(connection_id, holders, now_ms + self._grace_ms))
        if len(self._queue) == 1:
            self._shared.timers.set(self, self._queue[0].until_ms)

    def advance(self, count_max: int, out: Outcome) -> int:
        """Release what graces that are over have left, about `count_max` locks; return the work done."""
        now_ms = out.now_ms
        shared = self._shared
        copies = out.copies
        work = 0
        while self._queue and self._queue[0].until_ms <= now_ms:
            grace = self._queue[0]
            work += 1
            out.attribute_to_end(grace.connection_id, broken=True)
            # Dead letters that are forwarded are work too.
            while work + out.copies - copies <= count_max and (lock := grace.take()) is not None:
                work += 1
                lock.queue.give_back(
                    lock, out, counted=True, why=EventType.LOCK_LAPSED, reason="the connection broke"
                )
                out.touch(lock.queue)
            if work + out.copies - copies > count_max:
                break
            self._queue.popleft()
        out.attribute_to_time()  # what else is due follows from time alone
        if self._queue:
            shared.timers.set(self, self._queue[0].until_ms)
        return work + out.copies - copies

    def check(self) -> None:
        """Compare the queue with the timer; an assertion fails when they do not agree."""
        ends = [grace.until_ms for grace in self._queue]
        assert ends == sorted(ends)
        assert not ends or self.timer_ms <= ends[0]
