"""The configured rules of a namespace, and the one place that says yes or no.

Owns: `SasRule` and the look-up of a rule by key name and path. Must not know: where rules are configured, or
how a token reached us.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

from peeklock.auth.errors import KeyRefused, SignatureInvalid, TokenTypeUnsupported
from peeklock.auth.rights import ALL_RIGHTS, Grant, Right, implied, within
from peeklock.auth.sas import SasToken, check, is_sas, split_resource

DEVELOPMENT_KEY_NAME = "RootManageSharedAccessKey"
DEVELOPMENT_KEY = "SAS_KEY_VALUE"
"""The emulator's fixed, public key. Source: wire contract 1.2."""

SAS_TOKEN_TYPE = "servicebus.windows.net:sastoken"
JWT_TOKEN_TYPE = "jwt"


@dataclass(frozen=True, slots=True)
class SasRule:
    """A shared access rule of the namespace or of one entity."""

    name: str
    primary_key: str = field(repr=False)
    secondary_key: str = field(default="", repr=False)
    rights: frozenset[Right] = ALL_RIGHTS
    path: str = ""
    """The entity it belongs to, in any case; empty = the namespace."""


class Authority:
    """All rules of one namespace."""

    def __init__(self, rules: Iterable[SasRule], *, hosts: Iterable[str] | None = None) -> None:
        """Take the rules.

        Args:
            rules: of the namespace and its entities; names may repeat on different paths.
            hosts: names this namespace answers to; None = do not check the host (emulator mode).
        """
        self._rules: dict[str, list[SasRule]] = {}
        for rule in rules:
            self._rules.setdefault(rule.name.lower(), []).append(rule)
        for same_name in self._rules.values():  # the entity's own rule before the namespace's
            same_name.sort(key=lambda rule: len(rule.path), reverse=True)
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)

    @classmethod
    def development(cls) -> Authority:
        """Make the authority of a development broker: the emulator's one rule, any host name."""
        return cls([SasRule(DEVELOPMENT_KEY_NAME, DEVELOPMENT_KEY)])

    def authorize(self, token: str, audience: str, now_ms: int, token_type: str = SAS_TOKEN_TYPE) -> Grant:
        """Verify a token for an audience, a URI or a bare path.

        Raises:
            TokenMalformed, TokenTypeUnsupported, SignatureInvalid, TokenExpired, AudienceNotCovered.
        """
        # The text decides, not the type: the Python client sends shared access signatures as `jwt`.
        if not is_sas(token):
            if token_type == JWT_TOKEN_TYPE:
                raise TokenTypeUnsupported("InvalidToken: JSON web tokens are not accepted here.")
            if token_type != SAS_TOKEN_TYPE:
                raise TokenTypeUnsupported("InvalidToken: The token type is not known.")
        parsed = SasToken.parse(token)
        path = split_resource(audience)[1]
        rule = self._find(parsed.key_names, path)
        if rule is None:
            raise SignatureInvalid("InvalidSignature: The token has an invalid signature.")
        return check(
            parsed, (rule.primary_key, rule.secondary_key), rule.rights, audience, now_ms, self._hosts
        )

    def authorize_key(self, name: str, key: str) -> Grant:
        """Grant a rule's rights to whoever shows one of its keys (SASL PLAIN).

        Raises:
            KeyRefused: no such rule, or not its key.
        """
        for rule in self._rules.get(name.lower(), ()):
            fits = [
                hmac.compare_digest(own.encode(), key.encode())
                for own in (rule.primary_key, rule.secondary_key)
                if own
            ]
            if any(fits):
                return Grant(implied(rule.rights), rule.path.strip("/").lower(), None)
        raise KeyRefused("Key name and key do not belong together.")

    def _find(self, names: Iterable[str], path: str) -> SasRule | None:
        for name in names:
            for rule in self._rules.get(name.lower(), ()):
                if within(path, rule.path.strip("/").lower()):
                    return rule
        return None
