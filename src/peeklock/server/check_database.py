"""`peeklock check` of a PostgreSQL database, on which a broker may run."""

from __future__ import annotations

from contextlib import closing

from peeklock.broker.content.overlay import is_bodiless
from peeklock.server.disk import SYSTEM
from peeklock.store.base import StoreError, StoreFailed
from peeklock.store.check import Report, check_rows
from peeklock.store.postgres.address import Address, AddressInvalid
from peeklock.store.postgres.checking import PostgresRows
from peeklock.store.postgres.connections import Connections
from peeklock.store.postgres.database import store_names
from peeklock.store.postgres.reader import PostgresReader

_CONNECTIONS = 2


def check(url: str) -> Report:
    """Verify all stores of a database, each as of one instant. Raises: StoreFailed, StoreTooNew."""
    try:
        address = Address(url)
    except AddressInvalid as failure:
        raise StoreFailed(f"--store: {failure}") from failure
    report = Report()
    with closing(Connections(address, "peeklock check", "os", _CONNECTIONS, reads_only=True)) as connections:
        names = store_names(connections)
        if SYSTEM not in names:
            raise StoreFailed(f"{address.shown} has no stores of a broker: check the URL")
        for name in names:
            report.say(f"store '{name}' in {address.shown}")
            try:
                with closing(PostgresReader(connections, name)) as reader:
                    _check(reader, report)
            except StoreError as failure:
                report.damage(f"the store '{name}': {failure}")
    report.close("; nothing was changed")
    return report


def _check(reader: PostgresReader, report: Report) -> None:
    with reader.at_one_instant():
        last_no, acknowledged_no = reader.ends().last_no, reader.acknowledged_no()
        if last_no != acknowledged_no:
            report.damage(f"the journal ends with batch {last_no}, and {acknowledged_no} was acknowledged")
        check_rows(PostgresRows(reader), report, is_bodiless)
