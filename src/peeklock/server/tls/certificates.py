"""The local authority of a data folder, and the server certificate that it signs: the files of `DATA/tls`.

The private key of the authority is where a `KeptAuthority` keeps it; `ca.pem` is a copy of its certificate.

Clients trust `ca.pem` once. The certificate below it is replaced without asking, for other names or before it
expires, and no client notices. So the authority is made only where there is none, renewed with its key, and
never replaced: a fault in it is an error that names the file.

Importing this module loads `cryptography`: 30 to 100 ms and 10 MiB. `contexts` imports it when it makes or
reads a pair.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key, pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from peeklock.server import files, log
from peeklock.server.tls.contexts import (
    CA_FILE,
    CA_STORE_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    in_folder,
    refused,
)
from peeklock.server.tls.kept_authority import KeptAuthority, Pair

VALID_DAYS = 820
"""Apple's systems refuse server certificates valid for more than 825 days."""

CA_VALID_DAYS = 3_653
"""Ten years. Our choice: every client must be changed to trust another one."""

RENEW_DAYS = 30
"""A certificate with less than this left is replaced. Our choice: a month of tries."""

TRUST_STORE_PASSWORD = b"changeit"
"""Of `ca.p12`: Java's tools ask for one, and there is no secret in it."""

CA_RENEW_DAYS = 180
"""An authority with less than this left is renewed. Our choice: half a year to update the clients."""

_BACKDATED = datetime.timedelta(days=1)
"""For clients whose clocks are slow."""

_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm)
"""What `cryptography` raises for a damaged file."""

_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
"""All usages of a key. Source: RFC 5280 4.2.1.3."""

_Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority; without `key`, whose file is missing, it cannot sign."""

    certificate: x509.Certificate
    key: _Key | None

    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def keep_authority(folder: Path, now: datetime.datetime, kept: KeptAuthority | None = None) -> Authority:
    """Return the authority of this folder: made if there is none, renewed with its key if it expires soon.

    `kept`: where it is kept, for the folder to have a copy of its certificate; None = in the folder.
    Raises: OSError (ssl.SSLError when something is damaged); it names what, and says what to do.
    """
    with files.locked(folder):
        return _keep_authority(folder, now, kept or in_folder(folder))


def keep_pair(
    folder: Path, names: Sequence[str], now: datetime.datetime, kept: KeptAuthority | None = None
) -> None:
    """Make the certificate of this folder, and its key, unless the present one is good for these names.

    `kept`: as of `keep_authority`. Raises: OSError (ssl.SSLError when a part of the authority is damaged or
    missing); it names what, and says what to do.
    """
    kept = kept or in_folder(folder)
    with files.locked(folder):
        authority = _keep_authority(folder, now, kept)
        certificate, key = folder / CERTIFICATE_FILE, folder / KEY_FILE
        why = _why_replaced(certificate, key, authority, names, now)
        if not why:
            return
        if authority.key is None:
            raise refused(
                f"{kept.key_place} is missing, and a new certificate is needed ({why}); "
                f"{kept.mend_missing_key}"
            )
        chain, key_pem = _issue(authority, authority.key, names, now)
        # A crash between the two leaves a pair that does not match, and the next start makes another.
        files.replace(key, key_pem, 0o600)
        files.replace(certificate, chain, 0o644)
    log.info("TLS certificate made", {"file": str(certificate), "why": why, "names": list(names)})


def make_pair(names: Sequence[str], now: datetime.datetime) -> tuple[bytes, bytes]:
    """Return a certificate for these DNS names and IP addresses, and its key; their authority is not kept.

    Both are PEM; the authority follows the certificate, so that trusting the file is trusting the pair.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    return _issue(Authority(_certify_authority(key, now), key), key, names, now)


def fingerprint(certificate: x509.Certificate) -> str:
    """Return the SHA-256 fingerprint as other tools show it: `AB:CD:...`."""
    return certificate.fingerprint(hashes.SHA256()).hex(":").upper()


def names_in(certificate: Path) -> list[str]:
    """Return the names in a server certificate; none if it cannot be read: a start replaces it."""
    try:
        leaf = x509.load_pem_x509_certificate(certificate.read_bytes())
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, *_UNREADABLE, x509.ExtensionNotFound):
        return []
    return [str(name.value) for name in found]


# The authority


def _keep_authority(folder: Path, now: datetime.datetime, kept: KeptAuthority) -> Authority:
    pair = kept.load()
    if pair.certificate is None:  # also after a crash between the files of the two
        authority, pair = _made(pair.key, now, kept)
    else:
        key = None if pair.key is None else _read_authority_key(pair.key, kept)
        authority = _read_authority(pair.certificate, key, kept)
        if key is not None and now >= _ends(authority) - datetime.timedelta(CA_RENEW_DAYS):
            authority, pair = _renewed(authority, key, pair.key, now, kept)
    ca = folder / CA_FILE
    if not ca.exists() or ca.read_bytes() != pair.certificate:
        assert pair.certificate is not None
        files.replace(ca, pair.certificate, 0o644)
    _keep_trust_store(folder, authority.certificate)
    return authority


def _made(key_pem: bytes | None, now: datetime.datetime, kept: KeptAuthority) -> tuple[Authority, Pair]:
    """Make and keep an authority, with this key if there is one."""
    key_pem = key_pem or _key_pem(ec.generate_private_key(ec.SECP256R1()))
    key = _read_authority_key(key_pem, kept)
    authority = Authority(_certify_authority(key, now), key)
    pair = Pair(authority.pem(), key_pem)
    kept.save(pair)
    fields = {"place": kept.certificate_place, "sha256": fingerprint(authority.certificate)}
    log.info("local authority made", fields | {"ends": _ends(authority).isoformat()})
    return authority, pair


def _renewed(
    old: Authority, key: _Key, key_pem: bytes | None, now: datetime.datetime, kept: KeptAuthority
) -> tuple[Authority, Pair]:
    """Keep a new certificate for the key of an authority."""
    authority = Authority(_certify_authority(key, now), key)
    pair = Pair(authority.pem(), key_pem)
    kept.save(pair)
    log.warning(
        "local authority renewed, with its old key",
        {
            "place": kept.certificate_place,
            "old_one_ends": _ends(old).isoformat(),
            "ends": _ends(authority).isoformat(),
            "do": f"before the old one expires, give the new {CA_FILE} to every client that has a copy of it",
        },
    )
    return authority, pair


def _ends(authority: Authority) -> datetime.datetime:
    return authority.certificate.not_valid_after_utc


def _read_authority(pem: bytes, key: _Key | None, kept: KeptAuthority) -> Authority:
    """Return the authority of a certificate and its key, if it is there. Raises: ssl.SSLError."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        _read_through(certificate)
    except _UNREADABLE as failure:
        raise refused(f"{kept.certificate_place} is not a PEM certificate; {kept.mend}") from failure
    if not _is_authority(certificate):
        raise refused(f"{kept.certificate_place} is not the certificate of an authority; {kept.mend}")
    if key is not None and _public(key.public_key()) != _public(certificate.public_key()):
        raise refused(f"{kept.key_place} is not the key of {kept.certificate_place}; {kept.mend}")
    return Authority(certificate, key)


def _keep_trust_store(folder: Path, certificate: x509.Certificate) -> None:
    """Write the authority for Java unless that file is newer than the authority's own."""
    ca, store = folder / CA_FILE, folder / CA_STORE_FILE
    if store.exists() and store.stat().st_mtime_ns >= ca.stat().st_mtime_ns:
        return
    entry = pkcs12.PKCS12Certificate(certificate, b"peeklock")
    encryption = serialization.BestAvailableEncryption(TRUST_STORE_PASSWORD)
    files.replace(store, pkcs12.serialize_java_truststore([entry], encryption), 0o644)


def _certify_authority(key: _Key, now: datetime.datetime) -> x509.Certificate:
    """Return the self-signed certificate of an authority. Source: RFC 5280 4.2.1; our choice of names."""
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    # Trust stores look for an issuer by its name first, so each authority has another name.
    own = f"peeklock local authority {identifier.digest[:4].hex()}"
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "peeklock"),
            x509.NameAttribute(NameOID.COMMON_NAME, own),
        ]
    )
    ends = now - _BACKDATED + datetime.timedelta(CA_VALID_DAYS)
    builder = _builder(key, name, name, now, ends, authority=True)
    return builder.sign(key, hashes.SHA256())


def _read_through(certificate: x509.Certificate) -> None:
    """Read the parts that `cryptography` reads only on access. Raises: _UNREADABLE."""
    _ = certificate.subject, certificate.issuer, certificate.extensions, certificate.public_key()


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


def _read_authority_key(pem: bytes, kept: KeptAuthority) -> _Key:
    try:
        key = load_pem_private_key(pem, None)
    except TypeError as failure:
        raise refused(f"{kept.key_place} is encrypted; {kept.mend}") from failure
    except (ValueError, UnsupportedAlgorithm) as failure:
        raise refused(f"{kept.key_place} is not a PEM private key; {kept.mend}") from failure
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise refused(f"{kept.key_place} is neither an EC nor an RSA key; {kept.mend}")
    return key


# The certificate below it


def _why_replaced(
    certificate: Path, key: Path, authority: Authority, names: Sequence[str], now: datetime.datetime
) -> str:
    """Return why the certificate must be replaced; empty = it is good."""
    if not (certificate.exists() and key.exists()):
        return "there was none"
    try:
        leaf, *above = x509.load_pem_x509_certificates(certificate.read_bytes())
        private = load_pem_private_key(key.read_bytes(), None)
        _read_through(leaf)
        alternatives = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (*_UNREADABLE, x509.ExtensionNotFound):
        return "the old one was damaged"
    if leaf.issuer == leaf.subject:
        return "the old one was self-signed, by an older release"
    try:
        leaf.verify_directly_issued_by(authority.certificate)
    except (ValueError, TypeError, InvalidSignature):
        return "the old one was not signed by the local authority"
    if above != [authority.certificate]:
        return "the local authority was renewed"
    if _public(private.public_key()) != _public(leaf.public_key()):
        return "the old one did not belong to its key"
    if leaf.not_valid_before_utc > now or leaf.not_valid_after_utc < now + datetime.timedelta(RENEW_DAYS):
        return f"the old one was valid to {leaf.not_valid_after_utc.isoformat()}"
    if absent := [name for name in names if _general(name) not in list(alternatives)]:
        return f"the old one did not name {', '.join(absent)}"
    return ""


def _issue(
    authority: Authority, signing_key: _Key, names: Sequence[str], now: datetime.datetime
) -> tuple[bytes, bytes]:
    """Return a server certificate, followed by its authority, and its key, as PEM.

    EC P-256: every official client's TLS library accepts it, and it is made in under 1 ms.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate
    ends = min(now - _BACKDATED + datetime.timedelta(VALID_DAYS), issuer.not_valid_after_utc)
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "peeklock")])
    issuer_key = x509.SubjectKeyIdentifier.from_public_key(issuer.public_key())
    certificate = (
        _builder(key, own, issuer.subject, now, ends, authority=False)
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key), critical=False
        )
        .sign(signing_key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM) + authority.pem(), _key_pem(key)


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name.partition("%")[0]))  # %: the zone of a link address
    except ValueError:
        return x509.DNSName(name.lower())


# Both


def _builder(
    key: _Key,
    subject: x509.Name,
    issuer: x509.Name,
    now: datetime.datetime,
    ends: datetime.datetime,
    *,
    authority: bool,
) -> x509.CertificateBuilder:
    usage = dict.fromkeys(_USAGES, False)
    usage |= {"digital_signature": not authority, "key_cert_sign": authority, "crl_sign": authority}
    return (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(authority, 0 if authority else None), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_pem(key: _Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _public(key: object) -> bytes:
    """Return a public key in a form in which two can be compared."""
    encoded: bytes = key.public_bytes(  # type: ignore[attr-defined]  # every kind of public key has it
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return encoded
