"""Makes a store in a folder of what a back-up has; see `store.base.StoreFiller`.

All is one transaction without a journal: what is there before `finish` is no store, as the mark in the folder
says.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path

from peeklock.store.base import Blob, Entry, StoreFailed
from peeklock.store.encoding import definitions
from peeklock.store.sqlite.errors import store_errors
from peeklock.store.sqlite.folder import DATABASE_NAME, UNFINISHED_NAME, FolderLock, make_folder, sync
from peeklock.store.sqlite.format import SCHEMA, release_entry
from peeklock.store.sqlite.opening import PAGE_BYTES


class SqliteFiller:
    """A new store in a folder."""

    def __init__(self, folder: Path) -> None:
        """Take the folder, which has no database. Raises: StoreInUse, StoreFailed."""
        self._folder = folder
        self._path = path = folder / DATABASE_NAME
        make_folder(folder)
        self._lock = FolderLock(folder)
        self._lock.take()
        try:
            if path.exists():
                raise StoreFailed(f"{path} exists: restore into an empty folder")
            self._mark()
            with store_errors(self._doing):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))  # it has keys
                self._db = sqlite3.connect(path, isolation_level=None)
                make_store(self._db)
        except OSError as error:
            self._lock.release()
            raise StoreFailed(f"cannot write into {folder}: {error.strerror}") from error
        except BaseException:
            self._lock.release()
            raise
        self._has_created_at = False

    @property
    def _doing(self) -> str:
        return f"restore into {self._path}"

    def _mark(self) -> None:
        fd = os.open(self._folder / UNFINISHED_NAME, os.O_WRONLY | os.O_CREAT, 0o600)
        os.fsync(fd)
        os.close(fd)
        sync(self._folder)

    def add_body_rows(self, rows: Iterable[Blob]) -> None:
        with store_errors(self._doing):
            self._db.executemany("INSERT INTO body VALUES (?, ?)", rows)

    def add_frames(self, frames: Iterable[Blob]) -> None:
        with store_errors(self._doing):
            self._db.executemany("INSERT INTO journal VALUES (?, ?)", frames)

    def add_entries(self, entries: Iterable[Entry]) -> None:
        found = [entry for entry in entries if entry[0] != definitions.RELEASE_KEY]
        self._has_created_at |= any(key == definitions.CREATED_AT_KEY for key, _, _ in found)
        with store_errors(self._doing):
            self._db.executemany("INSERT INTO kv VALUES (?, ?, ?)", found)

    def add_event_row(self, no: int, data: bytes) -> None:
        with store_errors(self._doing):
            self._db.execute("INSERT INTO event VALUES (?, ?)", (no, data))

    def write(self) -> None:
        if not self._has_created_at:  # a store in memory has none
            created_at = str(time.time_ns() // 1_000_000)
            self.add_entries([definitions.entry(definitions.CREATED_AT_KEY, created_at)])
        with store_errors(self._doing):
            self._db.execute("INSERT INTO kv VALUES (?, ?, ?)", release_entry())
            self._db.execute("COMMIT")
            self._db.close()
        try:
            sync(self._path)
            sync(self._folder)
        except OSError as error:
            raise StoreFailed(f"cannot {self._doing}: {error.strerror}; check the disk") from error

    def finish(self) -> None:
        try:
            (self._folder / UNFINISHED_NAME).unlink()
            sync(self._folder)
            sync(self._folder.absolute().parent)
        except OSError as error:
            raise StoreFailed(f"cannot end the restore into {self._folder}: {error.strerror}") from error
        finally:
            self._lock.release()

    def abandon(self) -> None:
        self._db.close()
        self._lock.release()


def make_store(to: sqlite3.Connection) -> None:
    """Create an empty store, in a transaction that stays open."""
    to.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    to.execute("PRAGMA auto_vacuum = INCREMENTAL")
    to.execute("PRAGMA journal_mode = OFF").fetchall()
    to.execute("PRAGMA synchronous = OFF").fetchall()  # the whole file is synced at the end
    to.execute("BEGIN")
    for statement in SCHEMA:
        to.execute(statement)
