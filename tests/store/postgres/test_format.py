"""The tables in PostgreSQL: each format has a golden file, which a change of the tables must not change."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from peeklock.store.base import Batch
from peeklock.store.postgres.address import Address
from peeklock.store.postgres.connections import Connections
from peeklock.store.postgres.format import FORMAT, SCHEMA, UPGRADES
from peeklock.store.postgres.store import PostgresStore
from peeklock.store.postgres.vacuum import ROWS, TABLES
from tests.postgres_server import PostgresServer, database_of

GOLDEN = Path(__file__).parents[2] / "golden" / "postgres"

COLUMNS = (
    "SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attstorage::text "
    "FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid "
    "WHERE c.relnamespace = 'peeklock'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 "
    "ORDER BY c.relname, a.attnum"
)
KEYS = (
    "SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE connamespace = 'peeklock'::regnamespace AND contype IN ('p', 'u') ORDER BY 1, 2"
)
SETTINGS = (
    "SELECT c.relname, array_to_string(c.reloptions || t.reloptions, ', ') FROM pg_class c "
    "LEFT JOIN pg_class t ON t.oid = c.reltoastrelid "
    "WHERE c.relnamespace = 'peeklock'::regnamespace AND c.relkind = 'r' ORDER BY 1"
)


@pytest.fixture
def name(postgres: PostgresServer) -> str:
    made = f"format{uuid.uuid4().hex}"
    postgres.new_database(made)
    return made


def described(postgres: PostgresServer, name: str) -> str:
    found = [row for query in (COLUMNS, KEYS, SETTINGS) for row in postgres.execute(query, name)]
    return "".join(" ".join(map(str, row)) + "\n" for row in found)


def test_the_tables_are_those_of_their_format(postgres: PostgresServer, name: str) -> None:
    """A change of the tables needs a new format, and a way from the one before."""
    with closing(Connections(Address(postgres.url(name)), "test", "fsync", 2)) as connections:
        for _ in range(2):  # the second one finds them
            with connections.lent():
                pass
    assert described(postgres, name) == (GOLDEN / f"format-{FORMAT}.txt").read_text(encoding="utf-8")


def test_tables_of_format_1_become_those_of_this_release(postgres: PostgresServer, name: str) -> None:
    """What is in them stays."""
    rows = "'format', '1'), ('release', '0.2.0'"
    for statement in ("CREATE SCHEMA peeklock", *SCHEMA, f"INSERT INTO peeklock.meta VALUES ({rows})"):
        postgres.execute(statement, name)
    assert described(postgres, name) == (GOLDEN / "format-1.txt").read_text(encoding="utf-8")
    columns = "INSERT INTO peeklock.lease(name, is_whole, epoch, batch_no, expires)"
    postgres.execute(f"{columns} VALUES ('default', true, 3, 7, now())", name)
    with closing(Connections(Address(postgres.url(name)), "test", "fsync", 2)) as connections:
        for _ in range(2):
            with connections.lent():
                pass
    assert described(postgres, name) == (GOLDEN / f"format-{FORMAT}.txt").read_text(encoding="utf-8")
    assert postgres.execute("SELECT v FROM peeklock.meta WHERE k = 'format'", name) == [(str(FORMAT),)]
    found = postgres.execute("SELECT name, epoch, batch_no, place FROM peeklock.lease", name)
    assert found == [("default", 3, 7, None)]


def test_each_table_is_vacuumed() -> None:
    statements = [*SCHEMA, *(statement for upgrade in UPGRADES.values() for statement in upgrade)]
    made = {text.split("peeklock.")[1].split("(")[0] for text in statements if "CREATE" in text}
    assert made == {*TABLES, "meta"}


def test_space_of_dropped_rows_is_won_back_by_the_process(postgres: PostgresServer, name: str) -> None:
    async def check() -> None:
        with closing(database_of(postgres.url(name))) as database:
            store = PostgresStore(database, "one")
            await store.open()
            rows = range(1, ROWS + 1)
            await store.commit(Batch(1, [], {row: [b"x"] for row in rows}))
            await store.commit(Batch(2, [], {}, list(rows)))
            await store.close()
            until_s = time.monotonic() + 30
            query = "SELECT vacuum_count FROM pg_stat_user_tables WHERE relname = 'body'"
            while postgres.execute(query, name) != [(1,)]:
                assert time.monotonic() < until_s
                await asyncio.sleep(0.05)

    asyncio.run(check())
