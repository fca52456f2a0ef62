"""The error of a criterion that cannot be read."""

from __future__ import annotations

import unicodedata
from typing import Final

AROUND: Final = 14
"""Characters shown on each side of a place, so that the line fits 40 columns."""


class SearchError(ValueError):
    """A criterion is not valid.

    Attributes:
        criterion: its name, as of the field of `Criteria`.
        what: what is wrong, in one line.
        position: the place in the text, counted from 0; None = no single place.
    """

    def __init__(self, criterion: str, what: str, text: str = "", position: int | None = None) -> None:
        """`text`: the criterion as it was given."""
        self.criterion = criterion
        self.what = what
        self.position = position
        place = "" if position is None else f", at position {position + 1}:\n{marked(text, position)}"
        super().__init__(f"{what}{place}")


def marked(text: str, position: int) -> str:
    """Return two lines: the text around a position, and a caret below it."""
    start = max(0, position - AROUND)
    head = "..." if start else ""
    tail = "..." if position + AROUND < len(text) else ""
    shown = [each if each.isprintable() else " " for each in text[start : position + AROUND]]
    before = sum(map(_width, shown[: position - start]))
    return f"  {head}{''.join(shown)}{tail}\n  {' ' * (len(head) + before)}^"


def _width(character: str) -> int:
    """Return how many columns of a terminal a character takes."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
