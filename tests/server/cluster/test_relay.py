"""Clients of any node reach the owner of their namespace."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from peeklock.auth import DEVELOPMENT_KEY
from peeklock.server.app import Broker
from tests.postgres_server import PostgresServer
from tests.server.cluster.names import names as names  # a fixture
from tests.server.cluster.nodes import Cluster, in_cluster


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database(f"relay{uuid.uuid4().hex}")


def client_of(broker: Broker, name: str) -> ServiceBusClient:
    """Return a client of a namespace, which connects to this node."""
    text = (
        f"Endpoint=sb://{name}.localhost:{broker.amqp_port};SharedAccessKeyName=RootManageSharedAccessKey;"
        f"SharedAccessKey={DEVELOPMENT_KEY};UseDevelopmentEmulator=true;"
    )
    return ServiceBusClient.from_connection_string(text, retry_total=0)


def send(broker: Broker, name: str, body: str) -> None:
    with client_of(broker, name) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage(body))


def receive(broker: Broker, name: str) -> str:
    with client_of(broker, name) as client, client.get_queue_receiver("orders") as receiver:
        [message] = receiver.receive_messages(1, max_wait_time=10)
        receiver.complete_message(message)
        return str(message)


def test_clients_of_any_node_reach_the_owner(url: str, tmp_path: Path) -> None:
    async def check(cluster: Cluster) -> None:
        first = await cluster.start("a")
        await cluster.until_owned(a=["default", "namespace/one", "namespace/two"])
        second = await cluster.start("b")
        await cluster.until_owned(a=["default", "namespace/one"], b=["namespace/two"])
        for name in ("main", "one", "two"):
            for sender, receiver in ((first, second), (second, first)):
                await asyncio.to_thread(send, sender, name, name)
                assert await asyncio.to_thread(receive, receiver, name) == name

    in_cluster(check, url, tmp_path, ["main", "one", "two"])
