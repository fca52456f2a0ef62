"""Texts of refusals for unknown names: they list the known ones."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

_SHOWN_MAX = 40


def unknown(what: str, name: str, known: Collection[str]) -> str:
    """Return the end of a sentence that refuses a name, with a similar one, if any, and all known ones."""
    given = shortened(name)
    if not known:
        return f"an unknown {what} '{given}': none are allowed here."
    by_lower = {each.lower(): each for each in known}
    near = get_close_matches(given.lower(), by_lower, 1)
    meant = f"did you mean '{by_lower[near[0]]}'? Known: " if near else "known: "
    return f"an unknown {what} '{given}'; {meant}{', '.join(known)}."


def shortened(text: str) -> str:
    """Return the beginning of a client's text, in characters that UTF-8 can encode."""
    shown = text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
    return shown.encode(errors="backslashreplace").decode()
