"""How clients spell session ids, and which session a spelling means (C27).

The model folds in a way of its own: with a table, to small letters.
"""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase

_SMALL = str.maketrans(ascii_uppercase + "ÜΣς", ascii_lowercase + "üσσ")


def session_of(session_id: str) -> str:
    """Name the session that a spelling of the simulation means."""
    return session_id.translate(_SMALL)


def spelt(session_id: str, number: int) -> str:
    """Spell a session id in one of three ways."""
    return (session_id, session_id.upper(), session_id.title())[number % 3]
