"""The official Python administration client on one namespace for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.admin.serving import Served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture
def client(served: Served) -> Iterator[ServiceBusAdministrationClient]:
    """A client that trusts the self-signed certificate; every entity is gone afterwards."""
    made = ServiceBusAdministrationClient.from_connection_string(
        served.connection_string, connection_verify=served.certificate, retry_total=0
    )
    with made:
        yield made
        for queue in list(made.list_queues()):
            made.delete_queue(queue.name)
        for topic in list(made.list_topics()):
            made.delete_topic(topic.name)
