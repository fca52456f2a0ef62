"""What is being read from the store of one namespace.

Owns: a task for each read. Must not know: why something is read, who waits for it (see `engine.driver`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from peeklock.engine.driver import Driver
from peeklock.engine.reclaim import ReclaimRead
from peeklock.server.tasks import tell_failure
from peeklock.store.base import Store, StoreError


class StoreReads:
    """See the module."""

    def __init__(
        self,
        driver: Driver,
        store: Store,
        now_ms: Callable[[], int],
        *,
        on_read: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Read nothing yet. `on_read` is called when the driver has been given what was read."""
        self._driver = driver
        self._store = store
        self._now_ms = now_ms
        self._on_read = on_read
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Return how many are under way."""
        return len(self._tasks)

    def read_rows(self, rows: list[int]) -> None:
        """Read body rows."""
        self._spawn(self._read_rows(rows))

    def reclaim(self, wanted: ReclaimRead) -> None:
        """Read what wins space."""
        self._spawn(self._reclaim(wanted))

    async def wait_for_one(self) -> None:
        """Wait until one of those under way is done."""
        await asyncio.wait(set(self._tasks), return_when=asyncio.FIRST_COMPLETED)

    async def _read_rows(self, rows: list[int]) -> None:
        self._driver.rows_read(await self._store.read_body_rows(rows), self._now_ms())

    async def _reclaim(self, wanted: ReclaimRead) -> None:
        self._driver.reclaimed(await wanted.read_from(self._store), self._now_ms())

    def _spawn(self, reading: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._finish(reading))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(tell_failure)

    async def _finish(self, reading: Coroutine[Any, Any, None]) -> None:
        try:
            await reading
        except StoreError as failure:
            self._on_failure(failure)
        else:
            self._on_read()
