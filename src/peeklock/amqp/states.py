"""The lives of a link and of a session: each state, what moves it, and where to.

Owns: the tables. Must not know: which frame or call makes a move; `link` and `session` look it up.
A move that a table lacks is a defect of ours: what the peer does wrong is refused before. The states of a
connection are in `handshake`. Source: OASIS AMQP 1.0 sections 2.5 and 2.6.3.
"""

from __future__ import annotations

import enum
from typing import Final


class LinkState(enum.Enum):
    """Where a link is in its life."""

    PENDING = 1
    """The peer's attach waits for our answer."""
    ATTACH_SENT = 2
    """Our attach waits for the peer's answer."""
    ATTACHED = 3
    DETACH_SENT = 4


class LinkMove(enum.Enum):
    """What moves a link from one state to another."""

    ACCEPT = 1
    """We answer the peer's attach."""
    ANSWERED = 2
    """The peer answers our attach."""
    DETACH = 3
    """We detach, in answer to the peer or not, or the session ends."""


LINK_TRANSITIONS: Final[dict[LinkState, dict[LinkMove, LinkState]]] = {
    LinkState.PENDING: {
        LinkMove.ACCEPT: LinkState.ATTACHED,
        LinkMove.DETACH: LinkState.DETACH_SENT,  # refused: the attach with a null terminus goes before
    },
    LinkState.ATTACH_SENT: {
        LinkMove.ANSWERED: LinkState.ATTACHED,
        LinkMove.DETACH: LinkState.DETACH_SENT,
    },
    LinkState.ATTACHED: {LinkMove.DETACH: LinkState.DETACH_SENT},
    LinkState.DETACH_SENT: {
        LinkMove.ANSWERED: LinkState.DETACH_SENT,  # the peer's attach crossed our detach
    },
}
"""The next state of a link."""


class SessionState(enum.Enum):
    """Where a session is in its life."""

    BEGIN_SENT = 1
    MAPPED = 2
    END_SENT = 3


class SessionMove(enum.Enum):
    """What moves a session from one state to another."""

    BEGUN = 1
    """The peer's begin is here."""
    END = 2
    """We end it, and the peer has not."""


SESSION_TRANSITIONS: Final[dict[SessionState, dict[SessionMove, SessionState]]] = {
    SessionState.BEGIN_SENT: {
        SessionMove.BEGUN: SessionState.MAPPED,
        SessionMove.END: SessionState.END_SENT,
    },
    SessionState.MAPPED: {SessionMove.END: SessionState.END_SENT},
    SessionState.END_SENT: {},
}
"""The next state of a session."""
