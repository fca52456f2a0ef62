"""The rules of a namespace: the one place that grants or refuses.

Rules change while clients are connected. A grant ends with its rule or key: holders of grants call `upholds`
when `version` has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from peeklock.auth.errors import AuthorizationError, KeyRefused, TokenTypeUnsupported
from peeklock.auth.rights import (
    ALL_RIGHTS,
    Grant,
    Proof,
    SasRule,
    TokenProof,
    belongs,
    identity_of,
    implied,
    normal_path,
    scopes,
)
from peeklock.auth.sas import SasToken, check, is_sas, split_resource

DEVELOPMENT_KEY_NAME = "RootManageSharedAccessKey"
DEVELOPMENT_KEY = "SAS_KEY_VALUE"
"""The emulator's fixed, public key. Source: wire contract 1.2."""

SAS_TOKEN_TYPE = "servicebus.windows.net:sastoken"
JWT_TOKEN_TYPE = "jwt"


class WebTokens(Protocol):
    """A verifier of JSON web tokens (`jwt.JwtVerifier`)."""

    def authorize(self, token: str, audience: str, now_ms: int) -> Grant:
        """Verify a token for an audience, a URI or a bare path. Raises: AuthorizationError."""

    def upholds(self, grant: Grant, proof: TokenProof) -> bool:
        """Return whether the token behind a grant would still get its rights."""


class Authority:
    """Authorization for one namespace."""

    def __init__(
        self,
        rules: Iterable[SasRule] = (),
        *,
        hosts: Iterable[str] | None = None,
        signatures: bool = True,
        web_tokens: WebTokens | None = None,
    ) -> None:
        """Make an authority.

        Args:
            rules: of the namespace and its entities; names may repeat on different paths.
            hosts: names of this namespace; None = do not check the host (emulator mode).
            signatures: whether shared access signatures and keys are accepted.
            web_tokens: verifies JSON web tokens; None = they are not accepted.
        """
        self._rules: dict[str, dict[str, SasRule]] = {}  # by name, then by path, both in lower case
        self._names: dict[str, list[str]] = {}  # of the rules of each path
        self._by_key: dict[str, dict[str, tuple[str, SasRule]]] = {}  # by name and key, made when first used
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self._signatures = signatures
        self._web_tokens = web_tokens
        self.version = 0
        """Counts the changes that may end grants."""
        by_path: dict[str, list[SasRule]] = {}
        for rule in rules:
            by_path.setdefault(rule.path, []).append(rule)
        for path, own in by_path.items():
            self.set_rules(path, own)

    @classmethod
    def development(cls, *names: str) -> Authority:
        """Return the authority of a development broker: the emulator's one rule, any host name.

        `names`: of further rules with the same key.
        """
        return cls(SasRule(name, DEVELOPMENT_KEY) for name in (DEVELOPMENT_KEY_NAME, *names))

    @property
    def anybody(self) -> Grant | None:
        """The grant of a client without token or key; None = no rights."""
        return None

    def set_rules(self, path: str, rules: Iterable[SasRule]) -> frozenset[str]:
        """Replace the rules of one path: of an entity, in any case; empty = the namespace.

        Returns whose grants have no rule any more, see `Grant.identity`.
        """
        path = normal_path(path)
        before = {name: self._rules[name].pop(path) for name in self._names.pop(path, ())}
        for rule in rules:
            self._rules.setdefault(rule.name.lower(), {})[path] = replace(rule, path=path)
            self._names.setdefault(path, []).append(rule.name.lower())
        for name in (*before, *self._names.get(path, ())):
            self._by_key.pop(name, None)
        for name, old in before.items():
            now = self._rules[name].get(path)
            if now is None or (now.keys, now.rights) != (old.keys, old.rights):
                self.version += 1
            if not self._rules[name]:
                del self._rules[name]
        now_there = {*self._names.get(path, ())}
        return frozenset(identity_of(path, old.name) for name, old in before.items() if name not in now_there)

    def has_rule(self, name: str) -> bool:
        """Return whether the namespace or an entity has a rule of this name."""
        return name.lower() in self._rules

    def set_web_tokens(self, web_tokens: WebTokens) -> None:
        """Replace the verifier of JSON web tokens: others are accepted now."""
        self._web_tokens = web_tokens
        self.version += 1

    def authorize(self, token: str, audience: str, now_ms: int, token_type: str = SAS_TOKEN_TYPE) -> Grant:
        """Verify a token for an audience, a URI or a bare path.

        Raises:
            TokenMalformed, TokenTypeUnsupported, SignatureInvalid, TokenExpired, AudienceNotCovered.
        """
        # The text decides, not the type: the Python client sends shared access signatures as `jwt`.
        if not is_sas(token):
            if token_type not in (SAS_TOKEN_TYPE, JWT_TOKEN_TYPE):
                raise TokenTypeUnsupported("InvalidToken: The token type is not known.")
            if self._web_tokens is None:
                if token_type == JWT_TOKEN_TYPE:
                    raise TokenTypeUnsupported("InvalidToken: JSON web tokens are not accepted here.")
                SasToken.parse(token)  # raises the precise error
            else:
                return self._web_tokens.authorize(token, audience, now_ms)
        if not self._signatures:
            raise TokenTypeUnsupported("InvalidToken: Shared access signatures are not accepted here.")
        parsed = SasToken.parse(token)
        path = split_resource(audience)[1]
        # In the order of the names: the Python client's, encoded twice, may have three forms.
        rules = [rule for name in parsed.key_names for rule in self._find(name, path)]
        try:
            return check(parsed, rules, audience, now_ms, self._hosts)
        except AuthorizationError as failure:
            failure.of_key(parsed.key_names[-1])
            raise

    def authorize_key(self, name: str, key: str) -> Grant:
        """Grant a rule's rights for one of its keys (SASL PLAIN).

        Raises:
            KeyRefused: no such rule, not its key, or keys are not accepted.
        """
        if not self._signatures:
            raise KeyRefused("Keys are not accepted here.")
        given, name = name, name.lower()
        found = self._of_name(name).get(key)
        if found is None:
            swapped = key.lower() in self._rules  # then `given` may be a key
            raise KeyRefused("Key name and key do not belong together.").of_key("" if swapped else given)
        path, rule = found
        return Grant(implied(rule.rights), path, None, Proof(path, name, key), rule.name)

    def _of_name(self, name: str) -> dict[str, tuple[str, SasRule]]:
        """Return path and rule by key: ten thousand entities may have a rule of one name.

        The time of a failed look-up does not depend on the key: strings are hashed with a secret seed.
        """
        by_key = self._by_key.get(name)
        if by_key is None:
            by_path = self._rules.get(name)
            if by_path is None:
                return {}
            by_key = self._by_key[name] = {}
            for path, rule in by_path.items():
                for key in rule.keys:
                    by_key.setdefault(key, (path, rule))
        return by_key

    def upholds(self, grant: Grant) -> bool:
        """Whether the rule and the key, or the token, of a grant are still accepted and carry its rights."""
        proof = grant.proof
        if proof is None:
            return True
        if isinstance(proof, TokenProof):
            return self._web_tokens is not None and self._web_tokens.upholds(grant, proof)
        rule = self._rules.get(proof.name, {}).get(proof.path)
        return rule is not None and proof.key in rule.keys and grant.rights <= implied(rule.rights)

    def _find(self, name: str, path: str) -> Iterator[SasRule]:
        """Yield the rules of a name that apply to a path, those of the nearest entity first."""
        by_path = self._rules.get(name.lower())
        if by_path is None:
            return
        for entity in scopes(path):
            if entity in by_path and belongs(path, entity):
                yield by_path[entity]


class OpenAuthority(Authority):
    """Grants everything, without checking tokens or keys."""

    @property
    def anybody(self) -> Grant:
        """All rights, without expiry."""
        return Grant(ALL_RIGHTS, "", None)

    def authorize(self, token: str, audience: str, now_ms: int, token_type: str = SAS_TOKEN_TYPE) -> Grant:
        """Grant everything on the audience's path for any token."""
        return Grant(ALL_RIGHTS, split_resource(audience)[1], None)

    def authorize_key(self, name: str, key: str) -> Grant:
        """Grant everything for any key."""
        return Grant(ALL_RIGHTS, "", None)
