"""Decimals of AMQP and of Python."""

from __future__ import annotations

from decimal import Decimal

import pytest

from peeklock.amqp.codec import decode, encode
from peeklock.amqp.decimals import number_of
from peeklock.amqp.types import Decimal32, Decimal64, Decimal128


def canonical(sign: int, coefficient: int, exponent: int, bits: int, exponent_bits: int, bias: int) -> bytes:
    """Encode by the form with the small coefficient."""
    width = bits - 1 - exponent_bits
    return (sign << (bits - 1) | (exponent + bias) << width | coefficient).to_bytes(bits // 8, "big")


@pytest.mark.parametrize("text", ["0", "1", "-1", "12.50", "-0.001", "1E+5", "8388607"])
@pytest.mark.parametrize(
    ("kind", "form"),
    [(Decimal32, (32, 8, 101)), (Decimal64, (64, 10, 398)), (Decimal128, (128, 14, 6176))],
)
def test_a_decimal_is_read(
    kind: type[Decimal32] | type[Decimal64] | type[Decimal128], form: tuple[int, int, int], text: str
) -> None:
    """Req: P-02. Source: IEEE 754-2008, 3.5.2."""
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    coefficient = int("".join(map(str, digits)))
    found = number_of(kind(canonical(sign, coefficient, exponent, *form)))
    assert found is not None
    assert found.as_tuple() == Decimal(text).as_tuple()


@pytest.mark.parametrize(
    ("encoded", "number"),
    [
        (Decimal32(bytes.fromhex("32800001")), Decimal(1)),
        (Decimal32(bytes.fromhex("77F8967F")), Decimal("9.999999E+96")),
        (Decimal32(bytes.fromhex("6CB8967F")), Decimal("9999999")),
        (Decimal64(bytes.fromhex("31C0000000000001")), Decimal(1)),
        (Decimal64(bytes.fromhex("6C7386F26FC0FFFF")), Decimal("9999999999999999")),
        (Decimal128(bytes.fromhex("3040000000000000000000000000007D")), Decimal(125)),
        (Decimal128(bytes.fromhex("B03C000000000000000000000000007D")), Decimal("-1.25")),
    ],
)
def test_known_encodings(encoded: Decimal32 | Decimal64 | Decimal128, number: Decimal) -> None:
    """Req: P-02. Worked out by hand from the standard."""
    assert number_of(encoded) == number


@pytest.mark.parametrize("high", ["78", "F8", "7C", "7E"], ids=["infinity", "-infinity", "nan", "snan"])
def test_what_is_no_number_has_none(high: str) -> None:
    """Req: P-02"""
    for kind, size in ((Decimal32, 4), (Decimal64, 8), (Decimal128, 16)):
        assert number_of(kind(bytes.fromhex(high).ljust(size, b"\0"))) is None


def test_a_coefficient_that_is_too_large_counts_as_zero() -> None:
    """Req: P-02. Source: IEEE 754-2008, 3.5.2, non-canonical encodings."""
    assert number_of(Decimal128(bytes.fromhex("6C000000000000000000000000000001"))) == 0


def test_a_decoded_decimal_is_still_known_as_one() -> None:
    """Req: P-02. It was taken for binary data once, and sent on as that."""
    encoded = encode(Decimal64(bytes(8)))
    value, _ = decode(encoded)
    assert type(value) is Decimal64
    assert encode(value) == encoded
