"""The file of `--jwt`, and an issuer's keys: fetched, kept fresh, kept when the issuer is gone."""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import re
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from peeklock.auth import KeysUnavailable, Right, SignatureInvalid
from peeklock.auth.jwk import ALGORITHMS
from peeklock.auth.jwt import DEFAULT_AUDIENCES, DEFAULT_ROLES, JwtSettings, JwtVerifier, RoleRight
from peeklock.server.keys import jwt_keys
from peeklock.server.keys.jwt_keys import (
    ASKED_MS_MIN,
    DISCOVERY,
    FILE_BYTES_MAX,
    REFRESH_MS,
    RETRY_MS_MAX,
    RETRY_MS_MIN,
    FetchFailed,
    JwtFileInvalid,
    JwtKeys,
    fetch_keys,
    load_jwt,
)
from peeklock.testing.clock import ManualClock
from tests.server.issuer import KEYS_PATH, Issuer, respond

OWNER = "Azure Service Bus Data Owner"


# The file


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write the file, and files beside it."""

    def write(text: str, **beside: bytes) -> Path:
        for name, data in beside.items():
            (tmp_path / name).write_bytes(data)
        file = tmp_path / "jwt.toml"
        file.write_text(text)
        return file

    return write


def test_a_file_with_an_issuer_alone_has_the_service_s_defaults(write: Callable[..., Path]) -> None:
    """Req: R-04"""
    settings = load_jwt(write('issuer = "https://id.example.com/tenant/v2.0"'))[0]
    assert settings == JwtSettings("https://id.example.com/tenant/v2.0", DEFAULT_AUDIENCES, "roles")
    assert settings.roles == DEFAULT_ROLES
    assert settings.keys is None


def test_a_file_with_everything_is_read(write: Callable[..., Path]) -> None:
    """Req: R-04"""
    with_keys = Issuer().jwks()
    settings = load_jwt(
        write(
            """
            issuer = "my issuer"
            audience = ["api://one", "api://two"]
            keys = "keys"
            roles_claim = "realm_access.roles"
            [roles]
            "orders-worker" = ["Listen:Orders", "Send:results"]
            reader = "Listen:prices/subscriptions/mine"
            admin = ["Manage"]
            """,
            keys=json.dumps(with_keys).encode(),
        )
    )[0]
    assert settings.issuer == "my issuer"
    assert settings.audiences == {"api://one", "api://two"}
    assert settings.roles_claim == "realm_access.roles"
    assert settings.roles == {
        "orders-worker": (RoleRight(Right.LISTEN, "orders"), RoleRight(Right.SEND, "results")),
        "reader": (RoleRight(Right.LISTEN, "prices/subscriptions/mine"),),
        "admin": (RoleRight(Right.MANAGE),),
    }
    assert [key.kid for key in settings.keys or ()] == ["first"]


GOOD = 'issuer = "https://id.example.com"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "`issuer`: it is missing"),
        ("issuer = 5", "`issuer`: it is missing"),
        ('issuer = ""', "`issuer`: it is missing"),
        ("issuer = ", "not TOML"),
        ('issuer = "http://id.example.com"', "`issuer`: it must begin with https://"),
        ('issuer = "id.example.com"', "`issuer`: it must be https://HOST"),
        ('issuer = "file:///etc/passwd"', "`issuer`: it must be"),
        ('issuer = "https://user:secret@id.example.com"', "without a user"),
        ('issuer = "https://id.example.com?a=b"', "without query"),
        ('issuer = "https://[broken"', "not a URL"),
        (GOOD + "isuer = 1", "`isuer`: unknown key; known keys: issuer, audience"),
        (GOOD + "audience = []", "`audience`: give a string"),
        (GOOD + 'audience = ["a", 5]', "`audience`: give a string"),
        (GOOD + 'audience = ""', "`audience`: give a string"),
        (GOOD + "roles_claim = []", "`roles_claim`: give the name"),
        (GOOD + 'roles = "Send"', "`roles`: give a table"),
        (GOOD + "[roles]", "`roles`: give a table"),
        (GOOD + "[roles]\nr = []", "`roles.'r'`: give a right"),
        (GOOD + "[roles]\nr = 5", "`roles.'r'`: give a right"),
        (GOOD + '[roles]\nr = ["send"]', "`roles.'r'`: 'send' is not a right"),
        (GOOD + '[roles]\nr = ["Read:orders"]', "'Read:orders' is not a right"),
        (GOOD + '[roles]\nr = ["Send:"]', "'Send:' names no entity"),
        (GOOD + '[roles]\nr = ["Send:a b"]', "names no entity"),
        (GOOD + "[roles]\nr = [[]]", "is not a right"),
        (GOOD + "keys = 5", "`keys`: give the path"),
        (GOOD + 'keys = "missing"', "missing: cannot be read: No such file"),
        (GOOD + 'keys = "."', "cannot be read"),
        (GOOD + 'keys = "a\\u0000b"', "cannot be read"),
        (GOOD + 'keys = "garbage"', "garbage: not a JSON object"),
        (GOOD + 'keys = "ssh"', "give a JWKS document, or PEM public keys (-----BEGIN PUBLIC KEY-----)"),
        (GOOD + 'keys = "empty"', "empty: contains no key"),
        (GOOD + 'keys = "secret"', "secret: key 1 ('k'): it is a shared secret"),
        (GOOD + 'keys = "private"', "private: it contains a private key"),
        (GOOD + 'keys = "large"', f"large: larger than {FILE_BYTES_MAX} bytes"),
    ],
)
def test_a_wrong_file_is_refused_with_what_to_do(
    write: Callable[..., Path], tmp_path: Path, text: str, told: str
) -> None:
    """Req: R-04. Names the file and the key in it."""
    private = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = write(
        text,
        garbage=b"\x00\xff",
        ssh=b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 me@example.com",
        empty=b'{"keys": []}',
        secret=b'{"keys": [{"kty": "oct", "k": "AAAA", "kid": "k"}]}',
        private=private,
        large=b" " * (FILE_BYTES_MAX + 1),
    )
    with pytest.raises(JwtFileInvalid) as refused:
        load_jwt(file)[0]
    assert told in str(refused.value)
    assert str(tmp_path) in str(refused.value)
    assert "secret@" not in str(refused.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JwtFileInvalid, match=r"none.toml: cannot be read"):
        load_jwt(tmp_path / "none.toml")


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "jwt.toml").write_bytes(b'issuer = "\xff"')
    with pytest.raises(JwtFileInvalid, match="not TOML"):
        load_jwt(tmp_path / "jwt.toml")


# Fetching


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as serving:
        yield serving


def test_keys_are_found_by_discovery(issuer: Issuer) -> None:
    """Req: R-04"""
    assert [key.kid for key in fetch_keys(issuer.url).keys] == ["first"]
    assert issuer.requests == [DISCOVERY, KEYS_PATH]


def test_a_slash_at_the_end_of_the_issuer_is_part_of_its_name(issuer: Issuer) -> None:
    """Entra's first version is such an issuer."""
    with pytest.raises(FetchFailed, match="another issuer"):
        fetch_keys(issuer.url + "/")
    assert issuer.requests == [DISCOVERY]


Answer = Callable[[BaseHTTPRequestHandler], None]


def answer(status: int, body: bytes = b"", **headers: str) -> Answer:
    return lambda handler: respond(handler, status, body, **headers)


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.close()


def no_http(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"\x00\x01 nonsense\r\n\r\n")


def document(**members: object) -> bytes:
    return json.dumps(members).encode()


@pytest.mark.parametrize(
    ("path", "reply", "told"),
    [
        (DISCOVERY, answer(404), "answered 404"),
        (DISCOVERY, answer(302, Location="http://127.0.0.1:1/"), "answered 302; redirects are not followed"),
        (DISCOVERY, answer(200, b"<html>"), "not a JSON object"),
        (DISCOVERY, answer(200, document(issuer="https://evil.example.com")), "another issuer"),
        (DISCOVERY, answer(200, b" " * (FILE_BYTES_MAX + 1)), f"larger than {FILE_BYTES_MAX} bytes"),
        (DISCOVERY, hang_up, "cannot be read"),
        (DISCOVERY, no_http, "cannot be read"),
        (KEYS_PATH, answer(500), "answered 500"),
        (KEYS_PATH, answer(307, Location="https://id.example.com/"), "redirects are not followed"),
        (KEYS_PATH, answer(200, b"[]"), "has no keys"),
        (KEYS_PATH, answer(200, b'{"keys": []}'), "no usable key"),
        (KEYS_PATH, answer(200, b'{"keys": [{"kty": "oct", "k": "AA"}]}'), "shared secret"),
        (KEYS_PATH, answer(200, b" " * (FILE_BYTES_MAX + 1)), "larger than"),
    ],
)
def test_an_issuer_that_answers_wrongly_gives_no_keys(
    issuer: Issuer, path: str, reply: Answer, told: str
) -> None:
    """Req: R-04"""
    issuer.answers[path] = reply
    with pytest.raises(FetchFailed, match=told):
        fetch_keys(issuer.url)


@pytest.mark.parametrize(
    "url",
    ["http://id.example.com/keys", "file:///etc/passwd", "ftp://127.0.0.1/k", "keys", 5, None, "https://["],
)
def test_keys_are_taken_from_https_alone(issuer: Issuer, url: object) -> None:
    """Req: R-04"""
    issuer.answers[DISCOVERY] = answer(200, document(issuer=issuer.url, jwks_uri=url))
    with pytest.raises(FetchFailed, match="jwks_uri"):
        fetch_keys(issuer.url)


def test_a_drop_at_a_time_is_not_waited_for(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Req: R-04"""
    monkeypatch.setattr(jwt_keys, "FETCH_S_MAX", 0.2)

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b" ")
        except OSError:
            pass  # the client has gone

    def hang(handler: BaseHTTPRequestHandler) -> None:
        handler.rfile.read(1)  # until the client goes

    issuer.answers[DISCOVERY] = hang
    with pytest.raises(FetchFailed, match="cannot be read: timed out"):
        fetch_keys(issuer.url)
    issuer.answers[DISCOVERY] = drip
    with pytest.raises(FetchFailed, match=r"not read within|larger than"):
        fetch_keys(issuer.url)


def test_an_issuer_that_is_not_there_is_told(issuer: Issuer) -> None:
    with pytest.raises(FetchFailed, match=r"127\.0\.0\.1:1/\.well-known.* cannot be read"):
        fetch_keys("http://127.0.0.1:1")


def test_a_proxy_is_not_asked_for_what_is_on_this_machine(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert fetch_keys(issuer.url).keys


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate for 127.0.0.1 that signs itself, and a server's context with it."""
    from peeklock.server.tls.certificates import make_pair

    certificate, key = make_pair(["127.0.0.1"], datetime.datetime.now(datetime.UTC))
    file = tmp_path / "certificate.pem"
    file.write_bytes(certificate)
    (tmp_path / "key.pem").write_bytes(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, tmp_path / "key.pem")
    return file, context


def test_an_issuer_over_tls_has_to_be_trusted_by_the_system(
    pair: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: R-04"""
    file, context = pair
    with Issuer(context) as issuer:
        with pytest.raises(FetchFailed, match="CERTIFICATE_VERIFY_FAILED"):
            fetch_keys(issuer.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        assert fetch_keys(issuer.url).keys
        issuer.answers[DISCOVERY] = answer(
            200, document(issuer=issuer.url, jwks_uri=issuer.url.replace("https", "http") + KEYS_PATH)
        )
        with pytest.raises(FetchFailed, match="jwks_uri"):  # not even to this machine
            fetch_keys(issuer.url)


# Keeping them fresh


class _Kept:
    """Keys of an issuer over time, which a test moves by hand."""

    def __init__(self, issuer: Issuer) -> None:
        self.clock = ManualClock()
        settings = JwtSettings(issuer.url)
        self.keys = JwtKeys(settings, self.clock)
        self._verifier = JwtVerifier(settings, self.keys)
        self._issuer = issuer

    async def pass_time(self, ms: int = 0) -> None:
        self.clock.advance(ms)
        self.keys.tick()
        await self.keys.fetched()

    def sign_in(self, text: str | None = None) -> None:
        now_ms = self.clock()
        text = text or self._issuer.token(exp=now_ms // 1000 + 60, roles=[OWNER])
        assert self._verifier.authorize(text, "q", now_ms).rights == set(Right)

    def token(self) -> str:
        return self._issuer.token(exp=self.clock() // 1000 + 7200, roles=[OWNER])


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def within_limits() -> None:
        async with asyncio.timeout(30):
            await scenario

    asyncio.run(within_limits())


def test_tokens_are_refused_until_the_keys_are_there(issuer: Issuer) -> None:
    """Req: R-04"""

    async def scenario() -> None:
        kept = _Kept(issuer)
        with pytest.raises(KeysUnavailable, match="not there yet"):
            kept.sign_in()
        await kept.pass_time()
        kept.sign_in()

    run(scenario())


def test_keys_are_fetched_again_every_hour(issuer: Issuer) -> None:
    """Req: R-04. A key that the issuer has withdrawn is good for an hour more at most."""

    async def scenario() -> None:
        kept = _Kept(issuer)
        await kept.pass_time()
        old = kept.token()
        issuer.rotate("second")
        await kept.pass_time(REFRESH_MS - 1)
        kept.sign_in(old)
        assert len(issuer.requests) == 2
        await kept.pass_time(1)
        assert len(issuer.requests) == 4
        kept.sign_in()
        with pytest.raises(KeysUnavailable):
            kept.sign_in(old)  # it might be newer than what was just fetched
        await kept.keys.fetched()
        with pytest.raises(SignatureInvalid):
            kept.sign_in(old)

    run(scenario())


def test_an_unknown_key_has_them_fetched_once_a_minute_at_most(issuer: Issuer) -> None:
    """Req: R-04"""

    async def scenario() -> None:
        kept = _Kept(issuer)
        await kept.pass_time()
        issuer.rotate("second")
        with pytest.raises(KeysUnavailable, match="Please try again"):
            kept.sign_in()
        await kept.keys.fetched()
        kept.sign_in()
        issuer.rotate("third")
        await kept.pass_time(ASKED_MS_MIN - 1)
        for _ in range(100):
            with pytest.raises(SignatureInvalid):
                kept.sign_in()
        assert len(issuer.requests) == 4
        await kept.pass_time(1)
        for _ in range(100):
            with pytest.raises(KeysUnavailable):
                kept.sign_in()
        await kept.keys.fetched()
        assert len(issuer.requests) == 6
        kept.sign_in()

    run(scenario())


def test_a_failed_fetch_keeps_the_old_keys_and_says_what_to_do(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    """Req: R-04"""

    async def scenario() -> None:
        kept = _Kept(issuer)
        await kept.pass_time()
        issuer.answers[KEYS_PATH] = answer(500)
        await kept.pass_time(REFRESH_MS)
        kept.sign_in()
        del issuer.answers[KEYS_PATH]
        issuer.rotate("second")
        await kept.pass_time(RETRY_MS_MIN)
        kept.sign_in()

    with caplog.at_level(logging.INFO, "peeklock"):
        run(scenario())
    (line,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    fields: Any = line.__dict__["fields"]
    assert line.getMessage() == "keys of the issuer not fetched"
    assert fields["keys_kept"] == 1
    assert "answered 500" in fields["reason"]
    assert "SSL_CERT_FILE" in fields["do"]


def test_pauses_after_failures_grow(issuer: Issuer) -> None:
    async def scenario() -> None:
        kept = _Kept(issuer)
        issuer.answers[DISCOVERY] = answer(503)
        await kept.pass_time()
        pause_ms = RETRY_MS_MIN
        for attempts in range(1, 12):
            await kept.pass_time(pause_ms - 1)
            assert len(issuer.requests) == attempts
            await kept.pass_time(1)
            assert len(issuer.requests) == attempts + 1
            pause_ms = min(2 * pause_ms, RETRY_MS_MAX)
        assert pause_ms == RETRY_MS_MAX

    run(scenario())


def test_an_issuer_that_says_nothing_is_given_up_and_not_asked_twice_at_once(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Req: R-04. The wait ends although the thread that reads does not."""

    def lines_without_end(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        try:
            while not ended.is_set():
                handler.wfile.write(b"x")
                ended.wait(0.02)
        except OSError:
            pass

    ended = threading.Event()
    monkeypatch.setattr(jwt_keys, "FETCH_S_MAX", 0.2)
    issuer.answers[DISCOVERY] = lines_without_end

    async def scenario() -> None:
        kept = _Kept(issuer)
        await kept.pass_time()
        await kept.pass_time(RETRY_MS_MIN)
        assert len(issuer.requests) == 1
        ended.set()
        await kept.keys.stop()

    with caplog.at_level(logging.INFO, "peeklock"):
        run(scenario())
    reasons = [record.__dict__["fields"]["reason"] for record in caplog.records]
    assert "has not answered within" in reasons[0]
    assert "has still not answered" in reasons[1]


def test_keys_that_are_not_used_are_told(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    entries = [*issuer.jwks()["keys"], {"kty": "oct", "k": "AAAA", "kid": "shared"}]
    issuer.answers[KEYS_PATH] = answer(200, document(keys=entries))

    async def scenario() -> None:
        kept = _Kept(issuer)
        await kept.pass_time()
        kept.sign_in()

    with caplog.at_level(logging.INFO, "peeklock"):
        run(scenario())
    fields: Any = caplog.records[-1].__dict__["fields"]
    assert "shared secret" in fields["reasons"][0]
    assert "AAAA" not in str(fields)


def test_started_keys_are_fetched_in_the_background_and_stopped(issuer: Issuer) -> None:
    """Req: R-04"""

    async def scenario() -> None:
        kept = _Kept(issuer)
        await kept.keys.start()
        await asyncio.sleep(0)  # its turn
        await kept.keys.fetched()
        kept.sign_in()
        await kept.keys.stop()

    run(scenario())


def test_keys_of_a_file_are_never_fetched(issuer: Issuer, write: Callable[..., Path]) -> None:
    """Req: R-04"""

    async def scenario() -> None:
        file = write(f'issuer = "{issuer.url}"\nkeys = "k"', k=json.dumps(issuer.jwks()).encode())
        settings = load_jwt(file)[0]
        clock = ManualClock()
        keys = JwtKeys(settings, clock)
        await keys.start()
        verifier = JwtVerifier(settings, keys)
        expires_s = clock() // 1000 + 60
        assert verifier.authorize(issuer.token(exp=expires_s, roles=[OWNER]), "q", clock()).rights
        issuer.rotate("second")
        with pytest.raises(SignatureInvalid):
            verifier.authorize(issuer.token(exp=expires_s, roles=[OWNER]), "q", clock())
        await keys.stop()
        assert issuer.requests == []

    run(scenario())


# The documentation


def test_the_documented_file_is_read_and_each_key_of_it_explained(write: Callable[..., Path]) -> None:
    """Req: R-04"""
    chapter = (Path(__file__).parents[3] / "docs/how-to/web-tokens.md").read_text()
    # The second one, of a broker without an issuer, is followed by the tests of the guide.
    example, _ = re.findall(r"```toml\n(.*?)```", chapter, re.DOTALL)
    assert load_jwt(write(example))[0].roles["operator"] == (RoleRight(Right.MANAGE),)
    explained = set(re.findall(r"^\| `\[?(\w+)\]?` \|", chapter, re.MULTILINE))
    assert explained == {"issuer", "audience", "keys", "roles_claim", "roles"}
    for algorithm in ALGORITHMS:
        assert algorithm in chapter
