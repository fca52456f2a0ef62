"""The id of a message that was sent without one.

Owns: making it, and writing it into the encoded message. Must not know: entities; who asks.

The service gives such a message a GUID, and clients rely on that: JavaScript's cannot settle a message
without an id whose lock it renews by itself. Source: AMQP 3.2.4; observed with @azure/service-bus 7.9.5.
"""

from __future__ import annotations

from collections.abc import Callable

from peeklock.amqp.codec import DecodeError, decode, read_list_header
from peeklock.amqp.encoding import compound8_or_32, encode
from peeklock.amqp.messaging import PROPERTIES, scan

_PROPERTIES = bytes((0x00, 0x53, PROPERTIES))
_LIST8 = 0xC0
_NULL = 0x40


def with_id(payload: bytes, bare_offset: int, tokens: Callable[[], bytes]) -> tuple[bytes, bytes] | None:
    """Give an arriving message an id of 32 hexadecimal digits; all else stays as it is.

    Gives the message with it and the encoded id, None where there is an id.

    Args:
        payload: the encoded message; one that is empty or cannot be read is left alone.
        bare_offset: where its bare message starts.
        tokens: gives 16 random bytes.
    """
    if not payload:
        return None
    start = payload[bare_offset : bare_offset + 7]
    if start[:3] == _PROPERTIES and len(start) == 7 and start[3] == _LIST8 and start[5] and start[6] != _NULL:
        return None  # as nearly all that have one
    try:
        span = scan(payload).properties
        if span is None:
            span = (bare_offset, bare_offset)
            position = end = count = 0
        else:
            position, end, count = read_list_header(payload, decode(payload, span[0] + 1)[1])
    except DecodeError:
        return None
    if count:
        if position == end or payload[position] != _NULL:
            return None
        position += 1
    message_id = encode(tokens().hex())
    section = bytearray(_PROPERTIES)
    compound8_or_32(section, 0xC0, 0xD0, max(count, 1), message_id + payload[position:end])
    return b"".join((payload[: span[0]], section, payload[span[1] :])), message_id
