"""What a connection has queued for its peer.

Owns: the pieces in order, the sessions that still have a disposition to write, and the gate that keeps frames
back until our `open` has gone out: the official Python client pipelines open, begin and attach, so that
answers are made before the owner has answered the open. Must not know what is in a frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .errors import FRAME_SIZE_TOO_SMALL, AmqpError
from .frames import FRAME_SIZE_MIN, UINT_MAX, frame
from .types import TAG_BYTES_MAX

if TYPE_CHECKING:
    from .outgoing import Outgoing

Piece = bytes | memoryview

_TRANSFER_BYTES_MAX: Final = 40 + TAG_BYTES_MAX
"""Bytes of a transfer frame without payload and state: 8 header, 3 descriptor, 9 list32, 5 handle, 5 id,
2 + 32 tag, 5 format, 2 flags, 1 settle mode."""

_FRAME_BYTES_CAP: Final = 1024 * 1024
"""Bytes of the largest frame we send, whatever the peer would take. Our choice: some say 4 GiB."""


class Output:
    """Queued pieces of one connection; sizes in bytes."""

    __slots__ = (
        "closed",
        "failure",
        "frame_size_max",
        "front",
        "gate_open",
        "held_size",
        "merging",
        "payload_max",
        "pieces",
        "size",
    )

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.front: list[bytes] = []
        """What does not wait for the gate."""
        self.merging: list[Outgoing] = []
        """Of the sessions with a disposition that others may still join; they enter themselves."""
        self.gate_open = False
        self.size = 0
        self.held_size = 0
        """Bytes of payload that wait for the window of their session."""
        self.closed = False
        self.frame_size_max = UINT_MAX
        """The peer's max-frame-size; unknown, hence unlimited, before its `open`."""
        self.payload_max = FRAME_SIZE_MIN - _TRANSFER_BYTES_MAX
        """Bytes of payload that fit into one transfer frame, whatever its tag."""
        self.failure: AmqpError | None = None
        """Set when a frame does not fit: the connection cannot go on."""

    def peer_opened(self, frame_size_max: int) -> None:
        """Take the peer's max-frame-size."""
        self.frame_size_max = frame_size_max
        self.payload_max = min(frame_size_max, _FRAME_BYTES_CAP) - _TRANSFER_BYTES_MAX

    def frame(self, channel: int, body: bytes) -> None:
        """Queue one AMQP frame."""
        if self.closed:
            return
        size = len(body) + 8
        if size > self.frame_size_max:
            reason = f"frame of {size} bytes, the peer's max-frame-size is {self.frame_size_max}"
            self.failure = AmqpError(FRAME_SIZE_TOO_SMALL, reason)
            return
        self.pieces.append(frame(channel, body))
        self.size += size

    def raw(self, data: bytes) -> None:
        """Queue bytes before everything that is gated: headers, SASL frames, `open`, empty frames."""
        if not self.closed and data:
            (self.pieces if self.gate_open else self.front).append(data)
            self.size += len(data)

    def drop_gated(self) -> None:
        """Forget the frames behind the gate: `close` goes in their place."""
        self.size -= sum(map(len, self.pieces))
        self.pieces.clear()

    def take(self) -> bytes:
        """Return everything that may go as one string and forget it."""
        for outgoing in self.merging:
            outgoing.flush_disposition()
        self.merging.clear()
        data = b""
        if self.front:
            data = b"".join(self.front)
            self.front.clear()
        if self.pieces and self.gate_open:
            data = b"".join([data, *self.pieces]) if data else b"".join(self.pieces)
            self.pieces.clear()
        self.size -= len(data)
        return data
