"""Requests to the administration API, for entities that come and go while a broker runs.

Owns: one HTTP connection and its token. Must not know: what is measured.
"""

from __future__ import annotations

import http.client
import time
from types import TracebackType

from bench.loadgen import Endpoint, LoadFailed
from peeklock.auth import generate

_SUBSCRIPTION = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><SubscriptionDescription '
    'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" '
    'xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><DefaultRuleDescription>'
    '<Filter i:type="CorrelationFilter"><CorrelationId>{}</CorrelationId></Filter><Name>only</Name>'
    "</DefaultRuleDescription></SubscriptionDescription></content></entry>"
)


class Administration:
    """One connection to the administration API; `with` closes it."""

    def __init__(self, endpoint: Endpoint) -> None:
        address = f"127.0.0.1:{endpoint.port}"
        self._connection = http.client.HTTPConnection(address, timeout=60)
        expires_at_ms = int(time.time() * 1000) + 3_600_000
        token = generate(f"http://{address}/", endpoint.user, endpoint.password, expires_at_ms)
        self._headers = {"Authorization": token, "Content-Type": "application/atom+xml"}

    def __enter__(self) -> Administration:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def create_subscription(self, topic: str, name: str) -> None:
        """Create a subscription that takes what has its name as correlation id. Raises: LoadFailed."""
        self._ask("PUT", f"/{topic}/Subscriptions/{name}", _SUBSCRIPTION.format(name))

    def delete(self, path: str) -> None:
        """Delete an entity. Raises: LoadFailed."""
        self._ask("DELETE", f"/{path}")

    def _ask(self, method: str, path: str, body: str = "") -> None:
        self._connection.request(method, f"{path}?api-version=2021-05", body, self._headers)
        answer = self._connection.getresponse()
        said = answer.read().decode(errors="replace")
        if answer.status not in (200, 201):
            raise LoadFailed(f"{method} {path}: {answer.status} {said}")
