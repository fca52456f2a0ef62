"""What a connection may do: the grants it has been given, until they run out.

Owns: the grants of one connection, by audience. Must not know: tokens, links. Source: wire contract 1.7.
"""

from __future__ import annotations

from collections.abc import Callable

from peeklock.auth import ClaimMissing, Grant, Right
from peeklock.auth.rights import scopes
from peeklock.gateway.errors import TooManyGrants

GRANTS_MAX = 1024
"""Audiences per connection. Our choice: a client puts one token per entity it uses."""


class Claims:
    """The grants of one connection."""

    def __init__(self) -> None:
        self._grants: dict[str, Grant] = {}
        self.shown = False
        """Whether there has ever been a grant, also one that has run out."""

    def add(self, grant: Grant) -> bool:
        """Take a grant; one for the same audience is replaced (renewal).

        Answers whether less may be held than before: the one that was replaced had other rights, or hung on
        a rule of another path.

        Raises:
            TooManyGrants: for one audience more than `GRANTS_MAX`.
        """
        old = self._grants.get(grant.path)
        if old is None and len(self._grants) >= GRANTS_MAX:
            raise TooManyGrants(f"A connection may hold tokens for {GRANTS_MAX} audiences at most.")
        self._grants[grant.path] = grant
        self.shown = True
        return old is not None and (old.rights, _rule_path(old)) != (grant.rights, _rule_path(grant))

    def allow(self, path: str | None, right: Right | None, now_ms: int) -> bool:
        """Tell whether a right (None: any right at all) is held for a path (None: for anything)."""
        near = self._grants.values() if path is None else map(self._grants.get, scopes(path))
        for grant in near:
            if grant is None:
                continue
            held = bool(grant.rights) if right is None else right in grant.rights
            if held and (path is None or grant.covers(path)) and grant.valid_at(now_ms):
                return True
        return False

    def require(
        self, path: str | None, right: Right | None, now_ms: int, host_name: str = "localhost"
    ) -> None:
        """Insist on a right for a path; None as in `allow`.

        Raises:
            ClaimMissing: it is not held.
        """
        if not self.allow(path, right, now_ms):
            wanted = "any" if right is None else right.value
            raise ClaimMissing(
                f"Unauthorized access. '{wanted}' claim(s) are required to perform this operation. "
                f"Resource: 'sb://{host_name}/{path or ''}'."
            )

    def next_expiry_ms(self) -> int | None:
        """Give when the first grant runs out, None when none ever does."""
        return min(
            (at for grant in self._grants.values() if (at := grant.expires_at_ms) is not None), default=None
        )

    def expire(self, now_ms: int) -> bool:
        """Drop the grants that have run out; tell whether there were any."""
        return self._keep(lambda grant: grant.valid_at(now_ms))

    def revoke(self, upheld: Callable[[Grant], bool]) -> bool:
        """Drop the grants that are not upheld any more; tell whether there were any."""
        return self._keep(upheld)

    def _keep(self, good: Callable[[Grant], bool]) -> bool:
        bad = [path for path, grant in self._grants.items() if not good(grant)]
        for path in bad:
            del self._grants[path]
        return bool(bad)


def _rule_path(grant: Grant) -> str | None:
    return None if grant.proof is None else grant.proof.path
