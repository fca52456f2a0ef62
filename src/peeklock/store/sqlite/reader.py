"""Reads a store as it is stored, for a back-up, also while a broker runs; see `store.base.StoreReader`.

Where no broker runs, the folder is held meanwhile: SQLite then reads the file without its WAL, and a broker
that starts would change the file under it. Where one runs, each call is one short transaction: an open one
keeps the WAL from starting over. Source: sqlite.org/wal.html, "Concurrency".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from peeklock.store.base import Blob, Ends, Entry, StoreFailed, StoreInUse
from peeklock.store.sqlite.errors import store_errors
from peeklock.store.sqlite.folder import DATABASE_NAME, FolderLock, holder, require_finished
from peeklock.store.sqlite.format import check_header, read_format
from peeklock.store.sqlite.read_only import open_read_only


class SqliteReader:
    """The store in a folder."""

    def __init__(self, folder: Path) -> None:
        """Open it. Raises: StoreFailed, StoreDamaged, StoreTooNew, StoreUnfinished."""
        self._folder = folder
        self._path = path = folder / DATABASE_NAME
        if not path.is_file():
            raise StoreFailed(f"there is no store in {folder}: {path} does not exist")
        require_finished(folder)
        with ExitStack() as opened:
            lock = FolderLock(folder)
            try:
                lock.take()
            except StoreInUse:
                self._writer: str | None = None
            else:
                opened.callback(lock.release)
                self._writer = "none"
            check_header(path)
            with store_errors(f"open {path} for reading"):
                self._db = opened.enter_context(open_read_only(path, is_ours=self._writer is not None))
                read_format(self._db, path)
            self._opened = opened.pop_all()

    @property
    def is_ours(self) -> bool:
        """Whether this process holds the folder: no broker runs on it."""
        return self._writer is not None

    def ends(self) -> Ends:
        columns = ("min(no)", "journal"), ("max(no)", "journal"), ("max(no)", "body")
        # One at a time: SQLite finds a minimum or a maximum by the index only where it is asked for alone.
        found = [self._select(f"SELECT coalesce({what}, 0) FROM {table}")[0][0] for what, table in columns]
        return Ends(*map(int, found))

    def frames(self, after: int, bytes_max: int) -> list[Blob]:
        return self._blobs("SELECT no, meta FROM journal WHERE no > ? ORDER BY no", after, bytes_max)

    def body_rows(self, after: int, bytes_max: int) -> list[Blob]:
        return self._blobs("SELECT no, data FROM body WHERE no > ? ORDER BY no", after, bytes_max)

    def event_rows(self, after: int, bytes_max: int) -> list[Blob]:
        """Return the event rows above a number, likewise."""
        return self._blobs("SELECT no, data FROM event WHERE no > ? ORDER BY no", after, bytes_max)

    def body_row(self, no: int) -> bytes | None:
        rows = self._select("SELECT data FROM body WHERE no = ?", no)
        return rows[0][0] if rows else None

    def body_row_numbers(self) -> list[int]:
        return [no for (no,) in self._select("SELECT no FROM body ORDER BY no")]

    def entries(self) -> list[Entry]:
        return self._select("SELECT k, v, checksum FROM kv ORDER BY k")

    @contextmanager
    def at_one_instant(self) -> Iterator[None]:
        self._select("BEGIN")
        try:
            yield
        finally:
            self._db.rollback()

    def writer_name(self) -> str:
        return self._writer or holder(self._folder)

    def close(self) -> None:
        self._opened.close()

    def _blobs(self, sql: str, after: int, bytes_max: int) -> list[Blob]:
        found: list[Blob] = []
        size_bytes = 0
        with store_errors(f"read {self._path}"):
            cursor = self._db.execute(sql, (after,))
            for no, data in cursor:
                found.append((no, data))
                size_bytes += len(data or b"")
                if size_bytes >= bytes_max:
                    break
            cursor.close()  # ends the transaction
        return found

    def _select(self, sql: str, *values: object) -> list[Any]:
        with store_errors(f"read {self._path}"):
            return self._db.execute(sql, values).fetchall()
