"""Who may do what: SAS tokens, rules, rights. A pure leaf: it imports nothing of ours and reads no clock.

Owns: the shared access signature, the configured rules, and what a valid token grants. Must not know: AMQP,
HTTP, or whether an entity exists. No key, signature or token ever appears in a repr or
in the text of an error.
"""

from __future__ import annotations

from peeklock.auth.authority import DEVELOPMENT_KEY, DEVELOPMENT_KEY_NAME, Authority, OpenAuthority
from peeklock.auth.errors import (
    AudienceNotCovered,
    AuthorizationError,
    ClaimMissing,
    IssuerRefused,
    KeyRefused,
    KeysUnavailable,
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
    "AudienceNotCovered",
    "Authority",
    "AuthorizationError",
    "ClaimMissing",
    "Grant",
    "IssuerRefused",
    "KeyRefused",
    "KeysUnavailable",
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
