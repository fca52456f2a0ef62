"""Turns of the running loop for tests that step through them: a round follows the other without a rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peeklock.server.loop.turns import CLIENTS, Turns


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def stepped_turns(clock_s: Callable[[], float]) -> Turns:
    """Return turns whose rounds do not rest: each is one pass of the loop."""
    loop = asyncio.get_running_loop()
    return Turns(loop.call_soon, lambda _, call: loop.call_soon(call), on_defect=raised, clock_s=clock_s)


def raised(defect: Exception) -> None:
    """Raise a defect, for the test to fail."""
    raise defect


class Insatiable:
    """A stranger that uses up a turn, and has more to do each time."""

    known = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def work(self, units: int, until_s: float) -> bool:
        self._clock.now_s += CLIENTS.turn_s
        return True

    def abort(self) -> None:
        pass
