"""Reads the sections of an encoded message into plain values, only as far as rows show them.

Only the usual encodings are read here; others go through the codec. Bytes that many messages of a queue share
are read once and cached: the header, application properties, what follows the message id. Invalid values of a
sender, which a broker does not check, become None. Source: wire contract 3.1, 3.2.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from peeklock.amqp.codec import DecodeError, decode, skip
from peeklock.amqp.messaging import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    scan,
)
from peeklock.amqp.types import Timestamp

TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999."""

_LONG = struct.Struct(">q").unpack_from
_UINT = struct.Struct(">I").unpack_from

ENQUEUED, NUMBER, _FIRST_NUMBER, _STATE, KEY, _SCHEDULED, _SOURCE, CURSOR = range(8)
_ANNOTATIONS: Final = {
    b"x-opt-enqueued-time": ENQUEUED,
    b"x-opt-sequence-number": NUMBER,
    b"x-opt-enqueue-sequence-number": _FIRST_NUMBER,
    b"x-opt-message-state": _STATE,
    b"x-opt-partition-key": KEY,
    b"x-opt-scheduled-enqueue-time": _SCHEDULED,
    b"x-opt-deadletter-source": _SOURCE,
    b"x-opt-peeklock-cursor": CURSOR,
}

PROPERTY_NAMES: Final = (
    "messageId",
    None,
    "to",
    "subject",
    "replyTo",
    "correlationId",
    "contentType",
    None,
    "absoluteExpiryTime",
    None,
    "sessionId",
)
"""Fields of the properties section by their places (AMQP 3.2.4); None = no column shows it."""

_OWN: Final = struct.Struct(">22sq24sq32sq22sb")
"""The annotations with which our broker begins: four keys, each with a value. Others have any order."""
_OWN_KEYS: Final = (
    b"\xa3\x13x-opt-enqueued-time\x83",
    b"\xa3\x15x-opt-sequence-number\x81",
    b"\xa3\x1dx-opt-enqueue-sequence-number\x81",
    b"\xa3\x13x-opt-message-state\x54",
)

Texts = tuple[tuple[str, ...], tuple[str | None, ...]]
"""Names of application properties, and their values."""
_Header = tuple[int, int | None]
"""Delivery count, and time-to-live in ms."""
Read = tuple[_Header, Sequence[Any], Sequence[Any], Texts | None, bytes | None]
"""What rows show of a message: header, annotations by the places of `_ANNOTATIONS`, properties by those of
`PROPERTY_NAMES`, application properties (None = none, or the section is invalid), body."""

_Key = TypeVar("_Key")
_Cached = TypeVar("_Cached")
CACHED_MAX: Final = 1024
CACHED_BYTES_MAX: Final = 256
"""Entries of each of the following, and the longest bytes of one: longer ones rarely repeat. Most messages of
a queue share most of their bytes before the body."""

_HEADERS: dict[bytes, _Header] = {}
TEXTS: dict[bytes, Texts | None] = {}
"""Application properties by their section."""
_FURTHER_ANNOTATIONS: dict[tuple[int, bytes], Sequence[Any]] = {}
"""By how many follow those of `_OWN`, and their bytes."""
_FURTHER_PROPERTIES: dict[tuple[int, bytes], Sequence[Any]] = {}
"""By how many follow the message id, and their bytes."""


_NO_ANNOTATIONS: Final[tuple[Any, ...]] = (None,) * 8
_NO_PROPERTIES: Final[tuple[Any, ...]] = (None,) * len(PROPERTY_NAMES)


def read(payload: bytes) -> Read:
    """Read the sections of a message. Raises: DecodeError."""
    size = len(payload)
    position = 0
    header: _Header = 0, None
    body: bytes | None = b""
    annotations: Sequence[Any] = _NO_ANNOTATIONS
    properties: Sequence[Any] = _NO_PROPERTIES
    texts: Texts | None = None
    try:
        while position < size:
            if payload[position] != 0x00 or payload[position + 1] != 0x53:
                return _read_unusual(payload)
            code = payload[position + 2]
            start = position + 3
            constructor = payload[start]
            if constructor == 0xC0 or constructor == 0xC1 or constructor == 0xA0:
                end = start + 2 + payload[start + 1]
            elif constructor == 0xB0 or constructor == 0xD0 or constructor == 0xD1:
                end = start + 5 + _UINT(payload, start + 1)[0]
            else:
                end = skip(payload, start)
            if end > size:
                raise DecodeError("a message is truncated")
            if code == DATA:
                piece = payload[start + (2 if constructor == 0xA0 else 5) : end]
                body = piece if not body else body + piece
            elif code == MESSAGE_ANNOTATIONS:
                annotations = annotations_of(payload, start, end)
            elif code == PROPERTIES:
                properties = _properties(payload, start, end)
            elif code == HEADER:
                section = payload[position:end]
                known = _HEADERS.get(section)
                header = (
                    _keep(_HEADERS, section, end - position, _header(section)) if known is None else known
                )
            elif code == APPLICATION_PROPERTIES:
                texts = texts_of(payload[start:end])
            elif code == VALUE:
                body = _value(payload, start, end)
            elif code == SEQUENCE:
                body = (body or b"") + payload[position:end]
            position = end
    except (IndexError, struct.error, UnicodeDecodeError):
        raise DecodeError("a message is truncated, or its annotations are not UTF-8") from None
    return header, annotations, properties, texts, body


def _keep(cache: dict[_Key, _Cached], key: _Key, size: int, found: _Cached) -> _Cached:
    """Return what was found in some bytes of this size, and cache it."""
    if size <= CACHED_BYTES_MAX:
        if len(cache) >= CACHED_MAX:
            cache.clear()
        cache[key] = found
    return found


def annotations_of(payload: bytes, start: int, end: int) -> Sequence[Any]:
    """Read the broker's annotations from a map."""
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
        others = _keep(_FURTHER_ANNOTATIONS, rest, end - further, _pairs(rest[1], 0, rest[0])[KEY:])
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
        elif place <= _STATE or place == _SCHEDULED:
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
            values[place] = _key_text(value) if place == KEY else _text(value)
    return values


def _properties(payload: bytes, start: int, end: int) -> Sequence[Any]:
    """Read the fields of `PROPERTY_NAMES`; all null if the section is invalid."""
    constructor = payload[start]
    try:
        if constructor == 0xC0:
            count, position = payload[start + 2], start + 3
        elif constructor == 0xD0:
            count, position = _UINT(payload, start + 5)[0], start + 9
        else:
            return _NO_PROPERTIES
        if not count or payload[position] != 0xA1:
            return _fields(payload, position, 0, count)
        further = position + 2 + payload[position + 1]
        message_id = payload[position + 2 : further].decode()
        rest = count, payload[further:end]
        others = _FURTHER_PROPERTIES.get(rest)
        if others is None:
            others = _keep(_FURTHER_PROPERTIES, rest, end - further, _fields(rest[1], 0, 1, count)[1:])
    except (DecodeError, UnicodeDecodeError, IndexError, struct.error):
        return _NO_PROPERTIES
    return (message_id, *others)


def _fields(payload: bytes, position: int, first: int, count: int) -> list[Any]:
    """Read the fields of `PROPERTY_NAMES` from the `first` on."""
    values: list[Any] = [None] * len(PROPERTY_NAMES)
    for place in range(first, min(count, len(PROPERTY_NAMES))):
        code = payload[position]
        if code == 0x40:
            position += 1
        elif code == 0xA1 or code == 0xA3:
            end = position + 2 + payload[position + 1]
            values[place] = payload[position + 2 : end].decode()
            position = end
        elif PROPERTY_NAMES[place] is None:
            position = skip(payload, position)
        else:
            value, position = decode(payload, position)
            values[place] = value if place == 8 else _text(value)
    return values


def texts_of(section: bytes) -> Texts | None:
    """Return application properties as texts; None if the section, from its constructor on, is invalid."""
    texts = TEXTS.get(section)
    return _keep(TEXTS, section, len(section), _texts(section)) if texts is None else texts


def _texts(section: bytes) -> Texts | None:
    """Read the application properties as texts; null if the section is invalid."""
    found: dict[str, str | None] = {}  # the last value of a double key counts, as in the codec
    try:
        if section[0] == 0xC1:
            count, position = section[2], 3
        else:
            count, position = _UINT(section, 5)[0], 9
        for _ in range(count // 2):
            if section[position] == 0xA1:
                end = position + 2 + section[position + 1]
                key = section[position + 2 : end].decode()
            else:
                name, end = decode(section, position)
                key = _text(name) or ""
            code = section[end]
            if code == 0xA1:
                position = end + 2 + section[end + 1]
                found[key] = section[end + 2 : position].decode()
            elif (code == 0x54 or code == 0x55) and section[end + 1] < 128:
                found[key] = str(section[end + 1])
                position = end + 2
            else:
                value, position = decode(section, end)
                found[key] = _text(value)
    except (DecodeError, UnicodeDecodeError, IndexError, struct.error):
        return None
    return (*found,), (*found.values(),)


def _header(header: bytes) -> _Header:
    """Read delivery count and time-to-live."""
    try:
        fields = scan(header).decode_header()
    except DecodeError:
        return 0, None
    return fields.delivery_count, fields.ttl


def _value(payload: bytes, start: int, end: int) -> bytes | None:
    """Return the bytes of a body that is one AMQP value."""
    code = payload[start]
    if code == 0x40:
        return None
    if code in (0xA0, 0xA1):
        return payload[start + 2 : end]
    if code in (0xB0, 0xB1):
        return payload[start + 5 : end]
    return payload[start:end]


def _read_unusual(payload: bytes) -> Read:
    """Read a message whose sections do not begin in the usual short form. Raises: DecodeError."""
    sections = scan(payload)
    usual = bytearray()
    for code, span in (
        (HEADER, sections.header),
        (MESSAGE_ANNOTATIONS, sections.message_annotations),
        (PROPERTIES, sections.properties),
        (APPLICATION_PROPERTIES, sections.application_properties),
    ):
        if span is not None:
            usual += b"\x00\x53" + bytes((code,)) + payload[decode(payload, span[0] + 1)[1] : span[1]]
    if sections.body is not None:
        position, body_end = sections.body
        while position < body_end:
            descriptor, start = decode(payload, position + 1)
            position = skip(payload, start)
            code = descriptor if type(descriptor) is int else _BODIES[descriptor]
            usual += b"\x00\x53" + bytes((code,)) + payload[start:position]
    return read(bytes(usual))


_BODIES: Final = {"amqp:data:binary": DATA, "amqp:amqp-sequence:list": SEQUENCE, "amqp:amqp-value:*": VALUE}


def integer(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _key_text(value: Any) -> str | None:
    """Return a partition key as text: clients also send it as binary in UTF-8 (wire contract C6)."""
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return value.decode()
    return _text(value)


def _text(value: Any) -> str | None:
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
