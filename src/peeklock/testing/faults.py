"""A store that fails on demand, around any real one.

Owns: when a call of the store fails, and how much of it took place before. Must not know: why, or what the
facts mean. A failed commit leaves the batch wholly stored or wholly absent, as a process that dies in it
would: which of the two is part of the fault.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import Enum

from peeklock.store.base import Batch, Definitions, Frame, FrameKeys, LiveFacts, Store, StoreFailed
from peeklock.store.event_backlog import EventBacklog


class Fault(Enum):
    """How a commit goes wrong."""

    BEFORE = "nothing of the batch is stored"
    AFTER = "the batch is stored, but the caller is told that it failed"


class FaultyStore:
    """Pass everything to `inner`, except commits that `fault` picks and a free space that `free` sets."""

    def __init__(
        self,
        inner: Store,
        *,
        fault: Callable[[Batch], Fault | None] = lambda batch: None,
        free: int | None = None,
    ) -> None:
        """Wrap a store.

        Args:
            inner: keeps the facts.
            fault: asked before each commit; None lets it pass.
            free: answered as the free bytes of the volume instead of the inner store's figure; settable
            later.
        """
        self._inner = inner
        self.fault = fault
        self.free = free

    async def open(self) -> None:
        """Open the inner store."""
        await self._inner.open()

    async def load_definitions(self) -> Definitions:
        """Return the inner store's entities and rules."""
        return await self._inner.load_definitions()

    def load(self) -> AsyncIterator[Frame]:
        """Return the inner store's frames."""
        return self._inner.load()

    async def load_live(self) -> LiveFacts:
        """Return what still holds in the inner store."""
        return await self._inner.load_live()

    def commit(self, batch: Batch) -> Awaitable[int]:
        """Commit, unless this batch is to fail. Raises (from the awaitable): StoreFailed."""
        fault = self.fault(batch)
        return _outcome(batch.no, None if fault is Fault.BEFORE else self._inner.commit(batch), fault)

    async def read_body_rows(self, rows: Sequence[int]) -> dict[int, list[bytes]]:
        """Return the inner store's payloads."""
        return await self._inner.read_body_rows(rows)

    async def list_body_rows(self, after: int, count_max: int) -> list[tuple[int, int]]:
        """Return the inner store's rows and their sizes."""
        return await self._inner.list_body_rows(after, count_max)

    async def last_body_row(self) -> int:
        """Return the inner store's highest row."""
        return await self._inner.last_body_row()

    async def read_head(self, bytes_max: int) -> list[FrameKeys]:
        """Return the keys of the inner store's oldest frames."""
        return await self._inner.read_head(bytes_max)

    @property
    def created_at_ms(self) -> int:
        """Return that of the inner store."""
        return self._inner.created_at_ms

    @property
    def event_backlog(self) -> EventBacklog:
        """Return that of the inner store."""
        return self._inner.event_backlog

    def free_bytes(self) -> int | None:
        """Return the free space as set here, else the inner store's."""
        return self.free if self.free is not None else self._inner.free_bytes()

    async def close(self) -> None:
        """Close the inner store."""
        await self._inner.close()


async def _outcome(no: int, commit: Awaitable[int] | None, fault: Fault | None) -> int:
    size_bytes = 0 if commit is None else await commit
    if fault is not None:
        raise StoreFailed(f"commit {no} failed by plan: {fault.value}")
    return size_bytes
