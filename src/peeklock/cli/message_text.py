"""Browsed messages for people: lines of a table that fit the terminal, and one message whole. Pure."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rich.cells import cell_len, set_cell_size

from peeklock.cli.visible import visible

GAP: Final = "  "
BODY_MIN: Final = 16
"""Columns of the body; a further column is shown only if as much is left."""
BODY_CHARACTERS: Final = 400
"""Characters of a body that a line may need: more than a terminal is wide."""

_FURTHER: Final = (("ID", 14), ("SUBJECT", 12), ("STATE", 9), ("SESSION", 12), ("SIZE", 7))
"""Columns that are shown if there is room, the most important first."""
ENQUEUED: Final = "ENQUEUED (UTC)"
DUE: Final = "DUE (UTC)"
_TIMES: Final = {ENQUEUED: "enqueuedTime", DUE: "scheduledEnqueueTime"}
"""Column -> key of a message. A table has one of them."""
_NARROW: Final = {ENQUEUED: 14, DUE: 16}
_ORDER: Final = ("SEQUENCE", *_TIMES, "ID", "SUBJECT", "SESSION", "STATE", "SIZE", "BODY")
_RIGHT: Final = ("SEQUENCE", "SIZE")
_WIDE: Final = 100
"""From this width on, times have year and seconds. Below, a time in the past has no year, one that is due no
seconds."""


def columns(width: int, time: str = ENQUEUED) -> dict[str, int]:
    """Return the columns that fit a terminal, in their order, with their widths; the body has the rest."""
    chosen = {"SEQUENCE": 8, time: 19 if width >= _WIDE else _NARROW[time]}
    left = width - sum(chosen.values()) - len(GAP) * len(chosen)
    for name, size in _FURTHER:
        if left - size - len(GAP) < BODY_MIN:
            break
        chosen[name] = size
        left -= size + len(GAP)
    chosen["BODY"] = max(left, 1)
    return {name: chosen[name] for name in _ORDER if name in chosen}


def head(layout: Mapping[str, int]) -> str:
    """Return the head of a table."""
    return GAP.join(_cell(name, name, size) for name, size in layout.items()).rstrip()


def line(found: Mapping[str, Any], layout: Mapping[str, int]) -> str:
    """Return the line of a message, as `message_json` makes it."""
    cells = {
        "SEQUENCE": str(found.get("sequenceNumber", "-")),
        **{name: _time(found.get(key), layout[name]) for name, key in _TIMES.items() if name in layout},
        "ID": found.get("messageId"),
        "SUBJECT": found.get("subject"),
        "SESSION": found.get("sessionId"),
        "STATE": found["state"],
        "SIZE": f"{found['sizeBytes']:,}",
        "BODY": _start(found),
    }
    return GAP.join(
        _cell(name, "-" if cells[name] is None else visible(str(cells[name])), size)
        for name, size in layout.items()
    ).rstrip()


def whole(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a message in full."""
    facts = {key: value for key, value in found.items() if key != "properties" and not key.startswith("body")}
    yield from _pairs(facts)
    if properties := found.get("properties"):
        yield "properties"
        yield from _pairs(properties, "  ")
    kind = found.get("bodyType")
    if kind is None:
        yield "no body"
        return
    if "bodyBase64" in found:
        yield f"body ({kind}, bytes in base64)"
        lines: Sequence[str] = textwrap.wrap(found["bodyBase64"], 76)
    elif "bodyValue" in found:
        yield f"body ({kind}, as JSON)"
        lines = json.dumps(found["bodyValue"], indent=2, ensure_ascii=False).split("\n")
    else:
        yield f"body ({kind})"
        lines = found["body"].replace("\r\n", "\n").split("\n")
    yield from (f"  {visible(each)}".rstrip() for each in lines)


def _pairs(pairs: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    names = {visible(name): value for name, value in pairs.items()}
    size = max(map(cell_len, names))
    for name, value in names.items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield f"{indent}{set_cell_size(name, size)}{GAP}{visible(shown)}".rstrip()


def _cell(name: str, text: str, size: int) -> str:
    if name in _RIGHT:  # a number is not cut
        return f"{text:>{size}}"
    if cell_len(text) > size:
        return set_cell_size(text, size - 1) + "…"
    return set_cell_size(text, size)


def _time(text: Any, size: int) -> str | None:
    if not isinstance(text, str) or "T" not in text:
        return text if isinstance(text, str) else None
    shown = text.partition(".")[0].replace("T", " ")
    if size == _NARROW[DUE]:
        return shown[:size]
    return shown if len(shown) <= size else shown[5:]


def _start(found: Mapping[str, Any]) -> str:
    """Return the start of a body."""
    if "bodyValue" in found:
        return json.dumps(found["bodyValue"], ensure_ascii=False)[:BODY_CHARACTERS]
    if "bodyBase64" in found:
        return f"base64: {found['bodyBase64'][:BODY_CHARACTERS]}"
    text: str = found.get("body", "")
    return text[:BODY_CHARACTERS]


def did_you_mean(names: Sequence[str]) -> str:
    """Return a question about the nearest names, to follow what is not there; empty = there are none."""
    return f"; did you mean {' or '.join(repr(each) for each in names)}?" if names else ""


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that are most like one, at most three."""
    from difflib import get_close_matches

    by_lower = {each.lower(): each for each in known}
    wanted = name.lower()
    below = [each for each in by_lower if each.startswith(f"{wanted}/")]
    found = [*below, *get_close_matches(wanted, by_lower, n=3, cutoff=0.5)]
    return [by_lower[each] for each in dict.fromkeys(found)][:3]
