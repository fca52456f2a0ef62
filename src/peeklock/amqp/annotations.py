"""The annotations with which a broker returns a message, read straight from its bytes.

A reader of many messages asks for their numbers, times and states, and for little else: to decode the whole
map takes ten times as long. Only the usual encodings are read here; others go through the codec. Bytes that
many messages of a queue share are read once and cached. Source: wire contract 3.2.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from .codec import DecodeError, decode, skip
from .messaging import scan
from .types import Timestamp

TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999."""

_LONG = struct.Struct(">q").unpack_from
_UINT = struct.Struct(">I").unpack_from
_SHORT = struct.Struct(">IB").unpack_from
"""Descriptor and constructor of a section, and its size in the short form."""
_SHORT_HEADER: Final = 0x005370C0
_SHORT_ANNOTATIONS: Final = 0x005372C1

ENQUEUED, NUMBER, _FIRST_NUMBER, STATE, KEY, _SCHEDULED, _SOURCE, CURSOR = range(8)
_ANNOTATIONS: Final = {
    b"x-opt-enqueued-time": ENQUEUED,
    b"x-opt-sequence-number": NUMBER,
    b"x-opt-enqueue-sequence-number": _FIRST_NUMBER,
    b"x-opt-message-state": STATE,
    b"x-opt-partition-key": KEY,
    b"x-opt-scheduled-enqueue-time": _SCHEDULED,
    b"x-opt-deadletter-source": _SOURCE,
    b"x-opt-peeklock-cursor": CURSOR,
}

_OWN: Final = struct.Struct(">22sq24sq32sq22sb")
"""The annotations with which our broker begins: four keys, each with a value. Others have any order."""
_OWN_KEYS: Final = (
    b"\xa3\x13x-opt-enqueued-time\x83",
    b"\xa3\x15x-opt-sequence-number\x81",
    b"\xa3\x1dx-opt-enqueue-sequence-number\x81",
    b"\xa3\x13x-opt-message-state\x54",
)

_Key = TypeVar("_Key")
_Cached = TypeVar("_Cached")
CACHED_MAX: Final = 1024
CACHED_BYTES_MAX: Final = 256
"""Entries of a cache of what some bytes say, and the longest bytes of one: longer ones rarely repeat. Most
messages of a queue share most of their bytes before the body."""

_FURTHER_ANNOTATIONS: dict[tuple[int, bytes], Sequence[Any]] = {}
"""By how many follow those of `_OWN`, and their bytes."""

NO_ANNOTATIONS: Final[tuple[Any, ...]] = (None,) * len(_ANNOTATIONS)


def broker_annotations(payload: bytes) -> Sequence[Any]:
    """Return the annotations of an encoded message, as `annotations_of`. Raises: DecodeError.

    What follows them is not read, and may be invalid.
    """
    try:
        head, size = _SHORT(payload, 0)
        start = 0
        if head == _SHORT_HEADER:
            start = 5 + size
            head, size = _SHORT(payload, start)
        if head == _SHORT_ANNOTATIONS:
            end = start + 5 + size
            if end > len(payload):
                raise DecodeError("a message is truncated")
            return annotations_of(payload, start + 3, end)
        section = scan(payload).message_annotations
        if section is None:
            return NO_ANNOTATIONS
        return annotations_of(payload, decode(payload, section[0] + 1)[1], section[1])
    except (IndexError, struct.error, UnicodeDecodeError):
        raise DecodeError("a message is truncated, or its annotations are not UTF-8") from None


def annotations_of(payload: bytes, start: int, end: int) -> Sequence[Any]:
    """Return the broker's annotations in a map, by their places: `NUMBER` and so on; None = absent.

    Numbers and times are integers, the others texts. `start`: the constructor of the map.
    Raises: DecodeError, IndexError, struct.error, UnicodeDecodeError.
    """
    if payload[start] != 0xC1:
        return _pairs(payload, start + 9, _UINT(payload, start + 5)[0])
    count, first = payload[start + 2], start + 3
    further = first + _OWN.size
    if count < 2 * len(_OWN_KEYS) or further > end:
        return _pairs(payload, first, count)
    key, enqueued_ms, key_2, number, key_3, first_number, key_4, state = _OWN.unpack_from(payload, first)
    if (key, key_2, key_3, key_4) != _OWN_KEYS:
        return _pairs(payload, first, count)
    rest = count - 2 * len(_OWN_KEYS), payload[further:end]
    others = _FURTHER_ANNOTATIONS.get(rest)
    if others is None:
        others = keep(_FURTHER_ANNOTATIONS, rest, end - further, _pairs(rest[1], 0, rest[0])[KEY:])
    return (enqueued_ms, number, first_number, state, *others)


def _pairs(payload: bytes, position: int, count: int) -> list[Any]:
    """Read the values of `_ANNOTATIONS` from keys and values, of any broker."""
    values: list[Any] = [None] * len(_ANNOTATIONS)
    places = _ANNOTATIONS
    for _ in range(count // 2):
        if payload[position] == 0xA3:
            end = position + 2 + payload[position + 1]
            place = places.get(payload[position + 2 : end])
        else:
            key, end = decode(payload, position)
            place = places.get(key.encode()) if isinstance(key, str) else None
        code = payload[end]
        if place is None:
            position = skip(payload, end)
        elif place <= STATE or place == _SCHEDULED:
            if code == 0x83 or code == 0x81:
                values[place] = _LONG(payload, end + 1)[0]
                position = end + 9
            else:
                value, position = decode(payload, end)
                values[place] = integer(value)
        elif code == 0xA1:
            position = end + 2 + payload[end + 1]
            values[place] = payload[end + 2 : position].decode()
        else:
            value, position = decode(payload, end)
            values[place] = _key_text(value) if place == KEY else text_of(value)
    return values


def keep(cache: dict[_Key, _Cached], key: _Key, size: int, found: _Cached) -> _Cached:
    """Return what was found in some bytes of this size, and cache it."""
    if size <= CACHED_BYTES_MAX:
        if len(cache) >= CACHED_MAX:
            cache.clear()
        cache[key] = found
    return found


def integer(value: Any) -> int | None:
    """Return a value that is an integer as a plain one; None for any other."""
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _key_text(value: Any) -> str | None:
    """Return a partition key as text: clients also send it as binary in UTF-8 (wire contract C6)."""
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return value.decode()
    return text_of(value)


def text_of(value: Any) -> str | None:
    """Return a value as text: times as ISO 8601, binary as hexadecimal digits."""
    if value is None:
        return None
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Timestamp):
        if 0 <= value <= TIME_MS_MAX:
            return datetime.fromtimestamp(value / 1000, UTC).isoformat(timespec="milliseconds")
        return str(int(value))
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (int, float, uuid.UUID)):
        return str(value)
    return repr(value)
