"""ISO 8601 durations as the service writes and reads them: a leaf.

Owns: text <-> whole milliseconds, and the largest time span that stands for "never". Must not know: which
setting. Source: wire contract 7.3 (durations); XML Schema Part 2, 3.2.6.
"""

from __future__ import annotations

import re

from peeklock.broker.descriptions import UNLIMITED_MS

UNLIMITED_TEXT = "P10675199DT2H48M5.4775807S"
"""2^63 - 1 ticks of 100 ns."""

# 18 digits are more than the largest time span has in any unit, so that no text makes int() work hard.
_DURATION = re.compile(
    r"P(?:(\d{1,18})D)?(T(?:(\d{1,18})H)?(?:(\d{1,18})M)?(?:(\d{1,18})(?:\.(\d{1,18}))?S)?)?", re.ASCII
)


def parse_duration(text: str) -> int:
    """Read a duration such as `PT1M`, in whole ms (rounded down); UNLIMITED_MS from the largest on.

    Clients send the largest span rounded to microseconds, upwards: `P10675199DT2H48M5.477581S`.

    Raises: ValueError for anything else; years and months too, which have no fixed length.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.group(1, 3, 4, 5)) or match.group(2) == "T":
        raise ValueError(f"{text!r} is not an ISO 8601 duration such as PT1M")
    days, hours, minutes, seconds = (int(part or 0) for part in match.group(1, 3, 4, 5))
    ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + int(
        (match.group(6) or "")[:3].ljust(3, "0")
    )
    return min(ms, UNLIMITED_MS)


def format_duration(ms: int) -> str:
    """Write a duration as the service does: largest units first, no zero parts; `PT0S` for nothing."""
    if ms >= UNLIMITED_MS:
        return UNLIMITED_TEXT
    seconds, fraction = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    date = f"{days}D" if days else ""
    time = f"{hours}H" if hours else ""
    if minutes:
        time += f"{minutes}M"
    if fraction:
        time += f"{seconds}.{fraction:03d}".rstrip("0") + "S"
    elif seconds or not (date or time):
        time += f"{seconds}S"
    return f"P{date}T{time}" if time else f"P{date}"
