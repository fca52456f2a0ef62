"""Opens a store for reading only, also while a broker runs, and creates no file beside it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peeklock.store.base import Definitions, StoreFailed
from peeklock.store.encoding import definitions
from peeklock.store.sqlite.errors import store_errors
from peeklock.store.sqlite.folder import DATABASE_NAME, is_held, require_finished
from peeklock.store.sqlite.format import check_header, read_format


@contextmanager
def open_read_only(path: Path, *, is_ours: bool = False) -> Iterator[sqlite3.Connection]:
    """Open a database to read the committed state. `is_ours`: this process holds the folder, idle."""
    wal, shm = Path(f"{path}-wal"), Path(f"{path}-shm")
    had_shm = shm.exists()
    # Reading through a WAL creates files; without one nothing is created.
    through_wal = (not is_ours and is_held(path.parent)) or (wal.exists() and wal.stat().st_size > 0)
    try:
        db = sqlite3.connect(
            f"{path.absolute().as_uri()}?{'mode=ro' if through_wal else 'immutable=1'}", uri=True
        )
        try:
            yield db
        finally:
            db.close()
    finally:
        if not had_shm and (is_ours or not is_held(path.parent)):  # else a broker has started
            shm.unlink(missing_ok=True)


def read_definitions(folder: Path) -> Definitions:
    """Return the definitions of a folder. Raises: StoreFailed, StoreDamaged, StoreTooNew, StoreUnfinished."""
    path = folder / DATABASE_NAME
    if not path.is_file():
        raise StoreFailed(f"there is no store in {folder}: {path} does not exist")
    require_finished(folder)
    check_header(path)
    with store_errors(f"read the definitions of {path}"), open_read_only(path) as db:
        read_format(db, path)
        return definitions.read_all(db.execute("SELECT k, v, checksum FROM kv ORDER BY k").fetchall())
