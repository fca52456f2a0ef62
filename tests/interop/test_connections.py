"""The official client as the operator sees it, and how it takes the end of its connection."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from peeklock.demo.broker import BrokerProcess, program

pytestmark = pytest.mark.interop

CONFIG = {"UserConfig": {"Namespaces": [{"Name": "ns", "Queues": [{"Name": "orders"}]}]}}


def test_a_client_is_seen_with_its_links_and_goes_on_after_a_close(tmp_path: Path) -> None:
    (tmp_path / "Config.json").write_text(json.dumps(CONFIG))
    options = ["--durability=os", f"--config={tmp_path / 'Config.json'}"]
    with BrokerProcess(tmp_path, options) as broker:
        where = ("--url", f"http://127.0.0.1:{broker.http_port}")

        def shown() -> list[Any]:
            command = [program(), "connections", "--json", *where]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
            found: list[Any] = json.loads(done.stdout)["connections"]
            return found

        with ServiceBusClient.from_connection_string(broker.connection_string) as client:
            sender, receiver = client.get_queue_sender("orders"), client.get_queue_receiver("orders")
            sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
            assert receiver.receive_messages(1, max_wait_time=20)
            found = shown()
            assert {each["client"]["product"] for each in found} == {"azsdk-python-servicebus"}
            assert {each["namespace"] for each in found} == {"ns"}
            assert {tuple(each["identities"]) for each in found} == {("RootManageSharedAccessKey",)}
            links = {link["role"]: link for each in found for link in each["links"]}
            assert {link["entity"] for link in links.values()} == {"orders"}
            assert (links["receiver"]["unsettled"], links["sender"]["unsettled"]) == (1, 0)
            for each in found:
                subprocess.run([program(), "connections", "close", str(each["id"]), *where], check=True)
            sender.send_messages(ServiceBusMessage("c"))  # it connects again
            assert {each["id"] for each in found}.isdisjoint(each["id"] for each in shown())
