"""Instants of the API: RFC 3339, in UTC and to the millisecond."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.rest.broker_properties import has_date

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:)(\d\d)(?:\.(\d{1,9}))?(?:([Zz])|([+-])(\d\d):(\d\d))", re.ASCII
)


def write_instant(at_ms: int) -> str | None:
    """Write `2024-01-01T00:00:00.000Z`; None = outside the years 1 to 9999."""
    if not has_date(at_ms):
        return None
    at = _EPOCH + timedelta(milliseconds=at_ms)
    return f"{at:%Y}".rjust(4, "0") + f"-{at:%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


def written(instants: Mapping[str, int]) -> dict[str, str]:
    """Write instants by name, without those that are 0 or cannot be written."""
    found = {name: write_instant(at_ms) for name, at_ms in instants.items() if at_ms}
    return {name: text for name, text in found.items() if text is not None}


def read_instant(text: str, where: str) -> int:
    """Read an instant, UTC ms. Raises: ArgumentInvalid."""
    match = _INSTANT.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        day, minute, second, fraction, _, sign, hours, minutes = match.groups()
        leap = second == "60"  # the second after it
        at = datetime.fromisoformat(f"{day}T{minute}{'59' if leap else second}+00:00")
        ms = (at - _EPOCH) // timedelta(milliseconds=1) + (1000 if leap else 0)
        ms += int((fraction or "0").ljust(9, "0")) // 1_000_000
        if sign is not None:
            if int(hours) > 23 or int(minutes) > 59:
                raise ValueError
            ms -= (int(hours) * 60 + int(minutes)) * (60_000 if sign == "+" else -60_000)
    except ValueError:
        raise ArgumentInvalid(f"{where} is not an instant such as 2024-01-01T00:00:00Z.") from None
    return ms
