"""`peeklock copy`: from a data folder into a database and back, with every byte and number."""

from __future__ import annotations

import asyncio
import subprocess
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from peeklock.broker.vocabulary.changes import Change, EntityStored, FactStored
from peeklock.broker.vocabulary.descriptions import QueueDescription
from peeklock.cli import main
from peeklock.demo.broker import program
from peeklock.server.system.store import SystemStore, folder_of
from peeklock.store.base import Batch, StoreUnfinished
from peeklock.store.encoding import event_rows
from peeklock.store.postgres.filler import PostgresFiller
from peeklock.store.postgres.store import PostgresStore
from peeklock.store.sqlite.reader import SqliteReader
from peeklock.store.sqlite.store import SqliteStore
from tests.postgres_server import PostgresServer, database_of

FOLDERS = ("", "system", "namespaces/shop")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    return " ".join(result.output.split())


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database(f"copy{uuid.uuid4().hex}")


async def fill(data: Path) -> None:
    """Make a data folder with two namespaces, with rows, events and a journal without its head."""
    system = await SystemStore.open(SqliteStore(folder_of(data)))
    record = {"name": "Shop", "properties": {}, "whole": True}
    await system.put({"default-namespace": "bank", "namespace/shop": record})
    await system.close()
    changes: list[Change] = [EntityStored(1, QueueDescription("orders"), 1, 1)]
    for folder, rows in ((data, 40), (data / "namespaces" / "shop", 1)):
        store = SqliteStore(folder)
        await store.open()
        await store.commit(Batch(1, changes, {n: [b"payload %d" % n] for n in range(1, rows + 1)}))
        event = event_rows.BLANK._replace(type=1, queue_name="orders")
        await store.commit(Batch(2, [FactStored("a", "b")], {100: [bytes(1_000_000)]}, [3], events=[event]))
        await store.commit(Batch(3, [], truncate_before=2, events=[]))
        await store.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    asyncio.run(fill(folder))
    return folder


def all_of(reader: SqliteReader) -> tuple[object, ...]:
    """Return all bytes that a store has."""
    size = 10**9
    with closing(reader):
        return (
            reader.ends(),
            reader.frames(0, size),
            reader.body_rows(0, size),
            reader.event_rows(0, size),
            reader.entries(),
        )


def test_a_copy_into_a_database_and_back_has_every_byte(tmp_path: Path, data: Path, url: str) -> None:
    """Req: R-01."""
    result = run("copy", "--from", data, "--to", url)
    assert result.exit_code == 0, result.output
    assert "default: 2 frames and 40 body rows, up to batch 3" in result.output
    assert f"peeklock serve --store {url} --data DIR" in result.output
    back = tmp_path / "back"
    result = run("copy", "--from", url, "--to", back)
    assert result.exit_code == 0, result.output
    for folder in FOLDERS:
        assert all_of(SqliteReader(back / folder)) == all_of(SqliteReader(data / folder))
        assert "no damage found" in run("check", back / folder).output


def test_a_broker_goes_on_with_the_next_number_after_a_copy(data: Path, url: str) -> None:
    assert run("copy", "--from", data, "--to", url).exit_code == 0

    async def go_on() -> list[int]:
        with closing(database_of(url)) as database:
            store = PostgresStore(database, "default")
            await store.open()
            assert len(store.event_backlog) == 2
            await store.commit(Batch(4, []))
            found = [frame.no async for frame in store.load()]
            await store.close()
            return found

    assert asyncio.run(go_on()) == [2, 3, 4]


def test_a_source_that_is_in_use_is_refused(tmp_path: Path, data: Path, url: str) -> None:
    async def check() -> None:
        store = SqliteStore(folder_of(data))
        await store.open()
        said = await asyncio.to_thread(refused, "copy", "--from", data, "--to", url)
        assert f"{data} is in use by process" in said
        await store.close()
        assert (await asyncio.to_thread(run, "copy", "--from", data, "--to", url)).exit_code == 0
        with closing(database_of(url)) as database:
            owned = PostgresStore(database, "default")
            await owned.open()
            said = await asyncio.to_thread(refused, "copy", "--from", url, "--to", tmp_path / "back")
            assert "the store 'default'" in said
            assert "is in use by process one: stop it" in said
            await owned.close()

    asyncio.run(check())
    assert not (tmp_path / "back" / "peeklock.db").exists()


def test_a_target_that_is_not_empty_is_refused_and_stays(data: Path, url: str) -> None:
    assert run("copy", "--from", data, "--to", url).exit_code == 0
    assert "is not empty, it has a store 'default'" in refused("copy", "--from", data, "--to", url)
    assert "is not empty" in refused("copy", "--from", url, "--to", data)
    assert run("copy", "--from", "x", "--to", "mysql://a/b").exit_code == 2
    assert "has no stores of a broker" in refused(
        "copy", "--from", url.rpartition("/")[0] + "/postgres", "--to", "x"
    )


def test_a_copy_that_was_interrupted_is_no_store(data: Path, url: str) -> None:
    async def check() -> None:
        with closing(database_of(url)) as database:
            filler = PostgresFiller(database.connections, "default")
            filler.add_frames([(1, b"a frame")])
            filler.write()
            filler.abandon()
            with pytest.raises(StoreUnfinished, match=r"the store 'default' in .* is not whole"):
                await PostgresStore(database, "default").open()

    asyncio.run(check())
    assert "is not empty" in refused("copy", "--from", data, "--to", url)


def test_a_database_is_backed_up_while_a_broker_runs(tmp_path: Path, data: Path, url: str) -> None:
    assert run("copy", "--from", data, "--to", url).exit_code == 0

    def back_up(*arguments: str) -> str:
        command = [program(), "backup", "--store", url, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stderr

    async def check() -> None:
        with closing(database_of(url)) as database:
            store = PostgresStore(database, "default")
            await store.open()
            said = await asyncio.to_thread(back_up, "--to", str(tmp_path / "file"))
            assert "the default namespace 'bank': all, up to batch 3" in said
            assert "the namespace 'Shop': all, up to batch 3" in said
            await store.commit(Batch(4, [], {101: [b"new"]}))
            since = ("--since", str(tmp_path / "file"), "--to", str(tmp_path / "next"))
            said = await asyncio.to_thread(back_up, *since)
            assert "the default namespace 'bank': an increment, from batch 4 to 4" in said
            await store.close()

    asyncio.run(check())
    result = run("restore", tmp_path / "file", tmp_path / "next", "--data", tmp_path / "restored")
    assert result.exit_code == 0, result.output
    for folder in FOLDERS:
        assert "no damage found" in run("check", tmp_path / "restored" / folder).output


def test_a_back_up_of_a_wrong_database_is_refused(tmp_path: Path, url: str) -> None:
    said = refused("backup", "--store", url, "--to", tmp_path / "file")
    assert "has no stores of a broker: check the URL" in said
    assert "does not begin with postgresql://" in refused("backup", "--store", "x", "--to", tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_a_database_is_checked_as_a_folder_is(data: Path, url: str, postgres: PostgresServer) -> None:
    """Req: R-03."""
    assert run("copy", "--from", data, "--to", url).exit_code == 0
    result = run("check", "--store", url)
    assert result.exit_code == 0, result.output
    assert result.output.endswith("no damage found\n")
    assert "store 'namespace/shop' in postgresql://" in result.output
    name = url.rpartition("/")[2]
    postgres.execute("UPDATE peeklock.body SET data = set_byte(data, 60, 7) WHERE no = 100", name)
    postgres.execute("DELETE FROM peeklock.journal WHERE no = 3", name)
    result = run("check", "--store", url)
    assert result.exit_code == 1
    assert "body row 100 fails the checksum" in result.output
    assert "the journal ends with batch 2, and 3 was acknowledged" in result.output
    assert run("check", "--store", "x").exit_code == 2
    assert run("check").exit_code == 2
