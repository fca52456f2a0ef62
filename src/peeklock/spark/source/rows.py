"""Encoded messages as rows: their sections decoded into the columns of `schema`.

Only what a column shows is decoded, and only the usual encodings are read here; others go through the codec.
Invalid values of a sender, which a broker does not check, become null: the row stays, and its column
`encoded` has the bytes.

A body of data sections is their bytes, one after the other. Of a body that is one AMQP value, a text is shown
as UTF-8, binary as it is, null as null; any other value, and sequences, as their AMQP encoding.
Source: wire contract 3.1, 3.2.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

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
from peeklock.spark.options import Key
from peeklock.spark.source.schema import row_schema

_LONG = struct.Struct(">q").unpack_from
_UINT = struct.Struct(">I").unpack_from

_STATES: Final = {0: "active", 1: "deferred", 2: "scheduled"}
CLAIMED: Final = "claimed"

_TTL_MS_MAX: Final = 0xFFFFFFFF
"""The header.ttl of a message whose absolute-expiry-time is later (wire contract 3.2)."""

_TIME_MS_MIN: Final = -62_135_596_800_000
_TIME_MS_MAX: Final = 253_402_300_799_999
"""The years 1 to 9999, the range of a table's timestamp."""

_ENQUEUED, _NUMBER, _FIRST_NUMBER, _STATE, _KEY, _SCHEDULED, _SOURCE, _CURSOR = range(8)
_ANNOTATIONS: Final = {
    b"x-opt-enqueued-time": _ENQUEUED,
    b"x-opt-sequence-number": _NUMBER,
    b"x-opt-enqueue-sequence-number": _FIRST_NUMBER,
    b"x-opt-message-state": _STATE,
    b"x-opt-partition-key": _KEY,
    b"x-opt-scheduled-enqueue-time": _SCHEDULED,
    b"x-opt-deadletter-source": _SOURCE,
    b"x-opt-peeklock-cursor": _CURSOR,
}

_PLACES: Final = (
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

_HEADERS: dict[bytes, tuple[int, int | None]] = {}
"""Cache of delivery count and time-to-live by header; most messages have one of a few."""
_HEADERS_MAX: Final = 1024

Pair = tuple[str, str | None]


def record_batch(
    payloads: Sequence[bytes], entity: str, schema: pa.Schema, *, include_body: bool = True
) -> pa.RecordBatch:
    """Return the rows of encoded messages of one entity, with columns of `peeklock.spark.source.schema`.

    Raises:
        DecodeError: a payload is truncated or not a message.
    """
    count = len(payloads)
    columns = dict(zip(_FIELDS, zip(*map(_read, payloads), strict=True), strict=True)) if payloads else {}
    arrays: list[pa.Array] = []
    for field in schema:
        name, kind = field.name, field.type
        if name == "entity":
            arrays.append(pa.repeat(pa.scalar(entity, kind), count))
        elif name == "encoded":
            arrays.append(pa.array(payloads, kind))
        elif not payloads or (name == "body" and not include_body):
            arrays.append(pa.nulls(count, kind))
        elif name == "body":
            arrays.append(pa.array(columns[name], pa.binary()).view(kind))
        elif name == "applicationProperties":
            arrays.append(_maps(columns[name], kind))
        elif pa.types.is_timestamp(kind):
            arrays.append(pa.array(columns[name], pa.timestamp("ms", tz="UTC")).cast(kind))
        else:
            arrays.append(pa.array(columns[name], kind))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def sequence_number(payload: bytes) -> int:
    """Return the sequence number of an encoded message from a broker. Raises: DecodeError."""
    found = enqueued(payload)[0]
    if found is None:
        raise DecodeError("the broker sent a message without a sequence number")
    return found


def enqueued(payload: bytes) -> tuple[int | None, int | None]:
    """Return the sequence number and the enqueued time, UTC ms, of an encoded message from a broker."""
    section = scan(payload).message_annotations
    if section is None:
        return None, None
    values = _annotations(payload, section[0] + 3)
    return _integer(values[_NUMBER]), _integer(values[_ENQUEUED])


def key_of(payload: bytes, by: Key) -> str | None:
    """Return the session id of an encoded message, or its partition key and else its session id.

    Raises: DecodeError.
    """
    sections = scan(payload)
    key: str | None = None
    if by is Key.PARTITION_KEY and sections.message_annotations is not None:
        key = _annotations(payload, decode(payload, sections.message_annotations[0] + 1)[1])[_KEY]
    if key is None and sections.properties is not None:
        key = _properties(payload, decode(payload, sections.properties[0] + 1)[1])[10]
    return key


_FIELDS: Final = [name for name in row_schema().names if name != "entity"]
"""Columns that `_row` returns, in its order."""

_NOTHING: Final[tuple[Any, ...]] = (None,) * 8
_NO_PROPERTIES: Final[tuple[Any, ...]] = (None,) * 11


def _read(payload: bytes) -> tuple[Any, ...]:
    """Return the values of `_FIELDS`; times in ms."""
    size = len(payload)
    position = 0
    deliveries: int = 0
    ttl_ms: int | None = None
    body: bytes | None = b""
    annotations: Sequence[Any] = _NOTHING
    properties: Sequence[Any] = _NO_PROPERTIES
    pairs: list[Pair] | None = None
    try:
        while position < size:
            if payload[position : position + 2] != b"\x00\x53":
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
                annotations = _annotations(payload, start)
            elif code == PROPERTIES:
                properties = _properties(payload, start)
            elif code == HEADER:
                header = payload[position:end]
                known = _HEADERS.get(header)
                deliveries, ttl_ms = _header(header) if known is None else known
            elif code == APPLICATION_PROPERTIES:
                pairs = _pairs(payload, start)
            elif code == VALUE:
                body = _value(payload, start, end)
            elif code == SEQUENCE:
                body = (body or b"") + payload[position:end]
            position = end
    except (IndexError, struct.error, UnicodeDecodeError):
        raise DecodeError("a message is truncated, or its annotations are not UTF-8") from None
    return _row(deliveries, ttl_ms, body, annotations, properties, pairs)


def _row(
    deliveries: int,
    ttl_ms: int | None,
    body: bytes | None,
    annotations: Sequence[Any],
    properties: Sequence[Any],
    pairs: list[Pair] | None,
) -> tuple[Any, ...]:
    enqueued_ms, number, first_number, state, key, scheduled_ms, source, cursor = annotations
    expires_ms = None
    if ttl_ms is not None and enqueued_ms is not None:
        expires_ms = enqueued_ms + ttl_ms
        if ttl_ms == _TTL_MS_MAX:
            expires_ms = _integer(properties[8]) or expires_ms
        expires_ms = _instant(expires_ms)
    reason = description = None
    if pairs:
        for name, value in pairs:
            if name == "DeadLetterReason":
                reason = value
            elif name == "DeadLetterErrorDescription":
                description = value
    return (
        body,
        number,
        first_number,
        enqueued_ms,
        properties[0],
        properties[10],
        key,
        properties[5],
        properties[3],
        properties[6],
        properties[2],
        properties[4],
        deliveries,
        expires_ms,
        _instant(scheduled_ms),
        CLAIMED if cursor is not None else _STATES.get(state or 0, str(state)),
        reason,
        description,
        source,
        pairs,
    )


def _annotations(payload: bytes, start: int) -> list[Any]:
    """Read the broker's annotations from a map."""
    values: list[Any] = [None] * 8
    if payload[start] == 0xC1:
        count, position = payload[start + 2], start + 3
    else:
        count, position = _UINT(payload, start + 5)[0], start + 9
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
        elif code == 0x83 or code == 0x81:
            values[place] = _LONG(payload, end + 1)[0]
            position = end + 9
        elif code == 0x54 and payload[end + 1] < 128:
            values[place] = payload[end + 1]
            position = end + 2
        elif code == 0xA1:
            position = end + 2 + payload[end + 1]
            values[place] = payload[end + 2 : position].decode()
        elif place <= _STATE or place == _SCHEDULED:
            value, position = decode(payload, end)
            values[place] = _integer(value)
        else:
            value, position = decode(payload, end)
            values[place] = _key_text(value) if place == _KEY else _text(value)
    return values


def _properties(payload: bytes, start: int) -> Sequence[Any]:
    """Read the fields of `_PLACES`; all null if the section is invalid."""
    constructor = payload[start]
    values: list[Any] = [None] * 11
    try:
        if constructor == 0xC0:
            count, position = payload[start + 2], start + 3
        elif constructor == 0xD0:
            count, position = _UINT(payload, start + 5)[0], start + 9
        else:
            return _NO_PROPERTIES
        for place in range(min(count, 11)):
            code = payload[position]
            if code == 0x40:
                position += 1
            elif code == 0xA1 or code == 0xA3:
                end = position + 2 + payload[position + 1]
                values[place] = payload[position + 2 : end].decode()
                position = end
            elif _PLACES[place] is None:
                position = skip(payload, position)
            else:
                value, position = decode(payload, position)
                values[place] = value if place == 8 else _text(value)
    except (DecodeError, UnicodeDecodeError, IndexError, struct.error):
        return _NO_PROPERTIES
    return values


def _pairs(payload: bytes, start: int) -> list[Pair] | None:
    """Read the application properties as texts; null if the section is invalid."""
    pairs: list[Pair] = []
    try:
        if payload[start] == 0xC1:
            count, position = payload[start + 2], start + 3
        else:
            count, position = _UINT(payload, start + 5)[0], start + 9
        for _ in range(count // 2):
            if payload[position] == 0xA1:
                end = position + 2 + payload[position + 1]
                key = payload[position + 2 : end].decode()
            else:
                found, end = decode(payload, position)
                key = _text(found) or ""
            if payload[end] == 0xA1:
                position = end + 2 + payload[end + 1]
                pairs.append((key, payload[end + 2 : position].decode()))
            elif payload[end] == 0x54 and payload[end + 1] < 128:
                position = end + 2
                pairs.append((key, str(payload[end + 1])))
            else:
                value, position = decode(payload, end)
                pairs.append((key, _text(value)))
    except (DecodeError, UnicodeDecodeError, IndexError, struct.error):
        return None
    by_key = dict(pairs)
    # The last value of a double key counts, as in the codec.
    return pairs if len(by_key) == len(pairs) else [*by_key.items()]


def _header(header: bytes) -> tuple[int, int | None]:
    """Read delivery count and time-to-live, and cache them."""
    try:
        fields = scan(header).decode_header()
        found = fields.delivery_count, fields.ttl
    except DecodeError:
        found = 0, None
    if len(_HEADERS) >= _HEADERS_MAX:
        _HEADERS.clear()
    _HEADERS[header] = found
    return found


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


def _read_unusual(payload: bytes) -> tuple[Any, ...]:
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
    return _read(bytes(usual))


_BODIES: Final = {"amqp:data:binary": DATA, "amqp:amqp-sequence:list": SEQUENCE, "amqp:amqp-value:*": VALUE}


def _instant(ms: int | None) -> int | None:
    """Return a time, None outside the years 1 to 9999: senders may write any value."""
    return ms if ms is not None and _TIME_MS_MIN <= ms <= _TIME_MS_MAX else None


def _integer(value: Any) -> int | None:
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
        if 0 <= value <= _TIME_MS_MAX:
            return datetime.fromtimestamp(value / 1000, UTC).isoformat(timespec="milliseconds")
        return str(int(value))
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (int, float, uuid.UUID)):
        return str(value)
    return repr(value)


def _maps(column: Sequence[list[Pair] | None], kind: pa.DataType) -> pa.Array:
    """Return a column of maps, made of arrays of their parts: ten times as fast as from rows."""
    offsets: list[int | None] = []
    keys: list[str] = []
    values: list[str | None] = []
    for pairs in column:
        if pairs is None:
            offsets.append(None)
            continue
        offsets.append(len(keys))
        for key, value in pairs:
            keys.append(key)
            values.append(value)
    offsets.append(len(keys))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string()), type=kind
    )
