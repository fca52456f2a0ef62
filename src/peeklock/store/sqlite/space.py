"""Returns free pages of the database to the disk, and empties the WAL while no commit comes.

Dropped rows leave free pages, which new rows use first. Pages that stay free are returned in slices: after a
commit if they are most of the file, otherwise once no commit has come for a moment. A failure here is left
for a commit to meet: nothing that was acknowledged depends on it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path

from peeklock.store.sqlite.checkpointer import CHECKPOINT_PAGES, checkpoint

FREE_PAGES_KEPT = 1024
"""4 MB of free pages are left for the next rows."""

BUSY_FREE_PAGES_MIN = 4096
"""Above 16 MB, and half of the file, free pages are returned also while commits go on."""

SHRINK_S = 0.001
IDLE_SHRINK_S = 0.005
"""How long pages are returned at a time, while commits go on and while none comes: one page takes 4 us, or
300 when many are free. A commit that comes meanwhile waits for it."""

REWRITE_PAGES_MAX = 2048
"""Up to 8 MB in use are rewritten as a whole instead, when idle: some 20 ms, however many pages are free."""

SHRINK_EVERY_S = 0.5
"""How often, while commits go on, free pages are counted. The file is cut when the WAL is copied, 1 ms for
each MB, and the writer waits for that; so little is returned at a time."""

IDLE_WAL_BYTES_MAX = 1024 * 1024
"""A larger WAL is emptied when idle."""


class Space:
    """The pages of a database; called by the writing thread."""

    def __init__(self, path: Path, idle_after_s: float) -> None:
        self._path = path
        self._idle_after_s = idle_after_s
        self._shrink_at = 0.0  # monotonic
        self._pages_tidied = 0  # `pages_written` at the last checkpoint without a commit
        self.pages_written = 0
        """About how many, since the start."""

    def is_time(self) -> bool:
        """Return whether to call `shrink_if_mostly_free`; at most every `SHRINK_EVERY_S`."""
        now = time.monotonic()
        if now < self._shrink_at:
            return False
        self._shrink_at = now + SHRINK_EVERY_S
        return True

    def shrink_if_mostly_free(self, db: sqlite3.Connection) -> None:
        """Return space while commits go on."""
        with contextlib.suppress(sqlite3.Error):
            free, pages = _page_counts(db)
            if free > BUSY_FREE_PAGES_MIN and 2 * free > pages:
                self._shrink(db, free, SHRINK_S)

    def tidy(self, db: sqlite3.Connection) -> float | None:
        """Return space while no commit comes; answer after how many seconds to go on, None = it is done."""
        try:
            free, pages = _page_counts(db)
            if free > FREE_PAGES_KEPT:
                if pages - free <= REWRITE_PAGES_MAX:
                    db.execute("VACUUM")
                else:
                    self._shrink(db, free - FREE_PAGES_KEPT, IDLE_SHRINK_S)
                    if self.pages_written - self._pages_tidied >= CHECKPOINT_PAGES:
                        self._pages_tidied = self.pages_written
                        checkpoint(db)
                return 0
            if _size_of(f"{self._path}-wal") > IDLE_WAL_BYTES_MAX:
                [(busy, _, _)] = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                return self._idle_after_s if busy else None  # it is being copied, or read
        except sqlite3.Error:
            return None
        return None

    def _shrink(self, db: sqlite3.Connection, pages_max: int, time_max_s: float) -> None:
        pages = 0
        until = time.monotonic() + time_max_s
        db.execute("BEGIN IMMEDIATE")
        try:
            while pages < pages_max and time.monotonic() < until:
                # One at a time: the cost of a page is not known before, and `execute` takes one step only.
                db.execute("PRAGMA incremental_vacuum(1)").close()
                pages += 1
            db.execute("COMMIT")
        except sqlite3.Error:  # a full disk: the next commit begins a transaction of its own
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        self.pages_written += 2 * pages


def _page_counts(db: sqlite3.Connection) -> tuple[int, int]:
    """Return (free pages, all pages)."""
    [[free]] = db.execute("PRAGMA freelist_count").fetchall()
    [[pages]] = db.execute("PRAGMA page_count").fetchall()
    return free, pages


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
