"""The requests of one HTTP connection to the API.

Owns: how such a request comes to its answer, and what is refused of pages. Must not know: HTTP syntax,
transports, what is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from peeklock.admin.exchange import AdminContext, AdminRequest, Response
from peeklock.api.api import Api
from peeklock.api.exchange import Answer, Stream
from peeklock.broker.record.history import History
from peeklock.rest.exchange import Step, Take
from peeklock.server.net.api_hub import ApiHub
from peeklock.server.net.http_heads import Head

Waiting: TypeAlias = Take | Stream
"""What a request waits for, maybe long."""


class ApiRequests:
    """See the module."""

    def __init__(
        self,
        admin_context: AdminContext,
        hub: ApiHub,
        now_ms: Callable[[], int],
        history: History | None = None,
    ) -> None:
        """Answer for one connection, whose refusals `admin_context` notes; `history`: None = it is off."""
        self.hub = hub
        self._api = Api(admin_context, history)
        self._now_ms = now_ms

    def wants(self, head: Head) -> bool:
        """Return whether a request is the API's."""
        return self._api.wants(head.path)

    def body_bytes_max(self, head: Head) -> int:
        """Return how large a body may be."""
        return self._api.body_bytes_max(head.method, head.path)

    def too_large(self, head: Head, bytes_max: int, peer: str | None) -> Response:
        """Return the refusal of a request with a larger body."""
        return self._api.too_large(_request(head, b"", peer), bytes_max, self._now_ms())

    def refusal_before_body(self, head: Head, peer: str | None) -> Response | None:
        """Return the refusal of a request with a large body if its token is no good; None = it may go on."""
        return self._api.refusal(_request(head, b"", peer), self._now_ms())

    def answer(
        self, head: Head, body: bytes, peer: str | None, then: Callable[[Response | Waiting], None]
    ) -> None:
        """Have `then` called with the answer to a request, now or later. Raises what is a defect of ours."""
        self._go_on(self._api.handle(_request(head, body, peer), self._now_ms()), then)

    def _go_on(self, answer: Answer, then: Callable[[Response | Waiting], None]) -> None:
        if isinstance(answer, Step):  # others have their turn
            go_on = answer.go_on
            asyncio.get_running_loop().call_soon(lambda: self._go_on(go_on(), then))
        elif isinstance(answer, Response | Take | Stream):
            then(answer)
        else:
            refused = self.hub.begin(answer, then)
            if isinstance(refused, Response):
                then(refused)


def _request(head: Head, body: bytes, peer: str | None) -> AdminRequest:
    return AdminRequest(head.method, head.path, head.query, head.headers, body, peer)
