"""Several event logs in one thread: each gets its turn, and one that fails ends alone."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from peeklock.capture.logs import Logs
from peeklock.store.base import Batch
from peeklock.store.sqlite.store import SqliteStore
from tests.capture.stores import EPOCH, enqueued, rows, segments, write_store


class Said:
    """Takes down what is said of each log."""

    def __init__(self) -> None:
        self.words: list[tuple[str, int, str]] = []
        self.now_s = 0.0

    def say(self, word: str, log_id: int, text: str) -> None:
        self.words.append((word, log_id, text))

    def note(self, level: str, event: str, **fields: object) -> None:
        pass

    def of(self, log_id: int) -> list[tuple[str, str]]:
        return [(word, text) for word, each, text in self.words if each == log_id]


@pytest.fixture
def said() -> Said:
    return Said()


def logs_of(said: Said, **limits: Any) -> Logs:
    return Logs(said.say, said.note, clock_s=lambda: said.now_s, **limits)


def serve(logs: Logs, said: Said) -> None:
    """Serve all logs to their end, as quickly as the clock can be moved."""
    while (wait_s := logs.serve()) is not None:
        said.now_s += wait_s


def add(logs: Logs, folder: Path, log_id: int) -> None:
    data, to = folder / f"data{log_id}", folder / f"log{log_id}"
    logs.add(log_id, {"data": str(data)}, str(to), f"ns{log_id}")


def sequence_numbers(log: Path) -> list[int]:
    return [row["sequence_number"] for row in rows(log) if row["event_type"] == "enqueued"]


def test_one_that_fails_ends_alone(tmp_path: Path, said: Said) -> None:
    logs = logs_of(said)
    (tmp_path / "log3").touch()  # no folder
    for log_id in (2, 3):
        write_store(tmp_path / f"data{log_id}", [EPOCH, enqueued(1)])
        add(logs, tmp_path, log_id)
    logs.finish()
    serve(logs, said)
    assert said.of(2)[-1] == ("removed", "")
    assert sequence_numbers(tmp_path / "log2") == [1]
    [failed] = said.of(3)
    assert failed[0] == "failed"
    assert str(tmp_path / "log3") in failed[1]


def test_a_log_is_removed_when_all_of_it_is_exported(tmp_path: Path, said: Said) -> None:
    for log_id in (1, 2):
        write_store(tmp_path / f"data{log_id}", [EPOCH, enqueued(1)])
    logs = logs_of(said)
    for log_id in (1, 2):
        add(logs, tmp_path, log_id)
    while logs.serve() == 0.0:
        pass
    write_store(tmp_path / "data1", [enqueued(2)])
    logs.remove(1)
    while len(logs) > 1:
        said.now_s += logs.serve() or 0.0
    assert sequence_numbers(tmp_path / "log1") == [1, 2]
    assert said.of(1)[-1] == ("removed", "")
    assert ("removed", "") not in said.of(2)
    logs.remove(1)  # it is gone: nothing happens
    logs.finish()
    serve(logs, said)
    assert sequence_numbers(tmp_path / "log2") == [1]


def test_no_more_logs_are_open_than_may_be(tmp_path: Path, said: Said) -> None:
    logs = logs_of(said, open_max=2)
    for log_id in range(1, 6):
        write_store(tmp_path / f"data{log_id}", [EPOCH, enqueued(1)])
        add(logs, tmp_path, log_id)
    for _ in range(50):
        said.now_s += logs.serve() or 0.0
        assert logs.open_count <= 2
    for log_id in range(1, 6):
        write_store(tmp_path / f"data{log_id}", [enqueued(2)])
    logs.finish()
    serve(logs, said)
    for log_id in range(1, 6):
        assert sequence_numbers(tmp_path / f"log{log_id}") == [1, 2]


def test_rows_are_written_early_where_memory_is_short(tmp_path: Path, said: Said) -> None:
    """The largest log gives way; what it has written is not written again."""
    logs = logs_of(said, memory_bytes_max=1)
    for log_id in (1, 2):
        write_store(tmp_path / f"data{log_id}", [EPOCH, *(enqueued(number) for number in range(1, 50))])
        add(logs, tmp_path, log_id)
    logs.finish()
    serve(logs, said)
    for log_id in (1, 2):
        assert sequence_numbers(tmp_path / f"log{log_id}") == list(range(1, 50))


class TestAnIdleStore:
    """A look opens a store only after a commit to it."""

    def test_it_is_not_opened_again_before_a_commit(self, tmp_path: Path, said: Said) -> None:
        async def test() -> None:
            store = await an_open_store(tmp_path / "data1")
            logs = logs_of(said, open_max=0)  # so each look that reads opens the files
            add(logs, tmp_path, 1)
            look_for(logs, said, 60)
            assert sequence_numbers(tmp_path / "log1") == [1]
            database, kept_away = tmp_path / "data1/peeklock.db", tmp_path / "data1/away.db"
            database.rename(kept_away)  # an opening would fail now
            look_for(logs, said, 120)
            assert said.of(1)[-1] == ("exported", "1")
            kept_away.rename(database)
            await store.commit(Batch(2, [], events=[enqueued(2)]))
            look_for(logs, said, 20)
            assert said.of(1)[-1] == ("exported", "2")
            assert sequence_numbers(tmp_path / "log1") == [1, 2]
            await store.close()

        asyncio.run(test())

    def test_each_commit_is_seen_at_the_next_look(self, tmp_path: Path, said: Said) -> None:
        """Also when the WAL starts over, with the size that it had, and the clock of files stands still."""

        async def test() -> None:
            store = await an_open_store(tmp_path / "data1")
            logs = logs_of(said)
            add(logs, tmp_path, 1)
            look_for(logs, said, 20)
            for no in range(2, 12):
                await store.commit(Batch(no, [], events=[enqueued(no)]))
                with sqlite3.connect(tmp_path / "data1/peeklock.db") as db:
                    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                db.close()
                for path in (tmp_path / "data1").glob("peeklock.db*"):
                    os.utime(path, ns=(1, 1))
                look_for(logs, said, 20)
                assert said.of(1)[-1] == ("exported", str(no))
            await store.close()

        asyncio.run(test())

    def test_its_segment_ends_by_time(self, tmp_path: Path, said: Said) -> None:
        async def test() -> None:
            store = await an_open_store(tmp_path / "data1")
            logs = logs_of(said)
            add(logs, tmp_path, 1)
            look_for(logs, said, 5)
            assert said.of(1) == [("exported", "0")]
            look_for(logs, said, 6)
            assert said.of(1) == [("exported", "0"), ("exported", "1")]
            await store.close()

        asyncio.run(test())

    def test_its_old_segments_are_removed(self, tmp_path: Path, said: Said) -> None:
        async def test() -> None:
            store = await an_open_store(tmp_path / "data1")
            before = logs_of(said)
            add(before, tmp_path, 1)
            look_for(before, said, 20)
            await store.commit(Batch(2, [], events=[enqueued(2)]))
            before.finish()
            serve(before, said)
            assert len(segments(tmp_path / "log1")) == 2
            logs = logs_of(said)
            logs.add(2, {"data": str(tmp_path / "data1")}, str(tmp_path / "log1"), "ns1", keep_bytes=1)
            look_for(logs, said, 120)
            assert sequence_numbers(tmp_path / "log1") == [2]
            await store.close()

        asyncio.run(test())


async def an_open_store(folder: Path) -> SqliteStore:
    """Open a store, as a broker does, with one batch."""
    store = SqliteStore(folder)
    await store.open()
    await store.commit(Batch(1, [], events=[EPOCH, enqueued(1)]))
    return store


def look_for(logs: Logs, said: Said, seconds: float) -> None:
    """Serve all logs for some time of their clock."""
    until_s = said.now_s + seconds
    while said.now_s < until_s:
        said.now_s += logs.serve() or 0.0
