"""The JSON of the header BrokerProperties, and of the members of a batch. Source: wire contract 8."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NoReturn

from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS
from peeklock.broker.vocabulary.errors import ArgumentInvalid

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DATE = re.compile(
    r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), )?(\d{1,2}) (\w{3}) (\d{4}) "
    r"(\d\d):(\d\d):(\d\d) (?:GMT|UTC|\+0000)",
    re.ASCII,
)
_SPAN = re.compile(r"(?:(\d{1,8})\.)?(\d\d):(\d\d):(\d\d)(?:\.(\d{1,7}))?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_TEXTS = {
    "CorrelationId": "correlation_id",
    "Label": "label",
    "MessageId": "message_id",
    "PartitionKey": "partition_key",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "SessionId": "session_id",
    "To": "to",
    "ViaPartitionKey": "via_partition_key",
}
TEXTS = {**_TEXTS, "ContentType": "content_type"}
"""Member of BrokerProperties with a text -> its field. The content type is a member in a batch alone."""
_FIELDS_MAX = 64
"""Members of one object. Our choice: 26 are known."""


@dataclass(slots=True)
class BrokerProperties:
    """What a sender may set."""

    correlation_id: str | None = None
    label: str | None = None
    message_id: str | None = None
    partition_key: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    session_id: str | None = None
    to: str | None = None
    via_partition_key: str | None = None
    content_type: str | None = None
    """A member in a batch alone; otherwise it has its own header."""
    scheduled_at_ms: int | None = None
    """UTC ms."""
    ttl_ms: int | None = None


def read_json(text: bytes, what: str) -> Any:
    """Read strict JSON, without infinities. Raises: ArgumentInvalid."""
    try:
        return _JSON.decode(text.decode(json.detect_encoding(text), "surrogatepass"))
    except (ValueError, RecursionError) as failure:
        why = "it is nested too deeply" if isinstance(failure, RecursionError) else str(failure)
        raise ArgumentInvalid(f"{what} cannot be read as JSON: {why[:200]}.") from None


def read_broker_properties(given: Any, *, in_batch: bool = False) -> BrokerProperties:
    """Read the members that a sender may set; others are ignored.

    Raises: ArgumentInvalid: a value of a wrong type.
    """
    if not isinstance(given, Mapping) or len(given) > _FIELDS_MAX:
        raise ArgumentInvalid(f"BrokerProperties is not a JSON object of up to {_FIELDS_MAX} members.")
    found = BrokerProperties()
    texts = TEXTS if in_batch else _TEXTS
    for name, value in given.items():
        if value is None:
            continue
        if name in texts:
            setattr(found, texts[name], _text(name, value))
        elif name == "ScheduledEnqueueTimeUtc":
            found.scheduled_at_ms = _instant_ms(name, value)
        elif name == "TimeToLive":
            found.ttl_ms = _seconds_ms(name, value)
        elif name == "TimeToLiveTimeSpan":
            found.ttl_ms = _span_ms(name, value)
        elif name == "ForcePersistence" and not isinstance(value, bool):
            raise ArgumentInvalid(
                f"{name} of BrokerProperties is not true or false; every message is stored."
            )
    return found


def write_json(value: Any) -> str:
    """Write JSON for a header: printable ASCII alone."""
    return json.dumps(value, separators=(",", ":")).replace("\x7f", "\\u007f")


def has_date(at_ms: int) -> bool:
    """Return whether an instant is in the years 1 to 9999, so that it has a date."""
    return -62_135_596_800_000 <= at_ms < 253_402_300_800_000


def write_date(at_ms: int) -> str:
    """Write `Mon, 01 Jan 2024 00:00:00 GMT` in any locale. Source: RFC 9110 5.6.7."""
    return _date(at_ms // 1000)


@lru_cache(maxsize=64)
def _date(at_s: int) -> str:
    at = _EPOCH + timedelta(seconds=at_s)
    return f"{_DAYS[at.weekday()]}, {at.day:02d} {_MONTHS[at.month - 1]} {at.year:04d} {at:%H:%M:%S} GMT"


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ArgumentInvalid(f"{name} of BrokerProperties is not a string.")
    if has_surrogate(value):
        raise ArgumentInvalid(f"{name} of BrokerProperties contains an unpaired surrogate.")
    return value


def has_surrogate(text: str) -> bool:
    """Return whether a text contains an unpaired surrogate, which UTF-8 cannot encode."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _seconds_ms(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ArgumentInvalid(f"{name} of BrokerProperties is not a number of seconds above 0.")
    if math.isinf(value) or value >= UNLIMITED_MS // 1000:
        return UNLIMITED_MS
    return max(1, round(value * 1000))


def _span_ms(name: str, value: Any) -> int:
    match = _SPAN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ArgumentInvalid(f"{name} of BrokerProperties is not a span such as 0.00:10:00.")
    days, hours, minutes, seconds = (int(part or 0) for part in match.group(1, 2, 3, 4))
    ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    ms += int((match.group(5) or "0").ljust(7, "0")) // 10_000
    if ms <= 0:
        raise ArgumentInvalid(f"{name} of BrokerProperties is not above 0.")
    return min(ms, UNLIMITED_MS)


def _instant_ms(name: str, value: Any) -> int:
    match = _DATE.fullmatch(value.strip()) if isinstance(value, str) else None
    try:
        if match is None:
            raise ValueError
        day, month, year, hour, minute, second = match.groups()
        at = datetime(
            int(year), _MONTHS.index(month) + 1, int(day), int(hour), int(minute), int(second), tzinfo=UTC
        )
    except ValueError:
        raise ArgumentInvalid(
            f"{name} of BrokerProperties is not a date such as Mon, 01 Jan 2024 00:00:00 GMT."
        ) from None
    return (at - _EPOCH) // timedelta(milliseconds=1)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_JSON = json.JSONDecoder(parse_constant=_no_constant)
"""Shared: `json.loads` makes one for each text, which takes longer than reading a short one."""
