"""Three nodes of a cluster as processes, with the official client."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus.exceptions import ServiceBusError
from click.testing import CliRunner

from peeklock.cli import main
from peeklock.demo.broker import BrokerFailed
from tests.postgres_server import PostgresServer
from tests.server.cluster.names import names as names  # a fixture
from tests.server.cluster.processes import Cluster

NAMESPACES = ("main", "one", "two")


@pytest.fixture
def cluster(postgres: PostgresServer, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(postgres.new_database(f"cluster{uuid.uuid4().hex}"), tmp_path, NAMESPACES)
    try:
        yield made
    finally:
        made.kill()


def test_three_nodes_share_namespaces_and_take_over(cluster: Cluster) -> None:
    """Req: R-02."""
    for name in "abc":
        cluster.start(name)
    cluster.until(lambda: sorted(map(str, cluster.shown("a").values())) == ["a", "b", "c"])
    owners = cluster.shown("b")
    for namespace in NAMESPACES:
        for node in "abc":
            cluster.send(node, namespace, f"{namespace} by {node}")
        assert cluster.receive("c", namespace, 3) == [f"{namespace} by {node}" for node in "abc"]

    # Probes and pages, of any node.
    for node in "abc":
        assert cluster.get(node, "/ready")[0] == 200
        assert cluster.get(node, "/owner", "one.localhost")[1]["owner"] == owners["one"]
    refused = CliRunner().invoke(main, ["cluster", "move", "none", f"--data={cluster.nodes['a'].data}"])
    assert (refused.exit_code, "no namespace 'none' in this cluster" in refused.output) == (1, True)

    # By hand.
    target = next(name for name in "abc" if name != owners["one"])
    moved = CliRunner().invoke(main, ["cluster", "move", "one", target, f"--data={cluster.nodes['a'].data}"])
    assert moved.output == f"one moves to {target}\n"
    assert cluster.until(lambda: cluster.shown("a")["one"] == target) < 3  # a second, on a machine with room
    cluster.send("a", "one", "after the move")

    # A kill.
    killed = target
    cluster.nodes[killed].kill()
    left = [name for name in "abc" if name != killed]

    def serves() -> bool:
        try:
            cluster.send(left[0], "one", "after the kill")
        except (ServiceBusError, OSError):
            return False
        return True

    assert cluster.until(serves) < 20
    cluster.until(lambda: killed not in cluster.shown(left[0]).values())
    assert cluster.receive(left[1], "one", 2) == ["after the move", "after the kill"]

    # An orderly end: the last node has all.
    assert cluster.nodes[left[1]].stop() == 0
    cluster.until(lambda: set(cluster.shown(left[0]).values()) == {left[0]})


def test_a_relayed_client_is_shown_by_its_address(cluster: Cluster) -> None:
    first = cluster.start("a")
    cluster.until(lambda: cluster.shown("a")["main"] == "a")
    cluster.start("b")
    with cluster.client("b", "main") as client, client.get_queue_receiver("orders") as receiver:
        receiver.peek_messages()
        said = CliRunner().invoke(main, ["connections", "--json", f"--data={first.data}"])
        [connection] = json.loads(said.output)["connections"]
    assert connection["peer"].startswith("127.0.0.1:")
    assert connection["namespace"] == "main"


def test_a_second_node_of_a_name_does_not_start(cluster: Cluster) -> None:
    cluster.start("a")
    second = cluster.make("a", "other")
    with pytest.raises(BrokerFailed):
        second.start()
    assert "a node 'a' of " in second.log.read_text()
    assert "runs already" in second.log.read_text()
