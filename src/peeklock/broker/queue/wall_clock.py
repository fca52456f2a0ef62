"""How far the wall clock differs from the core's time, and which instants are believed.

Theory of operation. The core's time never goes back and passes steadily, so durations (locks, transactions,
windows) are compared with it alone, and no step of the wall clock changes what is left of them. An instant (a
time-to-live, a scheduled time, a stamp) is UTC: it is compared with the core's time and `due_ahead_ms`. What
clients compare with their own clocks (tokens, times shown, locked-until) is the core's time and `ahead_ms`.
The two differ only while a step forwards is not believed: a wrong one would make messages expire for good, so
an operator must accept it.
"""

from __future__ import annotations

from peeklock.broker.queue.timers import FAR_MS

CLOCK_STEP_LIMIT_MS = 24 * 60 * 60 * 1000
"""Default; a larger step forwards is not believed. Our choice: wrong time zones and a night without a time
server are below it, a wrong year is not."""


class WallClock:
    """The wall clock as differences from the core's time."""

    __slots__ = ("ahead_ms", "due_ahead_ms", "limit_ms")

    def __init__(self, limit_ms: int) -> None:
        """Begin without a difference; `limit_ms`: the step forwards that instants follow."""
        self.limit_ms = limit_ms
        self.ahead_ms = 0
        self.due_ahead_ms = 0

    @property
    def is_doubted(self) -> bool:
        """Whether a step is not believed."""
        return self.ahead_ms != self.due_ahead_ms

    def step(self, delta_ms: int) -> None:
        """Follow a step of the wall clock; instants follow unless they would be too far ahead."""
        self.ahead_ms += delta_ms
        if self.ahead_ms - self.due_ahead_ms <= self.limit_ms:
            self.due_ahead_ms = self.ahead_ms

    def accept(self) -> None:
        """Make instants follow the wall clock."""
        self.due_ahead_ms = self.ahead_ms

    def shown_ms(self, core_ms: int) -> int:
        """Return the time of the wall clock at an instant of the core's time; 0 (none) stays 0."""
        return core_ms and core_ms + self.ahead_ms

    def instant_ms(self, core_ms: int) -> int:
        """Return the believed UTC instant for one of the core's time."""
        return core_ms + self.due_ahead_ms

    def core_ms(self, instant_ms: int) -> int:
        """Return when in the core's time a UTC instant is reached; FAR_MS stays."""
        return FAR_MS if instant_ms >= FAR_MS else instant_ms - self.due_ahead_ms
