"""AMQP over WebSocket: the upgrade, and a transport that frames what an AMQP connection writes.

It carries bytes between a transport and any protocol, which sees an `asyncio.Transport` like that of TLS: one
that cannot close its half. Source: RFC 6455; wire contract 1.1; OASIS "AMQP WebSocket Binding 1.0".

Frames are `websockets`'s, without its I/O: 2.3 us for a frame of 1 KiB in, 0.8 us for one out; wsproto takes
7.4 and 2.3 (it unmasks in Python). The module is imported with the first upgrade, which costs 40 ms.

Theory of operation: the bytes of all frames of a read are passed on at once, complete messages or not, since
boundaries carry no meaning. Each write is one binary frame. We never ping: AMQP has its own heartbeats, and
the official Java client answers a ping with bytes that are no frame. We end with a close frame after all that
was written, and then wait for the peer's close frame or a deadline. When the peer breaks the protocol, the
rest of its bytes is read and dropped for a moment, because closing at once would reset the connection and
could lose the reason.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from typing import Any, cast

from websockets.frames import BINARY, CONT, TEXT, CloseCode, Frame
from websockets.protocol import OPEN, Event, Protocol, Side
from websockets.utils import accept_key

from peeklock.admin.api import Response
from peeklock.server.line_limits import Note
from peeklock.server.loop.tasks import call_for
from peeklock.server.loop.turns import Turns
from peeklock.server.net.amqp import AmqpConnection
from peeklock.server.net.sockets import end_output

FRAME_BYTES_MAX = 1024 * 1024 + 64 * 1024
"""Payload of one frame from a peer. Our choice: the official clients' largest AMQP frame is 1 MiB; the rest
is for what they may write with it."""

STRANGER_FRAME_BYTES_MAX = 64 * 1024
"""The same of a peer without a valid claim: a frame is kept until it is complete. Our choice: what clients
send before their claim, mostly a token, is under 20 KiB."""

SLICE_BYTES = 16 * 1024
STRANGER_SLICE_BYTES = 2 * 1024
FRAMES_A_TURN_MAX = 2000
"""Frames are parsed in slices of a read, and the clock is checked in between; after so many frames the rest
waits for its next turn. Our choice: a slice of empty frames takes 6 ms, or 1 ms of a peer without a claim. A
read of 256 KiB may hold 40,000 of them, but 250 of 1 KiB."""

FRAME_S_MAX = 30.0
"""For the rest of an incomplete frame, as for the body of a request. Our choice: 1 MiB at 35 KiB/s."""

CLOSE_S_MAX = 2.0
"""For the peer to answer our close frame, or to read a refusal. Our choice: two round trips on any path."""

DRAIN_S_MAX = 30.0
"""For the last bytes to leave. Our choice, as for a connection without WebSocket."""

SUBPROTOCOLS = ("AMQPWSB10", "amqp")
"""Azure's, and that of the OASIS binding; the first that the peer offers is chosen."""

_VERSION = ("Sec-WebSocket-Version", "13")


def accept(
    method: str, http_version: str, headers: Mapping[str, str], body: bytes
) -> dict[str, str] | Response:
    """Return the headers that accept an upgrade, or the refusal. Source: RFC 6455 4.2.

    `headers` are by name in lower case, repeated ones joined by commas.
    """
    if method != "GET":
        return _refusal(405, f"use GET, not {method[:20]}", ("Allow", "GET"))
    if http_version != "1.1":
        return _refusal(400, f"a WebSocket needs HTTP/1.1, this is HTTP/{http_version}")
    if "websocket" not in _tokens(headers, "upgrade") or "upgrade" not in _tokens(headers, "connection"):
        text = "only a WebSocket is served here: send the headers Upgrade: websocket and Connection: Upgrade"
        return _refusal(426, text, ("Upgrade", "websocket"), ("Connection", "Upgrade"))
    if headers.get("sec-websocket-version", "").strip() != "13":
        return _refusal(426, "the header Sec-WebSocket-Version must be 13", _VERSION)
    if body:
        return _refusal(400, "a request for a WebSocket has no body")
    key = headers.get("sec-websocket-key", "").strip()
    try:
        nonce = base64.b64decode(key, validate=True)
    except ValueError:
        nonce = b""
    if len(nonce) != 16:
        return _refusal(400, "the header Sec-WebSocket-Key must appear once, with 16 bytes in base64")
    offered = {token.lower() for token in _tokens(headers, "sec-websocket-protocol")}
    chosen = next((name for name in SUBPROTOCOLS if name.lower() in offered), None)
    if chosen is None:
        text = f"the header Sec-WebSocket-Protocol must offer {' or '.join(SUBPROTOCOLS)}"
        return _refusal(400, text)
    return {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Accept": accept_key(key),
        "Sec-WebSocket-Protocol": chosen,
    }


def _tokens(headers: Mapping[str, str], name: str) -> list[str]:
    return [token.strip().lower() for token in headers.get(name, "").split(",")]


def _refusal(status: int, text: str, *headers: tuple[str, str]) -> Response:
    return Response(status, "text/plain", f"AMQP over WebSocket: {text}\n".encode(), headers)


class WebSocketProtocol(asyncio.Protocol):
    """A WebSocket after its upgrade, between a transport and the carried protocol."""

    def __init__(self, carried: asyncio.Protocol, turns: Turns, note: Note) -> None:
        """Carry a protocol; `note` logs what the peer did wrong."""
        self._carried = carried
        self._turns = turns
        self._note = note
        # A fragmented message may be as long as the connection: its parts are passed on as they come.
        self._frames = Protocol(Side.SERVER, state=OPEN, max_size=(None, FRAME_BYTES_MAX))
        if isinstance(carried, AmqpConnection):
            self._frames.max_fragment_size = STRANGER_FRAME_BYTES_MAX
        self._transport: asyncio.Transport | None = None
        self.ended = False
        """No more bytes are passed on: one of the two sides has ended."""
        self._deadline: asyncio.TimerHandle | None = None
        self._progress = 0
        """Counts reads that completed a frame, and pauses, which excuse a slow peer."""
        self._paused_by_carried = False
        self._output_full = False
        self._paused = False
        self._backlog = b""
        self._backlog_at = 0
        """What was read, and where the frames that wait for their turn begin."""
        self._eof = False

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._carried.connection_made(_Carrier(self, self._transport))

    def data_received(self, data: bytes) -> None:
        self._backlog = self._backlog[self._backlog_at :] + data if self._backlog else data
        self._backlog_at = 0
        if not self._paused_by_carried:  # else `resume_reading` continues
            self._turns.take(self)
        self._pause_or_resume_reading()

    # From the turns

    @property
    def known(self) -> bool:
        """Whether the peer has ever shown a valid claim."""
        return isinstance(self._carried, AmqpConnection) and self._carried.known

    def work(self, units: int, until_s: float) -> bool:
        """Parse frames for as long as a turn allows, and pass on what they carry."""
        frames, clock_s = self._frames, self._turns.clock_s
        slice_bytes = SLICE_BYTES if self.known else STRANGER_SLICE_BYTES
        completed: list[Event] = []
        data, at = self._backlog, self._backlog_at
        while at < len(data) and self._transport is not None:  # None: it has ended before this turn
            frames.receive_data(data[at : at + slice_bytes])
            completed += frames.events_received()
            at += slice_bytes
            if len(completed) >= FRAMES_A_TURN_MAX or clock_s() >= until_s:
                break
        if at >= len(data):
            data, at = b"", 0
        self._backlog, self._backlog_at = data, at
        self._pause_or_resume_reading()
        self._hand_on(cast(list[Frame], completed))  # other events belong to a hand-shake
        if self._eof and not self._backlog and not self.ended:
            self._carried.eof_received()
            self.close()
        return bool(self._backlog) and self._transport is not None and not self._paused_by_carried

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _hand_on(self, completed: list[Frame]) -> None:
        frames = self._frames
        parts: list[bytes] = []
        for frame in completed:
            if frame.opcode is BINARY or frame.opcode is CONT:
                if frame.data:
                    parts.append(cast(bytes, frame.data))  # other types are for sending
            elif frame.opcode is TEXT:
                frames.fail(CloseCode.UNSUPPORTED_DATA, "AMQP is carried by binary frames, this is text")
                break
        if parts and not self.ended:
            self._carried.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
            if isinstance(self._carried, AmqpConnection) and self._carried.known:
                frames.max_fragment_size = FRAME_BYTES_MAX
        self._flush()
        if frames.state is not OPEN:
            self._after_close_frame()
        elif completed:
            self._progress += 1
        elif self._deadline is None:
            self._arm(FRAME_S_MAX, self._look_for_progress, self._progress)

    def eof_received(self) -> bool:
        # There was no close frame. The other half may still be open, for the last bytes.
        self._eof = True
        if not self._paused_by_carried:
            self._turns.take(self)
        return bool(self._backlog) and self._transport is not None and self._transport.can_write_eof()

    def pause_writing(self) -> None:
        self._output_full = True
        self._pause_or_resume_reading()  # the peer may ping and read no answers
        self._carried.pause_writing()

    def resume_writing(self) -> None:
        self._output_full = False
        self._pause_or_resume_reading()
        self._carried.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self._disarm()
        self._transport = None
        self._carried.connection_lost(exc)
        # The parser and the failure that ended it refer to `Protocol`: cycles.
        self._frames.parser.close()
        if self._frames.parser_exc is not None:
            self._frames.parser_exc.__traceback__ = None

    # From what is carried, by its transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes as one binary frame, unless either side has ended."""
        if data and self._frames.state is OPEN:
            self._frames.send_binary(data)
            self._flush()

    def close(self) -> None:
        """Send a close frame after all that was written, and wait for the peer's."""
        if self._frames.state is OPEN and self._transport is not None:
            self._frames.send_close(CloseCode.NORMAL_CLOSURE)
            self._flush()
            self._wait_for_end(self._transport)

    def pause_reading(self) -> None:
        """Read no more from the peer until `resume_reading`."""
        self._paused_by_carried = True
        self._pause_or_resume_reading()

    def resume_reading(self) -> None:
        """Read on."""
        self._paused_by_carried = False
        self._pause_or_resume_reading()
        if self._backlog or self._eof:
            self._turns.take(self)

    # Ends

    def _after_close_frame(self) -> None:
        """Continue after a close frame: the peer's, or ours because the peer broke the protocol."""
        transport, frames = self._transport, self._frames
        if transport is None:
            return
        if frames.close_rcvd is not None and frames.parser_exc is None:
            # The peer's, answered by now; it sends nothing after it.
            self._end_carried()
            self._let_go(transport)
        elif not self.ended:
            assert frames.close_sent is not None
            code, reason = int(frames.close_sent.code), frames.close_sent.reason
            self._note("a WebSocket was ended", {"code": code, "reason": reason})
            self._end_carried()
            end_output(transport)
            self._wait_for_end(transport)

    def _end_carried(self) -> None:
        if not self.ended:
            self.ended = True
            self._carried.eof_received()

    def _wait_for_end(self, transport: asyncio.Transport) -> None:
        self.ended = True
        self._paused_by_carried = False
        self._pause_or_resume_reading()
        self._arm(CLOSE_S_MAX, self._let_go, transport)

    def _let_go(self, transport: asyncio.Transport) -> None:
        transport.close()
        self._arm(DRAIN_S_MAX, transport.abort)

    # Late frames

    def _look_for_progress(self, before: int) -> None:
        self._deadline = None
        if self._progress == before and not self.ended:
            self._frames.fail(CloseCode.POLICY_VIOLATION, f"no complete frame in {FRAME_S_MAX:.0f} s")
            self._flush()
            self._after_close_frame()

    def _arm(self, seconds: float, then: Callable[..., None], *arguments: Any) -> None:
        self._disarm()
        if self._transport is not None:
            later = asyncio.get_running_loop().call_later
            self._deadline = later(seconds, call_for, self._transport, then, *arguments)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # Bytes

    def _flush(self) -> None:
        for data in self._frames.data_to_send():
            if data and self._transport is not None:  # an empty one means the end of the stream
                self._transport.write(data)

    def _pause_or_resume_reading(self) -> None:
        paused = self._paused_by_carried or self._output_full or bool(self._backlog)
        if paused is self._paused or self._transport is None or self._transport.is_closing():
            return
        self._paused = paused
        self._progress += 1  # the time for a frame stops while we do not read
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()


class _Carrier(asyncio.Transport):
    """The transport of the carried protocol."""

    def __init__(self, websocket: WebSocketProtocol, transport: asyncio.Transport) -> None:
        super().__init__()
        self._websocket = websocket
        self._transport = transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._websocket.write(data)

    def close(self) -> None:
        self._websocket.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._websocket.ended or self._transport.is_closing()

    def can_write_eof(self) -> bool:
        return True  # a close frame, after which the peer's is awaited

    def write_eof(self) -> None:
        self._websocket.close()

    def pause_reading(self) -> None:
        self._websocket.pause_reading()

    def resume_reading(self) -> None:
        self._websocket.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
