"""A client that continues what broken connections have left (C26).

Owns: whose connection breaks while it holds locks, and which lock is renewed or settled then, by the world's
random source. Must not know: the broker's internals, the form of requests (`requests`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.actors.actors import Actor, Shared
from tests.simulation.actors.requests import renew, update_disposition
from tests.simulation.oracle.history import Lock

RECENT = 20
"""How many of the last locks are considered: most of those before are settled."""


class Successor(Actor):
    """Renews and settles locks of lost connections: in the grace, after it, when they lapse."""

    def __init__(self, shared: Shared, name: str, holders: Sequence[Actor]) -> None:
        """Set up the client; `holders` are the receivers whose connections it breaks."""
        super().__init__(shared, name)
        self._holders = holders
        self._planned: set[bytes] = set()
        """Tokens of locks whose turn comes."""

    def ready(self) -> None:
        self._planned.clear()
        self.next_time(self.random.randint(0, 200), self._act)

    def _act(self) -> None:
        if self.stopped:
            return
        self.next_time(self.random.randint(20, 400), self._act)
        held = [(address, lock) for address, lock in self.shared.locks[-RECENT:] if self._may_be_held(lock)]
        for address, lock in held:
            if lock.connection in self.checker.history.lost and lock.token not in self._planned:
                self._planned.add(lock.token)
                left_ms = lock.until_ms - self.now_ms
                wait_ms = self.random.choice((20, 600, 2_500, 4_000, left_ms + 1))
                self.later(wait_ms, self._go_on, address, lock)
        soon_ms = self.now_ms + 1_000
        ending = [lock for _, lock in held if lock.until_ms < soon_ms]
        if held and self.random.random() < 0.3:
            self._cut(self.random.choice(held)[1])
        elif ending and self.random.random() < 0.5:
            self._cut(self.random.choice(ending))  # its own end comes before that of the grace

    def _cut(self, lock: Lock) -> None:
        for holder in self._holders:
            if holder.connection == lock.connection:
                holder.cut()

    def _go_on(self, address: str, lock: Lock) -> None:
        if self.stopped:
            return
        if self.random.random() < 0.3:
            self._planned.discard(lock.token)
            renew(self, address, lock)
        else:
            update_disposition(self, address, lock, self.random.choice(("complete", "abandon")))

    def _may_be_held(self, lock: Lock) -> bool:
        what = {what for _, what in lock.ends}
        return (
            lock.hold is None
            and lock.settled is None
            and lock.until_ms > self.now_ms
            and not what - {"cut", "drop"}
        )
