"""Reads the sections of an encoded message into plain values, only as far as rows show them.

Only the usual encodings are read here; others go through the codec. Bytes that many messages of a queue share
are read once and cached: the header, application properties, what follows the message id. Invalid values of a
sender, which a broker does not check, become None. Source: wire contract 3.1, 3.2.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

from peeklock.amqp.annotations import NO_ANNOTATIONS, annotations_of, keep, text_of
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

_UINT = struct.Struct(">I").unpack_from

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

Texts = tuple[tuple[str, ...], tuple[str | None, ...]]
"""Names of application properties, and their values."""
_Header = tuple[int, int | None]
"""Delivery count, and time-to-live in ms."""
Read = tuple[_Header, Sequence[Any], Sequence[Any], Texts | None, bytes | None]
"""What rows show of a message: header, annotations by their places in `peeklock.amqp.annotations`, properties
by those of `PROPERTY_NAMES`, application properties (None = none, or the section is invalid), body."""

# Most messages of a queue share most of their bytes before the body.
_HEADERS: dict[bytes, _Header] = {}
TEXTS: dict[bytes, Texts | None] = {}
"""Application properties by their section."""
_FURTHER_PROPERTIES: dict[tuple[int, bytes], Sequence[Any]] = {}
"""By how many follow the message id, and their bytes."""


_NO_PROPERTIES: Final[tuple[Any, ...]] = (None,) * len(PROPERTY_NAMES)


def read(payload: bytes) -> Read:
    """Read the sections of a message. Raises: DecodeError."""
    size = len(payload)
    position = 0
    header: _Header = 0, None
    body: bytes | None = b""
    annotations: Sequence[Any] = NO_ANNOTATIONS
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
                header = keep(_HEADERS, section, end - position, _header(section)) if known is None else known
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
            others = keep(_FURTHER_PROPERTIES, rest, end - further, _fields(rest[1], 0, 1, count)[1:])
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
            values[place] = value if place == 8 else text_of(value)
    return values


def texts_of(section: bytes) -> Texts | None:
    """Return application properties as texts; None if the section, from its constructor on, is invalid."""
    texts = TEXTS.get(section)
    return keep(TEXTS, section, len(section), _texts(section)) if texts is None else texts


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
                key = text_of(name) or ""
            code = section[end]
            if code == 0xA1:
                position = end + 2 + section[end + 1]
                found[key] = section[end + 2 : position].decode()
            elif (code == 0x54 or code == 0x55) and section[end + 1] < 128:
                found[key] = str(section[end + 1])
                position = end + 2
            else:
                value, position = decode(section, end)
                found[key] = text_of(value)
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
