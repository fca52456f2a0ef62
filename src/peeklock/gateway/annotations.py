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
from peeklock.amqp.types import Short, Symbol
from peeklock.broker.message import MessageView

TTL_MS_MAX = 0xFFFFFFFF
"""The most that header.ttl can say, 49.7 days; absolute-expiry-time says more (wire contract 3.2)."""

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

_NO_LOCK = 0
_SESSION_LOCK = 1
"""The message has a lock token, and its lock is its session's: it says no time of its own (wire contract
3.2)."""
_MESSAGE_LOCK = 2

Pairs = tuple[bytes, ...]
"""Encoded key and value each."""


def encode_for_receiver(
    view: MessageView, payload: bytes, *, tag_only: bool = False, partitioned: bool = False
) -> bytes:
    """Encode a message as one reader is shown it.

    Args:
        view: the message, and how it is shown.
        payload: as the sender sent it.
        tag_only: its lock token is a delivery tag and locks nothing (receive and delete).
        partitioned: the top 16 bits of its sequence number are the partition.
    """
    message = view.message
    offset = message.bare_offset
    ttl_ms = view.ttl_ms
    token = view.lock_token
    if tag_only or token is None:
        lock = _NO_LOCK
    else:
        lock = _MESSAGE_LOCK if view.locked_until_ms else _SESSION_LOCK
    own: Pairs = ()
    if partitioned or message.dead_letter_source is not None or view.cursor is not None:
        partition = message.sequence_number >> 48 if partitioned else None
        own = _own_pairs(partition, message.dead_letter_source, view.cursor)
    overlay = message.overlay
    if overlay is None:
        prefix = payload[:offset]
        bare = payload[offset:] if offset else payload
    else:
        prefix, bare = _overlaid(payload, offset, overlay)
    key = (prefix, ttl_ms is None, lock, own)
    layout = _LAYOUTS.get(key)
    if layout is None:
        layout = _keep(key, _Layout(*key))
    if ttl_ms is None:
        head = layout.head
    else:
        head = layout.head + _TTL(ttl_ms if ttl_ms < TTL_MS_MAX else TTL_MS_MAX) + layout.first_acquirer
    if lock == _MESSAGE_LOCK:
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
            view.state,
            _LOCKED_UNTIL,
            view.locked_until_ms,
        )
    elif lock == _SESSION_LOCK:
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
            view.state,
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
            view.state,
        )
    if layout.further_annotations:
        return b"".join((front, layout.further_annotations, bare))
    return front + bare


def _symbol(text: str) -> bytes:
    return b"\xa3" + bytes([len(text)]) + text.encode("ascii")


_ENQUEUED_TIME = _symbol("x-opt-enqueued-time") + b"\x83"  # timestamp
_SEQUENCE_NUMBER = _symbol("x-opt-sequence-number") + b"\x81"  # long in full: JavaScript reads 8 raw bytes
_ENQUEUE_SEQUENCE_NUMBER = _symbol("x-opt-enqueue-sequence-number") + b"\x81"
_MESSAGE_STATE = _symbol("x-opt-message-state") + b"\x54"  # smallint
_LOCKED_UNTIL = _symbol("x-opt-locked-until") + b"\x83"
_LOCK_TOKEN_KEY = _symbol(_LOCK_TOKEN) + b"\x98"  # uuid


@lru_cache(maxsize=256)
def _own_pairs(partition: int | None, dead_letter_source: str | None, cursor: str | None) -> Pairs:
    """Encode the annotations that few messages have."""
    pairs = []
    if partition is not None:
        pairs.append(encode(Symbol("x-opt-partition-id")) + encode(Short(partition)))
    if dead_letter_source is not None:
        pairs.append(encode(Symbol("x-opt-deadletter-source")) + encode(dead_letter_source))
    if cursor is not None:
        pairs.append(encode(Symbol("x-opt-peeklock-cursor")) + encode(cursor))
    return tuple(pairs)


class _Layout:
    """All that is the same in every delivery with one prefix, kind of header.ttl, kind of lock and some
    pairs."""

    __slots__ = (
        "delivery_annotations",
        "first_acquirer",
        "further_annotations",
        "head",
        "message_annotations",
        "pack",
    )

    def __init__(self, prefix: bytes, ttl_absent: bool, lock: int, own: Pairs) -> None:
        header, delivery_pairs, foreign_pairs = _read_prefix(prefix)
        message_pairs = [*own, *foreign_pairs]
        locked = lock == _MESSAGE_LOCK
        shows_token = lock != _NO_LOCK
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
            extra_pairs=int(shows_token),
            extra_bytes=len(_LOCK_TOKEN_KEY) + 16 if shows_token else 0,
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
        if shows_token:
            self.delivery_annotations = delivery + _LOCK_TOKEN_KEY
            self.message_annotations = annotations
            form = f">{head_bytes}sI{len(self.delivery_annotations)}sIHH8s{len(annotations)}s{names}"
            if locked:
                form += f"{len(_LOCKED_UNTIL)}sq"
        else:
            self.delivery_annotations = b""
            self.message_annotations = delivery + annotations
            form = f">{head_bytes}sI{len(self.message_annotations)}s{names}"
        self.pack = struct.Struct(form).pack


_LayoutKey = tuple[bytes, bool, int, Pairs]
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


def _read_prefix(prefix: bytes) -> tuple[tuple[bytes, bytes, bytes], list[bytes], list[bytes]]:
    """Take apart what stands before the bare message.

    Gives durable, priority and first-acquirer as encoded, and the pairs of both maps that are not the
    broker's.
    """
    durable = priority = first_acquirer = b"\x40"
    delivery_pairs: list[bytes] = []
    message_pairs: list[bytes] = []
    sections = scan(prefix)
    if sections.header is not None:
        durable, priority, _, first_acquirer = _list_fields(prefix, _value_start(prefix, sections.header), 4)
    if sections.delivery_annotations is not None:
        start = _value_start(prefix, sections.delivery_annotations)
        delivery_pairs = list(_foreign_pairs(prefix, start, {_LOCK_TOKEN}))
    if sections.message_annotations is not None:
        start = _value_start(prefix, sections.message_annotations)
        message_pairs = list(_foreign_pairs(prefix, start, BROKER_OWNED))
    return (durable, priority, first_acquirer), delivery_pairs, message_pairs


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
