"""One thing that happens at a time to come, which is mostly put off before.

Owns: a timer of the loop. Must not know: what happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Deadline:
    """See the module. What is called last replaces what was called for before."""

    __slots__ = ("_due_s", "_loop", "_then", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._then: Callable[[], None] | None = None

    def set(self, seconds: float, then: Callable[[], None]) -> None:
        """Have a function called in so many seconds.

        A timer that fires before that is left alone and set anew then: of a connection, most never fire.
        """
        self._due_s, self._then = self._loop.time() + seconds, then
        if self._timer is None or self._timer.when() > self._due_s:
            self._stop()
            self._timer = self._loop.call_at(self._due_s, self._look)

    def clear(self) -> None:
        """Have nothing called."""
        self._then = None

    def end(self) -> None:
        """Have nothing called ever, and leave no timer behind."""
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
