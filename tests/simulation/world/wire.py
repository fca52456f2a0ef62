"""A wire in virtual time: it calls its reader when something arrives at an end.

Owns: when bytes are read. Must not know: what they mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peeklock.testing.wire import BROKER, CLIENT, MemoryWire
from tests.simulation.world.world import World


class Wire:
    """A wire in virtual time: it calls the reader of an end when bytes, or the end of the stream, arrive
    there."""

    def __init__(self, world: World, memory: MemoryWire, worlds: tuple[World, World] | None = None) -> None:
        """Connect two ends; `worlds`: of the client's end and of the broker's, where they differ."""
        self._world = world
        self._worlds = worlds or (world, world)
        self.memory = memory
        self.on_data: list[Callable[[bytes], None]] = [_nothing, _nothing]
        self.on_end: list[Callable[[], None]] = [_nothing, _nothing]
        self._planned: list[int | None] = [None, None]
        self._over = [False, False]

    def write(self, end: int, data: bytes) -> None:
        self.memory.write(end, data, self._world.now_ms)
        self._plan(1 - end)

    def close(self, end: int) -> None:
        """Close an end, as a process closes its socket: it reads nothing any more either."""
        self._over[end] = True
        self.memory.close(end, self._world.now_ms)
        self._plan(1 - end)

    def cut(self) -> None:
        self.memory.cut(self._world.now_ms)
        self._plan(CLIENT)
        self._plan(BROKER)

    def _plan(self, end: int) -> None:
        due_ms = None if self._over[end] else self.memory.next_ms(end)
        planned_ms = self._planned[end]
        if due_ms is not None and (planned_ms is None or due_ms < planned_ms):
            self._planned[end] = due_ms
            self._worlds[end].at(due_ms, self._arrived, end)

    def _arrived(self, end: int) -> None:
        self._planned[end] = None
        if self._over[end]:
            return
        now = self._world.now_ms
        data = self.memory.read(end, now)
        if data:
            self.on_data[end](data)
        if not self._over[end] and self.memory.at_end(end, now):
            self._over[end] = True
            self.on_end[end]()
        self._plan(end)


def _nothing(*_: Any) -> None:
    return None
