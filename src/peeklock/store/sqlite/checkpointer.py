"""Copies the WAL of a SQLite database into the database itself, while commits go on.

By default SQLite does it within the commit that makes the WAL long, which takes tens of milliseconds while
all clients wait. A separate connection copies without disturbing the writer. But the WAL starts over only
when all of it is copied, which rarely happens under load: so when it is long, the writer copies the rest
between two commits.

Source: sqlite.org/wal.html, "Checkpointing"; /pragma.html#pragma_wal_checkpoint.
"""

from __future__ import annotations

import sqlite3
from asyncio import Future
from collections.abc import Callable

from peeklock.store.base import StoreError
from peeklock.store.worker import Pool, Worker

CHECKPOINT_PAGES = 300
"""So many new pages, 1.2 MB, are copied at a time: some 1 ms and two fsyncs, for which the fsync of a commit
may wait. With more, a longer end of the WAL has no proof but the witness."""

WAL_PAGES_MAX = 8000
"""The WAL starts over at 32 MB."""


class Checkpointer:
    """Called on the event loop; works in threads of a pool."""

    def __init__(
        self,
        pool: Pool,
        connect: Callable[[], sqlite3.Connection],
        finish: Callable[[], Future[None]],
        pages_max: Callable[[], int],
    ) -> None:
        """Do nothing before there is enough to copy.

        Args:
            pool: whose threads copy.
            connect: opens the connection; may raise StoreError.
            finish: has the writer copy the rest.
            pages_max: returns the length of the WAL at which it starts over.
        """
        self._connect = connect
        self._finish = finish
        self._pages_max = pages_max
        self._worker = Worker(pool)
        self._db: sqlite3.Connection | None = None
        self._pages_seen = 0
        self._busy = False

    def look(self, pages_written: int) -> None:
        """Begin to copy if enough pages were written, of so many since the start."""
        if pages_written - self._pages_seen >= CHECKPOINT_PAGES and not self._busy:
            self._pages_seen = pages_written
            self._busy = True
            self._worker.submit(self._copy).add_done_callback(self._copied)

    def _copy(self) -> int:
        if self._db is None:
            try:
                self._db = self._connect()
            except StoreError:
                return WAL_PAGES_MAX  # the writer copies all of it
        return checkpoint(self._db)

    def _copied(self, copying: Future[int]) -> None:
        if copying.result() < self._pages_max():
            self._busy = False
        else:
            self._finish().add_done_callback(self._finished)

    def _finished(self, finishing: Future[None]) -> None:
        self._busy = False

    async def close(self) -> None:
        """Close the connection, after the copying under way."""
        if self._busy or self._db is not None:
            await self._worker.submit(self._disconnect)

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()


def checkpoint(db: sqlite3.Connection | None) -> int:
    """Copy the pages of the WAL that no connection holds; return the length of the WAL in pages.

    A failure is left for a commit to meet: the WAL keeps the pages that were not copied.
    """
    if db is None:
        return 0
    try:
        [(_, pages, _)] = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    except sqlite3.Error:
        return 0
    return int(pages)
