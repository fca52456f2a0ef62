"""The figures of a namespace for whoever asks, added up between other turns of the event loop.

Owns: who waits for which count. Must not know: what is added up.

There is one count at a time, and one slice of it a turn. Who asks while one is under way waits for the next,
together with all others who do: it has what happened before they asked, and many who ask cost no more than
two counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peeklock.broker.handlers.totals import Totals, TotalsCount
from peeklock.server.loop.turns import Turns


class TotalsRequests:
    """See the module."""

    def __init__(self, begin: Callable[[], TotalsCount], turns: Turns) -> None:
        """Count nothing yet; `begin` begins a count, `turns` measures the loop's turns."""
        self._begin = begin
        self._turns = turns
        self._under_way: asyncio.Task[Totals] | None = None
        self._next: asyncio.Task[Totals] | None = None

    async def totals(self) -> Totals:
        """Return what a count finds that begins from now on."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._count())
        return await asyncio.shield(self._next)  # others may wait for it too

    async def _count(self) -> Totals:
        if self._under_way is not None:
            await asyncio.wait((self._under_way,))
        self._under_way, self._next = self._next, None
        self._turns.begin()
        count = self._begin()
        while not count.advance():
            await asyncio.sleep(0)
            self._turns.begin()
        self._under_way = None
        return count.totals
