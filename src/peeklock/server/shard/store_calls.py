"""The calls of one namespace to its store: the commit and the reads under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from peeklock.engine.driver import Driver
from peeklock.engine.reclaim import ReclaimRead
from peeklock.server.loop.tasks import tell_failure
from peeklock.server.shard.measures import Measures
from peeklock.store.base import Batch, Store, StoreError


class StoreCalls:
    """Calls the store, and tells the driver the results."""

    def __init__(
        self,
        driver: Driver,
        store: Store,
        now_ms: Callable[[], int],
        on_committed: Callable[[Batch, int], None],
        on_landed: Callable[[], None],
        on_read: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        measures: Measures,
    ) -> None:
        """Ask nothing of the store yet.

        Args:
            on_committed: is called with each durable batch and the time, before the driver knows.
            on_landed: is called once the driver knows of a slow commit.
            on_read: is called once the driver has what was read.
            on_failure: is called when a commit or a read fails.
            measures: what commits take.
        """
        self._driver = driver
        self._store = store
        self._now_ms = now_ms
        self._on_committed = on_committed
        self._on_landed = on_landed
        self._on_read = on_read
        self._on_failure = on_failure
        self._measures = measures
        self._reads: set[asyncio.Task[None]] = set()
        self._finishes = False
        self.between_commits = asyncio.Event()
        """Set while no batch is being committed."""
        self.between_commits.set()

    def commit(self, batch: Batch) -> int | None:
        """Commit a batch; return when, in UTC ms, if it is durable already."""
        self._measures.committing()
        # A callback, not a task that awaits: two turns of the loop less in the latency of each send.
        committing = self._store.commit(batch)
        if not isinstance(committing, asyncio.Future):
            committing = asyncio.ensure_future(committing)
        if committing.done():
            return self._ended(batch, committing)
        self.between_commits.clear()
        committing.add_done_callback(partial(self._landed, batch))
        return None

    def _landed(self, batch: Batch, committing: asyncio.Future[int]) -> None:
        self.between_commits.set()
        if self._ended(batch, committing) is not None:
            self._on_landed()

    def _ended(self, batch: Batch, committing: asyncio.Future[int]) -> int | None:
        """Tell the driver of a commit; return its time, in UTC ms; None = it failed."""
        try:
            size_bytes = committing.result()
            now_ms = self._now_ms()
            self._measures.committed(size_bytes)
            self._on_committed(batch, now_ms)
            self._driver.committed(batch.no, size_bytes, now_ms)
        except BaseException as failure:  # also cancellation: the fate of the batch is unknown
            self._on_failure(failure)
            return None
        return now_ms

    @property
    def reads(self) -> bool:
        """Whether a read is under way."""
        return bool(self._reads)

    def read_rows(self, rows: list[int]) -> None:
        """Read body rows."""
        self._spawn(self._read_rows(rows))

    def reclaim(self, wanted: ReclaimRead) -> None:
        """Read what can be reclaimed."""
        self._spawn(self._reclaim(wanted))

    async def wait_for_read(self) -> None:
        """Wait until one of the reads under way is done."""
        await asyncio.wait(set(self._reads), return_when=asyncio.FIRST_COMPLETED)

    async def finish_reads(self) -> None:
        """Wait for the reads under way, before the store is closed; no action follows from them."""
        self._finishes = True
        while self._reads:
            await self.wait_for_read()

    async def _read_rows(self, rows: list[int]) -> None:
        self._driver.rows_read(await self._store.read_body_rows(rows), self._now_ms())

    async def _reclaim(self, wanted: ReclaimRead) -> None:
        self._driver.reclaimed(await wanted.read_from(self._store), self._now_ms())

    def _spawn(self, reading: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._finish(reading))
        self._reads.add(task)
        task.add_done_callback(self._reads.discard)
        task.add_done_callback(tell_failure)

    async def _finish(self, reading: Coroutine[Any, Any, None]) -> None:
        try:
            await reading
        except StoreError as failure:
            self._on_failure(failure)
            return
        if not self._finishes:
            self._on_read()
