"""Messages in an answer to a peek, or to a read of a claim, taken from its bytes.

Owns the walk over `{"messages": [{"message": binary}, ...]}` as brokers encode it. Any other answer, such as
one with lock tokens, and damaged bytes are left to the codec. Source: wire contract 5.2 (peek-message).
"""

from __future__ import annotations

import struct
from typing import Final

from peeklock.amqp.codec import ELEMENTS_MAX, DecodeError, iter_map_raw, read_list_header

_VALUE: Final = b"\x00\x53\x77"
"""Descriptor of a body that is an AMQP value."""

_LONG = struct.Struct(">BI14sI").unpack_from
"""A map with a long message: constructor, size in bytes, `_LONG_PAIR`, size of the message in bytes."""
_LONG_PAIR: Final = b"\x00\x00\x00\x02\xa1\x07message\xb0"
_SHORT_PAIR: Final = b"\x02\xa1\x07message\xa0"
"""Count of elements, key, and constructor of a binary."""

_COUNT_MAX: Final = ELEMENTS_MAX // 4
"""Messages in an answer; the codec counts three values for each, and refuses more than `ELEMENTS_MAX`."""


def found_messages(payload: bytes, position: int) -> list[bytes] | None:
    """Return the messages of an answer whose body begins at `position`; None = it has to be decoded."""
    if payload[position : position + 3] != _VALUE:
        return None
    try:
        pairs = [*iter_map_raw(payload, position + 3)]
        if len(pairs) != 1 or pairs[0][0] != "messages":
            return None
        at, end, count = read_list_header(payload, pairs[0][2])
        return _messages(payload, at, end, count) if count <= _COUNT_MAX else None
    except (DecodeError, IndexError, struct.error):
        return None


def _messages(payload: bytes, at: int, end: int, count: int) -> list[bytes] | None:
    """Return the messages of a list's elements, from `at` to `end`."""
    messages: list[bytes] = []
    for _ in range(count):
        code, map_bytes, pair, size = _LONG(payload, at)
        if code == 0xD1 and pair == _LONG_PAIR and map_bytes == 18 + size:
            start = at + 23
        elif code == 0xC1 and payload[at + 2 : at + 13] == _SHORT_PAIR:
            start, size = at + 14, payload[at + 13]
            if payload[at + 1] != 12 + size:
                return None
        else:
            return None
        at = start + size
        messages.append(payload[start:at])
    return messages if at == end else None
