"""The file that `--jwt` names, and the keys of the issuer of JSON web tokens.

Keys are fetched in the background: the broker starts without them, and until they are there tokens are
refused as "try again". They are fetched again every hour, and when a token names an unknown key, at most once
a minute. If a fetch fails, the keys fetched last stay in use. Source: RFC 7517; OpenID Connect Discovery 1.0,
section 4.
"""

from __future__ import annotations

import asyncio
import http.client
import ssl
import threading
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from peeklock import __version__
from peeklock.auth.errors import KeysUnavailable
from peeklock.auth.jwk import Key, KeySet, KeysInvalid, read_jwks, read_keys, read_object
from peeklock.auth.jwt import (
    DEFAULT_AUDIENCES,
    DEFAULT_ROLES,
    DEFAULT_ROLES_CLAIM,
    JwtSettings,
    RoleRight,
)
from peeklock.auth.rights import Right, normal_path
from peeklock.broker.entities.validation import is_name
from peeklock.config.hosts import is_loopback
from peeklock.server import log
from peeklock.server.loop.tasks import tell_failure

FILE_BYTES_MAX = 1024 * 1024
"""Of the file, a file with keys, and an issuer's answer. Our choice: keys of an issuer are 20 KB."""

FETCH_S_MAX = 10.0
"""For both requests together. Our choice: an issuer answers within a second."""

REFRESH_MS = 3_600_000
"""Our choice: issuers publish a new key a day or more before they use it."""

ASKED_MS_MIN = 60_000
"""Between fetches for unknown keys in tokens. Our choice: strangers can name as many as they like."""

RETRY_MS_MIN = 1_000
RETRY_MS_MAX = 600_000
"""After a failure, the pause doubles from the one to the other. Our choice: official clients retry for some 6
s, and most outages of an issuer are short."""

TICK_S = 1.0

DISCOVERY = "/.well-known/openid-configuration"


class JwtFileInvalid(Exception):
    """The file cannot be used; the message names the file, the key in it, and what to do."""


class FetchFailed(Exception):
    """The issuer's keys could not be fetched; the message names the URL and what happened."""


def load_jwt(file: Path) -> tuple[JwtSettings, list[Path]]:
    """Read the file that `--jwt` names, and the file with keys that it names; return both files too.

    Raises: JwtFileInvalid.
    """
    read = _JwtFile(file)
    return read.settings(), read.files


class JwtKeys:
    """The keys of one issuer: fixed in a file, or fetched from the issuer."""

    def __init__(self, settings: JwtSettings, now_ms: Callable[[], int]) -> None:
        """Fetch nothing before `start`; `now_ms`: UTC, never jumping."""
        self._issuer = settings.issuer
        self._fixed = settings.keys is not None
        self._keys = settings.keys
        self._now_ms = now_ms
        self._due_ms = 0
        self._ask_ms = 0
        """The earliest next fetch that a token may cause."""
        self._failures = 0
        """In a row."""
        self._fetching: asyncio.Task[None] | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._asked: Future[KeySet] | None = None
        """The result of the last thread, perhaps abandoned."""

    def __call__(self, kid: str | None) -> Sequence[Key]:
        """Return all keys, for a token that names this one or none; fetch them if it is unknown.

        Raises: KeysUnavailable: they are being fetched, or could not be fetched yet.
        """
        if self._keys is None:
            raise KeysUnavailable(
                f"ServerBusy: The keys of the issuer '{self._issuer}' are not there yet. Please try again."
            )
        known = kid is None or any(key.kid in (None, kid) for key in self._keys)
        if not self._fixed and not known and self._ask():
            raise KeysUnavailable(
                f"ServerBusy: The token's key is new here; the keys of the issuer '{self._issuer}' are being "
                "fetched. Please try again."
            )
        return self._keys

    async def start(self) -> None:
        """Begin to fetch, and keep the keys fresh until `stop`."""
        if not self._fixed:
            self._ticking = asyncio.get_running_loop().create_task(self._tick_on())
            self._ticking.add_done_callback(tell_failure)

    async def stop(self) -> None:
        """Cancel what is under way."""
        tasks = [task for task in (self._ticking, self._fetching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def tick(self) -> None:
        """Begin to fetch if it is time."""
        if self._fetching is None and self._now_ms() >= self._due_ms:
            self._begin()

    async def fetched(self) -> None:
        """Wait for the end of the current fetch, if any."""
        if self._fetching is not None:
            await asyncio.wait([self._fetching])

    async def _tick_on(self) -> None:
        while True:
            self.tick()
            await asyncio.sleep(TICK_S)

    def _ask(self) -> bool:
        """Begin a fetch unless a token caused one lately; return whether one is under way."""
        if self._fetching is None and self._now_ms() >= self._ask_ms:
            self._ask_ms = self._now_ms() + ASKED_MS_MIN
            self._begin()
        return self._fetching is not None

    def _begin(self) -> None:
        self._fetching = asyncio.get_running_loop().create_task(self._fetch())
        self._fetching.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._fetching = None
        tell_failure(task)

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(FETCH_S_MAX):
                found = await self._in_thread()
        except TimeoutError:
            self._failed(f"{self._issuer} has not answered within {FETCH_S_MAX:.0f} s")
        except FetchFailed as failure:
            self._failed(str(failure))
        else:
            self._failures = 0
            self._due_ms = self._now_ms() + REFRESH_MS
            if found.keys != self._keys:
                log.info("keys of the issuer fetched", {"issuer": self._issuer, "keys": len(found.keys)})
                if found.refused:
                    fields = {"issuer": self._issuer, "reasons": found.refused}
                    log.warning("keys of the issuer that are not used", fields)
            self._keys = found.keys

    def _failed(self, reason: str) -> None:
        pause_ms = min(RETRY_MS_MIN << min(self._failures, 10), RETRY_MS_MAX)
        self._failures += 1
        self._due_ms = self._now_ms() + pause_ms
        log.warning(
            "keys of the issuer not fetched",
            {
                "issuer": self._issuer,
                "reason": reason,
                "keys_kept": len(self._keys or ()),
                "retry_s": pause_ms // 1000,
                "do": "check that this machine reaches the issuer and trusts its certificate (SSL_CERT_FILE "
                "names further authorities), or give its keys in a file: `keys` beside `issuer`",
            },
        )

    def _in_thread(self) -> asyncio.Future[KeySet]:
        """Fetch in a daemon thread, which may hang longer than the time-out and even the broker's stop."""
        if self._asked is not None and not self._asked.done():
            raise FetchFailed(f"{self._issuer} has still not answered the request before")
        fetched: Future[KeySet] = Future()
        self._asked = fetched
        fetched.set_running_or_notify_cancel()  # so that a time-out does not cancel it

        def work() -> None:
            try:
                fetched.set_result(fetch_keys(self._issuer))
            except Exception as failure:  # raised where the result is awaited
                fetched.set_exception(failure)

        threading.Thread(target=work, name="keys of the issuer", daemon=True).start()
        return asyncio.wrap_future(fetched)


def fetch_keys(issuer: str) -> KeySet:
    """Fetch the discovery document of an issuer, then the keys that it names. Raises: FetchFailed."""
    deadline = time.monotonic() + FETCH_S_MAX
    url = issuer.rstrip("/") + DISCOVERY
    try:
        document = read_object(_get(url, deadline))
    except ValueError as failure:
        raise FetchFailed(f"{url} is not a JSON object: {failure}") from failure
    if document.get("issuer") != issuer:
        # A document of another issuer would name that one's keys (Discovery 4.3).
        raise FetchFailed(f"{url} is of another issuer; `issuer` must be exactly as in it")
    keys_url = document.get("jwks_uri")
    if not isinstance(keys_url, str):
        raise FetchFailed(f"{url} has no string 'jwks_uri'")
    if reason := _refused_url(keys_url, https_only=url.startswith("https:")):
        raise FetchFailed(f"{url} has an unusable 'jwks_uri': {reason}")
    try:
        found = read_jwks(_get(keys_url, deadline))
    except KeysInvalid as failure:
        raise FetchFailed(f"{keys_url} has no keys: {failure}") from failure
    if not found.keys:
        reasons = "; ".join(found.refused[:3]) or "the list is empty"
        raise FetchFailed(f"{keys_url} has no usable key: {reasons}")
    return found


def _get(url: str, deadline: float) -> bytes:
    """Get a document; `deadline`: of the monotonic clock. Raises: FetchFailed."""
    opener = urllib.request.OpenerDirector()  # bare: no redirects, no files, no FTP
    opener.add_handler(urllib.request.HTTPDefaultErrorHandler())
    opener.add_handler(urllib.request.HTTPErrorProcessor())
    if url.startswith("https:"):
        opener.add_handler(urllib.request.ProxyHandler())
        opener.add_handler(urllib.request.HTTPSHandler(context=ssl.create_default_context()))
        opener.add_handler(urllib.request.HTTPHandler())  # towards a proxy
    else:
        opener.add_handler(urllib.request.HTTPHandler())  # loopback, and never by a proxy
    headers = {"Accept": "application/json", "User-Agent": f"peeklock/{__version__}"}
    request = urllib.request.Request(url, headers=headers)
    data = b""
    try:
        with opener.open(request, timeout=max(0.1, deadline - time.monotonic())) as answer:
            while piece := answer.read1(65536):
                data += piece
                if len(data) > FILE_BYTES_MAX:
                    raise FetchFailed(f"{url} is larger than {FILE_BYTES_MAX} bytes")
                if time.monotonic() > deadline:
                    raise FetchFailed(f"{url} was not read within {FETCH_S_MAX:.0f} s")
    except urllib.error.HTTPError as failure:
        with failure:
            moved = "; redirects are not followed" if 300 <= failure.code < 400 else ""
            raise FetchFailed(f"{url} answered {failure.code}{moved}") from failure
    except (OSError, http.client.HTTPException, ValueError) as failure:
        reason = getattr(failure, "reason", None) or failure
        raise FetchFailed(f"{url} cannot be read: {reason}") from failure
    return data


def _refused_issuer(url: str) -> str | None:
    """Return why keys cannot be fetched from an issuer; None = they can."""
    if "?" in url or "#" in url:
        return "it must be https://HOST/PATH, without query and fragment"  # Discovery 3
    return _refused_url(url)


def _refused_url(url: str, *, https_only: bool = False) -> str | None:
    """Return why keys cannot be fetched from an address; None = they can."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "it is not a URL"
    is_local = host == "localhost" or is_loopback(host)
    if not host or port == 0 or parts.username is not None:
        return "it must be https://HOST/PATH, without a user"
    if parts.scheme == "https" or (parts.scheme == "http" and not https_only and is_local):
        return None
    return "it must begin with https:// (http:// is allowed for this machine only)"


class _JwtFile:
    """The TOML file, read strictly."""

    KNOWN = ("issuer", "audience", "keys", "roles_claim", "roles")

    def __init__(self, file: Path) -> None:
        self._file = file
        self.files = [file]
        """What was read."""
        try:
            self._table: dict[str, Any] = tomllib.loads(self._read(file).decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as failure:
            raise JwtFileInvalid(f"{file}: it is not TOML: {failure}") from failure

    def settings(self) -> JwtSettings:
        for name in self._table:
            if name not in self.KNOWN:
                raise self._wrong(name, f"unknown key; known keys: {', '.join(self.KNOWN)}")
        issuer = self._issuer()
        keys = self._keys()
        if keys is None and (reason := _refused_issuer(issuer)):
            raise self._wrong("issuer", f"{reason}; or give the issuer's public keys in a file with `keys`")
        return JwtSettings(issuer, self._audiences(), self._roles_claim(), self._roles(), keys)

    def _issuer(self) -> str:
        issuer = self._table.get("issuer")
        if not isinstance(issuer, str) or not issuer:
            raise self._wrong(
                "issuer",
                "it is missing; give what the tokens have as 'iss', such as \"https://id.example.com\"",
            )
        return issuer

    def _audiences(self) -> frozenset[str]:
        if "audience" not in self._table:
            return DEFAULT_AUDIENCES
        given = self._table["audience"]
        audiences = [given] if isinstance(given, str) else given
        if not isinstance(audiences, list) or not audiences or not all(_is_text(one) for one in audiences):
            raise self._wrong("audience", "give a string, or a list of strings: the 'aud' of the tokens")
        return frozenset(audiences)

    def _roles_claim(self) -> str:
        claim = self._table.get("roles_claim", DEFAULT_ROLES_CLAIM)
        if not _is_text(claim):
            raise self._wrong("roles_claim", 'give the name of a claim, such as "realm_access.roles"')
        return str(claim)

    def _roles(self) -> dict[str, tuple[RoleRight, ...]]:
        if "roles" not in self._table:
            return dict(DEFAULT_ROLES)
        table = self._table["roles"]
        if not isinstance(table, dict) or not table:
            raise self._wrong("roles", "give a table of role = rights, or leave it out for Azure's own roles")
        return {role: self._rights(role, given) for role, given in table.items()}

    def _rights(self, role: str, given: object) -> tuple[RoleRight, ...]:
        where = f"roles.{role!r}"
        rights = [given] if isinstance(given, str) else given
        if not isinstance(rights, list) or not rights:
            raise self._wrong(where, 'give a right or a list of them, such as ["Listen:orders", "Send"]')
        return tuple(self._right(where, right) for right in rights)

    def _right(self, where: str, text: object) -> RoleRight:
        name, colon, entity = text.partition(":") if isinstance(text, str) else ("", "", "")
        if name not in {right.value for right in Right}:
            raise self._wrong(where, f"{text!r} is not a right; give Send, Listen or Manage, or Send:ENTITY")
        path = normal_path(entity)
        if colon and not is_name(path):
            raise self._wrong(
                where, f"{text!r} names no entity; give Send:QUEUE or Listen:TOPIC/subscriptions/S"
            )
        return RoleRight(Right(name), path)

    def _keys(self) -> tuple[Key, ...] | None:
        if "keys" not in self._table:
            return None
        given = self._table["keys"]
        if not _is_text(given):
            raise self._wrong("keys", "give the path of a file with a JWKS document or PEM public keys")
        file = self._file.parent / given
        self.files.append(file)
        try:
            found = read_keys(self._read(file))
        except KeysInvalid as failure:
            raise self._wrong("keys", f"{file}: {failure}") from failure
        if found.refused:
            raise self._wrong("keys", f"{file}: {'; '.join(found.refused)}; remove what cannot be used")
        if not found.keys:
            raise self._wrong("keys", f"{file}: contains no key for signatures; add the issuer's")
        return found.keys

    def _read(self, file: Path) -> bytes:
        try:
            with file.open("rb") as opened:
                data = opened.read(FILE_BYTES_MAX + 1)
        except (OSError, ValueError) as failure:  # ValueError: a path with a NUL
            reason = getattr(failure, "strerror", None) or failure
            raise JwtFileInvalid(f"{file}: cannot be read: {reason}") from failure
        if len(data) > FILE_BYTES_MAX:
            raise JwtFileInvalid(f"{file}: larger than {FILE_BYTES_MAX} bytes; is it the right file?")
        return data

    def _wrong(self, key: str, text: str) -> JwtFileInvalid:
        return JwtFileInvalid(f"{self._file}: `{key}`: {text}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)
