"""Wins space back after so many dropped rows.

Autovacuum looks at a database once a minute by default, and a broker may drop a gigabyte meanwhile. So the
process that drops the rows vacuums, in a thread of its own; no commit waits for it.
"""

from __future__ import annotations

import contextlib
import threading

import psycopg

from peeklock.store.base import StoreError
from peeklock.store.postgres.connections import STATEMENT_S, Connections

ROWS = 2_000
"""Dropped rows, and frames, until the tables are vacuumed. Our choice: 2,000 rows of 256 KiB are 512 MB."""

BYTES = 32 * 1024 * 1024
"""Dropped bytes, likewise."""

REST_S = 2.0
"""Between two rounds. Our choice: with naptime 5 s, 25 MB that live stayed at 123 MB under full load."""

TABLES = ("body", "journal", "event", "kv", "lease", "node")


class Vacuum:
    """Counts what is dropped."""

    def __init__(self, connections: Connections) -> None:
        """Begin the thread."""
        self._connections = connections
        self._rows = 0
        self._bytes = 0
        self._due = threading.Event()
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="peeklock-vacuum", daemon=True).start()

    def dropped(self, rows: int, size_bytes: int) -> None:
        """Count rows that were dropped; a count that two threads raise at once may be too small."""
        self._rows += rows
        self._bytes += size_bytes
        if self._rows >= ROWS or self._bytes >= BYTES:
            self._due.set()

    def stop(self) -> None:
        """End the thread, without waiting."""
        self._ended.set()
        self._due.set()

    def _run(self) -> None:
        while True:
            self._due.wait()
            if self._ended.is_set():
                return
            self._due.clear()
            self._rows = self._bytes = 0
            with contextlib.suppress(StoreError, psycopg.Error):  # the next round tries again
                self._vacuum()
            self._ended.wait(REST_S)

    def _vacuum(self) -> None:
        with self._connections.lent() as link:
            try:
                link.db.execute("SET statement_timeout = 0")
                # Those of another process are skipped: that one does the work.
                names = ", ".join(f"peeklock.{name}" for name in TABLES)
                link.db.execute(f"VACUUM (SKIP_LOCKED) {names}")
            finally:
                link.db.execute(f"SET statement_timeout = '{STATEMENT_S}s'")
