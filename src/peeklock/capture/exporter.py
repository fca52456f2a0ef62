"""Writes the event log: from the store's event rows to segments in a folder.

Batches are numbered without gaps, and the name of a segment has its numbers; the exporter continues after the
folder's highest number. A segment gets its name only when it is durable, and only then the broker learns that
it may delete the rows. So whenever the broker or the exporter dies, each row is in the log once, or still in
the store.

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
from peeklock.capture.folder import LogFolder, LogRefused
from peeklock.capture.segment import SegmentWriter
from peeklock.store.base import StoreDamaged
from peeklock.store.encoding.event_rows import Columns, read_columns
from peeklock.store.sqlite.event_reader import EventReader

CHUNK_EVENTS = 65_536
CHUNK_BYTES = 16 * 1024 * 1024
"""Events of a row group, or bytes of their messages: the exporter keeps so much in memory."""

READ_BYTES = 1024 * 1024
"""Read from the store in one transaction: some 30,000 packed events."""

RETAIN_S = 60.0
"""How often old segments are removed while none is written."""

POLL_S = 0.5
"""How often new rows are read. Rows read together are cheaper to write."""

HOUR_MS = 3_600_000

NOT_CAPTURED = "capture was off"
GIVEN_UP = "given up: more waited to be exported than --capture-backlog allows"


class Listener(Protocol):
    """Receives reports of the exporter."""

    def exported(self, no: int) -> None:
        """Take the number of the last batch in the log."""

    def note(self, level: str, event: str, **fields: object) -> None:
        """Write a log line."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The settings of an exporter."""

    data: Path
    to: Path
    namespace: str
    interval_s: float = 10.0
    """Seconds from reading the first event of a segment to its end."""
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
        """Export until `ending` is set, and then the rows that are in the store.

        Raises: LogRefused, StoreError; OSError if the folder cannot be written.
        """
        try:
            self._folder.take(self._options.data, self._note_wait)
            reader = self._begin()
            while not ending.is_set():
                if not self._read(reader):
                    ending.wait(min(POLL_S, self._options.interval_s / 2))
                self._end_segment_when_old()
                self._retain_when_time()
            last_no = reader.last_no()  # a broker that started meanwhile may add more
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
            "info", "another exporter still writes to the event log; waiting for it to end", folder=self._to
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
                f"{last_batch_no}: the store is an older copy. Give --capture an empty folder"
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
        """Check that the store has the batches of the log, by their epochs. Raises: LogRefused.

        A store that was restored from an older copy issues the same numbers again.
        """
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
                f"{self._to} holds batches up to {last_no}: the last start of a broker is batch {epoch}, "
                f"but batch {found} in the store {self._options.data}, which is an older copy. Give "
                "--capture an empty folder"
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
        """Read rows of the store; return whether there were any."""
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
        """Record a gap before a batch."""
        kinds = bytes(follows.integers["type"])
        reason = NOT_CAPTURED if EventType.EPOCH_STARTED in kinds else GIVEN_UP
        at_ms = follows.integers["at_ms"][0] if follows.count else _now_ms()
        self._listener.note(
            "warning", "batches are missing from the event log", first=first, last=last, reason=reason
        )
        self._add(first, last, read_columns(first, gap_row(first, last, reason, at_ms)))

    def _add(self, no: int, last_no: int, columns: Columns) -> None:
        """Add events under batch `no`; they cover the batches up to `last_no`."""
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
        """Publish the segment and report it as exported; without events no file is written."""
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
