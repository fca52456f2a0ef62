"""What the SQLite store has beyond the contract: files, failures, space."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import os
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peeklock import __version__
from peeklock.broker.vocabulary.changes import EntityStored, MessageStored
from peeklock.broker.vocabulary.descriptions import QueueDescription
from peeklock.broker.vocabulary.message import LOST_BODY, Message
from peeklock.store.base import Batch, StoreDamaged, StoreFailed, StoreInUse, StoreTooNew
from peeklock.store.encoding import frames
from peeklock.store.sqlite import space
from peeklock.store.sqlite.folder import LOCK_NAME, FolderLock
from peeklock.store.sqlite.format import FORMAT
from peeklock.store.sqlite.pace import WRITTEN_BYTES_MAX, Pace
from peeklock.store.sqlite.store import SqliteStore
from tests.store.committer import RECORDS, payload
from tests.store.damage import flip, frames_of, meddle, put_frame

MB = 1_000_000


def batch(no: int, size: int = 10) -> Batch:
    message = Message(size)
    message.position = no
    message.body_row = no
    return Batch(no, [MessageStored(4, message)], {no: [b"x" * size]})


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


async def frame_numbers(store: SqliteStore) -> list[int]:
    return [frame.no async for frame in store.load()]


class Spied:
    """Makes connections and keeps them, so that a test can look at their settings or make them fail."""

    def __init__(self, kind: type[sqlite3.Connection] = sqlite3.Connection) -> None:
        self.kind = kind
        self.made: list[sqlite3.Connection] = []

    def __call__(self, *args: Any, **options: Any) -> sqlite3.Connection:
        connection = sqlite3.connect(*args, factory=self.kind, **options)
        self.made.append(connection)
        return connection

    def setting(self, name: str) -> Any:
        return self.made[0].execute(f"PRAGMA {name}").fetchall()[0][0]


# Durability


@pytest.mark.parametrize(("durability", "synchronous"), [("fsync", 2), ("os", 1)])
def test_durability_is_what_sqlite_is_told(tmp_path: Path, durability: Any, synchronous: int) -> None:
    """2 = FULL: fsync at each commit; 1 = NORMAL: at checkpoints only. Req: R-01."""
    spied = Spied()

    async def test() -> None:
        store = SqliteStore(tmp_path, durability=durability, connect=spied)
        await store.open()
        assert spied.setting("synchronous") == synchronous
        assert spied.setting("journal_mode") == "wal"
        assert spied.setting("auto_vacuum") == 2
        assert spied.setting("page_size") == 4096
        await store.close()

    asyncio.run(test())


def test_a_killed_process_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """Batches are there whole or not at all, and without a gap. Req: R-02."""
    folder = tmp_path / "data"
    acknowledged = 0
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-m", "tests.store.committer", str(folder)], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            first = int(child.stdout.readline())
            assert first in (acknowledged + 1, acknowledged + 2)  # one may have been durable and not yet told
            for _ in range(25):
                child.stdout.readline()
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().split("\n")
            acknowledged = max(first + 25, *(int(line) for line in rest[:-1]), 0)
            assert child.wait() == -signal.SIGKILL
        # A copy, so that the next process finds the folder as the kill left it.
        copy = tmp_path / f"copy after {acknowledged}"
        shutil.copytree(folder, copy)
        asyncio.run(check_whole(copy, acknowledged))


async def check_whole(folder: Path, acknowledged: int) -> None:
    store = SqliteStore(folder)
    await store.open()
    numbers = [frame.no async for frame in store.load() if len(frame.changes) == RECORDS]
    assert numbers in (list(range(1, acknowledged + 1)), list(range(1, acknowledged + 2)))
    for no in numbers:
        assert await store.read_body_rows([no]) == {no: [payload(no, slot) for slot in range(RECORDS)]}
    await store.close()


# Who may open it


def test_a_second_process_is_refused_and_told_who_holds_the_folder(tmp_path: Path) -> None:
    async def test() -> None:
        first, second = SqliteStore(tmp_path), SqliteStore(tmp_path)
        await first.open()
        with pytest.raises(
            StoreInUse, match=rf"in use by process {os.getpid()}, started 20\d\d-\d\d-\d\dT[\d:+]+;"
        ):
            await second.open()
        await first.commit(batch(1))
        await first.close()
        await second.open()
        assert await frame_numbers(second) == [1]
        await second.close()

    asyncio.run(test())


def made(folder: Path, *batches: Batch) -> Path:
    """Make a store with these batches and answer where its database is."""

    async def make() -> None:
        store = SqliteStore(folder)
        await store.open()
        for each in batches:
            await store.commit(each)
        await store.close()

    asyncio.run(make())
    return folder / "peeklock.db"


def opening_fails(folder: Path, error: type[Exception], match: str) -> None:
    store = SqliteStore(folder)
    with pytest.raises(error, match=match):
        asyncio.run(store.open())


def test_a_newer_format_is_refused_naming_both(tmp_path: Path) -> None:
    """The file is left as it was. Req: R-07."""
    path = made(tmp_path, batch(1))
    meddle(path, f"PRAGMA user_version = {FORMAT + 1}")
    before = path.read_bytes()
    opening_fails(
        tmp_path,
        StoreTooNew,
        f"has format {FORMAT + 1}, written by release {__version__}; this release, {__version__}, reads up "
        f"to {FORMAT}: start release {__version__} or a newer one, or restore a back-up that was made before "
        "the upgrade$",
    )
    assert path.read_bytes() == before


@pytest.mark.parametrize("unknown", ["DROP TABLE kv", "DELETE FROM kv", "UPDATE kv SET v = 'a b'"])
def test_a_newer_format_is_refused_also_where_its_release_is_not_known(tmp_path: Path, unknown: str) -> None:
    """Req: R-07."""
    path = made(tmp_path, batch(1))
    meddle(path, unknown, f"PRAGMA user_version = {FORMAT + 1}")
    opening_fails(
        tmp_path,
        StoreTooNew,
        f"has format {FORMAT + 1}, written by a newer release; this release, {__version__}, reads up to "
        f"{FORMAT}: start a newer release, or restore a back-up that was made before the upgrade$",
    )


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "peeklock.db"
    meddle(path, "PRAGMA application_id = 5", "CREATE TABLE t(x)")
    opening_fails(tmp_path, StoreDamaged, "is not a store of peeklock: its application id is 0x00000005")
    path.unlink()
    meddle(path, "CREATE TABLE t(x)")
    opening_fails(tmp_path, StoreDamaged, "is not a store of peeklock")
    path.write_bytes(b"no database at all" * 100)
    opening_fails(tmp_path, StoreDamaged, "is not a SQLite database")


def test_a_store_whose_making_was_cut_off_is_made_again(tmp_path: Path) -> None:
    """A process may die between the making of the file and of its tables."""
    (tmp_path / "peeklock.db").touch()
    made(tmp_path, batch(1))
    other = tmp_path / "other"
    other.mkdir()
    meddle(other / "peeklock.db", "PRAGMA journal_mode = WAL")
    made(other, batch(1))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    opening_fails(tmp_path / "file" / "data", StoreFailed, "cannot create the folder .*data: Not a directory")


def test_a_clean_close_leaves_one_database_file(tmp_path: Path) -> None:
    """The WAL is copied and removed: the file alone can be taken elsewhere."""
    path = made(tmp_path / "data", batch(1), batch(2))
    names = sorted(file.name for file in path.parent.iterdir())
    assert names == ["peeklock.db", "peeklock.lock", "peeklock.witness"]
    assert (path.parent / "peeklock.lock").read_bytes() == b""


def test_nobody_else_may_read_the_keys_in_a_new_store(tmp_path: Path) -> None:
    """Req: R-04"""

    async def test() -> None:
        store = SqliteStore(tmp_path / "data")
        await store.open()
        await store.commit(batch(1))
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "data").glob("*.db*")}
        assert modes == dict.fromkeys(("peeklock.db", "peeklock.db-wal", "peeklock.db-shm"), 0o600)
        await store.close()

    asyncio.run(test())


def test_a_killed_process_may_leave_the_lock_to_a_child_for_a_moment(tmp_path: Path) -> None:
    """A child has the open files of its parent until it begins its own program."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    file = tmp_path / LOCK_NAME
    file.write_text(f"process {dead.pid}, started 2026-01-01T00:00:00+00:00\n")
    fd = os.open(file, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    child = subprocess.Popen(["sleep", "0.3"], pass_fds=[fd])
    os.close(fd)
    lock = FolderLock(tmp_path)
    lock.take()
    lock.release()
    child.wait()


# Damage


def test_a_damaged_frame_body_or_definition_is_found_when_read(tmp_path: Path) -> None:
    """Req: R-03."""
    entity = Batch(3, [EntityStored(1, QueueDescription("orders"), 0, 0)])
    path = made(tmp_path, batch(1), batch(2), entity)
    flip(path, "journal", 2, 30)
    flip(path, "body", 1, 25)
    flip(path, "body", 2, 20)
    meddle(path, "UPDATE kv SET v = replace(v, '60000', '60001')")

    async def test() -> None:
        store = SqliteStore(tmp_path)
        await store.open()
        with pytest.raises(StoreDamaged, match="frame 2 fails its checksum"):
            await store.load_live()
        with pytest.raises(StoreDamaged, match="frame 2 fails its checksum"):
            await frame_numbers(store)
        with pytest.raises(StoreDamaged, match="frame 2 fails its checksum"):
            await store.read_head(10_000)
        found = await store.read_body_rows([1, 2])
        assert found[1][0] is LOST_BODY
        assert len(found[2]) == 0
        assert found[2][0] is LOST_BODY
        with pytest.raises(StoreDamaged, match="entry entity/000000000001 fails its checksum"):
            await store.load_definitions()
        await store.close()

    asyncio.run(test())


def test_a_gap_in_the_journal_is_found_when_read(tmp_path: Path) -> None:
    """Req: R-03."""
    path = made(tmp_path, *(batch(no) for no in range(1, 6)))
    meddle(path, "DELETE FROM journal WHERE no = 3")

    async def test() -> None:
        store = SqliteStore(tmp_path)
        await store.open()
        for read in (store.load_live(), frame_numbers(store)):
            with pytest.raises(StoreDamaged, match="frame 3 is missing from the journal: frame 4 comes next"):
                await read
        await store.close()

    asyncio.run(test())


def test_a_sound_frame_that_replaces_another_is_found_when_read(tmp_path: Path) -> None:
    """Also over a restart between the two that follow one another. Req: R-03."""
    made(tmp_path, *(batch(no) for no in range(1, 4)))
    path = made(tmp_path, *(batch(no) for no in range(4, 6)))
    put_frame(path, 3, frames.encode(Batch(3, []), frames.checksum_of(frames_of(path)[2])))

    async def test() -> None:
        store = SqliteStore(tmp_path)
        await store.open()
        for read in (store.load_live(), frame_numbers(store)):
            with pytest.raises(StoreDamaged, match="frame 4 does not follow frame 3"):
                await read
        await store.close()

    asyncio.run(test())


def test_damaged_pages_are_reported_as_damage(tmp_path: Path) -> None:
    """Req: R-03."""
    path = made(tmp_path, *(batch(no, 5000) for no in range(1, 50)))
    damaged = bytearray(path.read_bytes())
    for page in range(3, len(damaged) // 4096):
        damaged[page * 4096 : page * 4096 + 16] = b"\xff" * 16
    path.write_bytes(damaged)

    async def read_all() -> None:
        store = SqliteStore(tmp_path)
        await store.open()
        try:
            await store.load_live()
            await store.read_body_rows(range(1, 50))
        finally:
            await store.close()

    with pytest.raises(
        StoreDamaged, match=r"the file is damaged \(.*malformed\); `peeklock check` says where"
    ):
        asyncio.run(read_all())


# Failures of the world


def fails_plainly(store: SqliteStore, no: int, match: str) -> Callable[[], None]:
    """Commit until it fails at batch `no`; nothing is written after it, and the store still closes."""

    async def test() -> None:
        await store.open()
        for good in range(1, no):
            await store.commit(batch(good, 20_000))
        with pytest.raises(StoreFailed, match=match):
            await store.commit(batch(no, 1_000_000))
        with pytest.raises(StoreFailed, match=f"batch {no + 1} was not written: could not write batch {no}"):
            await store.commit(batch(no + 1))
        await store.close()

    return lambda: asyncio.run(test())


def test_a_full_disk_is_told_plainly_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """Req: R-06, R-02."""

    def connect(*args: Any, **options: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = sqlite3.connect(*args, **options)
        db.execute("PRAGMA max_page_count = 60").fetchall()  # SQLite's own way to a full disk
        return db

    store = SqliteStore(tmp_path, connect=connect)
    fails_plainly(store, 4, r"could not write batch 4 to .*peeklock.db: the disk is full; free some space")()
    assert numbers_in(tmp_path) == [1, 2, 3]


def test_a_full_disk_gives_up_its_ballast_and_the_write_is_done_again(tmp_path: Path) -> None:
    """Once; then the disk is full. Req: R-06."""
    spied = Spied()

    async def test() -> None:
        store = SqliteStore(tmp_path, connect=spied, ballast=space.Ballast(tmp_path))
        await store.open()
        ballast = tmp_path / "peeklock.ballast"
        assert ballast.stat().st_blocks
        await store.commit(batch(1, 20_000))
        writer = spied.made[0]

        def release() -> None:  # what the room that comes free is to SQLite's own limit
            writer.execute("PRAGMA max_page_count = 1000").fetchall()
            ballast.unlink()

        store._ballast.release = release  # type: ignore[method-assign]  # replaced to see the call
        assert store._writer is not None
        await store._writer.submit(lambda: writer.execute("PRAGMA max_page_count = 20").fetchall())
        await store.commit(batch(2, 1_000_000))
        assert not ballast.exists()
        assert await frame_numbers(store) == [1, 2]
        await store.close()
        assert ballast.exists()  # for the next start

    asyncio.run(test())


def test_a_failing_write_is_told_plainly_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """The kernel refuses to let the WAL grow. Req: R-06, R-02."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, hard))
    try:
        fails_plainly(
            SqliteStore(tmp_path), 4, r"could not write batch 4 to .*: a write to the disk failed"
        )()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert numbers_in(tmp_path) == [1, 2, 3]


def test_a_failing_fsync_ends_all_writing(tmp_path: Path) -> None:
    """What is durable is not known then, so nothing may be acknowledged after it. Req: R-01, R-06."""

    class Failing(sqlite3.Connection):
        commits = 0

        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql == "COMMIT":
                Failing.commits += 1
                if Failing.commits == 4:  # the first makes the tables
                    error = sqlite3.OperationalError("disk I/O error")
                    error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
                    raise error
            return super().execute(sql, *values)

    fails_plainly(
        SqliteStore(tmp_path, connect=Spied(Failing)), 3, "could not write batch 3 to .*: fsync failed"
    )()
    assert numbers_in(tmp_path) == [1, 2]


def numbers_in(folder: Path) -> list[int]:
    """Open the folder anew and give the numbers of its frames."""

    async def read() -> list[int]:
        store = SqliteStore(folder)
        await store.open()
        numbers = await frame_numbers(store)
        await store.commit(batch(numbers[-1] + 1))
        await store.close()
        return numbers

    return asyncio.run(read())


def test_a_body_is_read_while_a_commit_waits_for_the_disk(tmp_path: Path) -> None:
    disk_is_ready = threading.Event()
    disk_is_ready.set()

    class Slow(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql == "COMMIT":
                assert disk_is_ready.wait(20)
            return super().execute(sql, *values)

    async def test() -> None:
        store = SqliteStore(tmp_path, connect=Spied(Slow))
        await store.open()
        await store.commit(batch(1))
        disk_is_ready.clear()
        committing = asyncio.ensure_future(store.commit(batch(2)))
        assert await store.read_body_rows([1]) == {1: [b"x" * 10]}
        assert [frame.no for frame in await store.read_head(1000)] == [1]
        assert not committing.done()
        disk_is_ready.set()
        assert await committing > 0
        await store.close()

    asyncio.run(test())


# On the loop


class Threads(sqlite3.Connection):
    """Notes which thread commits; one that commits in the thread `fails_in` meets `error`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen: list[int] = []
        self.fails_in: int | None = None
        self.error = ("disk I/O error", "SQLITE_IOERR_FSYNC")

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql == "COMMIT":
            self.seen.append(threading.get_ident())
            if self.seen[-1] == self.fails_in:
                text, name = self.error
                error = sqlite3.OperationalError(text)
                error.sqlite_errorname = name
                raise error
        return super().execute(sql, *values)


async def opened(store: SqliteStore, spied: Spied) -> Threads:
    """Open a store; return the connection that writes, none of whose commits is noted yet."""
    await store.open()
    writer = spied.made[0]
    assert isinstance(writer, Threads)
    writer.seen.clear()
    return writer


def test_a_small_batch_is_committed_on_the_loop_and_any_other_in_the_thread(tmp_path: Path) -> None:
    spied = Spied(Threads)
    large = 1 + WRITTEN_BYTES_MAX

    async def test() -> None:
        store = SqliteStore(tmp_path, connect=spied, pace=Pace(math.inf))
        writer = await opened(store, spied)
        *in_thread, no = await done_at_once(store, 1)
        others = [
            batch(no + 1, large),
            Batch(no + 2, [EntityStored(1, QueueDescription("orders"), 0, 0)]),
            Batch(no + 3, [], {no + 3: [b""]}, truncate_before=no + 1),
            Batch(no + 4, [], {}, [1], dropped_bytes=large),
            Batch(no + 5, [], events=[], events_exported_to=1),
        ]
        for other in others:
            committing = store.commit(other)
            assert not committing.done()
            await committing
        last = await done_at_once(store, no + 6)
        assert await frame_numbers(store) == [*range(no + 1, no + 6), *last]
        here = threading.get_ident()
        threads = [False for _ in in_thread] + [True] + [False for _ in others]
        assert [thread == here for thread in writer.seen[: len(threads)]] == threads
        assert writer.seen[-1] == here
        await store.close()

    asyncio.run(test())


def test_room_is_made_in_the_thread_for_a_batch_that_finds_none_on_the_loop(tmp_path: Path) -> None:
    """Giving up the WAL may take seconds. Req: R-06"""
    spied = Spied(Threads)

    async def test() -> None:
        store = SqliteStore(tmp_path, connect=spied, pace=Pace(math.inf))
        writer = await opened(store, spied)
        writer.fails_in = here = threading.get_ident()
        writer.error = ("database or disk is full", "SQLITE_FULL")
        no = 0
        while here not in writer.seen:
            no += 1
            assert await store.commit(batch(no)) > 0
        assert [thread == here for thread in writer.seen[-2:]] == [True, False]
        writer.fails_in = None
        last = await done_at_once(store, no + 1)
        assert await frame_numbers(store) == [*range(1, last[-1] + 1)]
        await store.close()

    asyncio.run(test())


async def done_at_once(store: SqliteStore, no: int) -> list[int]:
    """Commit small batches until the thread rests and one is done on the loop; return their numbers."""
    numbers = [no]
    while not (committing := store.commit(batch(numbers[-1]))).done():
        await committing
        numbers.append(numbers[-1] + 1)
    return numbers


@pytest.mark.parametrize("quick_s", [0, math.inf])
def test_commits_of_both_kinds_are_durable_in_order(tmp_path: Path, quick_s: float) -> None:
    """Also where nobody waits for one before the next is offered. Req: R-01."""
    spied = Spied(Threads)
    durable: list[int] = []

    async def test() -> None:
        store = SqliteStore(tmp_path, connect=spied, pace=Pace(quick_s))
        writer = await opened(store, spied)
        committing = []
        for no in range(1, 201):
            done = store.commit(batch(no, WRITTEN_BYTES_MAX * 2 if no % 5 == 3 else 10))
            if done.done():
                durable.append(no)
            else:

                def is_durable(_: Any, no: int = no) -> None:
                    durable.append(no)

                done.add_done_callback(is_durable)
            committing.append(done)
            if no % 3 == 0:
                await asyncio.gather(*committing)
        await asyncio.gather(*committing)
        await asyncio.sleep(0)
        assert durable == await frame_numbers(store) == list(range(1, 201))
        assert (threading.get_ident() in writer.seen) == (quick_s > 0)
        assert len(set(writer.seen)) == 1 + (quick_s > 0)
        await store.close()

    asyncio.run(test())


def test_a_slow_disk_is_left_to_the_thread(tmp_path: Path) -> None:
    spied = Spied(Threads)

    async def test() -> None:
        store = SqliteStore(tmp_path, connect=spied, pace=Pace(0))
        writer = await opened(store, spied)
        for no in range(1, 21):
            await store.commit(batch(no))
        assert threading.get_ident() not in writer.seen
        await store.close()

    asyncio.run(test())


def test_a_commit_that_fails_on_the_loop_ends_all_writing(tmp_path: Path) -> None:
    """As one that fails in the thread. Req: R-01, R-06."""
    spied = Spied(Threads)
    durable: list[int] = []

    async def test() -> None:
        store = SqliteStore(tmp_path, connect=spied, pace=Pace(math.inf))
        writer = await opened(store, spied)
        durable.extend(await done_at_once(store, 1))
        writer.fails_in = threading.get_ident()
        while not (failed := store.commit(batch(durable[-1] + 1))).done():
            await failed
            durable.append(durable[-1] + 1)
        no = durable[-1] + 1
        with pytest.raises(StoreFailed, match=rf"could not write batch {no} to .*: fsync failed"):
            failed.result()
        writer.fails_in = None
        for later, size in ((no + 1, 10), (no + 2, 2 * WRITTEN_BYTES_MAX)):
            refused = f"batch {later} was not written: could not write batch {no}"
            with pytest.raises(StoreFailed, match=refused):
                await store.commit(batch(later, size))
        await store.close()

    asyncio.run(test())
    assert numbers_in(tmp_path) == durable


# The WAL


def test_the_wal_stays_short_under_load_though_no_commit_copies_it(tmp_path: Path) -> None:
    """It begins again at 32 MB, whatever is committed meanwhile. Req: R-06."""
    spied = Spied()

    async def test() -> None:
        store = SqliteStore(tmp_path, connect=spied, idle_after_s=3600)
        await store.open()
        assert spied.setting("wal_autocheckpoint") == 0
        before = None
        for no in range(1, 161):
            after = store.commit(Batch(no, [], {no: [b"x" * MB]}, [no - 20] if no > 20 else []))
            if before is not None:
                await before  # two at a time, as under load
            before = after
        assert before is not None
        await before
        await store.close()

    largest = 0

    async def watched() -> None:
        nonlocal largest
        testing = asyncio.ensure_future(test())
        wal = tmp_path / "peeklock.db-wal"
        while not testing.done():
            with contextlib.suppress(FileNotFoundError):
                largest = max(largest, wal.stat().st_size)
            await asyncio.sleep(0.001)
        await testing

    asyncio.run(watched())
    assert 8 * MB < largest < 70 * MB


def test_a_checkpoint_that_fails_keeps_no_commit_from_being_durable(tmp_path: Path) -> None:
    """The WAL has all of it. Req: R-01, R-06."""

    class Failing(sqlite3.Connection):
        asked = 0

        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql == "PRAGMA wal_checkpoint(PASSIVE)":
                Failing.asked += 1
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(sql, *values)

    async def test() -> None:
        store = SqliteStore(tmp_path, connect=Spied(Failing), idle_after_s=3600)
        await store.open()
        for no in range(1, 11):
            await store.commit(batch(no, MB))
        assert Failing.asked
        assert await frame_numbers(store) == list(range(1, 11))
        await store.close()

    asyncio.run(test())
    assert numbers_in(tmp_path) == list(range(1, 11))


# Space


async def shrinks_below(store: SqliteStore, folder: Path, size_bytes: int) -> None:
    deadline = time.monotonic() + 30
    while folder_bytes(folder) >= size_bytes:
        assert time.monotonic() < deadline, f"still {folder_bytes(folder)} bytes"
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(("kept", "limit"), [(0, 6 * MB), (10, 18 * MB)])
def test_free_space_is_given_back_when_idle(tmp_path: Path, kept: int, limit: int) -> None:
    """Few rows in use: the file is rewritten; many: it shrinks page by page. The WAL goes too. Req: R-06."""

    async def test() -> None:
        store = SqliteStore(tmp_path, idle_after_s=0.05)
        await store.open()
        for no in range(1, 41):
            await store.commit(batch(no, MB))
        assert folder_bytes(tmp_path) > 40 * MB
        await store.commit(Batch(41, [], {}, list(range(1, 41 - kept))))
        await shrinks_below(store, tmp_path, limit)
        assert [row for row, _ in await store.list_body_rows(0, 100)] == list(range(41 - kept, 41))
        assert await store.read_body_rows(range(41 - kept, 41)) == {
            row: [b"x" * MB] for row in range(41 - kept, 41)
        }
        await store.commit(batch(42))
        await store.close()

    asyncio.run(test())


@pytest.mark.parametrize(("pace", "idle_after_s"), [(Pace(0), 3600), (Pace(math.inf), 0.02)])
def test_free_space_is_given_back_under_load_when_it_is_most_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace: Pace, idle_after_s: float
) -> None:
    """By the thread after a commit of its own, or every now and then where the loop commits. Req: R-06."""
    monkeypatch.setattr(space, "SHRINK_EVERY_S", 0.0)
    spied = Spied()

    async def test() -> None:
        store = SqliteStore(tmp_path, connect=spied, idle_after_s=idle_after_s, pace=pace)
        await store.open()
        for no in range(1, 31):
            await store.commit(batch(no, MB))
        await store.commit(Batch(31, [], {}, list(range(1, 31))))
        no = 32
        while spied.setting("page_count") > 4096 * 1.1:
            assert no < 30_000
            await store.commit(batch(no))
            no += 1
        await store.close()

    asyncio.run(test())
