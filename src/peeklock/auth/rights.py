"""Rights, the rules that carry them, and what a token or key grants.

Owns: the three rights of the service and their implication; `SasRule`; the reach of a grant. Must not know:
tokens, where rules are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum


class Right(Enum):
    """A claim of the service. Source: Learn "Service Bus access control with Shared Access Signatures"."""

    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"


ALL_RIGHTS = frozenset(Right)

PATH_LENGTH_MAX = 1024
"""Characters of a path that something may hang on. Our choice: the longest path (260 + 50 and suffixes) stays
far below, and one of 32 KiB with as many slashes as it has room for takes 40 ms to take apart."""


def implied(rights: Iterable[Right]) -> frozenset[Right]:
    """Add what the given rights imply: Manage includes Send and Listen. Source: as `Right`."""
    given = frozenset(rights)
    return ALL_RIGHTS if Right.MANAGE in given else given


@dataclass(frozen=True, slots=True)
class SasRule:
    """A shared access rule of the namespace or of one entity."""

    name: str
    primary_key: str = field(repr=False)
    secondary_key: str = field(default="", repr=False)
    rights: frozenset[Right] = ALL_RIGHTS
    path: str = ""
    """The entity it belongs to, in any case; empty = the namespace."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Give the keys there are, the primary one first; an empty one is none."""
        return tuple(key for key in (self.primary_key, self.secondary_key) if key)


@dataclass(frozen=True, slots=True)
class Proof:
    """The rule and the key by which a grant was given, so that it can be taken back with them."""

    path: str
    name: str
    """Both in lower case, as `Authority` looks rules up."""
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights for a path and everything below it, until a time."""

    rights: frozenset[Right]
    path: str
    """Lower case, no slash at either end; empty = the whole namespace."""
    expires_at_ms: int | None
    """UTC ms; from then on it is void. None = as long as the connection lasts."""
    proof: Proof | None = None
    """None = it hangs on no key of ours."""

    def covers(self, path: str) -> bool:
        """Tell whether a path (lower case, no outer slashes) is this grant's or lies below it."""
        if self.proof is not None and not belongs(path, self.proof.path):
            return False
        return within(path, self.path)

    def valid_at(self, now_ms: int) -> bool:
        """Tell whether the grant still holds at `now_ms`."""
        return self.expires_at_ms is None or now_ms < self.expires_at_ms


def within(path: str, scope: str) -> bool:
    """Tell whether `path` equals `scope` or lies below it on a `/` boundary.

    Source: wire contract 1.8, step 7.
    """
    return not scope or path == scope or path.startswith(scope + "/")


def belongs(path: str, entity: str) -> bool:
    """Tell whether `path` is of an entity: itself, a subscription of it, or a node such as `$management`.

    Names of entities may have slashes: `a/b` is below `a`, but it is an entity of its own, and the rules of
    `a` are not for it. An empty `entity` is the namespace, which everything is of.
    """
    if not entity or path == entity:
        return True
    rest = path.removeprefix(entity + "/")
    return rest != path and rest.startswith(("subscriptions/", "$"))


def scopes(path: str) -> Iterator[str]:
    """Give every scope that `path` is `within`, the nearest first: itself, what it lies below, and "".

    Of a path that is longer than any there is, only the last one.
    """
    while path and len(path) <= PATH_LENGTH_MAX:
        yield path
        path = path.rpartition("/")[0]
    yield ""


def normal_path(path: str) -> str:
    """Write an entity's path as grants have it: lower case, no slash at either end."""
    return path.strip("/").lower()
