"""Requests to the administration API, for entities that come and go while a broker runs.

Owns: one HTTP connection and its token. Must not know: what is measured.
"""

from __future__ import annotations

import socket
import time
from types import TracebackType

from bench.loadgen import Endpoint, LoadFailed
from peeklock.auth import generate

_QUEUE = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
    'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
    "<UserMetadata>{}</UserMetadata></QueueDescription></content></entry>"
)
_SUBSCRIPTION = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><SubscriptionDescription '
    'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" '
    'xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><DefaultRuleDescription>'
    '<Filter i:type="CorrelationFilter"><CorrelationId>{}</CorrelationId></Filter><Name>only</Name>'
    "</DefaultRuleDescription></SubscriptionDescription></content></entry>"
)


class Administration:
    """One connection to the administration API; `with` closes it.

    A request is one write, and of the answer's head only what is needed is read: the standard library's
    client takes longer for a request than the broker.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        address = f"127.0.0.1:{endpoint.port}"
        self._socket = socket.create_connection(("127.0.0.1", endpoint.port), timeout=60)
        self._answers = self._socket.makefile("rb")
        expires_at_ms = int(time.time() * 1000) + 3_600_000
        token = generate(f"http://{address}/", endpoint.user, endpoint.password, expires_at_ms)
        self._head = f"Host: {address}\r\nAuthorization: {token}\r\nContent-Type: application/atom+xml\r\n"

    def __enter__(self) -> Administration:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._answers.close()
        self._socket.close()

    def create_subscription(self, topic: str, name: str) -> None:
        """Create a subscription for messages with its name as correlation id. Raises: LoadFailed."""
        self._ask("PUT", f"/{topic}/Subscriptions/{name}", _SUBSCRIPTION.format(name))

    def put_queue(self, name: str, note: str, *, exists: bool) -> None:
        """Create or update a queue. Raises: LoadFailed."""
        self._ask("PUT", f"/{name}", _QUEUE.format(note), "If-Match: *\r\n" if exists else "")

    def get(self, path: str, query: str = "") -> str:
        """Get an entry or a page of a list. Raises: LoadFailed."""
        return self._ask("GET", f"/{path}", query=query)

    def delete(self, path: str) -> None:
        """Delete an entity. Raises: LoadFailed."""
        self._ask("DELETE", f"/{path}")

    def _ask(self, method: str, path: str, body: str = "", header: str = "", query: str = "") -> str:
        line = f"{method} {path}?api-version=2021-05{query} HTTP/1.1\r\n"
        sized = f"Content-Length: {len(body.encode())}\r\n\r\n"
        self._socket.sendall(f"{line}{self._head}{header}{sized}{body}".encode())
        status = self._answers.readline().split()
        size = 0
        while (field := self._answers.readline().lower()) not in (b"\r\n", b""):
            if field.startswith(b"content-length:"):
                size = int(field.partition(b":")[2])
        said = self._answers.read(size).decode(errors="replace")
        if status[1:2] not in ([b"200"], [b"201"]):
            raise LoadFailed(f"{method} {path}: {b' '.join(status[1:]).decode()} {said}")
        return said
