"""Encoder of the AMQP 1.0 type system.

Callers wrap integers whose AMQP type matters (`UInt`, `Int`...): a plain `int` is sent as a long.
Source: OASIS AMQP 1.0, part 1 (Types) sections 1.2 and 1.6.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, Final

from .types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
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

Encoder = Callable[[bytearray, Any], None]


class EncodeError(ValueError):
    """The value cannot be encoded: a type without AMQP form, or out of range. A fault of the caller."""


def encode(value: Any) -> bytes:
    """Encode `value`, constructor included.

    Raises:
        EncodeError: a type without AMQP form, or a number out of range.
    """
    out = bytearray()
    encode_into(out, value)
    return bytes(out)


def encode_into(out: bytearray | list[bytes], value: Any) -> None:
    """Append the encoded `value` to a buffer, or to a list of pieces.

    Raises: EncodeError, as `encode`.
    """
    if isinstance(out, list):
        out.append(encode(value))
        return
    try:
        _encoder_of(type(value))(out, value)
    except (struct.error, UnicodeEncodeError, OverflowError) as error:
        raise EncodeError(f"{value!r} cannot be encoded as {type(value).__name__}: {error}") from None


def compound8_or_32(out: bytearray, code8: int, code32: int, count: int, body: bytes | bytearray) -> None:
    """Append a list or map of `count` elements whose encoded elements are `body`, in the smaller form."""
    size = len(body)
    if size < 255 and count < 256:
        out += bytes((code8, size + 1, count))
    else:
        out.append(code32)
        out += _PACK_2U32(size + 4, count)
    out += body


_PACK_U32: Final = struct.Struct(">I").pack
_PACK_2U32: Final = struct.Struct(">II").pack
_PACK_CODE_U8: Final = struct.Struct(">BB").pack
_PACK_CODE_U32: Final = struct.Struct(">BI").pack
_PACK_CODE_U64: Final = struct.Struct(">BQ").pack
_PACK_CODE_I8: Final = struct.Struct(">Bb").pack
_PACK_CODE_I32: Final = struct.Struct(">Bi").pack


def _number(code: int, layout: str) -> Encoder:
    pack = struct.Struct(">B" + layout).pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(code, value)

    return write


def _null(out: bytearray, value: Any) -> None:
    out.append(0x40)


def _boolean(out: bytearray, value: bool) -> None:
    out.append(0x41 if value else 0x42)


def _uint(out: bytearray, value: int) -> None:
    if value == 0:
        out.append(0x43)
    elif 0 < value < 256:
        out += _PACK_CODE_U8(0x52, value)
    else:
        out += _PACK_CODE_U32(0x70, value)


def _ulong(out: bytearray, value: int) -> None:
    if value == 0:
        out.append(0x44)
    elif 0 < value < 256:
        out += _PACK_CODE_U8(0x53, value)
    else:
        out += _PACK_CODE_U64(0x80, value)


def _int(out: bytearray, value: int) -> None:
    if -128 <= value < 128:
        out += _PACK_CODE_I8(0x54, value)
    else:
        out += _PACK_CODE_I32(0x71, value)


def _char(out: bytearray, value: str) -> None:
    if len(value) != 1:
        raise EncodeError(f"{value!r} is not one character")
    out += _PACK_CODE_U32(0x73, ord(value))


def _fixed(code: int, size: int) -> Encoder:
    def write(out: bytearray, value: bytes) -> None:
        if len(value) != size:
            raise EncodeError(f"{len(value)} bytes where {size} belong")
        out.append(code)
        out += value

    return write


def _uuid(out: bytearray, value: uuid.UUID) -> None:
    out.append(0x98)
    out += value.bytes


def _binary(out: bytearray, value: bytes | bytearray | memoryview) -> None:
    _variable(out, value, len(value), 0xA0)


def _string(out: bytearray, value: str) -> None:
    data = value.encode("utf-8")
    _variable(out, data, len(data), 0xA1)


def _symbol(out: bytearray, value: str) -> None:
    data = value.encode("ascii")
    _variable(out, data, len(data), 0xA3)


def _variable(out: bytearray, data: bytes | bytearray | memoryview, size: int, code8: int) -> None:
    if size < 256:
        out += _PACK_CODE_U8(code8, size)
    else:
        out += _PACK_CODE_U32(code8 + 0x10, size)
    out += data


def _list(out: bytearray, value: list[Any] | tuple[Any, ...]) -> None:
    if not value:
        out.append(0x45)
        return
    compound8_or_32(out, 0xC0, 0xD0, len(value), _items(value))


def _map(out: bytearray, value: dict[Any, Any]) -> None:
    compound8_or_32(out, 0xC1, 0xD1, 2 * len(value), _pairs(value))


def _array(out: bytearray, value: Array) -> None:
    compound8_or_32(out, 0xE0, 0xF0, len(value), _elements(value))


def _items(value: list[Any] | tuple[Any, ...]) -> bytearray:
    body = bytearray()
    for item in value:
        _encoder_of(type(item))(body, item)
    return body


def _pairs(value: dict[Any, Any]) -> bytearray:
    body = bytearray()
    for key, item in value.items():
        _encoder_of(type(key))(body, key)
        _encoder_of(type(item))(body, item)
    return body


def _described(out: bytearray, value: Described) -> None:
    out.append(0x00)
    _descriptor(out, value.descriptor)
    inner = value.value
    _encoder_of(type(inner))(out, inner)


def _descriptor(out: bytearray, descriptor: Any) -> None:
    if type(descriptor) is int:
        _ulong(out, descriptor)  # a descriptor's number is always an unsigned long (AMQP 1.1.2)
    else:
        _encoder_of(type(descriptor))(out, descriptor)


def _encoded(out: bytearray, value: Encoded) -> None:
    out += value


def _elements(value: Array) -> bytearray:
    """Return the shared constructor of an array, in its widest form, and the bare elements."""
    body = bytearray()
    for descriptor in value.descriptors:
        body.append(0x00)
        _descriptor(body, descriptor)
    kind = value.element_type
    if kind is type(None):
        body.append(0x40)
    elif kind in _ARRAY_FIXED:
        code, pack = _ARRAY_FIXED[kind]
        body.append(code)
        for item in value:
            body += pack(item)
    elif kind in _ARRAY_VARIABLE:
        code, convert = _ARRAY_VARIABLE[kind]
        pieces = [convert(item) for item in value]
        short = all(len(piece) < 256 for piece in pieces)
        body.append(code if short else code + 0x10)
        for piece in pieces:
            body += bytes((len(piece),)) if short else _PACK_U32(len(piece))
            body += piece
    elif kind in _ARRAY_COMPOUND:
        code, encoded, per_item = _ARRAY_COMPOUND[kind]
        body.append(code)
        for item in value:
            inner = encoded(item)
            body += _PACK_2U32(len(inner) + 4, per_item * len(item))
            body += inner
    else:
        raise EncodeError(f"an array of {kind.__name__} cannot be encoded")
    return body


def _pack_boolean(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def _pack_char(value: str) -> bytes:
    return _PACK_U32(ord(value))


def _pack_uuid(value: uuid.UUID) -> bytes:
    return value.bytes


def _ascii(value: str) -> bytes:
    return value.encode("ascii")


def _sized(size: int) -> Callable[[Any], bytes]:
    def convert(value: bytes) -> bytes:
        if len(value) != size:
            raise EncodeError(f"{len(value)} bytes where {size} belong")
        return bytes(value)

    return convert


# Every type with a code and a layout that are the same by itself and in an array. Source: AMQP 1.6.
# A long never has the small form 0x55: wire contract 0.4.
_NUMBERS: Final[dict[type, tuple[int, str]]] = {
    UByte: (0x50, "B"),
    UShort: (0x60, "H"),
    Byte: (0x51, "b"),
    Short: (0x61, "h"),
    Long: (0x81, "q"),
    int: (0x81, "q"),
    Timestamp: (0x83, "q"),
    Float: (0x72, "f"),
    float: (0x82, "d"),
}
_ARRAY_FIXED: Final[dict[type, tuple[int, Callable[[Any], bytes]]]] = {
    **{kind: (code, struct.Struct(">" + layout).pack) for kind, (code, layout) in _NUMBERS.items()},
    bool: (0x56, _pack_boolean),
    UInt: (0x70, _PACK_U32),
    ULong: (0x80, struct.Struct(">Q").pack),
    Int: (0x71, struct.Struct(">i").pack),
    Decimal32: (0x74, _sized(4)),
    Decimal64: (0x84, _sized(8)),
    Decimal128: (0x94, _sized(16)),
    Char: (0x73, _pack_char),
    uuid.UUID: (0x98, _pack_uuid),
}
_ARRAY_VARIABLE: Final[dict[type, tuple[int, Callable[[Any], bytes]]]] = {
    bytes: (0xA0, bytes),
    str: (0xA1, str.encode),
    Symbol: (0xA3, _ascii),
}
_ARRAY_COMPOUND: Final[dict[type, tuple[int, Callable[[Any], bytearray], int]]] = {
    list: (0xD0, _items, 1),
    dict: (0xD1, _pairs, 2),
    Array: (0xF0, _elements, 1),
}
_ENCODERS: Final[dict[type, Encoder]] = {
    **{kind: _number(code, layout) for kind, (code, layout) in _NUMBERS.items()},
    type(None): _null,
    bool: _boolean,
    str: _string,
    bytes: _binary,
    bytearray: _binary,
    memoryview: _binary,
    uuid.UUID: _uuid,
    list: _list,
    tuple: _list,
    dict: _map,
    UInt: _uint,
    ULong: _ulong,
    Int: _int,
    Char: _char,
    Symbol: _symbol,
    Decimal32: _fixed(0x74, 4),
    Decimal64: _fixed(0x84, 8),
    Decimal128: _fixed(0x94, 16),
    Array: _array,
    Described: _described,
    Encoded: _encoded,
}


def _encoder_of(kind: type) -> Encoder:
    encoder = _ENCODERS.get(kind)
    if encoder is not None:
        return encoder
    for parent in kind.__mro__[1:]:
        encoder = _ENCODERS.get(parent)
        if encoder is not None:
            return encoder  # a subclass such as an IntEnum or StrEnum member goes out as its value
    raise EncodeError(f"a {kind.__name__} has no AMQP type")
