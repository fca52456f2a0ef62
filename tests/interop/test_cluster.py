"""Three nodes of a cluster as processes, with the official client."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from click.testing import CliRunner

from peeklock.auth import DEVELOPMENT_KEY
from peeklock.cli import main
from peeklock.demo.broker import BrokerFailed, BrokerProcess
from tests.postgres_server import PostgresServer
from tests.server.cluster.names import names as names  # a fixture

SECONDS_MAX = 40
NAMESPACES = ("main", "one", "two")


class Cluster:
    """Nodes by name, each a process."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        self.key = folder / "cluster.key"
        self.key.write_bytes(b"a secret of 32 bytes for a test.")
        config = folder / "config.json"
        found = [{"Name": name, "Queues": [{"Name": "orders"}]} for name in NAMESPACES]
        config.write_text(json.dumps({"UserConfig": {"Namespaces": found}}))
        self.options = (f"--store={url}", f"--config={config}", "--store-connections=12")
        self.nodes: dict[str, BrokerProcess] = {}

    def make(self, name: str, folder: str = "") -> BrokerProcess:
        (self.folder / (folder or name)).mkdir()
        options = (*self.options, f"--node={name}", f"--cluster-key={self.key}")
        return BrokerProcess(self.folder / (folder or name), options)

    def start(self, name: str) -> BrokerProcess:
        node = self.nodes[name] = self.make(name)
        node.start()
        return node

    def shown(self, name: str) -> dict[str, str | None]:
        """Return the owner of each namespace, as a node shows it."""
        result = CliRunner().invoke(main, ["cluster", "--json", f"--data={self.nodes[name].data}"])
        assert result.exit_code == 0, result.output
        return {one["name"]: one["owner"] for one in json.loads(result.output)["namespaces"]}

    def until(self, found: Callable[[], object]) -> float:
        """Wait until something is so; return the seconds that it took."""
        began_s = time.monotonic()
        while not found():
            assert time.monotonic() < began_s + SECONDS_MAX
            time.sleep(0.02)
        return time.monotonic() - began_s

    def client(self, node: str, namespace: str) -> ServiceBusClient:
        text = (
            f"Endpoint=sb://{namespace}.localhost:{self.nodes[node].amqp_port};SharedAccessKeyName="
            f"RootManageSharedAccessKey;SharedAccessKey={DEVELOPMENT_KEY};UseDevelopmentEmulator=true;"
        )
        return ServiceBusClient.from_connection_string(text, retry_total=0)

    def send(self, node: str, namespace: str, body: str) -> None:
        with self.client(node, namespace) as client, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage(body))

    def receive(self, node: str, namespace: str, count: int) -> list[str]:
        found: list[str] = []
        with self.client(node, namespace) as client, client.get_queue_receiver("orders") as receiver:
            while len(found) < count:
                batch = receiver.receive_messages(count - len(found), max_wait_time=10)
                assert batch, f"only {found} came"
                for message in batch:
                    found.append(str(message))
                    receiver.complete_message(message)
        return found

    def get(self, node: str, path: str, host: str = "localhost") -> tuple[int, dict[str, object]]:
        request = Request(f"http://127.0.0.1:{self.nodes[node].http_port}{path}", headers={"Host": host})
        try:
            with urlopen(request) as answer:
                return answer.status, json.load(answer)
        except HTTPError as failure:
            return failure.code, json.load(failure)


@pytest.fixture
def cluster(postgres: PostgresServer, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(postgres.new_database(f"cluster{uuid.uuid4().hex}"), tmp_path)
    try:
        yield made
    finally:
        for node in made.nodes.values():
            node.kill()


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
