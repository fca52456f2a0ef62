"""A broker process, with entities to search in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peeklock.client import BlockingConnection, ConnectionString, encode_message
from peeklock.demo.broker import BrokerProcess
from tests.server.workers.asking import Client

CONFIG: dict[str, Any] = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [
                    {"Name": "orders"},
                    {"Name": "repaired"},
                    {"Name": "carts", "Properties": {"RequiresSession": True}},
                ],
                "Topics": [{"Name": "news", "Subscriptions": [{"Name": "all"}]}],
            }
        ]
    }
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    config = tmp_path / "Config.json"
    config.write_text(json.dumps(CONFIG))
    with BrokerProcess(tmp_path, ["--durability=os", f"--config={config}"]) as made:
        yield made


@pytest.fixture
def client(broker: BrokerProcess) -> Client:
    return Client(broker)


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[BlockingConnection]:
    made = BlockingConnection(ConnectionString.parse(broker.connection_string))
    yield made
    made.close()


def fill(
    connection: BlockingConnection, count: int, entity: str = "orders", data: bytes = b"one pizza"
) -> None:
    """Send messages with an application property `n`, from 0 on."""
    sender = connection.sender(entity)
    for n in range(count):
        sender.send(encode_message(application_properties={"n": n}, data=data))
    sender.flush()
    sender.close()
