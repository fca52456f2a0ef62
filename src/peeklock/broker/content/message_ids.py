"""The id of a message that was sent without one.

Owns: making it, and writing it into the encoded message. Must not know: entities; who asks.

The service gives such a message a GUID, and clients rely on that: JavaScript's cannot settle a message
without an id whose lock it renews by itself. Source: AMQP 3.2.4; observed with @azure/service-bus 7.9.5.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Callable

from peeklock.amqp.codec import decode, read_list_header
from peeklock.amqp.encoding import compound8_or_32
from peeklock.amqp.messaging import PROPERTIES, Sections

_SECTION = bytes((0x00, 0x53, PROPERTIES))
_LIST8, _LIST32 = 0xC0, 0xD0

_DIGITS = b"\xa1\x20"
"""How a text of 32 characters begins."""

_ID_BYTES = 34
_ONLY_AN_ID = _SECTION + bytes((_LIST8, 1 + _ID_BYTES, 1))


def with_id(sections: Sections, tokens: Callable[[], bytes]) -> tuple[Sections, bytes]:
    """Write an id of 32 hexadecimal digits into a message that lacks one; all else stays as it is.

    Return the message with it, and the encoded id.

    Args:
        sections: the message; `lacks_message_id` holds.
        tokens: gives 16 random bytes.
    """
    message_id = _DIGITS + hexlify(tokens())
    payload, start, end = sections.payload, sections.bare_offset, sections.properties_end
    if end == start:
        section = _ONLY_AN_ID + message_id
    else:
        position, _, count = read_list_header(payload, decode(payload, start + 1)[1])
        if count:
            position += 1  # the null goes
        changed = bytearray(_SECTION)
        compound8_or_32(changed, _LIST8, _LIST32, max(count, 1), message_id + payload[position:end])
        section = bytes(changed)
    growth = len(section) - (end - start)
    written = Sections(
        b"".join((payload[:start], section, payload[end:])),
        sections.header_end,
        sections.delivery_annotations_end,
        start,
        end + growth,
        sections.body_offset + growth,
        sections.body_end + growth,
        sections.footer_end + growth,
    )
    return written, message_id
