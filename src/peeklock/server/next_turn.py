"""A function that is called in the next turn of the event loop, however often it is asked for in this one.

Owns: whether the call is planned. Must not know: what the function does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class NextTurn:
    """See the module."""

    def __init__(self, call: Callable[[], None]) -> None:
        """Plan nothing yet."""
        self._loop = asyncio.get_running_loop()
        self._call = call
        self.planned = False
        """Whether the call is to come. Set while its work is done already."""

    def plan(self) -> None:
        """Call in the next turn."""
        if not self.planned:
            self.planned = True
            self._loop.call_soon(self._come)

    def now(self) -> None:
        """Call now, unless the call is to come."""
        if not self.planned:
            self._call()

    def _come(self) -> None:
        self.planned = False
        self._call()
