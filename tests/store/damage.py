"""Ways to look into a store that is closed, and to damage it."""

from __future__ import annotations

import sqlite3
import zlib
from contextlib import closing
from pathlib import Path


def meddle(path: Path, *statements: str) -> None:
    """Change a database behind the store's back."""
    db = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()


def flip(path: Path, table: str, no: int, at: int) -> None:
    """Flip a bit of one byte in a frame (`journal`) or body row (`body`)."""
    column = {"journal": "meta", "body": "data"}[table]
    db = sqlite3.connect(path, isolation_level=None)
    with db.blobopen(table, column, no) as blob:
        blob[at] ^= 0x10
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()


def put_frame(path: Path, no: int, meta: bytes) -> None:
    """Put another frame in the place of one."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("UPDATE journal SET meta = ? WHERE no = ?", (meta, no))
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()


def write_entry(path: Path, key: str, text: str) -> None:
    """Write an entry of `kv` as a store would, its checksum right."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("REPLACE INTO kv VALUES (?, ?, ?)", (key, text, zlib.crc32(f"{key}={text}".encode())))
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()


def frames_of(path: Path) -> dict[int, bytes]:
    """Return the frames of a database by number, as they are in it."""
    db = sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)
    found = dict(db.execute("SELECT no, meta FROM journal").fetchall())
    db.close()
    return found


def format_of(path: Path) -> int:
    """Return the format that the header of the file itself names."""
    return int.from_bytes(path.read_bytes()[60:64], "big")


def release_of(path: Path) -> str | None:
    """Return the release that a store names as the one that wrote its format."""
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT v FROM kv WHERE k = 'release'").fetchall()
    return str(found[0][0]) if found else None
