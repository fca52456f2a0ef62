"""Rights, and what a token or key grants.

Owns: the three rights of the service and their implication; the reach of a grant. Must not know: tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Right(Enum):
    """A claim of the service. Source: Learn "Service Bus access control with Shared Access Signatures"."""

    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"


ALL_RIGHTS = frozenset(Right)


def implied(rights: Iterable[Right]) -> frozenset[Right]:
    """Add what the given rights imply: Manage includes Send and Listen. Source: as `Right`."""
    given = frozenset(rights)
    return ALL_RIGHTS if Right.MANAGE in given else given


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights for a path and everything below it, until a time."""

    rights: frozenset[Right]
    path: str
    """Lower case, no slash at either end; empty = the whole namespace."""
    expires_at_ms: int | None
    """UTC ms; from then on it is void. None = as long as the connection lasts."""

    def covers(self, path: str) -> bool:
        """Tell whether a path (lower case, no outer slashes) is this grant's or lies below it."""
        return within(path, self.path)

    def valid_at(self, now_ms: int) -> bool:
        """Tell whether the grant still holds at `now_ms`."""
        return self.expires_at_ms is None or now_ms < self.expires_at_ms


def within(path: str, scope: str) -> bool:
    """Tell whether `path` equals `scope` or lies below it on a `/` boundary.

    Source: wire contract 1.8, step 7.
    """
    return not scope or path == scope or path.startswith(scope + "/")
