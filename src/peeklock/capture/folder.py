"""The folder of an event log: segments, the lock, the mark that ties it to a store, retention.

    DIR/_capture.lock                 locked by the exporter while it has the log open; names the last one
    DIR/_capture.json                 the id of the log; the store's folder has the same in `event-log.json`
    DIR/_manifest.jsonl               the digest of each segment: see `manifest`
    DIR/.events-<first>-<who>.tmp     the unfinished segment of one exporter
    DIR/event_date=YYYY-MM-DD/event_hour=HH/events-<first batch>-<last batch>.parquet

A segment gets its name when it is durable. The name has the batches of the segment, so the folder itself is
the record of how far the log goes. For a store in a database, the database records which exporter may publish
(`head`). Spark skips names that begin with a dot or an underscore.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from peeklock.capture.head import Head, Heads
from peeklock.capture.manifest import MANIFEST_NAME, ManifestDamaged
from peeklock.capture.manifest_file import ManifestFile
from peeklock.store.base import StoreFailed
from peeklock.store.sqlite.folder import sync

LOCK_NAME = "_capture.lock"
MARK_NAME = "_capture.json"
STORE_MARK_NAME = "event-log.json"
"""The mark's name in the folder of the store."""

_SEGMENT = re.compile(r"events-(\d{20})-(\d{20})\.parquet")
_HOUR = re.compile(r"event_date=(\d{4})-(\d\d)-(\d\d)")
_LEFTOVER = re.compile(r"\.events-\d{20}(-[0-9a-f]{32})?\.tmp")


class LogRefused(Exception):
    """The folder cannot be written to; the message says why and what to do."""


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """One file of the log."""

    first_no: int
    last_no: int
    path: Path
    size_bytes: int

    @property
    def hour(self) -> datetime:
        """The hour in which its first event happened, UTC."""
        found = _HOUR.fullmatch(self.path.parent.parent.name)
        assert found is not None
        year, month, day = map(int, found.groups())
        return datetime(year, month, day, int(self.path.parent.name.removeprefix("event_hour=")), tzinfo=UTC)


class MarkedStore(Protocol):
    """A store whose events are in a log, with the id of that log."""

    @property
    def shown(self) -> str:
        """The store, for people."""

    @property
    def folder(self) -> Path | None:
        """The store's folder, if it has one; it may not exist yet."""

    def read_mark(self) -> str | None:
        """Return the id, None = it has none yet. Raises: LogRefused, StoreError."""

    def write_mark(self, log_id: str) -> None:
        """Keep the id. Raises: OSError, StoreError."""

    @property
    def heads(self) -> Heads | None:
        """The heads of its logs; None = the lock of a folder says which exporter may publish."""


class LogFolder:
    """The folder; one process writes there."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; nothing is touched before `take`."""
        self.path = folder
        self.segments: list[Segment] = []
        """Oldest first, once taken."""
        self._lock: int | None = None  # a descriptor
        self._is_locked = False
        self._is_apart = False  # from the store, as far as it was checked
        self._manifest: ManifestFile | None = None  # read with the segments
        self._head: Head | None = None
        self._holder = uuid.uuid4().bytes
        """Is in the lock file as long as nobody else has taken the folder."""

    @property
    def last_no(self) -> int:
        """The last batch in the log, 0 if it is empty."""
        return self.segments[-1].last_no if self.segments else 0

    def check(self, data: Path, store: MarkedStore | None) -> None:
        """Check that `take` would not refuse, and create the folder; a running exporter is not disturbed.

        Args:
            data: the data folder of the broker, which may not exist yet.
            store: whose events these are; None = it cannot be asked yet.

        Raises: LogRefused, OSError.
        """
        self._keep_apart(data)
        if store is not None:
            self._read_marks(store)
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = self.path / f".start-{os.getpid()}.tmp"
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT, 0o600))
        probe.unlink()

    def take(self, store: MarkedStore, *, waits: bool = True) -> bool:
        """Make ready to write; return False while another process writes here.

        A folder that was released may be taken again: its segments are looked for only if another process had
        it meanwhile.

        Args:
            store: whose events these are.
            waits: for the lock; if not, and the store keeps the head of the log, it is taken from whoever has
                the lock.

        Raises: LogRefused, LogTaken, StoreError, OSError.
        """
        if not self._is_apart:
            if store.folder is not None:
                self._keep_apart(store.folder)
            self._is_apart = True
        self.path.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        self._is_locked = _try_lock(lock)
        was_ours = os.pread(lock, len(self._holder) + 1, 0) == self._holder
        if not self._is_locked and (store.heads is None or (waits and not was_ours)):
            os.close(lock)
            self._check_while_waiting(store)
            return False
        self._lock = lock
        if not was_ours:
            self._join(store)
            os.ftruncate(lock, 0)
            os.pwrite(lock, self._holder, 0)
        return True

    def _check_while_waiting(self, store: MarkedStore) -> None:
        """Check that the end of the other process would help. Raises: LogRefused, LogTaken, StoreError."""
        path = self.path / MARK_NAME
        if not path.exists():
            return  # both marks are just being written
        self._read_marks(store)
        folder_id = read_folder_id(path)
        if store.heads is not None and folder_id is not None:
            store.heads.head(folder_id, self._holder.hex(), str(self.path)).require_no_later()

    def lock(self) -> None:
        """Lock a folder that was taken without its lock, if nobody has that any more."""
        if not self._is_locked and self._lock is not None:
            self._is_locked = _try_lock(self._lock)

    def _join(self, store: MarkedStore) -> None:
        """Make this exporter the one that goes on. Raises: LogRefused, LogTaken, StoreError, OSError."""
        folder_id = self._join_marks(store)
        if store.heads is not None:
            self._head = store.heads.head(folder_id, self._holder.hex(), str(self.path))
            self._head.take()
            self._complete(self._head)
        for name in os.listdir(self.path):
            if _LEFTOVER.fullmatch(name):
                (self.path / name).unlink(missing_ok=True)
        self._read_segments()

    def _complete(self, head: Head) -> None:
        """Rename the segment that was published last, if that was not done. Raises: LogRefused, OSError."""
        path = self.path / head.segment
        if not path.exists():
            try:
                self._rename(self.path / head.draft, path)
            except FileNotFoundError:
                raise LogRefused(
                    f"{path} was published and is not there: give all nodes the same folder with --capture; "
                    "if it is lost, restore it, or name an empty folder"
                ) from None

    def release(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _keep_apart(self, folder: Path) -> None:
        log, data = self.path.resolve(), folder.resolve()
        if log == data or data in log.parents or log in data.parents:
            how = "are the same folder" if log == data else "are nested"
            raise LogRefused(
                f"the event log {self.path} and the data {folder} {how}: give --capture a folder "
                "outside the data"
            )

    def _read_marks(self, store: MarkedStore) -> tuple[str | None, str | None]:
        """Return the ids of log and store, None = none yet. Raises: LogRefused, if they do not match."""
        log_id, store_id = read_mark(self.path / MARK_NAME), store.read_mark()
        if log_id is None and next(self._segment_names(), None) is not None:
            raise LogRefused(
                f"{self.path} has segments of an event log, but no {MARK_NAME} that names its store: "
                "restore it, or give --capture an empty folder"
            )
        if log_id is not None and log_id != store_id:
            raise LogRefused(
                f"{self.path} is the event log of another store than {store.shown}: "
                "give --capture the folder that belongs to it, or an empty one"
            )
        return log_id, store_id

    def _join_marks(self, store: MarkedStore) -> str:
        """Return the id of the folder, once both marks are there. Raises: LogRefused, StoreError, OSError."""
        log_id, store_id = self._read_marks(store)
        if store_id is None:
            store_id = str(uuid.uuid4())
            store.write_mark(store_id)
        path = self.path / MARK_NAME
        folder_id = read_folder_id(path)
        if log_id is None or (folder_id is None and store.heads is not None):
            folder_id = str(uuid.uuid4())
            write_mark(path, store_id, folder_id)
        return folder_id or ""

    def _segment_names(self) -> Iterator[tuple[Path, int, int]]:
        for path in self.path.glob("event_date=*/event_hour=*/events-*.parquet"):
            if found := _SEGMENT.fullmatch(path.name):
                yield path, int(found[1]), int(found[2])

    def _find_segments(self) -> list[Segment]:
        return sorted(
            Segment(first_no, last_no, path, path.stat().st_size)
            for path, first_no, last_no in self._segment_names()
        )

    def _read_segments(self) -> ManifestFile:
        """Find the segments, list those that are not in the manifest, and end a removal that was begun.

        Raises: LogRefused, StoreFailed, OSError.
        """
        self.segments = self._find_segments()
        if self._head is not None:
            self._require_listed(self._head)
        manifest = ManifestFile(self.path)
        try:
            manifest.open(self.segments, self.last_no + 1)
        except (ManifestDamaged, UnicodeDecodeError) as damage:
            raise LogRefused(
                f"{self.path / MANIFEST_NAME} is damaged ({damage}): restore it from a copy; or move it "
                "away, and a new one begins with the next segment"
            ) from None
        if self._head is not None and self._head.removed_to > manifest.silent_to:
            manifest.remove(self._head.removed_to)
        while len(self.segments) > 1 and self.segments[0].last_no <= manifest.removed_to:
            self._unlink(self.segments.pop(0))
        self._manifest = manifest
        return manifest

    def _require_listed(self, head: Head) -> None:
        """Raise StoreFailed if the last segment was not found.

        A network file system may list a folder as it was half a minute ago, although the file can be opened.
        """
        path = self.path / head.segment
        if head.segment and all(segment.path != path for segment in self.segments):
            raise StoreFailed(
                f"the listing of {self.path} lacks {head.segment}, which is there: it is read again"
            )

    def draft(self, first_no: int) -> Path:
        """Return the path of an unfinished segment."""
        return self.path / f".events-{first_no:020}-{self._holder.hex()}.tmp"

    def publish(self, draft: Path, first_no: int, last_no: int, hour: datetime) -> Segment:
        """Rename a segment whose bytes are durable to its final name, make that durable, then list it.

        After an error the draft may be published already: it stays for the next one who takes the folder.
        Raises: StoreError, LogRefused, OSError.
        """
        manifest = self._manifest or self._read_segments()
        name = f"event_date={hour:%Y-%m-%d}/event_hour={hour:%H}/events-{first_no:020}-{last_no:020}.parquet"
        path = self.path / name
        if self._head is not None:
            sync(self.path)  # the name of the draft
            self._head.publish(name, draft.name)
        try:
            self._rename(draft, path)
        except FileNotFoundError:
            if self._head is None or not path.exists():
                raise
        manifest.append(path)
        segment = Segment(first_no, last_no, path, path.stat().st_size)
        self.segments.append(segment)
        return segment

    def _rename(self, draft: Path, path: Path) -> None:
        """Give a segment its final name, and make that durable. Raises: OSError."""
        folder = path.parent
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            sync(folder.parent)
            sync(self.path)
        draft.rename(path)
        sync(folder)

    def old(self, keep_days: float | None, keep_bytes: int | None) -> list[Segment]:
        """Return the oldest segments beyond the limits, never the newest; no file is touched.

        Args:
            keep_days: age of events, by the hour of their segment.
            keep_bytes: size of all segments.
        """
        if keep_days is None and keep_bytes is None:
            return []
        old: list[Segment] = []
        size_bytes = sum(segment.size_bytes for segment in self.segments)
        for segment in self.segments[:-1]:
            too_much = keep_bytes is not None and size_bytes > keep_bytes
            too_old = keep_days is not None and _age(segment.hour) > timedelta(days=keep_days)
            if not too_much and not too_old:
                break
            size_bytes -= segment.size_bytes
            old.append(segment)
        return old

    def retain(self, keep_days: float | None, keep_bytes: int | None) -> list[Segment]:
        """Remove the segments that are `old`, and return them."""
        removed = self.old(keep_days, keep_bytes)
        if removed:
            last_no = removed[-1].last_no
            if self._head is not None:
                self._head.remove(last_no)
            assert self._manifest is not None
            self._manifest.remove(last_no)  # first: else a reader would miss the files
        for segment in removed:
            self._unlink(segment)
            self.segments.pop(0)
        return removed

    @staticmethod
    def _unlink(segment: Segment) -> None:
        segment.path.unlink(missing_ok=True)
        for folder in (segment.path.parent, segment.path.parent.parent):
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()


def _age(hour: datetime) -> timedelta:
    """Return the time since the end of an hour."""
    return datetime.fromtimestamp(time.time(), UTC) - hour - timedelta(hours=1)


def _try_lock(descriptor: int) -> bool:
    """Lock a file; return False if another process has the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_mark(path: Path) -> str | None:
    """Return the id of a log in a file, None = there is none. Raises: LogRefused."""
    found = _read_ids(path)
    return None if found is None else found["id"]


def read_folder_id(path: Path) -> str | None:
    """Return the id of the log's folder in a file, None = there is none. Raises: LogRefused."""
    return (_read_ids(path) or {}).get("folder")


def _read_ids(path: Path) -> dict[str, str] | None:
    try:
        found = json.loads(path.read_text())
        return {name: str(value) for name, value in found.items()} | {"id": str(found["id"])}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LogRefused(
            f"{path} cannot be read ({error}): {MARK_NAME} and the {STORE_MARK_NAME} of its store have "
            "the same id; copy the other one"
        ) from None


def write_mark(path: Path, log_id: str, folder_id: str | None = None) -> None:
    """Write a mark, whole or not at all. `folder_id`: of the log's folder, which no other one has."""
    ids = {"id": log_id} if folder_id is None else {"id": log_id, "folder": folder_id}
    draft = path.with_name(f".{path.name}.tmp")
    with draft.open("w") as file:
        file.write(json.dumps(ids) + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    sync(path.parent)
