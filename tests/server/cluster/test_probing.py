"""Nodes whose listeners fail, or that others cannot reach, give their namespaces back."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from peeklock.server.app import Broker
from peeklock.server.net.probing import FAULTS, Prober
from tests.postgres_server import PostgresServer, free_port
from tests.server.cluster.nodes import Cluster, in_cluster


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database(f"probing{uuid.uuid4().hex}")


def prober_of(broker: Broker, port: int | None = None) -> Prober:
    """Return one that finds the clients' port there; None = where it is."""
    assert broker.node is not None
    port = broker.amqp_port if port is None else port
    return Prober(broker.node.member, broker.node.relay.context, "127.0.0.1", port)


def test_a_node_whose_listener_fails_gives_its_namespaces_back(url: str, tmp_path: Path) -> None:
    async def check(cluster: Cluster) -> None:
        first = await cluster.start("a")
        await cluster.until_owned(a=["default"])
        second = await cluster.start("b")
        for broker in (first, second):
            await prober_of(broker).probe()
        assert cluster.owned() == {"a": ["default"], "b": []}
        prober = prober_of(first, free_port())  # where nobody listens
        for _ in range(FAULTS):
            await prober.probe()
        await cluster.until_owned(a=[], b=["default"])

    in_cluster(check, url, tmp_path, ["main"])


def test_a_node_that_all_others_cannot_reach_gives_its_namespaces_back(url: str, tmp_path: Path) -> None:
    async def check(cluster: Cluster) -> None:
        first = await cluster.start("a")
        await cluster.until_owned(a=["default"])
        others = [await cluster.start(name) for name in "bc"]
        for broker in others:
            assert broker.node is not None
            await cluster.until_seen(broker, "a", "b", "c")
        assert first.node is not None
        first.node._port.close()
        for broker in others:
            prober = prober_of(broker)
            for _ in range(FAULTS):
                await prober.probe()
        await cluster.until_owned(a=[], b=["default"], c=[])

    in_cluster(check, url, tmp_path, ["main"])
