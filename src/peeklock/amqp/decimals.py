"""Conversion between Python's `Decimal` and the IEEE 754 decimals of AMQP, in their binary integer encoding.

The broker passes decimals on as bytes; rules and the APIs convert them.
Source: AMQP 1.6.13 to 1.6.15; IEEE 754-2008, 3.5.2.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal

from peeklock.amqp.types import Decimal32, Decimal64, Decimal128

_FORMS = {Decimal32: (32, 8, 101, 7), Decimal64: (64, 10, 398, 16), Decimal128: (128, 14, 6176, 34)}
"""Bits, bits of the exponent, its bias, digits."""

_DECIMAL128 = Context(prec=34, rounding=ROUND_HALF_EVEN, Emin=-6143, Emax=6144)


def decimal128_of(number: Decimal) -> Decimal128:
    """Encode a finite number, rounded to 34 digits."""
    sign, digits, exponent = _DECIMAL128.plus(number).as_tuple()
    assert isinstance(exponent, int)
    coefficient = int("".join(map(str, digits)))
    return Decimal128((sign << 127 | (exponent + 6176) << 113 | coefficient).to_bytes(16, "big"))


def number_of(encoded: Decimal32 | Decimal64 | Decimal128) -> Decimal | None:
    """Return the encoded number; None for infinities and NaN."""
    bits, exponent_bits, bias, digits_max = _FORMS[type(encoded)]
    raw = int.from_bytes(encoded, "big")
    sign = raw >> (bits - 1)
    fields = raw & ((1 << (bits - 1)) - 1)
    width = bits - 1 - exponent_bits
    if fields >> (bits - 3) != 0b11:
        exponent = fields >> width
        coefficient = fields & ((1 << width) - 1)
    elif fields >> (bits - 5) == 0b1111:
        return None
    else:
        # A coefficient with one more bit: its top three are 100, and the exponent is two bits further right.
        width -= 2
        exponent = fields >> width & ((1 << exponent_bits) - 1)
        coefficient = 0b100 << width | fields & ((1 << width) - 1)
    if coefficient >= 10**digits_max:
        coefficient = 0  # not canonical: "the value is zero"
    digits = tuple(int(digit) for digit in str(coefficient))
    return Decimal((sign, digits, exponent - bias))
