"""A batch as blobs: what a store of a database writes in one transaction.

A batch is packed when it closes, since records change with the next command.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from peeklock.store.base import Batch
from peeklock.store.encoding import body_rows, definitions, event_rows, frames


@dataclass(slots=True)
class PackedBatch:
    """The blobs of a batch, and what it drops."""

    no: int
    meta: bytes
    """The frame."""
    checksum: int
    """Of the frame."""
    bodies: list[tuple[int, bytes]]
    dropped: list[tuple[int, int]]
    """First and last row of each range."""
    truncate_before: int
    entries: definitions.Entries | None
    """Its changes of definitions."""
    events: bytes | None
    """The result of `event_rows.pack`."""
    exported_to: int
    written_bytes: int
    """Of frame, body rows and events."""


def pack(batch: Batch, last_checksum: int, next_entity_id: int) -> PackedBatch:
    """Pack a batch.

    Args:
        batch: as it is closed.
        last_checksum: of the frame before.
        next_entity_id: as before the batch.
    """
    no = batch.no
    meta = frames.encode(batch, last_checksum)
    written_bytes = len(meta)
    bodies = []
    for row, payloads in batch.body_rows.items():
        data = body_rows.pack(row, payloads)
        bodies.append((row, data))
        written_bytes += len(data)
    events = None
    if batch.events is not None:
        events = event_rows.pack(batch.events)
        written_bytes += len(events)
    return PackedBatch(
        no,
        meta,
        frames.checksum_of(meta),
        bodies,
        _ranges(batch.dropped_rows) if batch.dropped_rows else [],
        batch.truncate_before,
        definitions.entries_of(batch.changes, next_entity_id),
        events,
        batch.events_exported_to,
        written_bytes,
    )


def _ranges(rows: Iterable[int]) -> list[tuple[int, int]]:
    """Join neighbours: rows are mostly dropped in the order of their writing."""
    ranges: list[tuple[int, int]] = []
    for row in sorted(rows):
        if ranges and ranges[-1][1] == row - 1:
            ranges[-1] = (ranges[-1][0], row)
        else:
            ranges.append((row, row))
    return ranges
