"""What a process of the simulated broker has planned, which its death cancels.

Owns: nothing else. Must not know: what is planned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.world.process import Process


class Alarm:
    """A function to call unless it is cancelled or the broker is dead."""

    def __init__(self, process: Process, call: Callable[[], None]) -> None:
        self._process, self._call = process, call
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def ring(self) -> None:
        if not (self._cancelled or self._process.dead):
            self._call()
