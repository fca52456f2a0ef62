"""HTTP requests to a namespace of a connection string."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final

from peeklock.client.connection_string import HTTPS_PORT, TLS_PORT, ConnectionString
from peeklock.client.requests import Reply

TIMEOUT_S: Final = 30.0
"""For a connection and for an answer. Our choice."""

_AZURE: Final = re.compile(
    r"\.servicebus\.(?:windows\.net|chinacloudapi\.cn|usgovcloudapi\.net)$", re.IGNORECASE
)
"""Hosts of Azure's clouds."""


def http_port(settings: ConnectionString) -> int:
    """Return the port for HTTP: Azure's for AMQP takes none, every port of a peeklock broker does."""
    return HTTPS_PORT if settings.port == TLS_PORT and _AZURE.search(settings.host) else settings.port


def connect(settings: ConnectionString, timeout_s: float = TIMEOUT_S) -> HTTPConnection:
    """Return a connection that the first request opens."""
    if not settings.tls:
        return HTTPConnection(settings.host, http_port(settings), timeout=timeout_s)
    import ssl

    context = ssl.create_default_context(cadata=settings.certificates)
    return HTTPSConnection(settings.host, http_port(settings), timeout=timeout_s, context=context)


def exchange(
    settings: ConnectionString, method: str, path: str, body: bytes, headers: Mapping[str, str]
) -> Reply:
    """Return an answer of any status. Raises: OSError."""
    connection = connect(settings)
    try:
        connection.request(method, path, body or None, dict(headers))
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, answer.read(), found)
    except HTTPException as failure:
        raise OSError(f"{settings.host} does not answer as HTTP: {failure}") from failure
    finally:
        connection.close()
