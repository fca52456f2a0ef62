"""A broker for the tests of a program, and namespaces in it: one for each test.

    with BrokerForTests() as broker, broker.namespace(config) as namespace:
        run_the_program(namespace.connection_string)
        namespace.wait_for("orders", where=lambda message: message["subject"] == "paid")

A namespace is in memory, made in a millisecond, and isolated from all others. Tests may run in parallel. With
pytest there are fixtures for both: `pytest_plugin`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias
from urllib.parse import quote

from peeklock.auth import generate

START_S_MAX = 30.0
"""Longest start. Our choice: sixty times the usual."""

TIMEOUT_S = 10.0
"""Of `wait_for`, unless given. Our choice: a program on a busy machine takes a second or two."""

LOOK_S = 0.05
"""Between two looks of `wait_for`. Our choice."""

SHOWN_MAX = 20
"""Messages in the text of a failure."""

TOKEN_S = 3600
PAGE = 100

Config: TypeAlias = Mapping[str, Any] | str | Path
"""A Config.json: as a value, as text, or as a file."""

SentMessage: TypeAlias = dict[str, Any]
"""A message as the API shows it, such as `body`, `subject`, `properties`; `outcome` once it has left."""


class BrokerForTests:
    """One broker, as a process that ends with this one. It keeps nothing."""

    def __init__(self, *options: str) -> None:
        """Prepare a broker; `with` starts it. `options`: further ones of `peeklock serve`."""
        self._folder = tempfile.TemporaryDirectory(prefix="peeklock-")
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.connection_string = ""
        """Of its default namespace, which all tests share."""
        self.port = 0
        """Takes AMQP and HTTP."""

    def __enter__(self) -> BrokerForTests:
        ready, log = (Path(self._folder.name, name) for name in ("ready.json", "broker.log"))
        command = [sys.executable, "-m", "peeklock", "serve", "--durability=memory", "--exit-with-parent"]
        command += ["--amqp-port=0", "--http-port=0", f"--ready-file={ready}", *self._options]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
            )
        until_s = time.monotonic() + START_S_MAX
        while not ready.exists():
            status = self._process.poll()
            if status is not None or time.monotonic() >= until_s:
                self._process.kill()
                said = log.read_text(errors="replace")[-2_000:]
                why = "was not ready in time" if status is None else f"ended with status {status}"
                raise RuntimeError(f"the broker {why}; it said:\n{said}")
            time.sleep(0.01)
        shown = json.loads(ready.read_text())
        self.connection_string, self.port = shown["connectionString"], shown["amqpPort"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        self._folder.cleanup()

    @contextlib.contextmanager
    def namespace(self, config: Config | None = None) -> Iterator[NamespaceForTests]:
        """Make a namespace, empty or with the entities of a Config.json, which ends with the `with` block."""
        made = make_namespace(self.port, config)
        try:
            yield made
        finally:
            made.end()


def make_namespace(port: int, config: Config | None = None) -> NamespaceForTests:
    """Make a throw-away namespace in the broker on this port. Raises: ValueError, if it refuses."""
    if isinstance(config, Path):
        config = config.read_text()
    if config is not None and not isinstance(config, str):
        config = json.dumps(config)
    body = (config or "").encode()
    found = _ask(port, "POST", "/$api/v1/namespaces", body)
    return NamespaceForTests(port, found["name"], found["connectionString"])


class NamespaceForTests:
    """One throw-away namespace."""

    def __init__(self, port: int, name: str, connection_string: str) -> None:
        """See `make_namespace`."""
        self._port = port
        self.name = name
        self.connection_string = connection_string
        """For the program under test, as it is."""
        parts = dict(part.partition("=")[::2] for part in connection_string.split(";"))
        self._key = parts["SharedAccessKey"]

    def advance(self, span: timedelta) -> None:
        """Move its clock forwards: locks lapse, schedules fall due, messages expire, each at its time."""
        body = json.dumps({"advance": f"PT{span.total_seconds():f}S"}).encode()
        self._ask("POST", f"/$api/v1/namespaces/{self.name}/clock", body)

    def reset(self, *, keep_entities: bool = False) -> None:
        """Remove all messages; entities become what they were, unless they are to be kept."""
        query = "?keep=entities" if keep_entities else ""
        self._ask("POST", f"/$api/v1/namespaces/{self.name}/reset{query}")

    def end(self) -> None:
        """End it; its clients are told."""
        self._ask("DELETE", f"/$api/v1/namespaces/{self.name}")

    # What was sent

    def sent(self, entity: str) -> list[SentMessage]:
        """Return the messages that came to a queue or subscription, in their order.

        Those that are there, and up to 1,000 that have left, with their `outcome`.
        """
        left = [
            {**entry["message"], "outcome": entry["outcome"]}
            for entry in self._pages(f"/$api/v1/history?entity={quote(entity, safe='')}", "entries")
        ]
        return sorted([*left, *self._there(entity)], key=lambda message: int(message["sequenceNumber"]))

    def dead_letters(self, entity: str) -> list[SentMessage]:
        """Return the dead letters of a queue or subscription; `properties` say why."""
        return self._there(f"{entity}/$deadletterqueue")

    def wait_for(
        self,
        entity: str,
        count: int = 1,
        *,
        where: Callable[[SentMessage], bool] = lambda message: True,
        timeout_s: float = TIMEOUT_S,
    ) -> list[SentMessage]:
        """Return the messages that came to an entity and fit, once there are `count`.

        Raises: AssertionError with what was there, after `timeout_s`.
        """
        until_s = time.monotonic() + timeout_s
        while True:
            sent = self.sent(entity)
            fitting = [message for message in sent if where(message)]
            if len(fitting) >= count:
                return fitting
            if time.monotonic() >= until_s:
                break
            time.sleep(LOOK_S)
        raise AssertionError(
            f"{len(fitting)} of {count} messages came to '{entity}' within {timeout_s:g} s.\n"
            f"{self._shown(entity, sent)}"
        )

    def _shown(self, entity: str, sent: list[SentMessage]) -> str:
        dead = self.dead_letters(entity)
        lines = [f"Sent to '{entity}': {len(sent)}", *map(_line, sent[-SHOWN_MAX:])]
        lines += [f"Dead letters: {len(dead)}", *map(_line, dead[-SHOWN_MAX:])]
        return "\n".join(lines)

    def _there(self, entity: str) -> list[SentMessage]:
        return self._pages(f"/$api/v1/entities/{quote(entity, safe='')}/messages?limit={PAGE}", "messages")

    def _pages(self, path: str, member: str) -> list[Any]:
        """Return a list of the API, all its pages."""
        found: list[Any] = []
        cursor = ""
        while True:
            page = self._ask("GET", path + (f"&cursor={cursor}" if cursor else ""))
            found += page[member]
            cursor = quote(page.get("next", ""), safe="")
            if not cursor or not page[member]:
                return found

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        expires_at_ms = round(time.time() + TOKEN_S) * 1000
        return _ask(
            self._port, method, path, body, generate("sb://localhost/", self.name, self._key, expires_at_ms)
        )


def _ask(port: int, method: str, path: str, body: bytes | None = None, token: str = "") -> Any:
    """Return the JSON of an answer. Raises: ValueError with the broker's reason."""
    headers = {"Content-Type": "application/json", **({"Authorization": token} if token else {})}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            said = refused.read().decode(errors="replace")
        with contextlib.suppress(ValueError, KeyError):
            said = json.loads(said)["detail"]
        raise ValueError(f"the broker refused {method} {path}: {said}") from None
    return json.loads(text) if text else None


def _line(message: SentMessage) -> str:
    """Return one line about a message, for the text of a failure."""
    body = message.get("body", message.get("bodyBase64", ""))
    fields = {name: message[name] for name in ("subject", "sessionId", "properties") if message.get(name)}
    more = "".join(f" {name}={value!r}" for name, value in fields.items())
    state = message.get("outcome", message["state"])
    return f"  {message['sequenceNumber']:>4}  {state:<13} {str(body)[:60]!r}{more}"
