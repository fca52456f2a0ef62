"""Typed values in XML: parameters of expressions, properties of correlation filters.

Owns: names with values, in order, as `KeyValueOfstringanyType`, and the XML Schema types of values. Must not
know: what a value is compared with. Source: wire contract 7.6; XML Schema Part 2.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import isinf, isnan
from uuid import UUID

from peeklock.admin.atom import escape
from peeklock.admin.markup import Markup
from peeklock.admin.reading import Description, cut
from peeklock.broker.durations import format_span, parse_span
from peeklock.broker.errors import ArgumentInvalid
from peeklock.rules.filters import Pairs, Value

_SCHEMA = "http://www.w3.org/2001/XMLSchema"
_SERIALIZATION = "http://schemas.microsoft.com/2003/10/Serialization/"
"""Where .NET has types that XML Schema lacks."""

_PAIR = "KeyValueOfstringanyType"


def read_pairs(given: Description, name: str) -> Pairs:
    """Read names with their values, in order; a value that is nil is None.

    Raises: ArgumentInvalid.
    """
    if not given.has(name):
        return ()
    return tuple(_read_pair(pair, name) for pair in given.child(name).items(_PAIR))


def write_pairs(name: str, pairs: Pairs) -> Markup:
    """Write names with their values; without any, the empty element."""
    if not pairs:
        return Markup(f"<{name}/>")
    written = (f"<{_PAIR}><Key>{escape(key)}</Key>{_write_value(value)}</{_PAIR}>" for key, value in pairs)
    return Markup(f"<{name}>{''.join(written)}</{name}>")


def _read_pair(pair: Description, where: str) -> tuple[str, Value | None]:
    if not pair.has("Key"):
        raise ArgumentInvalid(f"One of the {where} has no Key.")
    key = pair.exact_text("Key")
    if not pair.has("Value"):
        return key, None
    value = pair.child("Value")
    kind = value.type or "string"
    read = READERS.get(kind)
    if read is None:
        raise ArgumentInvalid(
            f"The value of {cut(key)!r} in {where} has the type {cut(kind)!r}; "
            f"known are {', '.join(READERS)}."
        )
    try:
        return key, read(value.content)
    except (ValueError, ArithmeticError) as failure:
        raise ArgumentInvalid(
            f"The value {value.content[:80]!r} of {cut(key)!r} in {where} is no {kind}: {failure}."
        ) from failure


# Reading. Python's own constructors are more liberal than XML Schema, hence the expressions.

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")
_DOUBLE = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf|nan)", re.IGNORECASE)
_DECIMAL = re.compile(r"[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})")
_DATE_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})?"
)


def _read_int(text: str) -> int:
    text = text.strip()
    if not _WHOLE_NUMBER.fullmatch(text):
        raise ValueError("a whole number is expected")
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError("it does not fit into 64 bits")
    return number


def _read_double(text: str) -> float:
    text = text.strip()
    if not _DOUBLE.fullmatch(text):
        raise ValueError("a number is expected")
    return float(text)


def _read_decimal(text: str) -> Decimal:
    text = text.strip()
    if not _DECIMAL.fullmatch(text):
        raise ValueError("a decimal number of up to 40 digits on each side of the point is expected")
    return Decimal(text)


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
    "int": _read_int,
    "long": _read_int,
    "boolean": _read_boolean,
    "double": _read_double,
    "dateTime": _read_date_time,
    "duration": lambda text: parse_span(cut(text.strip())),  # no duration is so long
    "decimal": _read_decimal,
    "guid": _read_guid,
    "base64Binary": _read_base64,
    "float": _read_double,
    "short": _read_int,
    "byte": _read_int,
    "unsignedByte": _read_int,
    "unsignedShort": _read_int,
    "unsignedInt": _read_int,
    "unsignedLong": _read_int,
}
"""XML Schema type (`guid`: .NET's) -> reader of its texts. Raises: ValueError, ArithmeticError."""


def _write_value(value: Value | None) -> str:
    if value is None:
        return '<Value i:nil="true"/>'
    kind, text = written(value)
    namespace = _SERIALIZATION if kind == "guid" else _SCHEMA
    # A prefix of four characters: the JavaScript client cuts off five, with the colon.
    return f'<Value xmlns:d6p1="{namespace}" i:type="d6p1:{kind}">{escape(text)}</Value>'


def written(value: Value) -> tuple[str, str]:
    """Give the type and the text of a value."""
    match value:
        case bool():
            return "boolean", "true" if value else "false"
        case int():
            return "int" if -(2**31) <= value < 2**31 else "long", str(value)
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
