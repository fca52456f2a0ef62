"""Public keys of token issuers, read from a JWKS document or from PEM.

There are only asymmetric algorithms, so that a public key can never be used as a shared secret (RFC 8725
2.1). Source: RFC 7517 (JWKS), RFC 7518 (RSA, EC), RFC 8037 (Ed25519, Ed448).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt import PyJWTError
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
EC_ALGORITHMS = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
"""The algorithm of each curve. Source: RFC 7518 3.4."""
ALGORITHMS = (*RSA_ALGORITHMS, *EC_ALGORITHMS.values(), "EdDSA")

RSA_BITS_MIN = 2048
"""Source: RFC 7518 3.3."""
RSA_BITS_MAX = 8192
"""Our choice: verification takes 0.3 ms; larger keys are not in use."""
RSA_EXPONENT_BITS_MAX = 32
"""Our choice: 65537 is in use; a huge exponent only slows verification."""

KEYS_MAX = 100
"""Keys in one document. Our choice: issuers publish up to about ten."""
KEY_ID_LENGTH_MAX = 256
"""Characters. Our choice: ids are digests or short names."""
TEXT_SHOWN_MAX = 40

PublicKey: TypeAlias = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey


class KeysInvalid(Exception):
    """The text is not a set of keys; the message says why."""


@dataclass(frozen=True, slots=True)
class Key:
    """A public key and its algorithms."""

    kid: str | None
    """Its id; None = it may be tried for any token."""
    algorithms: frozenset[str]
    public: PublicKey = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys in a text."""

    keys: tuple[Key, ...]
    refused: tuple[str, ...] = ()
    """One text for each refused key: which, and why."""


def read_keys(text: bytes) -> KeySet:
    """Read a JWKS document (also a single key of one), or PEM public keys one after another.

    Keys for other purposes (`use`, `key_ops`) are ignored silently.

    Raises: KeysInvalid, also for more than `KEYS_MAX` keys.
    """
    if b"-----BEGIN" in text:
        return _read_pem(text)
    try:
        return read_jwks(text)
    except KeysInvalid as failure:
        hint = "give a JWKS document, or PEM public keys (-----BEGIN PUBLIC KEY-----) one after another"
        raise KeysInvalid(f"{failure}; {hint}") from failure


def read_jwks(text: bytes) -> KeySet:
    """Read a JWKS document, also a single key of one. Raises: KeysInvalid."""
    try:
        document = read_object(text)
    except ValueError as failure:
        raise KeysInvalid(f"not a JSON object with 'keys' ({failure})") from failure
    entries = [document] if "kty" in document else document.get("keys")
    if not isinstance(entries, list):
        raise KeysInvalid("not a JSON object with a list 'keys'")
    if len(entries) > KEYS_MAX:
        raise KeysInvalid(f"it has {len(entries)} keys; the limit is {KEYS_MAX}")
    keys, refused = [], []
    for number, entry in enumerate(entries, 1):
        try:
            key = _from_jwk(entry)
        except KeysInvalid as failure:
            refused.append(f"key {number}{_named(entry)}: {failure}")
        else:
            if key is not None:
                keys.append(key)
    return KeySet(tuple(keys), tuple(refused))


def read_object(text: bytes) -> dict[str, Any]:
    """Read a JSON object strictly: UTF-8, no member twice, no NaN. Raises: ValueError, without quotes."""
    try:
        value = json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
    except _Strict:
        raise
    except (ValueError, RecursionError):  # its text would quote the input
        raise ValueError("not JSON") from None
    if not isinstance(value, dict):
        raise _Strict("not an object")
    return value


class _Strict(ValueError):
    """Refused by us, with a text that quotes nothing of the input."""


def _once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(members)
    if len(value) != len(members):
        raise _Strict("a member is repeated")
    return value


def _no_constant(name: str) -> None:
    raise _Strict(f"{name} is not JSON")


def _read_pem(text: bytes) -> KeySet:
    blocks = re.findall(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", text, re.DOTALL)
    labels = {label.decode() for label in blocks}
    if any("PRIVATE" in label for label in labels):
        raise KeysInvalid("it contains a private key; give the public one (openssl pkey -pubout)")
    if "CERTIFICATE" in labels:
        raise KeysInvalid("it contains a certificate; give its public key (openssl x509 -pubkey -noout)")
    if len(blocks) > KEYS_MAX:
        raise KeysInvalid(f"it has {len(blocks)} keys; the limit is {KEYS_MAX}")
    keys, refused = [], []
    found = re.finditer(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", text, re.DOTALL)
    for number, block in enumerate(found, 1):
        try:
            public = load_pem_public_key(block[0])
            keys.append(Key(None, _algorithms(public), _checked(public)))
        except (ValueError, UnsupportedAlgorithm):
            refused.append(f"key {number}: not a PEM public key")
        except KeysInvalid as failure:
            refused.append(f"key {number}: {failure}")
    return KeySet(tuple(keys), tuple(refused))


def _from_jwk(entry: object) -> Key | None:
    """Read one key; None = it does not verify signatures. Raises: KeysInvalid."""
    if not isinstance(entry, dict):
        raise KeysInvalid("not a JSON object")
    if "d" in entry:
        raise KeysInvalid("it is a private key; give the public part only")
    operations = entry.get("key_ops", ["verify"])
    if entry.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return None
    kid = entry.get("kid")
    if kid is not None and (not isinstance(kid, str) or len(kid) > KEY_ID_LENGTH_MAX):
        raise KeysInvalid(f"'kid' must be a string of at most {KEY_ID_LENGTH_MAX} characters")
    public = _public(entry)
    algorithms = _algorithms(public)
    if "alg" in entry:
        if entry["alg"] not in ALGORITHMS:
            raise KeysInvalid(f"'alg' is not one of {', '.join(ALGORITHMS)}")
        algorithms &= {entry["alg"]}
        if not algorithms:
            raise KeysInvalid("'alg' does not fit its type")
    return Key(kid, algorithms, public)


def _public(entry: dict[str, Any]) -> PublicKey:
    kind = entry.get("kty")
    if kind == "oct":
        raise KeysInvalid("it is a shared secret; only public keys (RSA, EC, OKP) are accepted")
    try:
        if kind == "RSA":
            return _checked(RSAAlgorithm.from_jwk(entry))
        if kind == "EC":
            return _checked(ECAlgorithm.from_jwk(entry))
        if kind == "OKP":
            return _checked(OKPAlgorithm.from_jwk(entry))
    except (PyJWTError, ValueError, TypeError, KeyError, AttributeError, UnsupportedAlgorithm) as failure:
        raise KeysInvalid("its numbers are not a key of its type") from failure
    raise KeysInvalid("'kty' is not one of RSA, EC, OKP")


def _checked(public: object) -> PublicKey:
    """Return a key unless it is too weak, or too large to be useful. Raises: KeysInvalid."""
    if isinstance(public, RSAPublicKey):
        if not RSA_BITS_MIN <= public.key_size <= RSA_BITS_MAX:
            raise KeysInvalid(
                f"it is an RSA key of {public.key_size} bits; {RSA_BITS_MIN} to {RSA_BITS_MAX} are accepted"
            )
        if public.public_numbers().e.bit_length() > RSA_EXPONENT_BITS_MAX:
            raise KeysInvalid("it is an RSA key with an exponent that is too large")
        return public
    if isinstance(public, EllipticCurvePublicKey):
        if public.curve.name not in EC_ALGORITHMS:
            raise KeysInvalid(f"its curve is not one of {', '.join(EC_ALGORITHMS)}")
        return public
    if isinstance(public, Ed25519PublicKey | Ed448PublicKey):
        return public
    raise KeysInvalid("not a key for signatures of JSON web tokens")


def _algorithms(public: object) -> frozenset[str]:
    if isinstance(public, RSAPublicKey):
        return frozenset(RSA_ALGORITHMS)
    if isinstance(public, EllipticCurvePublicKey):
        return frozenset({EC_ALGORITHMS[public.curve.name]} if public.curve.name in EC_ALGORITHMS else ())
    return frozenset({"EdDSA"})


def _named(entry: object) -> str:
    kid = entry.get("kid") if isinstance(entry, dict) else None
    return f" ({kid[:TEXT_SHOWN_MAX]!r})" if isinstance(kid, str) else ""
