"""The administration of any broker that speaks Azure Service Bus, as a client asks it.

A throttled request is repeated. All else that is not done is an `AdministrationError`: a step that fails
changes nothing. Source: wire contract 7.1, 7.2.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar, assert_never
from urllib.parse import quote

from peeklock.admin import elements
from peeklock.admin.atom import ENTRY_TYPE
from peeklock.admin.exchange import PAGE_MAX
from peeklock.admin.reading import Description, read_answer
from peeklock.admin.rules import read_rule, write_rule
from peeklock.broker.vocabulary.commands import (
    NOWHERE,
    AddRule,
    CreateEntity,
    RemoveRule,
    UpdateEntity,
    UpdateRule,
)
from peeklock.broker.vocabulary.descriptions import Description as EntityDescription
from peeklock.broker.vocabulary.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    subscription_path,
)
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.config.reconcile import Step

API_VERSION: Final = "2021-05"

THROTTLED: Final = (429, 503)
"""Statuses of a busy service. Source: wire contract 7.8."""

ATTEMPTS_MAX: Final = 6
PAUSE_S_MAX: Final = 30.0
"""Pauses between attempts are 1, 2, 4, 8, 16 s, or what Retry-After says up to this. Our choice: together
half a minute; the service's throttling counts in seconds."""

T = TypeVar("T")


class AdministrationError(Exception):
    """The administration has refused a request, or its answer cannot be read."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of any status."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    """Names in lower case."""


class Ask(Protocol):
    """Sends a request, and returns its answer. May raise any error of the world."""

    def __call__(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Reply: ...


class Administration:
    """The administration of one namespace."""

    def __init__(self, ask: Ask, where: str, pause: Callable[[float], None] = time.sleep) -> None:
        """`where` names the namespace in errors; `pause` waits so many seconds."""
        self._ask = ask
        self.where = where
        self._pause = pause

    # Reading

    def info(self) -> tuple[str, str]:
        """Return name and tier of the namespace, the tier in lower case. Raises: AdministrationError."""
        for _, found in self._read("$namespaceinfo"):
            if found.has("MessagingSKU"):
                return found.text("Name") if found.has("Name") else "", found.text("MessagingSKU").lower()
        raise AdministrationError(f"{self.where} does not say what tier it has: it is not Service Bus")

    def queues(self) -> Iterator[QueueDescription]:
        """Yield all queues. Raises: AdministrationError."""
        for name, found in self._list("$Resources/queues"):
            yield self._decoded(found, partial(elements.read_queue, name=name, message_size_kb_default=0))

    def topics(self) -> Iterator[TopicDescription]:
        """Yield all topics. Raises: AdministrationError."""
        for name, found in self._list("$Resources/topics"):
            yield self._decoded(found, partial(elements.read_topic, name=name, message_size_kb_default=0))

    def subscriptions(self, topic: str) -> Iterator[SubscriptionDescription]:
        """Yield the subscriptions of a topic. Raises: AdministrationError."""
        for name, found in self._list(f"{_path(topic)}/Subscriptions"):
            yield self._decoded(found, partial(elements.read_subscription, topic=topic, name=name))

    def rules(self, topic: str, subscription: str) -> Iterator[RuleDescription]:
        """Yield the rules of a subscription. Raises: AdministrationError."""
        for name, found in self._list(f"{_path(subscription_path(topic, subscription))}/Rules"):
            yield self._decoded(found, partial(read_rule, name=name))

    # Changing

    def carry_out(self, step: Step) -> None:
        """Carry out a step of a plan. Raises: AdministrationError."""
        command = step(NOWHERE)
        match command:
            case CreateEntity():
                content = elements.write_settings(command.description, command.rule)
                self._put(command.description.name, content, updates=False)
            case UpdateEntity():
                content = elements.write_settings(command.description)
                self._put(command.description.name, content, updates=True)
            case AddRule() | UpdateRule():
                path = f"{command.path}/Rules/{command.rule.name}"
                self._put(path, write_rule(command.rule), updates=isinstance(command, UpdateRule))
            case RemoveRule():
                self._request("DELETE", f"{_path(command.path)}/Rules/{_path(command.name)}")
            case _:
                assert_never(command)

    def create(self, description: EntityDescription) -> bool:
        """Create an entity unless it is there; return whether it was not. Raises: AdministrationError."""
        if self._read(_path(description.name)):
            return False
        self._put(description.name, elements.write_settings(description), updates=False)
        return True

    # Inside

    def _put(self, path: str, content: str, *, updates: bool) -> None:
        entry = (
            f'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">{content}</content>'
            f"</entry>"
        )
        headers = {"If-Match": "*"} if updates else {}
        self._request("PUT", _path(path), entry.encode(), headers)

    def _list(self, path: str) -> Iterator[tuple[str, Description]]:
        """Yield title and description of all entries of a list."""
        skip = 0
        while True:
            found = self._read(path, f"$skip={skip}&$top={PAGE_MAX}&")
            yield from found
            skip += len(found)
            if len(found) < PAGE_MAX:
                return

    def _read(self, path: str, query: str = "") -> list[tuple[str, Description]]:
        body = self._request("GET", path, query=query).body
        try:
            return read_answer(body)
        except ArgumentInvalid as failure:
            raise AdministrationError(
                f"{self.where} does not answer as Service Bus does: {failure}"
            ) from failure

    def _decoded(self, found: Description, read: partial[T]) -> T:
        try:
            return read(found)
        except ArgumentInvalid as failure:
            name = read.keywords["name"]
            raise AdministrationError(f"'{name}' of {self.where} cannot be read: {failure}") from failure

    def _request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        query: str = "",
    ) -> Reply:
        """Return a good answer. Raises: AdministrationError."""
        url = f"/{path}?{query}api-version={API_VERSION}"
        sent = {**(headers or {}), **({"Content-Type": ENTRY_TYPE} if body else {})}
        for attempt in range(1, ATTEMPTS_MAX + 1):
            reply = self._ask(method, url, body, sent)
            if reply.status < 300:
                return reply
            if reply.status not in THROTTLED or attempt == ATTEMPTS_MAX:
                break
            self._pause(_pause_s(reply.headers.get("retry-after", ""), attempt))
        raise AdministrationError(
            f"{self.where} refused {method} /{path} with {reply.status}: {_detail(reply.body)}"
            f"{_advice(reply.status)}"
        )


def _advice(status: int) -> str:
    """Return what to do after a refusal, where that is known."""
    if status in THROTTLED:
        return f"; it is busy after {ATTEMPTS_MAX} attempts: run the command again later"
    if status in (401, 403):
        return "; give a connection string whose key has Manage, or --data DIR on the broker's machine"
    return ""


def _pause_s(retry_after: str, attempt: int) -> float:
    if retry_after.isascii() and retry_after.isdigit():
        return min(float(retry_after), PAUSE_S_MAX)
    return min(2.0 ** (attempt - 1), PAUSE_S_MAX)


def _path(name: str) -> str:
    return quote(name, safe="/$")


def _detail(body: bytes) -> str:
    """Return why a request was refused: the Detail of the service's error, else the text."""
    text = body.decode(errors="replace")
    start, end = text.find("<Detail>"), text.find("</Detail>")
    if 0 <= start < end:
        from html import unescape

        text = unescape(text[start + len("<Detail>") : end])
    return text.strip()[:500] or "no reason is given"
