"""JSON web tokens: verification, and the mapping of roles to rights.

Nothing of a token is trusted before its signature is verified: the header is read strictly, the key is one of
the configured issuer, never one that the token names or contains (`jku`, `x5u`, `jwk`, `x5c` are ignored),
and the algorithm is one of that key. Only then is the payload read, from the very bytes that were verified.
PyJWT verifies the signature; times are compared here, with the `now_ms` of the caller.
Source: RFC 7515 (JWS), RFC 7519 (JWT), RFC 8725 (best practices).
"""

from __future__ import annotations

import math
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jwt import PyJWS, PyJWTError

from peeklock.auth.errors import (
    AudienceNotCovered,
    ClaimMissing,
    IssuerRefused,
    SignatureInvalid,
    TokenExpired,
    TokenMalformed,
    TokenNotYetValid,
    TokenTypeUnsupported,
)
from peeklock.auth.jwk import ALGORITHMS, KEY_ID_LENGTH_MAX, Key, read_object
from peeklock.auth.rights import ALL_RIGHTS, Grant, Right, TokenProof, implied, within
from peeklock.auth.sas import split_resource

TOKEN_LENGTH_MAX = 16 * 1024
"""Characters. Our choice: with 200 group ids, Entra's maximum, a token has 10,000."""

SKEW_MS_MAX = 60_000
"""How far the issuer's clock may be ahead of ours, for `nbf` and `iat`. Our choice: `exp` is exact."""

DEFAULT_AUDIENCES = frozenset({"https://servicebus.azure.net", "https://servicebus.azure.net/"})
"""Audience of the official clients; issuers write it either way. Source: wire contract 1.8."""

DEFAULT_ROLES_CLAIM = "roles"

TYPES = frozenset({"jwt", "at+jwt"})
"""The `typ` of access tokens (RFC 9068 2.1); others have another purpose (RFC 8725 3.11)."""

_SECONDS_MAX = 1 << 40
_KeysFor = Callable[[str | None], Sequence[Key]]


@dataclass(frozen=True, slots=True)
class RoleRight:
    """A right of a role."""

    right: Right
    path: str = ""
    """Where, and below: lower case, no slash at either end; empty = the whole namespace."""


DEFAULT_ROLES: Mapping[str, tuple[RoleRight, ...]] = {
    "Azure Service Bus Data Owner": tuple(
        RoleRight(right) for right in sorted(ALL_RIGHTS, key=lambda right: right.value)
    ),
    "Azure Service Bus Data Sender": (RoleRight(Right.SEND),),
    "Azure Service Bus Data Receiver": (RoleRight(Right.LISTEN),),
}
"""Source: Learn "Azure built-in roles", as the service's own."""


@dataclass(frozen=True, slots=True)
class JwtSettings:
    """The accepted issuer, and the rights of its roles."""

    issuer: str
    """Must equal `iss`."""
    audiences: frozenset[str] = DEFAULT_AUDIENCES
    """One of them must equal or be in `aud`."""
    roles_claim: str = DEFAULT_ROLES_CLAIM
    """The name of a claim, or names joined by dots for a nested one."""
    roles: Mapping[str, tuple[RoleRight, ...]] = field(default_factory=lambda: DEFAULT_ROLES)
    keys: tuple[Key, ...] | None = None
    """None = the issuer's published keys."""


class JwtVerifier:
    """Verifies tokens of one issuer."""

    def __init__(self, settings: JwtSettings, keys: _KeysFor) -> None:
        """Make a verifier.

        `keys` returns all keys of the issuer, given the key id that the token names (None = none), or raises
        KeysUnavailable.
        """
        self._settings = settings
        self._keys = keys
        self._signatures = PyJWS(algorithms=list(ALGORITHMS))

    def authorize(self, token: str, audience: str, now_ms: int) -> Grant:
        """Verify a token for an audience, a URI or a bare path, and grant the rights of its roles there.

        These may be none: a missing right is reported when an operation needs it. `now_ms` is UTC; a token
        that expires exactly now has expired.

        Raises:
            TokenMalformed, TokenTypeUnsupported: not a signed token, or one for another purpose.
            SignatureInvalid: no known key fits.
            KeysUnavailable: the keys are still being fetched.
            IssuerRefused, AudienceNotCovered, TokenExpired, TokenNotYetValid: genuine, but not acceptable.
            ClaimMissing: none of its roles is known.
        """
        payload, key = self._verified(token)
        try:
            claims = read_object(payload)
        except ValueError as failure:
            raise TokenMalformed(f"MalformedToken: The token's payload is refused: {failure}.") from None
        settings = self._settings
        if claims.get("iss") != settings.issuer:
            raise IssuerRefused(
                f"InvalidIssuer: Only tokens issued by '{settings.issuer}' are accepted here."
            )
        audiences = self._audiences(claims)
        expires_at_ms = _check_times(claims, now_ms)
        path = split_resource(audience)[1]
        roles = self._roles(claims)
        proof = TokenProof(settings.issuer, audiences, roles, key)
        return Grant(self._rights(roles, path), path, expires_at_ms, proof, ", ".join(sorted(roles)))

    def upholds(self, grant: Grant, proof: TokenProof) -> bool:
        """Return whether the token behind a grant would still get its rights; keys of the issuer may go."""
        settings = self._settings
        return (
            proof.issuer == settings.issuer
            and not settings.audiences.isdisjoint(proof.audiences)
            and (settings.keys is None or proof.key in settings.keys)
            and grant.rights <= self._rights(proof.roles, grant.path)
        )

    def _verified(self, token: str) -> tuple[bytes, Key]:
        """Return the payload of a token with a valid signature, and the key that verified it."""
        algorithm, kid = _read_header(token)
        for key in self._keys(kid):
            # A key without an id may be the one that the token names.
            if algorithm in key.algorithms and (kid is None or key.kid is None or key.kid == kid):
                try:
                    payload: bytes = self._signatures.decode(token, key.public, algorithms=[algorithm])
                except PyJWTError:
                    continue
                return payload, key
        raise SignatureInvalid(
            "InvalidSignature: The token has an invalid signature, or its issuer has no such key."
        )

    def _audiences(self, claims: Mapping[str, Any]) -> frozenset[str]:
        """Return those of a token that is for us."""
        named = claims.get("aud")
        audiences = [named] if isinstance(named, str) else named
        if not isinstance(audiences, list) or not all(isinstance(one, str) for one in audiences):
            raise TokenMalformed("MalformedToken: The token's audience 'aud' is missing or not a string.")
        if self._settings.audiences.isdisjoint(audiences):
            wanted = min(self._settings.audiences)
            raise AudienceNotCovered(
                f"InvalidAudience: The token was issued for another audience than '{wanted}': request one "
                "for that audience."
            )
        return frozenset(audiences)

    def _rights(self, roles: Iterable[str], path: str) -> frozenset[Right]:
        rights = (one for name in roles for one in self._settings.roles.get(name, ()))
        return implied({one.right for one in rights if within(path, one.path)})

    def _roles(self, claims: Mapping[str, Any]) -> frozenset[str]:
        """Return the known roles of a token. Raises: ClaimMissing, if there are none."""
        held = _find_claim(claims, self._settings.roles_claim)
        if isinstance(held, str):
            # One role, or a list of words as in OAuth's `scope`.
            held = [held] if held in self._settings.roles else held.split()
        names = {name for name in held if isinstance(name, str)} if isinstance(held, list) else set()
        roles = frozenset(names & self._settings.roles.keys())
        if not roles:
            raise ClaimMissing(
                "Unauthorized access. The token has no known role in its claim "
                f"'{self._settings.roles_claim}'. Known roles are those of the table [roles] in the broker's "
                "--jwt file, or Azure's if the file has no such table."
            )
        return roles


def _read_header(token: str) -> tuple[str, str | None]:
    """Return the algorithm, one of ours, and the key id; the header is not trusted yet."""
    if len(token) > TOKEN_LENGTH_MAX:
        raise TokenMalformed(f"MalformedToken: The token is longer than {TOKEN_LENGTH_MAX} characters.")
    parts = token.split(".")
    if len(parts) == 5:
        raise TokenTypeUnsupported("InvalidToken: Encrypted tokens are not accepted.")
    if len(parts) != 3:
        raise TokenMalformed("MalformedToken: The token is not a JSON web token of three parts.")
    try:
        header = read_object(_decoded(parts[0]))
    except ValueError as failure:
        raise TokenMalformed(f"MalformedToken: The token's header is refused: {failure}.") from None
    algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if "crit" in header or "b64" in header:
        raise TokenTypeUnsupported("InvalidToken: Tokens with critical extensions are not accepted.")
    if "cty" in header or "enc" in header:
        raise TokenTypeUnsupported("InvalidToken: Nested and encrypted tokens are not accepted.")
    if not isinstance(kind, str) or kind.lower().removeprefix("application/") not in TYPES:
        raise TokenTypeUnsupported("InvalidToken: The token's type 'typ' is not that of an access token.")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise SignatureInvalid(
            f"InvalidSignature: The token is not signed with one of {', '.join(ALGORITHMS)}."
        )
    if kid is not None and (not isinstance(kid, str) or len(kid) > KEY_ID_LENGTH_MAX):
        raise TokenMalformed(
            f"MalformedToken: 'kid' must be a string of at most {KEY_ID_LENGTH_MAX} characters."
        )
    for part in parts[1:]:
        _decoded(part)  # PyJWT would ignore illegal characters
    return algorithm, kid


def _decoded(part: str) -> bytes:
    """Return decoded base64url, strictly as in RFC 7515 2: no padding, no other character, one form."""
    try:
        data = urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except ValueError:  # also for non-ASCII
        data = b""
    if not data or urlsafe_b64encode(data).rstrip(b"=") != part.encode(errors="replace"):
        raise TokenMalformed("MalformedToken: The token is not base64url.")
    return data


def _check_times(claims: Mapping[str, Any], now_ms: int) -> int:
    """Return the UTC ms from which the token has expired."""
    times = {name: _milliseconds(name, claims[name]) for name in ("exp", "nbf", "iat") if name in claims}
    if "exp" not in times:
        raise TokenMalformed("MalformedToken: The token has no expiry 'exp'.")
    if times["exp"] <= now_ms:
        raise TokenExpired.at(times["exp"], now_ms)
    for name in ("nbf", "iat"):
        if times.get(name, 0) > now_ms + SKEW_MS_MAX:
            raise TokenNotYetValid(
                f"InvalidToken: The token is not valid yet ('{name}'); compare the issuer's clock with ours."
            )
    return times["exp"]


def _milliseconds(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenMalformed(f"MalformedToken: '{name}' is not a number of seconds.")
    if not 0 <= value <= _SECONDS_MAX:
        raise TokenMalformed(f"MalformedToken: '{name}' is out of range.")
    return math.floor(value * 1000)


def _find_claim(claims: Mapping[str, Any], name: str) -> object:
    """Return a claim by its name, which may contain dots, or by the dotted names of the claims around it."""
    if name in claims:
        return claims[name]
    for at, character in enumerate(name):
        inner = claims.get(name[:at]) if character == "." else None
        if isinstance(inner, dict):
            found = _find_claim(inner, name[at + 1 :])
            if found is not None:
                return found
    return None
