"""Decoder of the AMQP 1.0 type system; the encoder of `encoding` is re-exported here.

Limits keep a hostile value from costing more than its size. Bad bytes raise `DecodeError` and nothing else.
`decode` returns plain Python values (every integer an `int`); `decode_typed` returns the wrapper types of
`types`, so that encoding the result again yields the same AMQP type.
Source: OASIS AMQP 1.0, part 1 (Types) sections 1.2 and 1.6.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

from .encoding import EncodeError as EncodeError
from .encoding import encode as encode
from .encoding import encode_into as encode_into
from .types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
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

DEPTH_MAX: Final = 64
"""Levels of nested lists, maps, arrays and descriptors. Source: the official Python client's decoder."""

ELEMENTS_MAX: Final = 1_000_000
"""Values in one decoded value. Our choice: some 60 MB of objects at most, far above any real message."""


class DecodeError(Exception):
    """The bytes are not a valid AMQP 1.0 encoding, or exceed a limit of the decoder."""


class TooManyElements(DecodeError):
    """The value contains more values than `elements_max`."""


_U32: Final = struct.Struct(">I").unpack_from

_DESCRIBED: Final = 0x00
_LIST0: Final = 0x45
_ZERO_WIDTH: Final = frozenset((0x40, 0x41, 0x42, 0x43, 0x44, 0x45))

Buffer = bytes | bytearray | memoryview
"""Input of `decode`; anything but `bytes` is copied first."""

Scalar = Callable[[bytes, int], tuple[Any, int]]
"""Reader of one primitive: (buffer, offset after the constructor) to (value, offset after the value)."""


def decode(
    buf: Buffer, offset: int = 0, *, depth_max: int = DEPTH_MAX, elements_max: int = ELEMENTS_MAX
) -> tuple[Any, int]:
    """Decode the value at `offset` into plain Python values; return it and the offset after it.

    Raises:
        DecodeError: invalid or truncated bytes, or more than `depth_max` levels or `elements_max` values.
    """
    return _decode(buf, offset, _PLAIN, depth_max, elements_max)


def decode_typed(
    buf: Buffer, offset: int = 0, *, depth_max: int = DEPTH_MAX, elements_max: int = ELEMENTS_MAX
) -> tuple[Any, int]:
    """Decode like `decode`, but into the wrapper types, so that the AMQP type of every value is kept."""
    return _decode(buf, offset, _TYPED, depth_max, elements_max)


def skip(buf: bytes, offset: int = 0) -> int:
    """Return the offset after the value at `offset` without decoding it.

    Raises:
        DecodeError: invalid constructor or truncated value.
    """
    try:
        code = buf[offset]
        offset += 1
        levels = 0
        while code == _DESCRIBED:
            levels += 1
            if levels > DEPTH_MAX:
                raise DecodeError(f"more than {DEPTH_MAX} descriptors around one value")
            # A described descriptor is legal and never seen; the full decoder has its depth limit.
            offset = skip(buf, offset) if buf[offset] != _DESCRIBED else decode(buf, offset)[1]
            code = buf[offset]
            offset += 1
        width = code >> 4
        if width == 0x4:
            end = offset
        elif width in (0xA, 0xC, 0xE):
            end = offset + 1 + buf[offset]
        elif width in (0xB, 0xD, 0xF):
            end = offset + 4 + int(_U32(buf, offset)[0])
        elif width in _FIXED_WIDTHS:
            end = offset + _FIXED_WIDTHS[width]
        else:
            raise DecodeError(f"unknown constructor 0x{code:02x}")
    except (IndexError, struct.error):
        raise DecodeError("value is truncated") from None
    if code not in _CODES:
        raise DecodeError(f"unknown constructor 0x{code:02x}")
    if end > len(buf):
        raise DecodeError("value is truncated")
    return end


def iter_map_raw(buf: bytes, offset: int = 0) -> Iterator[tuple[Any, int, int, int]]:
    """Yield (key, its start, start of the value, end of the value) for each pair of the map at `offset`.

    Values are not decoded, so that pairs can be spliced into another map bit for bit.

    Raises:
        DecodeError: not a map, or invalid; a key that is a list, map or array.
    """
    start, end, count = _compound(buf, offset, 0xC1, 0xD1, "map")
    if count % 2:
        raise DecodeError(f"map with an odd number of elements ({count})")
    position = start
    for _ in range(count // 2):
        key, value_start = decode(buf, position, elements_max=0)
        value_end = skip(buf, value_start)
        if value_end > end:
            raise DecodeError("map element exceeds its map")
        yield key, position, value_start, value_end
        position = value_end
    if position != end:
        raise DecodeError("map size does not match its elements")


def read_list_header(buf: bytes, offset: int) -> tuple[int, int, int]:
    """Return (start of the first element, end, number of elements) of the list at `offset`.

    Raises:
        DecodeError: not a list, or truncated.
    """
    if offset < len(buf) and buf[offset] == _LIST0:
        return offset + 1, offset + 1, 0
    return _compound(buf, offset, 0xC0, 0xD0, "list")


def _compound(buf: bytes, offset: int, code8: int, code32: int, name: str) -> tuple[int, int, int]:
    try:
        code = buf[offset]
        if code == code8:
            start, end, count = offset + 3, offset + 2 + buf[offset + 1], buf[offset + 2]
        elif code == code32:
            start, end = offset + 9, offset + 5 + int(_U32(buf, offset + 1)[0])
            count = int(_U32(buf, offset + 5)[0])
        else:
            raise DecodeError(f"constructor 0x{code:02x} instead of a {name}")
    except (IndexError, struct.error):
        raise DecodeError(f"{name} is truncated") from None
    if start > end or end > len(buf) or count > end - start:
        raise DecodeError(f"{name} of {count} elements does not fit its size")
    return start, end, count


def _decode(
    data: Buffer, offset: int, table: list[Scalar | None], depth_max: int, elements_max: int
) -> tuple[Any, int]:
    buf = data if isinstance(data, bytes) else bytes(data)
    try:
        scalar = table[buf[offset]]
        if scalar is not None:
            value, end = scalar(buf, offset + 1)
        else:
            value, end = _Reader(buf, table, elements_max).value(offset, depth_max)
    except (IndexError, struct.error):
        raise DecodeError("value is truncated") from None
    except UnicodeDecodeError as error:
        raise DecodeError(f"text is not valid: {error.reason}") from None
    if end > len(buf):
        raise DecodeError("value is truncated")
    return value, end


class _Reader:
    """State of one decoding: buffer, table of scalar readers, number of elements still allowed."""

    __slots__ = ("buf", "left", "table")

    def __init__(self, buf: bytes, table: list[Scalar | None], elements_max: int) -> None:
        self.buf = buf
        self.table = table
        self.left = elements_max

    def value(self, offset: int, depth: int) -> tuple[Any, int]:
        """Read any value at `offset`, nested at most `depth` levels."""
        code = self.buf[offset]
        scalar = self.table[code]
        if scalar is not None:
            return scalar(self.buf, offset + 1)
        if depth <= 0:
            raise DecodeError("value is nested too deeply")
        if code == _DESCRIBED:
            descriptor, offset = self.value(offset + 1, depth - 1)
            if isinstance(descriptor, (list, dict)):
                raise DecodeError("descriptor is not a primitive value")
            inner, offset = self.value(offset, depth - 1)
            return Described(descriptor, inner), offset
        return self.compound(code, offset + 1, depth - 1)

    def compound(self, code: int, offset: int, depth: int) -> tuple[Any, int]:
        """Read a list, map or array whose constructor was `code`."""
        buf = self.buf
        if code in (0xC0, 0xC1, 0xE0):
            end, count, start = offset + 1 + buf[offset], buf[offset + 1], offset + 2
        elif code in (0xD0, 0xD1, 0xF0):
            end, count, start = offset + 4 + _U32(buf, offset)[0], _U32(buf, offset + 4)[0], offset + 8
        else:
            raise DecodeError(f"unknown constructor 0x{code:02x}")
        if start > end or end > len(buf):
            raise DecodeError("compound value is truncated")
        self.left -= count
        if self.left < 0:
            raise TooManyElements("value has too many elements")
        value: Any
        if code in (0xE0, 0xF0):
            value, position = self.read_array(start, end, count, depth)
        elif count > end - start:
            raise DecodeError(f"{count} elements do not fit in {end - start} bytes")
        elif code in (0xC1, 0xD1):
            value, position = self.read_map(start, count, depth)
        else:
            value, position = self.read_list(start, count, depth)
        if position != end:
            raise DecodeError("size of a compound value does not match its elements")
        return value, end

    def read_list(self, position: int, count: int, depth: int) -> tuple[list[Any], int]:
        """Read `count` values."""
        items: list[Any] = []
        for _ in range(count):
            item, position = self.value(position, depth)
            items.append(item)
        return items, position

    def read_map(self, position: int, count: int, depth: int) -> tuple[dict[Any, Any], int]:
        """Read `count` / 2 pairs; the last value of a repeated key wins."""
        if count % 2:
            raise DecodeError(f"map with an odd number of elements ({count})")
        pairs: dict[Any, Any] = {}
        for _ in range(count // 2):
            key, position = self.value(position, depth)
            item, position = self.value(position, depth)
            try:
                pairs[key] = item
            except TypeError:
                raise DecodeError(f"{type(key).__name__} as the key of a map") from None
        return pairs, position

    def read_array(self, position: int, end: int, count: int, depth: int) -> tuple[Array, int]:
        """Read the shared constructor and `count` values."""
        buf = self.buf
        if position == end and count == 0:
            return Array(type(None)), end  # some peers omit the constructor of an empty array
        descriptors: list[Any] = []
        code = buf[position]
        position += 1
        while code == _DESCRIBED:
            depth -= 1
            if depth <= 0:
                raise DecodeError("value is nested too deeply")
            descriptor, position = self.value(position, depth)
            if isinstance(descriptor, (list, dict)):
                raise DecodeError("descriptor is not a primitive value")
            descriptors.append(descriptor)
            code = buf[position]
            position += 1
        element_type = _ELEMENT_TYPES.get(code)
        if element_type is None:
            raise DecodeError(f"unknown constructor 0x{code:02x} in an array")
        if count > end - position and code not in _ZERO_WIDTH:
            raise DecodeError(f"{count} array elements do not fit in {end - position} bytes")
        items = Array(element_type, (), tuple(descriptors))
        scalar = self.table[code]
        if scalar is not None:
            for _ in range(count):
                item, position = scalar(buf, position)
                items.append(item)
        else:
            if depth <= 0:
                raise DecodeError("value is nested too deeply")
            for _ in range(count):
                item, position = self.compound(code, position, depth - 1)
                items.append(item)
        return items, position


def _constant(value: Any) -> Scalar:
    def read(buf: bytes, at: int) -> tuple[Any, int]:
        return value, at

    return read


def _number(layout: str) -> Scalar:
    packed = struct.Struct(">" + layout)
    unpack, size = packed.unpack_from, packed.size

    def read(buf: bytes, at: int) -> tuple[Any, int]:
        return unpack(buf, at)[0], at + size

    return read


def _bytes_as(kind: type[bytes], size: int) -> Scalar:
    def read(buf: bytes, at: int) -> tuple[Any, int]:
        return kind(_take(buf, at, size)), at + size

    return read


def _wrapped(wrapper: type, plain: Scalar) -> Scalar:
    def read(buf: bytes, at: int) -> tuple[Any, int]:
        value, end = plain(buf, at)
        return wrapper(value), end

    return read


def _read_boolean(buf: bytes, at: int) -> tuple[Any, int]:
    value = buf[at]
    if value > 1:
        raise DecodeError(f"boolean with the value {value}")
    return value == 1, at + 1


def _read_empty_list(buf: bytes, at: int) -> tuple[Any, int]:
    return [], at


def _read_u8(buf: bytes, at: int) -> tuple[Any, int]:
    return buf[at], at + 1


def _read_char(buf: bytes, at: int) -> tuple[Any, int]:
    code = _U32(buf, at)[0]
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise DecodeError(f"0x{code:x} is not a Unicode character")
    return chr(code), at + 4


def _read_uuid(buf: bytes, at: int) -> tuple[Any, int]:
    return uuid.UUID(bytes=_take(buf, at, 16)), at + 16


def _read_binary8(buf: bytes, at: int) -> tuple[Any, int]:
    end = at + 1 + buf[at]
    return _take(buf, at + 1, end - at - 1), end


def _read_binary32(buf: bytes, at: int) -> tuple[Any, int]:
    size = _U32(buf, at)[0]
    return _take(buf, at + 4, size), at + 4 + size


def _read_string8(buf: bytes, at: int) -> tuple[Any, int]:
    end = at + 1 + buf[at]
    return buf[at + 1 : end].decode("utf-8"), _within(buf, end)


def _read_string32(buf: bytes, at: int) -> tuple[Any, int]:
    end = _within(buf, at + 4 + _U32(buf, at)[0])
    return buf[at + 4 : end].decode("utf-8"), end


def _read_symbol8(buf: bytes, at: int) -> tuple[Any, int]:
    end = at + 1 + buf[at]
    return Symbol(buf[at + 1 : end].decode("ascii")), _within(buf, end)


def _read_symbol32(buf: bytes, at: int) -> tuple[Any, int]:
    end = _within(buf, at + 4 + _U32(buf, at)[0])
    return Symbol(buf[at + 4 : end].decode("ascii")), end


def _take(buf: bytes, at: int, size: int) -> bytes:
    return buf[at : _within(buf, at + size)]


def _within(buf: bytes, end: int) -> int:
    if end > len(buf):
        raise DecodeError("value is truncated")
    return end


# constructor: (reader of the plain value, type of an array's elements). Source: AMQP 1.6.1-1.6.24.
_SCALARS: Final[dict[int, tuple[Scalar, type]]] = {
    0x40: (_constant(None), type(None)),
    0x41: (_constant(True), bool),
    0x42: (_constant(False), bool),
    0x56: (_read_boolean, bool),
    0x50: (_read_u8, UByte),
    0x60: (_number("H"), UShort),
    0x43: (_constant(0), UInt),
    0x52: (_read_u8, UInt),
    0x70: (_number("I"), UInt),
    0x44: (_constant(0), ULong),
    0x53: (_read_u8, ULong),
    0x80: (_number("Q"), ULong),
    0x51: (_number("b"), Byte),
    0x61: (_number("h"), Short),
    0x54: (_number("b"), Int),
    0x71: (_number("i"), Int),
    0x55: (_number("b"), Long),
    0x81: (_number("q"), Long),
    0x72: (_number("f"), Float),
    0x82: (_number("d"), float),
    0x74: (_bytes_as(Decimal32, 4), Decimal32),
    0x84: (_bytes_as(Decimal64, 8), Decimal64),
    0x94: (_bytes_as(Decimal128, 16), Decimal128),
    0x73: (_read_char, Char),
    0x83: (_wrapped(Timestamp, _number("q")), Timestamp),
    0x98: (_read_uuid, uuid.UUID),
    0xA0: (_read_binary8, bytes),
    0xB0: (_read_binary32, bytes),
    0xA1: (_read_string8, str),
    0xB1: (_read_string32, str),
    0xA3: (_read_symbol8, Symbol),
    0xB3: (_read_symbol32, Symbol),
    0x45: (_read_empty_list, list),
}
_KEPT_AS_READ: Final = (
    type(None), bool, float, bytes, str, Symbol, Timestamp, uuid.UUID, list, Decimal32, Decimal64, Decimal128
)  # fmt: skip
_ELEMENT_TYPES: Final[dict[int, type]] = {code: kind for code, (_, kind) in _SCALARS.items()}
_ELEMENT_TYPES.update({0xC0: list, 0xD0: list, 0xC1: dict, 0xD1: dict, 0xE0: Array, 0xF0: Array})
_CODES: Final = frozenset(_ELEMENT_TYPES)
_FIXED_WIDTHS: Final = {0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}

_PLAIN: Final[list[Scalar | None]] = [None] * 256
_TYPED: Final[list[Scalar | None]] = [None] * 256
for _code, (_reader, _kind) in _SCALARS.items():
    _PLAIN[_code] = _reader
    _TYPED[_code] = _reader if _kind in _KEPT_AS_READ else _wrapped(_kind, _reader)
