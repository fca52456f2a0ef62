"""A broker in this process, and entities of a test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from peeklock.client.connection import BlockingConnection
from peeklock.client.connection_string import ConnectionString
from peeklock.testing.served import ServedBroker

_numbers = count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[ServedBroker]:
    with ServedBroker() as served:
        yield served


@pytest.fixture(scope="module")
def administration(broker: ServedBroker) -> Iterator[Any]:
    """The official administration client."""
    from azure.servicebus.management import ServiceBusAdministrationClient

    with ServiceBusAdministrationClient.from_connection_string(
        broker.connection_string, connection_verify=False
    ) as made:
        yield made


@pytest.fixture(scope="module")
def client(broker: ServedBroker) -> Iterator[Any]:
    """The official client."""
    from azure.servicebus import ServiceBusClient

    with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as made:
        yield made


@pytest.fixture
def make_queue(administration: Any) -> Callable[..., str]:
    """Make queues with names of their own; takes what `create_queue` takes."""

    def make(**settings: Any) -> str:
        name = f"queue-{next(_numbers)}"
        administration.create_queue(name, **settings)
        return name

    return make


@pytest.fixture
def settings(broker: ServedBroker) -> ConnectionString:
    return ConnectionString.parse(broker.connection_string, timeout_s=10)


@pytest.fixture
def own(settings: ConnectionString) -> Iterator[BlockingConnection]:
    """A connection of the test's own."""
    made = BlockingConnection(settings)
    yield made
    made.close()
