"""The seam between the engine and durable storage.

Owns: the `Store` protocol and its values. Must not know: what the facts mean beyond their vocabulary. A store has no
rules: it keeps batches, whole or not at all, in order, and gives them back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from peeklock.broker.changes import Change, EntityStored


class StoreError(Exception):
    """The world failed: the message says what happened, to which file, and what to do."""


class StoreFailed(StoreError):
    """A write or fsync failed: memory is ahead of the disk, the process must stop and recover from facts."""


class StoreDamaged(StoreError):
    """A checksum, a gap in batch numbers or a missing body: never silently passed over."""


class StoreInUse(StoreError):
    """Another process holds the folder; the message names its pid and start time."""


class StoreTooNew(StoreError):
    """The store was written by a newer release; the message names both formats."""


@dataclass(slots=True)
class Batch:
    """All facts of one commit."""

    no: int
    """Grows by 1 per commit, without gaps."""
    changes: list[Change]
    body_rows: dict[int, list[bytes]] = field(default_factory=dict)
    """New body rows: row number -> payloads by slot; each row at most ~256 KiB unless one payload is larger."""
    dropped_rows: list[int] = field(default_factory=list)
    """Body rows in which nothing lives any more."""
    truncate_before: int = 0
    """Frames with a lower number may be forgotten: all that still holds in them was re-emitted."""


@dataclass(slots=True)
class Frame:
    """One batch as read back from the journal."""

    no: int
    changes: list[Change]
    size_bytes: int


class Store(Protocol):
    """Durable facts of one namespace. One writer; `commit` returns only when the batch is on stable storage."""

    async def open(self) -> None:
        """Take the folder and make it usable. Raises: StoreInUse, StoreTooNew, StoreDamaged, StoreFailed."""

    async def load_entities(self) -> tuple[list[EntityStored], int]:
        """Give all entity definitions and the next free entity id."""

    def load(self) -> AsyncIterator[Frame]:
        """Give every frame in order, oldest first. Raises: StoreDamaged."""

    async def commit(self, batch: Batch) -> int:
        """Make a batch durable; answer the size of its frame in bytes. Raises: StoreFailed."""

    async def read_body_rows(self, rows: Sequence[int]) -> dict[int, list[bytes]]:
        """Give the payloads of body rows, by slot. Raises: StoreDamaged."""

    async def read_head(self, bytes_max: int) -> list[Frame]:
        """Give the oldest frames, at least one if there is one, up to about `bytes_max`. Raises: StoreDamaged."""

    async def free_bytes(self) -> int | None:
        """Give the free space of the volume, None where there is no such limit."""

    async def close(self) -> None:
        """Finish with a truncating checkpoint and let the folder go."""
