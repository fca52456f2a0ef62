"""The beginning of a connection, read until it is known which namespace it asks for. Sans-IO.

All bytes are kept: the owner of the namespace reads them again. AMQP clients wait for answers before they
name a host, so their headers and SASL are answered here, with the same bytes as the owner's gateway makes;
the owner's are dropped then. A PLAIN response is not answered: only the owner has the keys.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from peeklock.amqp.connection import Connection
from peeklock.amqp.events import ConnectionClosed, ConnectionOpened, SaslInit
from peeklock.gateway.admission import SASL_MECHANISMS
from peeklock.gateway.bounds import STRANGER_LIMITS
from peeklock.server.net.http_heads import HEAD_BYTES_MAX, end_of_head

RECEIVED_BYTES_MAX = 128 * 1024
"""Before the namespace is known. Our choice: twice the largest frame."""

_HOST = re.compile(rb"\nhost:[ \t]*([^\r\n]*)", re.IGNORECASE)
_TARGET = re.compile(rb"[A-Za-z]+ (?:https?://([^/ ]*))?([^ ?]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a connection asks for."""

    host: str | None = None
    user: str | None = None
    """Of SASL PLAIN."""
    path: str = ""
    """Of the first HTTP request."""


class Door(Protocol):
    """Reads one connection."""

    received: bytearray
    """All that the peer has sent."""
    answered: bytearray
    """All that it was sent."""

    def receive(self, data: bytes, now_ms: int) -> tuple[bytes, Asked | None]:
        """Take bytes; return what to write, and what is asked for once that is known."""


class AmqpDoor:
    """Reads AMQP up to the PLAIN response or the `open`; errors of the peer are for the owner to answer."""

    def __init__(self, now_ms: int) -> None:
        self.received = bytearray()
        self.answered = bytearray()
        self._connection = Connection(
            "server",
            container_id="peeklock",
            now_ms=now_ms,
            sasl_mechanisms=SASL_MECHANISMS,
            limits=STRANGER_LIMITS,
        )
        self._has_failed = False
        """The peer has broken the protocol."""

    def receive(self, data: bytes, now_ms: int) -> tuple[bytes, Asked | None]:
        self.received += data
        connection = self._connection
        asked: Asked | None = None
        events = connection.receive(data, now_ms)
        while events and asked is None:
            asked = self._handled(events[0])  # the others follow once it is known who reads them
            events = events[1:] or connection.receive(b"", now_ms)
        if asked is None and len(self.received) > RECEIVED_BYTES_MAX:
            asked = Asked()
        written = b"" if self._has_failed else connection.data_to_send()
        self.answered += written
        return written, asked

    def _handled(self, event: object) -> Asked | None:
        match event:
            case SaslInit(mechanism="PLAIN"):
                fields = event.response.split(b"\0")
                user = fields[1].decode(errors="replace") if len(fields) == 3 else None
                return Asked(event.hostname, user)
            case SaslInit():
                self._connection.sasl_outcome(None)  # the claims follow on $cbs
            case ConnectionOpened():
                return Asked(event.hostname)
            case ConnectionClosed():
                self._has_failed = True
                return Asked()
        return None


class HttpDoor:
    """Reads the head of the first request; what is wrong with it is for the owner to answer."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.answered = bytearray()

    def receive(self, data: bytes, now_ms: int) -> tuple[bytes, Asked | None]:
        self.received += data
        head = self.received
        end = end_of_head(head)
        if end < 0 and len(head) <= HEAD_BYTES_MAX:
            return b"", None
        head = head[: end + 1]
        target, host = _TARGET.match(head), _HOST.search(head)
        if target is None:
            return b"", Asked()
        named = target[1] or (host[1].strip() if host else b"")
        return b"", Asked(named.decode("latin-1"), path=target[2].decode("latin-1"))
