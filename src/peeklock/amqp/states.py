"""State tables of links and sessions.

A move that a table lacks is a defect of ours: errors of the peer are refused before. The states of a
connection are in `handshake`. Source: OASIS AMQP 1.0 sections 2.5 and 2.6.3.
"""

from __future__ import annotations

import enum
from typing import Final


class LinkState(enum.Enum):
    """State of a link."""

    PENDING = 1
    """The peer's attach waits for our answer."""
    ATTACH_SENT = 2
    """Our attach waits for the peer's answer."""
    ATTACHED = 3
    DETACH_SENT = 4


class LinkMove(enum.Enum):
    """Transition of a link."""

    ACCEPT = 1
    """We answer the peer's attach."""
    ANSWERED = 2
    """The peer answers our attach."""
    DETACH = 3
    """We detach, or the session ends."""


LINK_TRANSITIONS: Final[dict[LinkState, dict[LinkMove, LinkState]]] = {
    LinkState.PENDING: {
        LinkMove.ACCEPT: LinkState.ATTACHED,
        LinkMove.DETACH: LinkState.DETACH_SENT,  # refused, after an attach with a null terminus
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


class SessionState(enum.Enum):
    """State of a session."""

    BEGIN_SENT = 1
    MAPPED = 2
    END_SENT = 3


class SessionMove(enum.Enum):
    """Transition of a session."""

    BEGUN = 1
    """The peer's begin arrives."""
    END = 2
    """We end it before the peer does."""


SESSION_TRANSITIONS: Final[dict[SessionState, dict[SessionMove, SessionState]]] = {
    SessionState.BEGIN_SENT: {
        SessionMove.BEGUN: SessionState.MAPPED,
        SessionMove.END: SessionState.END_SENT,
    },
    SessionState.MAPPED: {SessionMove.END: SessionState.END_SENT},
    SessionState.END_SENT: {},
}
