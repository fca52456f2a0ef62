"""Virtual time: a heap of events, random sources, a running hash of everything that happens.

Owns: order. Two events at the same instant happen in the order in which they were planned. Must not know:
brokers.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import Any

START_MS = 1_750_000_000_000
"""UTC ms at which every simulation begins: fixed, so that a seed means the same every day."""

EVENTS_MAX = 400_000
"""More events mean a livelock: a normal seed has a few thousand."""

TAIL = 60
"""Events in the report of a failure."""


class Livelock(Exception):
    """The event heap does not run dry."""


class _Time:
    """The heap, the clock and the record of what has happened."""

    def __init__(self, trace: Callable[[str], None] | None) -> None:
        self.now_ms = START_MS
        self.events = 0
        self.tail: deque[str] = deque(maxlen=TAIL)
        self.trace = trace
        self.heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.planned = 0
        self.digest = blake2b(digest_size=12)


class World:
    """The heap, the clock and a random source; what is `beside` it has another source, and the same time."""

    def __init__(self, seed: int, *, trace: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.random = Random(seed)
        self._time = _Time(trace)
        self._prefix = ""

    def beside(self, seed: int, name: str) -> World:
        """Return this world with a seed and a random source apart; the name is put before its notes."""
        other = World(seed)
        other._time = self._time
        other._prefix = f"{name}: "
        return other

    @property
    def now_ms(self) -> int:
        """The present, UTC ms."""
        return self._time.now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self._time.now_ms = now_ms

    @property
    def events(self) -> int:
        """How many events have happened."""
        return self._time.events

    @property
    def tail(self) -> deque[str]:
        """The last notes."""
        return self._time.tail

    def at(self, due_ms: int, do: Callable[..., None], *args: Any) -> None:
        """Plan an event; one in the past happens now."""
        time = self._time
        time.planned += 1
        heapq.heappush(time.heap, (max(due_ms, time.now_ms), time.planned, do, args))

    def after(self, delay_ms: int, do: Callable[..., None], *args: Any) -> None:
        """Plan an event `delay_ms` from now."""
        self.at(self._time.now_ms + delay_ms, do, *args)

    def note(self, text: str) -> None:
        """Record an event: in the hash, the tail and the trace."""
        time = self._time
        line = f"{time.now_ms - START_MS:>10} {self._prefix}{text}"
        time.digest.update(line.encode())
        time.tail.append(line)
        if time.trace is not None:
            time.trace(line)

    def digest(self) -> str:
        """Return the running hash: equal for two runs with the same events."""
        return self._time.digest.hexdigest()

    def run_until(self, done: Callable[[], bool], deadline_ms: int) -> bool:
        """Run events until `done` returns true; False when `deadline_ms` comes first or no event is left."""
        while not done():
            if not self._step(deadline_ms):
                return done()
        return True

    def run_to(self, deadline_ms: int) -> None:
        """Run all events up to an instant, and move the clock there."""
        while self._step(deadline_ms):
            pass
        self.now_ms = max(self.now_ms, deadline_ms)

    def jump(self, delay_ms: int) -> None:
        """Move the clock at once: the events in between happen late, at the new instant."""
        self.now_ms += delay_ms
        self.note(f"clock jumps {delay_ms} ms")

    def _step(self, deadline_ms: int) -> bool:
        time = self._time
        if not time.heap or time.heap[0][0] > deadline_ms:
            return False
        time.events += 1
        if time.events > EVENTS_MAX:
            raise Livelock(f"{EVENTS_MAX} events and no end")
        due_ms, _, do, args = heapq.heappop(time.heap)
        time.now_ms = max(time.now_ms, due_ms)
        do(*args)
        return True
