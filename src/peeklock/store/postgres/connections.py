"""A bounded number of connections to a database, each lent to one job at a time.

One that is idle may be broken: a server that restarts, or an administrator, ends it. So it is looked at
before it is lent, and a job loses only a connection that breaks under it.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.types.numeric import Int8BinaryDumper

from peeklock.store.base import StoreFailed
from peeklock.store.postgres import refusals
from peeklock.store.postgres.address import Address
from peeklock.store.postgres.errors import READ_ONLY, Kind, connect_error, kind_of, store_error
from peeklock.store.postgres.format import make_tables, require_tables
from peeklock.store.postgres.reach import Reach
from peeklock.store.postgres.refusals import Db, Durability

STATEMENT_S = 5
"""For a statement; the wait for a standby at the end of a transaction does not count."""


class Unreachable(StoreFailed):
    """No connection could be made: nothing was sent."""


class Link:
    """A connection, and the warnings that came over it."""

    def __init__(self, db: Db) -> None:
        self.db = db
        self.warnings: list[str] = []
        """A wait for a standby that somebody cancelled ends with a warning, and the commit looks as if it
        had succeeded. Source: PostgreSQL's SyncRepWaitForLSN."""
        db.add_notice_handler(self._take)

    def _take(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self.warnings.append(notice.message_primary or "")

    @property
    def is_usable(self) -> bool:
        """Whether it is idle and nothing has come over it, such as its end."""
        pgconn = self.db.pgconn
        if self.db.closed or pgconn.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            return False
        poll = select.poll()
        poll.register(pgconn.socket, select.POLLIN)
        return not poll.poll(0)


class Connections:
    """Connections of one process to one database."""

    def __init__(
        self,
        address: Address,
        application_name: str,
        durability: Durability,
        most: int,
        *,
        reads_only: bool = False,
    ) -> None:
        """Connect to nothing yet.

        Args:
            address: of the database.
            application_name: by which the server and its administrator know them.
            durability: what commits over them survive.
            most: so many at a time; a job that needs one more waits.
            reads_only: make no tables, and upgrade none.
        """
        self.reach = Reach()
        self._address = address
        self._parameters = address.parameters(application_name)
        self._durability = durability
        self._prepare = require_tables if reads_only else make_tables
        self._free = threading.BoundedSemaphore(most)
        self._idle: list[Link] = []
        self._checked = False
        """Whether the tables are there, and no pool shares sessions."""

    @property
    def shown(self) -> str:
        """Where they lead."""
        return self._address.shown

    @contextmanager
    def lent(self) -> Iterator[Link]:
        """Lend a connection to a job, which is done with it at the end of the context.

        Raises: Unreachable; StoreFailed, StoreTooNew, StoreDamaged for a server that cannot be used.
        """
        with self._free:
            link = self._take()
            try:
                yield link
            except psycopg.Error as error:
                if error.sqlstate == READ_ONLY:
                    link.db.close()  # the next one leads to the primary
                if kind_of(error) is Kind.LOST:
                    self.reach.missed(str(error))
                raise
            else:
                self.reach.met()
            finally:
                if link.is_usable:
                    link.warnings.clear()
                    self._idle.append(link)
                else:
                    link.db.close()

    def close(self) -> None:
        """Close the idle ones; none is lent."""
        while self._idle:
            self._idle.pop().db.close()

    def _take(self) -> Link:
        while True:
            try:
                link = self._idle.pop()  # the last one used: few are in use where few are needed
            except IndexError:
                return Link(self._connect())
            if link.is_usable:
                return link
            link.db.close()

    def _connect(self) -> Db:
        try:
            db = self._open()
        except psycopg.OperationalError as error:
            self.reach.missed(str(error))
            raise Unreachable(connect_error(self.shown, self._parameters.get("user"), error)) from error
        try:
            refusals.check_version(db, self.shown)
            db.execute(f"SET statement_timeout = '{STATEMENT_S}s'")
            refusals.set_durability(db, self.shown, self._durability)
            if not self._checked:
                refusals.check_pooling(db, self.shown, self._open)
                self._prepare(db, self.shown)
                self._checked = True
        except psycopg.OperationalError as error:
            db.close()
            self.reach.missed(str(error))
            raise Unreachable(str(store_error(f"connect to {self.shown}", error))) from error
        except BaseException:
            db.close()
            raise
        self.reach.met()
        return db

    def _open(self) -> Db:
        db: Db = psycopg.connect(**self._parameters, autocommit=True)  # type: ignore[arg-type]  # all are texts
        db.adapters.register_dumper(int, Int8BinaryDumper)  # one type: one prepared statement for a query
        db.prepare_threshold = 0
        db.prepared_max = None
        return db
