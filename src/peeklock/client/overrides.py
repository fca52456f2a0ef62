"""An encoded message with some parts replaced.

What the broker wrote into a delivered message is left out, since the next broker writes it again: the
delivery count, the annotations of `SET_BY_THE_BROKER`, the lock token. All else stays bit for bit, in value
and AMQP type, unless it is replaced. Source: wire contract 3.1, 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from peeklock.amqp.codec import decode, iter_map_raw, read_list_header, skip
from peeklock.amqp.encoding import compound8_or_32, encode
from peeklock.amqp.messaging import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Sections,
    Span,
    scan,
)
from peeklock.amqp.types import Described, UByte, UInt

NULL: Final = b"\x40"
"""Null, encoded: a field that is absent. Compared by identity."""

NO_SESSION: Final = (NULL, b"\xa1\x00", b"\xb1" + bytes(4))
"""No session id, or the empty one, encoded: the partition key counts (wire contract C11)."""

TTL_MS_MAX: Final = 0xFFFFFFFF
"""Maximum of header.ttl; the two times of the properties express more (wire contract 3.2)."""

SET_BY_THE_BROKER: Final = frozenset(
    (
        "x-opt-deadletter-source",
        "x-opt-enqueue-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-lock-token",
        "x-opt-locked-until",
        "x-opt-message-state",
        "x-opt-partition-id",
        "x-opt-peeklock-cursor",
        "x-opt-peeklock-locked-until",
        "x-opt-sequence-number",
    )
)
"""Annotations that the broker writes."""

_STRING8: Final = [bytes((0xA1, size)) for size in range(256)]

_PARTITION_KEY: Final = "x-opt-partition-key"
_MESSAGE_ID: Final = 0
_GROUP_ID: Final = 10


@dataclass(frozen=True, slots=True)
class Overrides:
    """Replacements for parts of a message; each default leaves the part as it is."""

    ttl_ms: int | None = None
    annotations: Sequence[bytes] = ()
    """Encoded pairs of message annotations."""
    fields: Mapping[int, bytes] = field(default_factory=dict)
    """Encoded fields of the properties section by their places."""
    application_properties: Mapping[str, str | None] = field(default_factory=dict)
    """Put over those of the message; None removes one."""
    body: bytes | None = None
    """Replaces a body of any kind."""
    place: bytes = b""
    """Prefix of the id of a message without one; see `made_id`."""
    makes_id: bool = True
    """Whether a message without an id gets one."""


def override(payload: bytes, overrides: Overrides) -> tuple[bytes, bytes]:
    """Return an encoded message with parts replaced, and its encoded key: session id, else partition key.

    Raises:
        DecodeError: `payload` is not a message.
    """
    sections = scan(payload)
    annotations, partition_key = _annotations(sections, overrides)
    fields = _fields(sections, overrides)
    before = (
        _header(_cut(payload, sections.header), overrides.ttl_ms),
        _delivery_annotations(sections),
        annotations,
    )
    behind = (
        _application_properties(sections, overrides.application_properties),
        _cut(payload, sections.body) if overrides.body is None else _data(overrides.body),
        _cut(payload, sections.footer),
    )
    if fields[_MESSAGE_ID] == NULL and overrides.makes_id:
        fields[_MESSAGE_ID] = made_id(overrides.place, b"".join((*before, *fields, *behind)))
    properties = bytearray()
    if sections.properties is not None or fields != [NULL]:
        properties += bytes((0x00, 0x53, PROPERTIES))
        compound8_or_32(properties, 0xC0, 0xD0, len(fields), b"".join(fields))
    session = fields[_GROUP_ID] if len(fields) > _GROUP_ID else NULL
    key = partition_key if session in NO_SESSION and partition_key != NULL else session
    return b"".join((*before, properties, *behind)), key


def made_id(place: bytes, content: bytes) -> bytes:
    """Return an encoded id made of the place of a message's row and a digest of the message.

    The place alone is enough if a repeated task sees the same rows in the same order. Where it does not (the
    plan is not deterministic, or a source cannot repeat a batch), another message in the same place needs
    another id, or duplicate detection drops it.
    """
    return text_field(place + b"-" + blake2b(content, digest_size=8).hexdigest().encode())


def text_field(data: bytes) -> bytes:
    """Encode a string that is already UTF-8."""
    size = len(data)
    return (_STRING8[size] if size < 256 else b"\xb1" + size.to_bytes(4, "big")) + data


def map_section(code: int, pairs: Sequence[bytes]) -> bytes:
    """Encode a map section of encoded pairs; empty without pairs."""
    if not pairs:
        return b""
    out = bytearray((0x00, 0x53, code))
    compound8_or_32(out, 0xC1, 0xD1, 2 * len(pairs), b"".join(pairs))
    return bytes(out)


def _cut(payload: bytes, span: Span | None) -> bytes:
    return b"" if span is None else payload[span[0] : span[1]]


@lru_cache(maxsize=256)
def _header(section: bytes, ttl_ms: int | None) -> bytes:
    """Encode the header without the delivery count. Most headers of a queue are the same few bytes."""
    if not section and ttl_ms is None:
        return b""
    header = scan(section).decode_header()
    ttl = header.ttl if ttl_ms is None else min(ttl_ms, TTL_MS_MAX)
    fields = [
        header.durable,
        UByte(header.priority),
        None if ttl is None else UInt(ttl),
        header.first_acquirer,
    ]
    return encode(Described(HEADER, fields))


def _delivery_annotations(sections: Sections) -> bytes:
    return map_section(DELIVERY_ANNOTATIONS, _kept_pairs(sections, sections.delivery_annotations))


def _annotations(sections: Sections, overrides: Overrides) -> tuple[bytes, bytes]:
    """Encode the message annotations; return the partition key too."""
    replaced = {decode(pair)[0] for pair in overrides.annotations}
    pairs = [
        *_kept_pairs(sections, sections.message_annotations, replaced),
        *overrides.annotations,
    ]
    key = NULL
    for pair in pairs:
        name, start = decode(pair)
        if name == _PARTITION_KEY:
            key = pair[start:]
    return map_section(MESSAGE_ANNOTATIONS, pairs), key


def _kept_pairs(sections: Sections, span: Span | None, replaced: set[str] | None = None) -> list[bytes]:
    if span is None:
        return []
    dropped = SET_BY_THE_BROKER | (replaced or set())
    payload = sections.payload
    return [
        payload[key_start:end]
        for key, key_start, _, end in iter_map_raw(payload, _value_start(payload, span))
        if key not in dropped
    ]


def _fields(sections: Sections, overrides: Overrides) -> list[bytes]:
    """Return the encoded fields of the properties, at least the message id."""
    fields: list[bytes] = []
    payload = sections.payload
    if sections.properties is not None:
        position, _, count = read_list_header(payload, _value_start(payload, sections.properties))
        for _ in range(count):
            end = skip(payload, position)
            fields.append(payload[position:end])
            position = end
    last = max((_MESSAGE_ID, *overrides.fields))
    fields += [NULL] * (last + 1 - len(fields))
    for place, value in overrides.fields.items():
        fields[place] = value
    return fields


def _application_properties(sections: Sections, updates: Mapping[str, str | None]) -> bytes:
    span = sections.application_properties
    payload = sections.payload
    if not updates:
        return _cut(payload, span)
    pairs = []
    if span is not None:
        pairs = [
            payload[key_start:end]
            for key, key_start, _, end in iter_map_raw(payload, _value_start(payload, span))
            if key not in updates
        ]
    pairs += [encode(key) + encode(value) for key, value in updates.items() if value is not None]
    return map_section(APPLICATION_PROPERTIES, pairs)


def _data(body: bytes) -> bytes:
    return encode(Described(DATA, body))


def _value_start(payload: bytes, span: Span) -> int:
    return decode(payload, span[0] + 1)[1]
