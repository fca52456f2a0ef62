"""What authorization refuses, one class per reason. Texts start as the service's do and quote no secret."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_RULE_NAME = re.compile(r"[A-Za-z0-9._-]{1,256}")
_SHOWN_MAX = 64


class AuthorizationError(Exception):
    """A token or a claim is refused."""

    key_name = ""
    """The rule that the token or key was said to be of, for the log; empty = none was named."""

    def of_key(self, name: str) -> AuthorizationError:
        """Remember which rule was named, by a stranger, as far as it may be shown; answer itself."""
        self.key_name = shown_rule(name)
        return self


def shown_rule(name: str) -> str:
    """Return the name of a rule, given by a stranger, as far as it may be shown."""
    # A key in the place of the name, the two swapped, has `=`, `/` or `+` in it as a rule.
    return name[:_SHOWN_MAX] if _RULE_NAME.fullmatch(name) else "(no name that a rule can have)"


class TokenMalformed(AuthorizationError):
    """The text is not a shared access signature, or a field of it is missing or unreadable."""


class TokenTypeUnsupported(AuthorizationError):
    """The kind of token is known but not offered here."""


class SignatureInvalid(AuthorizationError):
    """The signature fits no key of the rule, or there is no such rule. The two are not told apart."""


class TokenExpired(AuthorizationError):
    """The token is genuine but its time is over."""

    @classmethod
    def at(cls, expires_at_ms: int, now_ms: int | None = None) -> TokenExpired:
        """Return the refusal of a token that was good until `expires_at_ms`. Source: wire contract C19.

        `now_ms`: of a token that is shown now; None = it expired while it was in use.
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
    """The token is genuine but its time has not come."""


class IssuerRefused(AuthorizationError):
    """The token is genuine but was issued by another than the one that is trusted."""


class KeysUnavailable(AuthorizationError):
    """The keys that the token is to be verified with are being fetched: it may be good in a moment."""


class AudienceNotCovered(AuthorizationError):
    """The token is genuine but was signed for another host or path."""


class ClaimMissing(AuthorizationError):
    """The caller holds no token, or none with the right that this needs."""


class KeyRefused(AuthorizationError):
    """Key name and key, given directly, do not belong together."""
