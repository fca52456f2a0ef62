"""Values as the AMQP library of .NET writes them.

Owns: the width of each value. The types are those of `peeklock.amqp.types`; a plain int is none. Must not
know performatives. Source: frames of client 7.19.0.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

from peeklock.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal128,
    Described,
    Encoded,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)


def encode(value: Any) -> bytes:
    """Return the bytes of a value. Raises: KeyError for a type that the client does not send."""
    return _WRITERS[type(value)](value)


def composite(code: int, fields: list[Any]) -> bytes:
    """Return a composite, with every field that is given: nulls are written, also the last ones."""
    return bytes((0x00, 0x53, code)) + encode(fields)


def _sized(code8: int, code32: int, data: bytes) -> bytes:
    if len(data) <= 255:
        return bytes((code8, len(data))) + data
    return struct.pack(">BI", code32, len(data)) + data


def _compound(code8: int, code32: int, count: int, data: bytes) -> bytes:
    # The size counts the byte of the count.
    if len(data) < 255 and count <= 255:
        return bytes((code8, len(data) + 1, count)) + data
    return struct.pack(">BII", code32, len(data) + 4, count) + data


def _list(value: list[Any]) -> bytes:
    return _compound(0xC0, 0xD0, len(value), b"".join(map(encode, value))) if value else b"\x45"


def _map(value: dict[Any, Any]) -> bytes:
    items = b"".join(encode(key) + encode(item) for key, item in value.items())
    return _compound(0xC1, 0xD1, 2 * len(value), items)


def _array(value: Array) -> bytes:
    code, pack = _ELEMENTS[value.element_type]
    return _compound(0xE0, 0xF0, len(value), bytes((code,)) + b"".join(map(pack, value)))


def _short_or_long(zero: int | None, short: int, long: int, packed: str) -> Callable[[int], bytes]:
    small, signed = ("b", True) if packed in "iq" else ("B", False)

    def write(value: int) -> bytes:
        if zero is not None and value == 0:
            return bytes((zero,))
        if (-128 <= value <= 127) if signed else value <= 255:
            return struct.pack(f">B{small}", short, value)
        return struct.pack(f">B{packed}", long, value)

    return write


def _fixed(code: int, packed: str) -> Callable[[Any], bytes]:
    return lambda value: struct.pack(f">B{packed}", code, value)


_WRITERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    UByte: _fixed(0x50, "B"),
    UShort: _fixed(0x60, "H"),
    UInt: _short_or_long(0x43, 0x52, 0x70, "I"),
    ULong: _short_or_long(0x44, 0x53, 0x80, "Q"),
    Byte: _fixed(0x51, "b"),
    Short: _fixed(0x61, "h"),
    Int: _short_or_long(None, 0x54, 0x71, "i"),
    Long: _short_or_long(None, 0x55, 0x81, "q"),
    Timestamp: _fixed(0x83, "q"),
    Float: _fixed(0x72, "f"),
    float: _fixed(0x82, "d"),
    Char: lambda value: b"\x73" + value.encode("utf-32-be"),
    Decimal128: lambda value: b"\x94" + value,
    uuid.UUID: lambda value: b"\x98" + value.bytes,
    bytes: lambda value: _sized(0xA0, 0xB0, value),
    str: lambda value: _sized(0xA1, 0xB1, value.encode()),
    Symbol: lambda value: _sized(0xA3, 0xB3, value.encode("ascii")),
    Encoded: bytes,
    Described: lambda value: b"\x00" + encode(value.descriptor) + encode(value.value),
    list: _list,
    dict: _map,
    Array: _array,
}

_ELEMENTS: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    Long: (0x81, struct.Struct(">q").pack),
    uuid.UUID: (0x98, lambda value: value.bytes),
}
"""Return an element of an array, which has the longest form."""
