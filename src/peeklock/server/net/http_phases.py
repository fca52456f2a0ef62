"""The phases of an HTTP connection, and how long each may take."""

from __future__ import annotations

from enum import Enum

HEAD_S_MAX = 10.0
"""From the first byte of a request to the end of its headers. Our choice."""

BODY_S_MAX = 30.0
"""From the end of the headers to the end of the body, or to the next MiB of a message. Our choice: 1 MiB at
35 KiB/s."""

IDLE_S_MAX = 120.0
"""Without a request. Our choice: above the 60 s after which the usual proxies drop a connection."""

WRITE_S_MAX = 30.0
"""For an answer, or each MiB of a message, to leave. Our choice: a page of 100 queues has about 250 KiB."""

LINGER_S = 2.0
"""For reading and dropping what a refused client still sends. Our choice."""


class Phase(Enum):
    """Of one connection."""

    IDLE = 0
    HEAD = 1
    BODY = 2
    ANSWER = 3
    WAIT = 4
    LINGER = 5


READING = frozenset({Phase.IDLE, Phase.HEAD, Phase.BODY})
AWAY = frozenset({Phase.ANSWER, Phase.WAIT})
