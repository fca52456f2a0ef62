"""The certificate pair: real hand-shakes over memory, with the client's verification on."""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from peeklock.server.tls import VALID_DAYS, host_names, server_context

DAY_S = 86_400.0
NOW_S = 1_760_000_000.0


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> bytes:
    """Complete a TLS hand-shake in memory; answer the server's certificate (DER). Raises: ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=name)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):
        waiting = False
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                waiting = True
        if not waiting:
            break
    certificate = ours.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


def blind() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
def test_a_client_that_trusts_the_self_signed_certificate_accepts_it_for_local_names(
    tmp_path: Path, name: str
) -> None:
    server = server_context(tmp_path)
    assert shake_hands(server, trusting(tmp_path / "tls" / "certificate.pem"), name)


def test_the_certificate_names_this_machine() -> None:
    assert {"localhost", "127.0.0.1", "::1"} <= set(host_names())


def test_strict_checks_of_newer_pythons_accept_the_certificate(tmp_path: Path) -> None:
    """Python 3.13 and newer verify with VERIFY_X509_STRICT by default."""
    server = server_context(tmp_path)
    client = trusting(tmp_path / "tls" / "certificate.pem")
    client.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    assert shake_hands(server, client, "localhost")


def test_a_name_that_is_not_in_the_certificate_is_refused_by_the_client(tmp_path: Path) -> None:
    server = server_context(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, trusting(tmp_path / "tls" / "certificate.pem"), "example.org")


def test_the_pair_is_kept_and_its_key_is_for_the_owner_only(tmp_path: Path) -> None:
    first = shake_hands(server_context(tmp_path), blind(), "localhost")
    key = tmp_path / "tls" / "key.pem"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert shake_hands(server_context(tmp_path), blind(), "localhost") == first
    assert sorted(os.listdir(tmp_path / "tls")) == ["certificate.pem", "key.pem"]


def test_a_pair_that_runs_out_is_made_anew(tmp_path: Path) -> None:
    first = shake_hands(server_context(tmp_path, now_s=NOW_S), blind(), "localhost")
    later = NOW_S + (VALID_DAYS - 9) * DAY_S
    assert shake_hands(server_context(tmp_path, now_s=later), blind(), "localhost") == first
    assert shake_hands(server_context(tmp_path, now_s=later + 2 * DAY_S), blind(), "localhost") != first


def test_a_half_written_pair_is_made_anew(tmp_path: Path) -> None:
    server_context(tmp_path)
    (tmp_path / "tls" / "certificate.pem").unlink()
    (tmp_path / "tls" / "key.new").write_bytes(b"cut")
    assert shake_hands(server_context(tmp_path), trusting(tmp_path / "tls" / "certificate.pem"), "localhost")


def test_a_damaged_certificate_is_told_by_name(tmp_path: Path) -> None:
    server_context(tmp_path)
    (tmp_path / "tls" / "certificate.pem").write_bytes(b"nonsense")
    with pytest.raises(ssl.SSLError) as refused:
        server_context(tmp_path)
    file = tmp_path / "tls/certificate.pem"
    assert str(refused.value) == f"{file} is not a PEM certificate; delete it to have a new one made"


def test_without_a_folder_each_process_has_a_pair_of_its_own() -> None:
    first = shake_hands(server_context(None), blind(), "localhost")
    assert shake_hands(server_context(None), blind(), "localhost") != first


def test_a_given_pair_is_used_and_nothing_is_made(tmp_path: Path) -> None:
    server_context(tmp_path / "made")
    certificate, key = tmp_path / "made" / "tls" / "certificate.pem", tmp_path / "made" / "tls" / "key.pem"
    server = server_context(tmp_path / "data", certificate, key)
    assert shake_hands(server, trusting(certificate), "localhost")
    assert not (tmp_path / "data").exists()


def test_what_is_wrong_with_a_given_pair_is_told_by_file(tmp_path: Path) -> None:
    """OpenSSL's own errors name no file."""
    for folder in ("a", "b"):
        server_context(tmp_path / folder)
    certificate, key, other_key = (
        tmp_path / "a/tls/certificate.pem",
        tmp_path / "a/tls/key.pem",
        tmp_path / "b/tls/key.pem",
    )
    missing, encrypted = tmp_path / "missing.pem", tmp_path / "encrypted.pem"
    encrypted.write_bytes(
        load_pem_private_key(key.read_bytes(), None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
        )
    )
    for given, said in (
        ((certificate, other_key), f"{other_key} is not the key of {certificate}"),
        ((key, key), f"{key} is not a PEM certificate"),
        ((certificate, certificate), f"{certificate} is not a PEM private key"),
        ((certificate, encrypted), f"{encrypted} is encrypted; give a key without a pass phrase"),
        ((missing, key), f"[Errno 2] No such file or directory: '{missing}'"),
        ((certificate, missing), f"[Errno 2] No such file or directory: '{missing}'"),
    ):
        with pytest.raises(OSError) as refused:  # ssl.SSLError is one
            server_context(None, *given)
        assert str(refused.value) == said


def test_tls_before_1_2_is_not_spoken(tmp_path: Path) -> None:
    assert server_context(None).minimum_version == ssl.TLSVersion.TLSv1_2
