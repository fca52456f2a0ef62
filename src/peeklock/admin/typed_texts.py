"""Texts of typed values: XML Schema's types and .NET's `guid`.

The administration has them in XML; a configuration file and our JSON API, for what JSON lacks. Source: wire
contract 7.6; XML Schema Part 2.
"""

from __future__ import annotations

import base64
import binascii
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import isinf, isnan
from uuid import UUID

from peeklock.broker.vocabulary.durations import format_span, parse_span
from peeklock.rules.filters import Value

LONG_MAX = 2**63 - 1

TOLD_MAX = 80
"""Characters of a value in an error. Our choice."""


def cut(text: str) -> str:
    """Shorten a client's text for an error."""
    return text if len(text) <= TOLD_MAX else f"{text[:TOLD_MAX]}..."


# Reading. Python's constructors accept more than XML Schema, hence the expressions.

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")
_FLOAT_MAX = (2 - 2**-24) * 2.0**127
"""The largest that rounds to a finite number of 32 bits, or a little more."""
_DOUBLE = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf|nan)", re.IGNORECASE)
_DECIMAL = re.compile(r"[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})")
BEYOND_TICKS = re.compile(r"(\.[0-9]{7})[0-9]+")
"""Clients count in ticks of 100 ns."""
_DATE_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})?"
)


def _integer(bits: int, signed: bool) -> Callable[[str], int]:
    least = -(1 << bits - 1) if signed else 0
    most = least + (1 << bits) - 1

    def read(text: str) -> int:
        text = text.strip()
        if not _WHOLE_NUMBER.fullmatch(text):
            raise ValueError("a whole number is expected")
        if not least <= int(text) <= most:
            raise ValueError(f"it does not fit into {bits} bits{'' if signed else ' without a sign'}")
        return int(text)

    return read


def _inexact(bits: int, largest: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        text = text.strip()
        if not _DOUBLE.fullmatch(text):
            raise ValueError("a number is expected")
        number = float(text)
        if abs(number) > largest and "inf" not in text.lower():
            raise ValueError(f"it does not fit into {bits} bits")
        return number

    return read


def _read_decimal(text: str) -> Decimal:
    text = text.strip()
    if not _DECIMAL.fullmatch(text):
        raise ValueError("a decimal number of up to 40 digits on each side of the point is expected")
    number = Decimal(text)
    if number.copy_abs() >= 2**96:  # abs() would round
        raise ValueError("it does not fit into 96 bits, the size of .NET's decimal")
    return number


def _read_boolean(text: str) -> bool:
    match text.strip().lower():
        case "true" | "1":
            return True
        case "false" | "0":
            return False
    raise ValueError("true or false is expected")


def _read_date_time(text: str) -> datetime:
    text = text.strip()
    if not _DATE_TIME.fullmatch(text):
        raise ValueError("a time such as 2024-01-31T12:00:00Z is expected")
    found = datetime.fromisoformat(text)
    # The Python client sends a naive datetime without a zone, and compares it with what it reads.
    return found if found.tzinfo is None else found.astimezone(UTC)


def _read_base64(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error as failure:
        raise ValueError("base64 is expected") from failure


def _read_guid(text: str) -> UUID:
    return UUID(text.strip())


READERS: dict[str, Callable[[str], Value]] = {
    "string": lambda text: text,
    "int": _integer(32, signed=True),
    "long": _integer(64, signed=True),
    "boolean": _read_boolean,
    "double": _inexact(64, sys.float_info.max),
    "dateTime": _read_date_time,
    "duration": lambda text: parse_span(cut(text.strip())),  # no duration is so long
    "decimal": _read_decimal,
    "guid": _read_guid,
    "base64Binary": _read_base64,
    "float": _inexact(32, _FLOAT_MAX),
    "short": _integer(16, signed=True),
    "byte": _integer(8, signed=True),
    "unsignedByte": _integer(8, signed=False),
    "unsignedShort": _integer(16, signed=False),
    "unsignedInt": _integer(32, signed=False),
    "unsignedLong": _integer(64, signed=False),
}
"""XML Schema type (`guid`: .NET's) -> reader of its texts. Raises: ValueError, ArithmeticError."""


def written(value: Value) -> tuple[str, str]:
    """Return the type and the text of a value."""
    match value:
        case bool():
            return "boolean", "true" if value else "false"
        case int():
            small = -(2**31) <= value < 2**31
            return "int" if small else "long" if value <= LONG_MAX else "unsignedLong", str(value)
        case float():
            return "double", _double(value)
        case str():
            return "string", value
        case bytes():
            return "base64Binary", base64.b64encode(value).decode()
        case UUID():
            return "guid", str(value)
        case datetime():
            return "dateTime", value.isoformat().replace("+00:00", "Z")
        case timedelta():
            return "duration", format_span(value)
        case Decimal():
            return "decimal", format(value, "f")


def _double(value: float) -> str:
    if isinf(value):
        return "INF" if value > 0 else "-INF"
    return "NaN" if isnan(value) else repr(value)
