"""Public keys that JSON web tokens are verified with: read from a JWKS document or from PEM.

Owns: which keys are good for which algorithms, what is refused as a key. Must not know: where the text came
from, tokens. Source: RFC 7517 (JWKS), RFC 7518 (RSA, EC), RFC 8037 (Ed25519, Ed448).

Only asymmetric keys exist here: no algorithm with a shared secret can be asked for, so a public key can never
be taken for a secret (RFC 8725 2.1).
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
"""Curve -> the one algorithm that is defined for it. Source: RFC 7518 3.4."""
ALGORITHMS = (*RSA_ALGORITHMS, *EC_ALGORITHMS.values(), "EdDSA")

RSA_BITS_MIN = 2048
"""Source: RFC 7518 3.3."""
RSA_BITS_MAX = 8192
"""Our choice: verifying takes 0.3 ms then; larger keys are not used."""
RSA_EXPONENT_BITS_MAX = 32
"""Our choice: 65537 is what is used; a huge exponent would only make verifying slow."""

KEYS_MAX = 100
"""Keys in one document. Our choice: issuers publish up to about ten."""
KEY_ID_LENGTH_MAX = 256
"""Characters. Our choice: they are digests or short names."""
TEXT_SHOWN_MAX = 40

TAKEN = "give a JWKS document, or PEM public keys (-----BEGIN PUBLIC KEY-----) one after another"

PublicKey: TypeAlias = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey


class KeysInvalid(Exception):
    """The text holds no keys, or is not what holds keys. The message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Key:
    """A public key and what it may be used for."""

    kid: str | None
    """Its name; None = it has none, and may be tried for any token."""
    algorithms: frozenset[str]
    public: PublicKey = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeySet:
    """What a text holds."""

    keys: tuple[Key, ...]
    refused: tuple[str, ...] = ()
    """One text for each key that must not be used: which, and why."""


def read_keys(text: bytes) -> KeySet:
    """Read a JWKS document (also a single key of one), or PEM public keys one after another.

    Keys that say they are for something else (`use`, `key_ops`) are left out without a word.

    Raises: KeysInvalid: it is neither, or holds more than `KEYS_MAX` keys.
    """
    if b"-----BEGIN" in text:
        return _read_pem(text)
    try:
        return read_jwks(text)
    except KeysInvalid as failure:
        raise KeysInvalid(f"{failure}; {TAKEN}") from failure


def read_jwks(text: bytes) -> KeySet:
    """Read a JWKS document, also a single key of one. Raises: KeysInvalid."""
    try:
        document = read_object(text)
    except ValueError as failure:
        raise KeysInvalid(f"it is no JSON object with 'keys' ({failure})") from failure
    entries = [document] if "kty" in document else document.get("keys")
    if not isinstance(entries, list):
        raise KeysInvalid("it is no JSON object with a list 'keys'")
    if len(entries) > KEYS_MAX:
        raise KeysInvalid(f"it has {len(entries)} keys; {KEYS_MAX} are the most")
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
    """Read a JSON object strictly: UTF-8, no member twice, no NaN. Raises: ValueError, quoting nothing."""
    try:
        value = json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
    except _Strict:
        raise
    except (ValueError, RecursionError):  # its text would quote
        raise ValueError("not JSON") from None
    if not isinstance(value, dict):
        raise _Strict("not an object")
    return value


class _Strict(ValueError):
    """Refused by us, with a text that quotes nothing."""


def _once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(members)
    if len(value) != len(members):
        raise _Strict("a member stands there twice")
    return value


def _no_constant(name: str) -> None:
    raise _Strict(f"{name} is no JSON")


def _read_pem(text: bytes) -> KeySet:
    blocks = re.findall(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", text, re.DOTALL)
    labels = {label.decode() for label in blocks}
    if any("PRIVATE" in label for label in labels):
        raise KeysInvalid("it holds a private key; give the public one (openssl pkey -pubout)")
    if "CERTIFICATE" in labels:
        raise KeysInvalid("it holds a certificate; give its public key (openssl x509 -pubkey -noout)")
    if len(blocks) > KEYS_MAX:
        raise KeysInvalid(f"it has {len(blocks)} keys; {KEYS_MAX} are the most")
    keys, refused = [], []
    found = re.finditer(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", text, re.DOTALL)
    for number, block in enumerate(found, 1):
        try:
            public = load_pem_public_key(block[0])
            keys.append(Key(None, _algorithms(public), _checked(public)))
        except (ValueError, UnsupportedAlgorithm):
            refused.append(f"key {number}: it is no PEM public key")
        except KeysInvalid as failure:
            refused.append(f"key {number}: {failure}")
    return KeySet(tuple(keys), tuple(refused))


def _from_jwk(entry: object) -> Key | None:
    """Read one key; None = it is for something else than verifying. Raises: KeysInvalid."""
    if not isinstance(entry, dict):
        raise KeysInvalid("it is no JSON object")
    if "d" in entry:
        raise KeysInvalid("it is a private key; give the public part only")
    operations = entry.get("key_ops", ["verify"])
    if entry.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return None
    kid = entry.get("kid")
    if kid is not None and (not isinstance(kid, str) or len(kid) > KEY_ID_LENGTH_MAX):
        raise KeysInvalid(f"its 'kid' is no text of up to {KEY_ID_LENGTH_MAX} characters")
    public = _public(entry)
    algorithms = _algorithms(public)
    if "alg" in entry:
        if entry["alg"] not in ALGORITHMS:
            raise KeysInvalid(f"its 'alg' is none of {', '.join(ALGORITHMS)}")
        algorithms &= {entry["alg"]}
        if not algorithms:
            raise KeysInvalid("its 'alg' does not fit its type")
    return Key(kid, algorithms, public)


def _public(entry: dict[str, Any]) -> PublicKey:
    kind = entry.get("kty")
    if kind == "oct":
        raise KeysInvalid("it is a shared secret; only public keys (RSA, EC, OKP) are taken")
    try:
        if kind == "RSA":
            return _checked(RSAAlgorithm.from_jwk(entry))
        if kind == "EC":
            return _checked(ECAlgorithm.from_jwk(entry))
        if kind == "OKP":
            return _checked(OKPAlgorithm.from_jwk(entry))
    except (PyJWTError, ValueError, TypeError, KeyError, AttributeError, UnsupportedAlgorithm) as failure:
        raise KeysInvalid("its numbers make no key of its type") from failure
    raise KeysInvalid("its 'kty' is none of RSA, EC, OKP")


def _checked(public: object) -> PublicKey:
    """Refuse keys that are too weak, or so large that they only cost time. Raises: KeysInvalid."""
    if isinstance(public, RSAPublicKey):
        if not RSA_BITS_MIN <= public.key_size <= RSA_BITS_MAX:
            raise KeysInvalid(
                f"it is an RSA key of {public.key_size} bits; {RSA_BITS_MIN} to {RSA_BITS_MAX} are taken"
            )
        if public.public_numbers().e.bit_length() > RSA_EXPONENT_BITS_MAX:
            raise KeysInvalid("it is an RSA key with an exponent that is too large")
        return public
    if isinstance(public, EllipticCurvePublicKey):
        if public.curve.name not in EC_ALGORITHMS:
            raise KeysInvalid(f"its curve is none of {', '.join(EC_ALGORITHMS)}")
        return public
    if isinstance(public, Ed25519PublicKey | Ed448PublicKey):
        return public
    raise KeysInvalid("it is no key for signatures that JSON web tokens have")


def _algorithms(public: object) -> frozenset[str]:
    if isinstance(public, RSAPublicKey):
        return frozenset(RSA_ALGORITHMS)
    if isinstance(public, EllipticCurvePublicKey):
        return frozenset({EC_ALGORITHMS[public.curve.name]} if public.curve.name in EC_ALGORITHMS else ())
    return frozenset({"EdDSA"})


def _named(entry: object) -> str:
    kid = entry.get("kid") if isinstance(entry, dict) else None
    return f" ({kid[:TEXT_SHOWN_MAX]!r})" if isinstance(kid, str) else ""
