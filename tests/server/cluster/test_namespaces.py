"""Namespaces of a cluster are made, listed and deleted at any node."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from peeklock.broker.vocabulary.changes import FactStored
from peeklock.cli import main
from peeklock.server.app import Broker
from peeklock.server.cluster import member
from peeklock.server.disk import store_name
from peeklock.server.system.namespaces import NamespaceRecord, NamespaceRecords
from peeklock.store.base import Batch
from peeklock.store.postgres.store import PostgresStore
from tests.postgres_server import PostgresServer, database_of
from tests.server.cluster.nodes import Cluster, in_cluster, until_next_view


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database(f"made{uuid.uuid4().hex}")


async def run(broker: Broker, *arguments: str) -> str:
    """Return what a command prints, or why it is refused."""
    where = f"--url=http://127.0.0.1:{broker.http_port}"
    result = await asyncio.to_thread(CliRunner().invoke, main, [*arguments, where], input="y\n")
    return result.output


def test_a_namespace_is_made_and_deleted_at_any_node(url: str, tmp_path: Path) -> None:
    async def check(cluster: Cluster) -> None:
        first = await cluster.start("a")
        await cluster.until_owned(a=["default"])
        second = await cluster.start("b")
        assert "Endpoint=sb://" in await run(second, "namespaces", "create", "bank")
        await cluster.until_owned(a=["default"], b=["namespace/bank"])  # which had none
        for broker in (first, second):
            listed = await run(broker, "namespaces", "list")
            assert [line.split()[0] for line in listed.splitlines()] == ["NAME", "main", "bank"]
        assert "already a namespace 'bank'" in await run(first, "namespaces", "create", "bank")
        assert "deleted" in await run(second, "namespaces", "delete", "bank")
        await cluster.until_owned(a=["default"], b=[])
        assert "bank" not in await run(second, "namespaces", "list")

    in_cluster(check, url, tmp_path, ["main"])


def test_a_namespace_of_the_file_is_not_deleted_and_does_not_move(url: str, tmp_path: Path) -> None:
    async def check(cluster: Cluster) -> None:
        first = await cluster.start("a")
        await cluster.until_owned(a=["default", "namespace/one"])
        await cluster.start("b")
        await cluster.until_owned(a=["default"], b=["namespace/one"])
        assert "'one' is of the configuration file" in await run(first, "namespaces", "delete", "one")
        assert cluster.owned() == {"a": ["default"], "b": ["namespace/one"]}

    in_cluster(check, url, tmp_path, ["main", "one"])


def test_a_node_makes_no_throw_away_namespace(url: str, tmp_path: Path) -> None:
    """Its name could be that of a namespace which another node owns."""

    async def check(cluster: Cluster) -> None:
        first = await cluster.start("a")
        await cluster.until_owned(a=["default", "namespace/one"])
        second = await cluster.start("b")
        await cluster.until_owned(a=["default"], b=["namespace/one"])
        for broker in (first, second):
            told = await run(broker, "namespaces", "create", "one", "--throw-away")
            assert "A node of a cluster makes no throw-away namespaces: start a broker without --node" in told

    in_cluster(check, url, tmp_path, ["main", "one"])


def test_a_store_that_its_owner_does_not_give_back_is_not_removed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner would be deposed, and stop with all its namespaces."""
    monkeypatch.setattr(member, "FREE_S_MAX", 0.2)

    async def check(cluster: Cluster) -> None:
        broker = await cluster.start("a")
        await cluster.until_owned(a=["default"])
        assert broker.node is not None
        name = store_name("bank", is_default=False)
        with closing(database_of(url, instance="other@host")) as database:
            store = PostgresStore(database, name)
            await store.open()
            await until_next_view(broker.node.member)
            await NamespaceRecords(broker.protocols.process.system).put(NamespaceRecord("bank"))
            while broker.node.member.directory.by_name("bank") is None:
                await until_next_view(broker.node.member)
            told = await run(broker, "namespaces", "delete", "bank")
            assert "another process has not given it back within 0.2 s" in told
            await store.commit(Batch(1, [FactStored("key", "1")], truncate_before=1))
            await store.close()
        assert "bank" not in await run(broker, "namespaces", "list")

    in_cluster(check, url, tmp_path, ["main"])
