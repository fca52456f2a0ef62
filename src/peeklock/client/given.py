"""A connection over a socket that somebody else has connected, and whose other end knows who this is.

No token is put. There is one such socket: after a break the work over it is over.
"""

from __future__ import annotations

import socket

from peeklock.client.connection import BlockingConnection
from peeklock.client.connection_string import ConnectionString
from peeklock.client.errors import CONNECTION_LOST, ServiceBusError


class GivenConnection(BlockingConnection):
    """A connection that is opened once, over a given socket."""

    def __init__(self, sock: socket.socket, namespace: str) -> None:
        """Open it with the first call; `namespace`: its name, for errors."""
        super().__init__(ConnectionString(namespace, 0, tls=False))
        self._given: socket.socket | None = sock
        self._why: ServiceBusError | None = None
        """Why it ended."""

    @property
    def host(self) -> str:
        """The namespace, for errors."""
        return self.settings.host

    def authorise(self, path: str, deadline: float) -> None:
        """Do nothing: the other end has the grants."""

    def _dial(self, timeout_s: float) -> socket.socket:
        sock, self._given = self._given, None
        if sock is None:
            raise self._why or self.error(CONNECTION_LOST, "the connection is closed", "")
        return sock

    def _lose(self, error: ServiceBusError) -> None:
        error.retryable = False
        self._why = error
        super()._lose(error)
