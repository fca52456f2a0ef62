"""A broker in this thread that is asked for messages over HTTP, without sockets and with a clock to move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from peeklock.admin.exchange import Response
from peeklock.broker.vocabulary.commands import ReplyTo
from peeklock.rest.api import Ask, DataPlane, DataRequest, Elsewhere, Receive, Step
from peeklock.rest.receives import Receives
from tests.asking import CONNECTION_ID, Answer, AskedBroker, raise_defect


class HttpBroker(AskedBroker):
    """A broker, and clients of its REST data plane."""

    def __init__(self, **settings: Any) -> None:
        self.receives = Receives(CONNECTION_ID, raise_defect)
        super().__init__(self.receives, **settings)
        self.plane = DataPlane(self.admin_context)

    def http(
        self,
        method: str,
        target: str,
        body: bytes | str = b"",
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        *,
        token: str | None = None,
        secure: bool = True,
    ) -> Answer | int | Elsewhere:
        """Ask; gives the answer, the number of a receive that waits, or that it is not for here."""
        path, _, query = target.partition("?")
        fields = [("Host", "h"), ("Authorization", self.token() if token is None else token)]
        fields += headers.items() if isinstance(headers, Mapping) else headers
        lower = {name.lower(): value for name, value in fields}
        body = body.encode() if isinstance(body, str) else body
        request = DataRequest(method, path, query, lower, body, None, tuple(fields), secure)
        assert self.plane.wants(method, path, query, has_body=bool(body))
        answer = self.plane.handle(request, self.clock.now_ms)
        while isinstance(answer, Ask | Step):
            if isinstance(answer, Ask):
                command: Any = answer.command

                def addressed(reply_to: ReplyTo, command: Any = command) -> Any:
                    return replace(command, reply_to=reply_to)

                answer = answer.render(self.ask(addressed))
            else:
                answer = answer.go_on()
        if isinstance(answer, Elsewhere):
            return answer
        assert isinstance(answer, Response | Receive)
        return self.begun(answer)

    def answer(self, method: str, target: str, *rest: Any, **more: Any) -> Answer:
        """Ask something that is answered at once."""
        found = self.http(method, target, *rest, **more)
        assert isinstance(found, Answer)
        return found

    def waits(self, method: str, target: str) -> int:
        """Ask for a message that is not there yet."""
        found = self.http(method, target)
        assert isinstance(found, int)
        return found
