"""Stores with events, made without a broker, and logs read back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from peeklock.broker.vocabulary.events import Event, EventType
from peeklock.capture.exporter import Exporter, ExportOptions
from peeklock.capture.schema import EVENTS
from peeklock.capture.source import FolderSource
from peeklock.store.base import Batch
from peeklock.store.encoding.event_rows import INTEGERS
from peeklock.store.sqlite.store import SqliteStore

BLANK = Event._make(0 if name in INTEGERS else None for name in Event._fields)

AT_MS = 1_790_000_000_000
"""2026-09-21 14:13:20 UTC."""

EPOCH = BLANK._replace(type=EventType.EPOCH_STARTED, at_ms=AT_MS)

PROPERTIES = b"\x00\x53\x73\xc0\x06\x01\xa1\x03abc"


def enqueued(number: int, **fields: Any) -> Event:
    """Make the event of a message that arrived in the queue `work`."""
    event = BLANK._replace(
        type=EventType.ENQUEUED,
        at_ms=AT_MS,
        queue_id=4,
        queue_name="work",
        sequence_number=number,
        enqueued_sequence_number=number,
        size_bytes=100,
        enqueued_at_ms=AT_MS,
    )
    return event._replace(**fields)


def write_store(folder: Path, *batches: Sequence[Event] | None, exported_to: int = 0) -> None:
    """Commit batches with these events, None = capture is off, behind those that are there."""

    async def write() -> None:
        store = SqliteStore(folder)
        await store.open()
        no = (await store.load_live()).first_no + len((await store.load_live()).frame_sizes)
        for events in batches:
            await store.commit(Batch(no, [], events=None if events is None else list(events)))
            no += 1
        if exported_to:
            await store.commit(Batch(no, [], events=[], events_exported_to=exported_to))
        await store.close()

    asyncio.run(write())


class Told:
    """Takes down what an exporter tells."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.notes: list[tuple[str, str, dict[str, object]]] = []

    def exported(self, no: int) -> None:
        self.numbers.append(no)

    def note(self, level: str, event: str, **fields: object) -> None:
        self.notes.append((level, event, fields))


def export(data: Path, to: Path, **options: Any) -> Told:
    """Export all that is there, as after the end of a broker."""
    told = Told()
    exporter = Exporter(ExportOptions(FolderSource(data), to, "here", **options), told)
    exporter.finish()
    try:
        while (due_s := exporter.step(time.monotonic())) is not None:
            time.sleep(max(0.0, due_s - time.monotonic()))
    finally:
        exporter.close()
    return told


def segments(log: Path) -> list[str]:
    """Return the paths of all segments, within the log, by number."""
    found = log.glob("event_date=*/event_hour=*/*")
    return [str(path.relative_to(log)) for path in sorted(found, key=lambda path: path.name)]


def rows(log: Path) -> list[dict[str, Any]]:
    """Return all rows of a log, in order, with what is not null."""
    tables = [pq.ParquetFile(log / path).read() for path in segments(log)]
    assert all(table.schema.equals(EVENTS) for table in tables)
    found = pa.concat_tables(tables).to_pylist() if tables else []
    return [{name: value for name, value in row.items() if value is not None} for row in found]
