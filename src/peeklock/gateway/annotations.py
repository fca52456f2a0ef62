"""A stored message as its receiver gets it: fresh header and annotations, then the sender's own bytes.

Owns: the encoding of deliveries, peeked and deferred messages. Must not know: links, locks, where bodies are
kept.

What the sender put before the bare message (header, delivery- and message-annotations) is usually the same
few bytes for many messages. For each such prefix a `_Layout` is worked out once: constants and one `struct`
that holds all that differs from message to message. A partition or a dead-letter source is rare and one of
few: it is a constant of the layout. The broker's own keys always win over the sender's; every
other key and value is passed on bit for bit, unless the message's overlay changes it.
Source: wire contract 0.4, 3.1, 3.2, 3.4, 3.6, 9.4.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache

from peeklock.amqp.codec import DecodeError, decode, iter_map_raw, read_list_header, skip
from peeklock.amqp.encoding import compound8_or_32, encode
from peeklock.amqp.messaging import Span, scan
from peeklock.amqp.types import Short, Symbol, Timestamp
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS, shown_source
from peeklock.broker.vocabulary.message import EMPTY_PAYLOAD, NEVER_MS, MessageState, MessageView

TTL_MS_MAX = 0xFFFFFFFF
"""The most that header.ttl can say, 49.7 days; absolute-expiry-time says more (wire contract 3.2)."""

INSTANT_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, the last instant of .NET's DateTime, and so of the service."""

BROKER_OWNED = frozenset(
    {
        "x-opt-sequence-number",
        "x-opt-enqueue-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-locked-until",
        "x-opt-message-state",
        "x-opt-partition-id",
        "x-opt-deadletter-source",
        "x-opt-peeklock-cursor",
        "x-opt-peeklock-locked-until",
    }
)
"""Message annotations of the broker: what a sender says under these names is overwritten, never trusted."""

_LOCK_TOKEN = "x-opt-lock-token"

_FIELDS = {
    "message-id": 0,
    "to": 2,
    "subject": 3,
    "reply-to": 4,
    "correlation-id": 5,
    "content-type": 6,
    "group-id": 10,
    "reply-to-group-id": 12,
}
"""Fields of the properties section that an overlay can change, by their places. Any other symbol in it names
an annotation. Source: AMQP 3.2.4."""

_CONTENT_TYPE = 6
_ABSOLUTE_EXPIRY_TIME = 8
_CREATION_TIME = 9
_FIELDS_MAX = 13

_NULL = b"\x40"
_STRING8 = 0xA1
_STRING32 = 0xB1

_LAYOUTS_MAX = 256
_PREFIX_BYTES_MAX = 256
"""Longer prefixes are unlikely to repeat, and are not kept."""

_MICROSOFT_GUID = struct.Struct("<IHH8s").unpack
"""A delivery tag is a GUID in .NET's order: unpacked little-endian, packed big-endian it is RFC order."""

_TTL = struct.Struct(">I").pack
_TIMESTAMP = 0x83
_MS = struct.Struct(">q")

Pairs = tuple[bytes, ...]
"""Encoded key and value each."""


def encode_for_receiver(
    view: MessageView,
    payload: bytes,
    *,
    over_link: bool = False,
    tag_only: bool = False,
    partitioned: bool = False,
) -> bytes:
    """Encode a message as one reader is shown it.

    Args:
        view: the message, and how it is shown.
        payload: as the sender sent it.
        over_link: it is a delivery over a link, where a message that was scheduled says so for good (wire
            contract C10); all others show the state that it has.
        tag_only: its lock token is a delivery tag and locks nothing (receive and delete).
        partitioned: the top 16 bits of its sequence number are the partition.
    """
    message = view.message
    state = MessageState.SCHEDULED if over_link and message.was_scheduled else view.state
    offset = message.bare_offset
    ttl_ms = view.ttl_ms
    token = view.lock_token
    own: Pairs = ()
    locked = not tag_only and token is not None
    if token is None:
        if view.locked_until_ms:
            own = _LOCKED_BY_ANOTHER
        if view.of_session:
            own += _LOCKED_BY_A_SESSION
    if partitioned or message.dead_letter_source is not None or view.cursor is not None:
        partition = message.sequence_number >> 48 if partitioned else None
        own += _own_pairs(partition, message.dead_letter_source, view.cursor)
    # What stands for a damaged body says so, also in a view that was made before it was found damaged.
    overlay = view.overlay if payload is not EMPTY_PAYLOAD else message.overlay
    if overlay is None:
        prefix = payload[:offset]
        bare = payload[offset:] if offset else payload
    else:
        prefix, bare = _overlaid(payload, offset, overlay)
    key = (prefix, ttl_ms is None, locked, own)
    layout = _LAYOUTS.get(key)
    if layout is None:
        layout = _keep(key, _Layout(*key))
    if ttl_ms is None:
        head = layout.head
    else:
        head = layout.head + _TTL(ttl_ms if ttl_ms < TTL_MS_MAX else TTL_MS_MAX) + layout.first_acquirer
        if ttl_ms > TTL_MS_MAX and message.expires_at_ms == NEVER_MS:
            bare = _with_default_expiry(bare, ttl_ms, message.enqueued_at_ms)
        elif ttl_ms < layout.sent_ttl_ms:
            bare = _with_expiry(bare, ttl_ms, layout.sent_ttl_ms, message.enqueued_at_ms)
    if locked:
        front = layout.pack(
            head,
            view.delivery_count,
            layout.delivery_annotations,
            *_MICROSOFT_GUID(token),  # type: ignore[arg-type]  # a lock has one
            layout.message_annotations,
            message.enqueued_at_ms,
            _SEQUENCE_NUMBER,
            message.sequence_number,
            _ENQUEUE_SEQUENCE_NUMBER,
            message.enqueued_sequence_number,
            _MESSAGE_STATE,
            state,
            _LOCKED_UNTIL,
            view.locked_until_ms or INSTANT_MS_MAX,  # a session's lock is its own (wire contract C28)
        )
    else:
        front = layout.pack(
            head,
            view.delivery_count,
            layout.message_annotations,
            message.enqueued_at_ms,
            _SEQUENCE_NUMBER,
            message.sequence_number,
            _ENQUEUE_SEQUENCE_NUMBER,
            message.enqueued_sequence_number,
            _MESSAGE_STATE,
            state,
        )
    further = layout.further_annotations
    if not further:
        return front + bare
    if own and own[0] is _LOCKED_BY_ANOTHER[0]:
        further = _LOCKED_BY_ANOTHER_KEY + _MS.pack(view.locked_until_ms) + further[len(own[0]) :]
    return b"".join((front, further, bare))


def without_body(encoded: bytes) -> bytes:
    """Return an encoded message with all its sections but the body."""
    body = scan(encoded).body
    return encoded if body is None else encoded[: body[0]] + encoded[body[1] :]


def _symbol(text: str) -> bytes:
    return b"\xa3" + bytes([len(text)]) + text.encode("ascii")


_ENQUEUED_TIME = _symbol("x-opt-enqueued-time") + b"\x83"  # timestamp
_SEQUENCE_NUMBER = _symbol("x-opt-sequence-number") + b"\x81"  # long in full: JavaScript reads 8 raw bytes
_ENQUEUE_SEQUENCE_NUMBER = _symbol("x-opt-enqueue-sequence-number") + b"\x81"
_MESSAGE_STATE = _symbol("x-opt-message-state") + b"\x54"  # smallint
_LOCKED_UNTIL = _symbol("x-opt-locked-until") + b"\x83"
_LOCKED_BY_ANOTHER_KEY = _symbol("x-opt-peeklock-locked-until") + b"\x83"
_LOCKED_BY_ANOTHER: Pairs = (_LOCKED_BY_ANOTHER_KEY + bytes(8),)
"""What a peek shows of a lock. The instant is put in last, so that the layout is the same for all."""
_LOCKED_BY_A_SESSION: Pairs = (_LOCKED_UNTIL + _MS.pack(INSTANT_MS_MAX),)
_LOCK_TOKEN_KEY = _symbol(_LOCK_TOKEN) + b"\x98"  # uuid


@lru_cache(maxsize=256)
def _own_pairs(partition: int | None, dead_letter_source: str | None, cursor: str | None) -> Pairs:
    """Encode the annotations that few messages have."""
    pairs = []
    if partition is not None:
        pairs.append(encode(Symbol("x-opt-partition-id")) + encode(Short(partition)))
    if dead_letter_source is not None:
        pairs.append(encode(Symbol("x-opt-deadletter-source")) + encode(shown_source(dead_letter_source)))
    if cursor is not None:
        pairs.append(encode(Symbol("x-opt-peeklock-cursor")) + encode(cursor))
    return tuple(pairs)


class _Layout:
    """All that is the same in every delivery with one prefix, kind of header.ttl, lock or none and some
    pairs."""

    __slots__ = (
        "delivery_annotations",
        "first_acquirer",
        "further_annotations",
        "head",
        "message_annotations",
        "pack",
        "sent_ttl_ms",
    )

    def __init__(self, prefix: bytes, ttl_absent: bool, locked: bool, own: Pairs) -> None:
        header, self.sent_ttl_ms, delivery_pairs, foreign_pairs = _read_prefix(prefix)
        message_pairs = [*own, *foreign_pairs]
        durable, priority, first_acquirer = header
        ttl_bytes = 1 if ttl_absent else 5
        # size = the count byte + durable + priority + ttl + first-acquirer + delivery-count (uint in full)
        size = 1 + len(durable) + len(priority) + ttl_bytes + len(first_acquirer) + 5
        fixed = b"\x00\x53\x70\xc0" + bytes([size, 5]) + durable + priority
        self.first_acquirer = first_acquirer + b"\x70"
        if ttl_absent:
            self.head = fixed + b"\x40" + self.first_acquirer
            head_bytes = len(self.head)
        else:
            self.head = fixed + b"\x70"
            head_bytes = len(self.head) + 4 + len(self.first_acquirer)
        # The lock token stands behind the sender's delivery-annotations, his message-annotations behind ours.
        delivery = _map_start(
            0x71,
            delivery_pairs,
            extra_pairs=int(locked),
            extra_bytes=len(_LOCK_TOKEN_KEY) + 16 if locked else 0,
        )
        delivery += b"".join(delivery_pairs)
        own_bytes = (
            len(_ENQUEUED_TIME + _SEQUENCE_NUMBER + _ENQUEUE_SEQUENCE_NUMBER + _MESSAGE_STATE) + 8 * 3 + 1
        )
        own_bytes += len(_LOCKED_UNTIL) + 8 if locked else 0
        annotations = _map_start(0x72, message_pairs, extra_pairs=5 if locked else 4, extra_bytes=own_bytes)
        annotations += _ENQUEUED_TIME
        self.further_annotations = b"".join(message_pairs)
        names = f"q{len(_SEQUENCE_NUMBER)}sq{len(_ENQUEUE_SEQUENCE_NUMBER)}sq{len(_MESSAGE_STATE)}sb"
        if locked:
            self.delivery_annotations = delivery + _LOCK_TOKEN_KEY
            self.message_annotations = annotations
            form = f">{head_bytes}sI{len(self.delivery_annotations)}sIHH8s{len(annotations)}s{names}"
            form += f"{len(_LOCKED_UNTIL)}sq"
        else:
            self.delivery_annotations = b""
            self.message_annotations = delivery + annotations
            form = f">{head_bytes}sI{len(self.message_annotations)}s{names}"
        self.pack = struct.Struct(form).pack


_LayoutKey = tuple[bytes, bool, bool, Pairs]
_LAYOUTS: dict[_LayoutKey, _Layout] = {}


def _keep(key: _LayoutKey, layout: _Layout) -> _Layout:
    if len(key[0]) <= _PREFIX_BYTES_MAX:
        if len(_LAYOUTS) >= _LAYOUTS_MAX:
            _LAYOUTS.clear()
        _LAYOUTS[key] = layout
    return layout


def _map_start(section: int, pairs: list[bytes], *, extra_pairs: int, extra_bytes: int) -> bytes:
    """Give constructor, size and count of a map section of `pairs` and some more; nothing if it is empty."""
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


def _read_prefix(prefix: bytes) -> tuple[tuple[bytes, bytes, bytes], int, list[bytes], list[bytes]]:
    """Take apart what stands before the bare message.

    Returns durable, priority and first-acquirer as encoded, the sender's time-to-live (0 = none,
    `UNLIMITED_MS` = the properties may say more), and the pairs of both maps that are not the broker's.
    """
    durable = priority = first_acquirer = b"\x40"
    sent_ttl_ms = 0
    delivery_pairs: list[bytes] = []
    message_pairs: list[bytes] = []
    sections = scan(prefix)
    if sections.header is not None:
        durable, priority, ttl, first_acquirer = _list_fields(
            prefix, _value_start(prefix, sections.header), 4
        )
        sent_ttl_ms = decode(ttl)[0] or 0
        if sent_ttl_ms == TTL_MS_MAX:
            sent_ttl_ms = UNLIMITED_MS
    if sections.delivery_annotations is not None:
        start = _value_start(prefix, sections.delivery_annotations)
        delivery_pairs = list(_foreign_pairs(prefix, start, {_LOCK_TOKEN}))
    if sections.message_annotations is not None:
        start = _value_start(prefix, sections.message_annotations)
        message_pairs = list(_foreign_pairs(prefix, start, BROKER_OWNED))
    return (durable, priority, first_acquirer), sent_ttl_ms, delivery_pairs, message_pairs


def _with_expiry(bare: bytes, ttl_ms: int, sent_ttl_ms: int, enqueued_at_ms: int) -> bytes:
    """Replace the absolute-expiry-time, where the sender set one, of a message whose time-to-live was capped.

    Its 8 bytes alone change. Clients compute the time-to-live from it and the creation-time. Source: wire
    contract 3.2, C17.
    """
    section = scan(bare).properties
    if section is None:
        return bare
    try:
        start = _value_start(bare, section)
        fields = _list_fields(bare, start, _CREATION_TIME + 1)
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
    """Add the absolute-expiry-time to a message that has its entity's time-to-live, which is too long for
    header.ttl.

    Clients subtract the creation-time, which is added where the sender set none. An absolute-expiry-time of
    the sender stays alone. Source: wire contract C29.
    """
    section = scan(bare).properties
    end = 0 if section is None else section[1]
    created = expires = _NULL
    if section is not None:
        try:
            fields = _list_fields(bare, _value_start(bare, section), _CREATION_TIME + 1)
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


def _value_start(buf: bytes, section: Span) -> int:
    return decode(buf, section[0] + 1)[1]


def _list_fields(buf: bytes, offset: int, wanted: int) -> list[bytes]:
    position, _, count = read_list_header(buf, offset)
    fields = []
    for _ in range(min(count, wanted)):
        end = skip(buf, position)
        fields.append(buf[position:end])
        position = end
    return fields + [b"\x40"] * (wanted - len(fields))


def _foreign_pairs(buf: bytes, offset: int, own: Iterable[str]) -> Iterable[bytes]:
    for key, start, _, end in iter_map_raw(buf, offset):
        if not isinstance(key, str) or key not in own:
            yield buf[start:end]


def _pairs_by_key(buf: bytes, offset: int) -> Iterable[tuple[object, bytes]]:
    for key, start, value_start, end in iter_map_raw(buf, offset):
        # Only strings are legal keys here; whatever else a sender put is told apart by its bytes.
        yield str(key) if isinstance(key, str) else buf[start:value_start], buf[start:end]


def _overlaid(payload: bytes, bare_offset: int, overlay: bytes) -> tuple[bytes, bytes]:
    """Give what stands before the bare message, and the bare message, both with what an overlay changes.

    What the types of its keys mean: `broker.properties`. All that the sender set and nobody changed stays bit
    for bit.
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
    # The properties, where there are any, are what a bare message begins with.
    middle = 0 if sections.properties is None else sections.properties[1]
    properties = _with_fields(bare[:middle], fields) if fields else bare[:middle]
    if not set_pairs and not removed:
        return prefix, properties + bare[middle:]
    section, end = _application_properties(bare, sections.application_properties, set_pairs, removed)
    return prefix, properties + section + bare[end or middle :]


def _with_annotations(prefix: bytes, changed: dict[str, bytes]) -> bytes:
    """Change message-annotations, the last section of a prefix; a changed pair that is empty is removed."""
    span = scan(prefix).message_annotations
    start = len(prefix)
    pairs: list[bytes] = []
    if span is not None:
        start = span[0]
        pairs += _foreign_pairs(prefix, _value_start(prefix, span), changed)
    pairs += [pair for pair in changed.values() if pair]
    return prefix[:start] + _map_start(0x72, pairs, extra_pairs=0, extra_bytes=0) + b"".join(pairs)


def _with_fields(properties: bytes, changed: dict[int, bytes]) -> bytes:
    """Change fields of a properties section (nothing where there is none); one that cannot be read stays."""
    values: list[bytes] = []
    if properties:
        try:
            values = _list_fields(properties, decode(properties, 1)[1], _FIELDS_MAX)
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
    """Encode a text as the symbol that clients expect: the same form, under a code that is 2 higher."""
    data_start = {_STRING8: 2, _STRING32: 5}.get(value[0])
    if data_start is None or not value[data_start:].isascii():
        return value
    return bytes((value[0] + 2,)) + value[1:]


def _application_properties(
    bare: bytes, span: Span | None, changed: dict[object, bytes], removed: list[str]
) -> tuple[bytes, int]:
    """Give the section with its changes, and where the sender's ends; 0 when there is none.

    The sender's map is not looked into when a message arrives: one that cannot be read gives way to the
    changes, so that the message can still be dead-lettered and read.
    """
    pairs: dict[object, bytes] = {}
    if span is not None:
        with suppress(DecodeError):
            pairs.update(_pairs_by_key(bare, _value_start(bare, span)))
    for name in removed:
        pairs.pop(name, None)
    pairs.update(changed)
    section = bytearray()
    if pairs:
        section += b"\x00\x53\x74"
        compound8_or_32(section, 0xC1, 0xD1, 2 * len(pairs), b"".join(pairs.values()))
    return bytes(section), 0 if span is None else span[1]
