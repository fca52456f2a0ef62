"""The id of a message that was sent without one.

Owns: making it, and writing it into the encoded message. Must not know: entities; who asks.

The service gives such a message a GUID, and clients rely on that: JavaScript's cannot settle a message
without an id whose lock it renews by itself. Source: AMQP 3.2.4; observed with @azure/service-bus 7.9.5.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Callable

from peeklock.amqp.codec import DecodeError, decode, read_list_header
from peeklock.amqp.encoding import compound8_or_32
from peeklock.amqp.messaging import APPLICATION_PROPERTIES, PROPERTIES, VALUE, scan

_SECTION = bytes((0x00, 0x53, PROPERTIES))
_LIST8 = 0xC0
_NULL = 0x40

_DIGITS = b"\xa1\x20"
"""How a text of 32 characters begins."""

_ID_BYTES = 34
_ONLY_AN_ID = _SECTION + bytes((_LIST8, 1 + _ID_BYTES, 1))


def with_id(payload: bytes, bare_offset: int, tokens: Callable[[], bytes]) -> tuple[bytes, bytes] | None:
    """Give an arriving message an id of 32 hexadecimal digits; all else stays as it is.

    Gives the message with it and the encoded id, None where there is an id.

    Args:
        payload: the encoded message; one that is empty or cannot be read is left alone.
        bare_offset: where its bare message starts.
        tokens: gives 16 random bytes.
    """
    if len(payload) > bare_offset + 6 and payload[bare_offset] == 0 and payload[bare_offset + 1] == 0x53:
        code = payload[bare_offset + 2]
        if code == PROPERTIES:
            if payload[bare_offset + 3] == _LIST8 and payload[bare_offset + 5]:
                if payload[bare_offset + 6] != _NULL:
                    return None  # as nearly all that have one
                size = payload[bare_offset + 4] - 1 + _ID_BYTES  # the null goes
                if _ID_BYTES < size < 256:
                    message_id = _DIGITS + hexlify(tokens())
                    head = payload[: bare_offset + 4] + bytes((size, payload[bare_offset + 5]))
                    return b"".join((head, message_id, payload[bare_offset + 7 :])), message_id
        elif APPLICATION_PROPERTIES <= code <= VALUE:
            message_id = _DIGITS + hexlify(tokens())
            return b"".join(
                (payload[:bare_offset], _ONLY_AN_ID, message_id, payload[bare_offset:])
            ), message_id
    return _with_id_in_any_form(payload, bare_offset, tokens) if payload else None


def _with_id_in_any_form(
    payload: bytes, bare_offset: int, tokens: Callable[[], bytes]
) -> tuple[bytes, bytes] | None:
    """Do it in any legal form of the sections."""
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
    message_id = _DIGITS + hexlify(tokens())
    section = bytearray(_SECTION)
    compound8_or_32(section, _LIST8, 0xD0, max(count, 1), message_id + payload[position:end])
    return b"".join((payload[: span[0]], section, payload[span[1] :])), message_id
