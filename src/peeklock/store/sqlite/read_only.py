"""A store that is only looked at: opened without touching it, also while a broker runs.

Owns: how a database is opened so that nothing beside it is made or left. Must not know: what is looked for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peeklock.store.base import Definitions, StoreFailed
from peeklock.store.encoding import definitions
from peeklock.store.sqlite.errors import Plainly
from peeklock.store.sqlite.folder import DATABASE_NAME, is_held
from peeklock.store.sqlite.format import check_header, read_format


@contextmanager
def looked_at(path: Path, *, is_ours: bool = False) -> Iterator[sqlite3.Connection]:
    """Open a database to read what was committed.

    `is_ours`: this process holds the folder, and does not write now.
    """
    wal, shm = Path(f"{path}-wal"), Path(f"{path}-shm")
    had_shm = shm.exists()
    # Without a WAL nothing beside the file has to be made, as reading through one would.
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
        if not had_shm and (is_ours or not is_held(path.parent)):  # a broker that started meanwhile needs it
            shm.unlink(missing_ok=True)


def read_definitions(folder: Path) -> Definitions:
    """Return the entities and rules of a folder. Raises: StoreFailed, StoreDamaged, StoreTooNew."""
    path = folder / DATABASE_NAME
    if not path.is_file():
        raise StoreFailed(f"there is no store in {folder}: {path} does not exist")
    check_header(path)
    with Plainly(f"read the definitions of {path}"), looked_at(path) as db:
        read_format(db, path)
        return definitions.read_all(db.execute("SELECT k, v, checksum FROM kv ORDER BY k").fetchall())
