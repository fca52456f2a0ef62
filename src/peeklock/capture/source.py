"""Where the events of one store are: in a folder, or in a database.

Owns: what the exporter asks of a store, and which store a request of the broker names. Must not know: how
rows become a log. psycopg is loaded with the first store in a database.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from peeklock.broker.vocabulary.changes import EntityStored
from peeklock.capture.folder import STORE_MARK_NAME, MarkedStore, read_mark, write_mark
from peeklock.capture.head import Head, Heads
from peeklock.store.base import StoreFailed
from peeklock.store.sqlite.event_reader import EventReader as FolderReader
from peeklock.store.sqlite.event_reader import committed_state

if TYPE_CHECKING:
    from peeklock.store.postgres.connections import Connections

CONNECTIONS = 1
"""To each database. One thread serves all logs."""

APPLICATION_NAME = "peeklock event log"
"""By which the server and its administrator know the connections."""


class EventReader(Protocol):
    """Reads the event rows of a store, each call in a short transaction. Calls raise StoreError."""

    def read(self, after: int, bytes_max: int) -> list[tuple[int, bytes]]:
        """Return (number, row) of the rows above `after`, ascending, until `bytes_max` is reached."""

    def last_no(self) -> int:
        """Return the number of the newest row, 0 if there is none."""

    def last_batch_no(self) -> int:
        """Return the number of the newest batch, 0 if there is none."""

    def entities(self) -> list[EntityStored]:
        """Return the current entities."""

    def confirm(self, no: int, row_digest: bytes) -> None:
        """Raise StoreFailed unless the rows up to one survive what an acknowledged batch survives.

        `row_digest`: of that row as it was read, see `event_rows.digest`.
        """

    def close(self) -> None:
        """Read no more."""


class EventSource(MarkedStore, Protocol):
    """One store."""

    def committed_state(self) -> object:
        """Return what differs after each commit, None = only a reader can tell.

        Call it only while no reader is open.
        """

    def open(self) -> EventReader:
        """Return a reader. Raises: StoreError."""


class FolderSource:
    """The store in a folder."""

    heads: Heads | None = None

    def __init__(self, folder: Path) -> None:
        """Touch nothing. `folder`: the data folder of a broker."""
        self.folder = folder
        self.shown = f"the store {folder}"

    def read_mark(self) -> str | None:
        return read_mark(self.folder / STORE_MARK_NAME)

    def write_mark(self, log_id: str) -> None:
        write_mark(self.folder / STORE_MARK_NAME, log_id)

    def committed_state(self) -> object:
        return committed_state(self.folder)

    def open(self) -> EventReader:
        return FolderReader(self.folder)


class DatabaseSource:
    """A store in a PostgreSQL database. Its mark is made with the database, and never written."""

    folder = None

    def __init__(self, url: str, name: str, durability: str, epoch: int) -> None:
        """Connect to nothing yet.

        Args:
            url: of the database.
            name: of the store, see `server.disk.store_name`.
            durability: of the broker, `fsync`, `os` or `replicated`.
            epoch: of the broker's lease on the store, which counts its owners.
        """
        self._connections = _connections(url, durability)
        self._name = name
        self._epoch = epoch
        self.shown = f"the store '{name}' in {self._connections.shown}"

    def read_mark(self) -> str | None:
        from peeklock.store.postgres.event_reader import store_id

        return store_id(self._connections, self._name)

    def write_mark(self, log_id: str) -> None:
        raise StoreFailed(f"{self.shown} has its own id, and cannot take {log_id}")

    @property
    def heads(self) -> Heads:
        return self

    def head(self, folder_id: str, writer: str, shown: str) -> Head:
        from peeklock.store.postgres.event_reader import log_head

        return Head(log_head(self._connections, self._name, folder_id), self._epoch, writer, shown)

    def committed_state(self) -> object:
        return None

    def open(self) -> EventReader:
        from peeklock.store.postgres.event_reader import EventReader as DatabaseReader

        return DatabaseReader(self._connections, self._name)


def source_of(request: Mapping[str, Any]) -> EventSource:
    """Return the source that a request names: `{"data": DIR}`, or the arguments of `DatabaseSource`.

    Raises: StoreFailed.
    """
    return FolderSource(Path(request["data"])) if "data" in request else DatabaseSource(**request)


@functools.cache
def _connections(url: str, durability: Any) -> Connections:
    """Return the connections to a database, which all its stores share. Raises: StoreFailed."""
    try:
        from peeklock.store.postgres.address import Address
        from peeklock.store.postgres.connections import Connections
    except ImportError as missing:
        raise StoreFailed(f"{missing}: pip install 'peeklock[postgres]'") from missing
    return Connections(Address(url), APPLICATION_NAME, durability, CONNECTIONS)
