"""The event log of a simulated broker: its rows as segments, for the audit.

Owns: the way from a store's event rows to a folder. Must not know: the meaning of events. The rows go through
the exporter's own columns and files; the exporter itself, which follows a store on disk, has its own tests.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from peeklock.capture.chunk import Chunk
from peeklock.capture.folder import LogFolder
from peeklock.capture.segment import SegmentWriter
from peeklock.store.encoding.event_rows import read_columns
from peeklock.store.memory import MemoryStore


def write_events(store: MemoryStore, folder: Path, namespace: str) -> None:
    """Write all events of a store as one segment; nothing if there are none.

    Args:
        folder: of this log alone; made if it is not there.
    """
    chunk = Chunk(namespace, None)
    first_at_ms: int | None = None
    for no, data in sorted(store.event_rows.items()):
        columns = read_columns(no, data)
        if columns.count:
            chunk.add(no, columns)
            if first_at_ms is None:
                first_at_ms = columns.integers["at_ms"][0]
    if first_at_ms is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    log = LogFolder(folder)
    first, last = min(store.event_rows), max(store.event_rows)
    draft = log.draft(first)
    writer = SegmentWriter(draft)
    writer.write(chunk.take())
    writer.finish()
    log.publish(draft, first, last, datetime.fromtimestamp(first_at_ms / 1000, UTC))
