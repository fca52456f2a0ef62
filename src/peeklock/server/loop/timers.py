"""Timers that are mostly put off before they fire, and the ticks of thousands of connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

LATE_MS = 1000
"""A timer this late has slept with the machine. Our choice: a busy loop is late by less."""

SLICES = 10
"""Turns that share the connections of a round of ticks. Our choice: 500 of 5,000 take some 2 ms; all at once
they would hold up the turn for tens of milliseconds."""


class Deadline:
    """One call at a later time; what is set last replaces what was set before."""

    __slots__ = ("_due_s", "_loop", "_then", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._then: Callable[[], None] | None = None

    def set(self, seconds: float, then: Callable[[], None]) -> None:
        """Call a function in so many seconds.

        A timer that fires earlier is kept and set again then: most deadlines of a connection never come.
        """
        self._due_s, self._then = self._loop.time() + seconds, then
        if self._timer is None or self._timer.when() > self._due_s:
            self._stop()
            self._timer = self._loop.call_at(self._due_s, self._look)

    def clear(self) -> None:
        """Call nothing."""
        self._then = None

    def end(self) -> None:
        """Call nothing any more, and leave no timer behind."""
        self._then = None
        self._stop()

    def _look(self) -> None:
        self._timer, then = None, self._then
        if then is None:
            return
        if self._loop.time() < self._due_s:
            self._timer = self._loop.call_at(self._due_s, self._look)
        else:
            self._then = None
            then()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class WakeTimer:
    """Calls at the time set last, in ms of UTC, or before it: the callee sets the next time.

    Most times are put off before they come, such as the end of a lock by the complete. So the loop's timer
    is kept unless it fires too late: setting one costs as much as a system call.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """Begin with no time set."""
        self._loop = asyncio.get_running_loop()
        self._wake = wake
        self._handle: asyncio.TimerHandle | None = None
        self._fires_at_ms = 0
        self._at_ms: int | None = None

    def set(self, at_ms: int | None, now_ms: int) -> None:
        """Call at this time instead of the one before; None = never."""
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
        """Call what fell due while the machine slept, unnoticed by the loop; run about once a second."""
        if self._handle is not None and self._at_ms is not None and self._at_ms <= now_ms - LATE_MS:
            self._handle.cancel()
            self._due()

    def _due(self) -> None:
        self._handle = None
        if self._at_ms is not None:
            self._wake()


class Ticked(Protocol):
    """A connection whose time passes."""

    def tick(self, now_ms: int) -> None:
        """Do what is due."""


async def tick_round(
    connections: Mapping[int, Ticked],
    now_ms: Callable[[], int],
    sleep: Callable[[float], Awaitable[None]],
    round_s: float,
) -> None:
    """Tick each connection that is there from the start to its turn, spread over `round_s` seconds."""
    ids = list(connections)
    for turn in range(SLICES):
        await sleep(round_s / SLICES)
        now = now_ms()
        for connection_id in ids[turn::SLICES]:
            connection = connections.get(connection_id)
            if connection is not None:
                connection.tick(now)
