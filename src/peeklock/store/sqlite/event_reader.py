"""Reads event rows while a broker runs, for the process that exports them.

An open transaction keeps SQLite's WAL from starting over, so each call is one short transaction. Rows that
are read are durable: SQLite shows a commit to other connections only once the WAL is synced.
Source: sqlite.org/wal.html, "Concurrency".
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from peeklock.broker.vocabulary.changes import EntityStored
from peeklock.store.base import StoreFailed
from peeklock.store.encoding import definitions
from peeklock.store.sqlite.errors import store_errors
from peeklock.store.sqlite.folder import DATABASE_NAME
from peeklock.store.sqlite.format import check_header, read_format

FORMAT_WITH_EVENTS = 4

CACHE_KIB = 1024  # each row is read once

_INDEX_HEADERS_BYTES = 96
"""Both copies of the header of the WAL's index. Source: sqlite.org/walformat.html, "WAL-Index Header"."""


def committed_state(folder: Path) -> tuple[int, int, bytes] | None:
    """Return what differs after each commit to the store in a folder, None = only a reader can tell.

    SQLite shows a commit to other connections by the header of the WAL's index, and compares its bytes to see
    whether there is one. Times and sizes of files would not do: a commit writes the WAL first and shows it
    after the sync, which may take seconds. Inode and time tell an index from an earlier one; the time of its
    last change of mode or owner would not do, as SQLite sets the owner with each opening.

    Call it only while this process has no connection to the store: to close a file releases all locks that
    the process has on it, and a broker that starts would then cut the index under the connection.
    Source: sqlite.org/howtocorrupt.html, "Posix advisory locks canceled".
    """
    try:
        fd = os.open(f"{folder}/{DATABASE_NAME}-shm", os.O_RDONLY)
    except OSError:  # no connection is open
        return None
    try:
        index = os.fstat(fd)
        header = os.pread(fd, _INDEX_HEADERS_BYTES, 0)
    except OSError:
        return None
    finally:
        os.close(fd)
    return (index.st_ino, index.st_mtime_ns, header) if len(header) == _INDEX_HEADERS_BYTES else None


class EventReader:
    """The event rows of the store in a folder."""

    def __init__(self, folder: Path) -> None:
        """Open the store. Raises: StoreFailed, StoreDamaged, StoreTooNew."""
        self._path = path = folder / DATABASE_NAME
        if not path.is_file():
            raise StoreFailed(f"there is no store in {folder}: {path} does not exist")
        check_header(path)
        with store_errors(f"open {path} for reading"):
            self._db = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, cached_statements=16
            )
            self._db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            found = read_format(self._db, path)
        if found < FORMAT_WITH_EVENTS:
            self._db.close()
            raise StoreFailed(
                f"{path} has format {found} and no events; start a broker with --capture on it first"
            )

    def read(self, after: int, bytes_max: int) -> list[tuple[int, bytes]]:
        """Return (number, row) of the rows above `after`, ascending, until `bytes_max` is reached.

        Raises: StoreFailed, StoreDamaged.
        """
        rows: list[tuple[int, bytes]] = []
        size_bytes = 0
        with store_errors(f"read the events of {self._path}"):
            cursor = self._db.execute("SELECT no, data FROM event WHERE no > ? ORDER BY no", (after,))
            for row in cursor:
                rows.append(row)
                size_bytes += len(row[1])
                if size_bytes >= bytes_max:
                    break
            cursor.close()  # ends the transaction
        return rows

    def last_no(self) -> int:
        """Return the number of the newest row, 0 if there is none. Raises: StoreFailed, StoreDamaged."""
        return self._number("SELECT coalesce(max(no), 0) FROM event")

    def last_batch_no(self) -> int:
        """Return the number of the newest batch, 0 if there is none. Raises: StoreFailed, StoreDamaged."""
        return self._number("SELECT coalesce(max(no), 0) FROM journal")

    def entities(self) -> list[EntityStored]:
        """Return the current entities. Raises: StoreFailed, StoreDamaged."""
        with store_errors(f"read the definitions of {self._path}"):
            entries = self._db.execute("SELECT k, v, checksum FROM kv ORDER BY k").fetchall()
        return definitions.read_all(entries).entities

    def confirm(self, no: int, row_digest: bytes) -> None:
        """Do nothing: a row that was read is durable."""

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def _number(self, sql: str) -> int:
        with store_errors(f"read {self._path}"):
            [[number]] = self._db.execute(sql).fetchall()
        return int(number)
