"""A broker in this thread whose API is asked, without sockets and with a clock to move."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from peeklock.admin.exchange import AdminRequest, Response
from peeklock.api.api import Api
from peeklock.api.count_board import CountBoard
from peeklock.api.exchange import ApiContext, Ask, Show, Stream
from peeklock.api.waits import Waits
from peeklock.rest.exchange import Step, Take
from tests.asking import CONNECTION_ID, Answer, AskedBroker, raise_defect


class ApiBroker(AskedBroker):
    """A broker, and clients of its API."""

    def __init__(self, about: Mapping[str, Any] | None = None, **settings: Any) -> None:
        """`about`: fields of the API's context."""
        self.waits = Waits(CONNECTION_ID, raise_defect)
        super().__init__(self.waits, **settings)
        namespace = self.namespace
        self.mark: int | None = None
        """What says whether something has happened; None = something always has."""
        board = CountBoard(namespace.count_figures, lambda: namespace.counters, "epoch", lambda: self.mark)
        self.api = Api(self.admin_context, ApiContext(board, settings.get("history"), **(about or {})))
        self.events: dict[int, list[bytes | None]] = {}

    def flush_requests(self) -> None:
        super().flush_requests()
        for number, event in self.waits.take_events():
            self.events.setdefault(number, []).append(event)

    def begin(
        self,
        method: str,
        target: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        token: str | None = None,
    ) -> Answer | int:
        """Ask; gives the answer, or the number of what waits."""
        if not target.startswith("/$api"):
            target = "/$api/v1" + target
        path, _, query = target.partition("?")
        text = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Host": "h", "Authorization": self.token() if token is None else token}
        if body is not None:
            given["Content-Type"] = "application/json"
        lower = {name.lower(): value for name, value in {**given, **(headers or {})}.items()}
        assert self.api.wants(path)
        request = AdminRequest(method, path, query, lower, text)
        answer = self.api.handle(request, self.clock.now_ms)
        while isinstance(answer, Step):
            answer = answer.go_on()
        assert isinstance(answer, Response | Ask | Show | Take | Stream)
        return self.begun(answer)

    def http(self, *given: Any, **more: Any) -> Answer:
        """Ask something that is answered at once."""
        found = self.begin(*given, **more)
        assert isinstance(found, Answer)
        return found

    def ok(self, *given: Any, **more: Any) -> Any:
        """Ask something that is not refused; gives its JSON."""
        found = self.http(*given, **more)
        assert found.status < 300, found.body
        return found.json if found.body else None

    def later(self, *given: Any, **more: Any) -> int:
        """Ask something that has to wait."""
        found = self.begin(*given, **more)
        assert isinstance(found, int)
        return found


def segment(path: str) -> str:
    """Write an entity's path as one segment."""
    return quote(path, safe="")
