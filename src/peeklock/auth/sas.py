"""Shared access signatures, `SharedAccessSignature sr=..&sig=..&se=..&skn=..`: parse, generate, verify.

Source: wire contract 1.8; Learn "Generate a Shared Access Signature token".
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from urllib.parse import quote_plus, unquote, unquote_plus

from peeklock.auth.errors import (
    AudienceNotCovered,
    SignatureInvalid,
    TokenExpired,
    TokenMalformed,
    shown_rule,
)
from peeklock.auth.rights import Grant, Proof, SasRule, implied, normal_path, within

TOKEN_LENGTH_MAX = 8192
"""Characters. Our choice: the longest legal resource (260 + host), encoded twice, stays under 4096."""

_PREFIX = "sharedaccesssignature "
_EXPIRY_S_MAX = 1 << 40
_DECODINGS_MAX = 4
"""Most decodings of a key name; the Python client encodes it twice."""


def is_sas(token: str) -> bool:
    """Whether a token has the prefix of a shared access signature, in any case."""
    return token[: len(_PREFIX)].lower() == _PREFIX


@dataclass(frozen=True, slots=True)
class SasToken:
    """A parsed token, not yet verified."""

    raw_resource: str
    """`sr` exactly as in the token, since it is signed."""
    expiry: str
    """`se` as text, since it is signed."""
    expires_at_ms: int
    key_names: tuple[str, ...]
    """`skn` as given and after each further decoding, the fully decoded form last."""
    signature: str = field(repr=False)

    @staticmethod
    @lru_cache(maxsize=256)
    def parse(text: str) -> SasToken:
        """Parse a token; cached, since HTTP requests repeat it.

        Raises:
            TokenMalformed: the prefix, a field or the expiry is missing or unreadable.
        """
        if len(text) > TOKEN_LENGTH_MAX:
            raise TokenMalformed(f"MalformedToken: The token is longer than {TOKEN_LENGTH_MAX} characters.")
        if not is_sas(text):
            raise TokenMalformed("MalformedToken: The token does not start with 'SharedAccessSignature '.")
        fields: dict[str, str] = {}
        for part in text[len(_PREFIX) :].strip().split("&"):
            name, _, value = part.partition("=")
            fields.setdefault(name.strip().lower(), value)
        missing = [name for name in ("sr", "sig", "se", "skn") if not fields.get(name)]
        if missing:
            raise TokenMalformed(f"MalformedToken: The token lacks {', '.join(missing)}.")
        expiry = unquote_plus(fields["se"])
        # Base64 has no space: it was a plus sign that an encoder left as it is.
        signature = unquote_plus(fields["sig"]).replace(" ", "+")
        return SasToken(fields["sr"], expiry, _expiry_ms(expiry), _decodings(fields["skn"]), signature)

    @property
    def path(self) -> str:
        """The path that it is signed for, as in grants; empty = the namespace."""
        return split_resource(unquote_plus(self.raw_resource), host_first=True)[1]

    @lru_cache(maxsize=256)  # noqa: B019  # a value of its fields, not of an instance
    def signed_with(self, key: str) -> bool:
        """Whether `key` made the signature, in constant time for each form of the resource.

        The resource is tried as given, then as encoders would have written it before re-encoding. All forms
        must mean the same resource: a signed text that is encoded once more would be read as a host without
        path.
        """
        decoded = unquote_plus(self.raw_resource)
        upper = quote_plus(decoded)
        given = self.signature.encode()
        forms = dict.fromkeys((self.raw_resource, upper, _lower_hex(upper), upper.lower()))
        if "%" not in decoded:
            forms[decoded] = None
        found = False
        for form in forms:
            if hmac.compare_digest(sign(form, self.expiry, key).encode(), given):
                found = True
        return found


def sign(resource: str, expiry: str, key: str) -> str:
    """Return the base64 signature of an encoded resource; the key is plain text, not base64."""
    digest = hmac.digest(key.encode(), f"{resource}\n{expiry}".encode(), sha256)
    return base64.b64encode(digest).decode()


def generate(resource: str, key_name: str, key: str, expires_at_ms: int) -> str:
    """Return a token for a resource URI such as `sb://host/queue`, as official clients do; whole seconds."""
    encoded = quote_plus(resource)
    expiry = str(expires_at_ms // 1000)
    signature = quote_plus(sign(encoded, expiry, key))
    return f"SharedAccessSignature sr={encoded}&sig={signature}&se={expiry}&skn={quote_plus(key_name)}"


def check(
    token: SasToken, rules: Iterable[SasRule], audience: str, now_ms: int, hosts: frozenset[str] | None
) -> Grant:
    """Verify a token against the rules of its key name, and grant a rule's rights on the audience's path.

    Args:
        token: the parsed token.
        rules: candidates, the entity's own before the namespace's.
        audience: the resource that the caller names, a URI or a bare path.
        now_ms: UTC ms; a token that expires exactly now has expired.
        hosts: lower-case names of this namespace; None = any host (emulator mode).

    Raises:
        SignatureInvalid: no key fits.
        TokenExpired: genuine, but expired.
        AudienceNotCovered: signed for another host or path.
    """
    # All keys are tried, so that timing does not show which one fits.
    fitting = [(rule, key) for rule in rules for key in rule.keys if token.signed_with(key)]
    if not fitting:
        raise SignatureInvalid(
            "InvalidSignature: The token has an invalid signature. It matches no key of a rule "
            f"'{shown_rule(token.key_names[-1])}' that applies here: check key name and key."
        )
    if token.expires_at_ms <= now_ms:
        raise TokenExpired.at(token.expires_at_ms, now_ms)
    scope_host, scope = split_resource(unquote_plus(token.raw_resource), host_first=True)
    audience_host, path = split_resource(audience)
    for host in (scope_host, audience_host):
        if hosts is not None and host is not None and host not in hosts:
            raise AudienceNotCovered(f"InvalidAudience: '{host}' is not a name of this namespace.")
    if not within(path, scope):
        asked = f"'{path}'" if path else "the namespace"
        raise AudienceNotCovered(
            f"InvalidAudience: The token for '{scope}' does not cover {asked}: sign one for it or above it."
        )
    rule, key = fitting[0]
    proof = Proof(normal_path(rule.path), rule.name.lower(), key)
    return Grant(implied(rule.rights), path, token.expires_at_ms, proof, rule.name)


@lru_cache(maxsize=512)
def split_resource(text: str, *, host_first: bool = False) -> tuple[str | None, str]:
    """Return host (None = not given) and path of a resource: lower case, no port, no outer slashes.

    `host_first`: without a scheme the first segment is the host, as in the `sr` of some tools; but a single
    word without dot or colon is a path, so that it does not cover the whole namespace by accident.
    """
    text = text.strip().lower()
    scheme, separator, rest = text.partition("://")
    if separator:
        authority, _, path = rest.partition("/")
    elif host_first:
        authority, _, path = scheme.strip("/").partition("/")
        if not path and authority != "localhost" and not any(mark in authority for mark in ".:"):
            return None, unquote(authority)
    else:
        return None, unquote(scheme).strip("/")
    path = path.partition("?")[0]
    if authority.startswith("["):  # an IPv6 literal keeps its colons
        host = authority.partition("]")[0].lstrip("[")
    else:
        host = authority.partition(":")[0]
    return host or None, unquote(path).strip("/")


def _expiry_ms(text: str) -> int:
    whole, _, fraction = text.strip().partition(".")
    if not (whole.isascii() and whole.isdigit()) or (
        fraction and not (fraction.isascii() and fraction.isdigit())
    ):
        raise TokenMalformed("MalformedToken: The expiry 'se' is not a number of seconds.")
    if len(whole) > 13 or int(whole) > _EXPIRY_S_MAX:
        raise TokenMalformed("MalformedToken: The expiry 'se' is out of range.")
    return int(whole) * 1000 + int((fraction + "000")[:3])


def _decodings(raw: str) -> tuple[str, ...]:
    forms = [unquote_plus(raw)]
    for _ in range(_DECODINGS_MAX):
        further = unquote(forms[-1])
        if further == forms[-1]:
            break
        forms.append(further)
    return tuple(forms)


def _lower_hex(encoded: str) -> str:
    """Return `%3A` as `%3a`, as .NET's encoder writes it, and the rest unchanged."""
    head, *escapes = encoded.split("%")
    return "".join([head, *("%" + part[:2].lower() + part[2:] for part in escapes)])
