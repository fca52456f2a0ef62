"""The durable store of one namespace: a SQLite database in a data folder.

Owns: its connections, and the commit. Must not know: what the facts mean.

A commit is one transaction of few statements over BLOBs that were packed on the event loop, since sqlite3
takes the interpreter's lock for each statement: one row for the frame, one for each body row. The writer does
nothing else; a small batch is written on the event loop while the writer has no job and no other store
commits (`pace`, `worker`). Reads have a connection and threads of their own, so that none waits for an fsync,
and so has the copying of the WAL into the database (`checkpointer`). In WAL mode none blocks the other. Both
connections are opened when they are first needed. Stores may share their threads (`threads`).

    journal(no, meta)   one frame per batch         body(no, data)   payloads, by row
    kv(k, v, checksum)  definitions of entities and rules, cursors and claims, facts, the next free entity id
    event(no, data)     the events of a batch, while capture is on, until they are exported

A file holds one namespace: a column for it would be the same in all rows, and a key of two columns would need
a second B-tree beside each table.

Source: sqlite.org/wal.html, /pragma.html, /atomiccommit.html; figures are in bench/micro_store.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from peeklock.store.base import (
    NEVER,
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
from peeklock.store.encoding.fold import Chain, Fold
from peeklock.store.encoding.packed import PackedBatch, pack
from peeklock.store.event_backlog import EventBacklog
from peeklock.store.sqlite.checkpointer import WAL_PAGES_MAX, Checkpointer, checkpoint
from peeklock.store.sqlite.errors import store_error, store_errors
from peeklock.store.sqlite.folder import DATABASE_NAME, FolderLock, make_folder, require_finished
from peeklock.store.sqlite.opening import (
    PAGE_BYTES,
    Connect,
    Durability,
    open_for_writing,
    read_created_at,
    set_durability,
)
from peeklock.store.sqlite.pace import Pace
from peeklock.store.sqlite.reader import SqliteReader
from peeklock.store.sqlite.space import CACHE_KEPT_S, Ballast, Space, free_cache
from peeklock.store.sqlite.threads import StoreThreads
from peeklock.store.sqlite.witness import Witness
from peeklock.store.sqlite.writing import is_small, write
from peeklock.store.worker import IDLE_AFTER_S, Worker

WAL_BYTES_KEPT = 40 * 1024 * 1024
"""The WAL file keeps this size once grown, a little more than it uses: extending it makes fsyncs slower."""

WAL_SHARE = 1 / 8
"""Of a small volume, if that is less: 8 MB of 64 MB. Our choice."""

PAGES_A_COMMIT = 3
"""Pages that a commit writes besides those of its rows, for trees and lists of free pages. A commit of one
message of 1 KiB writes 3.3 pages on average, with those of its rows."""

READER_CACHE_KIB = 2 * 1024
"""The engine caches whole body rows."""

LOAD_ROWS = 256


class _NoRoom(Exception):
    """The disk is full and nothing was written; the thread frees space and tries again."""


class SqliteStore:
    """See `store.base.Store` for the contract. Call from one event loop."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        durability: Durability = "fsync",
        connect: Connect = sqlite3.connect,
        idle_after_s: float = IDLE_AFTER_S,
        ballast: Ballast | None = None,
        pace: Pace | None = None,
        threads: StoreThreads | None = None,
    ) -> None:
        """Name the folder; nothing is touched before `open`.

        Args:
            folder: created if it does not exist.
            durability: `fsync` survives a power cut; `os` survives the death of the process only.
            connect: makes connections, as `sqlite3.connect` does.
            idle_after_s: after so long without a commit, space is returned to the disk.
            ballast: space reserved for a full disk; stores on the same volume may share it.
            pace: decides whether the loop commits; None: where commits are quick.
            threads: shared with other stores; None: some of its own.
        """
        self._folder = Path(folder)
        self._path = self._folder / DATABASE_NAME
        self._durability = durability
        self._connect = connect
        self._idle_after_s = idle_after_s
        self._lock = FolderLock(self._folder)
        self._ballast = Ballast(self._folder) if ballast is None else ballast  # one may be left from before
        self._keeps_ballast = ballast is not None
        self._wal_bytes_max = WAL_BYTES_KEPT
        self._witness = Witness(self._folder, synced=durability == "fsync")
        self._shared_threads = threads
        self._threads: StoreThreads | None = None
        self._writer: Worker | None = None
        self._reader: Worker | None = None
        self._checkpointer: Checkpointer | None = None
        self._write_db: sqlite3.Connection | None = None
        self._read_db: sqlite3.Connection | None = None
        self._created_at_ms = 0
        self._last_no = 0
        self._last_checksum = 0  # of frame `_last_no`
        self._next_entity_id = 1
        self._space = Space(self._path, idle_after_s)
        self._failure: str | None = None
        self._events = EventBacklog(())
        self._pace = Pace() if pace is None else pace

    # Opening

    async def open(self) -> None:
        """Take the folder and open the database; see `Store`."""
        make_folder(self._folder)
        require_finished(self._folder)
        self._lock.take()
        threads = self._threads = self._shared_threads or StoreThreads(writers=1, readers=1, checkpointers=1)
        self._writer = Worker(
            threads.writers,
            after_each=self._shrink_if_mostly_free,
            when_idle=self._tidy,
            idle_after_s=self._idle_after_s,
        )
        self._reader = Worker(threads.readers, when_idle=self._free_reader_cache, idle_after_s=CACHE_KEPT_S)
        volume = os.statvfs(self._folder)
        self._wal_bytes_max = min(WAL_BYTES_KEPT, int(volume.f_blocks * volume.f_frsize * WAL_SHARE))
        self._checkpointer = Checkpointer(
            threads.checkpointers, self._open_checkpointer, self._finish_checkpoint, self._wal_pages_max
        )
        try:
            await self._writer.submit(self._open_writer)
        except BaseException:
            await self.close()
            raise

    def _wal_pages_max(self) -> int:
        return min(WAL_PAGES_MAX, self._wal_bytes_max // PAGE_BYTES)

    def _open_writer(self) -> None:
        try:
            self._open_database()
        except StoreFull:
            self._close_writer()
            self._ballast.release()
            self._open_database()
        if self._keeps_ballast:
            self._ballast.take()

    def _open_database(self) -> None:
        db = open_for_writing(self._path, self._connect, self._durability, self._wal_bytes_max)
        self._write_db = db
        with store_errors(f"open {self._path}"):
            self._created_at_ms = read_created_at(db)
            last = db.execute(
                "SELECT no, CAST(substr(meta, 1, 5) AS BLOB) FROM journal ORDER BY no DESC LIMIT 1"
            ).fetchall()
            self._last_no = last[0][0] if last else 0
            # A frame that is not a BLOB is found when the journal is read.
            self._last_checksum = frames.checksum_of(last[0][1] or b"") if last else 0
            self._events = EventBacklog(
                db.execute("SELECT no, coalesce(length(data), 0) FROM event ORDER BY no")
            )
        self._witness.open(self._last_no, self._last_checksum)

    def _open_reader(self) -> sqlite3.Connection:
        with store_errors(f"open {self._path} for reading"):
            db = self._connect(
                self._path, isolation_level=None, check_same_thread=False, cached_statements=32
            )
            db.execute("PRAGMA query_only = ON")
            db.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB}")
            return db

    def _open_checkpointer(self) -> sqlite3.Connection:
        with store_errors(f"open {self._path} to copy its WAL"):
            db = self._connect(self._path, isolation_level=None, check_same_thread=False)
            set_durability(db, self._durability)
            return db

    # Writing

    def commit(self, batch: Batch) -> asyncio.Future[int]:
        """Make a batch durable; see `Store`.

        A small batch is written before this returns if commits are quick, the writer is idle and no other
        store of the same threads commits.
        """
        no = batch.no
        assert self._writer is not None, "the store is not open"
        assert self._threads is not None
        assert no == self._last_no + 1 or not self._last_no, (
            f"batch {no} was offered after batch {self._last_no}"
        )
        self._last_no = no
        packed = pack(batch, self._last_checksum, self._next_entity_id)
        self._last_checksum = packed.checksum
        if packed.entries is not None:
            self._next_entity_id = packed.entries.next_entity_id
        is_alone, small = self._threads.note_commit(self), is_small(batch, packed)
        if small and is_alone and self._pace.is_quick:
            written = self._writer.do_now(partial(self._write, packed, small, makes_room=False))
            if written is not None and not isinstance(written.exception(), _NoRoom):
                self._look_at_wal(written)
                return written
        committing = self._writer.submit(partial(self._write, packed, small))
        committing.add_done_callback(self._look_at_wal)
        return committing

    def _write(self, packed: PackedBatch, small: bool, *, makes_room: bool = True) -> int:
        """Write a batch. Raises: StoreFailed; _NoRoom if the disk is full and not `makes_room`."""
        no = packed.no
        if self._failure is not None:
            raise StoreFailed(f"batch {no} was not written: {self._failure}")
        db = self._write_db
        assert db is not None
        started_s = time.perf_counter()
        # Compressed here: many events are worth the thread.
        event_row = None if packed.events is None else event_rows.seal(no, packed.events)
        try:
            try:
                write(db, packed, event_row, small=small)
            except sqlite3.Error as error:
                if not makes_room and isinstance(store_error("", error), StoreFull):
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    raise _NoRoom from error
                self._write_with_room(db, packed, event_row, error)
            self._witness.note(no, packed.checksum)
        except StoreError as error:
            # Only the file knows what is durable now. Nothing may be written after it: rule 3 of the engine.
            self._failure = str(error)
            raise
        if event_row is not None:
            self._events.add(no, len(event_row))
        if packed.exported_to:
            self._events.drop_to(packed.exported_to)
        self._space.pages_written += PAGES_A_COMMIT + len(packed.bodies) + packed.written_bytes // PAGE_BYTES
        if small:
            self._pace.took(time.perf_counter() - started_s)
        return len(packed.meta)

    def _write_with_room(
        self, db: sqlite3.Connection, packed: PackedBatch, event_row: bytes | None, met: sqlite3.Error
    ) -> None:
        """Write again after an error `met`, if the disk was full: without the ballast, then without the WAL.

        SQLite rolls back a transaction that finds no space as a whole. Raises: StoreFailed, StoreDamaged.
        """
        for make_room in (self._ballast.release, lambda: self._empty_wal(db)):
            failure = store_error(f"write batch {packed.no} to {self._path}", met)
            if not isinstance(failure, StoreFull):
                raise failure from met
            if db.in_transaction:
                db.execute("ROLLBACK")
            make_room()
            try:
                write(db, packed, event_row, small=False)
                return
            except sqlite3.Error as error:
                met = error
        raise store_error(f"write batch {packed.no} to {self._path}", met) from met

    def _empty_wal(self, db: sqlite3.Connection) -> None:
        with contextlib.suppress(sqlite3.Error):
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    # The WAL

    def _look_at_wal(self, committing: asyncio.Future[int]) -> None:
        if self._checkpointer is not None:
            self._checkpointer.look(self._space.pages_written)

    def _finish_checkpoint(self) -> asyncio.Future[None]:
        assert self._writer is not None
        return self._writer.submit(self._copy_rest_of_wal)

    def _copy_rest_of_wal(self) -> None:
        if self._failure is None:
            checkpoint(self._write_db)

    # Space

    def _shrink_if_mostly_free(self) -> None:
        db = self._write_db
        if db is not None and self._failure is None and self._space.is_time():
            if self._keeps_ballast:
                self._ballast.take()
            self._space.shrink_if_mostly_free(db)

    def _tidy(self) -> float | None:
        db = self._write_db
        return None if db is None or self._failure is not None else self._space.tidy(db)

    def _free_reader_cache(self) -> None:
        if self._read_db is not None:
            free_cache(self._read_db)

    @property
    def created_at_ms(self) -> int:
        return self._created_at_ms

    @property
    def event_backlog(self) -> EventBacklog:
        return self._events

    def free_bytes(self) -> int | None:
        """Return the space of the volume that unprivileged processes may use, less that of the WAL."""
        volume = os.statvfs(self._folder)
        return max(0, volume.f_bavail * volume.f_frsize - self._wal_bytes_max)

    def valid_until_s(self) -> float:
        return NEVER

    def failure(self) -> None:
        return None

    def reader(self) -> SqliteReader:
        return SqliteReader(self._folder)

    # Reading

    async def load_definitions(self) -> Definitions:
        found = definitions.read_all(await self._read("SELECT k, v, checksum FROM kv ORDER BY k"))
        self._next_entity_id = found.next_entity_id
        return found

    async def load(self) -> AsyncIterator[Frame]:
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
        assert self._reader is not None
        return await self._reader.submit(self._fold)

    def _reading(self) -> sqlite3.Connection:
        """Return the connection for reads, opened at the first of them. Raises: StoreFailed, StoreDamaged."""
        if self._read_db is None:
            self._read_db = self._open_reader()
        return self._read_db

    def _fold(self) -> LiveFacts:
        db = self._reading()
        fold = Fold()
        chain = Chain()
        with store_errors(f"read the journal of {self._path}"):
            for no, meta in db.execute("SELECT no, meta FROM journal ORDER BY no"):
                fold.add(no, meta)
                chain.follow(no, meta)
        return fold.finish()

    async def read_body_rows(self, rows: Sequence[int]) -> dict[int, Sequence[bytes]]:
        assert self._reader is not None, "the store is not open"
        found = {}
        for row in rows:
            data = await self._reader.submit(partial(self._cached_body_row, row))
            payloads, is_sound = body_rows.read_what_is_left(row, data)
            if not is_sound:  # read again past our cache before acting on it
                data = await self._reader.submit(partial(self._body_row_again, row))
                payloads, _ = body_rows.read_what_is_left(row, data)
            found[row] = payloads
        return found

    def _cached_body_row(self, row: int) -> bytes | None:
        return self._body_row(self._reading(), row)

    def _body_row(self, db: sqlite3.Connection, row: int) -> bytes | None:
        """Return a body row, None if it is missing or a page on the way to it is damaged.

        Raises: StoreFailed. An error of the disk does not prove damage.
        """
        try:
            with store_errors(f"read body row {row} of {self._path}"):
                rows = db.execute("SELECT data FROM body WHERE no = ?", (row,)).fetchall()
        except StoreDamaged:
            return None
        return rows[0][0] if rows else None

    def _body_row_again(self, row: int) -> bytes | None:
        with store_errors(f"read body row {row} of {self._path}"):
            db = self._connect(self._path, isolation_level=None, check_same_thread=False)
            try:
                return self._body_row(db, row)
            finally:
                db.close()

    async def list_body_rows(self, after: int, count_max: int) -> list[tuple[int, int]]:
        """See `Store`; the contents of the rows are not read."""
        return await self._read(
            "SELECT no, length(data) FROM body WHERE no > ? ORDER BY no LIMIT ?", after, count_max
        )

    async def last_body_row(self) -> int:
        last: int = (await self._read("SELECT coalesce(max(no), 0) FROM body"))[0][0]
        return last

    async def read_head(self, bytes_max: int) -> list[FrameKeys]:
        assert self._reader is not None
        return await self._reader.submit(lambda: self._head(bytes_max))

    def _head(self, bytes_max: int) -> list[FrameKeys]:
        db = self._reading()
        head: list[FrameKeys] = []
        size_bytes = 0
        with store_errors(f"read the journal of {self._path}"):
            cursor = db.execute("SELECT no, meta FROM journal ORDER BY no")
            for no, meta in cursor:
                if head and size_bytes + len(meta) > bytes_max:
                    break
                size_bytes += len(meta)
                head.append(frames.read_keys(no, meta))
            cursor.close()  # an open cursor keeps the WAL from being emptied
        return head

    async def _read(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        assert self._reader is not None, "the store is not open"
        return await self._reader.submit(lambda: self._select(sql, values))

    def _select(self, sql: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        db = self._reading()
        with store_errors(f"read {self._path}"):
            return db.execute(sql, values).fetchall()

    # Closing

    async def close(self) -> None:
        # Forgotten first: what comes later must not open a connection again.
        checkpointer, self._checkpointer = self._checkpointer, None
        reader, self._reader = self._reader, None
        if checkpointer is not None:
            await checkpointer.close()
        if reader is not None:
            await reader.submit(self._close_reader)
            reader.stop()
        if self._writer is not None:
            await self._writer.submit(self._close_writer)
            self._writer.stop()
            self._writer = None
        if self._threads is not None and self._threads is not self._shared_threads:
            self._threads.close()
        self._threads = None
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
            pass  # the next start reads the WAL
        finally:
            db.close()
            self._witness.close()
            if self._keeps_ballast and self._failure is None:
                self._ballast.take(at_end=True)  # the WAL has freed space: the next start may need it
