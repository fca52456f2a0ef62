"""ISO 8601 durations as the service reads and writes them.

Settings are whole milliseconds, values of rules `timedelta`.
Source: wire contract 7.3 (durations); XML Schema Part 2, 3.2.6.
"""

from __future__ import annotations

import re
from datetime import timedelta

from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS

UNLIMITED_TEXT = "P10675199DT2H48M5.4775807S"
"""2^63 - 1 ticks of 100 ns."""

# 18 digits are more than the largest time span has in any unit, and bound the work of int().
_DURATION = re.compile(
    r"P(?:(\d{1,18})D)?(T(?:(\d{1,18})H)?(?:(\d{1,18})M)?(?:(\d{1,18})(?:\.(\d{1,18}))?S)?)?", re.ASCII
)


def parse_duration(text: str) -> int:
    """Return a duration such as `PT1M` in whole ms (rounded down), at most UNLIMITED_MS.

    Clients send the largest span rounded up to microseconds: `P10675199DT2H48M5.477581S`.

    Raises: ValueError; also for years and months, which have no fixed length.
    """
    return min(_microseconds(text.strip()) // 1000, UNLIMITED_MS)


def format_duration(ms: int) -> str:
    """Return a duration as the service writes it: largest units first, no zero parts; `PT0S` for zero."""
    return UNLIMITED_TEXT if ms >= UNLIMITED_MS else _text(ms * 1000)


def parse_span(text: str) -> timedelta:
    """Return a duration to the microsecond (rounded towards zero); it may be negative.

    Raises: ValueError; also for more days than a `timedelta` can hold.
    """
    text = text.strip()
    sign = -1 if text.startswith("-") else 1
    try:
        return timedelta(microseconds=sign * _microseconds(text.removeprefix("-")))
    except OverflowError as failure:
        raise ValueError(f"{text!r} is longer than {timedelta.max.days} days") from failure


def format_span(span: timedelta) -> str:
    """Return the text of a duration that `parse_span` reads."""
    microseconds = span // timedelta(microseconds=1)
    return f"-{_text(-microseconds)}" if microseconds < 0 else _text(microseconds)


def _microseconds(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.group(1, 3, 4, 5)) or match.group(2) == "T":
        raise ValueError(f"{text!r} is not an ISO 8601 duration such as PT1M")
    days, hours, minutes, seconds = (int(part or 0) for part in match.group(1, 3, 4, 5))
    fraction = (match.group(6) or "")[:6].ljust(6, "0")
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000_000 + int(fraction)


def _text(microseconds: int) -> str:
    seconds, fraction = divmod(microseconds, 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    date = f"{days}D" if days else ""
    time = f"{hours}H" if hours else ""
    if minutes:
        time += f"{minutes}M"
    if fraction:
        time += f"{seconds}.{fraction:06d}".rstrip("0") + "S"
    elif seconds or not (date or time):
        time += f"{seconds}S"
    return f"P{date}T{time}" if time else f"P{date}"
