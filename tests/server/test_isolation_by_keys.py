"""A key of one namespace shows and changes nothing of another one of the process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from peeklock.amqp.types import Array
from peeklock.client import BlockingConnection, ConnectionString, ReceiveMode, ServiceBusError, encode_message
from peeklock.demo.broker import BrokerProcess
from tests.kept_keys import KeptKeys
from tests.server.test_throw_away import CONFIG, Api

Key = tuple[str, str]


class Two:
    """A broker with keys, and two namespaces with a queue of the same name."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.api = Api(broker.http_port)
        [rule] = KeptKeys(broker.data).load()
        self.root = (rule.name, rule.primary_key)
        self.texts: dict[str, str] = {}
        self.keys: dict[str, Key] = {}
        for name in ("shop", "bank"):
            made = self.api("POST", f"/$api/v1/namespaces?name={name}", CONFIG, key=self.root)
            self.texts[name] = made["connectionString"]
            secret = self.texts[name].split("SharedAccessKey=")[1].split(";")[0]
            self.keys[name] = (name, secret)

    def ask(self, name: str, method: str, path: str, body: Any = None) -> Any:
        return self.api(method, path, body, key=self.keys[name])

    def connection(self, name: str) -> BlockingConnection:
        return BlockingConnection(ConnectionString.parse(self.texts[name]))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    options = ["--auth=sas", "--throw-away=2", "--durability=os"]
    with BrokerProcess(tmp_path_factory.mktemp("broker"), options) as broker:
        yield Two(broker)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/$api/v1/namespaces/bank", None),
        ("DELETE", "/$api/v1/namespaces/bank", None),
        ("POST", "/$api/v1/namespaces/bank/clock", {"advance": "PT1S"}),
        ("POST", "/$api/v1/namespaces/bank/reset", None),
    ],
)
def test_another_namespace_is_not_there(two: Two, method: str, path: str, body: Any) -> None:
    before = two.ask("bank", "GET", "/$api/v1/namespaces"), two.ask("bank", "GET", "/$api/v1/config")
    assert two.ask("shop", method, path, body) == 404
    assert (
        two.ask("bank", "GET", "/$api/v1/namespaces"),
        two.ask("bank", "GET", "/$api/v1/config"),
    ) == before


def test_connections_of_another_are_neither_shown_nor_closed(two: Two) -> None:
    shop, bank = two.connection("shop"), two.connection("bank")
    try:
        for each in (shop, bank):
            sender = each.sender("orders")
            sender.send(encode_message(data=b"a"))
            sender.flush()
        [own] = two.ask("shop", "GET", "/connections")["connections"]
        [other] = two.ask("bank", "GET", "/connections")["connections"]
        assert (own["namespace"], other["namespace"]) == ("shop", "bank")
        assert two.ask("shop", "DELETE", f"/connections/{other['id']}") == 404
        [still] = two.ask("bank", "GET", "/connections")["connections"]
        assert still["id"] == other["id"]
    finally:
        shop.close()
        bank.close()


def test_the_key_name_of_one_with_the_key_of_another_is_refused(two: Two) -> None:
    text = two.texts["shop"].replace("SharedAccessKeyName=shop", "SharedAccessKeyName=bank")
    connection = BlockingConnection(ConnectionString.parse(text))
    try:
        with pytest.raises(ServiceBusError):
            connection.sender("orders").send(encode_message(data=b"forged"))
    finally:
        connection.close()


def test_a_lock_of_another_cannot_be_used_over_http(two: Two) -> None:
    """Both namespaces have a queue of this name."""
    two.ask("bank", "POST", "/$api/v1/entities/orders/messages", {"body": "of the bank"})
    [locked, *_] = two.ask("bank", "POST", "/$api/v1/entities/orders/locks", {"wait": 10})["deliveries"]
    path = locked["lock"]["href"]
    for method, body in (("POST", None), ("DELETE", None), ("PATCH", {"outcome": "abandon"})):
        assert two.ask("shop", method, path, body) in (404, 410)
    assert two.ask("bank", "DELETE", path) is None


@pytest.mark.parametrize(
    ("operation", "more"),
    [("renew-lock", {}), ("update-disposition", {"disposition-status": "completed"})],
)
def test_a_lock_of_another_cannot_be_used_over_amqp(two: Two, operation: str, more: dict[str, Any]) -> None:
    shop, bank = two.connection("shop"), two.connection("bank")
    try:
        sender, receiver = bank.sender("orders"), bank.receiver("orders", ReceiveMode.PEEK_LOCK)
        sender.send(encode_message(data=b"of the bank"))
        sender.flush()
        [delivery] = receiver.receive(1, 10)
        token = Array.of(UUID, [UUID(bytes_le=delivery.lock_token)])
        request = f"com.microsoft:{operation}", {"lock-tokens": token, **more}
        with pytest.raises(ServiceBusError):
            shop.management("orders").request(*request, timeout_s=10)
        bank.management("orders").request(*request, timeout_s=10)
    finally:
        shop.close()
        bank.close()
