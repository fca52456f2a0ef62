"""The one transaction that writes a batch, and whether it is quick.

The statements are few, since sqlite3 takes the interpreter's lock for each.
"""

from __future__ import annotations

import sqlite3

from peeklock.store.base import Batch
from peeklock.store.encoding.packed import PackedBatch
from peeklock.store.sqlite import pace

EVENT_WEIGHT = 7
"""Compressing a byte of events, at some 60 MB/s, takes as long as writing eight bytes of a body."""


def is_small(batch: Batch, packed: PackedBatch) -> bool:
    """Return whether a batch is quick: it writes little (see `pace`), changes no definitions and deletes no
    frames or event rows."""
    if packed.entries is not None or packed.truncate_before or packed.exported_to:
        return False
    work_bytes = packed.written_bytes + EVENT_WEIGHT * len(packed.events or b"")
    return pace.is_small(len(batch.changes), work_bytes, len(batch.dropped_rows), batch.dropped_bytes)


def write(db: sqlite3.Connection, packed: PackedBatch, event_row: bytes | None, *, small: bool) -> None:
    """Write a batch in one transaction; `small`: see `is_small`. Raises: sqlite3.Error."""
    if small and not packed.bodies and not packed.dropped and event_row is None:
        db.execute("INSERT INTO journal VALUES (?, ?)", (packed.no, packed.meta))  # a transaction by itself
        return
    db.execute("BEGIN IMMEDIATE")
    for body in packed.bodies:
        db.execute("INSERT INTO body VALUES (?, ?)", body)
    db.execute("INSERT INTO journal VALUES (?, ?)", (packed.no, packed.meta))
    if packed.dropped:
        db.executemany("DELETE FROM body WHERE no BETWEEN ? AND ?", packed.dropped)
    if packed.truncate_before:
        db.execute("DELETE FROM journal WHERE no < ?", (packed.truncate_before,))
    if packed.entries is not None:
        db.executemany("REPLACE INTO kv VALUES (?, ?, ?)", packed.entries.written)
        db.executemany("DELETE FROM kv WHERE k BETWEEN ? AND ?", packed.entries.deleted)
    if event_row is not None:
        db.execute("INSERT INTO event VALUES (?, ?)", (packed.no, event_row))
    if packed.exported_to:
        db.execute("DELETE FROM event WHERE no <= ?", (packed.exported_to,))
    db.execute("COMMIT")
