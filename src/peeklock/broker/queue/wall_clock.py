"""How far the wall clock is from the core's time, and which instants are believed.

Owns: two differences. Must not know: any clock, what is due.

Theory of operation. The core's time never goes back and passes as time does, so all that lasts for a while
(locks, transactions, windows) is compared with it alone, and no step of the wall clock changes what is left.
An instant (a time-to-live, a scheduled time, a stamp) is UTC: it is compared with the core's time and
`due_ahead_ms`. What clients compare with their own clocks (tokens, times shown, locked-until) is the core's
time and `ahead_ms`. The two differ only while a step forwards is taken for an error: what would fall due by
it is lost for good when it is one, so that it waits for an operator.
"""

from __future__ import annotations

from peeklock.broker.queue.timers import FAR_MS

CLOCK_STEP_LIMIT_MS = 24 * 60 * 60 * 1000
"""A larger step forwards is taken for an error unless something else is asked for. Our choice: time zones set
wrong and a night without a time server stay below, a wrong year does not."""


class WallClock:
    """What the wall clock says, as differences to the core's time."""

    __slots__ = ("ahead_ms", "due_ahead_ms", "limit_ms")

    def __init__(self, limit_ms: int) -> None:
        """Begin with a wall clock that agrees; `limit_ms`: how far forward instants follow a step."""
        self.limit_ms = limit_ms
        self.ahead_ms = 0
        self.due_ahead_ms = 0

    @property
    def is_doubted(self) -> bool:
        """Whether the wall clock is taken to be wrong."""
        return self.ahead_ms != self.due_ahead_ms

    def step(self, delta_ms: int) -> None:
        """The wall clock was set by so much; instants follow unless they would be too far ahead."""
        self.ahead_ms += delta_ms
        if self.ahead_ms - self.due_ahead_ms <= self.limit_ms:
            self.due_ahead_ms = self.ahead_ms

    def accept(self) -> None:
        """The wall clock is right: instants follow it."""
        self.due_ahead_ms = self.ahead_ms

    def shown_ms(self, core_ms: int) -> int:
        """Return what the wall clock says at an instant of the core's time; 0 (none) stays 0."""
        return core_ms and core_ms + self.ahead_ms

    def instant_ms(self, core_ms: int) -> int:
        """Return the UTC instant, as far as it is believed, at one of the core's time."""
        return core_ms + self.due_ahead_ms

    def core_ms(self, instant_ms: int) -> int:
        """Return when in the core's time a UTC instant is reached; FAR_MS stays so."""
        return FAR_MS if instant_ms >= FAR_MS else instant_ms - self.due_ahead_ms
