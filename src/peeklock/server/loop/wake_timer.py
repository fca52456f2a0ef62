"""The timer of one namespace, in milliseconds of UTC.

Owns: when the event loop's timer fires. Must not know: what falls due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LATE_MS = 1000
"""So late, a timer has slept with the machine. Our choice: a busy loop is late by less."""


class WakeTimer:
    """Calls at the time set last, or before it: whoever is called sets the time anew.

    Most times are put off before they come, such as the end of a lock, by the complete. So the loop's timer
    stays as it is unless it fires too late: to set one anew costs as much as a system call.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """Begin with no time set."""
        self._loop = asyncio.get_running_loop()
        self._wake = wake
        self._handle: asyncio.TimerHandle | None = None
        self._fires_at_ms = 0
        self._at_ms: int | None = None

    def set(self, at_ms: int | None, now_ms: int) -> None:
        """Call at this time instead of the one before; None: at no time."""
        self._at_ms = at_ms
        if at_ms is None or (self._handle is not None and self._fires_at_ms <= at_ms):
            return
        if self._handle is not None:
            self._handle.cancel()
        self._fires_at_ms = at_ms
        self._handle = self._loop.call_later(max((at_ms - now_ms) / 1000, 0), self._due)

    def cancel(self) -> None:
        """Forget the time."""
        self._at_ms = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def tick(self, now_ms: int) -> None:
        """Do what fell due while the machine slept, which the loop's timers do not count; to be called about
        once a second."""
        if self._handle is not None and self._at_ms is not None and self._at_ms <= now_ms - LATE_MS:
            self._handle.cancel()
            self._due()

    def _due(self) -> None:
        self._handle = None
        if self._at_ms is not None:
            self._wake()
