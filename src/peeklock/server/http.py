"""HTTP/1.1 on a transport: requests in, answers of the administration and of `/health` out.

Owns: reading requests within limits of size and time, routing, writing answers. Must not know: XML,
entities, sockets.

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

import h11

from peeklock.admin.api import BODY_BYTES_MAX, AdminCommand, Administration, AdminRequest, Pending, Response
from peeklock.broker.commands import Command, ReplyTo
from peeklock.broker.effects import Effect
from peeklock.server import log

HEAD_BYTES_MAX = 32 * 1024
"""Request line and headers: three tokens of at most 8 KiB and as much for the rest. Our choice."""

HEAD_S_MAX = 10.0
"""From the first byte of a request to the end of its headers. Our choice."""

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
        self, submit: Submit, administration: Administration, health: Health, now_ms: Callable[[], int]
    ) -> None:
        self._submit = submit
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
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as failure:
                self._refuse(failure.error_status_hint, str(failure))
                return
            match event:
                case h11.Request():
                    self._request = event
                    self._body.clear()
                    self._enter(_Phase.BODY, BODY_S_MAX)
                    if _content_length(event) > BODY_BYTES_MAX:
                        self._refuse(413, f"the body is larger than {BODY_BYTES_MAX} bytes")
                        return
                case h11.Data():
                    self._body += event.data
                    if len(self._body) > BODY_BYTES_MAX:
                        self._refuse(413, f"the body is larger than {BODY_BYTES_MAX} bytes")
                        return
                case h11.EndOfMessage():
                    self._enter(_Phase.ANSWER, None)
                    self._transport.pause_reading()
                    assert self._request is not None
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
        headers: dict[str, str] = {}
        for raw_name, raw_value in request.headers:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        target = request.target.decode("latin-1")
        if "://" in target.partition("?")[0] and not target.startswith("/"):  # absolute form, as to a proxy
            target = "/" + target.partition("://")[2].partition("/")[2]
        path, _, query = target.partition("?")
        method = request.method.decode("latin-1").upper()
        if path == "/health":
            return await self._health_answer(method)
        if headers.get("upgrade", "").lower() == "websocket":
            return Response(
                501, "text/plain", b"AMQP over WebSocket is not offered yet; use AMQP over TCP or TLS"
            )
        admin = AdminRequest(method, path, query, headers, body)
        answer = self._administration.handle(admin, _NOWHERE, self._now_ms())
        while isinstance(answer, Pending):
            answer = answer.render(await self._submit(_addressed(answer.command)))
        if method not in ("GET", "HEAD") and answer.status < 300:
            self._log_change(method, path, answer.status)
        return answer

    def _log_change(self, method: str, path: str, status: int) -> None:
        # The transport may be gone by now; what was asked for is done all the same.
        peer = None if self._transport is None else self._transport.get_extra_info("peername")
        fields = {"method": method, "path": path, "status": status, "peer": peer and f"{peer[0]}:{peer[1]}"}
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
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            text = json.dumps({"status": status, "reason": reason}).encode()
            self._send(Response(status, _JSON, text, (("Connection", "close"),)), None)
        self._enter(_Phase.LINGER, LINGER_S)
        if self._transport.can_write_eof():
            self._transport.write_eof()

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


def _content_length(request: h11.Request) -> int:
    for name, value in request.headers:
        if name == b"content-length":
            return int(value)  # h11 lets digits only pass
    return 0


def _http_date(now_ms: int) -> str:
    """Write `Mon, 01 Jan 2024 00:00:00 GMT`; strftime uses the locale's names. Source: RFC 9110 5.6.7."""
    at = datetime.fromtimestamp(now_ms // 1000, UTC)
    return f"{_DAYS[at.weekday()]}, {at.day:02d} {_MONTHS[at.month - 1]} {at:%Y %H:%M:%S} GMT"
