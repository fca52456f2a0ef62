"""The last frames of one connection, as bytes, for a look at them after an error.

Both directions are cut into frames as they pass; nothing is decoded. Of a frame only the head is kept, so
that bodies take no memory. It must not know what a frame means: `frame_text` decodes what was kept.
"""

from __future__ import annotations

import struct
import sys
from collections import deque
from itertools import repeat
from typing import Final, Literal

from .composites import TRANSFER

FRAMES_MAX: Final = 500
"""Kept of a connection. Our choice: a receiver with a prefetch of 100 has some 250 in a round."""

TRANSFER_BYTES_MAX: Final = 160
"""Kept of a transfer. Our choice: header and performative have 40 to 100 bytes, the rest is the message."""

FRAME_BYTES_MAX: Final = 2048
"""Kept of any other frame. Our choice: an attach with a filter has under 1,000."""

Direction = Literal["in", "out"]
"""As the owner sees it: what the peer sent, and what was sent to it."""

Mark = tuple[int, Direction]
"""When something passed, UTC ms, and its direction."""

KeptFrame = tuple[int, Direction, bytes]
"""The same, and the head of a frame, which begins with its size. A protocol header counts as a frame."""

PROTOCOL_BYTES: Final = 8
"""Of a protocol header, and of the shortest frame."""

_SIZE = struct.Struct(">I").unpack_from
_PROTOCOL: Final = int.from_bytes(b"AMQP", "big")
_CODE_AT: Final = 10
"""Where the usual encoding of a frame has the code of its performative."""


class RecentFrames:
    """The last `FRAMES_MAX` frames of a connection, both directions in one order."""

    __slots__ = ("_kept", "received", "sent")

    def __init__(self) -> None:
        # Each read and write adds a mark, then the heads of its frames: a tuple for each frame would take a
        # third more time. At worst every second entry is a mark.
        self._kept: deque[bytes | Mark] = deque(maxlen=2 * FRAMES_MAX)
        self.received = FrameCutter("in", self._kept)
        self.sent = FrameCutter("out", self._kept)

    def frames(self) -> list[KeptFrame]:
        """Return the frames, oldest first."""
        found: list[KeptFrame] = []
        mark: Mark | None = None
        for entry in self._kept:
            if isinstance(entry, tuple):
                mark = entry
            elif mark is not None:  # else its mark is forgotten
                found.append((*mark, entry))
        return found[-FRAMES_MAX:]


class FrameCutter:
    """Cuts one direction of a connection into frames."""

    __slots__ = ("_direction", "_head", "_kept", "_skip_bytes")

    def __init__(self, direction: Direction, kept: deque[bytes | Mark]) -> None:
        """Append what `add` cuts to `kept`."""
        self._direction: Direction = direction
        self._kept = kept
        self._head = b""
        """The begin of a frame that has not come far enough to be kept."""
        self._skip_bytes = 0
        """The rest of a frame that is kept already."""

    def add(self, data: bytes, at_ms: int) -> None:
        """Cut the next bytes of the stream, in pieces as the network makes them."""
        if self._head:
            data, self._head = self._head + data, b""
        position, end, mark = self._skip_bytes, len(data), (at_ms, self._direction)
        self._skip_bytes = 0
        more = True
        while more:  # a mark for so few frames that one is always among the entries
            self._kept.append(mark)
            position, more = self._cut(data, position, end)
        if position < end:
            self._head = data[position:]
        else:
            self._skip_bytes = position - end

    def _cut(self, data: bytes, position: int, end: int) -> tuple[int, bool]:
        """Cut at most `FRAMES_MAX` frames; return where it stopped, and whether more may follow there."""
        append = self._kept.append
        safe_until = end - TRANSFER_BYTES_MAX
        for _ in repeat(None, FRAMES_MAX):
            if position + PROTOCOL_BYTES > end:
                return position, False
            size = _SIZE(data, position)[0]
            if position <= safe_until:  # the two usual cases, for speed: a small frame, and a message
                if PROTOCOL_BYTES <= size <= TRANSFER_BYTES_MAX:
                    append(data[position : position + size])
                    position += size
                    continue
                if data[position + _CODE_AT] == TRANSFER and TRANSFER_BYTES_MAX < size < _PROTOCOL:
                    append(data[position : position + TRANSFER_BYTES_MAX])
                    position += size
                    continue
            size, kept = _measure(data, position, size)
            if position + kept > end:
                return position, False
            append(data[position : position + kept])
            position += size
        return position, True


def _measure(data: bytes, position: int, size: int) -> tuple[int, int]:
    """Return how many bytes a frame has, and how many of them are kept."""
    if size == _PROTOCOL:
        return PROTOCOL_BYTES, PROTOCOL_BYTES
    if size < PROTOCOL_BYTES:
        return sys.maxsize, PROTOCOL_BYTES  # no frame: where the next one would begin is unknown
    code_at = position + _CODE_AT
    is_transfer = code_at < len(data) and data[code_at] == TRANSFER
    return size, min(size, TRANSFER_BYTES_MAX if is_transfer else FRAME_BYTES_MAX)
