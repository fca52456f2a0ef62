"""The state of a connection in either role: protocol headers, SASL, `open` and `close`.

    SASL_HEADER -> SASL -> AMQP_HEADER -> AWAIT_OPEN -> OPEN -> CLOSE_SENT -> CLOSED

A connection without SASL mechanisms begins at AMQP_HEADER. A client may skip SASL: the server then goes from
SASL_HEADER to AWAIT_OPEN. Any state may go to CLOSED.

Source: OASIS AMQP 1.0 sections 2.2, 2.4, 2.7.1 and 5.3; wire contract 1.3-1.5, C1.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from .attaching import SessionContext
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
from .errors import (
    FRAMING_ERROR,
    INVALID_FIELD,
    NOT_ALLOWED,
    RESOURCE_LIMIT_EXCEEDED,
    AmqpError,
    LocalProtocolError,
    RemoteProtocolError,
)
from .events import ConnectionClosed, ConnectionOpened, Event, SaslInit
from .frames import AMQP_HEADER, FRAME_SIZE_MIN, SASL_HEADER, UINT_MAX, Limits, frame
from .idle import Idle
from .performatives import decode_error, encode_close
from .sasl import AUTH_FAILED, OK, Sasl, SaslState
from .sessions import Sessions


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
    # Frames that crossed our close are ignored (AMQP 2.4.6, CLOSE SENT).
    ConnectionState.CLOSE_SENT: _SESSION_FRAMES | {OPEN, CLOSE},
}

WAITING_FOR_HEADER: Final = frozenset((ConnectionState.SASL_HEADER, ConnectionState.AMQP_HEADER))


@dataclass(frozen=True, slots=True)
class EndError:
    """The error that ended a connection."""

    error: AmqpError
    by_peer: bool
    """Whether the peer sent it; else this end did, or had no way to send it."""


class Handshake:
    """The state machine of the module docstring."""

    __slots__ = (
        "_idle",
        "_open_body",
        "_output",
        "_sasl",
        "_sessions",
        "_shared",
        "_started",
        "end_error",
        "open_sent",
        "state",
    )

    def __init__(
        self, open_body: bytes, sasl: Sasl | None, shared: SessionContext, sessions: Sessions, idle: Idle
    ) -> None:
        """`open_body` is our encoded `open`."""
        self._open_body = open_body
        self._sasl = sasl
        self._shared = shared
        self._output = shared.output
        self._sessions = sessions
        self._idle = idle
        self._started = False
        self.open_sent = False
        self.end_error: EndError | None = None
        self.state = ConnectionState.AMQP_HEADER if sasl is None else ConnectionState.SASL_HEADER

    @property
    def awaits_outcome(self) -> bool:
        """Whether a client waits for the owner to accept or refuse its SASL response."""
        sasl = self._sasl
        return sasl is not None and sasl.server and sasl.state is SaslState.AWAIT_OUTCOME

    def on_header(self, header: bytes) -> None:
        """Handle the peer's protocol header; a server answers it, a client has sent its own before.

        A server accepts both headers; our client with a mechanism insists on SASL.

        Raises:
            RemoteProtocolError: framing-error, for another header.
        """
        client = self._shared.client
        expected = SASL_HEADER if self.state is ConnectionState.SASL_HEADER else AMQP_HEADER
        if header == AMQP_HEADER and not client:
            expected = AMQP_HEADER  # no SASL; the owner decides what an anonymous client may do
        if not client:
            # "the server MUST send a valid protocol header and then close" AMQP 2.2
            self._output.raw(expected)
        if header != expected:
            raise RemoteProtocolError(FRAMING_ERROR, f"protocol header {header!r} instead of {expected!r}")
        if expected == AMQP_HEADER:
            self.state = ConnectionState.AWAIT_OPEN
        elif self._sasl is not None:
            self.state = ConnectionState.SASL
            self._output.raw(self._sasl.start())

    def on_sasl(self, performative: Performative, events: list[Event]) -> None:
        """Handle a frame of the negotiation.

        Raises:
            RemoteProtocolError: out of order, or the negotiation has failed.
        """
        sasl = self._sasl
        assert sasl is not None
        if sasl.server:
            events.append(SaslInit(*sasl.receive_init(performative)))
            return
        self._output.raw(sasl.receive_at_client(performative))
        if sasl.state is SaslState.DONE:
            self.state = ConnectionState.AMQP_HEADER
            self._output.raw(AMQP_HEADER)
            self._send_open()

    def sasl_outcome(self, refusal: AmqpError | None) -> None:
        """Answer a SaslInit; see `Connection.sasl_outcome`."""
        if self.state is ConnectionState.CLOSED:
            return
        sasl = self._sasl
        if sasl is None or not self.awaits_outcome:
            raise LocalProtocolError("no SASL client is waiting for an outcome")
        self._output.raw(sasl.outcome(OK if refusal is None else AUTH_FAILED))
        if refusal is None:
            self.state = ConnectionState.AMQP_HEADER
        else:
            self._ended_by(refusal)
            self.finish()

    def open(self) -> None:
        """Send our open; see `Connection.open`."""
        if self.state in (ConnectionState.CLOSED, ConnectionState.CLOSE_SENT):
            return
        client = self._shared.client
        if self.open_sent or (client and self._started):
            raise LocalProtocolError("open was sent before")
        if not client:
            if self.state is not ConnectionState.OPEN:
                raise LocalProtocolError("a server answers the peer's open")
            self._send_open()
            return
        self._started = True
        if self._sasl is not None:
            self._output.raw(SASL_HEADER)
        else:
            self._output.raw(AMQP_HEADER)
            self._send_open()

    def _send_open(self) -> None:
        self.open_sent = True
        self._output.raw(frame(0, self._open_body))
        self._output.gate_open = True

    def on_open(self, performative: Performative, events: list[Event]) -> None:
        """Handle the peer's open. Raises: as `read_open`."""
        if self.state is not ConnectionState.AWAIT_OPEN:
            return  # it crossed our close
        opened = read_open(performative, self._shared.limits)
        self._output.peer_opened(opened.max_frame_size)
        self._idle.peer_opened(opened.idle_timeout_ms)
        self._sessions.peer_channel_max = opened.channel_max
        self.state = ConnectionState.OPEN
        events.append(opened)

    def on_close(self, performative: Performative, events: list[Event]) -> None:
        """Handle the peer's close, and answer it unless it answers ours."""
        error = decode_error(performative.fields[0])
        self._ended_by(error, by_peer=True)
        self._send_close(None)
        events.append(ConnectionClosed(error, clean=True, unsent=self.finish()))

    def close(self, error: AmqpError | None) -> None:
        """Send our close; see `Connection.close`."""
        if self.state in (ConnectionState.CLOSED, ConnectionState.CLOSE_SENT):
            return
        self._ended_by(error)
        if self.state not in (ConnectionState.AWAIT_OPEN, ConnectionState.OPEN):
            self.finish()  # before the headers are exchanged no frame can carry it
            return
        self._send_close(error)
        self._sessions.clear()
        self.state = ConnectionState.CLOSE_SENT

    def _send_close(self, error: AmqpError | None) -> None:
        """Send close once, after an open if that was not sent (AMQP 2.4.1), and nothing after it."""
        output = self._output
        if output.closed:
            return
        for outgoing in output.merging:
            outgoing.flush_disposition()
        if not self.open_sent:
            output.drop_gated()
            self._send_open()
        body = encode_close(error)
        if len(body) + 8 > output.frame_size_max:
            body = encode_close(None if error is None else AmqpError(error.condition))
        output.raw(frame(0, body))
        output.closed = True

    def fail(self, error: AmqpError, events: list[Event]) -> None:
        """End the connection because the peer broke the protocol or timed out."""
        self._ended_by(error)
        if self.state in (ConnectionState.AWAIT_OPEN, ConnectionState.OPEN):
            self._send_close(error)
        elif self.state is ConnectionState.SASL and self.awaits_outcome and self._sasl is not None:
            self._output.raw(self._sasl.outcome(AUTH_FAILED))
        events.append(ConnectionClosed(error, clean=False, unsent=self.finish()))

    def _ended_by(self, error: AmqpError | None, *, by_peer: bool = False) -> None:
        """Remember the first error that ends the connection."""
        if error is not None and self.end_error is None:
            self.end_error = EndError(error, by_peer)

    def finish(self) -> list[tuple[int, int]]:
        """End the connection; keep only the bytes to be written. Return `ConnectionClosed.unsent`."""
        self.state = ConnectionState.CLOSED
        self._output.closed = True
        self._output.failure = None
        return self._sessions.clear()


def read_open(performative: Performative, limits: Limits) -> ConnectionOpened:
    """Check the peer's open and fill in defaults.

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
        reason = f"idle-time-out of {idle_ms} ms is below the minimum of {limits.idle_timeout_ms_min}"
        raise RemoteProtocolError(NOT_ALLOWED, reason)
    channel_max = 65535 if channel_max is None else channel_max
    return ConnectionOpened(container_id, hostname, size, channel_max, idle_ms or None, properties or {})
