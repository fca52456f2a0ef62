"""Timers of a simulated process. Its death cancels them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.world.process import Process


class Alarm:
    """A function to call at its time, unless it is cancelled or the broker is dead."""

    def __init__(self, process: Process, call: Callable[[], None]) -> None:
        self._process, self._call = process, call
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def ring(self) -> None:
        if not (self._cancelled or self._process.dead):
            self._call()
