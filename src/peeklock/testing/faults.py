"""A store whose commits fail on demand, around any real one.

A failed commit leaves the batch wholly stored or wholly absent, as a process that dies in it: the fault says
which.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import Enum

from peeklock.store.base import (
    Batch,
    Definitions,
    Frame,
    FrameKeys,
    LiveFacts,
    Store,
    StoreError,
    StoreFailed,
    StoreReader,
)
from peeklock.store.event_backlog import EventBacklog


class Fault(Enum):
    """How a commit goes wrong."""

    BEFORE = "nothing of the batch is stored"
    AFTER = "the batch is stored, but the caller gets an error"


class FaultyStore:
    """Passes all calls to `inner`, except commits that `fault` picks and the free space of `free`."""

    def __init__(
        self,
        inner: Store,
        *,
        fault: Callable[[Batch], Fault | None] = lambda batch: None,
        free: int | None = None,
    ) -> None:
        """Wrap a store.

        Args:
            inner: the real store.
            fault: called before each commit; None = commit.
            free: free bytes of the volume, instead of the inner store's; may be set later.
        """
        self._inner = inner
        self.fault = fault
        self.free = free

    async def open(self) -> None:
        await self._inner.open()

    async def load_definitions(self) -> Definitions:
        return await self._inner.load_definitions()

    def load(self) -> AsyncIterator[Frame]:
        return self._inner.load()

    async def load_live(self) -> LiveFacts:
        return await self._inner.load_live()

    def commit(self, batch: Batch) -> Awaitable[int]:
        """Commit, unless `fault` picks the batch. Raises (from the awaitable): StoreFailed."""
        fault = self.fault(batch)
        return _outcome(batch.no, None if fault is Fault.BEFORE else self._inner.commit(batch), fault)

    async def read_body_rows(self, rows: Sequence[int]) -> dict[int, Sequence[bytes]]:
        return await self._inner.read_body_rows(rows)

    async def list_body_rows(self, after: int, count_max: int) -> list[tuple[int, int]]:
        return await self._inner.list_body_rows(after, count_max)

    async def last_body_row(self) -> int:
        return await self._inner.last_body_row()

    async def read_head(self, bytes_max: int) -> list[FrameKeys]:
        return await self._inner.read_head(bytes_max)

    @property
    def created_at_ms(self) -> int:
        return self._inner.created_at_ms

    @property
    def event_backlog(self) -> EventBacklog:
        return self._inner.event_backlog

    def free_bytes(self) -> int | None:
        """Return `free` if it is set, else the inner store's free space."""
        return self.free if self.free is not None else self._inner.free_bytes()

    def valid_until_s(self) -> float:
        return self._inner.valid_until_s()

    def failure(self) -> StoreError | None:
        return self._inner.failure()

    def reader(self) -> StoreReader:
        return self._inner.reader()

    async def close(self) -> None:
        await self._inner.close()


async def _outcome(no: int, commit: Awaitable[int] | None, fault: Fault | None) -> int:
    size_bytes = 0 if commit is None else await commit
    if fault is not None:
        raise StoreFailed(f"commit {no} failed by plan: {fault.value}")
    return size_bytes
