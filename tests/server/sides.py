"""Namespaces of one process that look alike, each with its key and an AMQP connection of its own."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from peeklock.amqp.types import Int, Long
from peeklock.client import (
    BlockingConnection,
    ConnectionString,
    Properties,
    ReceiveMode,
    Receiver,
    SessionChoice,
    encode_message,
    scan,
)
from tests.server.test_isolation import Owner

ENTITIES: dict[str, Any] = {
    "Queues": [
        {"Name": "orders"},
        {"Name": "carts", "Properties": {"RequiresSession": True}},
        {"Name": "once", "Properties": {"RequiresDuplicateDetection": True}},
        {"Name": "relay", "Properties": {"ForwardTo": "orders"}},
        {"Name": "doomed", "Properties": {"ForwardDeadLetteredMessagesTo": "orders"}},
    ],
    "Topics": [{"Name": "news", "Subscriptions": [{"Name": "all"}]}],
}


class Side:
    """One namespace: its owner over HTTP, its client over AMQP."""

    def __init__(self, http_port: int, entities: dict[str, Any]) -> None:
        config = {"UserConfig": {"Namespaces": [{"Name": "any", **entities}]}}
        url = f"http://localhost:{http_port}/$api/v1/namespaces"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(config).encode())) as answer:
            made = json.load(answer)
        self.name: str = made["name"]
        self.text: str = made["connectionString"]
        self.owner = Owner(http_port, self.name)
        self.connection = BlockingConnection(ConnectionString.parse(self.text, timeout_s=10))

    def send(
        self, path: str, *bodies: str, session: str | None = None, message_id: str | None = None
    ) -> None:
        """Send messages, and wait until they are stored."""
        sender = self.connection.sender(path)
        for body in bodies:
            properties = Properties(message_id=message_id, group_id=session)
            sender.send(encode_message(properties=properties, data=body.encode()))
        sender.flush()
        sender.close()

    def receiver(self, path: str, session: SessionChoice = None) -> Receiver:
        """Return a receiver that locks."""
        return self.connection.receiver(path, ReceiveMode.PEEK_LOCK, session)

    def ask(self, path: str, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask the management node of an entity. Raises: ServiceBusError."""
        return self.connection.management(path).request(operation, body, timeout_s=10).body

    def peek(self, path: str) -> list[str]:
        """Return the bodies of an entity's messages."""
        wanted = {"from-sequence-number": Long(0), "message-count": Int(100)}
        found = self.ask(path, "com.microsoft:peek-message", wanted).get("messages") or []
        return [body_of(each["message"]) for each in found]

    def content(self) -> dict[str, Any]:
        """Return all that another one could have changed, cursors and rules too."""
        rules = {"skip": Int(0), "top": Int(100)}
        return {
            "shown": self.owner.content(),
            "cursors": self.ask("orders", "peeklock:cursor-list", {})["cursors"],
            "rules": self.ask("news/Subscriptions/all", "com.microsoft:enumerate-rules", rules),
        }


def body_of(payload: bytes) -> str:
    """Return the one data section of a message as text."""
    [(_, data)] = scan(payload).decode_body()
    return bytes(data).decode()


@contextmanager
def sides(http_port: int, *entities: dict[str, Any]) -> Iterator[list[Side]]:
    """Make namespaces; close their connections afterwards."""
    made = [Side(http_port, each) for each in entities]
    try:
        yield made
    finally:
        for side in made:
            side.connection.close()
