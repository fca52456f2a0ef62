"""What every feature of the Python program needs: clients, entities with names of their own, small moves.

Over TLS the client drops the port of a connection string, so it is given by `custom_endpoint_address`, and
the broker's authority by `connection_verify`. Without TLS (`UseDevelopmentEmulator=true`) the port is kept.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import TransportType

from tests.interop.clients import Api, Background, Links
from tests.interop.helpers import NOTHING_S, WAIT_S

Feature = Callable[["Surroundings"], None]

FEATURES: dict[str, Feature] = {}

WAITING = ("schedule", "time-to-live", "renew-lock", "lock-lost", "renew-session")
"""These wait for a time to come, and ask for no restart."""


def feature(function: Feature) -> Feature:
    """Enter a feature by its function's name: `dead_letter` shows `dead-letter`."""
    FEATURES[function.__name__.replace("_", "-")] = function
    return function


class NotOffered(Exception):
    """The client has no such thing; the text says what there is instead, if anything."""


class Differs(Exception):
    """The client does it, but a user would notice a difference; the text says which."""


class Surroundings:
    """One form of the official client, and the broker as the environment tells of it."""

    def __init__(self, form: str) -> None:
        self.tls = os.environ["PEEKLOCK_TEST_CONNECTION_STRING"]
        self.plain = f"{self.tls};UseDevelopmentEmulator=true"
        parts = dict(part.split("=", 1) for part in self.tls.split(";"))
        self.key = parts["SharedAccessKey"]
        self.authority = os.environ.get("PEEKLOCK_CA")
        """None: what the system trusts."""
        address = parts["Endpoint"].removeprefix("sb://").rstrip("/")
        self.address = address if ":" in address else ""
        """Host and port; empty where the connection string has no port, which is the client's own then."""
        self.api = Api(form)
        self.administration = self.api.administration(self.tls, connection_verify=self.authority or True)
        self._background = Background()
        run = secrets.token_hex(4)
        self._names = (f"python-{form}-{run}-{number}" for number in itertools.count(1))
        self._given: list[str] = []
        self._opened: list[Any] = []
        self.client = self.tls_client()

    def tls_client(self, connection_string: str | None = None, **options: Any) -> Links:
        """Make a client that connects by TLS; options as the official client has them."""
        transport = options.setdefault("transport_type", TransportType.Amqp)
        if self.address:
            scheme = "sb" if transport is TransportType.Amqp else "wss"
            options["custom_endpoint_address"] = f"{scheme}://{self.address}"
        return self._make(connection_string or self.tls, **{"connection_verify": self.authority, **options})

    def plain_client(self, connection_string: str | None = None, **options: Any) -> Links:
        """Make a client that connects without TLS."""
        return self._make(connection_string or self.plain, **options)

    def bare_client(self, connection_string: str) -> Links:
        """Make a client without a custom endpoint: with a port, that is one without TLS."""
        if self.address:
            return self.plain_client(f"{connection_string};UseDevelopmentEmulator=true", retry_total=0)
        return self.tls_client(connection_string, retry_total=0)

    def _make(self, connection_string: str, **options: Any) -> Links:
        client = self.api.client(connection_string, **options)
        self._opened.append(client)
        return Links(client, self._background)

    def name(self) -> str:
        """Return a name that no other entity has."""
        self._given.append(next(self._names))
        return self._given[-1]

    def queue(self, **settings: Any) -> str:
        """Make a queue; settings as `create_queue` has them."""
        name = self.name()
        self.administration.create_queue(name, **settings)
        return name

    def topic(self, *subscriptions: str) -> str:
        """Make a topic with subscriptions."""
        name = self.name()
        self.administration.create_topic(name)
        for subscription in subscriptions:
            self.administration.create_subscription(name, subscription)
        return name

    def ask(self, what: str) -> None:
        """Ask the harness for something, and wait until it is done."""
        print(json.dumps({"ask": what}), flush=True)
        assert json.loads(sys.stdin.readline()) == {"done": what}

    def close(self) -> None:
        """Remove the entities and close all clients."""
        self._background.join()
        for client in self._opened:
            client.close()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(self._remove, self._given))
        self.administration.close()
        self.api.close()
        self._background.close()

    def _remove(self, name: str) -> None:
        with suppress(ResourceNotFoundError):  # the feature has removed it, or never made it
            self.administration.delete_queue(name)  # a topic goes by the same request


def complete_all(receiver: Any, messages: list[Any]) -> None:
    """Complete each message."""
    for message in messages:
        receiver.complete_message(message)


def assert_gone(receiver: Any) -> None:
    """Nothing can be received."""
    assert receiver.receive_messages(max_wait_time=NOTHING_S) == []


def assert_no_messages(receiver: Any) -> None:
    """There is no message at all, locked or not."""
    # From the first number on: without one the client goes on from the last message that it had.
    assert receiver.peek_messages(sequence_number=1) == []


@contextmanager
def refused(*expected: type[Exception]) -> Iterator[None]:
    """Expect one of these errors."""
    try:
        yield
    except expected:
        return
    names = " or ".join(one.__name__ for one in expected)
    raise AssertionError(f"it went well; expected {names}")


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what is told with a delay, such as counts."""
    ends_at = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < ends_at, "it did not become so"
        time.sleep(0.05)
