"""Authorization: shared access signatures, JSON web tokens, rules, rights. A pure leaf without a clock.

It knows neither AMQP nor HTTP, nor whether an entity exists. No key, signature or token appears in a repr or
in the text of an error.

    authority   the rules of a namespace: verifies tokens and keys, revokes grants
    rights      rights, rules, grants, and paths that a grant covers
    sas         shared access signatures
    jwt, jwk    JSON web tokens; the public keys that verify them
    errors      refusals, one class per reason
"""

from __future__ import annotations

from peeklock.auth.authority import DEVELOPMENT_KEY, DEVELOPMENT_KEY_NAME, Authority, OpenAuthority
from peeklock.auth.errors import (
    AnotherNamespace,
    AudienceNotCovered,
    AuthorizationError,
    ClaimMissing,
    IssuerRefused,
    KeyRefused,
    KeysUnavailable,
    NamespaceFull,
    SignatureInvalid,
    TokenExpired,
    TokenMalformed,
    TokenNotYetValid,
    TokenTypeUnsupported,
)
from peeklock.auth.rights import ALL_RIGHTS, Grant, Proof, Right, SasRule
from peeklock.auth.sas import SasToken, generate

__all__ = [
    "ALL_RIGHTS",
    "DEVELOPMENT_KEY",
    "DEVELOPMENT_KEY_NAME",
    "AnotherNamespace",
    "AudienceNotCovered",
    "Authority",
    "AuthorizationError",
    "ClaimMissing",
    "Grant",
    "IssuerRefused",
    "KeyRefused",
    "KeysUnavailable",
    "NamespaceFull",
    "OpenAuthority",
    "Proof",
    "Right",
    "SasRule",
    "SasToken",
    "SignatureInvalid",
    "TokenExpired",
    "TokenMalformed",
    "TokenNotYetValid",
    "TokenTypeUnsupported",
    "generate",
]
