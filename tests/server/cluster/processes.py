"""Nodes of a cluster as processes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from click.testing import CliRunner

from peeklock.auth import DEVELOPMENT_KEY
from peeklock.cli import main
from peeklock.demo.broker import BrokerFailed, BrokerProcess

SECONDS_MAX = 40
QUEUES: dict[str, dict[str, object]] = {"orders": {}}


class Cluster:
    """Nodes by name, each a process."""

    def __init__(
        self,
        url: str,
        folder: Path,
        namespaces: Iterable[str],
        queues: Mapping[str, Mapping[str, object]] = QUEUES,
        options: Iterable[str] = (),
    ) -> None:
        """Make the configuration; `queues` by name with their properties, `options` of each node."""
        self.folder = folder
        self._url = url
        self.urls: dict[str, str] = {}
        """Where a node reaches the database, if not as the others do."""
        self.key = folder / "cluster.key"
        self.key.write_bytes(b"a secret of 32 bytes for a test.")
        config = folder / "config.json"
        described = [{"Name": name, "Properties": about} for name, about in queues.items()]
        found = [{"Name": name, "Queues": described} for name in namespaces]
        config.write_text(json.dumps({"UserConfig": {"Namespaces": found}}))
        self.options: tuple[str, ...] = (f"--config={config}", "--store-connections=12", *options)
        self.nodes: dict[str, BrokerProcess] = {}

    def make(self, name: str, folder: str = "") -> BrokerProcess:
        (self.folder / (folder or name)).mkdir()
        options = (
            *self.options,
            f"--store={self.urls.get(name, self._url)}",
            f"--node={name}",
            f"--cluster-key={self.key}",
        )
        return BrokerProcess(self.folder / (folder or name), options)

    def start(self, name: str) -> BrokerProcess:
        node = self.nodes[name] = self.make(name)
        node.start()
        return node

    def kill(self) -> None:
        """Kill all nodes."""
        for node in self.nodes.values():
            node.kill()

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


def gifts(node: BrokerProcess) -> int:
    """Return how often a node has given a namespace back."""
    return node.log.read_text(errors="replace").count('"namespace given back"')


def until_let_go(node: BrokerProcess, gifts_before: int, seconds: float = SECONDS_MAX) -> None:
    """Wait until a node whose lease is another's has ended with status 1, or given its namespace back."""
    until_s = time.monotonic() + seconds
    while gifts(node) == gifts_before:
        try:
            node.check()
        except BrokerFailed as failure:
            if "ended by itself with status 1" not in str(failure):
                raise
            node.kill()  # so that it can start again
            return
        assert time.monotonic() < until_s, "it goes on as the owner"
        time.sleep(0.02)
