"""Heads of HTTP requests and answers: parsed, limited, refused where a proxy may read them otherwise."""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

import h11

from peeklock.admin.exchange import Response
from peeklock.rest.broker_properties import write_date

HEAD_BYTES_MAX = 32 * 1024
"""Request line and headers: three tokens of at most 8 KiB and as much for the rest. Our choice."""

HEADERS_MAX = 100
"""Of one request. Our choice: the official clients send 10; 32 KiB of empty ones take 20 ms to read."""


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a request."""

    method: str
    """Upper case."""
    path: str
    """As sent: percent-encoded, without the query."""
    query: str
    headers: dict[str, str]
    """By name in lower case; repeated ones are joined."""
    fields: tuple[tuple[str, str], ...]
    """All headers as they were written."""
    hosts: tuple[str, ...]
    """`Host`, and the authority of a target in absolute form. Source: RFC 9112 3.2.2."""
    version: str
    """Of HTTP."""
    body_bytes: int
    """Content-Length; 0 = there is none."""


def head_of(request: h11.Request) -> Head:
    """Read the head of a request."""
    fields = tuple(
        (name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw_items()
    )
    headers: dict[str, str] = {}
    hosts = []
    for spelt, value in fields:
        name = spelt.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
        if name == "host":
            hosts.append(value)
    authority, target = _split_target(request.target.decode("latin-1"))
    if authority is not None:
        hosts.append(authority)
    path, _, query = target.partition("?")
    return Head(
        method=request.method.decode("latin-1").upper(),
        path=path,
        query=query,
        headers=headers,
        fields=fields,
        hosts=tuple(hosts),
        version=request.http_version.decode(),
        body_bytes=int(headers.get("content-length", 0)),  # h11: digits, and one value if repeated
    )


def _split_target(target: str) -> tuple[str | None, str]:
    """Return the authority of a target in absolute form, as to a proxy, and the rest; None = another form."""
    if "://" not in target.partition("?")[0] or target.startswith("/"):
        return None, target
    authority, _, rest = target.partition("://")[2].partition("/")
    return authority, "/" + rest


def why_refused(request: h11.Request) -> tuple[int, str] | None:
    """Return status and reason if a readable head must be refused."""
    if request.http_version not in (b"1.0", b"1.1"):
        version = request.http_version.decode()
        return 505, f"HTTP/{version} is not supported, only HTTP/1.1, and there is no upgrade to HTTP/2"
    headers = request.headers.raw_items()
    if len(headers) > HEADERS_MAX:
        return 431, f"there are more than {HEADERS_MAX} headers"
    if len(request.target) + sum(len(name) + len(value) for name, value in headers) > HEAD_BYTES_MAX:
        return 431, f"the head is larger than {HEAD_BYTES_MAX} bytes"  # h11 checks only incomplete heads
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" in names:
        # "ought to be handled as an error" RFC 9112 6.3; 6.1 for HTTP/1.0
        if b"content-length" in names:
            return 400, "Transfer-Encoding and Content-Length exclude each other"
        if request.http_version == b"1.0":
            return 400, "HTTP/1.0 has no Transfer-Encoding"
    return None


def end_of_head(data: bytes | bytearray) -> int:
    """Return where the LF of the last line of a head is, before the empty line; -1 = it is not complete."""
    return min((at for at in (data.find(b"\n\r\n"), data.find(b"\n\n")) if at >= 0), default=-1)


_LENGTHS = re.compile(rb"\ncontent-length:[^\n]*", re.IGNORECASE)


def fault_of_lines(start: bytes) -> str:
    """Return what is wrong with the lines of a complete head; empty = nothing."""
    end = end_of_head(start)
    head = start[: end + 2]
    if end >= 0 and head.count(b"\n") != head.count(b"\r\n"):
        return "a line ends with LF alone, not with CR LF"
    if b"\n " in head or b"\n\t" in head:
        # "MUST either reject the message [...] or replace each received obs-fold" RFC 9112 5.2
        return "a line begins with a space or a tab: headers are not folded"
    lengths = _LENGTHS.findall(head)
    if len(lengths) > 1 or (lengths and b"," in lengths[0]):
        # "either reject the message as invalid or replace" RFC 9112 6.3; h11 replaces
        return "Content-Length appears more than once"
    return ""


def answer_headers(response: Response, now_ms: int) -> list[tuple[str, str]]:
    """Return the headers of an answer."""
    headers = [("Date", write_date(now_ms))]
    if response.status != HTTPStatus.NO_CONTENT:
        headers.append(("Content-Length", str(response.body_bytes)))
    if response.content_type:
        headers.append(("Content-Type", response.content_type))
    return [*headers, *response.headers]
