"""What each shard needs from time to time, done for all of them in one task.

A task for each would wake the loop two thousand times a second for 500 namespaces. The lag of the loop is
measured here, once.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from peeklock.server.loop.tasks import tell_failure
from peeklock.server.loop.turns import Turns

HOUSEKEEPING_S = 0.25

SLICE_S = 0.002
"""Of one turn. Our choice: a shard that does nothing takes 20 us."""


class Kept(Protocol):
    """A shard, as housekeeping knows it."""

    def keep_house(self, at_s: float, lag_ms: int) -> None:
        """Do what is due from time to time. `at_s`: of the loop's clock; `lag_ms`: lateness of the loop."""


class Housekeeping:
    """Calls the shards, each four times a second."""

    def __init__(self, turns: Turns) -> None:
        """Begin with none."""
        self._turns = turns
        self._kept: dict[Kept, None] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, shard: Kept) -> None:
        """Keep house for a shard from now on."""
        self._kept[shard] = None
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(tell_failure)

    def remove(self, shard: Kept) -> None:
        """Forget a shard."""
        self._kept.pop(shard, None)
        if not self._kept and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        time_s, clock_s = asyncio.get_running_loop().time, self._turns.clock_s
        before_s = time_s()
        while True:
            await asyncio.sleep(max(0.0, before_s + HOUSEKEEPING_S - time_s()))
            at_s = time_s()
            lag_ms = max(0, round((at_s - before_s - HOUSEKEEPING_S) * 1000))
            before_s = at_s
            self._turns.begin()
            until_s = clock_s() + SLICE_S
            for shard in list(self._kept):
                if shard in self._kept:
                    shard.keep_house(at_s, lag_ms)
                if clock_s() >= until_s:
                    await asyncio.sleep(0)
                    self._turns.begin()
                    until_s = clock_s() + SLICE_S
