"""Spans of time as text: ISO 8601, as the administration writes them, and short ones, as people do."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

UNLIMITED: Final = timedelta(days=10675199, hours=2, minutes=48, seconds=5, microseconds=477580)
"""Means "never". Source: wire contract 7.3, `P10675199DT2H48M5.4775807S`."""

_UNLIMITED_TEXT: Final = "P10675199DT2H48M5.4775807S"
_DAYS_MAX: Final = 10675199
_ISO: Final = re.compile(
    r"P(?:([0-9]{1,8})D)?(?:T(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9})(?:\.([0-9]{1,9}))?S)?)?"
)
_SHORT: Final = re.compile(
    r"(?:([0-9]{1,8})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})(?:\.([0-9]{1,9}))?s)?"
)


def parse_duration(text: str) -> timedelta:
    """Return a span such as `5m`, `1h30m`, `PT5M` or `never`. Raises: ValueError."""
    given = text.strip()
    if given.lower() == "never":
        return UNLIMITED
    found = _ISO.fullmatch(given.upper()) or _SHORT.fullmatch(given.lower())
    if found is None or not any(found.groups()):
        raise ValueError(f"{text!r} is not a span of time such as 30s, 5m, 1h30m, 7d, PT5M or never")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:4])
    micros = int((found[5] or "").ljust(6, "0")[:6])
    if days > _DAYS_MAX:
        raise ValueError(f"{text!r} is longer than the longest span, which is 'never'")
    span = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, microseconds=micros)
    return min(span, UNLIMITED)


def iso_duration(span: timedelta) -> str:
    """Return a span in ISO 8601."""
    if span >= UNLIMITED:
        return _UNLIMITED_TEXT
    days = f"{span.days}D" if span.days else ""
    time = "".join(f"{value}{unit.upper()}" for value, unit in _parts(span))
    return f"P{days}{'T' if time or not days else ''}{time or ('' if days else '0S')}"


def short_duration(span: timedelta) -> str:
    """Return a span as `1h30m`; `never` if it is unlimited."""
    if span >= UNLIMITED:
        return "never"
    days = f"{span.days}d" if span.days else ""
    return days + "".join(f"{value}{unit}" for value, unit in _parts(span)) or "0s"


def _parts(span: timedelta) -> list[tuple[str, str]]:
    """Return hours, minutes and seconds that are not 0, with their units."""
    hours, rest = divmod(span.seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    exact = f"{seconds}.{span.microseconds:06}".rstrip("0").rstrip(".") if span.microseconds else str(seconds)
    found = ((str(hours), "h"), (str(minutes), "m"), (exact, "s"))
    return [(value, unit) for value, unit in found if value != "0"]
