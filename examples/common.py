"""Helpers of the examples: the broker to use, temporary queues and topics, printing, and passing time.

This is not an example.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus.management import ServiceBusAdministrationClient

Properties = dict[str | bytes, int | float | bytes | bool | str | uuid.UUID]
"""Application properties, as the client's types have them."""

Value = TypeVar("Value")


def known(value: Value | None) -> Value:
    """Return a field that each received message has; the client's types allow None."""
    assert value is not None
    return value


def connection_string() -> str:
    """Return the connection string of the broker to use."""
    found = os.environ.get("SERVICEBUS_CONNECTION_STRING")
    if found is None:
        raise SystemExit(
            "set SERVICEBUS_CONNECTION_STRING to the connection string that `peeklock serve` prints"
        )
    return found


def say(line: str) -> None:
    """Print a line in one piece; `print` writes its end separately, and threads may write in between."""
    sys.stdout.write(f"{line}\n")


@contextmanager
def administration(broker: str) -> Iterator[ServiceBusAdministrationClient]:
    """Open the administration client.

    It speaks HTTPS and must trust the broker: the variable REQUESTS_CA_BUNDLE names the `ca.pem` of its data
    folder.
    """
    with ServiceBusAdministrationClient.from_connection_string(broker) as client:
        yield client


def exists(broker: str, queue: str) -> bool:
    """Return whether a queue exists. The request does not count as use of the queue."""
    with administration(broker) as client:
        try:
            client.get_queue(queue)
        except ResourceNotFoundError:
            return False
        return True


@contextmanager
def own_queues(broker: str, **queues: Mapping[str, Any]) -> Iterator[list[str]]:
    """Create a queue for each keyword with its settings, yield their names, and delete them at the end.

    A name is the keyword and a suffix of this run: two runs never share a queue.
    """
    run = uuid.uuid4().hex[:8]
    with administration(broker) as client, ExitStack() as at_end:
        names = []
        for purpose, settings in queues.items():
            names.append(f"{purpose}-{run}")
            client.create_queue(names[-1], **settings)
            at_end.callback(client.delete_queue, names[-1])
        yield names


@contextmanager
def own_topic(broker: str, purpose: str, **subscriptions: Mapping[str, Any]) -> Iterator[str]:
    """Create a topic with a subscription for each keyword, yield its name, and delete all at the end.

    A subscription takes settings and `rules`: by name, the arguments of `create_rule`. Without rules it has
    the default one, which takes all messages.
    """
    topic = f"{purpose}-{uuid.uuid4().hex[:8]}"
    with administration(broker) as client, ExitStack() as at_end:
        client.create_topic(topic)
        at_end.callback(client.delete_topic, topic)
        for name, settings in subscriptions.items():
            settings = dict(settings)
            rules: Mapping[str, Mapping[str, Any]] = settings.pop("rules", {})
            client.create_subscription(topic, name, **settings)
            for rule, about in rules.items():
                client.create_rule(topic, name, rule, **about)
            if rules:
                client.delete_rule(topic, name, "$Default")
        yield topic


@contextmanager
def passing_time(for_real: bool) -> Iterator[tuple[str, Callable[[timedelta], None]]]:
    """Yield a connection string and a function that lets time pass.

    For real it waits. Else it moves the clock of a broker in this process.
    """
    if for_real:
        yield connection_string(), lambda span: time.sleep(span.total_seconds())
    else:
        # Imported here: the other examples run without peeklock, against any namespace.
        from peeklock.testing.served import ServedBroker

        with ServedBroker() as served:
            os.environ["REQUESTS_CA_BUNDLE"] = served.ca_file
            yield served.connection_string, served.advance
