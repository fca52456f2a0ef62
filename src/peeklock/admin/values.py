"""Typed values in XML: parameters of expressions, properties of correlation filters.

They are `KeyValueOfstringanyType` elements with XML Schema types. Source: wire contract 7.6; XML
Schema Part 2.
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

from peeklock.admin.atom import Markup, escape
from peeklock.admin.reading import Description, cut
from peeklock.broker.vocabulary.durations import format_span, parse_span
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.rules.filters import AllAsGiven, AsGiven, Pairs, Value, join_given, split_given

_LONG_MAX = 2**63 - 1
_SCHEMA = "http://www.w3.org/2001/XMLSchema"
_SERIALIZATION = "http://schemas.microsoft.com/2003/10/Serialization/"
"""Of .NET's types that XML Schema lacks."""

_PAIR = "KeyValueOfstringanyType"

NOTATION = "d"
"""Of the types here, in `AsGiven`."""


def read_pairs(given: Description, name: str) -> tuple[Pairs, AllAsGiven]:
    """Read names with their values, in order; a value that is nil is None.

    Raises: ArgumentInvalid.
    """
    if not given.has(name):
        return (), ()
    return split_given(_read_pair(pair, name) for pair in given.child(name).items(_PAIR))


def write_pairs(name: str, pairs: Pairs, as_given: AllAsGiven) -> Markup:
    """Write names with their values; without any, the empty element."""
    if not pairs:
        return Markup(f"<{name}/>")
    elements = (
        f"<{_PAIR}><Key>{escape(key)}</Key>{_write_value(value, given)}</{_PAIR}>"
        for key, value, given in join_given(pairs, as_given)
    )
    return Markup(f"<{name}>{''.join(elements)}</{name}>")


def _read_pair(pair: Description, where: str) -> tuple[str, Value | None, AsGiven | None]:
    if not pair.has("Key"):
        raise ArgumentInvalid(f"One of the {where} has no Key.")
    key = pair.exact_text("Key")
    if not pair.has("Value"):
        return key, None, None
    element = pair.child("Value")
    kind = element.type or "string"
    read = READERS.get(kind)
    if read is None:
        raise ArgumentInvalid(
            f"The value of {cut(key)!r} in {where} has the type {cut(kind)!r}; "
            f"known are {', '.join(READERS)}."
        )
    try:
        value = read(element.content)
    except (ValueError, ArithmeticError) as failure:
        raise ArgumentInvalid(
            f"The value {element.content[:80]!r} of {cut(key)!r} in {where} is not a valid {kind}: {failure}."
        ) from failure
    return key, value, _as_given(kind, element.content, value)


def _as_given(kind: str, content: str, value: Value) -> AsGiven | None:
    """Return how a value was given, unless that follows from the value. Source: wire contract C35."""
    if kind == "string":
        return None
    text = content.strip()
    if kind in ("dateTime", "duration"):
        text = _BEYOND_TICKS.sub(r"\1", text)
    return None if (kind, text) == written(value) else AsGiven(f"{NOTATION}:{kind}", text)


# Reading. Python's constructors accept more than XML Schema, hence the expressions.

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")
_FLOAT_MAX = (2 - 2**-24) * 2.0**127
"""The largest that rounds to a finite number of 32 bits, or a little more."""
_DOUBLE = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf|nan)", re.IGNORECASE)
_DECIMAL = re.compile(r"[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})")
_BEYOND_TICKS = re.compile(r"(\.[0-9]{7})[0-9]+")
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


_OF_AMQP = {
    **dict.fromkeys(("byte", "short", "int", "ubyte", "ushort"), "int"),
    **dict.fromkeys(("uint", "long", "ulong"), "long"),
    **dict.fromkeys(("float", "double"), "double"),
    **dict.fromkeys(("decimal", "char", "symbol", "uuid", "uri"), "string"),
    **dict.fromkeys(("timestamp", "datetime-offset"), "dateTime"),
    "timespan": "duration",
}
"""AMQP type of a value -> the nearest one that clients of the administration API read: .NET's fails on a
whole list for one unknown type. Source: wire contract C35."""


def _write_value(value: Value | None, given: AsGiven | None) -> str:
    if value is None:
        return '<Value i:nil="true"/>'
    kind, text = written(value)
    if given is not None:
        if given.name_in(NOTATION) in READERS:
            kind, text = given.name_in(NOTATION) or kind, given.text
        else:
            kind = _OF_AMQP.get(given.name_in("amqp") or "", kind)
            if kind == "long" and int(text) > _LONG_MAX:
                kind = "string"
    namespace = _SERIALIZATION if kind == "guid" else _SCHEMA
    # A prefix of four characters: the JavaScript client cuts off five, with the colon.
    return f'<Value xmlns:d6p1="{namespace}" i:type="d6p1:{kind}">{escape(text)}</Value>'


def written(value: Value) -> tuple[str, str]:
    """Return the type and the text of a value."""
    match value:
        case bool():
            return "boolean", "true" if value else "false"
        case int():
            small = -(2**31) <= value < 2**31
            return "int" if small else "long" if value <= _LONG_MAX else "unsignedLong", str(value)
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
