"""Files that the broker follows while it runs: looked at every second, and all at once on SIGHUP.

What a file says takes effect as a whole or not at all: one that is broken, or half written, changes nothing,
and the log says what is wrong where. Each part knows its own files; this module knows none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from peeklock.server import log
from peeklock.server.follow import Look, Outcome

LOOK_S = 1.0
"""Between two looks. A changed file is read when it has stayed the same for one of these."""


class Reload:
    """The parts that follow files."""

    def __init__(
        self,
        parts: Mapping[str, Look],
        *,
        begin: Callable[[], None] = lambda: None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        """Look at nothing yet; `begin` and `end` are called around a reload that was asked for."""
        self._parts = parts
        self._begin = begin
        self._end = end
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Look at everything now (SIGHUP)."""
        self._asked.set()

    async def run(self) -> None:
        """Look for as long as the broker runs."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), LOOK_S)
            if self._asked.is_set():
                self._asked.clear()
                await self._reload()
            else:
                for look in self._parts.values():
                    await look(False)

    async def _reload(self) -> None:
        self._begin()
        try:
            found = {name: (await look(True)).value for name, look in self._parts.items()}
        finally:
            self._end()
        if Outcome.REFUSED in found.values():
            log.warning("reloaded, but for what is refused: that stays as it was", found)
        else:
            log.info("reloaded", found)
