"""The event log of stores in a database."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from peeklock.broker.vocabulary.events import Event
from peeklock.capture.exporter import LOCK_S_MAX, Exporter, ExportOptions
from peeklock.capture.folder import MARK_NAME, LogFolder, LogRefused, read_folder_id, read_mark, write_mark
from peeklock.capture.manifest import MANIFEST_NAME, parse
from peeklock.capture.source import DatabaseSource, FolderSource
from peeklock.store.base import Batch, StoreFailed
from tests.capture.stores import EPOCH, Told, enqueued, rows, segments
from tests.postgres_server import PostgresServer, database_of


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database(f"events{uuid.uuid4().hex}")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def exporter(url: str, log: Path) -> Iterator[Exporter]:
    """An exporter of the store `default`, which writes what it has read a second later."""
    options = ExportOptions(DatabaseSource(url, "default", "fsync", 1), log, "here", interval_s=1.0)
    made = Exporter(options, Told())
    yield made
    made.close()


def write(url: str, *batches: Sequence[Event], name: str = "default") -> None:
    """Commit batches with these events, behind those that are there."""
    from peeklock.store.postgres.store import PostgresStore

    async def commit() -> None:
        database = database_of(url)
        store = PostgresStore(database, name)
        await store.open()
        live = await store.load_live()
        no = live.first_no + len(live.frame_sizes)
        for events in batches:
            await store.commit(Batch(no, [], events=list(events)))
            no += 1
        await store.close()
        database.close()

    asyncio.run(commit())


def export(url: str, to: Path, name: str = "default") -> Told:
    """Export all that is there, as after the end of a broker."""
    told = Told()
    exporter = Exporter(ExportOptions(DatabaseSource(url, name, "fsync", 9), to, "here"), told)
    exporter.finish()
    try:
        while exporter.step(time.monotonic()) is not None:
            pass
    finally:
        exporter.close()
    return told


def numbers(log: Path) -> list[int]:
    return [row["sequence_number"] for row in rows(log) if row.get("sequence_number")]


def test_each_row_is_once_in_the_log(url: str, log: Path) -> None:
    """Also where the exporter ends in between. Req: X-04"""
    write(url, [EPOCH], [enqueued(1), enqueued(2)])
    assert export(url, log).numbers == [0, 2]
    write(url, [enqueued(3)])
    assert export(url, log).numbers == [2, 3]
    assert numbers(log) == [1, 2, 3]


def test_rows_are_read_in_pieces(url: str, log: Path) -> None:
    write(url, [EPOCH], *([enqueued(n)] for n in range(1, 601)))
    export(url, log)
    assert numbers(log) == [*range(1, 601)]


def test_stores_of_one_database_have_logs_of_their_own(url: str, log: Path) -> None:
    write(url, [EPOCH], [enqueued(1)])
    write(url, [EPOCH], [enqueued(7)], name="namespace/two")
    export(url, log)
    with pytest.raises(LogRefused, match=r"another store than the store 'namespace/two' in .*--capture"):
        export(url, log, "namespace/two")
    export(url, log.with_name("two"), "namespace/two")
    assert (numbers(log), numbers(log.with_name("two"))) == ([1], [7])


def test_a_log_of_a_folder_takes_none_of_a_database(url: str, tmp_path: Path, log: Path) -> None:
    write(url, [EPOCH])
    folder = LogFolder(log)
    (tmp_path / "data").mkdir()
    assert folder.take(FolderSource(tmp_path / "data"))
    folder.release()
    with pytest.raises(LogRefused, match="another store"):
        export(url, log)


def test_a_batch_that_a_promotion_lost_is_not_in_the_log(
    postgres: PostgresServer, url: str, exporter: Exporter, log: Path
) -> None:
    """It was visible, and never acknowledged; the next owner wrote another one of its number. Req: X-04"""
    write(url, [EPOCH], [enqueued(1)], [enqueued(2)])
    exporter.step(0.0)
    database = url.rpartition("/")[2]
    for table in ("event", "journal"):
        postgres.execute(f"DELETE FROM peeklock.{table} WHERE no = 3", database)
    postgres.execute("UPDATE peeklock.lease SET batch_no = 2", database)
    write(url, [enqueued(2, size_bytes=7)])
    exporter.finish()
    with pytest.raises(StoreFailed, match=r"batch 3 .* is not there as it was read: .* read again"):
        exporter.step(2.0)
    exporter.close()
    assert not segments(log)
    export(url, log)
    assert [row["size_bytes"] for row in rows(log) if row.get("sequence_number") == 2] == [7]


def test_the_same_after_the_log_has_rested(
    postgres: PostgresServer, url: str, exporter: Exporter, log: Path
) -> None:
    """Its rows are in memory, and their reader is closed. Req: X-04"""
    write(url, [EPOCH], [enqueued(1)])
    exporter.step(0.0)
    exporter.rest()
    postgres.execute("UPDATE peeklock.event SET data = data || 'x' WHERE no = 2", url.rpartition("/")[2])
    with pytest.raises(StoreFailed, match="not there as it was read"):
        exporter.step(2.0)
    assert not segments(log)


def test_a_database_that_is_gone_is_named_without_its_password(tmp_path: Path) -> None:
    source = DatabaseSource("postgresql://me:secret@127.0.0.1:1/mine", "default", "fsync", 1)
    exporter = Exporter(ExportOptions(source, tmp_path / "log", "here"), Told())
    with pytest.raises(StoreFailed, match=r"postgresql://127\.0\.0\.1:1/mine") as raised:
        exporter.step(0.0)
    assert "secret" not in str(raised.value)


# Two exporters of one log: the head in the database says who goes on.


def made(url: str, log: Path, told: Told) -> Exporter:
    return Exporter(
        ExportOptions(DatabaseSource(url, "default", "fsync", 2), log, "here", interval_s=1.0), told
    )


def test_an_exporter_that_was_frozen_publishes_nothing_more(
    url: str, exporter: Exporter, log: Path, postgres: PostgresServer
) -> None:
    """It still has the lock of the folder, and has read what the other one writes. Req: X-04"""
    write(url, [EPOCH], [enqueued(1)])
    exporter.step(0.0)
    told = Told()
    other = made(url, log, told)
    assert other.step(0.0) is not None
    assert [note[1] for note in told.notes] == [
        "another exporter still writes to the event log; waiting for it to end"
    ]
    assert not other.is_open
    for now_s in (LOCK_S_MAX, LOCK_S_MAX + 1, LOCK_S_MAX + 3):
        other.step(now_s)
    assert told.numbers == [0, 2]
    write(url, [enqueued(2)])
    with pytest.raises(
        StoreFailed, match=r"another exporter has taken the event log .*, and goes on with it"
    ):
        exporter.step(2.0)
    exporter.close()
    other.finish()
    assert other.step(20.0) is None
    other.close()
    assert numbers(log) == [1, 2]
    write(url, [enqueued(3)])
    assert export(url, log).numbers == [3, 4]
    assert numbers(log) == [1, 2, 3]
    assert not list(log.glob(".events-*"))
    parse((log / MANIFEST_NAME).read_text())


def test_who_takes_a_log_completes_what_was_published(url: str, log: Path) -> None:
    """The exporter ended before it renamed the file. Req: X-04"""
    from peeklock.store.postgres.event_reader import log_head

    write(url, [EPOCH], [enqueued(1)])
    export(url, log)
    [name] = segments(log)
    begun, _ = (log / MANIFEST_NAME).read_text().splitlines()
    (log / MANIFEST_NAME).write_text(f"{begun}\n")
    connections = DatabaseSource(url, "default", "fsync", 9)._connections
    folder_id = read_folder_id(log / MARK_NAME)
    assert folder_id is not None
    text = log_head(connections, "default", folder_id).read()
    assert text is not None
    (log / name).rename(log / json.loads(text)["draft"])
    (log / name).parent.rmdir()
    write(url, [enqueued(2)])
    assert export(url, log).numbers == [2, 3]
    assert numbers(log) == [1, 2]
    assert len(parse((log / MANIFEST_NAME).read_text()).entries) == 2


def test_a_folder_without_what_was_published_is_refused(url: str, log: Path) -> None:
    """Such as one that another node does not share, with a copy of the mark."""
    write(url, [EPOCH], [enqueued(1)])
    export(url, log)
    [name] = segments(log)
    (log / name).unlink()
    with pytest.raises(LogRefused, match="was published and is not there: give all nodes the same folder"):
        export(url, log)


def test_a_log_of_an_earlier_release_gets_a_head(url: str, log: Path, postgres: PostgresServer) -> None:
    write(url, [EPOCH], [enqueued(1)])
    export(url, log)
    mark = read_mark(log / MARK_NAME)
    assert mark is not None
    write_mark(log / MARK_NAME, mark)
    write(url, [enqueued(2)])
    export(url, log)
    assert numbers(log) == [1, 2]


def test_a_store_that_is_removed_has_no_heads(url: str, log: Path, postgres: PostgresServer) -> None:
    """Also if the removal was interrupted."""
    write(url, [EPOCH], [enqueued(1)])
    export(url, log)
    count = "SELECT count(*) FROM peeklock.meta WHERE k LIKE 'event-log/%'"
    assert postgres.execute(count, url.rpartition("/")[2]) == [(1,)]
    for statement in (
        "CREATE FUNCTION fail() RETURNS trigger AS 'BEGIN RAISE EXCEPTION ''no''; END' LANGUAGE plpgsql",
        "CREATE TRIGGER fails BEFORE DELETE ON peeklock.meta FOR EACH STATEMENT EXECUTE FUNCTION fail()",
    ):
        postgres.execute(statement, url.rpartition("/")[2])
    database = database_of(url)
    with pytest.raises(StoreFailed, match="remove 'event-log/"):
        database.remove("default")
    postgres.execute("DROP TRIGGER fails ON peeklock.meta", url.rpartition("/")[2])
    database.remove("default")
    database.close()
    assert postgres.execute(count, url.rpartition("/")[2]) == [(0,)]
