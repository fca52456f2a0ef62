"""LIKE: a pattern is compiled once, and matches a text in one pass.

A pattern is split at its `%` into pieces of fixed width. The first must match the beginning, the last the
end, and each one between is searched from the end of the one before: the leftmost place is always right, so
there is no backtracking. A piece with `_` is searched at all places at once: one integer for each of its
characters has a bit for each place in the text; shifted by the character's place in the piece, they have a
common bit where the piece can begin. So the worst case is text x pattern bits.
Source: wire contract 9.3; Learn "Subscription Rule SQL Filter Syntax", "pattern".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

PATTERN_LENGTH_MAX = 1024
"""Characters, those of an expression."""

Piece: TypeAlias = tuple[str | None, ...]
"""Characters; None matches any one."""
Places: TypeAlias = dict[str, int]
"""For characters searched in one text, an integer with bit n set where the character is at n."""
Finder: TypeAlias = Callable[[str, int, int, Places], int]
"""(text, from, to, places) -> end of the leftmost occurrence, or -1."""


class PatternError(ValueError):
    """An invalid pattern or escape character; the message says why."""


def compile_like(pattern: str, escape: str | None = None) -> Callable[[str], bool]:
    """Return a function that tests whether a text is like a pattern.

    Raises:
        PatternError: too long, or the escape character is not one character or has nothing after it.
    """
    pieces = _pieces(pattern, escape)
    if all(None not in piece for piece in pieces):
        texts = ["".join(character or "" for character in piece) for piece in pieces]
        if len(texts) == 1:
            return texts[0].__eq__
        if len(texts) == 2:
            return _prefix_and_suffix(*texts)
        if len(texts) == 3 and not texts[0] and not texts[2]:
            inner = texts[1]
            return lambda text: inner in text
    return _pieces_in_turn(pieces)


def prefix_of(pattern: str, escape: str | None = None) -> str | None:
    """Return the prefix that a pattern asks for; None if it asks for more."""
    first, *others = _pieces(pattern, escape)
    if others != [()]:
        return None
    return "".join(character for character in first if character is not None) if None not in first else None


def _pieces(pattern: str, escape: str | None) -> list[Piece]:
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise PatternError(f"the pattern has {len(pattern)} characters; the limit is {PATTERN_LENGTH_MAX}")
    if escape is not None and len(escape) != 1:
        raise PatternError(f"ESCAPE takes one character, found {escape!r}")
    pieces: list[Piece] = []
    piece: list[str | None] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, None)
            if literal is None:
                raise PatternError("the pattern ends with its escape character")
            piece.append(literal)
        elif character == "%":
            # Several in a row are like one.
            if piece or not pieces:
                pieces.append(tuple(piece))
            piece = []
        else:
            piece.append(None if character == "_" else character)
    return [*pieces, tuple(piece)]


def _prefix_and_suffix(prefix: str, suffix: str) -> Callable[[str], bool]:
    length = len(prefix) + len(suffix)
    if not suffix:
        return lambda text: text.startswith(prefix)
    return lambda text: len(text) >= length and text.startswith(prefix) and text.endswith(suffix)


def _pieces_in_turn(pieces: list[Piece]) -> Callable[[str], bool]:
    first, *others = pieces
    length = sum(map(len, pieces))
    starts = _matcher(first)
    if not others:
        return lambda text: len(text) == length and starts(text, 0)
    *between, last = others
    finders = [_finder(piece) for piece in between]
    ends = _matcher(last)
    head, tail = len(first), len(last)

    def is_like(text: str) -> bool:
        if len(text) < length or not starts(text, 0) or not ends(text, len(text) - tail):
            return False
        position, limit = head, len(text) - tail
        places: Places = {}
        for find in finders:
            position = find(text, position, limit, places)
            if position < 0:
                return False
        return True

    return is_like


def _matcher(piece: Piece) -> Callable[[str, int], bool]:
    """Return a function that tests for a piece at a position; the text must be long enough."""
    runs: list[tuple[int, str]] = []
    offset = 0
    for run in "".join("_" if character is None else "x" for character in piece).split("_"):
        if run:
            runs.append((offset, "".join(c or "" for c in piece[offset : offset + len(run)])))
        offset += len(run) + 1

    def matches_at(text: str, position: int) -> bool:
        return all(text.startswith(run, position + offset) for offset, run in runs)

    return matches_at


def _finder(piece: Piece) -> Finder:
    size = len(piece)
    if None not in piece:
        literal = "".join(character or "" for character in piece)

        def find_literal(text: str, start: int, end: int, places: Places) -> int:
            found = text.find(literal, start, end)
            return found if found < 0 else found + size

        return find_literal

    wanted = [(offset, character) for offset, character in enumerate(piece) if character is not None]

    def find(text: str, start: int, end: int, places: Places) -> int:
        # Bit n: so far the piece can begin at n. -1 has all bits.
        found = -1
        for offset, character in wanted:
            there = places.get(character)
            if there is None:
                there = places[character] = _places(text, character)
            found &= there >> offset
            if not found:
                return -1
        found >>= start
        position = start + (found & -found).bit_length() - 1 + size
        return position if found and position <= end else -1

    return find


def _places(text: str, character: str) -> int:
    """Return an integer with bit n set where a character is at n."""
    count = text.count(character)
    if count * _RARE < len(text):
        bits = bytearray(len(text) // 8 + 1)
        position = -1
        for _ in range(count):
            position = text.find(character, position + 1)
            bits[position >> 3] |= 1 << (position & 7)
        return int.from_bytes(bits, "little")
    if character != _MARK:
        text = text.replace(_MARK, "b" if character == "a" else "a").replace(character, _MARK)
    # All else becomes 0, also non-ASCII; the first character is the lowest bit.
    return int(text.encode("ascii", "replace").translate(_DIGITS)[::-1], 2)


_MARK = "\x01"
_DIGITS = bytes(ord("1") if code == ord(_MARK) else ord("0") for code in range(256))
_RARE = 32
"""A character rarer than one in so many is searched place by place, which is faster then."""
