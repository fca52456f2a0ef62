"""How clients spell session ids, and which session a spelling means (C27).

The model folds case in its own way: with a table, to small letters.
"""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase

_SMALL = str.maketrans(ascii_uppercase + "ÜΣς", ascii_lowercase + "üσσ")


def session_of(session_id: str) -> str:
    """Return the session that a spelling of the simulation means."""
    return session_id.translate(_SMALL)


def spelt(session_id: str, number: int) -> str:
    """Return one of three spellings of a session id."""
    return (session_id, session_id.upper(), session_id.title())[number % 3]
