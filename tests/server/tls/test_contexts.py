"""The certificate pair: real hand-shakes over memory, with the client's verification on."""

from __future__ import annotations

import datetime
import os
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from peeklock.server.tls.certificates import (
    CA_RENEW_DAYS,
    CA_VALID_DAYS,
    RENEW_DAYS,
    VALID_DAYS,
    keep_authority,
    make_pair,
)
from peeklock.server.tls.contexts import KEEP_S, TlsFiles, host_names, own_addresses
from tests.server.contexts import server_context

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
def test_a_client_that_trusts_the_local_authority_accepts_the_broker_for_local_names(
    tmp_path: Path, name: str
) -> None:
    server = server_context(tmp_path)
    assert shake_hands(server, trusting(tmp_path / "tls" / "ca.pem"), name)


def test_the_certificate_names_this_machine() -> None:
    assert {"localhost", "127.0.0.1", "::1"} <= set(host_names())


def test_the_full_name_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(socket, "gethostname", lambda: "somewhere")
    monkeypatch.setattr(socket, "getfqdn", lambda name: answered.wait() and "somewhere.example")
    monkeypatch.setattr("peeklock.server.tls.contexts.FULL_NAME_S_MAX", 0.01)
    try:
        assert host_names() == ["localhost", "127.0.0.1", "::1", "somewhere"]
    finally:
        answered.set()


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ("somewhere.example", ["somewhere.example"]),
        ("somewhere.example.", ["somewhere.example"]),
        ("somewhere", []),
        ("localhost.localdomain", []),
        ("192.0.2.1", []),
        ("1.2.0.192.in-addr.arpa", []),
    ],
)
def test_only_a_full_name_is_taken_for_one(
    monkeypatch: pytest.MonkeyPatch, told: str, named: list[str]
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "somewhere")
    monkeypatch.setattr(socket, "getfqdn", lambda name: told)
    assert host_names()[4:] == named


@pytest.mark.parametrize("file", ["ca.pem", "ca-key.pem", "certificate.pem", "key.pem"])
def test_damage_is_seen_without_loading_cryptography(tmp_path: Path, file: str) -> None:
    """Req: R-05. The start looks at the files before any client does."""
    files = TlsFiles(tmp_path)
    assert not files.looks_sound(), "nothing was made yet"
    assert files.make_files()
    assert not files.make_files(), "they are sound"
    look = "from peeklock.server.tls.contexts import *; "
    look += f"print(TlsFiles(Path({str(tmp_path)!r})).looks_sound())"
    look += "; import sys; print('cryptography' in sys.modules)"
    looked = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert looked.stdout.split() == ["True", "False"]
    damaged = tmp_path / "tls" / file
    damaged.write_bytes(damaged.read_bytes().replace(b"M", b"N", 1))
    assert not files.looks_sound()


def test_the_addresses_of_this_machine_are_found_without_a_name_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "nobody knows")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert not {"127.0.0.1", "::1", "0.0.0.0", "::"} & set(own_addresses())
    found: list[Any] = [(socket.AF_INET, 1, 0, "", (address, 0)) for address in ("127.0.1.1", "198.51.100.7")]
    found += [(socket.AF_INET6, 1, 0, "", (address, 0, 0, 2)) for address in ("fe80::1%eth0", "2001:db8::7")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    assert own_addresses()[-2:] == ["198.51.100.7", "2001:db8::7"]


def test_strict_checks_of_newer_pythons_accept_the_certificate(tmp_path: Path) -> None:
    """Python 3.13 and newer verify with VERIFY_X509_STRICT by default."""
    server = server_context(tmp_path)
    client = trusting(tmp_path / "tls" / "ca.pem")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    assert shake_hands(server, client, "localhost")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_verifies_the_chain_strictly(tmp_path: Path) -> None:
    server_context(tmp_path)
    folder = tmp_path / "tls"
    command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", "localhost"]
    done = subprocess.run(
        [*command, "-CAfile", folder / "ca.pem", folder / "certificate.pem"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"{folder / 'certificate.pem'}: OK\n")


def test_a_name_that_is_not_in_the_certificate_is_refused_by_the_client(tmp_path: Path) -> None:
    server = server_context(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, trusting(tmp_path / "tls" / "ca.pem"), "example.org")


def test_a_name_that_was_asked_for_is_in_the_certificate_and_the_authority_stays(tmp_path: Path) -> None:
    server_context(tmp_path)
    authority = (tmp_path / "tls" / "ca.pem").read_bytes()
    client = trusting(tmp_path / "tls" / "ca.pem")
    server = server_context(tmp_path, names=["Broker.example.org", "192.0.2.7", "*.inside.example"])
    for name in ("localhost", "broker.example.org", "192.0.2.7", "a.inside.example"):
        assert shake_hands(server, client, name)
    first = shake_hands(server, client, "localhost")
    assert (tmp_path / "tls" / "ca.pem").read_bytes() == authority
    fewer = server_context(tmp_path, names=["192.0.2.7"])
    assert shake_hands(fewer, client, "localhost") == first, "nothing was missing"


def test_the_files_are_kept_and_the_keys_are_for_the_owner_only(tmp_path: Path) -> None:
    """Req: R-04"""
    first = shake_hands(server_context(tmp_path), blind(), "localhost")
    folder = tmp_path / "tls"
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    public, secret = ("ca.p12", "ca.pem", "certificate.pem"), ("ca-key.pem", "key.pem")
    assert modes == dict.fromkeys(public, 0o644) | dict.fromkeys(secret, 0o600)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert shake_hands(server_context(tmp_path), blind(), "localhost") == first


def test_a_certificate_that_runs_out_is_made_anew_below_the_same_authority(tmp_path: Path) -> None:
    first = shake_hands(server_context(tmp_path, now_s=NOW_S), blind(), "localhost")
    authority = (tmp_path / "tls" / "ca.pem").read_bytes()
    later = NOW_S + (VALID_DAYS - RENEW_DAYS - 2) * DAY_S
    assert shake_hands(server_context(tmp_path, now_s=later), blind(), "localhost") == first
    assert shake_hands(server_context(tmp_path, now_s=later + 2 * DAY_S), blind(), "localhost") != first
    assert (tmp_path / "tls" / "ca.pem").read_bytes() == authority


def test_a_certificate_of_the_future_is_made_anew(tmp_path: Path) -> None:
    """The clock was wrong when it was made."""
    first = shake_hands(server_context(tmp_path, now_s=NOW_S), blind(), "localhost")
    assert shake_hands(server_context(tmp_path, now_s=NOW_S - 5 * DAY_S), blind(), "localhost") != first


def test_an_authority_that_runs_out_is_renewed_with_its_key_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who trusts the old one accepts what the renewed one signs, as long as the old one is valid."""
    now_s = time.time()
    server_context(tmp_path, now_s=now_s - (CA_VALID_DAYS - CA_RENEW_DAYS - 0.5) * DAY_S)
    old = (tmp_path / "tls" / "ca.pem").read_bytes()
    server_context(tmp_path, now_s=now_s - 2 * DAY_S)
    assert (tmp_path / "tls" / "ca.pem").read_bytes() == old
    assert "local authority renewed, with its old key" not in caplog.messages
    server = server_context(tmp_path, now_s=now_s)
    new = (tmp_path / "tls" / "ca.pem").read_bytes()
    assert new != old
    assert "local authority renewed, with its old key" in caplog.messages
    for pem in (old, new):
        assert shake_hands(server, ssl.create_default_context(cadata=pem.decode()), "localhost")


def test_a_certificate_does_not_outlive_its_authority(tmp_path: Path) -> None:
    server_context(tmp_path, now_s=NOW_S)
    late = NOW_S + (CA_VALID_DAYS - CA_RENEW_DAYS - 10) * DAY_S
    server_context(tmp_path, now_s=late)
    leaf, authority = x509.load_pem_x509_certificates((tmp_path / "tls" / "certificate.pem").read_bytes())
    assert leaf.not_valid_after_utc == authority.not_valid_after_utc


@pytest.mark.parametrize("absent", ["certificate.pem", "key.pem"])
def test_a_half_written_pair_is_made_anew(tmp_path: Path, absent: str) -> None:
    server_context(tmp_path)
    (tmp_path / "tls" / absent).unlink()
    (tmp_path / "tls" / "key.new").write_bytes(b"cut")
    assert shake_hands(server_context(tmp_path), trusting(tmp_path / "tls" / "ca.pem"), "localhost")
    assert sorted(os.listdir(tmp_path / "tls")) == [
        "ca-key.pem",
        "ca.p12",
        "ca.pem",
        "certificate.pem",
        "key.pem",
    ]


def test_a_half_made_authority_is_completed_with_its_key(tmp_path: Path) -> None:
    server_context(tmp_path)
    key = (tmp_path / "tls" / "ca-key.pem").read_bytes()
    (tmp_path / "tls" / "ca.pem").unlink()
    assert shake_hands(server_context(tmp_path), trusting(tmp_path / "tls" / "ca.pem"), "localhost")
    assert (tmp_path / "tls" / "ca-key.pem").read_bytes() == key


@pytest.mark.parametrize("how", ["damaged", "another key", "another authority"])
def test_a_pair_that_does_not_belong_together_is_made_anew(tmp_path: Path, how: str) -> None:
    """A crash between the two files leaves one, and so does a folder that was put together by hand."""
    server_context(tmp_path)
    server_context(tmp_path / "other")
    folder, other = tmp_path / "tls", tmp_path / "other" / "tls"
    if how == "damaged":
        (folder / "certificate.pem").write_bytes(b"nonsense")
    if how in ("another key", "another authority"):
        (folder / "key.pem").write_bytes((other / "key.pem").read_bytes())
    if how == "another authority":
        (folder / "certificate.pem").write_bytes((other / "certificate.pem").read_bytes())
    assert shake_hands(server_context(tmp_path), trusting(folder / "ca.pem"), "localhost")


def test_the_pair_of_an_older_release_is_replaced_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "tls"
    folder.mkdir()
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "peeklock self-signed")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(800))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    caplog.set_level("INFO", "peeklock")
    server = server_context(tmp_path)
    assert shake_hands(server, trusting(folder / "ca.pem"), "localhost")
    assert [vars(record)["fields"]["why"] for record in caplog.records if "TLS" in record.message] == [
        "the old one was self-signed, by an older release"
    ]
    # Who was told to trust this file, and not a copy, goes on.
    assert shake_hands(server, trusting(folder / "certificate.pem"), "localhost")


def test_what_is_wrong_with_the_authority_is_told_by_file_and_nothing_is_replaced(tmp_path: Path) -> None:
    for name in ("a", "b"):
        server_context(tmp_path / name)
    folder, other = tmp_path / "a" / "tls", tmp_path / "b" / "tls"
    ca, key, leaf_key = folder / "ca.pem", folder / "ca-key.pem", folder / "key.pem"
    sound = {file: file.read_bytes() for file in folder.iterdir()}
    encrypted = load_pem_private_key(sound[key], None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    again = "to have a new authority made, which every client must then trust"
    mend = f"; put a sound copy back, or delete ca.pem and ca-key.pem there {again}"
    for file, data, said in (
        (ca, b"nonsense", f"{ca} is not a PEM certificate{mend}"),
        (ca, sound[folder / "certificate.pem"], f"{ca} is not the certificate of an authority{mend}"),
        (key, b"nonsense", f"{key} is not a PEM private key{mend}"),
        (key, encrypted, f"{key} is encrypted{mend}"),
        (
            key,
            (other / "ca-key.pem").read_bytes(),
            f"{key} is not the key of {ca}{mend}",
        ),
    ):
        file.write_bytes(data)
        with pytest.raises(ssl.SSLError) as refused:
            server_context(tmp_path / "a")
        assert str(refused.value) == said
        assert {**sound, file: data} == {file: file.read_bytes() for file in folder.iterdir()}
        file.write_bytes(sound[file])
    key.unlink()
    assert shake_hands(server_context(tmp_path / "a"), trusting(ca), "localhost"), "not needed yet"
    leaf_key.unlink()
    with pytest.raises(ssl.SSLError) as refused:
        server_context(tmp_path / "a")
    assert str(refused.value) == (
        f"{key} is missing, and a new certificate is needed (there was none); put it back, or delete {ca} "
        f"{again}"
    )


@pytest.mark.parametrize("part", ["curve", "point"])
@pytest.mark.parametrize("name", ["ca.pem", "certificate.pem"])
def test_a_certificate_that_is_damaged_within_is_found_out_too(tmp_path: Path, name: str, part: str) -> None:
    """Req: R-05. It can be read as PEM; what is wrong shows when its key is asked for."""
    server_context(tmp_path)
    file = tmp_path / "tls" / name
    curve = b"\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07"
    der = bytearray(
        ssl.PEM_cert_to_DER_cert(file.read_text().partition("-----END")[0] + "-----END CERTIFICATE-----")
    )
    der[der.index(curve) + len(curve) + (-1 if part == "curve" else 10)] ^= 0x10
    file.write_text(ssl.DER_cert_to_PEM_cert(bytes(der)))
    damaged = file.read_bytes()
    if name == "ca.pem":
        with pytest.raises(ssl.SSLError, match=r"ca\.pem is not a PEM certificate"):
            server_context(tmp_path)
        assert file.read_bytes() == damaged
    else:
        server_context(tmp_path)
        assert file.read_bytes() != damaged


def test_two_who_make_an_authority_at_the_same_time_get_the_same(tmp_path: Path) -> None:
    """A broker that starts, and `peeklock ca` beside it."""
    now = datetime.datetime.now(datetime.UTC)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: keep_authority(tmp_path / "tls", now).certificate, range(8)))
    assert set(made) == {x509.load_pem_x509_certificate((tmp_path / "tls" / "ca.pem").read_bytes())}


def test_without_a_folder_each_process_has_a_pair_of_its_own() -> None:
    first = shake_hands(server_context(None), blind(), "localhost")
    assert shake_hands(server_context(None), blind(), "localhost") != first


def test_a_given_pair_is_used_and_nothing_is_made(tmp_path: Path) -> None:
    server_context(tmp_path / "made")
    certificate, key = tmp_path / "made" / "tls" / "certificate.pem", tmp_path / "made" / "tls" / "key.pem"
    server = server_context(tmp_path / "data", certificate, key)
    assert shake_hands(server, trusting(tmp_path / "made" / "tls" / "ca.pem"), "localhost")
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


def given_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """Put a pair for this name where a user keeps his own."""
    certificate, key = folder / "own.pem", folder / "own-key.pem"
    for file, pem in zip(
        (certificate, key), make_pair([name], datetime.datetime.now(datetime.UTC)), strict=True
    ):
        file.write_bytes(pem)
    return certificate, key


def test_a_pair_that_was_replaced_is_shown_to_new_connections(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "peeklock")
    pair = given_pair(tmp_path, "first.example")
    files = TlsFiles(tmp_path / "data", *pair)
    files.load()
    assert files.follow() is None, "nothing changed"
    given_pair(tmp_path, "second.example")
    context = files.follow()
    assert context is not None
    assert shake_hands(context, trusting(pair[0]), "second.example")
    assert files.follow() is None
    assert caplog.messages == ["TLS pair changed; new connections get the new one"]


@pytest.mark.parametrize("fault", ["certificate alone", "damaged", "gone"])
def test_a_new_pair_that_does_not_do_is_told_once_and_mended_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """Whoever copies two files copies one first."""
    certificate, key = given_pair(tmp_path, "first.example")
    files = TlsFiles(tmp_path / "data", certificate, key)
    files.load()
    old_key = key.read_bytes()
    given_pair(tmp_path, "second.example")
    new_key = key.read_bytes()
    if fault == "gone":
        key.unlink()
    else:
        key.write_bytes(old_key if fault == "certificate alone" else b"nonsense")
    assert files.follow() is None
    assert files.follow() is None
    (record,) = caplog.records
    assert record.message == "the TLS files cannot be used; the old pair stays in use"
    assert str(key) in vars(record)["fields"]["reason"]
    key.write_bytes(new_key)
    context = files.follow()
    assert context is not None
    assert shake_hands(context, trusting(certificate), "second.example")


def test_our_own_certificate_is_renewed_while_the_broker_runs(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path)
    made_at = time.time() - (VALID_DAYS - RENEW_DAYS - 0.5) * DAY_S
    first = shake_hands(files.load(made_at), blind(), "localhost")
    assert files.follow(time.time() - 3 * DAY_S) is None, "looked at, and good"
    context = files.follow(time.time())
    assert context is not None
    assert shake_hands(context, trusting(tmp_path / "tls" / "ca.pem"), "localhost") != first
    assert files.follow(time.time() + KEEP_S - 1) is None


def test_nothing_is_followed_before_somebody_spoke_tls_or_without_files(tmp_path: Path) -> None:
    assert TlsFiles(tmp_path).follow() is None
    assert list(tmp_path.iterdir()) == []
    kept_nowhere = TlsFiles(None)
    kept_nowhere.load()
    assert kept_nowhere.follow(time.time() + 10 * KEEP_S) is None
