"""A message's application properties as headers of HTTP.

A value is a number, `true`, `false`, or text in double quotes, escaped as in JSON. Text without quotes is
accepted too. Source: wire contract 8; the samples of Learn "Send Message".
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any
from uuid import UUID

from peeklock.amqp.decimals import number_of
from peeklock.amqp.types import Char, Decimal32, Decimal64, Decimal128, Float, Timestamp
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.rest.broker_properties import has_date, has_surrogate, write_date, write_json

PROPERTIES_MAX = 100
"""Properties of a message that become headers. Our choice: clients accept no more headers (Python: 100)."""

_STANDARD = frozenset(
    """
    authorization brokerproperties cache-control connection cookie date dnt expect forwarded from host
    if-match if-modified-since if-none-match if-range if-unmodified-since keep-alive max-forwards
    mime-version origin pragma range referer servicebusauthorization te trailer transfer-encoding upgrade
    upgrade-insecure-requests user-agent via warning
    age allow etag expires last-modified link location retry-after server set-cookie
    strict-transport-security vary www-authenticate
    """.split()  # noqa: SIM905  # 50 literals would take 50 lines
)
"""Headers of HTTP: of requests, then of responses."""

_STANDARD_STARTS = ("accept", "access-control-", "content-", "proxy-", "sec-", "x-ms-", "x-forwarded-")
_FLOAT = struct.Struct(">f")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_PRINTABLE = re.compile(r"[ -~]*", re.ASCII)


@lru_cache(maxsize=256)
def is_property(name: str) -> bool:
    """Return whether a header of this name is a property of the message, not one of HTTP."""
    lower = name.lower()
    return lower not in _STANDARD and not lower.startswith(_STANDARD_STARTS)


def read_headers(headers: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Read the properties of a message that is sent; names keep their case. Raises: ArgumentInvalid."""
    found: dict[str, Any] = {}
    for name, text in headers:
        if is_property(name):
            found[name] = _read_value(name, text)
    return found


def read_member(given: Any) -> dict[str, Any]:
    """Read the properties of a member of a batch. Raises: ArgumentInvalid."""
    if not isinstance(given, Mapping):
        raise ArgumentInvalid("UserProperties is not a JSON object.")
    for name, value in given.items():
        if isinstance(value, str):
            _whole(name, value)
        elif not (value is None or isinstance(value, float) or (isinstance(value, int) and _is_long(value))):
            raise ArgumentInvalid(
                f"The property '{name[:64]}' is not a string, number of up to 64 bits, true, false or null."
            )
        _whole(name, name)
    return dict(given)


def write_headers(properties: Mapping[Any, Any]) -> list[tuple[str, str]]:
    """Write a received message's properties; those that do not fit a header are left out, null too."""
    written: list[tuple[str, str]] = []
    seen: set[str] = set()
    for name, value in properties.items():
        name = str(name)
        usable = _TOKEN.fullmatch(name) and is_property(name) and name.lower() not in seen
        text = _write_value(value) if usable and len(written) < PROPERTIES_MAX else None
        if text is not None:
            seen.add(name.lower())
            written.append((name, text))
    return written


def plain_header(value: str) -> bool:
    """Return whether a text fits a header unchanged."""
    return bool(_PRINTABLE.fullmatch(value)) and value == value.strip()


def _is_long(value: int) -> bool:
    return -(1 << 63) <= value < 1 << 63  # `in range(...)` counts up to a number that is no plain int


def _read_value(name: str, text: str) -> Any:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            value = json.loads(_utf8(name, text))
        except (ValueError, RecursionError):
            return _utf8(name, text[1:-1])  # unescaped
        _whole(name, value)
        return value
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    match = _NUMBER.fullmatch(text)
    if match is not None and len(text) < 400:
        if match.group(1) or match.group(2):
            number = float(text)
            return number if math.isfinite(number) else text
        if _is_long(int(text)):
            return int(text)
    return _utf8(name, text)


def _utf8(name: str, text: str) -> str:
    """Return the text of a header in UTF-8; h11 decodes it as Latin-1."""
    try:
        return text.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise ArgumentInvalid(f"The header '{name[:64]}' is not valid UTF-8.") from None


def _whole(name: str, value: Any) -> None:
    if has_surrogate(str(value)):
        raise ArgumentInvalid(f"The property '{name[:64]!a}' contains an unpaired surrogate.")


def _shortest(value: float) -> float:
    """Return the shortest number that equals this one in 32 bits: 0.1, not 0.10000000149011612."""
    for digits in range(6, 9):
        number = float(f"{value:.{digits}g}")
        if _single(number) == value:
            return number
    return value


def _single(number: float) -> float:
    try:
        return float(_FLOAT.unpack(_FLOAT.pack(number))[0])
    except OverflowError:
        return math.inf


def _write_value(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Timestamp):
        return f'"{write_date(value)}"' if has_date(value) else str(int(value))
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        number = _shortest(value) if isinstance(value, Float) else float(value)
        return repr(number) if math.isfinite(number) else f'"{number}"'
    if isinstance(value, Decimal32 | Decimal64 | Decimal128):
        return None if (decimal := number_of(value)) is None else str(decimal)
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode()}"'
    if isinstance(value, str | Char | UUID):
        return write_json(str(value))
    return None
