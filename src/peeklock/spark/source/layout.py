"""The layout of an encoded message: where the bytes of its columns are, and which bytes must be as they are.

Owns the walk over one message; `uniform` reads all messages of its layout at once. A byte is constant unless
the walk knows that its value decides nothing but a column, or nothing at all: so a message with the constant
bytes of another differs from it in known columns only. `sections` is the truth about every value; the walk
returns None for what it does not know, and such a message is read there. Source: wire contract 3.1, 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from peeklock.amqp.codec import DecodeError, decode, skip
from peeklock.amqp.messaging import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
)
from peeklock.spark.source.sections import PROPERTY_NAMES

TTL: Final = "ttl"
STATE: Final = "state"
ENQUEUED: Final = "enqueuedTime"
EXPIRY: Final = "absoluteExpiryTime"
"""Names of numbers that are not columns as they are."""

_NUMBERS: Final = {
    b"x-opt-enqueued-time": (ENQUEUED, b"\x81\x83"),
    b"x-opt-sequence-number": ("sequenceNumber", b"\x81\x83"),
    b"x-opt-enqueue-sequence-number": ("enqueuedSequenceNumber", b"\x81\x83"),
    b"x-opt-scheduled-enqueue-time": ("scheduledEnqueueTime", b"\x81\x83"),
    b"x-opt-message-state": (STATE, b"\x54"),
}
"""Annotations that are numbers: name, and constructors that `sections` reads as such."""
_KEY: Final = b"x-opt-partition-key"
_CONSTANT: Final = frozenset((b"x-opt-deadletter-source", b"x-opt-peeklock-cursor"))
"""Annotations that columns show and few messages have."""

_EXACT: Final = b"\xff"
_ASCII: Final = b"\x80"
_FREE: Final = b"\x00"
"""Bits of a byte that must be as in the first message: all; that of ASCII; none."""

_FIXED_WIDTHS: Final = {0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_SIZE_WIDTHS: Final = {0xA: 1, 0xB: 4, 0xC: 1, 0xD: 4, 0xE: 1, 0xF: 4}
"""Bytes of a value, and of its size, by the upper half of its constructor (AMQP 1.2)."""

Place = tuple[int, int]
"""Offset and width."""


@dataclass(slots=True)
class Layout:
    """What the messages of one layout have in common."""

    mask: bytearray
    """By the bytes of a message before its body: the bits that are the same in all."""
    numbers: dict[str, Place] = field(default_factory=dict)
    """Big-endian integers. `ttl` (ms) and `deliveryCount` are unsigned."""
    texts: dict[str, Place] = field(default_factory=dict)
    """ASCII strings."""
    properties: Place | None = None
    """The map of application properties, constructor included."""
    size: Place | None = None
    """Size of the only data section, which ends the message; None = there is no body."""


def layout_of(payload: bytes) -> Layout | None:
    """Return the layout of a message; None = it has to be read alone."""
    walk = _Walk(payload)
    try:
        return walk.layout if payload and walk.message() else None
    except (DecodeError, IndexError, UnicodeDecodeError):
        return None


class _Walk:
    """The walk over one message. Methods return False for what has no layout.

    What stays constant and is shown is decoded: if that fails, the message or the section is invalid.
    """

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.layout = Layout(bytearray(_EXACT * len(payload)))

    def message(self) -> bool:
        payload, layout = self.payload, self.layout
        position = last = 0
        while position < len(payload):
            code, start = payload[position + 2], position + 3
            if payload[position : position + 2] != b"\x00\x53" or code <= last:
                return False
            width = _SIZE_WIDTHS[payload[start] >> 4] if payload[start] >= 0xA0 else 0
            if code == DATA:
                layout.size = start + 1, width
                self._free(start + 1, start + 1 + width)
                del layout.mask[start + 1 + width :]
                return payload[start] in (0xA0, 0xB0) and self._is_complete()
            content, end = start + 1 + width, skip(payload, start)
            if not self._section(code, start, content, end):
                return False
            position, last = end, code
        return self._is_complete()

    def _is_complete(self) -> bool:
        """Whether all is known that the time of expiry depends on."""
        return TTL not in self.layout.numbers or ENQUEUED in self.layout.numbers

    def _section(self, code: int, start: int, content: int, end: int) -> bool:
        constructor = self.payload[start]
        if code == HEADER:
            return constructor == 0xC0 and self._header(content + 1, end, self.payload[content])
        is_map = constructor in (0xC1, 0xD1)
        if code == DELIVERY_ANNOTATIONS:
            self._free(content, end)
            return is_map
        if code == APPLICATION_PROPERTIES:
            self._free(content, end)
            self.layout.properties = start, end - start
            return is_map
        width = content - start - 1
        count = int.from_bytes(self.payload[content : content + width], "big")
        if code == MESSAGE_ANNOTATIONS:
            return is_map and self._annotations(content + width, end, count)
        if code == PROPERTIES:
            return constructor in (0xC0, 0xD0) and self._properties(content + width, end, count)
        return False

    def _header(self, position: int, end: int, count: int) -> bool:
        """Walk durable, priority, ttl, first-acquirer and delivery-count, in their usual forms."""
        usual = (b"\x40\x41\x42", b"\x40\x50", b"\x40\x52\x70", b"\x40\x41\x42", b"\x40\x43\x52\x70")
        names = (None, None, TTL, None, "deliveryCount")
        if count > len(usual):
            return False
        for place in range(count):
            code = self.payload[position]
            after = skip(self.payload, position)
            if code not in usual[place] or after > end:
                return False
            name = names[place]
            if name is not None and code in (0x52, 0x70):
                self._number(name, position + 1, after)
            position = after
        return position == end

    def _annotations(self, position: int, end: int, count: int) -> bool:
        payload = self.payload
        seen = set()
        for _ in range(count // 2):
            if payload[position] != 0xA3:
                return False
            start = position + 2 + payload[position + 1]
            key = payload[position + 2 : start]
            after = skip(payload, start)
            code = payload[start]
            if key in seen or after > end:
                return False
            seen.add(key)
            name, codes = _NUMBERS.get(key, ("", b""))
            if code in codes:
                self._number(name, start + 1, after)
            elif key == _KEY and code == 0xA1:
                self._text("partitionKey", start, after)
            elif name or key == _KEY or key in _CONSTANT:
                decode(payload, start)
            else:
                self._unread(code, start, after)
            position = after
        return position == end

    def _properties(self, position: int, end: int, count: int) -> bool:
        payload = self.payload
        for place in range(min(count, len(PROPERTY_NAMES))):
            name, code = PROPERTY_NAMES[place], payload[position]
            after = skip(payload, position)
            if after > end:
                return False
            if name == EXPIRY and code == 0x83:
                self._number(EXPIRY, position + 1, after)
            elif name != EXPIRY and code in (0xA1, 0xA3):
                self._text(name, position, after)
            elif name is None:
                self._unread(code, position, after)
            else:
                decode(payload, position)
            position = after
        self._free(position, end)  # no column shows the others
        return True

    def _number(self, name: str, start: int, end: int) -> None:
        self._free(start, end)
        self.layout.numbers[name] = start, end - start

    def _text(self, name: str | None, start: int, end: int) -> None:
        """Mark a string of a size of one byte. It stays constant unless it is ASCII, as most are."""
        first = start + 2
        if not self.payload[first:end].isascii():
            self.payload[first:end].decode()
            return
        self.layout.mask[first:end] = _ASCII * (end - first)
        if name is not None:
            self.layout.texts[name] = first, end - first

    def _unread(self, code: int, start: int, end: int) -> None:
        """Mark a value that no column shows, which `sections` skips by its constructor and size."""
        upper = code >> 4
        if upper in _FIXED_WIDTHS:
            self._free(start + 1, end)
        elif upper in _SIZE_WIDTHS:
            self._free(start + 1 + _SIZE_WIDTHS[upper], end)

    def _free(self, start: int, end: int) -> None:
        self.layout.mask[start:end] = _FREE * (end - start)
