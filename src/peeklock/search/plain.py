"""AMQP values as values of JSON, which lacks most of AMQP's types.

A timestamp becomes a text of ISO 8601, a uuid and a decimal a text, bytes base64, a number that is not finite
a text, a described value its value, a key of a map a text.
"""

from __future__ import annotations

import base64
import math
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from peeklock.amqp.decimals import number_of
from peeklock.amqp.types import Decimal32, Decimal64, Decimal128, Described, Timestamp
from peeklock.broker.content.subject import value_of

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def instant_text(at_ms: int) -> str:
    """Return `2026-01-31T23:59:59.000Z`; outside the years 1 to 9999 the number of milliseconds."""
    try:
        at = _EPOCH + timedelta(milliseconds=at_ms)
    except OverflowError:
        return str(int(at_ms))
    return at.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def plain(value: Any) -> Any:
    """Return a decoded AMQP value in types of JSON."""
    match value:
        case None | bool():
            return value
        case Timestamp():
            return instant_text(value)
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else str(float(value))
        case str() | UUID():
            return str(value)
        case Decimal32() | Decimal64() | Decimal128():
            return str(number_of(value))
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {key if type(key) is str else _key(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case Described():
            return _described(value)
    return str(value)


def _key(key: Any) -> str:
    shown = plain(key)
    return shown if isinstance(shown, str) else str(shown)


def _described(value: Described) -> Any:
    """Return a described value without its descriptor; the .NET client's types as text."""
    known = value_of(value)
    if isinstance(known, datetime):
        return known.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
    return plain(value.value) if known is None else str(known)
