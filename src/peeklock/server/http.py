"""HTTP/1.1 on a transport: requests in, answers of the administration and of `/health` out.

Owns: reading requests within limits of size and time, routing, writing answers, handing the transport of an
upgraded connection on. Must not know: XML, entities, WebSocket, sockets.

h11 directly, without uvicorn and starlette: there are two routes and both answer from memory. Measured
beside each other on an idle broker: h11 costs 12 ms and 0.4 MiB to import, uvicorn's h11 protocol 138 ms
and 5.8 MiB, starlette 72 ms and 5.1 MiB more; and uvicorn has no limit for the size of a body nor for the
time that a head or a body may take, so that its protocol would have to be wrapped anyway. The server
imports this module at its first HTTP connection.

Theory of operation: a connection is idle, reading a head, reading a body, answering, or lingering, and in
each but the fourth a deadline runs. While it answers it does not read, so that a client which pipelines
waits in its own socket buffer. After a refusal that leaves unread bytes it lingers: it reads and drops for
a moment, because closing at once would reset the connection and could take the refusal with it. The same
code serves plain and TLS transports.

Where a proxy in front of us could see other requests in the same bytes than we do, the bytes are refused,
although h11 would take them: both kinds of body length, a bare line feed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

import h11

from peeklock.admin.api import BODY_BYTES_MAX, AdminCommand, Administration, AdminRequest, Pending, Response
from peeklock.broker.commands import Command, ReplyTo
from peeklock.broker.effects import Effect
from peeklock.server import log

HEAD_BYTES_MAX = 32 * 1024
"""Request line and headers: three tokens of at most 8 KiB and as much for the rest. Our choice."""

HEAD_S_MAX = 10.0
"""From the first byte of a request to the end of its headers. Our choice."""

HEADERS_MAX = 100
"""Of one request. Our choice: the official clients send 10; 32 KiB of empty ones would take 20 ms to read."""

CHUNKS_MAX = 1000
"""Of one body. Our choice: each costs as much as a small request, and 1 MiB would have room for 170,000."""

UNKNOWN_BODY_BYTES_MAX = 16 * 1024
"""Of a body before its request's token is looked at. Our choice: most descriptions are smaller, and four
thousand connections of whoever it may be hold 64 MiB by such bodies, not 4 GiB."""

BODY_S_MAX = 30.0
"""From the end of the headers to the end of the body. Our choice: 1 MiB at 35 KiB/s."""

IDLE_S_MAX = 120.0
"""Without a request. Our choice: above the 60 s after which the usual proxies drop a connection."""

WRITE_S_MAX = 30.0
"""For an answer to leave. Our choice: the largest, a page of 100 queues, has about 250 KiB."""

LINGER_S = 2.0
"""For reading and dropping what a refused client still sends. Our choice."""

Submit = Callable[[Callable[[ReplyTo], Command]], Awaitable[Effect]]
"""Has a command run; the function given is called with the reply-to and makes the command."""

Health = Callable[[], Awaitable[Mapping[str, Any]]]
"""Gives the figures for `/health`; the key `status` is `ok` or says what is wrong."""

Note = Callable[[str, Mapping[str, Any]], None]
"""Takes a line for the log about what was refused: event and fields."""

WEBSOCKET_PATH = "/$servicebus/websocket"
"""In any case, with or without a slash at its end. Source: wire contract 1.1."""

_NOWHERE: ReplyTo = (0, 0, 0, 0)
_JSON = "application/json"
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class _Phase(Enum):
    IDLE = 0
    HEAD = 1
    BODY = 2
    ANSWER = 3
    LINGER = 4


class HttpProtocol(asyncio.Protocol):
    """One HTTP connection; the listener hands in the transport and the bytes that it has read already."""

    def __init__(
        self,
        submit: Submit,
        administration: Administration,
        health: Health,
        now_ms: Callable[[], int],
        amqp: Callable[[], asyncio.Protocol],
        note: Note,
        bears_refusal: Callable[[str], bool] = lambda _: True,
        takes_origin: Callable[[str, str], bool] = lambda origin, host: True,
    ) -> None:
        """Make a protocol for one connection.

        Args:
            submit: has a command run.
            administration: answers requests.
            health: gives the figures.
            now_ms: UTC.
            amqp: makes the protocol that a WebSocket carries.
            note: takes the log lines that anybody can cause, and has to limit them.
            bears_refusal: told of each bad token by its peer's address; whether that one may go on.
            takes_origin: whether a page of a browser, by its `Origin` and `Host`, may ask for anything.
        """
        self._takes_origin = takes_origin
        self._bears_refusal = bears_refusal
        self._submit = submit
        self._amqp = amqp
        self._note = note
        self._administration = administration
        self._health = health
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._phase = _Phase.IDLE
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._request: h11.Request | None = None
        self._body = bytearray()
        self._chunks = 0
        self._vouched = False
        """The token of the request has been looked at, because its body is large."""
        self._drained = asyncio.Event()
        self._drained.set()
        self._answering: asyncio.Task[None] | None = None

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._enter(_Phase.IDLE, IDLE_S_MAX)

    def data_received(self, data: bytes) -> None:
        if self._phase is _Phase.LINGER:
            return
        self._http.receive_data(data)
        self._advance()

    def eof_received(self) -> bool:
        if self._phase is _Phase.LINGER:
            return False
        self._http.receive_data(b"")
        self._advance()
        # A client may close its half and still read; within TLS it cannot.
        return (
            self._phase is _Phase.ANSWER and self._transport is not None and self._transport.can_write_eof()
        )

    def pause_writing(self) -> None:
        self._drained.clear()

    def resume_writing(self) -> None:
        self._drained.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._drained.set()
        self._disarm()

    # Reading

    def _advance(self) -> None:
        """Take what h11 makes of the bytes so far, up to the end of one request."""
        while self._transport is not None and self._phase is not _Phase.ANSWER:
            if self._phase is not _Phase.BODY and _has_bare_line_feed(self._http.trailing_data[0]):
                self._refuse(400, "a line ends with LF alone, not with CR LF")
                return
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as failure:
                # h11 quotes the line that it cannot read, which may hold a token.
                self._refuse(failure.error_status_hint, str(failure).partition(": bytearray(")[0])
                return
            match event:
                case h11.Request():
                    self._request = event
                    self._body.clear()
                    self._chunks = 0
                    self._vouched = False
                    self._enter(_Phase.BODY, BODY_S_MAX)
                    refusal = _why_refused(event) or self._why_origin_refused(event)
                    if refusal is not None:
                        self._refuse(*refusal)
                        return
                case h11.Data():
                    self._body += event.data
                    self._chunks += event.chunk_start
                    if len(self._body) > BODY_BYTES_MAX:
                        self._refuse(413, f"the body is larger than {BODY_BYTES_MAX} bytes")
                        return
                    if self._chunks > CHUNKS_MAX:
                        self._refuse(413, f"the body has more than {CHUNKS_MAX} chunks")
                        return
                    if len(self._body) > UNKNOWN_BODY_BYTES_MAX and not self._vouched:
                        self._vouched = True
                        if self._refused_unread():
                            return
                case h11.EndOfMessage():
                    assert self._request is not None
                    if self._upgraded(self._request):
                        return
                    self._enter(_Phase.ANSWER, None)
                    self._transport.pause_reading()
                    self._answering = self._loop.create_task(self._answer(self._request, bytes(self._body)))
                case h11.ConnectionClosed():
                    self._transport.close()
                    return
                case _:  # NEED_DATA; PAUSED cannot be, since a new cycle begins before the next call
                    if self._http.they_are_waiting_for_100_continue:
                        self._write(h11.InformationalResponse(status_code=100, headers=[]))
                    if self._phase is _Phase.IDLE and self._http.trailing_data[0]:
                        self._enter(_Phase.HEAD, HEAD_S_MAX)
                    return

    def _refused_unread(self) -> bool:
        """Refuse a request with a large body if its token is no good; tell whether it was refused."""
        request, transport = self._request, self._transport
        assert request is not None
        assert transport is not None
        path, query = _path_and_query(request)
        if path == "/health" or _is_websocket(path):
            self._refuse(413, "no body is wanted here")
            return True
        head = AdminRequest(
            request.method.decode("latin-1").upper(), path, query, _headers(request), peer=self._peer()
        )
        refusal = self._administration.refusal(head, self._now_ms())
        if refusal is None:
            return False
        if refusal.status == HTTPStatus.UNAUTHORIZED:
            self._bears_refusal(self._peer_host())
        self._send(replace(refusal, headers=(*refusal.headers, ("Connection", "close"))), None)
        self._linger(transport)
        return True

    def _why_origin_refused(self, request: h11.Request) -> tuple[int, str] | None:
        headers = _headers(request)
        origin = headers.get("origin")
        if origin is None or self._takes_origin(origin, headers.get("host", "")):
            return None
        return 403, "pages of other machines are not served where everybody has the key: use --auth sas"

    # Answering

    async def _answer(self, request: h11.Request, body: bytes) -> None:
        try:
            response = await self._respond(request, body)
        except Exception as failure:
            # A defect of ours: it costs this request its answer, nobody else anything.
            log.error("an HTTP request met a defect", {"exception": repr(failure)})
            response = Response(500, "text/plain", b"internal error", (("Connection", "close"),))
        if self._transport is None:
            return
        if response.status == HTTPStatus.UNAUTHORIZED and not self._bears_refusal(self._peer_host()):
            response = replace(response, headers=(*response.headers, ("Connection", "close")))
        self._send(response, request)
        if not self._drained.is_set():
            self._arm(WRITE_S_MAX, self._transport.abort)
            await self._drained.wait()
        transport: asyncio.Transport | None = self._transport
        if transport is None:
            return
        if self._http.our_state is h11.MUST_CLOSE or self._http.their_state is h11.MUST_CLOSE:
            transport.close()
            return
        self._http.start_next_cycle()
        self._enter(_Phase.IDLE, IDLE_S_MAX)
        transport.resume_reading()
        self._advance()  # a request may be waiting already

    async def _respond(self, request: h11.Request, body: bytes) -> Response:
        headers = _headers(request)
        path, query = _path_and_query(request)
        method = request.method.decode("latin-1").upper()
        if path == "/health":
            return await self._health_answer(method)
        if _is_websocket(path):
            refusal = self._accepted(request, body)
            assert isinstance(refusal, Response)  # else it would have been upgraded
            self._note_refusal(refusal.status, refusal.body.decode().strip())
            return refusal
        if "websocket" in headers.get("upgrade", "").lower():
            text = f"AMQP over WebSocket is at {WEBSOCKET_PATH}, not here"
            self._note_refusal(404, text)
            return Response(404, "text/plain", text.encode())
        admin = AdminRequest(method, path, query, headers, body, self._peer())
        answer = self._administration.handle(admin, _NOWHERE, self._now_ms())
        while isinstance(answer, Pending):
            answer = answer.render(await self._submit(_addressed(answer.command)))
        if method not in ("GET", "HEAD") and answer.status < 300:
            self._log_change(method, path, answer.status)
        return answer

    # WebSocket

    def _upgraded(self, request: h11.Request) -> bool:
        """Hand the transport to a WebSocket if that was asked for as it should be."""
        transport = self._transport
        assert transport is not None
        if not _is_websocket(_path_and_query(request)[0]):
            return False
        headers = self._accepted(request, bytes(self._body))
        if isinstance(headers, Response):
            return False
        from peeklock.server.websocket import WebSocketProtocol

        accepted = [(name, value) for name, value in headers.items()]
        self._write(
            h11.InformationalResponse(status_code=101, reason=b"Switching Protocols", headers=accepted)
        )
        early, ended = self._http.trailing_data
        self._disarm()
        self._transport = None
        if ended:
            transport.close()  # nobody would be left to talk to
            return True
        websocket = WebSocketProtocol(self._amqp(), self._note)
        transport.set_protocol(websocket)
        websocket.connection_made(transport)
        if early:
            websocket.data_received(early)
        return True

    def _accepted(self, request: h11.Request, body: bytes) -> dict[str, str] | Response:
        from peeklock.server.websocket import accept  # 40 ms, for those who ask for it

        method, version = request.method.decode("latin-1").upper(), request.http_version.decode()
        return accept(method, version, _headers(request), body)

    def _log_change(self, method: str, path: str, status: int) -> None:
        fields = {"method": method, "path": path, "status": status, "peer": self._peer()}
        log.info("administration request", fields)

    async def _health_answer(self, method: str) -> Response:
        if method not in ("GET", "HEAD"):
            return Response(405, "text/plain", b"use GET", (("Allow", "GET, HEAD"),))
        figures = await self._health()
        status = 200 if figures["status"] == "ok" else 503
        return Response(status, _JSON, json.dumps(dict(figures)).encode() + b"\n")

    def _refuse(self, status: int, reason: str) -> None:
        """Answer a request that cannot be read, then end the connection."""
        assert self._transport is not None
        self._note_refusal(status, reason)
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            text = json.dumps({"status": status, "reason": reason}).encode()
            self._send(Response(status, _JSON, text, (("Connection", "close"),)), None)
        self._linger(self._transport)

    def _linger(self, transport: asyncio.Transport) -> None:
        self._body.clear()
        self._enter(_Phase.LINGER, LINGER_S)
        if transport.can_write_eof():
            transport.write_eof()

    def _note_refusal(self, status: int, reason: str) -> None:
        self._note("HTTP request refused", {"status": status, "reason": reason, "peer": self._peer()})

    def _peer_host(self) -> str:
        peer = None if self._transport is None else self._transport.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    def _peer(self) -> str | None:
        # The transport may be gone by now.
        peer = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"{peer[0]}:{peer[1]}" if peer else None

    def _send(self, response: Response, request: h11.Request | None) -> None:
        headers = [("Date", _http_date(self._now_ms())), ("Content-Length", str(len(response.body)))]
        if response.content_type:
            headers.append(("Content-Type", response.content_type))
        headers.extend(response.headers)
        reason = HTTPStatus(response.status).phrase
        self._write(h11.Response(status_code=response.status, reason=reason.encode(), headers=headers))
        if response.body and (request is None or request.method != b"HEAD"):
            self._write(h11.Data(data=response.body))
        self._write(h11.EndOfMessage())

    def _write(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data and self._transport is not None:
            self._transport.write(data)

    # Deadlines

    def _enter(self, phase: _Phase, seconds: float | None) -> None:
        self._phase = phase
        if seconds is None:
            self._disarm()
        else:
            self._arm(seconds, self._late)

    def _late(self) -> None:
        if self._transport is None:
            return
        if self._phase in (_Phase.HEAD, _Phase.BODY):
            self._refuse(408, "the request took too long to arrive")
        elif self._phase is _Phase.LINGER:
            self._transport.abort()
        else:
            self._transport.close()

    def _arm(self, seconds: float, then: Callable[[], None]) -> None:
        self._disarm()
        self._deadline = self._loop.call_later(seconds, then)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _addressed(command: AdminCommand) -> Callable[[ReplyTo], AdminCommand]:
    return lambda reply_to: replace(command, reply_to=reply_to)


def _headers(request: h11.Request) -> dict[str, str]:
    """Give headers by name in lower case; repeated ones are joined."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in request.headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _path_and_query(request: h11.Request) -> tuple[str, str]:
    target = request.target.decode("latin-1")
    if "://" in target.partition("?")[0] and not target.startswith("/"):  # absolute form, as to a proxy
        target = "/" + target.partition("://")[2].partition("/")[2]
    path, _, query = target.partition("?")
    return path, query


def _is_websocket(path: str) -> bool:
    return unquote(path).rstrip("/").lower() == WEBSOCKET_PATH


def _why_refused(request: h11.Request) -> tuple[int, str] | None:
    """Give status and reason if a head is not to be followed, although it can be read."""
    if request.http_version not in (b"1.0", b"1.1"):
        version = request.http_version.decode()
        return 505, f"HTTP/{version} is not served, only HTTP/1.1; for HTTP/2 there is no upgrade"
    headers = request.headers.raw_items()
    if len(headers) > HEADERS_MAX:
        return 431, f"there are more than {HEADERS_MAX} headers"
    if len(request.target) + sum(len(name) + len(value) for name, value in headers) > HEAD_BYTES_MAX:
        return 431, f"the head is larger than {HEAD_BYTES_MAX} bytes"  # h11 looks only at what is not whole
    lengths = [int(value) for name, value in request.headers if name == b"content-length"]  # h11: digits
    if any(name == b"transfer-encoding" for name, _ in request.headers):
        # "ought to be handled as an error" RFC 9112 6.3; 6.1 for HTTP/1.0
        if lengths:
            return 400, "Transfer-Encoding and Content-Length exclude each other"
        if request.http_version == b"1.0":
            return 400, "HTTP/1.0 has no Transfer-Encoding"
    if lengths and lengths[0] > BODY_BYTES_MAX:
        return 413, f"the body is larger than {BODY_BYTES_MAX} bytes"
    return None


def _has_bare_line_feed(start: bytes) -> bool:
    """Tell whether a line of a head that is whole ends with LF alone."""
    end = min((at for at in (start.find(b"\n\r\n"), start.find(b"\n\n")) if at >= 0), default=-1)
    head = start[: end + 2]
    return end >= 0 and head.count(b"\n") != head.count(b"\r\n")


def _http_date(now_ms: int) -> str:
    """Write `Mon, 01 Jan 2024 00:00:00 GMT`; strftime uses the locale's names. Source: RFC 9110 5.6.7."""
    at = datetime.fromtimestamp(now_ms // 1000, UTC)
    return f"{_DAYS[at.weekday()]}, {at.day:02d} {_MONTHS[at.month - 1]} {at:%Y %H:%M:%S} GMT"
