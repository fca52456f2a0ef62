"""The disk space of a store: free pages return to the disk, and a reserve waits for a full disk.

Dropped rows leave free pages, which new rows use first. Pages that stay free are returned in slices: after a
commit if they are most of the file, otherwise once no commit has come for a moment. A failure here is left
for a commit to meet: nothing that was acknowledged depends on it.

The ballast is a file. Sends are refused long before the disk is full, but other programs fill disks too.
Settling, stopping and starting need a few pages to free many: removing the file gives them. It is written
again once there is plenty of space.
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

CACHE_KEPT_S = 60.0
"""A connection keeps pages in memory for so long after its last use. Reading them again adds some 60 us to
the next commit. Our choice."""

BALLAST_NAME = "peeklock.ballast"

BALLAST_BYTES_MAX = 8 * 1024 * 1024
BALLAST_SHARE = 1 / 16
"""Of the volume: 4 MB of 64 MB. Our choice: some thousand commits of settlements."""

PLENTY = 3
"""The file is written if this many times its size is free."""


class Space:
    """The pages of a database; called by the writing thread."""

    def __init__(self, path: Path, idle_after_s: float) -> None:
        self._path = path
        self._idle_after_s = idle_after_s
        self._shrink_at = 0.0  # monotonic
        self._pages_tidied = 0  # `pages_written` at the last checkpoint without a commit
        self._pages_at_rest = -1  # `pages_written` when all was tidy
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
        """Return space while no commit comes; answer after how many seconds to go on, None = it is done.

        The memory of the connection is freed a while after the disk space.
        """
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
                if busy:  # it is being copied, or read
                    return self._idle_after_s
        except sqlite3.Error:
            return None
        if self.pages_written != self._pages_at_rest:
            self._pages_at_rest = self.pages_written
            return CACHE_KEPT_S
        free_cache(db)
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


class Ballast:
    """The reserve of one store, or of all stores of a volume; called by writing threads."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; nothing is touched before `take`."""
        self._path = folder / BALLAST_NAME

    def take(self, *, at_end: bool = False) -> None:
        """Write the file if it is missing and there is space for it; a failure leaves nothing behind.

        `at_end`: the store was closed and needs no more itself: take most of a smaller rest.
        """
        try:
            if self._path.exists():
                return
            volume = os.statvfs(self._path.parent)
            size_bytes = min(BALLAST_BYTES_MAX, int(volume.f_blocks * volume.f_frsize * BALLAST_SHARE))
            free_bytes = volume.f_bavail * volume.f_frsize
            if at_end:
                size_bytes = min(size_bytes, free_bytes * 3 // 4)
            elif free_bytes < PLENTY * size_bytes:
                return
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(fd, 0, size_bytes)
            finally:
                os.close(fd)
        except OSError:
            self._path.unlink(missing_ok=True)

    def release(self) -> None:
        """Remove the file, if it is there."""
        with contextlib.suppress(OSError):
            self._path.unlink()


def free_cache(db: sqlite3.Connection) -> None:
    """Free the memory of the pages that a connection keeps: of many stores, few are in use at a time."""
    with contextlib.suppress(sqlite3.Error):
        db.execute("PRAGMA shrink_memory")


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
