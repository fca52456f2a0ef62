"""The grants of one connection, by audience, until they expire. Source: wire contract 1.7."""

from __future__ import annotations

from collections.abc import Callable

from peeklock.auth import ClaimMissing, Grant, Right
from peeklock.auth.rights import scopes
from peeklock.gateway.errors import TooManyGrants

GRANTS_MAX = 1024
"""Audiences per connection. Our choice: a client puts one token per entity it uses."""


class Claims:
    """The grants of one connection."""

    def __init__(self, ahead_ms: Callable[[], int] = int) -> None:
        """`ahead_ms`: how far the wall clock is ahead of the `now_ms` of each call."""
        self._ahead_ms = ahead_ms
        self._grants: dict[str, Grant] = {}
        self.shown = False
        """Whether there has ever been a valid claim: a grant, even if it has expired, or a token for
        an absent entity."""
        self.token_checked_at_ms: int | None = None
        """When the first valid token came, while all were for absent entities."""

    def wall_ms(self, now_ms: int) -> int:
        """Return the time of the wall clock, which token issuers use."""
        return now_ms + self._ahead_ms()

    def add(self, grant: Grant) -> bool:
        """Add a grant; one for the same audience is replaced (renewal).

        Returns whether the peer may hold less than before: the old grant had other rights, or came from a
        rule of another path.

        Raises:
            TooManyGrants: for one audience more than `GRANTS_MAX`.
        """
        old = self._grants.get(grant.path)
        if old is None and len(self._grants) >= GRANTS_MAX:
            raise TooManyGrants(f"A connection may hold tokens for {GRANTS_MAX} audiences at most.")
        self._grants[grant.path] = grant
        self.shown = True
        self.token_checked_at_ms = None
        return old is not None and (old.rights, _rule_path(old)) != (grant.rights, _rule_path(grant))

    def token_checked(self, now_ms: int) -> None:
        """Note that the peer has shown a valid token, although its entity is absent."""
        if not self.shown:
            self.shown = True
            self.token_checked_at_ms = now_ms

    @property
    def names(self) -> list[str]:
        """The keys and roles behind the grants, sorted; empty = the peer showed none."""
        return sorted({grant.name for grant in self._grants.values() if grant.name})

    def allow(self, path: str | None, right: Right | None, now_ms: int) -> bool:
        """Return whether a right (None: any) is held for a path (None: any)."""
        wall_ms = self.wall_ms(now_ms)
        near = self._grants.values() if path is None else map(self._grants.get, scopes(path))
        for grant in near:
            if grant is None:
                continue
            held = bool(grant.rights) if right is None else right in grant.rights
            if held and (path is None or grant.covers(path)) and grant.valid_at(wall_ms):
                return True
        return False

    def require(
        self, path: str | None, right: Right | None, now_ms: int, host_name: str = "localhost"
    ) -> None:
        """Raise ClaimMissing unless a right is held for a path; None as in `allow`."""
        if not self.allow(path, right, now_ms):
            wanted = "any" if right is None else right.value
            raise ClaimMissing(
                f"Unauthorized access. '{wanted}' claim(s) are required to perform this operation. "
                f"Resource: 'sb://{host_name}/{path or ''}'."
            )

    def next_expiry_ms(self) -> int | None:
        """Return when the first grant expires, unless the wall clock is set; None = never."""
        ends = (at for grant in self._grants.values() if (at := grant.expires_at_ms) is not None)
        first_ms = min(ends, default=None)
        return None if first_ms is None else first_ms - self._ahead_ms()

    def expire(self, now_ms: int) -> int | None:
        """Drop the expired grants; return when the last of them expired, UTC ms, None if there is none."""
        wall_ms = self.wall_ms(now_ms)
        dropped = self._keep(lambda grant: grant.valid_at(wall_ms))
        return max((at for grant in dropped if (at := grant.expires_at_ms) is not None), default=None)

    def revoke(self, upheld: Callable[[Grant], bool]) -> bool:
        """Drop the grants that are no longer upheld; return whether there were any."""
        return bool(self._keep(upheld))

    def _keep(self, good: Callable[[Grant], bool]) -> list[Grant]:
        """Drop the grants that are not good, and return them."""
        bad = [path for path, grant in self._grants.items() if not good(grant)]
        return [self._grants.pop(path) for path in bad]


def _rule_path(grant: Grant) -> str | None:
    return None if grant.proof is None else grant.proof.path
