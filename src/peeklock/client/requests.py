"""Requests to the administration of any broker that speaks Azure Service Bus.

A throttled request is repeated. All else that is not done is an `AdministrationError`: a request that fails
changes nothing. Source: wire contract 7.1, 7.2, 7.8.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import quote

API_VERSION: Final = "2021-05"

ENTRY_TYPE: Final = "application/atom+xml;type=entry;charset=utf-8"

PAGE_MAX: Final = 100
"""Entries of a page. Source: wire contract 7.2."""

THROTTLED: Final = (429, 503)
"""Statuses of a busy service. Source: wire contract 7.8."""

ATTEMPTS_MAX: Final = 6
PAUSE_S_MAX: Final = 30.0
"""Pauses between attempts are 1, 2, 4, 8, 16 s, or what Retry-After says up to this. Our choice: together
half a minute; the service's throttling counts in seconds."""


class AdministrationError(Exception):
    """The administration has refused a request, or its answer cannot be read.

    Attributes:
        status: of HTTP; 0 = it is not about one answer.
    """

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


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


class Requests:
    """Requests to one namespace."""

    def __init__(self, ask: Ask, where: str, pause: Callable[[float], None] = time.sleep) -> None:
        """`where` names the namespace in errors; `pause` waits so many seconds."""
        self._ask = ask
        self.where = where
        self._pause = pause

    def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        query: str = "",
    ) -> Reply:
        """Return a good answer; `path` is encoded. Raises: AdministrationError."""
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
            f"{_advice(reply.status)}",
            reply.status,
        )

    def put(self, path: str, content: str, *, updates: bool) -> Reply:
        """Create or update what is at a path; `content` is XML. Raises: AdministrationError."""
        entry = (
            f'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">{content}</content>'
            f"</entry>"
        )
        return self.send("PUT", encoded(path), entry.encode(), {"If-Match": "*"} if updates else {})


def encoded(path: str) -> str:
    """Return a path for an address."""
    return quote(path, safe="/$")


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


def _detail(body: bytes) -> str:
    """Return why a request was refused: the Detail of the service's error, else the text."""
    text = body.decode(errors="replace")
    start, end = text.find("<Detail>"), text.find("</Detail>")
    if 0 <= start < end:
        from html import unescape

        text = unescape(text[start + len("<Detail>") : end])
    return text.strip()[:500] or "no reason is given"
