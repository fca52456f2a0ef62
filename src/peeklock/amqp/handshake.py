"""States of a connection, what each takes, and the checks on the peer's `open`.

Must not know bytes or sessions. Source: OASIS AMQP 1.0 sections 2.4 and 2.7.1; wire contract 1.4.
"""

from __future__ import annotations

import enum
from typing import Final

from .composites import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    SASL_INIT,
    SASL_MECHANISMS,
    SASL_OUTCOME,
    TRANSFER,
    Performative,
)
from .errors import INVALID_FIELD, NOT_ALLOWED, RESOURCE_LIMIT_EXCEEDED, RemoteProtocolError
from .events import ConnectionOpened
from .frames import FRAME_SIZE_MIN, UINT_MAX, Limits


class ConnectionState(enum.Enum):
    """What the connection expects from its peer."""

    SASL_HEADER = 1
    SASL = 2
    AMQP_HEADER = 3
    AWAIT_OPEN = 4
    OPEN = 5
    CLOSE_SENT = 6
    CLOSED = 7


_SESSION_FRAMES: Final = frozenset((BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END))

LEGAL: Final[dict[ConnectionState, frozenset[int]]] = {
    ConnectionState.SASL: frozenset((SASL_MECHANISMS, SASL_INIT, SASL_OUTCOME)),
    ConnectionState.AWAIT_OPEN: frozenset((OPEN, CLOSE)),
    ConnectionState.OPEN: _SESSION_FRAMES | {CLOSE},
    # Frames that crossed our close are read over (AMQP 2.4.6, CLOSE SENT).
    ConnectionState.CLOSE_SENT: _SESSION_FRAMES | {OPEN, CLOSE},
}

WAITING_FOR_HEADER: Final = frozenset((ConnectionState.SASL_HEADER, ConnectionState.AMQP_HEADER))


def read_open(performative: Performative, limits: Limits) -> ConnectionOpened:
    """Check the peer's open and fill in what it leaves out.

    Raises:
        RemoteProtocolError: a value out of range, or beyond our limits.
    """
    container_id, hostname, size, channel_max, idle_ms, _, _, _, _, properties = performative.fields
    if max(len(container_id), len(hostname or "")) > limits.name_length:
        reason = f"a container-id or host name has more than {limits.name_length} characters"
        raise RemoteProtocolError(RESOURCE_LIMIT_EXCEEDED, reason)
    if performative.size_of(9) > limits.properties_bytes:
        reason = f"the connection's properties have more than {limits.properties_bytes} bytes"
        raise RemoteProtocolError(RESOURCE_LIMIT_EXCEEDED, reason)
    size = UINT_MAX if size is None else size
    if size < FRAME_SIZE_MIN:
        raise RemoteProtocolError(INVALID_FIELD, f"max-frame-size {size} is below {FRAME_SIZE_MIN}")
    if idle_ms and idle_ms < limits.idle_timeout_ms_min:
        reason = f"idle-time-out of {idle_ms} ms, the least served is {limits.idle_timeout_ms_min}"
        raise RemoteProtocolError(NOT_ALLOWED, reason)
    channel_max = 65535 if channel_max is None else channel_max
    return ConnectionOpened(container_id, hostname, size, channel_max, idle_ms or None, properties or {})
