"""Reads a store as it is stored, for a back-up, also while its owner runs; see `store.base.StoreReader`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg

from peeklock.store.base import Blob, Ends, Entry, StoreFailed, StoreUnfinished
from peeklock.store.postgres.connections import Connections
from peeklock.store.postgres.errors import store_error

PIECE_ROWS = 16
"""Rows asked for at a time: some 4 MB of bodies."""


class PostgresReader:
    """One store of a database; it has a connection until it is closed."""

    def __init__(self, connections: Connections, name: str) -> None:
        """Begin. Raises: StoreFailed, StoreTooNew, StoreUnfinished."""
        self._name = name
        self._shown = connections.shown
        with ExitStack() as opened:
            self._db = opened.enter_context(connections.lent()).db
            self._shard = 0
            found = self._select("SELECT shard, is_whole FROM peeklock.lease WHERE name = %s", name)
            if not found:
                raise StoreFailed(f"there is no store '{name}' in {self._shown}")
            [(self._shard, is_whole)] = found
            if not is_whole:
                raise StoreUnfinished(
                    f"the store '{name}' in {self._shown} is not whole: a restore into it runs, or was "
                    "interrupted"
                )
            self._opened = opened.pop_all()

    def ends(self) -> Ends:
        [found] = self._select(
            "SELECT coalesce(min(no), 0), coalesce(max(no), 0), "
            "(SELECT coalesce(max(no), 0) FROM peeklock.body WHERE shard = %s) "
            "FROM peeklock.journal WHERE shard = %s",
            self._shard,
            self._shard,
        )
        return Ends(*found)

    def frames(self, after: int, bytes_max: int) -> list[Blob]:
        return self._blobs("journal", "meta", after, bytes_max)

    def body_rows(self, after: int, bytes_max: int) -> list[Blob]:
        return self._blobs("body", "data", after, bytes_max)

    def event_rows(self, after: int, bytes_max: int) -> list[Blob]:
        """Return the event rows above a number, likewise."""
        return self._blobs("event", "data", after, bytes_max)

    def body_row(self, no: int) -> bytes | None:
        rows = self._select("SELECT data FROM peeklock.body WHERE shard = %s AND no = %s", self._shard, no)
        return rows[0][0] if rows else None

    def body_row_numbers(self) -> list[int]:
        query = "SELECT no FROM peeklock.body WHERE shard = %s ORDER BY no"
        return [no for (no,) in self._select(query, self._shard)]

    def entries(self) -> list[Entry]:
        query = "SELECT k, v, checksum FROM peeklock.kv WHERE shard = %s ORDER BY k"
        return [as_entry(row) for row in self._select(query, self._shard)]

    @contextmanager
    def at_one_instant(self) -> Iterator[None]:
        self._select("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield
        finally:
            self._select("ROLLBACK")

    def acknowledged_no(self) -> int:
        """Return the last batch that was acknowledged."""
        [(no,)] = self._select("SELECT batch_no FROM peeklock.lease WHERE shard = %s", self._shard)
        return int(no)

    def writer_name(self) -> str:
        [(epoch,)] = self._select("SELECT epoch FROM peeklock.lease WHERE shard = %s", self._shard)
        return f"epoch {epoch}"

    def close(self) -> None:
        self._opened.close()

    def _blobs(self, table: str, column: str, after: int, bytes_max: int) -> list[Blob]:
        found: list[Blob] = []
        size_bytes = 0
        query = f"SELECT no, {column} FROM peeklock.{table} WHERE shard = %s AND no > %s ORDER BY no LIMIT %s"
        while rows := self._select(query, self._shard, after, PIECE_ROWS):
            for no, data in rows:
                found.append((no, data))
                size_bytes += len(data)
                if size_bytes >= bytes_max:
                    return found
            after = found[-1][0]
        return found

    def _select(self, sql: str, *values: object) -> list[Any]:
        try:
            cursor = self._db.execute(sql, values, binary=True)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise store_error(f"read the store '{self._name}' in {self._shown}", error) from error


def as_entry(row: tuple[bytes, bytes, int]) -> Entry:
    """Return a row of `kv` as an entry; bytes that are no text fail its checksum."""
    key, text, checksum = row
    return key.decode(errors="replace"), text.decode(errors="replace"), checksum
