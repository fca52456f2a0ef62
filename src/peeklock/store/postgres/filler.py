"""Makes a store in a database of what a back-up or another store has; see `store.base.StoreFiller`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack

import psycopg

from peeklock.store.base import Blob, Entry, StoreFailed
from peeklock.store.encoding import definitions
from peeklock.store.postgres.connections import Connections
from peeklock.store.postgres.errors import store_error, store_errors
from peeklock.store.postgres.format import release_entry


class PostgresFiller:
    """A new store; it has a connection until all is written."""

    def __init__(self, connections: Connections, name: str) -> None:
        """Take the name, which no store has. Raises: StoreFailed, StoreTooNew."""
        self._connections = connections
        self._name = name
        self._shown = connections.shown
        self._has_created_at = False
        with ExitStack() as opened:
            self._db = opened.enter_context(connections.lent()).db
            try:
                found = self._db.execute(
                    "INSERT INTO peeklock.lease(name, is_whole, epoch, batch_no, expires) VALUES "
                    "(%s, false, 0, 0, clock_timestamp()) ON CONFLICT DO NOTHING RETURNING shard",
                    (name,),
                ).fetchone()
                if found is None:
                    raise StoreFailed(
                        f"{self._shown} has a store '{name}': restore into a database without one"
                    )
                self._shard = int(found[0])
                self._db.execute("SET statement_timeout = 0")
                self._db.execute("BEGIN")
            except psycopg.Error as error:
                raise store_error(self._doing, error) from error
            self._opened = opened.pop_all()

    @property
    def _doing(self) -> str:
        return f"restore into the store '{self._name}' in {self._shown}"

    def add_body_rows(self, rows: Iterable[Blob]) -> None:
        self._copy("body", rows)

    def add_frames(self, frames: Iterable[Blob]) -> None:
        self._copy("journal", frames)

    def add_event_row(self, no: int, data: bytes) -> None:
        self._copy("event", [(no, data)])

    def add_entries(self, entries: Iterable[Entry]) -> None:
        found = [entry for entry in entries if entry[0] != definitions.RELEASE_KEY]
        self._has_created_at |= any(key == definitions.CREATED_AT_KEY for key, _, _ in found)
        self._add_entries(found)

    def write(self) -> None:
        if not self._has_created_at:  # a store in memory has none
            created_at = str(time.time_ns() // 1_000_000)
            self._add_entries([definitions.entry(definitions.CREATED_AT_KEY, created_at)])
        self._add_entries([release_entry()])
        try:
            self._db.execute(
                "UPDATE peeklock.lease SET batch_no = (SELECT coalesce(max(no), 0) FROM peeklock.journal "
                "WHERE shard = %s) WHERE shard = %s",
                (self._shard, self._shard),
            )
            self._db.execute("COMMIT")
            self._end()
        except psycopg.Error as error:
            raise store_error(self._doing, error) from error

    def finish(self) -> None:
        with self._connections.lent() as link, store_errors(self._doing):
            link.db.execute("UPDATE peeklock.lease SET is_whole = true WHERE shard = %s", (self._shard,))

    def abandon(self) -> None:
        self._end()

    def _end(self) -> None:
        self._db.close()  # its settings are its own
        self._opened.close()

    def _copy(self, table: str, rows: Iterable[Blob]) -> None:
        columns = {"body": "data", "journal": "meta", "event": "data"}
        query = f"COPY peeklock.{table}(shard, no, {columns[table]}) FROM STDIN (FORMAT BINARY)"
        try:
            with self._db.cursor() as cursor, cursor.copy(query) as copy:
                copy.set_types(["int4", "int8", "bytea"])
                for no, data in rows:
                    copy.write_row((self._shard, no, data))
        except psycopg.Error as error:
            raise store_error(self._doing, error) from error

    def _add_entries(self, entries: Iterable[Entry]) -> None:
        rows = [(self._shard, key.encode(), text.encode(), checksum) for key, text, checksum in entries]
        try:
            with self._db.cursor() as cursor:
                cursor.executemany("INSERT INTO peeklock.kv VALUES (%s, %s, %s, %s)", rows)
        except psycopg.Error as error:
            raise store_error(self._doing, error) from error
