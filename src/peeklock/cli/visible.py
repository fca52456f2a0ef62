"""Text of strangers, safe to print: what a terminal would hide, obey or turn round is shown escaped. Pure."""

from __future__ import annotations

from typing import Final

_IGNORABLE: Final = frozenset(
    map(
        chr,
        (
            0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0,
            *range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0),
        ),
    )
)  # fmt: skip
"""Characters that count as letters or marks, and show nothing: joiners, fillers, blanks, variation
selectors. Source: Unicode's Default_Ignorable_Code_Point; the blank of Braille."""


def visible(text: str) -> str:
    r"""Return a text in which each character shows: `\n`, `\x1b`, `\u202e` instead of what is not visible.

    These are control characters, formats such as those that change the direction, spaces other than the usual
    one, and what no font has. A backslash stays as it is.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each if each.isprintable() and each not in _IGNORABLE else ascii(each)[1:-1] for each in text
    )
