"""Writes the event log: from the store's event rows to segments in a folder.

Owns: the order in which a row becomes durable elsewhere before the broker forgets it, when a segment ends,
what is said of rows that are missing. Must not know: columns, the store's tables, who started it.

Theory of operation. Batches are numbered without gaps, and a segment's name says which it holds; the folder's
highest number is where the exporter goes on. A segment has its name only when it is durable, and only then is
the broker told that it may forget the rows. So whichever of the two dies, and whenever: a row is in the log,
or still in the store, and in the log once.

    rows of the store -> chunk (a row group) -> segment, under a temporary name -> its name -> "exported N"
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event as Flag
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from peeklock.broker.vocabulary.descriptions import QueueDescription, TopicDescription
from peeklock.broker.vocabulary.events import EventType
from peeklock.capture.chunk import Chunk, gap_row
from peeklock.capture.folder import LogFolder, LogRefused, Segment
from peeklock.capture.segment import SegmentWriter
from peeklock.store.base import StoreDamaged
from peeklock.store.encoding.event_rows import Columns, read_columns
from peeklock.store.sqlite.event_reader import EventReader

CHUNK_EVENTS = 65_536
CHUNK_BYTES = 16 * 1024 * 1024
"""A row group has about so many events, or bytes of messages: what the exporter keeps in memory."""

READ_BYTES = 1024 * 1024
"""So much is read from the store in one transaction; packed, so it is some 30,000 events."""

RETAIN_S = 60.0
"""How often to look for segments that are too old, while none is written."""

POLL_S = 0.5
"""How often to look for new rows. What is found at once is cheaper to write than in pieces."""

HOUR_MS = 3_600_000

NOT_CAPTURED = "capture was off"
GIVEN_UP = "given up: more waited to be exported than --capture-backlog allows"


class Listener(Protocol):
    """Who is told how it goes."""

    def exported(self, no: int) -> None:
        """All up to this batch is in the log."""

    def note(self, level: str, event: str, **fields: object) -> None:
        """Something that an operator may want to read."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What an exporter is asked for."""

    data: Path
    to: Path
    namespace: str
    interval_s: float = 10.0
    """A segment ends so long after its first event was read."""
    segment_events: int = 500_000
    segment_bytes: int = 128 * 1024 * 1024
    keep_days: float | None = None
    keep_bytes: int | None = None


class Exporter:
    """Exports the events of one store to one folder."""

    def __init__(self, options: ExportOptions, listener: Listener) -> None:
        """Nothing is touched before `run`."""
        self._options = options
        self._listener = listener
        self._folder = LogFolder(options.to)
        self._reader: EventReader | None = None
        self._read_to = 0
        self._writer: SegmentWriter | None = None
        self._first_no = 1  # of the segment
        self._events = 0  # in it
        self._hour = 0  # of its first event
        self._ends_at = 0.0  # monotonic
        self._retain_at = 0.0  # monotonic

    def run(self, ending: Flag) -> None:
        """Export until `ending` is set, and then what is there at that moment.

        Raises: LogRefused, StoreError; OSError when the folder cannot be written to.
        """
        try:
            self._folder.take(self._options.data, self._note_wait)
            reader = self._begin()
            while not ending.is_set():
                if not self._read(reader):
                    ending.wait(min(POLL_S, self._options.interval_s / 2))
                self._end_segment_when_old()
                self._retain_when_time()
            last_no = reader.last_no()  # more may come from a broker that started meanwhile
            while self._read_to < last_no and self._read(reader):
                pass
            self._end_segment()
            self._retain_when_time()
        finally:
            if self._writer is not None:
                self._writer.abandon()
            if self._reader is not None:
                self._reader.close()
            self._folder.release()

    def _note_wait(self) -> None:
        self._listener.note(
            "info", "another exporter still writes to the event log; waiting for its end", folder=self._to
        )

    @property
    def _to(self) -> str:
        return str(self._options.to)

    def _begin(self) -> EventReader:
        reader = self._reader = EventReader(self._options.data)
        last_no = self._folder.last_no
        last_batch_no = reader.last_batch_no()
        if last_no > last_batch_no:
            raise LogRefused(
                f"{self._to} holds batches up to {last_no}, the store {self._options.data} only up to "
                f"{last_batch_no}: the store was set back. Name an empty folder with --capture"
            )
        epoch = self._last_epoch()
        self._compare_epochs(reader, epoch)
        self._read_to = last_no
        self._first_no = last_no + 1
        partitioned = [
            entity.description.name
            for entity in reader.entities()
            if isinstance(entity.description, (QueueDescription, TopicDescription))
            and entity.description.enable_partitioning
        ]
        self._chunk = Chunk(self._options.namespace, epoch, partitioned)
        self._listener.exported(last_no)
        return reader

    def _compare_epochs(self, reader: EventReader, epoch: int | None) -> None:
        """Find out whether what the store still has of the log's batches is what the log has: a store that
        was set back may have gone on since, under the same numbers. Raises: LogRefused."""
        last_no = self._folder.last_no
        found = None
        after = 0
        while after < last_no and (rows := reader.read(after, READ_BYTES)):
            for no, data in rows:
                if no <= last_no and _begins_epoch(no, data):
                    found = no
            after = rows[-1][0]
        if epoch is not None and found is not None and found != epoch:
            raise LogRefused(
                f"{self._to} holds batches up to {last_no}, and batch {found} of the store "
                f"{self._options.data}, with which its broker started, is another one there: the store was "
                "set back. Name an empty folder with --capture"
            )

    def _last_epoch(self) -> int | None:
        if not self._folder.segments:
            return None
        path = self._folder.segments[-1].path
        try:
            with pq.ParquetFile(path) as file:
                epochs = file.read_row_group(file.num_row_groups - 1, columns=["broker_epoch"])[
                    "broker_epoch"
                ]
        except (pa.ArrowException, OSError) as error:
            self._listener.note(
                "warning",
                "the newest segment cannot be read: no broker_epoch until the broker starts again",
                segment=str(path),
                reason=str(error),
            )
            return None
        epoch: int | None = epochs[len(epochs) - 1].as_py()
        return epoch

    # Rows

    def _read(self, reader: EventReader) -> bool:
        """Take rows of the store; answer whether there were any."""
        rows = reader.read(self._read_to, READ_BYTES)
        for no, data in rows:
            columns = self._unpacked(no, data)
            if no > self._read_to + 1:
                self._add_gap(self._read_to + 1, no - 1, columns)
            self._add(no, no, columns)
        return bool(rows)

    def _unpacked(self, no: int, data: bytes) -> Columns:
        try:
            columns = read_columns(no, data)
            self._chunk.check(no, columns)
        except StoreDamaged as damage:
            self._listener.note(
                "error",
                "an event row is damaged; the event log has a gap there",
                batch=no,
                reason=str(damage),
            )
            return read_columns(no, gap_row(no, no, f"damaged: {damage}", _now_ms()))
        return columns

    def _add_gap(self, first: int, last: int, follows: Columns) -> None:
        """Say that batches are missing before one that is there."""
        kinds = bytes(follows.integers["type"])
        reason = NOT_CAPTURED if EventType.EPOCH_STARTED in kinds else GIVEN_UP
        at_ms = follows.integers["at_ms"][0] if follows.count else _now_ms()
        self._listener.note(
            "warning", "batches are missing from the event log", first=first, last=last, reason=reason
        )
        self._add(first, last, read_columns(first, gap_row(first, last, reason, at_ms)))

    def _add(self, no: int, last_no: int, columns: Columns) -> None:
        """Add events under batch `no`, which stand for all batches up to `last_no`."""
        if columns.count:
            hour = columns.integers["at_ms"][0] // HOUR_MS
            if self._events and hour != self._hour:
                self._end_segment()
            if not self._events:
                self._hour = hour
                self._ends_at = time.monotonic() + self._options.interval_s
            self._events += columns.count
            self._chunk.add(no, columns)
        self._read_to = last_no
        if self._chunk.count >= CHUNK_EVENTS or self._chunk.size_bytes >= CHUNK_BYTES:
            self._write_chunk()
        if self._events >= self._options.segment_events:
            self._end_segment()

    # Segments

    def _write_chunk(self) -> None:
        if self._writer is None:
            self._writer = SegmentWriter(self._folder.draft(self._first_no))
        self._writer.write(self._chunk.take())
        if self._writer.size_bytes >= self._options.segment_bytes:
            self._end_segment()

    def _end_segment_when_old(self) -> None:
        if self._events and time.monotonic() >= self._ends_at:
            self._end_segment()

    def _end_segment(self) -> None:
        """Return what was read its name, and tell that it is exported. Batches without events alone are not
        worth a file."""
        if not self._events:
            return
        self._events = 0  # first: the last chunk may fill the segment
        if self._chunk.count:
            self._write_chunk()
        writer, self._writer = self._writer, None
        assert writer is not None
        draft = self._folder.draft(self._first_no)
        try:
            writer.finish()
            hour = datetime.fromtimestamp(self._hour * HOUR_MS / 1000, UTC)
            self._folder.publish(draft, self._first_no, self._read_to, hour)
        except OSError:
            writer.abandon()
            raise
        self._first_no = self._read_to + 1
        self._listener.exported(self._read_to)
        self._retain()

    def _retain_when_time(self) -> None:
        if time.monotonic() >= self._retain_at:
            self._retain()

    def _retain(self) -> None:
        self._retain_at = time.monotonic() + RETAIN_S
        removed = self._folder.retain(self._options.keep_days, self._options.keep_bytes)
        if removed:
            self._note_removed(removed)

    def _note_removed(self, removed: list[Segment]) -> None:
        self._listener.note(
            "info",
            "old segments of the event log were removed",
            count=len(removed),
            size_bytes=sum(segment.size_bytes for segment in removed),
            first_kept=self._folder.segments[0].first_no,
        )


def _begins_epoch(no: int, data: bytes) -> bool:
    try:
        return EventType.EPOCH_STARTED in bytes(read_columns(no, data).integers["type"])
    except StoreDamaged:
        return False


def _now_ms() -> int:
    return round(time.time() * 1000)
