"""A function that is called in the next turn of the event loop, or at the end of this one, once for all who
ask for it.

Owns: whether the call is planned. Must not know: what the function does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peeklock.server.loop.turns import Turns


class NextTurn:
    """See the module."""

    def __init__(self, call: Callable[[], None], turns: Turns) -> None:
        """Plan nothing yet."""
        self._loop = asyncio.get_running_loop()
        self._call = call
        self._turns = turns
        self._ends_turn = False
        self.planned = False
        """Whether the call is to come. Set while its work is done already."""

    def plan(self) -> None:
        """Call in the next turn."""
        if not self.planned:
            self.planned = True
            self._loop.call_soon(self._come)

    def plan_at_end(self) -> None:
        """Call at the end of this turn, unless the call is to come."""
        if not (self.planned or self._ends_turn):
            self._ends_turn = True
            self._turns.at_end(self._end)

    def now(self) -> None:
        """Call now, unless the call is to come."""
        if not self.planned:
            self._call()

    def _end(self) -> None:
        self._ends_turn = False
        if not self.planned:
            self._call()

    def _come(self) -> None:
        self.planned = False
        self._call()
