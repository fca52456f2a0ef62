"""Folding of session ids: which spellings name one session.

Session ids compare case-insensitively as in .NET's ordinal comparison: by the simple upper-case mapping of
each code point, in no language. So the dotless i, the long s and the sharp s are letters of their own, and
the two small sigmas are one.
Source: wire contract C27; Unicode Standard, section 5.18, "Case Mappings".
"""

from __future__ import annotations

from functools import lru_cache

_FOLDED_MAX = 4096
"""Folded ids beyond ASCII in memory. Our choice: 1 MB at most."""


def folded(session_id: str) -> str:
    """Return the common form of all spellings: 0.1 us, beyond ASCII 0.2 us a letter the first time."""
    return session_id.upper() if session_id.isascii() else _folded(session_id)


@lru_cache(maxsize=_FOLDED_MAX)
def _folded(session_id: str) -> str:
    return "".join(map(_upper, session_id))


def _upper(letter: str) -> str:
    """Return the simple upper-case mapping of a code point; itself if there is none or it would be ASCII."""
    upper = letter.upper()
    if len(upper) > 1:
        upper = letter.title()  # ᾳ: the full mapping has two letters, the simple one is the title case's
    if len(upper) > 1 or (upper.isascii() and not letter.isascii()):
        return letter
    return upper
