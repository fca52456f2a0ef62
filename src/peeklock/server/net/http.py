"""HTTP/1.1 on a transport: requests in, answers out; an upgraded connection is handed on to WebSocket.

Theory of operation: a connection is idle, reading a head, reading a body, answering, waiting for a message,
or lingering; a deadline runs in each phase but the fourth. What has arrived is read as `loop.turns` allows.
While a connection answers it reads at most once, so that a client which pipelines waits in its own socket
buffer.
A wait has no task. It reads on, to learn when the client leaves: the end of the stream ends the wait, even if
only the client's half has ended. After a refusal that leaves unread bytes a connection lingers: it reads and
drops for a moment, because closing at once would reset it and could lose the refusal. Plain and TLS
transports are served alike.

Bytes in which a proxy in front of us could see other requests than we do are refused, although h11 would
accept them: both kinds of body length, a bare line feed, a folded line, fields behind a body.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from http import HTTPStatus
from typing import cast

import h11

from peeklock.admin.exchange import Response
from peeklock.api.exchange import JSON, Steer, Work
from peeklock.auth import AnotherNamespace, AuthorizationError
from peeklock.rest.api import Receive
from peeklock.rest.exchange import RETRY_AFTER_S
from peeklock.server.line_limits import Note
from peeklock.server.loop.timers import Deadline
from peeklock.server.net.http_bodies import (
    CHUNKS_MAX,
    MIB,
    PIECE_BYTES,
    UNKNOWN_BODY_BYTES_MAX,
    Body,
    Excess,
    pieces,
)
from peeklock.server.net.http_dispatch import Dispatch, HttpContext, accepted, defect, is_websocket
from peeklock.server.net.http_heads import (
    HEAD_BYTES_MAX,
    Head,
    answer_headers,
    fault_of_lines,
    head_of,
    why_refused,
)
from peeklock.server.net.http_phases import (
    AWAY,
    BODY_S_MAX,
    HEAD_S_MAX,
    IDLE_S_MAX,
    LINGER_S,
    READING,
    WRITE_S_MAX,
    Phase,
)
from peeklock.server.net.http_wait import HttpWait
from peeklock.server.net.hub import Waiting
from peeklock.server.net.sockets import end_output


class HttpProtocol(asyncio.Protocol):
    """One HTTP connection; the listener hands in the transport and the bytes that it has already read."""

    def __init__(
        self,
        context: HttpContext,
        note: Note,
        context_for: Callable[[Head], HttpContext],
    ) -> None:
        """Serve one connection; `note` logs what was refused to it.

        `context_for` returns the context of a request by its head; it may raise AuthorizationError.
        """
        self._context = context
        self._note = note
        self._context_for = context_for
        self._dispatch = Dispatch(context, note)
        self._turns = context.turns
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._phase = Phase.IDLE
        self._transport: asyncio.Transport | None = None
        self._peer_host = ""
        self._peer: str | None = None
        """Host and port, for the log."""
        self._deadline = Deadline(asyncio.get_running_loop())
        self._awaited = self._wait_in(context)
        self._head: Head | None = None
        """Of the request that is being read or answered."""
        self._body = Body(context.bodies)
        self._arrived = bytearray()
        """Was read and waits for its turn; reading is paused."""
        self._eof = False
        """Whether the end of the stream follows it."""
        self._is_full = False
        """Whether the transport has more to write than it should."""
        self._is_draining = False
        """Whether an answer waits for that to drain."""
        self._left: Iterator[bytes] | None = None
        """The rest of an answer, which is written as the transport takes it; None = there is none."""
        self._is_working = False
        self._known = False
        """Whether one has in a namespace that was used before."""

    @property
    def known(self) -> bool:
        """Whether a request that needs a token has been served."""
        return self._known or self._dispatch.known

    def _wait_in(self, context: HttpContext) -> HttpWait:
        return HttpWait(context.receives, context.api, context.works, self._deadline, context.now_ms)

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        if peer := transport.get_extra_info("peername"):
            self._peer_host, self._peer = str(peer[0]), f"{peer[0]}:{peer[1]}"
        self._enter(Phase.IDLE, IDLE_S_MAX)

    def data_received(self, data: bytes) -> None:
        if self._phase is Phase.LINGER:
            return
        self._arrived += data
        if self._phase in AWAY:  # the next request; it is read after this one
            if self._transport is not None:
                self._transport.pause_reading()
            return
        self._turns.take(self)
        if self._arrived and self._transport is not None:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        if self._phase is Phase.LINGER:
            return False
        if self._phase is Phase.WAIT:
            self._awaited.give_up()
            return False
        self._eof = True
        if self._phase is not Phase.ANSWER:
            self._turns.take(self)
        # A client may close its half and still read; within TLS it cannot.
        waits = self._eof or self._phase is Phase.ANSWER
        return waits and self._transport is not None and self._transport.can_write_eof()

    def pause_writing(self) -> None:
        self._is_full = True
        self._awaited.slow(is_slow=True)

    def resume_writing(self) -> None:
        self._is_full = False
        self._awaited.slow(is_slow=False)
        if self._left is not None:
            self._write_next()
        elif self._is_draining:
            self._answered()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._deadline.end()
        self._awaited.give_up()
        self._body.forget()

    # From the turns

    def work(self, units: int, until_s: float) -> bool:
        """Read what has arrived, up to a request whose answer takes time."""
        transport = self._transport
        if transport is None or self._phase is Phase.LINGER:
            return False
        self._is_working = True
        try:
            return self._work(transport, until_s)
        finally:
            self._is_working = False

    def _work(self, transport: asyncio.Transport, until_s: float) -> bool:
        if self._arrived:
            self._http.receive_data(bytes(self._arrived))
            self._arrived.clear()
            transport.resume_reading()
        if self._advance(until_s):
            return True
        if self._eof:
            self._eof = False
            self._http.receive_data(b"")
            self._advance(until_s)
            if self._phase in READING:
                transport.close()
        return False

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # Reading

    def _advance(self, until_s: float) -> bool:
        """Handle the events in what has arrived, up to a request whose answer takes time.

        Returns whether the time was up first.
        """
        while self._transport is not None and self._phase in READING:
            if self._turns.clock_s() >= until_s:
                return True
            if self._phase is not Phase.BODY and (fault := fault_of_lines(self._http.trailing_data[0])):
                self._refuse(400, fault)
                return False
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as failure:
                failure.__traceback__ = None  # it refers to the frame that refers to it: a cycle
                # h11 quotes the line that it cannot read, which may contain a token.
                self._refuse(failure.error_status_hint, str(failure).partition(": bytearray(")[0])
                return False
            match event:
                case h11.Request():
                    if not self._begin(event):
                        return False
                case h11.Data():
                    if not self._read(event):
                        return False
                case h11.EndOfMessage():
                    assert self._head is not None
                    if event.headers:  # they may be folded, which h11 hides
                        self._refuse(400, "fields behind a body are not accepted")
                        return False
                    if self._upgraded(self._head):
                        return False
                    self._enter(Phase.ANSWER, None)
                    secure = self._transport.get_extra_info("sslcontext") is not None
                    body = self._body.whole()
                    self._dispatch.answer(self._head, body, self._peer, self._take_answer, secure=secure)
                case h11.ConnectionClosed():
                    self._transport.close()
                    return False
                case _:  # NEED_DATA; never PAUSED, since a new cycle begins before the next call
                    if self._http.they_are_waiting_for_100_continue:
                        self._write(h11.InformationalResponse(status_code=100, headers=[]))
                    if self._phase is Phase.IDLE and self._http.trailing_data[0]:
                        self._enter(Phase.HEAD, HEAD_S_MAX)
                    return False
        return False

    def _begin(self, request: h11.Request) -> bool:
        """Take the head of a request; return False if it was refused."""
        self._enter(Phase.BODY, BODY_S_MAX)
        self._body.begin(0, is_message=False)
        head = self._head = head_of(request)
        refusal = why_refused(request) or self._dispatch.why_page_refused(head)
        if refusal is not None:
            self._refuse(*refusal)
            return False
        if not self._choose(head):
            return False
        bytes_max, is_message = self._dispatch.body_bytes_max(head)
        self._body.begin(bytes_max, is_message=is_message)
        if head.body_bytes > bytes_max:
            self._refuse_body(Excess.SIZE)
            return False
        return True

    def _choose(self, head: Head) -> bool:
        """Serve a request in the namespace that it names; return False if it was refused."""
        try:
            context = self._context_for(head)
        except AnotherNamespace as failure:
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, str(failure))
            return False
        except AuthorizationError as failure:
            self._refuse(HTTPStatus.FORBIDDEN, str(failure))
            return False
        if context is not self._context:
            self._known = self.known
            self._context = context
            self._dispatch = Dispatch(context, self._note)
            self._awaited = self._wait_in(context)
        return True

    def _read(self, event: h11.Data) -> bool:
        """Take a part of a body; return False if it was refused."""
        body, size = self._body, len(self._body)
        excess = body.add(event.data, begins_chunk=event.chunk_start)
        if excess is not None:
            self._refuse_body(excess)
            return False
        if body.is_message and len(body) // MIB > size // MIB:
            self._deadline.set(BODY_S_MAX, self._late)
        if len(body) > UNKNOWN_BODY_BYTES_MAX and not body.token_checked:
            body.token_checked = True
            return not self._refused_unread()
        return True

    def _refused_unread(self) -> bool:
        """Refuse a request with a large body if its token is bad; return whether it was refused."""
        assert self._head is not None
        if self._dispatch.wants_no_body(self._head):
            self._refuse(413, "a body is not accepted here")
            return True
        refusal = self._dispatch.refusal_before_body(self._head, self._peer, is_message=self._body.is_message)
        if refusal is None:
            return False
        if refusal.status == HTTPStatus.UNAUTHORIZED:
            self._context.bears_refusal(self._peer_host)
        self._end_with(refusal)
        return True

    def _refuse_body(self, excess: Excess) -> None:
        """Refuse a request because of its body, and read no more of it."""
        head, bytes_max = self._head, self._body.bytes_max
        assert head is not None
        if excess is Excess.CHUNKS:
            self._refuse(413, f"the body has more than {CHUNKS_MAX} chunks")
        elif excess is Excess.BUDGET:
            text, again = "too many messages are being received", ("Retry-After", str(RETRY_AFTER_S))
            self._dispatch.note_refusal(503, text, self._peer)
            self._end_with(Response(503, "text/plain", text.encode(), (again,)))
        elif self._body.is_message:
            self._end_with(self._dispatch.too_large(head, bytes_max, self._peer))
        else:
            self._refuse(413, f"the body is larger than {bytes_max} bytes")

    def _end_with(self, refusal: Response) -> None:
        """Answer a request whose body is not read, and close the connection."""
        transport = self._transport
        assert transport is not None
        self._send(replace(refusal, headers=(*refusal.headers, ("Connection", "close"))))
        self._linger(transport)

    # Answering

    def _take_answer(self, answer: Response | Receive | Waiting) -> None:
        try:
            if isinstance(answer, Response):
                self._conclude(answer)
            else:
                self._wait(answer)
        except Exception as failure:
            defect(failure)
            self.abort()

    def _wait(self, receive: Receive | Waiting) -> None:
        """Wait for a message, without a task."""
        transport = self._transport
        if transport is None:
            return
        if self._eof or self._http.trailing_data[1]:
            transport.close()  # a client that has closed its half may be gone
            return
        self._phase = Phase.WAIT
        answer = self._awaited.begin(receive, transport, self._write, self._received)
        if answer is not None:
            self._conclude(answer)
            return
        self._head = None
        transport.resume_reading()

    def _received(self, response: Response | Work | Steer) -> None:
        """Answer a receive, or what has streamed nothing yet."""
        assert not isinstance(response, Steer), "jobs have no wait"
        self._awaited.over()
        self._deadline.clear()
        self._take_answer(response)

    def _conclude(self, response: Response) -> None:
        """Answer; take the next request once the answer has left."""
        self._phase = Phase.ANSWER
        self._body.forget()
        transport = self._transport
        if transport is None:
            return
        if response.status == HTTPStatus.UNAUTHORIZED and not self._context.bears_refusal(self._peer_host):
            response = replace(response, headers=(*response.headers, ("Connection", "close")))
        self._send(response)
        if self._left is None and not self._is_full:
            self._answered()
        else:
            self._deadline.set(WRITE_S_MAX * (1 + response.body_bytes // MIB), transport.abort)
            self._is_draining = True

    def _answered(self) -> None:
        transport, self._is_draining = self._transport, False
        if transport is None:
            return
        if self._http.our_state is h11.MUST_CLOSE or self._http.their_state is h11.MUST_CLOSE:
            transport.close()
            return
        self._http.start_next_cycle()
        self._head = None
        self._enter(Phase.IDLE, IDLE_S_MAX)
        if self._is_working:
            return  # what has arrived is read next
        if self._arrived or self._eof or any(self._http.trailing_data):
            self._turns.take(self)

    # WebSocket

    def _upgraded(self, head: Head) -> bool:
        """Hand the transport to a WebSocket if the request is a valid upgrade; return whether it was."""
        transport = self._transport
        assert transport is not None
        if not is_websocket(head):
            return False
        headers = accepted(head, self._body.whole())
        if isinstance(headers, Response):
            return False
        from peeklock.server.net.websocket import WebSocketProtocol

        reason = b"Switching Protocols"
        self._write(h11.InformationalResponse(status_code=101, reason=reason, headers=list(headers.items())))
        early, ended = self._http.trailing_data
        self._deadline.end()
        self._transport = None
        if ended:
            transport.close()  # the client has already left
            return True
        websocket = WebSocketProtocol(self._context.amqp(), self._turns, self._note)
        transport.set_protocol(websocket)
        websocket.connection_made(transport)
        if early:
            websocket.data_received(early)
        return True

    # Writing

    def _refuse(self, status: int, reason: str) -> None:
        """Answer a request that cannot be read, then close the connection."""
        assert self._transport is not None
        self._dispatch.note_refusal(status, reason, self._peer)
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            text = json.dumps({"status": status, "reason": reason}).encode()
            self._send(Response(status, JSON, text, (("Connection", "close"),)))
        self._linger(self._transport)

    def _linger(self, transport: asyncio.Transport) -> None:
        self._body.forget()
        self._enter(Phase.LINGER, LINGER_S)
        end_output(transport)

    def _send(self, response: Response) -> None:
        headers = answer_headers(response, self._context.now_ms())
        reason = HTTPStatus(response.status).phrase
        self._write(h11.Response(status_code=response.status, reason=reason.encode(), headers=headers))
        shows = self._head is None or self._head.method != "HEAD"
        self._left = pieces(response.body, *response.more) if shows else iter(())
        self._write_on()

    def _write_on(self) -> bool:
        """Write of what is left of an answer what the transport takes, and `PIECE_BYTES` at most: 10 MB at
        once would take a turn. Return whether that was all."""
        assert self._left is not None
        for piece in self._left:
            self._write(h11.Data(data=piece))
            if len(piece) == PIECE_BYTES or self._is_full:
                # A full transport ignores the call, and asks for more once it has room.
                asyncio.get_running_loop().call_soon(self._write_next)
                return False
        self._left = None
        self._write(h11.EndOfMessage())
        return True

    def _write_next(self) -> None:
        if self._transport is None or self._left is None or self._is_full:
            return
        if self._write_on() and self._is_draining and not self._is_full:
            self._answered()

    def _write(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data and self._transport is not None:
            self._transport.write(data)

    # Deadlines

    def _enter(self, phase: Phase, seconds: float | None) -> None:
        self._phase = phase
        if seconds is None:
            self._deadline.clear()
        else:
            self._deadline.set(seconds, self._late)

    def _late(self) -> None:
        if self._transport is None:
            return
        if self._phase in (Phase.HEAD, Phase.BODY):
            self._refuse(408, "the request took too long to arrive")
        elif self._phase is Phase.LINGER or self._is_full:  # a close would wait for the client to read
            self._transport.abort()
        else:
            self._transport.close()
