"""The durable store of one namespace: a SQLite database in a folder of its own.

Owns: tables, settings of SQLite, who talks to it in which thread, the return of space to the disk. Must not
know: what the facts mean.

A commit is one transaction of few statements over BLOBs that were packed on the event loop, since sqlite3
takes the interpreter's lock for each statement: one row for the frame, one for each body row. The writing
thread does nothing else; a small batch is written on the event loop while that thread rests (`pace`,
`worker`). Reads have a connection and a thread of their own, so that none waits for an fsync, and so has the
copying of the WAL into the database (`checkpointer`). In WAL mode none blocks the other.

    journal(no, meta)   one frame per batch         body(no, data)   payloads, by row
    kv(k, v, checksum)  definitions of entities and rules, cursors and claims, the next free entity id
    event(no, data)     what happened in a batch, while capture is on, until it has been exported

A file holds one namespace: a column for it would be the same in all rows, and a key of two columns would need
a second B-tree beside each table.

Space. Dropped rows leave free pages; new rows use these first. Pages that stay free are given back to the
disk in slices, after a commit when they are most of the file, else when no commit has come for a moment; then
the WAL is emptied too.

Source: sqlite.org/wal.html, /pragma.html, /atomiccommit.html; figures are in bench/micro_store.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from peeklock.store.base import (
    Batch,
    Definitions,
    Frame,
    FrameKeys,
    LiveFacts,
    StoreDamaged,
    StoreError,
    StoreFailed,
    StoreFull,
)
from peeklock.store.encoding import body_rows, definitions, event_rows, frames
from peeklock.store.encoding.chain import Chain
from peeklock.store.encoding.fold import Fold
from peeklock.store.event_backlog import EventBacklog
from peeklock.store.sqlite import tail
from peeklock.store.sqlite.ballast import Ballast
from peeklock.store.sqlite.checkpointer import CHECKPOINT_PAGES, WAL_PAGES_MAX, Checkpointer, checkpoint
from peeklock.store.sqlite.errors import Plainly, plainly
from peeklock.store.sqlite.folder import DATABASE_NAME, FolderLock
from peeklock.store.sqlite.format import (
    EVENT_TABLE,
    EVENTS_SINCE,
    FORMAT,
    SCHEMA,
    check_header,
    is_new,
    read_format,
    schema_damages,
)
from peeklock.store.sqlite.pace import Pace
from peeklock.store.sqlite.packed import PackedBatch, pack
from peeklock.store.sqlite.witness import Witness
from peeklock.store.sqlite.worker import IDLE_AFTER_S, Worker

WAL_BYTES_KEPT = 40 * 1024 * 1024
"""The WAL file keeps this size once grown, a little more than it uses: to extend it costs each fsync more."""

WAL_SHARE = 1 / 8
"""Of a small volume, 8 MB of one of 64 MB, if that is less. Our choice."""

PAGE_BYTES = 4096

PAGES_A_COMMIT = 3
"""Pages that a commit writes beside those of its rows: about what trees and lists of free pages take. Commits
of one message of 1 KiB write 3.3 pages on average, with the row's own."""

WRITER_CACHE_KIB = 8 * 1024
"""What the next commits need again: the ends of both trees, and rows that are dropped soon after they were
written. With 32 MB no stage was faster."""

READER_CACHE_KIB = 2 * 1024
"""Whole body rows are kept by the engine's own cache."""

FREE_PAGES_KEPT = 1024
"""4 MB of free pages are left for the next rows."""

BUSY_FREE_PAGES_MIN = 4096
"""Above 16 MB, and half of the file, free pages are given back also while commits go on."""

SHRINK_S = 0.001
IDLE_SHRINK_S = 0.005
"""How long pages are given back at a time, while commits go on and while none comes: one page takes 4 us, or
300 when many are free. A commit that comes meanwhile waits for it."""

REWRITE_PAGES_MAX = 2048
"""Up to 8 MB in use are rewritten as a whole instead, when idle: some 20 ms, however many pages are free."""

SHRINK_EVERY_S = 0.5
"""How often, while commits go on, to look whether to give back pages. The file is cut when the WAL is copied,
1 ms for each MB, and the writer has to wait for that; so it must not be much at a time."""

IDLE_WAL_BYTES_MAX = 1024 * 1024
"""A larger WAL is emptied when idle."""

LOAD_ROWS = 256

Durability = Literal["fsync", "os"]


class _NoRoom(Exception):
    """Nothing was written: room is to be made first, in the thread."""


class SqliteStore:
    """See `store.base.Store` for the contract. Call from one event loop."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        durability: Durability = "fsync",
        connect: Callable[..., sqlite3.Connection] = sqlite3.connect,
        idle_after_s: float = IDLE_AFTER_S,
        keeps_ballast: bool = False,
        pace: Pace | None = None,
    ) -> None:
        """Name the folder; nothing is touched before `open`.

        Args:
            folder: made if it is not there.
            durability: `fsync` survives a power cut; `os` survives the death of the process, not of the
            machine.
            connect: makes connections, as `sqlite3.connect` does.
            idle_after_s: after so long without a commit, space is given back.
            keeps_ballast: have some room for when the disk is full.
            pace: says when the loop commits by itself; None: where commits are quick.
        """
        self._folder = Path(folder)
        self._path = self._folder / DATABASE_NAME
        self._durability = durability
        self._connect = connect
        self._idle_after_s = idle_after_s
        self._lock = FolderLock(self._folder)
        self._ballast = Ballast(self._folder)
        self._keeps_ballast = keeps_ballast
        self._wal_bytes_max = WAL_BYTES_KEPT
        self._witness = Witness(self._folder, synced=durability == "fsync")
        self._writer: Worker | None = None
        self._reader: Worker | None = None
        self._checkpointer: Checkpointer | None = None
        self._write_db: sqlite3.Connection | None = None
        self._read_db: sqlite3.Connection | None = None
        self._created_at_ms = 0
        self._last_no = 0
        self._last_checksum = 0  # of frame `_last_no`
        self._next_entity_id = 1
        self._shrink_at = 0.0  # monotonic
        self._pages_written = 0  # since the start, about
        self._pages_tidied = 0  # how many those were at the last checkpoint without a commit
        self._failure: str | None = None
        self._events = EventBacklog(())
        self._pace = Pace() if pace is None else pace

    # Opening

    async def open(self) -> None:
        """Take the folder and make it usable. Raises: StoreInUse, StoreTooNew, StoreDamaged, StoreFailed."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreFailed(f"cannot make the folder {self._folder}: {error.strerror}") from error
        self._lock.take()
        self._writer = Worker(
            "peeklock-store-writer",
            after_each=self._shrink_if_mostly_free,
            when_idle=self._tidy,
            idle_after_s=self._idle_after_s,
        )
        self._reader = Worker("peeklock-store-reader")
        volume = os.statvfs(self._folder)
        self._wal_bytes_max = min(WAL_BYTES_KEPT, int(volume.f_blocks * volume.f_frsize * WAL_SHARE))
        self._checkpointer = Checkpointer(self._finish_checkpoint, self._wal_pages_max)
        try:
            await self._writer.submit(self._open_writer)
            await self._reader.submit(self._open_reader)
            await self._checkpointer.open(self._open_checkpointer)
        except BaseException:
            await self._let_go()
            raise

    def _wal_pages_max(self) -> int:
        return min(WAL_PAGES_MAX, self._wal_bytes_max // PAGE_BYTES)

    def _open_writer(self) -> None:
        try:
            self._open_database()
        except StoreFull:
            self._close_writer()
            if not self._ballast.release():
                raise
            self._open_database()
        if self._keeps_ballast:
            self._ballast.take()

    def _open_database(self) -> None:
        check_header(self._path)
        tail.verify(self._path)
        with Plainly(f"open {self._path}"):
            db = self._write_db = self._connect(
                self._path, isolation_level=None, check_same_thread=False, cached_statements=32
            )
            new = is_new(db, self._path)
            if new:
                db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL").fetchall()
            self._set_durability(db)
            db.execute("PRAGMA secure_delete = OFF").fetchall()
            db.execute("PRAGMA temp_store = MEMORY")
            db.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KIB}")
            db.execute(f"PRAGMA journal_size_limit = {self._wal_bytes_max}").fetchall()
            db.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
            if new:
                db.execute("BEGIN IMMEDIATE")
                for statement in SCHEMA:
                    db.execute(statement)
                self._write_created_at(db)
                db.execute("COMMIT")
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                self._sync_folders()
            elif (number := read_format(db, self._path)) < FORMAT:
                db.execute("BEGIN IMMEDIATE")
                if number < EVENTS_SINCE:
                    db.execute(EVENT_TABLE)
                self._write_created_at(db)
                db.execute(f"PRAGMA user_version = {FORMAT}")
                db.execute("COMMIT")
                # Into the header of the file itself, where whoever opens it looks first.
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            for damage in schema_damages(db):
                raise StoreDamaged(damage)
            self._created_at_ms = _read_created_at(db)
            last = db.execute(
                "SELECT no, CAST(substr(meta, 1, 5) AS BLOB) FROM journal ORDER BY no DESC LIMIT 1"
            ).fetchall()
            self._last_no = last[0][0] if last else 0
            # One that is no BLOB is met when the journal is read.
            self._last_checksum = frames.checksum_of(last[0][1] or b"") if last else 0
            self._events = EventBacklog(
                db.execute("SELECT no, coalesce(length(data), 0) FROM event ORDER BY no")
            )
        self._witness.open(self._last_no, self._last_checksum)

    def _write_created_at(self, db: sqlite3.Connection) -> None:
        """Note when the namespace was made: now, or with the oldest of its entities."""
        self._keep_from_others()
        now_ms = time.time_ns() // 1_000_000
        [[first_ms]] = db.execute(
            "SELECT min(json_extract(v, '$.created_at_ms')) FROM kv WHERE k GLOB 'entity/*' AND json_valid(v)"
        ).fetchall()
        entry = definitions.created_at(first_ms if isinstance(first_ms, int) and first_ms > 0 else now_ms)
        db.execute("REPLACE INTO kv VALUES (?, ?, ?)", entry)

    def _keep_from_others(self) -> None:
        """Let nobody else on this machine read the keys in the file. The WAL has the mode of the file that it
        belongs to. Source: sqlite.org/wal.html."""
        for path in self._folder.glob(f"{DATABASE_NAME}*"):
            with contextlib.suppress(PermissionError):  # somebody else's file, or a file system without modes
                path.chmod(0o600)

    def _set_durability(self, db: sqlite3.Connection) -> None:
        db.execute(f"PRAGMA synchronous = {'FULL' if self._durability == 'fsync' else 'NORMAL'}")
        if sys.platform == "darwin" and self._durability == "fsync":
            # fsync on macOS leaves the data in the drive's cache.
            db.execute("PRAGMA fullfsync = ON")
            db.execute("PRAGMA checkpoint_fullfsync = ON")

    def _sync_folders(self) -> None:
        """Make the names of new files durable, SQLite syncs only their contents."""
        for folder in (self._folder, self._folder.absolute().parent):
            fd = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def _open_reader(self) -> None:
        with Plainly(f"open {self._path} for reading"):
            db = self._read_db = self._connect(
                self._path, isolation_level=None, check_same_thread=False, cached_statements=32
            )
            db.execute("PRAGMA query_only = ON")
            db.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB}")

    def _open_checkpointer(self) -> sqlite3.Connection:
        with Plainly(f"open {self._path} to copy its WAL"):
            db = self._connect(self._path, isolation_level=None, check_same_thread=False)
            self._set_durability(db)
            return db

    # Writing

    def commit(self, batch: Batch) -> asyncio.Future[int]:
        """Make a batch durable; see `Store`. One that is small is written before this returns, if the disk is
        quick of late and the writing thread rests."""
        no = batch.no
        assert self._writer is not None, "the store is not open"
        assert no == self._last_no + 1 or not self._last_no, (
            f"batch {no} was offered after batch {self._last_no}"
        )
        self._last_no = no
        packed = pack(batch, self._last_checksum, self._next_entity_id)
        self._last_checksum = packed.checksum
        if packed.entries is not None:
            self._next_entity_id = packed.entries.next_entity_id
        if packed.is_small and self._pace.is_quick:
            written = self._writer.do_now(partial(self._write, packed, makes_room=False))
            if written is not None and not isinstance(written.exception(), _NoRoom):
                self._look_at_wal(written)
                return written
        committing = self._writer.submit(partial(self._write, packed))
        committing.add_done_callback(self._look_at_wal)
        return committing

    def _write(self, packed: PackedBatch, *, makes_room: bool = True) -> int:
        """Write a batch. Raises: _NoRoom if the disk is full and it is not to make room, which takes long;
        StoreFailed."""
        no = packed.no
        if self._failure is not None:
            raise StoreFailed(f"batch {no} was not written: {self._failure}")
        db = self._write_db
        assert db is not None
        started_s = time.perf_counter()
        # Compressed here: where events are many that is worth a thread.
        event_row = None if packed.events is None else event_rows.seal(no, packed.events)
        try:
            try:
                packed.write(db, event_row)
            except sqlite3.Error as error:
                if not makes_room and isinstance(plainly("", error), StoreFull):
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    raise _NoRoom from error
                self._write_with_room(db, packed, event_row, error)
            self._witness.note(no, packed.checksum)
        except StoreError as error:
            # What is durable now is known only to the file. Nothing may be written after it: see the engine's
            # rule 3.
            self._failure = str(error)
            raise
        if event_row is not None:
            self._events.add(no, len(event_row))
        if packed.exported_to:
            self._events.drop_to(packed.exported_to)
        self._pages_written += PAGES_A_COMMIT + len(packed.bodies) + packed.written_bytes // PAGE_BYTES
        if packed.is_small:
            self._pace.took(time.perf_counter() - started_s)
        return len(packed.meta)

    def _write_with_room(
        self, db: sqlite3.Connection, packed: PackedBatch, event_row: bytes | None, met: sqlite3.Error
    ) -> None:
        """Write once more where the disk was full: without the ballast, then without the WAL.

        What SQLite finds no room for is rolled back whole: no commit was made of it. Raises: what it `met`,
        or meets now, as an error of a store.
        """
        for make_room in (self._ballast.release, lambda: self._empty_wal(db)):
            failure = plainly(f"write batch {packed.no} to {self._path}", met)
            if not isinstance(failure, StoreFull):
                raise failure from met
            if db.in_transaction:
                db.execute("ROLLBACK")
            make_room()
            try:
                packed.write(db, event_row)
                return
            except sqlite3.Error as error:
                met = error
        raise plainly(f"write batch {packed.no} to {self._path}", met) from met

    def _empty_wal(self, db: sqlite3.Connection) -> None:
        with contextlib.suppress(sqlite3.Error):
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    # The WAL

    def _look_at_wal(self, committing: asyncio.Future[int]) -> None:
        if self._checkpointer is not None:
            self._checkpointer.look(self._pages_written)

    def _finish_checkpoint(self) -> asyncio.Future[None]:
        assert self._writer is not None
        return self._writer.submit(self._copy_rest_of_wal)

    def _copy_rest_of_wal(self) -> None:
        if self._failure is None:
            checkpoint(self._write_db)

    # Space

    def _shrink_if_mostly_free(self) -> None:
        """Return space while commits go on; a failure is left for the next one to meet."""
        db = self._write_db
        if time.monotonic() < self._shrink_at or db is None or self._failure is not None:
            return
        self._shrink_at = time.monotonic() + SHRINK_EVERY_S
        if self._keeps_ballast:
            self._ballast.take()
        try:
            free, pages = _page_counts(db)
            if free > BUSY_FREE_PAGES_MIN and 2 * free > pages:
                self._shrink(db, free, SHRINK_S)
        except sqlite3.Error:
            pass

    def _tidy(self) -> float | None:
        """Return space while no commit comes; answers when to go on.

        A failure here is left for a commit to meet: nothing that was acknowledged depends on it.
        """
        db = self._write_db
        if db is None or self._failure is not None:
            return None
        try:
            free, pages = _page_counts(db)
            if free > FREE_PAGES_KEPT:
                if pages - free <= REWRITE_PAGES_MAX:
                    db.execute("VACUUM")
                else:
                    self._shrink(db, free - FREE_PAGES_KEPT, IDLE_SHRINK_S)
                    if self._pages_written - self._pages_tidied >= CHECKPOINT_PAGES:
                        self._pages_tidied = self._pages_written
                        checkpoint(db)
                return 0
            if _size_of(f"{self._path}-wal") > IDLE_WAL_BYTES_MAX:
                [(busy, _, _)] = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                return self._idle_after_s if busy else None  # it is being copied, or read
        except sqlite3.Error:
            return None
        return None

    def _shrink(self, db: sqlite3.Connection, pages_max: int, time_max_s: float) -> None:
        """Return some free pages."""
        pages = 0
        until = time.monotonic() + time_max_s
        db.execute("BEGIN IMMEDIATE")
        try:
            while pages < pages_max and time.monotonic() < until:
                # One at a time: what a page costs is not known before, and `execute` takes one step only.
                db.execute("PRAGMA incremental_vacuum(1)").close()
                pages += 1
            db.execute("COMMIT")
        except sqlite3.Error:  # a full disk: the next commit begins a transaction of its own
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        self._pages_written += 2 * pages

    @property
    def created_at_ms(self) -> int:
        """When the namespace was made; see `Store`."""
        return self._created_at_ms

    @property
    def event_backlog(self) -> EventBacklog:
        """Which event rows are there."""
        return self._events

    def free_bytes(self) -> int | None:
        """Return the free space of the volume, as an unprivileged process may use it, without what the WAL may
        still have to be copied into."""
        volume = os.statvfs(self._folder)
        return max(0, volume.f_bavail * volume.f_frsize - self._wal_bytes_max)

    # Reading

    async def load_definitions(self) -> Definitions:
        """Return all entities and rules. Raises: StoreDamaged."""
        found = definitions.read_all(await self._read("SELECT k, v, checksum FROM kv ORDER BY k"))
        self._next_entity_id = found.next_entity_id
        return found

    async def load(self) -> AsyncIterator[Frame]:
        """Return every frame in order, oldest first. Raises: StoreDamaged."""
        chain = Chain()
        after = -1
        while rows := await self._read(
            "SELECT no, meta FROM journal WHERE no > ? ORDER BY no LIMIT ?", after, LOAD_ROWS
        ):
            for no, meta in rows:
                frame = frames.decode(no, meta)
                chain.follow(no, meta)
                yield frame
            after = rows[-1][0]

    async def load_live(self) -> LiveFacts:
        """Return what still holds. Raises: StoreDamaged."""
        assert self._reader is not None
        return await self._reader.submit(self._fold)

    def _fold(self) -> LiveFacts:
        assert self._read_db is not None
        fold = Fold()
        chain = Chain()
        with Plainly(f"read the journal of {self._path}"):
            for no, meta in self._read_db.execute("SELECT no, meta FROM journal ORDER BY no"):
                fold.add(no, meta)
                chain.follow(no, meta)
        return fold.finish()

    async def read_body_rows(self, rows: Sequence[int]) -> dict[int, list[bytes]]:
        """Return the payloads of body rows, by slot; see `Store`."""
        assert self._reader is not None, "the store is not open"
        found = {}
        for row in rows:
            data = await self._reader.submit(partial(self._body_row, self._read_db, row))
            payloads, is_sound = body_rows.read_what_is_left(row, data)
            if not is_sound:  # a second time, through no cache of ours, before anybody acts on it
                data = await self._reader.submit(partial(self._body_row_again, row))
                payloads, _ = body_rows.read_what_is_left(row, data)
            found[row] = payloads
        return found

    def _body_row(self, db: sqlite3.Connection | None, row: int) -> bytes | None:
        """Return a body row, None where there is none or a page on the way to it is damaged.

        Raises: StoreFailed. An error of the disk says nothing about what is on it.
        """
        assert db is not None
        try:
            with Plainly(f"read body row {row} of {self._path}"):
                rows = db.execute("SELECT data FROM body WHERE no = ?", (row,)).fetchall()
        except StoreDamaged:
            return None
        return rows[0][0] if rows else None

    def _body_row_again(self, row: int) -> bytes | None:
        with Plainly(f"read body row {row} of {self._path}"):
            db = self._connect(self._path, isolation_level=None, check_same_thread=False)
            try:
                return self._body_row(db, row)
            finally:
                db.close()

    async def list_body_rows(self, after: int, count_max: int) -> list[tuple[int, int]]:
        """Return (row, size in bytes) of the rows above `after`, ascending; their contents are not read."""
        return await self._read(
            "SELECT no, length(data) FROM body WHERE no > ? ORDER BY no LIMIT ?", after, count_max
        )

    async def last_body_row(self) -> int:
        """Return the highest body row there is, 0 when there is none."""
        last: int = (await self._read("SELECT coalesce(max(no), 0) FROM body"))[0][0]
        return last

    async def read_head(self, bytes_max: int) -> list[FrameKeys]:
        """Return the keys of the oldest frames, at least one if there is one, up to about `bytes_max`. Raises:
        StoreDamaged."""
        assert self._reader is not None
        return await self._reader.submit(lambda: self._head(bytes_max))

    def _head(self, bytes_max: int) -> list[FrameKeys]:
        assert self._read_db is not None
        head: list[FrameKeys] = []
        size_bytes = 0
        with Plainly(f"read the journal of {self._path}"):
            cursor = self._read_db.execute("SELECT no, meta FROM journal ORDER BY no")
            for no, meta in cursor:
                if head and size_bytes + len(meta) > bytes_max:
                    break
                size_bytes += len(meta)
                head.append(frames.read_keys(no, meta))
            cursor.close()  # an open cursor would keep the WAL from being emptied
        return head

    async def _read(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        assert self._reader is not None, "the store is not open"
        return await self._reader.submit(lambda: self._select(sql, values))

    def _select(self, sql: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        assert self._read_db is not None
        with Plainly(f"read {self._path}"):
            return self._read_db.execute(sql, values).fetchall()

    # Closing

    async def close(self) -> None:
        """Finish with a truncating checkpoint and let the folder go."""
        await self._let_go()

    async def _let_go(self) -> None:
        if self._checkpointer is not None:
            await self._checkpointer.close()
            self._checkpointer = None
        if self._reader is not None:
            await self._reader.submit(self._close_reader)
            self._reader.stop()
            self._reader = None
        if self._writer is not None:
            await self._writer.submit(self._close_writer)
            self._writer.stop()
            self._writer = None
        self._lock.release()

    def _close_reader(self) -> None:
        db, self._read_db = self._read_db, None
        if db is not None:
            db.close()

    def _close_writer(self) -> None:
        db, self._write_db = self._write_db, None
        if db is None:
            return
        try:
            if self._failure is None and db.in_transaction is False:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error:
            pass  # the WAL stays and is read at the next start
        finally:
            db.close()
            self._witness.close()
            if self._keeps_ballast and self._failure is None:
                self._ballast.take(at_end=True)  # of what the WAL has taken: the next start may need it


def _page_counts(db: sqlite3.Connection) -> tuple[int, int]:
    """Return (free pages, all pages)."""
    [[free]] = db.execute("PRAGMA freelist_count").fetchall()
    [[pages]] = db.execute("PRAGMA page_count").fetchall()
    return free, pages


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _read_created_at(db: sqlite3.Connection) -> int:
    rows = db.execute("SELECT v FROM kv WHERE k = ?", (definitions.CREATED_AT_KEY,)).fetchall()
    return (
        int(rows[0][0]) if rows and str(rows[0][0]).isdecimal() else 0
    )  # `load_definitions` says what is wrong
