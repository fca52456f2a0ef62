"""The certificate pair that TLS connections are met with.

Owns: loading a given pair, and making a self-signed one. Must not know: who connects, or which protocol
runs inside.

Without a pair of the user's own, a self-signed one for this machine's names is made once and kept in the
data folder as `tls/certificate.pem` and `tls/key.pem`, so that clients which were told to trust it
(REQUESTS_CA_BUNDLE, SSL_CERT_FILE, NODE_EXTRA_CA_CERTS, a `connection_verify` argument) still do after a
restart. Without a data folder it lives in this process only. `cryptography` is imported when a pair is made
or looked at, not before: 100 ms and 10 MiB.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import ssl
import tempfile
from pathlib import Path

FOLDER = "tls"
CERTIFICATE_FILE = "certificate.pem"
KEY_FILE = "key.pem"

VALID_DAYS = 820
"""Apple's systems refuse server certificates valid for more than 825 days."""

RENEW_DAYS = 7
"""A kept certificate with less than this left is made anew when it is loaded. Our choice."""

_BACKDATED = datetime.timedelta(days=1)
"""For clients whose clocks are slow."""


def server_context(
    data: Path | None, certificate: Path | None = None, key: Path | None = None, *, now_s: float | None = None
) -> ssl.SSLContext:
    """Make the context for incoming TLS connections: from the files given, else from the self-signed pair.

    `data`: the folder that keeps the self-signed pair, None = keep it nowhere. `now_s`: UTC, for the
    validity of the self-signed pair; None = the machine's clock.

    Raises: OSError (file not readable), ssl.SSLError (not a PEM pair, or not matching); both name the file.
    """
    if certificate is not None:
        return _context(certificate, key or certificate)
    now = (
        datetime.datetime.now(datetime.UTC)
        if now_s is None
        else datetime.datetime.fromtimestamp(now_s, datetime.UTC)
    )
    if data is not None:
        return _context(*_kept_pair(data / FOLDER, now))
    with tempfile.TemporaryDirectory(prefix="peeklock-tls-") as folder:  # OpenSSL reads files only
        return _context(*_kept_pair(Path(folder) / FOLDER, now))


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # Azure refuses older ones too
    try:
        # Without a pass phrase OpenSSL asks for one at the terminal, and a service would hang at its start.
        context.load_cert_chain(certificate, key, password="")
    except OSError as failure:  # ssl.SSLError is one too
        raise _fault(certificate, key, failure) from failure
    return context


def _fault(certificate: Path, key: Path, failure: OSError) -> OSError:
    """Find out which file of a pair OpenSSL did not take, since it names none."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        x509.load_pem_x509_certificates(certificate.read_bytes())
    except ValueError:
        return _refused(f"{certificate} is not a PEM certificate")
    except OSError as unreadable:
        return unreadable
    try:
        load_pem_private_key(key.read_bytes(), None)
    except TypeError:
        return _refused(f"{key} is encrypted; give a key without a pass phrase")
    except (ValueError, UnsupportedAlgorithm):
        return _refused(f"{key} is not a PEM private key")
    except OSError as unreadable:
        return unreadable
    if isinstance(failure, ssl.SSLError) and failure.reason == "KEY_VALUES_MISMATCH":
        return _refused(f"{key} is not the key of {certificate}")
    return _refused(f"{certificate} and {key} are refused: {failure}")


def _refused(text: str) -> ssl.SSLError:
    return ssl.SSLError(ssl.SSL_ERROR_SSL, text)  # with the text alone it would be shown as a tuple


def _kept_pair(folder: Path, now: datetime.datetime) -> tuple[Path, Path]:
    certificate, key = folder / CERTIFICATE_FILE, folder / KEY_FILE
    if not (certificate.exists() and key.exists()) or _expires(certificate) < now + datetime.timedelta(
        RENEW_DAYS
    ):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        certificate_pem, key_pem = make_pair(host_names(), now)
        # The key first: a crash between the two leaves a pair that does not match or is not whole, never a
        # key that others can read; the next start would find the mismatch, so the old certificate goes
        # before the key changes.
        certificate.unlink(missing_ok=True)
        _write(key, key_pem, 0o600)
        _write(certificate, certificate_pem, 0o644)
    return certificate, key


def _write(file: Path, data: bytes, mode: int) -> None:
    temporary = file.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())
    temporary.replace(file)


def _expires(certificate: Path) -> datetime.datetime:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    except ValueError as failure:
        raise _refused(
            f"{certificate} is not a PEM certificate; delete it to have a new one made"
        ) from failure


def host_names() -> list[str]:
    """Name this machine as its local clients do."""
    names = ["localhost", "127.0.0.1", "::1"]
    own = socket.gethostname()
    if own and own not in names and own.isascii():
        names.append(own)
    return names


def make_pair(names: list[str], now: datetime.datetime) -> tuple[bytes, bytes]:
    """Make a self-signed certificate for these DNS names and IP addresses, and its key: both PEM.

    EC P-256: every official client's TLS library takes it, and it is made in under 1 ms. A leaf, not an
    authority (CA:FALSE): some libraries refuse an authority's certificate as a server's, none refuses a
    leaf that it was told to trust. Source: RFC 5280 4.2.1; our choice of names.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "peeklock self-signed")])
    alternatives: list[x509.GeneralName] = []
    for name in names:
        try:
            alternatives.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            alternatives.append(x509.DNSName(name))
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now - _BACKDATED + datetime.timedelta(VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
