"""What SQLite's errors mean for a broker, in plain words.

Owns: the table from SQLite's result codes to `StoreFailed` and `StoreDamaged`. Must not know: statements.
Source: sqlite.org/rescode.html.
"""

from __future__ import annotations

import sqlite3
from types import TracebackType

from peeklock.store.base import StoreDamaged, StoreFailed, StoreFull

_DAMAGE = {"SQLITE_CORRUPT", "SQLITE_NOTADB"}

_FULL = {"SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"}

_WORDS = {
    "SQLITE_IOERR_SHMSIZE": "the disk is full; free some space and start again",
    "SQLITE_FULL": "the disk is full; free some space and start again",
    "SQLITE_READONLY": "the file or its folder is read-only; check the owner and the mount",
    "SQLITE_CANTOPEN": "the file cannot be opened; check the folder's owner",
    "SQLITE_PERM": "the file cannot be opened; check the folder's owner",
    "SQLITE_BUSY": "another program has the file locked; stop it",
    "SQLITE_IOERR_FSYNC": "fsync failed, so what is on the disk is not known; check it, then start again",
    "SQLITE_IOERR_WRITE": "a write to the disk failed; check the disk, then start again",
    "SQLITE_IOERR_READ": "a read from the disk failed; check the disk",
    "SQLITE_IOERR": "the disk reported an error; check the disk, then start again",
}


class Plainly:
    """Let errors of SQLite out as errors of a store: `with Plainly("write batch 7"): ...`."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises: StoreDamaged, StoreFailed."""
        if isinstance(error, sqlite3.Error):
            raise plainly(self._doing, error) from error


def plainly(doing: str, error: sqlite3.Error) -> StoreDamaged | StoreFailed:
    """Return what an error of SQLite is as one of a store."""
    # Errors of the module itself (a closed connection) have no code.
    name: str = getattr(error, "sqlite_errorname", "")
    primary = "_".join(name.split("_")[:2])
    if primary in _DAMAGE:
        return StoreDamaged(f"could not {doing}: the file is damaged ({error}); `peeklock check` says where")
    kind_of_failure = StoreFull if name in _FULL else StoreFailed
    words = _WORDS.get(name) or _WORDS.get(primary) or "SQLite refused it"
    return kind_of_failure(f"could not {doing}: {words} ({error})")
