"""The broker's clock: UTC that never jumps.

Owns: `now_ms`. A step of the wall clock (NTP, an administrator, a resumed machine) must not mass-expire locks
and time-to-lives, so time is UTC at start plus monotonic time, slewed by at most 1 % towards the wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SLEW_MAX = 0.01
"""Share of the elapsed time by which the clock may run fast or slow to meet the wall clock (our choice)."""


class SlewedClock:
    """UTC in whole milliseconds, never going backwards, blind to steps of the wall clock."""

    def __init__(
        self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Start at the wall clock's time; both sources give seconds."""
        self._wall = wall
        self._monotonic = monotonic
        self._adjusted_at = monotonic()
        self._offset = wall() - self._adjusted_at
        self._last_ms = 0

    def now_ms(self) -> int:
        """Give UTC in ms since 1970."""
        now = int((self._monotonic() + self._offset) * 1000)
        if now < self._last_ms:  # a slew backwards within the same millisecond
            return self._last_ms
        self._last_ms = now
        return now

    def adjust(self) -> None:
        """Move towards the wall clock by at most 1 % of the time since the last adjustment; call about once a
        second."""
        mono = self._monotonic()
        allowed = (mono - self._adjusted_at) * SLEW_MAX
        self._adjusted_at = mono
        error = self._wall() - mono - self._offset
        self._offset += max(-allowed, min(allowed, error))
