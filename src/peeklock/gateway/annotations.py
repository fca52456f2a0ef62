"""A stored message as a receiver gets it: fresh header and annotations, then the sender's own bytes.

The sections before the bare message (header, delivery- and message-annotations) are usually the same few
bytes for many messages. For each such prefix a `_Layout` is made once: constants, and one `struct` for all
that differs from message to message. A partition or a dead-letter source is rare and one of few: it is a
constant of the layout. The broker's keys replace the sender's; every other key and value is passed on bit for
bit, unless the message's overlay changes it. Source: wire contract 0.4, 3.1, 3.2, 3.4, 3.6, 9.4.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from peeklock.amqp.codec import decode
from peeklock.amqp.encoding import encode
from peeklock.amqp.messaging import scan
from peeklock.amqp.types import Short, Symbol
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS, shown_source
from peeklock.broker.vocabulary.message import EMPTY_PAYLOAD, MessageState, MessageView
from peeklock.gateway.rewriting import (
    INSTANT_MS_MAX,
    TTL_MS_MAX,
    foreign_pairs,
    list_fields,
    map_start,
    overlaid,
    value_start,
    with_expiry,
)

BROKER_OWNED: Final = frozenset(
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
"""Message annotations of the broker: a sender's values are overwritten."""

_LOCK_TOKEN: Final = "x-opt-lock-token"

_LAYOUTS_MAX: Final = 256
_PREFIX_BYTES_MAX: Final = 256
"""Longer prefixes are unlikely to repeat, and get no kept layout."""

_MICROSOFT_GUID: Final = struct.Struct("<IHH8s").unpack
"""A delivery tag is a GUID in .NET's order: unpacked little-endian, packed big-endian it is RFC order."""

_TTL: Final = struct.Struct(">I").pack
_MS: Final = struct.Struct(">q")

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
    """Encode a message as a reader sees it; `payload` is as the sender sent it.

    Args:
        over_link: a delivery over a link: a message that was scheduled is shown as scheduled (C10).
        tag_only: the lock token is a delivery tag and locks nothing (receive and delete).
        partitioned: the top 16 bits of the sequence number are the partition.
    """
    message = view.message
    state = MessageState.SCHEDULED if over_link and message.was_scheduled else view.state
    offset = message.bare_offset
    token = view.lock_token
    locked = not tag_only and token is not None
    own: Pairs = ()
    if token is None or partitioned or message.dead_letter_source is not None or view.cursor is not None:
        own = _own_pairs_of(view, partitioned=partitioned)
    # A placeholder for a damaged body says so, even in a view from before it was found damaged.
    overlay = view.overlay if payload is not EMPTY_PAYLOAD else message.overlay
    if overlay is None:
        prefix = payload[:offset]
        bare = payload[offset:] if offset else payload
    else:
        prefix, bare = overlaid(payload, offset, overlay)
    ttl_ms = view.ttl_ms
    key = (prefix, ttl_ms is None, locked, own)
    layout = _LAYOUTS.get(key)
    if layout is None:
        layout = _keep(key, _Layout(*key))
    if ttl_ms is None:
        head = layout.head
    else:
        head = layout.head + _TTL(ttl_ms if ttl_ms < TTL_MS_MAX else TTL_MS_MAX) + layout.first_acquirer
        if ttl_ms > TTL_MS_MAX or ttl_ms < layout.sent_ttl_ms:
            bare = with_expiry(view, ttl_ms, layout.sent_ttl_ms, bare)
    if locked:
        front = layout.pack(
            head, view.delivery_count,
            layout.delivery_annotations, *_MICROSOFT_GUID(token),  # type: ignore[arg-type]  # a lock has one
            layout.message_annotations, message.enqueued_at_ms, _SEQUENCE_NUMBER, message.sequence_number,
            _ENQUEUE_SEQUENCE_NUMBER, message.enqueued_sequence_number, _MESSAGE_STATE, state,
            _LOCKED_UNTIL, view.locked_until_ms or INSTANT_MS_MAX,  # in a session: C28
        )  # fmt: skip
    else:
        front = layout.pack(
            head, view.delivery_count, layout.message_annotations, message.enqueued_at_ms,
            _SEQUENCE_NUMBER, message.sequence_number, _ENQUEUE_SEQUENCE_NUMBER,
            message.enqueued_sequence_number, _MESSAGE_STATE, state,
        )  # fmt: skip
    if not (further := layout.further_annotations):
        return front + bare
    if own and own[0] is _LOCKED_BY_ANOTHER[0]:
        further = _LOCKED_BY_ANOTHER_KEY + _MS.pack(view.locked_until_ms) + further[len(own[0]) :]
    return b"".join((front, further, bare))


def _own_pairs_of(view: MessageView, *, partitioned: bool) -> Pairs:
    """Return the annotations of the broker that few messages have."""
    message = view.message
    own: Pairs = ()
    if view.lock_token is None:
        if view.locked_until_ms:
            own = _LOCKED_BY_ANOTHER
        if view.of_session:
            own += _LOCKED_BY_A_SESSION
    if partitioned or message.dead_letter_source is not None or view.cursor is not None:
        partition = message.sequence_number >> 48 if partitioned else None
        own += _own_pairs(partition, message.dead_letter_source, view.cursor)
    return own


def without_body(encoded: bytes) -> bytes:
    """Return an encoded message with all its sections but the body."""
    body = scan(encoded).body
    return encoded if body is None else encoded[: body[0]] + encoded[body[1] :]


def _symbol(text: str) -> bytes:
    return b"\xa3" + bytes([len(text)]) + text.encode("ascii")


_ENQUEUED_TIME: Final = _symbol("x-opt-enqueued-time") + b"\x83"  # timestamp
# Longs in full: JavaScript reads 8 raw bytes.
_SEQUENCE_NUMBER: Final = _symbol("x-opt-sequence-number") + b"\x81"
_ENQUEUE_SEQUENCE_NUMBER: Final = _symbol("x-opt-enqueue-sequence-number") + b"\x81"
_MESSAGE_STATE: Final = _symbol("x-opt-message-state") + b"\x54"  # smallint
_LOCKED_UNTIL: Final = _symbol("x-opt-locked-until") + b"\x83"
_LOCKED_BY_ANOTHER_KEY: Final = _symbol("x-opt-peeklock-locked-until") + b"\x83"
_LOCKED_BY_ANOTHER: Final[Pairs] = (_LOCKED_BY_ANOTHER_KEY + bytes(8),)
"""A lock as a peek shows it. The instant is filled in last, so that all share a layout."""
_LOCKED_BY_A_SESSION: Final[Pairs] = (_LOCKED_UNTIL + _MS.pack(INSTANT_MS_MAX),)
_LOCK_TOKEN_KEY: Final = _symbol(_LOCK_TOKEN) + b"\x98"  # uuid


@lru_cache(maxsize=256)
def _own_pairs(partition: int | None, dead_letter_source: str | None, cursor: str | None) -> Pairs:
    """Encode the annotations for a partition, a dead-letter source and a cursor."""
    pairs = []
    if partition is not None:
        pairs.append(encode(Symbol("x-opt-partition-id")) + encode(Short(partition)))
    if dead_letter_source is not None:
        pairs.append(encode(Symbol("x-opt-deadletter-source")) + encode(shown_source(dead_letter_source)))
    if cursor is not None:
        pairs.append(encode(Symbol("x-opt-peeklock-cursor")) + encode(cursor))
    return tuple(pairs)


class _Layout:
    """The constants of all deliveries with one prefix, kind of header.ttl, lock or none, and own pairs."""

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
        # The lock token follows the sender's delivery-annotations; the sender's message-annotations
        # follow ours.
        delivery = map_start(
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
        annotations = map_start(0x72, message_pairs, extra_pairs=5 if locked else 4, extra_bytes=own_bytes)
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


def _read_prefix(prefix: bytes) -> tuple[tuple[bytes, bytes, bytes], int, list[bytes], list[bytes]]:
    """Decode the sections before the bare message.

    Returns durable, priority and first-acquirer as encoded, the sender's time-to-live (0 = none,
    `UNLIMITED_MS` = the properties may say more), and the pairs of both maps that are not the broker's.
    """
    durable = priority = first_acquirer = b"\x40"
    sent_ttl_ms = 0
    delivery_pairs: list[bytes] = []
    message_pairs: list[bytes] = []
    sections = scan(prefix)
    if sections.header is not None:
        durable, priority, ttl, first_acquirer = list_fields(prefix, value_start(prefix, sections.header), 4)
        sent_ttl_ms = decode(ttl)[0] or 0
        if sent_ttl_ms == TTL_MS_MAX:
            sent_ttl_ms = UNLIMITED_MS
    if sections.delivery_annotations is not None:
        start = value_start(prefix, sections.delivery_annotations)
        delivery_pairs = list(foreign_pairs(prefix, start, {_LOCK_TOKEN}))
    if sections.message_annotations is not None:
        start = value_start(prefix, sections.message_annotations)
        message_pairs = list(foreign_pairs(prefix, start, BROKER_OWNED))
    return (durable, priority, first_acquirer), sent_ttl_ms, delivery_pairs, message_pairs
