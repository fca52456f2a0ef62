"""What a node says to another one before the bytes of a client: a line of JSON, and one byte in answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

BYTES_MAX = 8192
"""Of the line."""

TAKEN, NOT_OWNED, TURNED_AWAY = b"+", b"-", b"!"
"""The answers. After the first one come the bytes of the connection; the last one is for a client that has
shown too many bad keys."""

AMQP, HTTP, CONTROL, PING = "amqp", "http", "control", "ping"
_KINDS = (AMQP, HTTP, CONTROL, PING)


class HelloInvalid(ValueError):
    """A line is none of these; the other node may be of another release."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Whose bytes follow, and for which namespace."""

    kind: str
    """`PING` has no bytes: it asks whether the node can be reached."""
    store: str = ""
    """The name of the namespace's store."""
    host: str = ""
    port: int = 0
    """Of the client."""
    has_tls: bool = False
    """Whether the client uses TLS."""
    answered: bytes = b""
    """What the client was sent already: the owner's output begins so, and these bytes are dropped."""

    def line(self) -> bytes:
        """Return the line."""
        found = {
            "kind": self.kind,
            "store": self.store,
            "host": self.host,
            "port": self.port,
            "tls": self.has_tls,
            "answered": self.answered.hex(),
        }
        return json.dumps(found, separators=(",", ":")).encode() + b"\n"


def read(line: bytes) -> Hello:
    """Return what a line says. Raises: HelloInvalid."""
    try:
        found: Any = json.loads(line)
        made = Hello(
            found["kind"],
            found["store"],
            found["host"],
            found["port"],
            found["tls"],
            bytes.fromhex(found["answered"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as failure:
        raise HelloInvalid(f"the line of another node cannot be read: {failure}") from failure
    types = (str, str, str, int, bool)
    values: tuple[Any, ...] = (made.kind, made.store, made.host, made.port, made.has_tls)
    if tuple(map(type, values)) != types or made.kind not in _KINDS:
        raise HelloInvalid("the line of another node has a value of another type")
    return made
