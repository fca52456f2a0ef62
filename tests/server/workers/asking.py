"""A client of the works of a broker: requests over HTTP whose answers are streams."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from peeklock.auth import DEVELOPMENT_KEY, generate
from peeklock.auth.authority import DEVELOPMENT_KEY_NAME
from peeklock.demo.broker import BrokerProcess

Event = tuple[str, dict[str, Any]]
WAIT_S = 60.0


class Client:
    """Who has one key."""

    def __init__(
        self,
        broker: BrokerProcess,
        name: str = DEVELOPMENT_KEY_NAME,
        key: str = DEVELOPMENT_KEY,
        path: str = "",
    ) -> None:
        self._port = broker.http_port
        self._name, self._key, self._path = name, key, path

    @property
    def token(self) -> str:
        audience = f"sb://localhost/{self._path}"
        return generate(audience, self._name, self._key, round(time.time() + 600) * 1000)

    @contextmanager
    def asked(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """Yield the answer to a request below `/$api/v1`, not read yet."""
        connection = http.client.HTTPConnection("localhost", self._port, timeout=WAIT_S)
        given = {"Authorization": self.token, **(headers or {})}
        if body is not None:
            given["Content-Type"] = "application/json"
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, f"/$api/v1{path}", text, given)
            with connection.getresponse() as answer:  # else it would keep the socket
                yield answer
        finally:
            connection.close()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return status and JSON, or text."""
        with self.asked(method, path, body) as answer:
            text = answer.read().decode()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text

    def events(self, path: str, body: Any) -> list[Event]:
        """Return all events of a stream, which must have begun."""
        with self.asked("POST", path, body) as answer:
            assert answer.status == 200, answer.read()
            assert answer.headers["Content-Type"] == "text/event-stream"
            return [*read_events(answer)]

    def lines(self, path: str, body: Any) -> list[dict[str, Any]]:
        """Return all lines of a stream."""
        with self.asked("POST", path, body, {"Accept": "application/x-ndjson"}) as answer:
            assert answer.status == 200, answer.read()
            assert answer.headers["Content-Type"] == "application/x-ndjson"
            return [json.loads(line) for line in answer]


def read_events(answer: http.client.HTTPResponse) -> Iterator[Event]:
    """Yield the events of a stream as they come."""
    name = ""
    for line in answer:
        kind, _, rest = line.decode().rstrip("\n").partition(": ")
        if kind == "event":
            name = rest
        elif kind == "data":
            yield name, json.loads(rest)


def of_kind(events: list[Event], kind: str) -> list[dict[str, Any]]:
    """Return the data of the events of a kind."""
    return [data for name, data in events if name == kind]
