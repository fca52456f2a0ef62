"""A PFX in base64 as certificate and key; the authority as a trust store of Java."""

from __future__ import annotations

import base64
import datetime
import shutil
import ssl
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    KeySerializationEncryption,
    NoEncryption,
    load_pem_private_key,
    pkcs12,
)

from peeklock.server.tls.certificates import keep_authority, make_pair
from peeklock.server.tls.contexts import CA_STORE_FILE
from peeklock.server.tls.pfx import PfxInvalid, unpacked

NOW = datetime.datetime.now(datetime.UTC)


def pfx(encryption: KeySerializationEncryption) -> str:
    chain, key = make_pair(["broker.example.com"], NOW)
    leaf, authority = x509.load_pem_x509_certificates(chain)
    private = load_pem_private_key(key, None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    made = pkcs12.serialize_key_and_certificates(b"x", private, leaf, [authority], encryption)
    return base64.b64encode(made).decode()


@pytest.mark.parametrize("keeps", [True, False])
def test_a_pfx_is_a_pair(tmp_path: Path, keeps: bool) -> None:
    certificate, key = unpacked(pfx(NoEncryption()), tmp_path if keeps else None)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    assert len(x509.load_pem_x509_certificates(certificate.read_bytes())) == 2
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    if not keeps:
        shutil.rmtree(key.parent)


@pytest.mark.parametrize("text", ["%%%", base64.b64encode(b"no pfx").decode(), ""])
def test_what_is_no_pfx_is_told_what_to_give(tmp_path: Path, text: str) -> None:
    with pytest.raises(PfxInvalid, match="give a PFX file without a password, in base64"):
        unpacked(text, tmp_path)
    with pytest.raises(PfxInvalid, match="cannot be read"):
        unpacked(pfx(BestAvailableEncryption(b"secret")), tmp_path)


def test_the_authority_is_a_trust_store_of_java(tmp_path: Path) -> None:
    authority = keep_authority(tmp_path, NOW)
    store = tmp_path / CA_STORE_FILE
    found = pkcs12.load_pkcs12(store.read_bytes(), b"changeit")
    assert [one.certificate for one in found.additional_certs] == [authority.certificate]
    before = store.read_bytes()
    keep_authority(tmp_path, NOW)
    assert store.read_bytes() == before


@pytest.mark.long
@pytest.mark.skipif(shutil.which("keytool") is None, reason="needs Java's keytool")
def test_java_trusts_what_the_store_has(tmp_path: Path) -> None:
    keep_authority(tmp_path, NOW)
    command = ["keytool", "-list", "-keystore", str(tmp_path / CA_STORE_FILE), "-storepass", "changeit"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "trustedCertEntry" in listed
