"""The type system: round trips of every type, limits, and what is no encoding at all."""

from __future__ import annotations

import math
import struct
import uuid
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peeklock.amqp import codec
from peeklock.amqp.codec import DecodeError, EncodeError, decode, decode_typed, encode, iter_map_raw, skip
from peeklock.amqp.types import (
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

quick = settings(deadline=None, max_examples=60)  # the machine may be slow and shared


def _integers(kind: type, bits: int, signed: bool) -> st.SearchStrategy[Any]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(low, high).map(kind)


SCALARS: dict[type, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    UByte: _integers(UByte, 8, False),
    UShort: _integers(UShort, 16, False),
    UInt: _integers(UInt, 32, False),
    ULong: _integers(ULong, 64, False),
    Byte: _integers(Byte, 8, True),
    Short: _integers(Short, 16, True),
    Int: _integers(Int, 32, True),
    Long: _integers(Long, 64, True),
    Timestamp: _integers(Timestamp, 64, True),
    Float: st.floats(width=32, allow_nan=False).map(Float),
    float: st.floats(allow_nan=False),
    Char: st.characters(exclude_categories=["Cs"]).map(Char),
    Decimal32: st.binary(min_size=4, max_size=4).map(Decimal32),
    Decimal64: st.binary(min_size=8, max_size=8).map(Decimal64),
    Decimal128: st.binary(min_size=16, max_size=16).map(Decimal128),
    uuid.UUID: st.uuids(),
    bytes: st.binary(max_size=300),
    str: st.text(max_size=300),
    Symbol: st.text(st.characters(max_codepoint=127), max_size=300).map(Symbol),
}
scalars = st.one_of(st.none(), *SCALARS.values())
# Keys of one type, so that no two are equal to Python and different to AMQP (True and 1).
keys = st.sampled_from(["a", "b", "key", "longer key"]) | st.text(max_size=12)


def _arrays(element: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    plain = st.sampled_from(list(SCALARS)).flatmap(
        lambda kind: st.lists(SCALARS[kind], max_size=5).map(lambda items: Array.of(kind, items))
    )
    described = st.lists(st.text(max_size=5), min_size=1, max_size=3).map(
        lambda items: Array(str, items, (Symbol("x:y"), ULong(5)))
    )
    nested = st.lists(plain, min_size=1, max_size=3).map(lambda items: Array.of(Array, items))
    lists = st.lists(st.lists(element, max_size=3), min_size=1, max_size=3).map(
        lambda items: Array.of(list, items)
    )
    maps = st.lists(st.dictionaries(keys, element, max_size=3), min_size=1, max_size=3).map(
        lambda items: Array.of(dict, items)
    )
    return st.one_of(plain, described, nested, lists, maps)


values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(keys, inner, max_size=5),
        _arrays(inner),
        st.builds(Described, st.sampled_from([Symbol("a:b"), ULong(7), ULong(0x137000000C)]), inner),
    ),
    max_leaves=12,
)


def same(first: Any, second: Any) -> bool:
    """Compare with the types, which `==` does not look at."""
    if type(first) is not type(second):
        return False
    if isinstance(first, Array):
        alike = first.element_type is second.element_type and same(first.descriptors, second.descriptors)
        return alike and len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, Described):
        return same(first.descriptor, second.descriptor) and same(first.value, second.value)
    return bool(first == second)


@quick
@given(values)
def test_every_value_comes_back_with_its_type(value: Any) -> None:
    data = encode(value)
    decoded, end = decode_typed(data)
    assert end == len(data)
    assert same(decoded, value)


@quick
@given(values)
def test_encoding_a_decoded_value_gives_the_same_bytes(value: Any) -> None:
    data = encode(value)
    assert encode(decode_typed(data)[0]) == data


@quick
@given(values)
def test_skip_and_decode_agree_on_the_end(value: Any) -> None:
    data = encode(value)
    assert skip(data + b"\x40") == len(data)
    assert decode(data + b"\x40")[1] == len(data)


@quick
@given(values)
def test_plain_decoding_gives_equal_values(value: Any) -> None:
    assert decode(encode(value))[0] == value


@quick
@given(values, st.data())
def test_a_value_cut_short_is_a_decode_error(value: Any, data: st.DataObject) -> None:
    whole = encode(value)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(DecodeError):
        decode(cut)
    with pytest.raises(DecodeError):
        skip(cut)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (None, "40"),
        (True, "41"),
        (False, "42"),
        (UInt(0), "43"),
        (UInt(255), "52ff"),
        (UInt(256), "7000000100"),
        (ULong(0), "44"),
        (ULong(36), "5324"),
        (ULong(256), "800000000000000100"),
        (UByte(0), "5000"),
        (UShort(4999), "601387"),
        (Byte(-1), "51ff"),
        (Short(-2), "61fffe"),
        (Int(200), "71000000c8"),
        (Int(5), "5405"),
        (Long(1), "810000000000000001"),
        (1, "810000000000000001"),
        (Timestamp(1), "830000000000000001"),
        (Float(1.0), "723f800000"),
        (1.0, "823ff0000000000000"),
        (Char("x"), "7300000078"),
        (uuid.UUID("00112233-4455-6677-8899-aabbccddeeff"), "9800112233445566778899aabbccddeeff"),
        (b"ab", "a0026162"),
        ("é", "a102c3a9"),
        (Symbol("s"), "a30173"),
        ([], "45"),
        ([None], "c0020140"),
        ({}, "c10100"),
        (Array.of(Symbol, [Symbol("A"), Symbol("BC")]), "e00702a30141024243"),
        (Array.of(Long, [1]), "e00a01810000000000000001"),
        (Described(0x24, []), "00532445"),
    ],
)
def test_encodings_are_those_of_the_contract(value: Any, data: str) -> None:
    """Source: AMQP 1.6; wire contract 0.4 for the widths."""
    assert encode(value).hex() == data
    assert decode(bytes.fromhex(data))[0] == value


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("5601", True),
        ("5600", False),
        ("5505", 5),
        ("55ff", -1),
        ("c00100", []),
        ("d00000000400000000", []),
        ("d10000000400000000", {}),
        ("b00000000161", b"a"),
        ("b10000000161", "a"),
        ("b30000000161", "a"),
        ("e00102" + "41", None),
        ("00a30161" + "40", Described("a", None)),
        ("0080000000000000002445", Described(0x24, [])),
    ],
)
def test_other_legal_encodings_are_read(data: str, value: Any) -> None:
    if data.startswith("e0"):
        value = Array.of(bool, [True, True])
        data = "e0020241"
    assert decode(bytes.fromhex(data)) == (value, len(data) // 2)


def test_an_empty_array_without_a_constructor_is_read() -> None:
    assert decode(bytes.fromhex("e00100")) == (Array.of(type(None)), 3)


def test_a_long_is_always_eight_bytes() -> None:
    """Source: wire contract 0.4: the JavaScript client reads eight raw bytes."""
    assert [len(encode(Long(number))) for number in (0, 1, -1, 2**62)] == [9, 9, 9, 9]


def test_not_a_number_survives() -> None:
    assert math.isnan(decode(encode(Float("nan")))[0])
    assert math.isnan(decode(encode(float("nan")))[0])


def test_an_encoded_value_is_spliced_as_it_is() -> None:
    raw = Encoded(bytes.fromhex("5505"))  # a small long, which the encoder never makes
    assert encode([raw]) == bytes.fromhex("c003015505")


def test_a_member_of_an_enumeration_goes_out_as_its_value() -> None:
    class Colour(IntEnum):
        RED = 3

    assert encode(Colour.RED) == encode(3)


@pytest.mark.parametrize(
    "value",
    [
        UByte(256),
        UInt(-1),
        Int(2**31),
        2**63,
        Symbol("é"),
        Char("ab"),
        Decimal32(b"abc"),
        object(),
        [object()],
        Array.of(object, [object()]),
        Array.of(UByte, [256]),
        Array.of(Decimal64, [b"short"]),
    ],
)
def test_what_has_no_encoding_is_an_encode_error(value: Any) -> None:
    with pytest.raises(EncodeError):
        encode(value)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("", "truncated"),
        ("3f", "unknown constructor"),
        ("5602", "boolean"),
        ("a1", "truncated"),
        ("a10461", "truncated"),
        ("a101ff", "not valid"),
        ("a301ff", "not valid"),
        ("7300110000", "character"),
        ("730000d800", "character"),
        ("c10301a10161", "odd"),
        ("c1050245a10161", "key"),
        ("c0020540", "fit"),
        ("c00440404040", "fit"),
        ("c0030140" + "40", "match"),
        ("d0000000ff00000001" + "40", "truncated"),
        ("e0020171", "fit"),
        ("e0020101", "unknown constructor"),
        ("004540", "descriptor"),
        ("00c0020140" + "40", "descriptor"),
    ],
)
def test_what_is_no_value_is_a_decode_error(data: str, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        decode(bytes.fromhex(data))


def _nested_lists(levels: int) -> bytes:
    data = b"\x45"
    for _ in range(levels - 1):
        data = b"\xd0" + struct.pack(">II", len(data) + 4, 1) + data
    return data


def test_nesting_at_the_limit_is_read_and_one_past_it_is_not() -> None:
    """Req: R-05"""
    # The innermost list is a scalar to the decoder: it has no level below it.
    assert decode(_nested_lists(codec.DEPTH_MAX + 1))[1] > 0
    with pytest.raises(DecodeError, match="deep"):
        decode(_nested_lists(codec.DEPTH_MAX + 2))


@pytest.mark.parametrize("opening", ["00", "c1ff02a10161", "e0ffff00", "f0000000ff00000001" * 1])
def test_endless_openings_are_refused_without_running_out_of_stack(opening: str) -> None:
    """Req: R-05"""
    with pytest.raises(DecodeError):
        decode(bytes.fromhex(opening) * 20_000)
    with pytest.raises(DecodeError):
        skip(b"\x00" * 100_000)


def test_elements_without_width_are_counted() -> None:
    """Req: R-05"""

    def of(count: int) -> bytes:
        return b"\xf0" + struct.pack(">II", 5, count) + b"\x41"

    assert len(decode(of(1000), elements_max=1000)[0]) == 1000
    with pytest.raises(DecodeError, match="elements"):
        decode(of(1001), elements_max=1000)
    with pytest.raises(DecodeError, match="elements"):
        decode(of(0xFFFFFFFF))


def test_elements_of_all_levels_are_counted_together() -> None:
    """Req: R-05"""
    inner = b"\xf0" + struct.pack(">II", 5, 100) + b"\x41"
    data = b"\xd0" + struct.pack(">II", 4 + 10 * len(inner), 10) + inner * 10
    assert len(decode(data, elements_max=1010)[0]) == 10
    with pytest.raises(DecodeError, match="elements"):
        decode(data, elements_max=1009)


@quick
@given(st.dictionaries(keys, values, max_size=5))
def test_raw_pairs_of_a_map_are_its_bytes(pairs: dict[str, Any]) -> None:
    data = encode(pairs)
    found = {}
    for key, key_start, value_start, value_end in iter_map_raw(data):
        assert decode(data, key_start) == (key, value_start)
        found[key] = data[value_start:value_end]
    assert found == {key: encode(value) for key, value in pairs.items()}


@pytest.mark.parametrize("data", ["45", "c10301a10161", "c10602a101614040", "c10402a10161", "c1", "d1000000"])
def test_raw_pairs_of_what_is_no_map_are_a_decode_error(data: str) -> None:
    with pytest.raises(DecodeError):
        list(iter_map_raw(bytes.fromhex(data)))


def test_the_encoder_can_append_to_a_buffer_and_to_a_list_of_pieces() -> None:
    buffer, pieces = bytearray(b"x"), [b"x"]
    codec.encode_into(buffer, UInt(1))
    codec.encode_into(pieces, UInt(1))
    assert bytes(buffer) == b"".join(pieces) == b"x\x52\x01"


def test_views_and_byte_arrays_are_read_too() -> None:
    data = encode({"a": [1, 2]})
    assert decode(memoryview(data))[0] == decode(bytearray(data))[0] == {"a": [1, 2]}
