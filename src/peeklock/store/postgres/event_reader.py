"""Reads event rows while a broker runs, for the process that exports them.

A row that is visible need not survive: a backend that is ended while it waits for a standby leaves its batch
visible on the primary, and a promotion of the standby loses it. Another owner then writes other batches of
the same numbers. So what was read is confirmed before it counts: a commit of the reader's own waits for the
standby as each commit does, and the last row must still be there after it, as it was read. An owner begins a
batch when the one before has been confirmed, so what comes before that row survives with it.
"""

from __future__ import annotations

from typing import Any

from peeklock.broker.vocabulary.changes import EntityStored
from peeklock.store.base import StoreFailed
from peeklock.store.encoding import definitions, event_rows
from peeklock.store.postgres.connections import Connections
from peeklock.store.postgres.errors import store_errors
from peeklock.store.postgres.kept_text import KeptText, forget_texts
from peeklock.store.postgres.reader import as_entry

PIECE_ROWS = 256
"""Rows asked for at a time: some 1 MB of packed events."""

_ID = "id"
"""Key in `meta`."""

_MAKE_ID = "INSERT INTO peeklock.meta VALUES (%s, gen_random_uuid()) ON CONFLICT DO NOTHING"
_WRITE = "UPDATE peeklock.meta SET v = v WHERE k = %s"


def store_id(connections: Connections, name: str) -> str:
    """Return what no other store is called, in any database; it is made once. Raises: StoreError."""
    with connections.lent() as link, store_errors(f"find the store '{name}' in {connections.shown}"):
        link.db.execute(_MAKE_ID, (_ID,))
        found = link.db.execute(
            "SELECT v || '/' || shard FROM peeklock.meta, peeklock.lease WHERE k = %s AND name = %s",
            (_ID, name),
        ).fetchone()
    if found is None:
        raise StoreFailed(f"there is no store '{name}' in {connections.shown}")
    return str(found[0])


def log_head(connections: Connections, name: str, folder_id: str) -> KeptText:
    """Return the text in which a store keeps the head of its log in a folder. Raises: StoreError."""
    shard = store_id(connections, name).rpartition("/")[2]
    return KeptText(connections, f"{_heads_of(shard)}{folder_id}")


def forget_heads(connections: Connections, shard: int) -> None:
    """Forget the heads of the logs of a store that is removed. Raises: StoreError."""
    forget_texts(connections, _heads_of(shard))


def _heads_of(shard: object) -> str:
    return f"event-log/{shard}/"


class EventReader:
    """The event rows of one store of a database; it lends a connection for each call."""

    def __init__(self, connections: Connections, name: str) -> None:
        """Find the store. Raises: StoreError."""
        self._connections = connections
        self._name = name
        found = self._select("SELECT shard FROM peeklock.lease WHERE name = %s", name)
        if not found:
            raise StoreFailed(f"there is no store '{name}' in {connections.shown}")
        [(self._shard,)] = found

    def read(self, after: int, bytes_max: int) -> list[tuple[int, bytes]]:
        """Return (number, row) of the rows above `after`, ascending, until `bytes_max` is reached.

        Raises: StoreError.
        """
        rows: list[tuple[int, bytes]] = []
        size_bytes = 0
        query = "SELECT no, data FROM peeklock.event WHERE shard = %s AND no > %s ORDER BY no LIMIT %s"
        while size_bytes < bytes_max:
            piece = self._select(query, self._shard, rows[-1][0] if rows else after, PIECE_ROWS)
            rows += piece
            size_bytes += sum(len(data) for _, data in piece)
            if len(piece) < PIECE_ROWS:
                break
        return rows

    def last_no(self) -> int:
        """Return the number of the newest row, 0 if there is none. Raises: StoreError."""
        return self._number("SELECT coalesce(max(no), 0) FROM peeklock.event WHERE shard = %s")

    def last_batch_no(self) -> int:
        """Return the number of the newest batch, 0 if there is none. Raises: StoreError."""
        return self._number("SELECT coalesce(max(no), 0) FROM peeklock.journal WHERE shard = %s")

    def entities(self) -> list[EntityStored]:
        """Return the current entities. Raises: StoreError."""
        rows = self._select("SELECT k, v, checksum FROM peeklock.kv WHERE shard = %s ORDER BY k", self._shard)
        return definitions.read_all([as_entry(row) for row in rows]).entities

    def confirm(self, no: int, row_digest: bytes) -> None:
        """Raise StoreFailed unless the rows up to one survive what an acknowledged batch survives.

        `row_digest`: of that row as it was read, see `event_rows.digest`.
        """
        doing = f"confirm the events of '{self._name}' in {self._connections.shown}"
        with self._connections.lent() as link, store_errors(doing):
            link.db.execute(_WRITE, (_ID,))
            if link.warnings:
                raise StoreFailed(f"could not {doing}: {link.warnings[-1]}")
            row = link.db.execute(
                "SELECT data FROM peeklock.event WHERE shard = %s AND no = %s", (self._shard, no), binary=True
            ).fetchone()
        if row is None or event_rows.digest(row[0]) != row_digest:
            raise StoreFailed(
                f"batch {no} of '{self._name}' is not there as it was read: the database was promoted, or "
                "the row was given up; the events are read again"
            )

    def close(self) -> None:
        """Do nothing: each call has returned its connection."""

    def _number(self, sql: str) -> int:
        [(number,)] = self._select(sql, self._shard)
        return int(number)

    def _select(self, sql: str, *values: object) -> list[Any]:
        doing = f"read the events of '{self._name}' in {self._connections.shown}"
        with self._connections.lent() as link, store_errors(doing):
            return link.db.execute(sql, values, binary=True).fetchall()
