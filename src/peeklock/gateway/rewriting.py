"""Changes to the sections of an encoded message: its overlay, its absolute-expiry-time.

Source: wire contract 3.2, 3.4, 3.8.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from peeklock.amqp.codec import DecodeError, decode, iter_map_raw, read_list_header, skip
from peeklock.amqp.encoding import compound8_or_32, encode
from peeklock.amqp.messaging import Span, scan
from peeklock.amqp.types import Symbol, Timestamp
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS
from peeklock.broker.vocabulary.message import NEVER_MS, MessageView

TTL_MS_MAX: Final = 0xFFFFFFFF
"""The most that header.ttl can hold, 49.7 days; absolute-expiry-time holds more (wire contract 3.2)."""

INSTANT_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999: the last instant of .NET's DateTime, and of the service."""

_FIELDS: Final = {
    "message-id": 0,
    "to": 2,
    "subject": 3,
    "reply-to": 4,
    "correlation-id": 5,
    "content-type": 6,
    "group-id": 10,
    "reply-to-group-id": 12,
}
"""Fields of the properties section that an overlay can change -> their places. Any other symbol in an overlay
names an annotation. Source: AMQP 3.2.4."""

_CONTENT_TYPE: Final = 6
_ABSOLUTE_EXPIRY_TIME: Final = 8
_CREATION_TIME: Final = 9
_FIELDS_MAX: Final = 13

_NULL: Final = b"\x40"
_STRING8: Final = 0xA1
_STRING32: Final = 0xB1

_TIMESTAMP: Final = 0x83
_MS: Final = struct.Struct(">q")


def overlaid(payload: bytes, bare_offset: int, overlay: bytes) -> tuple[bytes, bytes]:
    """Return the prefix and the bare message with the changes of an overlay.

    `broker.content.overlay` says what the types of its keys mean. All other bytes stay as they are.
    """
    set_pairs: dict[object, bytes] = {}
    removed: list[str] = []
    fields: dict[int, bytes] = {}
    annotations: dict[str, bytes] = {}
    for key, start, value_start, end in iter_map_raw(overlay):
        if isinstance(key, bytes):
            removed.append(key.decode())
        elif not isinstance(key, Symbol):
            set_pairs[key] = overlay[start:end]
        elif key in _FIELDS:
            fields[_FIELDS[key]] = overlay[value_start:end]
        else:
            annotations[key] = b"" if overlay[value_start] == _NULL[0] else overlay[start:end]
    prefix = payload[:bare_offset]
    if annotations:
        prefix = _with_annotations(prefix, annotations)
    bare = payload[bare_offset:]
    sections = scan(bare)
    # A bare message begins with its properties, if it has any.
    middle = 0 if sections.properties is None else sections.properties[1]
    properties = _with_fields(bare[:middle], fields) if fields else bare[:middle]
    if not set_pairs and not removed:
        return prefix, properties + bare[middle:]
    section, end = _application_properties(bare, sections.application_properties, set_pairs, removed)
    return prefix, properties + section + bare[end or middle :]


def _with_annotations(prefix: bytes, changed: dict[str, bytes]) -> bytes:
    """Change message-annotations, the last section of a prefix; an empty pair removes its key."""
    span = scan(prefix).message_annotations
    start = len(prefix)
    pairs: list[bytes] = []
    if span is not None:
        start = span[0]
        pairs += foreign_pairs(prefix, value_start(prefix, span), changed)
    pairs += [pair for pair in changed.values() if pair]
    return prefix[:start] + map_start(0x72, pairs, extra_pairs=0, extra_bytes=0) + b"".join(pairs)


def _with_fields(properties: bytes, changed: dict[int, bytes]) -> bytes:
    """Change fields of a properties section, which may be absent; one that cannot be decoded stays."""
    values: list[bytes] = []
    if properties:
        try:
            values = list_fields(properties, decode(properties, 1)[1], _FIELDS_MAX)
        except DecodeError:
            return properties
    values += [_NULL] * (_FIELDS_MAX - len(values))
    for place, value in changed.items():
        values[place] = _as_symbol(value) if place == _CONTENT_TYPE else value
    while values and values[-1] == _NULL:
        values.pop()
    out = bytearray(b"\x00\x53\x73")
    compound8_or_32(out, 0xC0, 0xD0, len(values), b"".join(values))
    return bytes(out)


def _as_symbol(value: bytes) -> bytes:
    """Encode a string as the symbol that clients expect: the same bytes, under a code that is 2 higher."""
    data_start = {_STRING8: 2, _STRING32: 5}.get(value[0])
    if data_start is None or not value[data_start:].isascii():
        return value
    return bytes((value[0] + 2,)) + value[1:]


def _application_properties(
    bare: bytes, span: Span | None, changed: dict[object, bytes], removed: list[str]
) -> tuple[bytes, int]:
    """Return the section with its changes, and where the sender's ends; 0 if there is none.

    The sender's map is not decoded when a message arrives. One that cannot be decoded is replaced by the
    changes, so that the message can still be dead-lettered and read.
    """
    pairs: dict[object, bytes] = {}
    if span is not None:
        with suppress(DecodeError):
            pairs.update(_pairs_by_key(bare, value_start(bare, span)))
    for name in removed:
        pairs.pop(name, None)
    pairs.update(changed)
    section = bytearray()
    if pairs:
        section += b"\x00\x53\x74"
        compound8_or_32(section, 0xC1, 0xD1, 2 * len(pairs), b"".join(pairs.values()))
    return bytes(section), 0 if span is None else span[1]


def with_expiry(view: MessageView, ttl_ms: int, sent_ttl_ms: int, bare: bytes) -> bytes:
    """Return the bare message with the absolute-expiry-time that its time-to-live needs."""
    message = view.message
    if ttl_ms > TTL_MS_MAX and message.expires_at_ms == NEVER_MS:
        return _with_default_expiry(bare, ttl_ms, message.enqueued_at_ms)
    if ttl_ms < sent_ttl_ms:
        return _with_capped_expiry(bare, ttl_ms, sent_ttl_ms, message.enqueued_at_ms)
    return bare


def _with_capped_expiry(bare: bytes, ttl_ms: int, sent_ttl_ms: int, enqueued_at_ms: int) -> bytes:
    """Replace the sender's absolute-expiry-time, if any, of a message whose time-to-live was capped.

    Only its 8 bytes change. Clients compute the time-to-live from it and the creation-time. Source: wire
    contract 3.2, C17.
    """
    section = scan(bare).properties
    if section is None:
        return bare
    try:
        start = value_start(bare, section)
        fields = list_fields(bare, start, _CREATION_TIME + 1)
    except DecodeError:
        return bare
    expires, created = fields[_ABSOLUTE_EXPIRY_TIME:]
    if expires[0] != _TIMESTAMP:
        return bare
    begins_ms = enqueued_at_ms
    own_ttl_ms = min(sent_ttl_ms, TTL_MS_MAX)
    if created[0] == _TIMESTAMP:
        (begins_ms,) = _MS.unpack_from(created, 1)
        (expires_ms,) = _MS.unpack_from(expires, 1)
        own_ttl_ms = max(own_ttl_ms, expires_ms - begins_ms) if sent_ttl_ms == UNLIMITED_MS else own_ttl_ms
    if ttl_ms >= own_ttl_ms:
        return bare
    at = read_list_header(bare, start)[0] + sum(map(len, fields[:_ABSOLUTE_EXPIRY_TIME])) + 1
    return bare[:at] + _MS.pack(min(begins_ms + ttl_ms, INSTANT_MS_MAX)) + bare[at + _MS.size :]


def _with_default_expiry(bare: bytes, ttl_ms: int, enqueued_at_ms: int) -> bytes:
    """Add the absolute-expiry-time to a message whose time-to-live is its entity's and too
    long for header.ttl.

    Clients subtract the creation-time, which is added where the sender set none. An absolute-expiry-time of
    the sender stays as it is. Source: wire contract C29.
    """
    section = scan(bare).properties
    end = 0 if section is None else section[1]
    created = expires = _NULL
    if section is not None:
        try:
            fields = list_fields(bare, value_start(bare, section), _CREATION_TIME + 1)
        except DecodeError:
            return bare
        expires, created = fields[_ABSOLUTE_EXPIRY_TIME:]
    if expires != _NULL:
        return bare
    added = {}
    begins_ms = enqueued_at_ms
    if created == _NULL:
        added[_CREATION_TIME] = encode(Timestamp(begins_ms))
    elif created[0] == _TIMESTAMP:
        (begins_ms,) = _MS.unpack_from(created, 1)
    added[_ABSOLUTE_EXPIRY_TIME] = encode(Timestamp(min(begins_ms + ttl_ms, INSTANT_MS_MAX)))
    return _with_fields(bare[:end], added) + bare[end:]


def map_start(section: int, pairs: list[bytes], *, extra_pairs: int, extra_bytes: int) -> bytes:
    """Return constructor, size and count of a map section of `pairs` and some more; nothing if
    it is empty."""
    count = 2 * (len(pairs) + extra_pairs)
    if not count:
        return b""
    size = sum(map(len, pairs)) + extra_bytes
    out = bytearray((0x00, 0x53, section))
    if size < 255 and count < 256:
        out += bytes((0xC1, size + 1, count))
    else:
        out += b"\xd1" + struct.pack(">II", size + 4, count)
    return bytes(out)


def value_start(buf: bytes, section: Span) -> int:
    """Return where the value of a section begins."""
    return decode(buf, section[0] + 1)[1]


def list_fields(buf: bytes, offset: int, wanted: int) -> list[bytes]:
    """Return the first `wanted` fields of the list at `offset`, encoded; those it lacks are null."""
    position, _, count = read_list_header(buf, offset)
    fields = []
    for _ in range(min(count, wanted)):
        end = skip(buf, position)
        fields.append(buf[position:end])
        position = end
    return fields + [b"\x40"] * (wanted - len(fields))


def foreign_pairs(buf: bytes, offset: int, own: Iterable[str]) -> Iterator[bytes]:
    """Yield the encoded pairs of the map at `offset` whose keys are not in `own`."""
    for key, start, _, end in iter_map_raw(buf, offset):
        if not isinstance(key, str) or key not in own:
            yield buf[start:end]


def _pairs_by_key(buf: bytes, offset: int) -> Iterator[tuple[object, bytes]]:
    for key, start, value_start, end in iter_map_raw(buf, offset):
        # Only strings are legal keys here; any other key of a sender is compared by its bytes.
        yield str(key) if isinstance(key, str) else buf[start:value_start], buf[start:end]
