"""Refusals of authorization, one class per reason. Texts start as the service's do and quote no secret."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_RULE_NAME = re.compile(r"[A-Za-z0-9._-]{1,256}")
_SHOWN_MAX = 64


class AuthorizationError(Exception):
    """A token or a claim is refused."""

    key_name = ""
    """The rule that the client named, for the log; empty = none."""

    def of_key(self, name: str) -> AuthorizationError:
        """Set the rule that the client named, as far as it may be shown; return self."""
        self.key_name = shown_rule(name)
        return self


def shown_rule(name: str) -> str:
    """Return the name of a rule that a client gave, as far as it may be shown."""
    # A key given as the name by mistake usually has `=`, `/` or `+` in it.
    return name[:_SHOWN_MAX] if _RULE_NAME.fullmatch(name) else "(not a valid rule name)"


class TokenMalformed(AuthorizationError):
    """The text is not a token, or a field of it is missing or unreadable."""


class TokenTypeUnsupported(AuthorizationError):
    """The kind of token is unknown, or not accepted here."""


class SignatureInvalid(AuthorizationError):
    """The signature matches no key of the rule, or there is no such rule: deliberately not distinguished."""


class TokenExpired(AuthorizationError):
    """The token is genuine but expired."""

    @classmethod
    def at(cls, expires_at_ms: int, now_ms: int | None = None) -> TokenExpired:
        """Return the refusal of a token valid until `expires_at_ms`. Source: wire contract C19.

        `now_ms` = None: it expired while in use.
        """
        until = datetime.fromtimestamp(expires_at_ms // 1000, UTC)
        text = f"ExpiredToken: The token is expired. Expiration time: {until:%Y-%m-%dT%H:%M:%SZ}."
        if now_ms is not None:
            ago_s = (now_ms - expires_at_ms) // 1000
            text += (
                f" That was {ago_s:,} s ago by the broker's clock: make a new token, or compare the clocks."
            )
        return cls(text)


class TokenNotYetValid(AuthorizationError):
    """The token is genuine but not valid yet."""


class IssuerRefused(AuthorizationError):
    """The token is genuine but its issuer is not trusted."""


class KeysUnavailable(AuthorizationError):
    """The keys of the issuer are being fetched: a retry may succeed."""


class AudienceNotCovered(AuthorizationError):
    """The token is genuine but was signed for another host or path."""


class AnotherNamespace(AuthorizationError):
    """The token or key is of another namespace than the connection."""


class NamespaceFull(AuthorizationError):
    """The namespace takes no further connection, or the broker no further namespace."""


class ClaimMissing(AuthorizationError):
    """The caller has no token with the right that this needs."""


class KeyRefused(AuthorizationError):
    """Key name and key do not match."""
