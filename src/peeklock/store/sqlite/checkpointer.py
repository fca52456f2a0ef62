"""Copies the WAL of a SQLite database into the database itself, while commits go on.

Owns: when that is done, and the thread and connection that do it. Must not know: what is committed.

SQLite would do it within the commit that makes the WAL long: with a full one that takes tens of milliseconds,
for which every client waits. A connection of its own copies without disturbing the writer. But the WAL begins
again from its start only when all of it is copied, which under load it hardly ever is: so when it is long,
the writer copies the little that came meanwhile, between two commits.

Source: sqlite.org/wal.html, "Checkpointing"; /pragma.html#pragma_wal_checkpoint.
"""

from __future__ import annotations

import sqlite3
from asyncio import Future
from collections.abc import Callable

from peeklock.store.sqlite.worker import Worker

CHECKPOINT_PAGES = 300
"""So many new pages, 1.2 MB, are copied at a time: some 1 ms and two fsyncs. The fsync of a commit may have
to wait for what these have to write. With more, more of the end of the WAL has no proof but the witness."""

WAL_PAGES_MAX = 8000
"""The WAL begins again at 32 MB. Source: architecture, durable store."""


class Checkpointer:
    """Called on the event loop, works in a thread of its own."""

    def __init__(self, finish: Callable[[], Future[None]], pages_max: Callable[[], int]) -> None:
        """Start the thread.

        Args:
            finish: lets the writer copy what is left.
            pages_max: how long the WAL may become before it begins again.
        """
        self._finish = finish
        self._pages_max = pages_max
        self._worker = Worker("peeklock-store-checkpointer")
        self._db: sqlite3.Connection | None = None
        self._pages_seen = 0
        self._busy = False

    async def open(self, connect: Callable[[], sqlite3.Connection]) -> None:
        """Connect, in the thread."""
        self._db = await self._worker.submit(connect)

    def look(self, pages_written: int) -> None:
        """Learn how many pages were written since the start, and begin to copy when they are enough."""
        if pages_written - self._pages_seen >= CHECKPOINT_PAGES and not self._busy:
            self._pages_seen = pages_written
            self._busy = True
            self._worker.submit(self._copy).add_done_callback(self._copied)

    def _copy(self) -> int:
        """Answer how long the WAL is, in pages."""
        return checkpoint(self._db)

    def _copied(self, copying: Future[int]) -> None:
        if copying.result() < self._pages_max():
            self._busy = False
        else:
            self._finish().add_done_callback(self._finished)

    def _finished(self, finishing: Future[None]) -> None:
        self._busy = False

    async def close(self) -> None:
        """End the thread; what is being copied is finished first."""
        await self._worker.submit(self._disconnect)
        self._worker.stop()

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()


def checkpoint(db: sqlite3.Connection | None) -> int:
    """Copy what can be copied without waiting for anybody; answer how long the WAL is, in pages.

    A failure is left for a commit to meet: nothing that was acknowledged depends on this, since the WAL keeps
    what could not be copied.
    """
    if db is None:
        return 0
    try:
        [(_, pages, _)] = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    except sqlite3.Error:
        return 0
    return int(pages)
