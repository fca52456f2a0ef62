"""Ways to damage a store that is closed."""

from __future__ import annotations

import sqlite3
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
