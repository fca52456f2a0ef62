"""Writes the event log: from the store's event rows to segments in a folder.

Batches are numbered without gaps, and the name of a segment has its numbers; the exporter continues after the
folder's highest number. A segment gets its name only when it is durable, and only then the broker learns that
it may delete the rows. So whenever the broker or the exporter dies, each row is in the log once, or still in
the store.

    rows of the store -> chunk (a row group) -> segment, under a temporary name -> its name -> "exported N"

Each step does a piece of the work, so that one thread can serve many logs (`logs`). A step that finds much is
soon followed by the next; while little happens the pauses grow, up to half of the time that an event may take
to the log. Between steps a log may rest: then it has no open file, and keeps in memory what it has read. A
step opens the files again only if something was committed, or some time is up.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from peeklock.broker.vocabulary.descriptions import QueueDescription, TopicDescription
from peeklock.broker.vocabulary.events import EventType
from peeklock.capture.chunk import Chunk, gap_row
from peeklock.capture.folder import LogFolder, LogRefused
from peeklock.capture.head import LogTaken
from peeklock.capture.segment import SegmentWriter
from peeklock.capture.source import EventReader, EventSource
from peeklock.store.base import StoreDamaged, StoreError
from peeklock.store.encoding.event_rows import Columns, digest, read_columns

CHUNK_EVENTS = 65_536
CHUNK_BYTES = 16 * 1024 * 1024
"""Events of a row group, or bytes of their messages: the exporter keeps so much in memory."""

READ_BYTES = 1024 * 1024
"""Read from the store in one transaction: some 30,000 packed events."""

RETAIN_S = 60.0
"""How often old segments are removed while none is written."""

PAUSE_S_MIN = 0.5
"""Until new rows are read, while there are many. Rows read together are cheaper to write."""

PAUSE_S_MAX = 5.0
"""The same while there are few, at most half an interval. Our choice: half of the usual interval."""

BUSY_BYTES = 64 * 1024
"""A reading of so many bytes, some 2,000 packed events, finds many rows."""

LOCK_S = 0.5
"""How often a folder is tried that another process writes to."""

LOCK_S_MAX = 10.0
"""How long another process may have the lock of a folder, where the head of the log says who may go on. Our
choice: as long as a broker waits for its exporter at its end; after that the process may be frozen."""

HOUR_MS = 3_600_000

NOT_CAPTURED = "capture was off"
RESTORED = "undone, or never written: the store was restored from a back-up"
GIVEN_UP = "given up: more waited to be exported than --capture-backlog allows"
BEFORE = f"{GIVEN_UP}; or exported before, to another folder than this one"


class Listener(Protocol):
    """Receives reports of the exporter."""

    def exported(self, no: int) -> None:
        """Take the number of the last batch in the log."""

    def note(self, level: str, event: str, **fields: object) -> None:
        """Write a log line."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The settings of an exporter."""

    source: EventSource
    to: Path
    namespace: str
    interval_s: float = 10.0
    """The longest time until an event can be read from the log, besides what writing takes."""
    segment_events: int = 500_000
    segment_bytes: int = 128 * 1024 * 1024
    keep_days: float | None = None
    keep_bytes: int | None = None


class Exporter:
    """Exports the events of one store to one folder."""

    def __init__(self, options: ExportOptions, listener: Listener) -> None:
        """Nothing is touched before the first step."""
        self._options = options
        self._listener = listener
        self._folder = LogFolder(options.to)
        self._reader: EventReader | None = None
        self._chunk: Chunk | None = None  # none before it is known where to go on
        self._read_to = 0
        self._last_row = (0, b"")  # number and digest of the last row that was read
        self._seen: object = None  # the state of the store of which all rows are read
        self._writer: SegmentWriter | None = None
        self._first_no = 1  # of the segment
        self._events = 0  # in it
        self._hour = 0  # of its first event
        self._ends_s = 0.0  # it; monotonic, as all times here
        self._new_ends_s = 0.0  # a segment that begins now
        self._looked_s = 0.0  # for rows, the last time
        self._pause_s_max = min(PAUSE_S_MAX, options.interval_s / 2)
        self._pause_s = min(PAUSE_S_MIN, self._pause_s_max)
        self._retain_s = 0.0
        self._waits_since_s: float | None = None  # for the lock
        self._is_finishing = False
        self._finish_no: int | None = None

    def step(self, now_s: float) -> float | None:
        """Do a piece of the work; return when the next step is due, None = all is exported after `finish`.

        `now_s` and the returned time are of one monotonic clock, in seconds. After `finish`, None also says
        that the exporter of a later owner has taken the log.
        Raises: LogRefused, StoreError; OSError if the folder cannot be written. Only `close` may follow.
        """
        try:
            return self._step(now_s)
        except LogTaken as taken:
            if not self._is_finishing:
                raise
            self._listener.note("info", str(taken), folder=self._to)
            return None

    def _step(self, now_s: float) -> float | None:
        # Before the look: a later commit is then a change. While the store is open a look is cheap anyway.
        state = self._options.source.committed_state() if self._reader is None else None
        is_time_to_end = self._events > 0 and now_s >= self._ends_s
        is_time_to_retain = self._chunk is not None and self._finds_old(now_s)
        is_due = is_time_to_end or is_time_to_retain or self._is_finishing
        if not is_due and self._has_seen(state):
            self._looked_s = now_s
            return self._next_look_s(now_s, 0)
        opened = self._open(now_s)
        if opened is None:
            return now_s + LOCK_S
        reader, chunk = opened
        if self._is_finishing and self._finish_no is None:
            self._finish_no = reader.last_no()  # a broker that started meanwhile may add more
        found_bytes = self._look(reader, chunk, now_s)
        if state is not None:
            self._seen = state if found_bytes < READ_BYTES else None
        if self._finish_no is not None and (self._read_to >= self._finish_no or not found_bytes):
            self._end_segment(chunk)
            self._remove_old()
            return None
        if self._events and now_s >= self._ends_s:
            self._end_segment(chunk)
        if is_time_to_retain:
            self._remove_old()
        return self._next_look_s(now_s, found_bytes)

    def _has_seen(self, state: object) -> bool:
        """Return whether all rows are read that the store has in a state."""
        return self._chunk is not None and state is not None and state == self._seen

    def _next_look_s(self, now_s: float, found_bytes: int) -> float:
        if found_bytes >= READ_BYTES or self._is_finishing:
            return now_s
        if found_bytes >= BUSY_BYTES:
            self._pause_s = min(PAUSE_S_MIN, self._pause_s_max)
        else:
            self._pause_s = min(2 * self._pause_s, self._pause_s_max)
        look_s = now_s + self._pause_s
        return min(look_s, self._ends_s) if self._events else look_s

    def finish(self) -> None:
        """Make the next steps export the rows that are in the store, without a pause, and be the last."""
        self._is_finishing = True

    @property
    def is_open(self) -> bool:
        """Whether files are open: three of the store, one or three of the log."""
        return self._reader is not None

    @property
    def memory_bytes(self) -> int:
        """About the memory of what was read and not written."""
        return 0 if self._chunk is None else self._chunk.memory_bytes

    def spill(self, now_s: float) -> None:
        """Write what is in memory to the file of the segment. Raises: as `step`."""
        opened = self._open(now_s)
        if opened is not None and opened[1].count:
            self._write_chunk(opened[1])

    def rest(self) -> None:
        """Close all files until the next step; a segment whose file was begun ends. Raises: as `step`."""
        if self._writer is not None:
            assert self._chunk is not None
            self._end_segment(self._chunk)
        self._close_files()

    def close(self) -> None:
        """Close all files; what was read and not reported stays in the store."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()
        self._close_files()

    def _close_files(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._folder.release()

    def _open(self, now_s: float) -> tuple[EventReader, Chunk] | None:
        """Open store and folder, if they are not; return None while another process writes to the folder."""
        if self._reader is None:
            waits_s = 0.0 if self._waits_since_s is None else now_s - self._waits_since_s
            if not self._folder.take(self._options.source, waits=waits_s < LOCK_S_MAX):
                self._chunk = None  # that process writes it
                self._wait_for_lock(now_s)
                return None
            self._waits_since_s = None
            self._reader = self._options.source.open()
        else:
            self._folder.lock()
        if self._chunk is None or self._folder.last_no + 1 != self._first_no:
            self._chunk = self._begin(self._reader, now_s)
        return self._reader, self._chunk

    def _wait_for_lock(self, now_s: float) -> None:
        if self._waits_since_s is None:
            self._waits_since_s = now_s
            self._listener.note(
                "info",
                "another exporter still writes to the event log; waiting for it to end",
                folder=self._to,
            )

    @property
    def _to(self) -> str:
        return str(self._options.to)

    def _begin(self, reader: EventReader, now_s: float) -> Chunk:
        """Go on behind the last batch of the log."""
        last_no = self._folder.last_no
        last_batch_no = reader.last_batch_no()
        if last_no > last_batch_no:
            raise LogRefused(
                f"{self._to} holds batches up to {last_no}, {self._options.source.shown} only up to "
                f"{last_batch_no}: the store is an older copy. Give --capture an empty folder"
            )
        epoch = self._last_epoch()
        self._compare_epochs(reader, epoch)
        self._read_to = last_no
        self._first_no = last_no + 1
        self._events = 0
        self._looked_s = now_s
        partitioned = [
            entity.description.name
            for entity in reader.entities()
            if isinstance(entity.description, (QueueDescription, TopicDescription))
            and entity.description.enable_partitioning
        ]
        self._listener.exported(last_no)
        return Chunk(self._options.namespace, epoch, partitioned)

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
                f"but batch {found} in {self._options.source.shown}, which is an older copy. Give "
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

    def _look(self, reader: EventReader, chunk: Chunk, now_s: float) -> int:
        """Read rows of the store; return their size in bytes."""
        interval_s = self._options.interval_s
        # An event may have come just after the last look. After a late one the segment is not cut short: more
        # segments would make all looks later still.
        self._new_ends_s = max(self._looked_s, now_s - interval_s / 2) + interval_s
        self._looked_s = now_s
        rows = reader.read(self._read_to, READ_BYTES)
        if rows:
            last_no, last = rows[-1]
            self._last_row = last_no, digest(last)
        for no, data in rows:
            columns = self._unpacked(chunk, no, data)
            if no > self._read_to + 1:
                self._add_gap(chunk, self._read_to + 1, no - 1, columns)
            self._add(chunk, no, no, columns)
        return sum(len(data) for _, data in rows)

    def _unpacked(self, chunk: Chunk, no: int, data: bytes) -> Columns:
        try:
            columns = read_columns(no, data)
            chunk.check(no, columns)
        except StoreDamaged as damage:
            self._listener.note(
                "error",
                "an event row is damaged; the event log has a gap there",
                batch=no,
                reason=str(damage),
            )
            return read_columns(no, gap_row(no, no, f"damaged: {damage}", _now_ms()))
        return columns

    def _add_gap(self, chunk: Chunk, first: int, last: int, follows: Columns) -> None:
        """Record a gap before a batch."""
        kinds = bytes(follows.integers["type"])
        if EventType.RESTORED in kinds:
            reason = RESTORED
        elif EventType.EPOCH_STARTED in kinds:
            reason = NOT_CAPTURED
        else:
            reason = BEFORE if first == 1 else GIVEN_UP
        at_ms = follows.integers["at_ms"][0] if follows.count else _now_ms()
        self._listener.note(
            "warning", "batches are missing from the event log", first=first, last=last, reason=reason
        )
        self._add(chunk, first, last, read_columns(first, gap_row(first, last, reason, at_ms)))

    def _add(self, chunk: Chunk, no: int, last_no: int, columns: Columns) -> None:
        """Add events under batch `no`; they cover the batches up to `last_no`."""
        if columns.count:
            hour = columns.integers["at_ms"][0] // HOUR_MS
            if self._events and hour != self._hour:
                self._end_segment(chunk)
            if not self._events:
                self._hour = hour
                self._ends_s = self._new_ends_s
            self._events += columns.count
            chunk.add(no, columns)
        self._read_to = last_no
        if chunk.count >= CHUNK_EVENTS or chunk.size_bytes >= CHUNK_BYTES:
            self._write_chunk(chunk)
        if self._events >= self._options.segment_events:
            self._end_segment(chunk)

    # Segments

    def _write_chunk(self, chunk: Chunk, *, is_last: bool = False) -> None:
        if self._writer is None:
            self._writer = SegmentWriter(self._folder.draft(self._first_no))
        self._writer.write(chunk.take())
        if not is_last:
            self._writer.sync()
        if self._writer.size_bytes >= self._options.segment_bytes:
            self._end_segment(chunk)

    def _end_segment(self, chunk: Chunk) -> None:
        """Publish the segment and report it as exported; without events no file is written."""
        if not self._events:
            return
        self._events = 0  # first: the last chunk may fill the segment
        if chunk.count:
            self._write_chunk(chunk, is_last=True)  # the end of the file is synced with it
        writer, self._writer = self._writer, None
        assert writer is not None
        draft = self._folder.draft(self._first_no)
        try:
            writer.finish()
            assert self._reader is not None
            self._reader.confirm(*self._last_row)
        except (OSError, StoreError):
            writer.abandon()
            raise
        hour = datetime.fromtimestamp(self._hour * HOUR_MS / 1000, UTC)
        self._folder.publish(draft, self._first_no, self._read_to, hour)
        self._first_no = self._read_to + 1
        self._listener.exported(self._read_to)
        self._remove_old()

    def _finds_old(self, now_s: float) -> bool:
        """Return whether there are old segments, every `RETAIN_S`; no file is touched."""
        if now_s < self._retain_s:
            return False
        self._retain_s = now_s + RETAIN_S
        return bool(self._folder.old(self._options.keep_days, self._options.keep_bytes))

    def _remove_old(self) -> None:
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
