"""TLS between the nodes of a cluster: both ends have one key pair, which follows from the cluster key.

A node makes the pair by itself; the certificate is the same to the byte on all nodes, and it is the only one
that they trust. So who does not have the cluster key can neither connect to a node nor stand in for one.
"""

from __future__ import annotations

import datetime
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from peeklock.cluster.key import ClusterKey

_BEGINS = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
_ENDS = datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)
"""All nodes make the same certificate, whenever they do."""


@dataclass(frozen=True, slots=True)
class NodeContexts:
    """The contexts of one node."""

    listening: ssl.SSLContext
    connecting: ssl.SSLContext


def node_contexts(key: ClusterKey) -> NodeContexts:
    """Return the contexts of the nodes that have this key."""
    private = Ed25519PrivateKey.from_private_bytes(key.derived("key pair of nodes"))
    certificate = _certificate(private).public_bytes(serialization.Encoding.PEM)
    key_pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    made = []
    with tempfile.TemporaryDirectory(prefix="peeklock-") as folder:  # OpenSSL reads files only
        pair = Path(folder, "pair.pem")
        pair.touch(0o600)
        pair.write_bytes(key_pem + certificate)
        for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
            context = ssl.SSLContext(side)
            context.check_hostname = False  # the key is what counts
            context.verify_mode = ssl.CERT_REQUIRED
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(pair)
            context.load_verify_locations(cadata=certificate.decode())
            made.append(context)
    return NodeContexts(*made)


def _certificate(private: Ed25519PrivateKey) -> x509.Certificate:
    """Return the certificate; an Ed25519 signature has nothing random."""
    public = private.public_key()
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "peeklock node")])
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(1)
        .not_valid_before(_BEGINS)
        .not_valid_after(_ENDS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
        )
    )
    return builder.sign(private, None)
