"""What the examples share: where the broker is, queues and topics of their own, lines, and time to let pass.

Itself no example.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus.management import ServiceBusAdministrationClient


def connection_string() -> str:
    """Give the connection string of the broker to use."""
    found = os.environ.get("SERVICEBUS_CONNECTION_STRING")
    if found is None:
        raise SystemExit(
            "set SERVICEBUS_CONNECTION_STRING to the connection string that `peeklock serve` prints"
        )
    return found


def say(line: str) -> None:
    """Print a line in one piece; `print` writes its end apart, and threads get between."""
    sys.stdout.write(f"{line}\n")


@contextmanager
def administration(broker: str) -> Iterator[ServiceBusAdministrationClient]:
    """Open the administration client.

    It speaks HTTPS and has to trust the broker: the variable REQUESTS_CA_BUNDLE names the `ca.pem` of its
    data folder.
    """
    with ServiceBusAdministrationClient.from_connection_string(broker) as client:
        yield client


def exists(broker: str, queue: str) -> bool:
    """Tell whether a queue exists. Asking is no use of it."""
    with administration(broker) as client:
        try:
            client.get_queue(queue)
        except ResourceNotFoundError:
            return False
        return True


@contextmanager
def own_queues(broker: str, **queues: Mapping[str, Any]) -> Iterator[list[str]]:
    """Make a queue for each keyword, with the settings it has, and delete them at the end; gives their names.

    The keyword is the start of the name, and the rest is this run's: two runs never share a queue.
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
    """Make a topic with a subscription for each keyword, with the settings it has, and delete it with them at
    the end; gives its name, made as those of `own_queues` are.

    A subscription has the rules that stand under `rules`, by name, each with what `create_rule` takes;
    without any, it has the one that takes all messages.
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
    """Give a connection string and a way to let time pass.

    For real that is waiting. Else it is a broker of our own, in this process, whose clock is moved.
    """
    if for_real:
        yield connection_string(), lambda span: time.sleep(span.total_seconds())
    else:
        # Only here: all else runs without peeklock too, against any namespace.
        from peeklock.testing.served import ServedBroker

        with ServedBroker() as served:
            os.environ["REQUESTS_CA_BUNDLE"] = served.ca_file
            yield served.connection_string, served.advance
