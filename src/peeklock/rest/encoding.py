"""Messages that are sent over HTTP, encoded, and their records.

They have few sections and fields. `amqp.message_writing` writes the same bytes and `gateway.inspection` makes
the same record for any message; with them a batch cost twice as much as over AMQP.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from peeklock.amqp.encoding import compound8_or_32, encode_into
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Header, Sections
from peeklock.broker.content.routing import ID_LENGTH_MAX, PARTITION_KEY, VIA_PARTITION_KEY
from peeklock.broker.vocabulary.message import Message, Routing
from peeklock.gateway.inspection import PROPERTY_BYTES_MAX, take_in
from peeklock.gateway.rewriting import INSTANT_MS_MAX, TTL_MS_MAX
from peeklock.rest.broker_properties import BrokerProperties

_STRING, _SYMBOL = 0xA1, 0xA3
"""Constructors of up to 255 bytes; those of more are 16 higher. Source: AMQP 1.6."""

_SHORT = {code: [bytes((code, size)) for size in range(256)] for code in (_STRING, _SYMBOL)}
_LENGTH = struct.Struct(">I").pack
_TIMESTAMP = struct.Struct(">Bq").pack
_NULL = b"\x40"
_ANNOTATIONS, _PROPERTIES, _OWN = b"\x00\x53\x72", b"\x00\x53\x73", b"\x00\x53\x74"
_HARMLESS_BYTES = PROPERTY_BYTES_MAX
"""Before the body: only ids have a lower limit."""

_DATA_8, _DATA_32 = b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0"


Encoded = tuple[Message, Sections]


def message_of(body: bytes, given: BrokerProperties, own: Mapping[str, Any], now_ms: int) -> Encoded:
    """Return a message and its record, as `take_in` does; that is called only where a rule may be broken.

    Args:
        own: the application properties.
        now_ms: UTC; the creation-time of a message whose time-to-live AMQP's header cannot hold.

    Raises: as `take_in`; UnicodeEncodeError: an unpaired surrogate.
    """
    out = bytearray()
    created_ms = expires_ms = None
    if given.ttl_ms is not None:
        out += _header(min(given.ttl_ms, TTL_MS_MAX))
        if given.ttl_ms > TTL_MS_MAX:
            created_ms, expires_ms = now_ms, min(now_ms + given.ttl_ms, INSTANT_MS_MAX)
    header_end = len(out)
    _annotate(out, given)
    bare_offset = len(out)
    message_id = None if given.message_id is None else _text(given.message_id)
    _describe(out, message_id, given, created_ms, expires_ms)
    properties_end = len(out)
    if own:
        _own(out, own)
    begins = len(out)
    size = len(body)
    out += _DATA_8 + bytes((size,)) if size < 256 else _DATA_32 + _LENGTH(size)
    out += body
    payload = bytes(out)
    # The first condition bounds all but the application properties.
    harmless = (
        begins <= _HARMLESS_BYTES
        and len(message_id or b"") <= ID_LENGTH_MAX
        and created_ms is None
        and given.scheduled_at_ms is None
        and (given.session_id is None or given.partition_key is None)
        and len(given.session_id or given.partition_key or "") <= ID_LENGTH_MAX
        and given.via_partition_key is None
    )
    if not harmless:
        return take_in(payload, reads_routing=True)
    routing = Routing(message_id, given.session_id, given.partition_key)
    end = len(payload)
    sections = Sections(
        payload,
        header_end,
        header_end,
        bare_offset,
        properties_end,
        begins,
        end,
        end,
        lacks_message_id=message_id is None,
    )
    message = Message(end, bare_offset=bare_offset, ttl_ms=given.ttl_ms, routing=routing)
    return message, sections


@lru_cache(maxsize=256)
def _header(ttl_ms: int) -> bytes:
    whole = encode_message(header=Header(ttl=ttl_ms), data=b"")
    return whole[: -len(_DATA_8) - 1]


def _annotate(out: bytearray, given: BrokerProperties) -> None:
    pairs, count = bytearray(), 0
    if given.scheduled_at_ms is not None:
        pairs += _usual("x-opt-scheduled-enqueue-time", _SYMBOL) + _TIMESTAMP(0x83, given.scheduled_at_ms)
        count = 2
    for name, text in ((PARTITION_KEY, given.partition_key), (VIA_PARTITION_KEY, given.via_partition_key)):
        if text is not None:
            pairs += _usual(name, _SYMBOL) + _text(text)
            count += 2
    if count:
        out += _ANNOTATIONS
        compound8_or_32(out, 0xC1, 0xD1, count, pairs)


def _describe(
    out: bytearray,
    message_id: bytes | None,
    given: BrokerProperties,
    created_ms: int | None,
    expires_ms: int | None,
) -> None:
    """Append the properties section, if it has fields."""
    fields = [
        message_id or _NULL,
        _NULL,  # user-id
        _NULL if given.to is None else _text(given.to),
        _NULL if given.label is None else _text(given.label),
        _NULL if given.reply_to is None else _text(given.reply_to),
        _NULL if given.correlation_id is None else _text(given.correlation_id),
        _NULL if given.content_type is None else _usual(given.content_type, _SYMBOL),
        _NULL,  # content-encoding
        _NULL if expires_ms is None else _TIMESTAMP(0x83, expires_ms),
        _NULL if created_ms is None else _TIMESTAMP(0x83, created_ms),
        _NULL if given.session_id is None else _text(given.session_id),
        _NULL,  # group-sequence
        _NULL if given.reply_to_session_id is None else _text(given.reply_to_session_id),
    ]
    count = len(fields)
    while count and fields[count - 1] is _NULL:
        count -= 1
    if count:
        out += _PROPERTIES
        compound8_or_32(out, 0xC0, 0xD0, count, b"".join(fields[:count]))


def _own(out: bytearray, own: Mapping[str, Any]) -> None:
    out += _OWN
    pairs = bytearray()
    for name, value in own.items():
        pairs += _usual(name)
        if type(value) is str:
            pairs += _text(value)
        else:
            encode_into(pairs, value)
    compound8_or_32(out, 0xC1, 0xD1, 2 * len(own), pairs)


def _text(text: str, code: int = _STRING) -> bytes:
    encoded = text.encode()
    size = len(encoded)
    return (_SHORT[code][size] if size < 256 else bytes((code + 16,)) + _LENGTH(size)) + encoded


_usual = lru_cache(maxsize=512)(_text)
"""Cached: names of properties and content types are mostly the same few."""
