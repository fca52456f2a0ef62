"""Opens the database for the writing thread: settings of SQLite, a new store, one of an older format.

Source: sqlite.org/pragma.html, /wal.html.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from peeklock.store.base import StoreDamaged
from peeklock.store.encoding import definitions
from peeklock.store.sqlite import tail
from peeklock.store.sqlite.errors import store_errors
from peeklock.store.sqlite.folder import sync
from peeklock.store.sqlite.format import (
    EVENT_TABLE,
    EVENTS_SINCE,
    FORMAT,
    SCHEMA,
    check_header,
    is_new,
    read_format,
    release_entry,
    schema_damages,
)

PAGE_BYTES = 4096

WRITER_CACHE_KIB = 8 * 1024
"""What the next commits need again: the ends of both trees, and rows that are dropped soon after they were
written. With 32 MB no stage was faster."""

Durability = Literal["fsync", "os"]
Connect = Callable[..., sqlite3.Connection]
"""Makes connections, as `sqlite3.connect` does."""


def open_for_writing(
    path: Path, connect: Connect, durability: Durability, wal_bytes_max: int
) -> sqlite3.Connection:
    """Open a database, create its tables if it is new, and bring it to this release's format.

    Raises: StoreTooNew, StoreDamaged, StoreFailed.
    """
    check_header(path)
    tail.verify(path)
    with store_errors(f"open {path}"):
        db = connect(path, isolation_level=None, check_same_thread=False, cached_statements=32)
        try:
            new = is_new(db, path)
            if new:
                db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL").fetchall()
            set_durability(db, durability)
            db.execute("PRAGMA secure_delete = OFF").fetchall()
            db.execute("PRAGMA temp_store = MEMORY")
            db.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KIB}")
            db.execute(f"PRAGMA journal_size_limit = {wal_bytes_max}").fetchall()
            db.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
            if new:
                _write_schema(db, path, SCHEMA)
                sync(path.parent)  # SQLite syncs the contents of new files, not their names
                sync(path.parent.absolute().parent)
            elif (number := read_format(db, path)) < FORMAT:
                tables = [EVENT_TABLE] if number < EVENTS_SINCE else []
                _write_schema(db, path, [*tables, f"PRAGMA user_version = {FORMAT}"])
            for damage in schema_damages(db):
                raise StoreDamaged(damage)
        except BaseException:
            db.close()
            raise
        return db


def set_durability(db: sqlite3.Connection, durability: Durability) -> None:
    """Set what a commit over a connection survives."""
    db.execute(f"PRAGMA synchronous = {'FULL' if durability == 'fsync' else 'NORMAL'}")
    if sys.platform == "darwin" and durability == "fsync":
        # fsync on macOS leaves the data in the drive's cache.
        db.execute("PRAGMA fullfsync = ON")
        db.execute("PRAGMA checkpoint_fullfsync = ON")


def read_created_at(db: sqlite3.Connection) -> int:
    """Return when the namespace was created, UTC ms; 0 if that is damaged (`load_definitions` reports it)."""
    rows = db.execute("SELECT v FROM kv WHERE k = ?", (definitions.CREATED_AT_KEY,)).fetchall()
    return int(rows[0][0]) if rows and str(rows[0][0]).isdecimal() else 0


def _write_schema(db: sqlite3.Connection, path: Path, statements: tuple[str, ...] | list[str]) -> None:
    """Write tables, this release, and when the namespace was created: with its first entity, or now."""
    # The file holds keys: no other user may read it. The WAL gets the mode of its file. Source: wal.html.
    for file in path.parent.glob(f"{path.name}*"):
        with contextlib.suppress(PermissionError):  # another user's file, or a file system without modes
            file.chmod(0o600)
    db.execute("BEGIN IMMEDIATE")
    for statement in statements:
        db.execute(statement)
    [[first_ms]] = db.execute(
        "SELECT min(json_extract(v, '$.created_at_ms')) FROM kv WHERE k GLOB 'entity/*' AND json_valid(v)"
    ).fetchall()
    is_known = isinstance(first_ms, int) and first_ms > 0
    created_at_ms = first_ms if is_known else time.time_ns() // 1_000_000
    created = definitions.entry(definitions.CREATED_AT_KEY, str(created_at_ms))
    db.executemany("REPLACE INTO kv VALUES (?, ?, ?)", [created, release_entry()])
    db.execute("COMMIT")
    # Into the header of the file itself, which is read first at the next start.
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
