"""The official Python administration client on a namespace that is served meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.admin.serving import Served

FOREVER = timedelta(days=10675199, seconds=10085, microseconds=477581)


@contextmanager
def administer(server: Served) -> Iterator[ServiceBusAdministrationClient]:
    """A client of a server that runs meanwhile."""
    with (
        server,
        ServiceBusAdministrationClient.from_connection_string(
            server.connection_string, connection_verify=server.certificate, retry_total=0
        ) as client,
    ):
        yield client


def refusal(failure: pytest.ExceptionInfo[HttpResponseError]) -> int:
    """The status of a refusal, after checking that its text has a tracking id."""
    assert "TrackingId:" in str(failure.value)
    status = failure.value.status_code
    assert status is not None
    return status
