"""A broker for the commands that receive, and queues of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from click.testing import CliRunner, Result

from peeklock.cli import main
from peeklock.client import Administration, BlockingConnection, ConnectionString
from peeklock.testing.served import ServedBroker
from tests.cli.commands import Make, Run, put

_numbers = count(1)


@pytest.fixture(scope="module")
def served() -> Iterator[ServedBroker]:
    with ServedBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def connection(served: ServedBroker) -> Iterator[BlockingConnection]:
    made = BlockingConnection(ConnectionString.parse(served.connection_string))
    yield made
    made.close()


@pytest.fixture
def make(served: ServedBroker, connection: BlockingConnection) -> Make:
    """Make a queue with these bodies; with sessions, a message is `session:body`."""
    administration = Administration.of(ConnectionString.parse(served.connection_string))

    def queue(*bodies: str | bytes, **settings: Any) -> str:
        name = f"queue-{next(_numbers)}"
        administration.create("queue", name, settings)
        put(connection, name, *bodies, sessions=bool(settings.get("RequiresSession")))
        return name

    return queue


@pytest.fixture
def run(served: ServedBroker) -> Run:
    def invoke(*arguments: str, columns: int = 100, lines: str | None = None) -> Result:
        environment = {"SERVICEBUS_CONNECTION_STRING": served.connection_string, "COLUMNS": str(columns)}
        return CliRunner().invoke(main, arguments, env=environment, input=lines)

    return invoke
