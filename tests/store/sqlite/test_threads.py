"""Many stores that share their threads."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from peeklock.store.base import Batch
from peeklock.store.sqlite import space
from peeklock.store.sqlite import store as store_module
from peeklock.store.sqlite.checkpointer import CHECKPOINT_PAGES
from peeklock.store.sqlite.opening import PAGE_BYTES
from peeklock.store.sqlite.pace import ALONE_S, Pace
from peeklock.store.sqlite.store import SqliteStore
from peeklock.store.sqlite.threads import CHECKPOINTERS, READERS, WRITERS, StoreThreads

LARGE = CHECKPOINT_PAGES * PAGE_BYTES
"""A batch of so many bytes is copied out of the WAL at once."""


def batch(no: int, size_bytes: int = 10) -> Batch:
    return Batch(no, [], {no: [b"x" * size_bytes]})


def store_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("peeklock-store")]


class Disk:
    """Makes connections of one store; each statement that starts with `hangs_at` waits for `is_ready`."""

    def __init__(self, hangs_at: str = "COMMIT") -> None:
        self.is_ready = threading.Event()
        self.is_ready.set()
        self.waits = threading.Event()
        self.connections = 0
        self.connections_max: float = math.inf
        self.seen: list[tuple[int, str]] = []
        """(number of the connection, statement)"""
        disk = self

        class Connection(sqlite3.Connection):
            number = 0

            def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
                disk.seen.append((self.number, sql))
                if sql.startswith(hangs_at) and not disk.is_ready.is_set():
                    disk.waits.set()
                    is_ready = disk.is_ready.wait(20)
                    disk.waits.clear()
                    assert is_ready
                return super().execute(sql, *values)

        self._kind = Connection

    def connect(self, *args: Any, **options: Any) -> sqlite3.Connection:
        if self.connections == self.connections_max:
            raise sqlite3.OperationalError("unable to open database file")
        self.connections += 1
        made = sqlite3.connect(*args, factory=self._kind, **options)
        made.number = self.connections
        return made


class Stores:
    """Stores in a folder, on the same threads."""

    def __init__(self, folder: Path, threads: StoreThreads) -> None:
        self._folder = folder
        self._threads = threads
        self._open: list[SqliteStore] = []

    def make(
        self, disk: Disk | None = None, pace: Pace | None = None, idle_after_s: float = 3600
    ) -> SqliteStore:
        store = SqliteStore(
            self._folder / str(len(self._open)),
            connect=sqlite3.connect if disk is None else disk.connect,
            durability="os",
            idle_after_s=idle_after_s,
            pace=pace,
            threads=self._threads,
        )
        self._open.append(store)
        return store

    async def open(
        self, disk: Disk | None = None, pace: Pace | None = None, idle_after_s: float = 3600
    ) -> SqliteStore:
        store = self.make(disk, pace, idle_after_s)
        await store.open()
        return store

    async def close(self) -> None:
        await asyncio.gather(*(store.close() for store in self._open))


@asynccontextmanager
async def stores_in(folder: Path, clock_s: Callable[[], float] = lambda: 0.0) -> AsyncIterator[Stores]:
    threads = StoreThreads(clock_s=clock_s)
    stores = Stores(folder, threads)
    try:
        yield stores
    finally:
        await stores.close()
        threads.close()


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


def test_fifty_stores_have_as_many_threads_as_two(tmp_path: Path) -> None:
    async def test() -> None:
        before = len(store_threads())
        async with stores_in(tmp_path) as stores:
            made = [stores.make() for _ in range(50)]
            await asyncio.gather(*(store.open() for store in made))
            for no in (1, 2):
                await asyncio.gather(*(store.commit(batch(no, LARGE)) for store in made))
            found = await asyncio.gather(*(store.read_body_rows([2]) for store in made))
            assert found == [{2: [b"x" * LARGE]}] * 50
            assert len(store_threads()) - before == WRITERS + READERS + CHECKPOINTERS

    run(test())


@pytest.mark.parametrize("are_shared", [True, False])
def test_threads_end_with_their_owner(tmp_path: Path, are_shared: bool) -> None:
    async def test() -> None:
        before = set(store_threads())
        threads = StoreThreads() if are_shared else None
        store = SqliteStore(tmp_path, threads=threads)
        await store.open()
        made = set(store_threads()) - before
        assert len(made) == (WRITERS + READERS + CHECKPOINTERS if are_shared else 3)
        assert all(thread.daemon for thread in made)
        await store.close()
        if threads is not None:
            assert made <= set(store_threads())
            threads.close()
        for thread in made:
            await asyncio.to_thread(thread.join, 20)
            assert not thread.is_alive()

    run(test())


def test_stores_whose_disk_hangs_hold_up_no_other(tmp_path: Path) -> None:
    """One fewer than there are writing threads; each has more commits waiting. Req: R-01."""

    async def test() -> None:
        async with stores_in(tmp_path) as stores:
            disks = [Disk() for _ in range(WRITERS - 1)]
            stuck = [await stores.open(disk) for disk in disks]
            sound = [await stores.open() for _ in range(3)]
            for disk in disks:
                disk.is_ready.clear()
            waiting = [store.commit(batch(no)) for store in stuck for no in (1, 2, 3)]
            for no in range(1, 11):
                await asyncio.gather(*(store.commit(batch(no)) for store in sound))
                assert await sound[0].read_body_rows([no]) == {no: [b"x" * 10]}
            for disk in disks:
                assert await asyncio.to_thread(disk.waits.wait, 20)
            assert await stuck[0].last_body_row() == 0
            assert not any(committing.done() for committing in waiting)
            for disk in disks:
                disk.is_ready.set()
            await asyncio.gather(*waiting)
            assert [frame.no async for frame in stuck[0].load()] == [1, 2, 3]

    run(test())


def test_copies_that_hang_hold_up_no_other_store(tmp_path: Path) -> None:
    """It commits, and it closes if it has nothing to copy."""

    async def test() -> None:
        async with stores_in(tmp_path) as stores:
            disks = [Disk("PRAGMA wal_checkpoint(PASSIVE)") for _ in range(CHECKPOINTERS)]
            for disk in disks:
                store = await stores.open(disk)
                disk.is_ready.clear()
                await store.commit(batch(1, LARGE))
                assert await asyncio.to_thread(disk.waits.wait, 20)
            sound = await stores.open()
            await sound.commit(batch(1))
            assert await sound.last_body_row() == 1
            await sound.close()
            for disk in disks:
                assert disk.waits.is_set()
                disk.is_ready.set()

    run(test())


def test_a_store_that_closes_ends_no_work_of_others(tmp_path: Path) -> None:
    async def test() -> None:
        async with stores_in(tmp_path) as stores:
            first, second = await stores.open(), await stores.open()
            committing = [second.commit(batch(no)) for no in range(1, 50)]
            await first.commit(batch(1))
            await first.close()
            await asyncio.gather(*committing)
            assert await second.last_body_row() == 49
            await second.commit(batch(50, LARGE))
            assert await second.read_body_rows([50]) == {50: [b"x" * LARGE]}

    run(test())


def test_the_loop_commits_only_for_a_store_that_is_alone(tmp_path: Path) -> None:
    """Whatever its own pace says: an fsync that takes long must not stop the others."""
    now_s = 0.0

    async def test() -> None:
        async with stores_in(tmp_path, lambda: now_s) as stores:
            first, second = [await stores.open(pace=Pace(math.inf)) for _ in range(2)]
            number = await done_at_once(first, 1)
            assert await stays_in_threads(second, 1)
            assert await stays_in_threads(first, number + 1)
            for at_s, other, no in ((ALONE_S * 0.99, second, 11), (ALONE_S, first, number + 11)):
                nonlocal now_s
                now_s = at_s
                assert await stays_in_threads(other, no)
            now_s += ALONE_S
            await done_at_once(first, number + 21)
            assert await stays_in_threads(second, 21)

    run(test())


async def done_at_once(store: SqliteStore, no: int) -> int:
    """Commit until the loop does it, as the thread rests; return the number of that batch."""
    while not (committing := store.commit(batch(no))).done():
        await committing
        no += 1
    return no


async def stays_in_threads(store: SqliteStore, no: int) -> bool:
    """Return whether none of ten commits is done on the loop."""
    done = []
    for each in range(no, no + 10):
        committing = store.commit(batch(each))
        done.append(committing.done())
        await committing
    return not any(done)


def test_a_store_opens_the_connections_that_it_needs(tmp_path: Path) -> None:
    """An idle one has a single connection."""

    async def test() -> None:
        async with stores_in(tmp_path) as stores:
            disk = Disk()
            store = await stores.open(disk)
            await store.commit(batch(1))
            assert disk.connections == 1
            await store.last_body_row()
            await store.last_body_row()
            assert disk.connections == 2
            await store.commit(batch(2, LARGE))
            await store.close()  # after the copying
            assert disk.connections == 3
            assert (3, "PRAGMA wal_checkpoint(PASSIVE)") in disk.seen

    run(test())


@pytest.mark.parametrize("which", ["writer", "reader"])
def test_a_store_at_rest_frees_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    for module in (store_module, space):
        monkeypatch.setattr(module, "CACHE_KEPT_S", 0.0 if which == "reader" or module is space else 3600)

    async def test() -> None:
        async with stores_in(tmp_path) as stores:
            disk = Disk("PRAGMA shrink_memory")
            disk.is_ready.clear()
            store = await stores.open(disk, idle_after_s=0 if which == "writer" else 3600)
            await store.commit(batch(1))
            if which == "reader":
                await store.last_body_row()
            assert await asyncio.to_thread(disk.waits.wait, 20)
            assert disk.seen[-1] == (1 if which == "writer" else 2, "PRAGMA shrink_memory")
            disk.is_ready.set()

    run(test())


def test_stores_of_a_volume_share_its_ballast(tmp_path: Path) -> None:
    """Each alone would reserve 8 MB. Req: R-06."""

    async def test() -> None:
        shared = space.Ballast(tmp_path)
        threads = StoreThreads()
        stores = [SqliteStore(tmp_path / name, ballast=shared, threads=threads) for name in "abc"]
        await asyncio.gather(*(store.open() for store in stores))
        await asyncio.gather(*(store.close() for store in stores))
        threads.close()

    run(test())
    files = [file.relative_to(tmp_path) for file in tmp_path.rglob(space.BALLAST_NAME)]
    assert files == [Path(space.BALLAST_NAME)]


def test_the_writer_copies_the_wal_if_no_other_connection_can_be_had(tmp_path: Path) -> None:
    """As when the process has too many open files. Req: R-06."""

    async def test() -> None:
        async with stores_in(tmp_path) as stores:
            disk = Disk()
            disk.connections_max = 1
            store = await stores.open(disk)
            await store.commit(batch(1, LARGE))
            await store.close()
            assert (1, "PRAGMA wal_checkpoint(PASSIVE)") in disk.seen

    run(test())
