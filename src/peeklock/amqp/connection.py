"""An AMQP 1.0 connection without IO, in the server or the client role.

`receive`, `eof` and `tick` take bytes and `now_ms` and return events; `data_to_send` returns bytes to write.
`Handshake` has the state of the connection, `Sessions` the sessions and links.

Illegal performatives (`handshake.LEGAL`) and bytes that do not parse end the connection with the condition of
the specification. An error of one session or link ends that alone (`errors.Scope`).

Reading stops where the owner's answer to an event decides what the next bytes mean: the SASL outcome, or a
handle that is freed and reused in one read. `stalled` is true then, `next_deadline_ms` is now, and the next
`receive(b"", now_ms)` or `tick` continues. Reading also stops when the `units` that the owner allows are
used, so that connections share its time; `unread` has the rest.
Source: OASIS AMQP 1.0 sections 2.2-2.4 and 2.8.16.
"""

from __future__ import annotations

import struct
import sys
from typing import Any, Final, Literal

from .attaching import SessionContext
from .codec import DecodeError
from .composites import CLOSE, NAMES, OPEN, TRANSFER, decode_performative
from .errors import (
    DECODE_ERROR,
    FRAMING_ERROR,
    ILLEGAL_STATE,
    RESOURCE_LIMIT_EXCEEDED,
    AmqpError,
    LocalProtocolError,
    RemoteProtocolError,
)
from .events import ConnectionClosed, Event
from .frames import AMQP_FRAME, EMPTY_FRAME, FRAME_SIZE_MIN, SASL_FRAME, Limits
from .handshake import LEGAL, WAITING_FOR_HEADER, ConnectionState, EndError, Handshake
from .idle import Idle
from .link import ReassemblyBudget
from .outgoing import Output
from .performatives import DeliveryState, Terminus, encode_open
from .sasl import Sasl
from .session import GONE
from .sessions import Sessions
from .states import SessionState
from .types import Encoded, Role

_HEAD: Final = struct.Struct(">IHHI").unpack_from
"""Frame size, data offset and type, channel, and the first four bytes of the body."""
_SASL: Final = ConnectionState.SASL
_CLOSED: Final = ConnectionState.CLOSED
_END_SENT: Final = SessionState.END_SENT
"""For the hot path, as `types.SENDER` is."""
_FRAME_HEADER: Final = struct.Struct(">IBBH").unpack_from
UNLIMITED_UNITS: Final = sys.maxsize

FRAME_UNITS: Final = 8
"""Units of a frame for the general decoder: attach, flow, begin. A transfer or disposition in its usual
encoding is 1. Our choice, as measured with the work that follows: up to 150 us against 10 us."""

UNIT_BYTES_SHIFT: Final = 12
"""Each 4 KiB of a frame add a unit. Our choice: a payload is copied once or twice."""

_AMQP_FRAME_HEAD: Final = 0x0200
_TRANSFER_LIST8: Final = 0x005314C0
_TRANSFER_LIST32: Final = 0x005314D0
_DISPOSITION_LIST8: Final = 0x005315C0
_DISPOSITION_LIST32: Final = 0x005315D0
"""Descriptor and constructor of both: some clients always write the long form."""


class Connection:
    """One AMQP connection; every method is synchronous and does no IO."""

    def __init__(
        self,
        role: Literal["server", "client"],
        *,
        container_id: str,
        now_ms: int,
        hostname: str | None = None,
        max_frame_size: int = 65536,
        channel_max: int = 4999,
        idle_timeout_ms: int | None = 240_000,
        sasl_mechanisms: tuple[str, ...] = (),
        sasl_response: bytes = b"",
        properties: dict[Any, Any] | None = None,
        limits: Limits | None = None,
        reassembly: ReassemblyBudget | None = None,
    ) -> None:
        """Make a connection in the role "server" or "client".

        `sasl_mechanisms` are those a server offers, or the one a client uses; none means no SASL layer.
        `max_frame_size` in bytes and `idle_timeout_ms` (None: never) bind the peer; `open` announces them.
        `reassembly` is the budget of unfinished deliveries that several connections share.
        """
        if role not in ("server", "client"):
            raise ValueError(f"role {role!r} is neither server nor client")
        client = role == "client"
        self._max_frame_size = size_max = max(max_frame_size, FRAME_SIZE_MIN)
        sasl = Sasl(not client, sasl_mechanisms, sasl_response, hostname) if sasl_mechanisms else None
        to_host = hostname if client else None
        open_body = encode_open(container_id, to_host, size_max, channel_max, idle_timeout_ms, properties)
        self._output = Output()
        self._shared = SessionContext(self._output, limits or Limits(), client, reassembly)
        self._sessions = Sessions(self._shared, channel_max)
        self._idle = Idle(idle_timeout_ms, now_ms)
        self._handshake = Handshake(open_body, sasl, self._shared, self._sessions, self._idle)
        self._partial = bytearray()
        """The beginning of a frame, or bytes received before the SASL outcome."""
        self._needed = 8
        self.unread = b""
        """Bytes in which reading stopped. The next `receive` after the end of the connection drops them."""
        self._unread_at = 0
        """Offset of the next frame in `unread`."""
        self._stalled = False
        self.units_left = UNLIMITED_UNITS
        """Of the last `receive`."""
        self._now_ms = now_ms

    def set_limits(self, limits: Limits, reassembly: ReassemblyBudget | None) -> None:
        """Replace the limits; sessions that have begun keep their windows and handles."""
        self._shared.limits = limits
        self._shared.budget.move(limits.reassembly_bytes, reassembly)

    def receive(
        self, data: bytes | bytearray | memoryview, now_ms: int, units: int = UNLIMITED_UNITS
    ) -> list[Event]:
        """Read bytes from the peer, at most frames of `units` (`FRAME_UNITS`); return the events.

        Errors of the peer never raise: they end the link, session or connection, and arrive as its event.
        """
        self._now_ms = now_ms
        self.units_left = units
        events: list[Event] = []
        handshake = self._handshake
        if handshake.state is _CLOSED:
            self.unread, self._unread_at = b"", 0
            return events
        if data:
            self._idle.received_ms = now_ms
        if handshake.state is _SASL and handshake.awaits_outcome:
            self._partial += data
            if len(self._partial) > self._max_frame_size:
                reason = "too many bytes before the SASL outcome"
                handshake.fail(AmqpError(RESOURCE_LIMIT_EXCEEDED, reason), events)
            return events
        if self.unread or self._partial:
            buf, position = self._join(data)
        else:
            buf, position = bytes(data), 0
        if position == len(buf):
            return events
        self._stalled = False
        self._shared.freed_handles.clear()
        self._sessions.freed_channels.clear()
        try:
            end = self._read(buf, position, events)
        except RemoteProtocolError as error:
            handshake.fail(error.error, events)
        except DecodeError as failure:
            handshake.fail(AmqpError(DECODE_ERROR, str(failure)), events)
        else:
            if end < len(buf) and not self.closed:
                if (self._stalled or self.units_left <= 0) and not handshake.awaits_outcome:
                    self.unread, self._unread_at = buf, end
                else:
                    self._partial += memoryview(buf)[end:]
            if self._output.failure is not None:
                handshake.fail(self._output.failure, events)
        return events

    def _join(self, data: bytes | bytearray | memoryview) -> tuple[bytes, int]:
        """Return the bytes to read, with those kept before, and their offset; none until a frame is whole."""
        if self.unread:
            buf, position = self.unread, self._unread_at
            self.unread, self._unread_at = b"", 0
            return (b"".join((memoryview(buf)[position:], data)), 0) if data else (buf, position)
        self._partial += data
        if len(self._partial) < self._needed:
            return b"", 0
        buf = bytes(self._partial)
        self._partial.clear()
        return buf, 0

    @property
    def stalled(self) -> bool:
        """Whether bytes wait until the owner has handled the last events; see the module docstring."""
        return self._stalled and self.units_left > 0 and bool(self.unread) and not self.closed

    @property
    def closed(self) -> bool:
        """Whether the connection is over: write the rest of `data_to_send`, then close the stream."""
        return self._handshake.state is _CLOSED

    @property
    def end_error(self) -> EndError | None:
        """The error that ended the connection, or will once the peer has answered."""
        return self._handshake.end_error

    def eof(self, now_ms: int) -> list[Event]:
        """Handle the end of the peer's stream."""
        self._now_ms = now_ms
        self._partial = bytearray()
        self.unread, self._unread_at = b"", 0
        if self.closed:
            return []
        return [ConnectionClosed(None, clean=False, unsent=self._handshake.finish())]

    def tick(self, now_ms: int) -> list[Event]:
        """Continue after a stall, end an idle connection, keep the peer from timing out."""
        self._now_ms = now_ms
        events = self.receive(b"", now_ms) if self.stalled else []
        if self._output.failure is not None:
            self._handshake.fail(self._output.failure, events)
        if self.closed:
            return events
        idle = self._idle
        if idle.expired(now_ms):
            reason = f"nothing was received for {now_ms - idle.received_ms} ms (idle-time-out)"
            self._handshake.fail(AmqpError(RESOURCE_LIMIT_EXCEEDED, reason), events)
        elif idle.empty_frame_due(now_ms):
            if not self._output.size and self._handshake.open_sent:
                self._output.raw(EMPTY_FRAME)
            idle.sent_ms = now_ms
        return events

    def next_deadline_ms(self) -> int | None:
        """Return the UTC ms of the next `tick`; None for never."""
        if self.closed:
            return None
        if self.stalled or self._output.failure is not None:
            return self._now_ms
        return self._idle.next_deadline_ms()

    def _read(self, buf: bytes, position: int, events: list[Event]) -> int:
        """Read whole frames from `buf`; return the offset of what is left over."""
        available = len(buf)
        handshake = self._handshake
        receiving = self._sessions.receiving
        size_max = self._max_frame_size
        units = self.units_left
        while available - position >= 8 and units > 0:
            if available - position >= 14:
                size, kind, channel, head = _HEAD(buf, position)
                end: int = position + size
                if kind == _AMQP_FRAME_HEAD and end <= available and 14 <= size <= size_max:
                    incoming = receiving.get(channel)
                    if incoming is not None:
                        try:
                            if head == _TRANSFER_LIST8 or head == _TRANSFER_LIST32:  # noqa: SIM109
                                if incoming.transfer(buf, position + 11, end, events):
                                    position = end
                                    units -= 1 + (size >> UNIT_BYTES_SHIFT)
                                    continue
                            elif head == _DISPOSITION_LIST8 or head == _DISPOSITION_LIST32:  # noqa: SIM109
                                if incoming.disposition(buf, position + 11, end, events):
                                    position = end
                                    units -= 1
                                    continue
                        except (IndexError, struct.error):
                            pass  # truncated: the general decoder raises the error
            if handshake.state in WAITING_FOR_HEADER:
                handshake.on_header(buf[position : position + 8])
                end = position + 8
            else:
                end = self._read_frame(buf, position, available, events)
                if end < 0:
                    self.units_left = units
                    return position
            units -= FRAME_UNITS + (end - position >> UNIT_BYTES_SHIFT)
            position = end
            if self.closed:
                return available
            if self._stalled:
                break
        self.units_left = units
        self._needed = 8
        return position

    def _read_frame(self, buf: bytes, position: int, available: int, events: list[Event]) -> int:
        """Read one frame of any kind; return the offset after it, -1 if it is not whole or must wait."""
        size, offset, kind, channel = _FRAME_HEADER(buf, position)
        handshake = self._handshake
        state = handshake.state
        in_sasl = state is ConnectionState.SASL
        size_max = self._shared.limits.sasl_frame_bytes if in_sasl else self._max_frame_size
        if size < 8 or size > size_max:
            raise RemoteProtocolError(FRAMING_ERROR, f"frame of {size} bytes; 8 to {size_max} are allowed")
        if offset < 2 or offset * 4 > size:
            raise RemoteProtocolError(FRAMING_ERROR, f"data offset {offset} in a frame of {size} bytes")
        if kind != (SASL_FRAME if in_sasl else AMQP_FRAME):
            raise RemoteProtocolError(FRAMING_ERROR, f"frame of type {kind} in state {state.name}")
        if position + size > available:
            self._needed = size
            return -1
        end: int = position + size
        body = buf[position + offset * 4 : end]
        if not body:
            if in_sasl:
                raise RemoteProtocolError(FRAMING_ERROR, "empty SASL frame")
            return end
        performative = decode_performative(body, self._shared.limits.depth)
        code = performative.code
        if code not in LEGAL[state]:
            raise RemoteProtocolError(ILLEGAL_STATE, f"{NAMES[code]} in state {state.name}")
        if performative.payload_start < len(body) and code != TRANSFER:
            raise DecodeError(f"{len(body) - performative.payload_start} bytes after a {NAMES[code]}")
        if in_sasl:
            handshake.on_sasl(performative, events)
            self._stalled = handshake.awaits_outcome
        elif code == OPEN:
            handshake.on_open(performative, events)
        elif code == CLOSE:
            handshake.on_close(performative, events)
        elif state is ConnectionState.OPEN and not self._sessions.on_frame(
            channel, performative, body, events
        ):
            self._stalled = True
            return -1
        return end

    def sasl_outcome(self, refusal: AmqpError | None = None) -> None:
        """Answer a SaslInit (server). A refusal ends the connection once its code is written.

        Raises: LocalProtocolError if no client waits for it.
        """
        self._handshake.sasl_outcome(refusal)
        self.unread, self._unread_at = bytes(self._partial), 0  # it can be read now
        self._partial.clear()

    def open(self) -> None:
        """Send our open: a client starts with it, a server answers a ConnectionOpened.

        Raises: LocalProtocolError if it was sent before, or a server has not received the peer's.
        """
        self._handshake.open()

    def close(self, error: AmqpError | None = None) -> None:
        """Send our close; the peer's answer comes as ConnectionClosed. Nothing is sent after it."""
        self._handshake.close(error)

    def begin(self) -> int:
        """Begin a session (client); return its channel, the lowest free one.

        Raises: LocalProtocolError on a server, or if no channel is free.
        """
        return self._sessions.begin()

    def end(self, channel: int, error: AmqpError | None = None) -> None:
        """End a session and its links. Clients ignore its error: send that with `detach` or `close`."""
        self._sessions.end(channel, error)

    def attach(
        self,
        channel: int,
        name: str,
        role: Role,
        source: Terminus | Encoded | None,
        target: Terminus | Encoded | None,
        *,
        snd_settle_mode: int = 0,
        rcv_settle_mode: int = 0,
        max_message_size: int | None = None,
        properties: dict[Any, Any] | None = None,
        initial_delivery_count: int = 0,
    ) -> int:
        """Request a link in our `role` (client); return its handle, or GONE if the session is gone.

        Raises:
            LocalProtocolError: a server does not request links, or no handle is free.
        """
        if not self._shared.client:
            raise LocalProtocolError("a server does not request links")
        session = self._sessions.by_channel.get(channel)
        if session is None or session.state is SessionState.END_SENT:
            return GONE
        modes = snd_settle_mode, rcv_settle_mode
        return session.links.attach(
            name, role, source, target, modes, max_message_size, properties, initial_delivery_count
        )

    def accept_link(
        self,
        channel: int,
        handle: int,
        *,
        source: Terminus | Encoded | None = None,
        target: Terminus | Encoded | None = None,
        max_message_size: int | None = None,
        properties: dict[Any, Any] | None = None,
        offered_capabilities: Any = None,
    ) -> None:
        """Answer a LinkAttached; a terminus of None is echoed byte for byte (wire contract 0.1).

        Raises:
            LocalProtocolError: the link was answered before.
        """
        if session := self._sessions.by_channel.get(channel):
            session.links.accept(handle, source, target, max_message_size, properties, offered_capabilities)

    def refuse_link(self, channel: int, handle: int, error: AmqpError) -> None:
        """Answer a LinkAttached with a null terminus and a closing detach; the link is gone.

        Raises: LocalProtocolError if the link was answered before.
        """
        if session := self._sessions.by_channel.get(channel):
            session.links.refuse(handle, error)

    def detach(self, channel: int, handle: int, error: AmqpError | None = None, closed: bool = True) -> None:
        """Detach a link; its deliveries that wait for the session's window are dropped."""
        if session := self._sessions.by_channel.get(channel):
            session.links.detach(handle, error, closed)

    def flow(
        self, channel: int, handle: int, credit: int, *, drain: bool = False, echo: bool = False
    ) -> None:
        """Grant `credit` deliveries on a link we receive on, replacing what was left.

        Raises: LocalProtocolError if we send on this link, or it was not accepted yet.
        """
        if session := self._sessions.by_channel.get(channel):
            session.flow(handle, credit, drain, echo)

    def credit(self, channel: int, handle: int) -> int:
        """Return the deliveries that may still be sent on a link, by either end; 0 if it is gone."""
        return self.counts(channel, handle)[0]

    def counts(self, channel: int, handle: int) -> tuple[int, int]:
        """Return a link's credit, and how many deliveries it has carried; (0, 0) if it is gone."""
        session = self._sessions.by_channel.get(channel)
        return (0, 0) if session is None else session.counts(handle)

    def drained(self, channel: int, handle: int) -> None:
        """Answer a LinkFlow with drain: return the rest of the credit of a link we send on.

        Raises: LocalProtocolError if we receive on this link, or it was not accepted yet.
        """
        if session := self._sessions.by_channel.get(channel):
            session.drained(handle)

    def send(
        self,
        channel: int,
        handle: int,
        tag: bytes,
        payload: bytes,
        *,
        settled: bool = False,
        message_format: int = 0,
        state: DeliveryState | None = None,
    ) -> int:
        """Send a delivery, in as many frames as the peer needs; return its delivery-id.

        It waits while the session's window is closed. GONE (-1): the peer has ended the link; the event is on
        its way to the owner.

        Raises: LocalProtocolError without credit, for a tag over 32 bytes or a link that we receive on.
        """
        session = self._sessions.by_channel.get(channel)
        if session is None:
            return GONE
        return session.send(handle, tag, payload, settled, message_format, state)

    def disposition(
        self,
        channel: int,
        role: Role,
        first: int,
        last: int,
        state: DeliveryState | None,
        *,
        settled: bool = True,
    ) -> None:
        """Send the state of deliveries `first..last` in our `role`; adjacent equal ones become a range."""
        session = self._sessions.by_channel.get(channel)
        if session is not None and session.state is not _END_SENT:
            session.outgoing.disposition(role, first, last, state, settled)

    def data_to_send(self) -> bytes:
        """Return everything queued, and forget it."""
        data = self._output.take()
        if data:
            self._idle.sent_ms = self._now_ms
        return data

    @property
    def held_bytes(self) -> int:
        """Bytes of payload that wait for the windows of the peer's sessions."""
        return self._output.held_size

    @property
    def buffered_bytes(self) -> int:
        """Bytes of unfinished deliveries, unread frames and the output queue."""
        unread = len(self._partial) + len(self.unread) - self._unread_at
        return self._shared.budget.used + unread + self.pending_bytes

    @property
    def pending_bytes(self) -> int:
        """Bytes of the output queue, including those that wait for a window."""
        return self._output.size + self._output.held_size
