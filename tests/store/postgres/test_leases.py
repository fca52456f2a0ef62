"""Who may write to a store in PostgreSQL: taking over, and commits in doubt."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from peeklock.broker.vocabulary.changes import FactStored
from peeklock.store.base import Batch, StoreDamaged, StoreDeposed, StoreFailed
from peeklock.store.postgres.database import CONNECTIONS_MIN, Database
from peeklock.store.postgres.leases import boottime_s
from peeklock.store.postgres.store import PostgresStore
from tests.postgres_server import PostgresServer, database_of

TTL_S = 1.5


class Nodes:
    """Processes on one database, each a `Database`."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.database_name = name
        self.url = server.new_database(name)
        self.made: list[Database] = []

    def node(self, instance: str) -> Database:
        self.made.append(database_of(self.url, instance=instance, ttl_s=TTL_S))
        return self.made[-1]

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        return self.server.execute(sql, self.database_name)


@pytest.fixture
def nodes(postgres: PostgresServer, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    made = Nodes(postgres, f"lease{abs(hash(request.node.nodeid))}")
    yield made
    for database in made.made:
        database.close()


def run(test: Callable[[Nodes], Coroutine[Any, Any, None]]) -> Callable[[Nodes], None]:
    def runs(nodes: Nodes) -> None:
        asyncio.run(test(nodes))

    runs.__name__ = test.__name__
    runs.__doc__ = test.__doc__
    return runs


async def opened(database: Database) -> PostgresStore:
    store = PostgresStore(database, "one")
    await store.open()
    await store.load_definitions()
    return store


def batch(no: int) -> Batch:
    return Batch(no, [FactStored(f"key {no}", "value")])


async def numbers(store: PostgresStore) -> list[int]:
    return [frame.no async for frame in store.load()]


@run
async def test_another_node_takes_over_when_the_lease_is_over(nodes: Nodes) -> None:
    """What the old owner commits then is refused, and nothing of it is stored."""
    first, second = nodes.node("a"), nodes.node("b")
    old = await opened(first)
    await old.commit(batch(1))
    first.leases.stop()  # as a process that is frozen
    began_s = time.monotonic()
    new = await opened(second)
    assert time.monotonic() - began_s < 2 * TTL_S + 5
    assert boottime_s() >= old.valid_until_s()
    assert await numbers(new) == [1]
    with pytest.raises(StoreDeposed):
        await old.commit(batch(2))
    assert old.valid_until_s() == 0
    with pytest.raises(StoreDeposed):
        await old.commit(batch(3))
    await new.commit(batch(2))
    assert await numbers(new) == [1, 2]
    assert list((await new.load_definitions()).facts) == ["key 1", "key 2"]


@run
async def test_an_idle_owner_keeps_its_lease(nodes: Nodes) -> None:
    first, second = nodes.node("a"), nodes.node("b")
    store = await opened(first)
    waited: list[str] = []
    waiting = asyncio.ensure_future(PostgresStore(second, "one", on_wait=waited.append).open())
    await asyncio.sleep(2 * TTL_S)
    assert store.valid_until_s() > boottime_s()
    assert not waiting.done()
    assert waited == ["process a"]
    await store.close()
    await waiting  # an orderly end needs no wait for the lease


@run
async def test_an_idle_owner_learns_that_it_is_deposed(nodes: Nodes) -> None:
    store = await opened(nodes.node("a"))
    assert store.failure() is None
    nodes.execute("UPDATE peeklock.lease SET epoch = epoch + 1, session = 'another'")
    until_s = time.monotonic() + 20
    while store.failure() is None:
        assert time.monotonic() < until_s
        await asyncio.sleep(0.05)
    assert isinstance(store.failure(), StoreDeposed)
    assert store.valid_until_s() == 0


@run
async def test_a_node_that_starts_again_takes_its_store_back_at_once(nodes: Nodes) -> None:
    killed = nodes.node("a")
    await (await opened(killed)).commit(batch(1))
    waited: list[str] = []
    again = PostgresStore(nodes.node("a"), "one", on_wait=waited.append)
    await again.open()
    assert waited == []
    assert await numbers(again) == [1]


@run
async def test_an_idle_connection_that_was_ended_costs_nothing(nodes: Nodes) -> None:
    store = await opened(nodes.node("a"))
    for no in (1, 2, 3):
        nodes.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'peeklock %'"
        )
        await store.commit(batch(no))
    assert await numbers(store) == [1, 2, 3]


@contextmanager
def transaction(nodes: Nodes, sql: str) -> Iterator[None]:
    """Hold what a statement locks."""
    with psycopg.connect(nodes.url) as db:
        db.execute(sql.encode())
        yield


def end_writer(nodes: Nodes, how: str = "pg_terminate_backend", wait: str = "Lock") -> None:
    """End the backend that has the commit, once it waits."""
    until_s = time.monotonic() + 20
    query = (
        f"SELECT {how}(pid) FROM pg_stat_activity WHERE application_name LIKE 'peeklock %' "
        f"AND wait_event_type = '{wait}' AND state <> 'idle' AND query LIKE 'INSERT INTO %'"
    )
    while not nodes.execute(query):
        assert time.monotonic() < until_s
        time.sleep(0.02)


@run
async def test_a_commit_that_was_lost_before_its_end_is_sent_again(nodes: Nodes) -> None:
    """Req: R-02."""
    store = await opened(nodes.node("a"))
    with transaction(nodes, "LOCK TABLE peeklock.journal IN ACCESS EXCLUSIVE MODE"):
        committing = store.commit(batch(1))
        await asyncio.to_thread(end_writer, nodes)
    await committing
    await store.commit(batch(2))
    assert await numbers(store) == [1, 2]
    assert list((await store.load_definitions()).facts) == ["key 1", "key 2"]


@pytest.mark.parametrize("how", ["pg_terminate_backend", "pg_cancel_backend"])
def test_a_commit_that_waits_for_a_standby_is_settled(nodes: Nodes, how: str) -> None:
    """It is visible and not replicated: nothing is acknowledged before the standby has it. Req: R-02."""

    async def check() -> None:
        store = await opened(nodes.node("a"))
        set_standby(nodes, "'nobody'")
        try:
            no = 0
            while True:  # the server takes a moment to follow its settings
                no += 1
                committing = store.commit(batch(no))
                if not (await asyncio.wait({committing}, timeout=3))[0]:
                    break
            await asyncio.to_thread(end_writer, nodes, how, "IPC")
            await asyncio.sleep(0.5)
            assert not committing.done()
        finally:
            set_standby(nodes, "''")
        await committing
        await store.commit(batch(no + 1))
        assert await numbers(store) == list(range(1, no + 2))

    asyncio.run(check())


def set_standby(nodes: Nodes, names: str) -> None:
    """Set the standbys that commits wait for."""
    with psycopg.connect(nodes.url, autocommit=True) as db:
        db.execute("SET synchronous_commit = local")
        db.execute(f"ALTER SYSTEM SET synchronous_standby_names = {names}".encode())
        db.execute("SELECT pg_reload_conf()")


@run
async def test_a_server_that_starts_again_interrupts_nothing(nodes: Nodes) -> None:
    store = await opened(nodes.node("a"))
    await store.commit(batch(1))

    def restart() -> None:
        nodes.server.stop("immediate")
        nodes.server.start()

    restarting = threading.Thread(target=restart)
    restarting.start()
    for no in range(2, 40):
        await store.commit(batch(no))
    restarting.join()
    await store.commit(batch(40))
    assert await numbers(store) == list(range(1, 41))


@run
async def test_a_database_of_another_time_is_refused(nodes: Nodes) -> None:
    """Req: R-03."""
    database = nodes.node("a")
    store = await opened(database)
    for no in (1, 2):
        await store.commit(batch(no))
    await store.close()
    nodes.execute("DELETE FROM peeklock.journal WHERE no = 2")
    with pytest.raises(StoreDamaged, match="ends with batch 1, and batch 2 was acknowledged"):
        await opened(database)


@run
async def test_a_full_disk_limits_sending_and_loses_nothing(nodes: Nodes) -> None:
    """The commit waits for room. Req: R-06."""
    store = await opened(nodes.node("a"))
    await store.commit(batch(1))
    assert store.free_bytes() is None
    nodes.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'no space' USING ERRCODE = '53100'; END $$; "
        "CREATE TRIGGER full_disk BEFORE INSERT ON peeklock.journal EXECUTE FUNCTION refuse()"
    )
    committing = store.commit(batch(2))
    until_s = time.monotonic() + 20
    while store.free_bytes() is None:
        assert time.monotonic() < until_s
        await asyncio.sleep(0.05)
    assert store.free_bytes() == 0
    assert not committing.done()
    nodes.execute("DROP TRIGGER full_disk ON peeklock.journal")
    await committing
    assert store.free_bytes() is None
    assert await numbers(store) == [1, 2]


@run
async def test_a_commit_that_the_server_refuses_ends_the_store(nodes: Nodes) -> None:
    store = await opened(nodes.node("a"))
    nodes.execute("ALTER TABLE peeklock.journal ADD CHECK (no < 2)")
    await store.commit(batch(1))
    with pytest.raises(StoreFailed, match="could not write batch 2"):
        await store.commit(batch(2))
    with pytest.raises(StoreFailed, match="batch 3 was not written"):
        await store.commit(batch(3))


@run
async def test_a_server_that_becomes_read_only_is_left_for_the_primary(nodes: Nodes) -> None:
    """Here the same one, which takes writes again for new connections."""
    store = await opened(nodes.node("a"))
    await store.commit(batch(1))
    nodes.execute(f"ALTER DATABASE {nodes.database_name} SET default_transaction_read_only = on")
    nodes.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'peeklock %'"
    )
    committing = store.commit(batch(2))
    await asyncio.sleep(0.5)
    assert not committing.done()
    with psycopg.connect(nodes.url, autocommit=True) as db:
        db.execute("SET default_transaction_read_only = off")
        db.execute(f"ALTER DATABASE {nodes.database_name} RESET default_transaction_read_only".encode())
    await committing
    assert await numbers(store) == [1, 2]


@run
async def test_any_number_of_stores_share_the_connections(nodes: Nodes) -> None:
    database = nodes.node("a")
    stores = [PostgresStore(database, f"store {number}") for number in range(30)]
    await asyncio.gather(*(store.open() for store in stores))
    for no in (1, 2, 3):
        await asyncio.gather(*(store.commit(batch(no)) for store in stores))
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'peeklock %'"
    [(count,)] = nodes.execute(query)
    assert count <= CONNECTIONS_MIN
    await asyncio.sleep(TTL_S)  # renewed together, in one statement
    assert all(store.valid_until_s() > boottime_s() for store in stores)
    assert await asyncio.gather(*map(numbers, stores)) == [[1, 2, 3]] * 30
    await asyncio.gather(*(store.close() for store in stores))
    assert stores[0].valid_until_s() == 0
