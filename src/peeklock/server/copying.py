"""`peeklock copy`: all stores of a broker that does not run, from a data folder into a database and back.

Every byte, number and name stays: it is the same store in another place. What a reader has is written by a
filler; until all is durable the target is no store, so that a copy that was interrupted is never served. The
source is held meanwhile and keeps what it has: start only one of the two.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from peeklock.server.disk import SYSTEM, store_name
from peeklock.server.restore import require_empty
from peeklock.server.system import namespaces
from peeklock.server.system.store import folder_of
from peeklock.store.base import Blob, StoreFailed, StoreFiller, StoreInUse, StoreReader
from peeklock.store.sqlite.filler import SqliteFiller
from peeklock.store.sqlite.folder import DATABASE_NAME, require_finished
from peeklock.store.sqlite.reader import SqliteReader

if TYPE_CHECKING:
    from peeklock.store.postgres.database import Database

PIECE_BYTES = 4 * 1024 * 1024

DEFAULT = store_name("", is_default=True)

_PREFIX = store_name("", is_default=False)

Progress = Callable[[str, int], object]
"""Is called with the name of a store, and bytes that were copied of it."""


class EventfulReader(StoreReader, Protocol):
    """A reader that has the event rows too."""

    def event_rows(self, after: int, bytes_max: int) -> list[Blob]:
        """Return the event rows above a number, as `StoreReader.frames` does."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied of a store."""

    frames: int
    rows: int
    last_no: int


class Place(Protocol):
    """Where stores are."""

    def names(self) -> list[str]:
        """Return the names of all stores; see `disk.store_name`. Raises: StoreError."""

    def reader(self, name: str) -> EventfulReader:
        """Return a reader of one. Raises: StoreError."""

    def filler(self, name: str) -> StoreFiller:
        """Return a filler of a new one. Raises: StoreError."""


class FolderPlace:
    """A data folder."""

    def __init__(self, data: Path) -> None:
        self._data = data

    @contextmanager
    def as_source(self) -> Iterator[Place]:
        """Hold it, so that no broker starts. Raises: StoreInUse, StoreFailed."""
        require_finished(self._data)
        if not (folder_of(self._data) / DATABASE_NAME).is_file():
            raise StoreFailed(
                f"{self._data} has no store of this release: name the folder of a broker, and start the "
                "broker of this release on it once if it is older"
            )
        yield self

    @contextmanager
    def as_target(self) -> Iterator[Place]:
        """Require that it is empty. Raises: StoreFailed."""
        require_empty(self._data)
        yield self

    def names(self) -> list[str]:
        others = sorted((self._data / namespaces.FOLDER).glob(f"*/{DATABASE_NAME}"))
        return [SYSTEM, DEFAULT, *(_PREFIX + path.parent.name for path in others)]

    def reader(self, name: str) -> SqliteReader:
        reader = SqliteReader(self._folder(name))
        if not reader.is_ours:
            writer = reader.writer_name()
            reader.close()
            raise StoreInUse(f"{self._data} is in use by {writer}: stop it, and copy again")
        return reader

    def filler(self, name: str) -> SqliteFiller:
        return SqliteFiller(self._folder(name))

    def _folder(self, name: str) -> Path:
        if name == SYSTEM:
            return folder_of(self._data)
        return self._data if name == DEFAULT else self._data / namespaces.FOLDER / name.removeprefix(_PREFIX)


class DatabasePlace:
    """A PostgreSQL database."""

    def __init__(self, url: str) -> None:
        """Raises: AddressInvalid; ImportError without psycopg."""
        from peeklock.store.postgres.address import Address

        self._address = Address(url)

    @contextmanager
    def as_source(self) -> Iterator[Place]:
        """Hold all stores, so that no broker starts. Raises: StoreInUse, StoreFailed."""
        from peeklock.store.postgres.leases import Held

        with self._opened() as database:
            names = database.names()
            if DEFAULT not in names or SYSTEM not in names:
                raise StoreFailed(f"{database.shown} has no stores of a broker: check the URL")
            with ExitStack() as held:
                for name in names:
                    taken = database.leases.take(name)
                    if isinstance(taken, Held):
                        raise StoreInUse(
                            f"the store '{name}' in {database.shown} is in use by {taken.owner}: stop it, "
                            f"and copy again; after a kill, {taken.left_s:.0f} s later"
                        )
                    held.callback(database.leases.release, taken)
                yield _Opened(database)

    @contextmanager
    def as_target(self) -> Iterator[Place]:
        """Require that it has no store. Raises: StoreFailed."""
        with self._opened() as database:
            if found := database.names():
                raise StoreFailed(
                    f"{database.shown} is not empty, it has a store '{found[0]}': name another database, or "
                    "run `DROP SCHEMA peeklock CASCADE` there; nothing was changed"
                )
            yield _Opened(database)

    @contextmanager
    def _opened(self) -> Iterator[Database]:
        from peeklock.store.postgres.database import CONNECTIONS_MIN, Database
        from peeklock.store.postgres.leases import Owner

        once = uuid.uuid4().hex
        owner = Owner(f"a copy, process {os.getpid()} on {socket.gethostname()}", once, once)
        with closing(Database(self._address, owner, connections=CONNECTIONS_MIN)) as database:
            yield database


class _Opened:
    """A database while its stores are copied."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def names(self) -> list[str]:
        return self._database.names()

    def reader(self, name: str) -> EventfulReader:
        from peeklock.store.postgres.reader import PostgresReader

        return PostgresReader(self._database.connections, name)

    def filler(self, name: str) -> StoreFiller:
        from peeklock.store.postgres.filler import PostgresFiller

        return PostgresFiller(self._database.connections, name)


def place(where: str) -> FolderPlace | DatabasePlace:
    """Return where stores are, by the URL of a database or the path of a folder. Raises: AddressInvalid."""
    return DatabasePlace(where) if "://" in where else FolderPlace(Path(where))


def copy(
    source: FolderPlace | DatabasePlace,
    target: FolderPlace | DatabasePlace,
    progress: Progress = lambda name, size_bytes: None,
) -> dict[str, Copied]:
    """Copy all stores; return what was copied, by name. Raises: StoreError, OSError."""
    done: dict[str, Copied] = {}
    with ExitStack() as opened, ExitStack() as unfinished:
        here, there = opened.enter_context(source.as_source()), opened.enter_context(target.as_target())
        # Without this store no broker starts: its reader holds a folder meanwhile.
        system = opened.enter_context(closing(here.reader(SYSTEM)))
        fillers = []
        # The default one first: in a folder, its mark is the one of the whole folder, and goes last.
        for name in sorted(here.names(), key=lambda name: name != DEFAULT):
            filler = there.filler(name)
            unfinished.callback(filler.abandon)
            with nullcontext(system) if name == SYSTEM else closing(here.reader(name)) as reader:
                done[name] = _copy_store(reader, filler, lambda size: progress(name, size))  # noqa: B023  # called before the next round
            fillers.append(filler)
        unfinished.pop_all()
        for filler in reversed(fillers):
            filler.finish()
    return done


def _copy_store(reader: EventfulReader, filler: StoreFiller, wrote: Callable[[int], object]) -> Copied:
    frames = rows = after = 0
    while found := reader.body_rows(after, PIECE_BYTES):
        filler.add_body_rows(found)
        rows, after = rows + len(found), found[-1][0]
        wrote(_size(found))
    after = 0
    while found := reader.frames(after, PIECE_BYTES):
        filler.add_frames(found)
        frames, after = frames + len(found), found[-1][0]
        wrote(_size(found))
    last_no, after = after, 0
    while found := reader.event_rows(after, PIECE_BYTES):
        for no, data in found:
            filler.add_event_row(no, data)
        after = found[-1][0]
        wrote(_size(found))
    filler.add_entries(reader.entries())
    filler.write()
    return Copied(frames, rows, last_no)


def _size(blobs: list[Blob]) -> int:
    return sum(len(data) for _, data in blobs)
