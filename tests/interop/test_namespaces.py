"""Several namespaces of one process, by the official clients."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from peeklock.auth import generate
from peeklock.demo.broker import BrokerProcess, program
from tests.kept_keys import KeptKeys

pytestmark = pytest.mark.interop

CONFIG = {
    "UserConfig": {
        "Namespaces": [
            {"Name": "shop", "Queues": [{"Name": "orders"}, {"Name": "shop-only"}]},
            {"Name": "bank", "Queues": [{"Name": "orders"}]},
        ]
    }
}


class Two:
    """A broker with two namespaces."""

    def __init__(self, broker: BrokerProcess, keys: dict[str, str]) -> None:
        self.broker = broker
        self.keys = keys

    def text(self, namespace: str, host: str = "localhost", key: str | None = None) -> str:
        """Return a connection string that chooses a namespace by its key."""
        where = f"Endpoint=sb://{host}:{self.broker.amqp_port};"
        return f"{where}{key or self.keys[namespace]};UseDevelopmentEmulator=true;"

    def client(self, namespace: str, **options: Any) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self.text(namespace), retry_total=0, **options)

    def http(self, namespace: str, method: str, path: str) -> Any:
        """Return the answer to an HTTP request of the namespace's key."""
        name, key = re.findall(r"SharedAccessKey(?:Name)?=([^;]+)", self.keys[namespace])
        token = generate("sb://localhost/", name, key, round(time.time() + 600) * 1000)
        url = f"http://127.0.0.1:{self.broker.http_port}{path}"
        request = urllib.request.Request(url, method=method, headers={"Authorization": token})
        return urllib.request.urlopen(request, timeout=60)

    def send(self, namespace: str, body: str) -> None:
        with self.client(namespace) as client, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage(body))

    def peek(self, namespace: str) -> list[str]:
        with self.client(namespace) as client, client.get_queue_receiver("orders") as receiver:
            return [str(message) for message in receiver.peek_messages(10)]


@pytest.fixture(params=["development", "sas"])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Two]:
    (tmp_path / "Config.json").write_text(json.dumps(CONFIG))
    options = [f"--config={tmp_path / 'Config.json'}", "--auth", request.param]
    with BrokerProcess(tmp_path, options) as broker:
        if request.param == "sas":
            keys = {name: _first_key(broker.data, name) for name in ("shop", "bank")}
        else:
            keys = {
                "shop": "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE",
                "bank": "SharedAccessKeyName=bank;SharedAccessKey=SAS_KEY_VALUE",
            }
        yield Two(broker, keys)


def _first_key(data: Path, namespace: str) -> str:
    [rule] = KeptKeys(data, namespace).load()
    return f"SharedAccessKeyName={rule.name};SharedAccessKey={rule.primary_key}"


def test_namespaces_share_an_address_and_nothing_else(two: Two) -> None:
    two.send("shop", "for the shop")
    two.send("bank", "for the bank")
    assert two.peek("shop") == ["for the shop"]
    assert two.peek("bank") == ["for the bank"]
    two.broker.kill()
    two.broker.start()
    assert two.peek("shop") == ["for the shop"]
    assert two.peek("bank") == ["for the bank"]


def test_an_entity_of_one_is_not_there_in_the_other(two: Two) -> None:
    with pytest.raises(ServiceBusError):
        _send(two.client("bank"), "shop-only")
    _send(two.client("shop"), "shop-only")


@pytest.mark.parametrize(("host", "status"), [("bank.localhost", 404), ("shop.localhost", 200)])
def test_the_name_in_the_hand_shake_chooses_no_namespace(two: Two, host: str, status: int) -> None:
    """TLS is asked for one namespace, and the request for the other or the same: the request counts."""
    [name, key] = re.findall(r"SharedAccessKey(?:Name)?=([^;]+)", two.keys[host.partition(".")[0]])
    token = generate(f"sb://{host}/", name, key, round(time.time() + 600) * 1000)
    context = ssl.create_default_context(cafile=str(two.broker.data / "tls" / "ca.pem"))
    context.check_hostname = False  # the certificate need not have every name
    with (
        socket.create_connection(("127.0.0.1", two.broker.http_port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="shop.localhost") as encrypted,
    ):
        asked = http.client.HTTPConnection(host)
        asked.sock = encrypted
        asked.request("GET", "/$api/v1/entities/shop-only", headers={"Authorization": token})
        assert asked.getresponse().status == status


def _send(client: ServiceBusClient, queue: str) -> None:
    with client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("a"))


def test_a_lock_of_one_is_none_in_the_other(two: Two) -> None:
    two.send("shop", "a")
    two.send("bank", "b")
    locked = two.http("shop", "POST", "/orders/messages/head?timeout=20")
    properties = json.loads(locked.headers["BrokerProperties"])
    path = f"/orders/messages/{properties['MessageId']}/{properties['LockToken']}"
    with pytest.raises(urllib.error.HTTPError) as refused:
        two.http("bank", "DELETE", path)
    assert refused.value.code in (404, 410)
    assert two.peek("bank") == ["b"]
    assert two.http("shop", "DELETE", path).status == 200
    assert two.peek("shop") == []


def test_the_administration_of_one_does_not_touch_the_other(two: Two) -> None:
    def admin(namespace: str) -> ServiceBusAdministrationClient:
        text = two.text(namespace).replace(f":{two.broker.amqp_port}", f":{two.broker.http_port}")
        return ServiceBusAdministrationClient.from_connection_string(
            text, connection_verify=str(two.broker.authority())
        )

    with admin("shop") as shop, admin("bank") as bank:
        assert [queue.name for queue in bank.list_queues()] == ["orders"]
        bank.create_queue("loans")
        bank.delete_queue("orders")
        assert bank.get_namespace_properties().name == "bank"
        assert sorted(queue.name for queue in shop.list_queues()) == ["orders", "shop-only"]
        with pytest.raises(ResourceNotFoundError):
            shop.get_queue("loans")


@pytest.mark.parametrize("two", ["sas"], indirect=True)
def test_a_key_of_one_is_none_in_the_other(two: Two) -> None:
    """By the host name, where it is not the key that chooses."""
    client = ServiceBusClient.from_connection_string(
        two.text("bank", "shop.servicebus.windows.net"),
        custom_endpoint_address=f"sb://localhost:{two.broker.amqp_port}",
        retry_total=0,
    )
    with pytest.raises(ServiceBusError):
        _send(client, "orders")
    assert two.peek("shop") == []


def test_the_host_name_chooses_where_the_key_cannot(two: Two) -> None:
    text = two.text("bank", "bank.servicebus.windows.net")
    endpoint = f"sb://localhost:{two.broker.amqp_port}"
    client = ServiceBusClient.from_connection_string(text, custom_endpoint_address=endpoint)
    with client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("by its host"))
    assert two.peek("bank") == ["by its host"]
    assert two.peek("shop") == []


def test_metrics_and_connections_name_the_namespace(two: Two) -> None:
    if "SAS_KEY_VALUE" not in two.keys["bank"]:
        where = ["--data", str(two.broker.data)]
    else:
        where = ["--url", f"http://127.0.0.1:{two.broker.http_port}"]
    two.send("bank", "a")
    with two.client("bank") as client, client.get_queue_receiver("orders") as receiver:
        receiver.peek_messages()
        done = subprocess.run(
            [program(), "connections", "--json", *where], capture_output=True, text=True, check=True
        )
        assert {each["namespace"] for each in json.loads(done.stdout)["connections"]} == {"bank"}
    if "--url" in where:
        with urllib.request.urlopen(f"{where[1]}/metrics") as answer:
            text = answer.read().decode()
        received = dict(re.findall(r'peeklock_messages_received_total\{namespace="(\w+)"\} (\d+)', text))
        assert received == {"shop": "0", "bank": "1"}


def test_each_has_an_event_log_of_its_own(tmp_path: Path) -> None:
    """One process writes both."""
    import pyarrow.parquet as pq

    (tmp_path / "Config.json").write_text(json.dumps(CONFIG))
    log = tmp_path / "log"
    options = [f"--config={tmp_path / 'Config.json'}", f"--capture={log}", "--capture-interval=0.2"]
    with BrokerProcess(tmp_path, options) as broker:
        root = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE"
        two = Two(broker, {"shop": root, "bank": root.replace("RootManageSharedAccessKey", "bank")})
        two.send("shop", "a")
        two.send("bank", "b")
        two.send("bank", "c")
        broker.stop()

    def sent(folder: Path, *, inside: bool) -> int:
        files = [file for file in folder.rglob("*.parquet") if inside or "_namespaces" not in file.parts]
        tables = [pq.read_table(file, columns=["event_type"]) for file in files]
        return sum(table.column("event_type").to_pylist().count("enqueued") for table in tables)

    assert sent(log, inside=False) == 1
    assert sent(log / "_namespaces" / "bank", inside=True) == 2
