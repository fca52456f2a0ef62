"""The files of the page: their addresses, content, validators and headers.

A file is read when it is first asked for, and kept: with its entity tag, and compressed. The policy forbids
code and styles in the document, and requests to other hosts. Source: W3C Content Security Policy Level 3;
RFC 9110 8.8.3 and 13.1.2.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from peeklock.explorer.joined import JOINED, Joined, join

PAGE = Path(__file__).with_name("page")
FOLDER = "/$explorer/"
"""Where the files are served. The document itself is at `/`."""
DOCUMENT = "index.html"

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""By suffix; a file with another one is not served."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)

HEADERS = (
    ("Cache-Control", "no-cache"),  # asks each time, and is answered 304: a new release shows at once
    ("Content-Security-Policy", POLICY),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("Vary", "Accept-Encoding"),
    ("X-Content-Type-Options", "nosniff"),
)
"""Of each answer."""


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file, as it is sent."""

    content_type: str
    content: bytes
    compressed: bytes
    etag: str
    """Weak: it stands for both forms of the content."""

    def is_current(self, if_none_match: str) -> bool:
        """Return whether the client has this version, by its header `If-None-Match`."""
        tags = {tag.strip() for tag in if_none_match.split(",")}
        return self.etag in tags or "*" in tags


def addresses() -> Mapping[str, str]:
    """Return the name of each file by the path that serves it."""
    found = {"/": DOCUMENT, FOLDER + JOINED: JOINED}
    for path in sorted(PAGE.rglob("*")):
        name = path.relative_to(PAGE).as_posix()
        if path.suffix in CONTENT_TYPES and name != DOCUMENT:
            found[FOLDER + name] = name
    return found


@cache
def read(name: str, *, asks_for_secret: bool = True) -> PageFile:
    """Return a file of `addresses`. The document says whether the broker asks clients for a secret."""
    text = _joined().content if name == JOINED else (PAGE / name).read_text(encoding="utf-8")
    if name == DOCUMENT and not asks_for_secret:
        text = text.replace("<html", '<html data-secret="none"', 1)
    elif name.endswith((".js", ".mjs")) and name != JOINED:
        text = _joined().served(name, text)
    content = text.encode()
    tag = hashlib.sha256(content).hexdigest()[:32]
    content_type = CONTENT_TYPES[PurePosixPath(name).suffix]
    return PageFile(content_type, content, gzip.compress(content, mtime=0), f'W/"{tag}"')


@cache
def _joined() -> Joined:
    return join(PAGE)


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether a client takes gzip, by its header `Accept-Encoding`. Source: RFC 9110 12.5.3."""
    for part in accept_encoding.lower().split(","):
        coding, _, weight = part.partition(";")
        if coding.strip() in ("gzip", "x-gzip"):
            value = weight.strip().removeprefix("q=").strip() if weight else "1"
            return value.strip("0.") != ""
    return False
