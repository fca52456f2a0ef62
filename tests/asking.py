"""A broker in this thread with an HTTP front, without sockets and with a clock to move.

The tests of the REST data plane and those of the API share it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from peeklock.admin.exchange import AdminContext, Response
from peeklock.auth import DEVELOPMENT_KEY, DEVELOPMENT_KEY_NAME, Authority, generate
from peeklock.broker.vocabulary.commands import Command
from peeklock.broker.vocabulary.effects import Effect
from peeklock.broker.vocabulary.quotas import STANDARD, TierLimits
from peeklock.rest.receives import Body
from peeklock.server.net.hub import Requests
from peeklock.testing.inprocess import InProcessBroker

CONNECTION_ID = 1_000
"""Connection id of all waiting requests."""


@dataclass(frozen=True)
class Answer:
    """An answer, as a client reads it."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """The last part of the problem's type."""
        assert self.headers["Content-Type"] == "application/problem+json"
        found = self.json
        assert found["status"] == self.status
        return str(found["type"]).removeprefix("urn:peeklock:problem:")

    @property
    def broker(self) -> dict[str, Any]:
        """The header BrokerProperties."""
        found: dict[str, Any] = json.loads(self.headers["BrokerProperties"])
        return found

    @property
    def location(self) -> str:
        """The path of the header Location."""
        return "/" + self.headers["Location"].split("/", 3)[3]


class AskedBroker(InProcessBroker):
    """A broker and its HTTP clients. A request that waits is answered later."""

    def __init__(
        self,
        requests: Requests,
        *,
        authority: Authority | None = None,
        tier: TierLimits = STANDARD,
        **settings: Any,
    ) -> None:
        super().__init__(authority=authority, tier=tier, **settings)
        self.logged: list[dict[str, Any]] = []
        numbers = itertools.count(1)
        self.admin_context = AdminContext(
            authority or Authority.development(),
            lambda: f"tracking-{next(numbers)}",
            lambda: "key",
            lambda host, own: True,
            lambda event, fields: self.logged.append({"event": event, **fields}),
            "peeklock",
            tier,
            0,
        )
        self.requests = requests
        self.answers: dict[int, Answer] = {}
        self.pump.connect(CONNECTION_ID, _Hub(self))  # type: ignore[arg-type]  # has what is used of one

    def begun(self, asked: Any) -> Answer | int:
        """Return the answer, or the number of a waiting request."""
        number = asked if isinstance(asked, Response) else self.requests.begin(asked)
        if isinstance(number, Response):
            return shown(number)
        self.go()
        return self.answers.pop(number, number)

    def go(self) -> None:
        """Apply commands to the broker."""
        self.flush_requests()
        self.run()

    def flush_requests(self) -> None:
        """Apply the commands of waiting requests, and take the answers that are ready."""
        self.offer(self.requests.take_commands())
        for number, response in self.requests.take_ended():
            assert isinstance(response, Response)
            self.answers[number] = shown(response)

    def token(self, key_name: str = DEVELOPMENT_KEY_NAME, key: str = DEVELOPMENT_KEY, path: str = "") -> str:
        return generate(f"https://h{path}", key_name, key, self.clock.now_ms + 600_000)


class _Hub:
    """The broker's connection of all waiting requests."""

    unread = b""

    def __init__(self, broker: AskedBroker) -> None:
        self._broker = broker
        self.gateway = self

    def handle(self, effects: Iterable[Effect], body: Body, now_ms: int) -> None:
        for effect in effects:
            self._broker.requests.handle(effect, body)

    def flush(self) -> None:
        self._broker.flush_requests()

    def bodies_wanted(self) -> set[int]:
        return self._broker.requests.bodies_wanted()

    def bodies_arrived(self, body: Body, now_ms: int) -> None:
        self._broker.requests.bodies_arrived(body)
        self.flush()

    def next_deadline_ms(self) -> None:
        return None

    def tick(self, now_ms: int) -> list[Command]:
        return []


def shown(response: Response) -> Answer:
    headers = dict(response.headers)
    if response.content_type:
        headers["Content-Type"] = response.content_type
    return Answer(response.status, headers, b"".join((response.body, *response.more)))


def raise_defect(defect: Exception, fields: dict[str, object]) -> None:
    raise defect
