"""SQLite's errors as errors of a store, with what to do. Source: sqlite.org/rescode.html."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from peeklock.store.base import StoreDamaged, StoreFailed, StoreFull

_DAMAGE = {"SQLITE_CORRUPT", "SQLITE_NOTADB"}

_FULL = {"SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"}

_WORDS = {
    "SQLITE_IOERR_SHMSIZE": "the disk is full; free some space and start again",
    "SQLITE_FULL": "the disk is full; free some space and start again",
    "SQLITE_READONLY": "the file or its folder is read-only; check the owner and the mount",
    "SQLITE_CANTOPEN": "the file cannot be opened; check the folder's owner and the limit of open files",
    "SQLITE_PERM": "the file cannot be opened; check the folder's owner",
    "SQLITE_BUSY": "another program has the file locked; stop it",
    "SQLITE_IOERR_FSYNC": "fsync failed, so the state of the disk is unknown; check it, then start again",
    "SQLITE_IOERR_WRITE": "a write to the disk failed; check the disk, then start again",
    "SQLITE_IOERR_READ": "a read from the disk failed; check the disk",
    "SQLITE_IOERR": "the disk reported an error; check the disk, then start again",
}


@contextmanager
def store_errors(doing: str) -> Iterator[None]:
    """Raise errors of SQLite as errors of a store: `with store_errors("write batch 7"): ...`.

    Raises: StoreDamaged, StoreFailed.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise store_error(doing, error) from error


def store_error(doing: str, error: sqlite3.Error) -> StoreDamaged | StoreFailed:
    """Return the error of a store for one of SQLite."""
    name: str = getattr(error, "sqlite_errorname", "")  # errors of the module itself have no code
    primary = "_".join(name.split("_")[:2])
    if primary in _DAMAGE:
        return StoreDamaged(f"could not {doing}: the file is damaged ({error}); `peeklock check` says where")
    kind = StoreFull if name in _FULL else StoreFailed
    words = _WORDS.get(name) or _WORDS.get(primary) or "SQLite refused it"
    return kind(f"could not {doing}: {words} ({error})")
