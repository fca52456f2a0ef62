"""Virtual time: a heap of events, one random source, a running hash of everything that happens.

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


class World:
    """The heap, the clock and the random source."""

    def __init__(self, seed: int, *, trace: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_ms = START_MS
        self.events = 0
        self.tail: deque[str] = deque(maxlen=TAIL)
        self._trace = trace
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0
        self._digest = blake2b(digest_size=12)

    def at(self, due_ms: int, do: Callable[..., None], *args: Any) -> None:
        """Plan an event; one in the past happens now."""
        self._planned += 1
        heapq.heappush(self._heap, (max(due_ms, self.now_ms), self._planned, do, args))

    def after(self, delay_ms: int, do: Callable[..., None], *args: Any) -> None:
        """Plan an event `delay_ms` from now."""
        self.at(self.now_ms + delay_ms, do, *args)

    def note(self, text: str) -> None:
        """Record an event: in the hash, the tail and the trace."""
        line = f"{self.now_ms - START_MS:>10} {text}"
        self._digest.update(line.encode())
        self.tail.append(line)
        if self._trace is not None:
            self._trace(line)

    def digest(self) -> str:
        """Return the running hash: equal for two runs with the same events."""
        return self._digest.hexdigest()

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
        if not self._heap or self._heap[0][0] > deadline_ms:
            return False
        self.events += 1
        if self.events > EVENTS_MAX:
            raise Livelock(f"{EVENTS_MAX} events and no end")
        due_ms, _, do, args = heapq.heappop(self._heap)
        self.now_ms = max(self.now_ms, due_ms)
        do(*args)
        return True
