"""The broker's clock: a time that passes evenly, and steps of the wall clock.

Theory of operation. Time is UTC at start plus the time that has passed, the machine's suspension included, so
that no step of the wall clock moves it. The difference to the wall clock is a small error, which is slewed
away by at most 1 %, or a step: more than 5 s that stay. A step is reported once, and remembered as
`ahead_ms`; the time itself continues as before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

SLEW_MAX = 0.01
"""Share of the elapsed time by which the clock may run fast or slow to meet the wall clock (our choice)."""

STEP_S_MIN = 5.0
"""A larger difference is a step: slewing it away would take longer than 8 minutes (our choice)."""

LASTING_S = 2.0
"""How long a difference must stay to be a step. Our choice: time servers and hypervisors may set a
clock twice within a second."""


boottime_s: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Returns the seconds since some instant, suspension included if the system can count it."""


class SlewedClock:
    """UTC in whole milliseconds, never going backwards, and how far the wall clock is ahead of it."""

    def __init__(
        self, wall: Callable[[], float] = time.time, passed: Callable[[], float] = boottime_s
    ) -> None:
        """Start at the wall clock's time; both sources return seconds."""
        self._wall = wall
        self._passed = passed
        self._adjusted_at = passed()
        self._offset = wall() - self._adjusted_at
        self._last_ms = 0
        self._apart: float | None = None  # since when the difference has been that of a step
        self.ahead_ms = 0
        """Sum of the steps of the wall clock since the start."""

    def now_ms(self) -> int:
        """Return the time in ms of UTC, as if no clock had been set since the start."""
        now = int((self._passed() + self._offset) * 1000)
        if now < self._last_ms:  # a slew backwards within the same millisecond
            return self._last_ms
        self._last_ms = now
        return now

    def wall_ms(self) -> int:
        """Return the time of the wall clock, in ms."""
        return self.now_ms() + self.ahead_ms

    def adjust(self) -> int:
        """Slew towards the wall clock; call about once a second. Return a step of it, in ms; mostly 0."""
        passed = self._passed()
        elapsed = passed - self._adjusted_at
        self._adjusted_at = passed
        error = self._wall() - passed - self._offset - self.ahead_ms / 1000
        if abs(error) > STEP_S_MIN:
            if self._apart is None:
                self._apart = passed
            if passed - self._apart < LASTING_S:
                return 0
            self._apart = None
            step_ms = round(error * 1000)
            self.ahead_ms += step_ms
            return step_ms
        self._apart = None
        allowed = elapsed * SLEW_MAX
        self._offset += max(-allowed, min(allowed, error))
        return 0


class MovableClock:
    """A clock that runs with another one, ahead of it by what `move_to` has added."""

    __slots__ = ("_moved_ms", "_now_ms")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """Begin with the other clock's time."""
        self._now_ms = now_ms
        self._moved_ms = 0

    def now_ms(self) -> int:
        """Return the time in ms of UTC."""
        return self._now_ms() + self._moved_ms

    def move_to(self, instant_ms: int) -> None:
        """Move forward to an instant; a past one changes nothing."""
        self._moved_ms += max(0, instant_ms - self.now_ms())
