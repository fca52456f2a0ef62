"""A batch as BLOBs, and the one transaction that writes it.

A batch is packed when it closes, since records change with the next command. The statements are few, since
sqlite3 takes the interpreter's lock for each.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from peeklock.store.base import Batch
from peeklock.store.encoding import body_rows, definitions, event_rows, frames
from peeklock.store.sqlite import pace

EVENT_WEIGHT = 7
"""Compressing a byte of events, at some 60 MB/s, takes as long as writing eight bytes of a body."""


@dataclass(slots=True)
class PackedBatch:
    """The BLOBs of a batch, and how it is written."""

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
    is_small: bool
    """Whether it is quick: it writes little (see `pace`), changes no definitions and deletes no frames or
    event rows."""

    def write(self, db: sqlite3.Connection, event_row: bytes | None) -> None:
        """Write the batch in one transaction. Raises: sqlite3.Error."""
        if self.is_small and not self.bodies and not self.dropped and event_row is None:
            db.execute("INSERT INTO journal VALUES (?, ?)", (self.no, self.meta))  # a transaction by itself
            return
        db.execute("BEGIN IMMEDIATE")
        for body in self.bodies:
            db.execute("INSERT INTO body VALUES (?, ?)", body)
        db.execute("INSERT INTO journal VALUES (?, ?)", (self.no, self.meta))
        if self.dropped:
            db.executemany("DELETE FROM body WHERE no BETWEEN ? AND ?", self.dropped)
        if self.truncate_before:
            db.execute("DELETE FROM journal WHERE no < ?", (self.truncate_before,))
        if self.entries is not None:
            db.executemany("REPLACE INTO kv VALUES (?, ?, ?)", self.entries.written)
            db.executemany("DELETE FROM kv WHERE k BETWEEN ? AND ?", self.entries.deleted)
        if event_row is not None:
            db.execute("INSERT INTO event VALUES (?, ?)", (self.no, event_row))
        if self.exported_to:
            db.execute("DELETE FROM event WHERE no <= ?", (self.exported_to,))
        db.execute("COMMIT")


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
    work_bytes = written_bytes
    if batch.events is not None:
        events = event_rows.pack(batch.events)
        written_bytes += len(events)
        work_bytes += (1 + EVENT_WEIGHT) * len(events)
    entries = definitions.entries_of(batch.changes, next_entity_id)
    is_plain = entries is None and not batch.truncate_before and not batch.events_exported_to
    return PackedBatch(
        no,
        meta,
        frames.checksum_of(meta),
        bodies,
        _ranges(batch.dropped_rows) if batch.dropped_rows else [],
        batch.truncate_before,
        entries,
        events,
        batch.events_exported_to,
        written_bytes,
        is_plain
        and pace.is_small(len(batch.changes), work_bytes, len(batch.dropped_rows), batch.dropped_bytes),
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
