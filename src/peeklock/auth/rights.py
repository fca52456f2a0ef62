"""Rights, the rules that carry them, and the grants of tokens and keys."""

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
"""Characters of a path with scopes. Our choice: the longest real path (260 + 50 and suffixes) is far shorter,
and splitting one of 32 KiB of slashes takes 40 ms."""


def implied(rights: Iterable[Right]) -> frozenset[Right]:
    """Return rights with those they imply: Manage includes Send and Listen. Source: as `Right`."""
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
    """Its entity, in any case; empty = the namespace."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that are not empty, the primary one first."""
        return tuple(key for key in (self.primary_key, self.secondary_key) if key)


@dataclass(frozen=True, slots=True)
class Proof:
    """The rule and the key behind a grant, so that it can be revoked with them."""

    path: str
    name: str
    """Both in lower case, as `Authority` looks rules up."""
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class TokenProof:
    """What a web token has said behind a grant, so that it can be revoked when the accepted tokens change."""

    issuer: str
    audiences: frozenset[str]
    roles: frozenset[str]
    """The names that the broker knew."""
    key: object = field(repr=False)
    """The issuer's key that verified it (`jwk.Key`)."""
    path: str = ""
    """The roles are the namespace's."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights for a path and everything below it, until a time."""

    rights: frozenset[Right]
    path: str
    """Lower case, no slash at either end; empty = the whole namespace."""
    expires_at_ms: int | None
    """UTC ms from which it is void; None = as long as the connection lasts."""
    proof: Proof | TokenProof | None = None
    """None = from neither key nor token."""
    name: str = field(default="", compare=False)
    """Of the rule as it is spelled, or of the token's roles, for the operator; empty = anybody."""

    @property
    def identity(self) -> str:
        """Whose it is: the key, by the entity of its rule and its name, or the roles; empty = anybody."""
        if isinstance(self.proof, TokenProof):
            return f"{self.proof.issuer} {self.name}"
        return self.name if self.proof is None else identity_of(self.proof.path, self.name)

    def covers(self, path: str) -> bool:
        """Whether a path (lower case, no outer slashes) is this grant's or below it."""
        if self.proof is not None and not belongs(path, self.proof.path):
            return False
        return within(path, self.path)

    def valid_at(self, now_ms: int) -> bool:
        """Whether the grant is valid at `now_ms`."""
        return self.expires_at_ms is None or now_ms < self.expires_at_ms


def identity_of(path: str, name: str) -> str:
    """Return whose the grants of a rule are; `path` as in grants. No issuer of roles has its form."""
    return f"{path} {name}".strip()


def within(path: str, scope: str) -> bool:
    """Whether `path` is `scope` or below it on a `/` boundary. Source: wire contract 1.8, step 7."""
    return not scope or path == scope or path.startswith(scope + "/")


def belongs(path: str, entity: str) -> bool:
    """Whether `path` belongs to an entity: itself, a subscription of it, or a node such as `$management`.

    Names may have slashes: `a/b` is below `a`, but a separate entity, to which the rules of `a` do not apply.
    Everything belongs to the namespace, the empty `entity`.
    """
    if not entity or path == entity:
        return True
    rest = path.removeprefix(entity + "/")
    return rest != path and rest.startswith(("subscriptions/", "$"))


def scopes(path: str) -> Iterator[str]:
    """Yield every scope that `path` is `within`, the nearest first: itself, its parents, and "".

    A path above `PATH_LENGTH_MAX` has only the last one.
    """
    while path and len(path) <= PATH_LENGTH_MAX:
        yield path
        path = path.rpartition("/")[0]
    yield ""


def normal_path(path: str) -> str:
    """Return a path as in grants: lower case, no slash at either end."""
    return path.strip("/").lower()
