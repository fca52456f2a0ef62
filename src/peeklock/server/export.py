"""The configuration file that a data folder's queues agree with, for `peeklock export`.

Owns: how definitions are read without touching the folder, as `store.check` reads it, also while a broker
runs. Must not know: the form of the file, the form of a definition.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from peeklock.broker.descriptions import QueueDescription
from peeklock.server.config import format_config
from peeklock.store.base import StoreFailed
from peeklock.store.folder import DATABASE_NAME, is_held
from peeklock.store.format import check_header, read_format
from peeklock.store.sqlite import read_entities
from peeklock.store.sqlite_errors import Plainly


def export_config(folder: Path) -> str:
    """Give the text of the file. Raises: StoreFailed, StoreDamaged, StoreTooNew."""
    return format_config(_read_queues(folder))


def _read_queues(folder: Path) -> list[QueueDescription]:
    path = folder / DATABASE_NAME
    if not path.is_file():
        raise StoreFailed(f"there is no store in {folder}: {path} does not exist")
    check_header(path)
    held = is_held(folder)
    wal, shm = Path(f"{path}-wal"), Path(f"{path}-shm")
    had_shm = shm.exists()
    # Without a WAL nothing beside the file has to be made, as reading through one would.
    through_wal = held or (wal.exists() and wal.stat().st_size > 0)
    uri = f"{path.absolute().as_uri()}?{'mode=ro' if through_wal else 'immutable=1'}"
    try:
        with Plainly(f"read the queues of {path}"), closing(sqlite3.connect(uri, uri=True)) as db:
            read_format(db, path)
            entries = db.execute("SELECT k, v, checksum FROM kv ORDER BY k").fetchall()
    finally:
        if not had_shm and not is_held(folder):  # a broker that started meanwhile needs it
            shm.unlink(missing_ok=True)
    return [entity.description for entity in read_entities(entries)[0]]
