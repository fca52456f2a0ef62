"""Accepted connections, and the choice of protocol by a connection's first bytes.

Every port serves all three: a connection that starts with `AMQP` is AMQP, with a TLS record (0x16) it is TLS
around AMQP or HTTP, else it is HTTP.

Theory of operation: a connection is a newcomer until its first bytes, within TLS the first decrypted ones,
have chosen a protocol. The first byte is read with MSG_PEEK before a transport exists, so that the TLS
hand-shake is asyncio's own from its first byte on. A newcomer has one deadline for all of this. The number of
newcomers is bounded: one more closes the oldest. Fewer may be within TLS, which costs more; others wait for a
place, and while any wait a place is held for a second at most. So half-open connections cost a bounded amount
of memory and file descriptors, and an honest client needs only a few round trips.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import cast

from peeklock.server import log
from peeklock.server.descriptors import descriptors_max
from peeklock.server.line_limits import Note
from peeklock.server.loop.tasks import tell_failure
from peeklock.server.net.sockets import end_output, is_loopback_address, listen

FIRST_BYTES_S_MAX = 20.0
"""A connection that has not chosen a protocol by then is closed; Azure's token deadline is the same. Our
choice."""

NEWCOMERS_MAX = 4096
"""Connections that have not chosen a protocol yet. Our choice: 20 s of 200 new ones a second."""

HANDSHAKES_MAX = 1024
"""Newcomers within TLS at once, each with some 60 KiB; further ones wait, unread. Our choice: 60 MiB."""

HANDSHAKE_S_PRESSED = 1.0
"""How long one of them may hold its place while others wait. Our choice: two round trips around the world."""

ACCEPTS_PER_TURN_MAX = 16
"""Accepts in one turn of the loop, so that a connection storm does not starve open connections. Our
choice: under 1 ms."""

TURNED_AWAY_PAUSE_S = 0.001
"""Before the next accept when one was turned away. Our choice: a peer that reconnects at once, 30,000 times a
second, would take half a core; a thousand a second take 3 %, and honest newcomers behind them wait a second
or two."""

TELL_FULL_S = 60.0
"""Between two log lines about missing descriptors. Our choice."""

LINGER_S = 2.0
"""For reading and dropping what a refused client still sends. Our choice."""

AMQP_TLS_HEADER = b"AMQP\x02\x01\x00\x00"
"""Answers an AMQP peer that must use TLS. Source: AMQP 1.0 2.2 (the header that we would accept) and 5.2
(protocol id 2)."""

_TLS_HANDSHAKE_RECORD = 0x16
_SSL2_HELLO = 0x80
_HANDSHAKE_FAILURE, _DECODE_ERROR, _PROTOCOL_VERSION, _INTERNAL_ERROR = 40, 50, 70, 80
_ALERTS = {
    "UNSUPPORTED_PROTOCOL": _PROTOCOL_VERSION,
    "VERSION_TOO_LOW": _PROTOCOL_VERSION,
    "WRONG_VERSION_NUMBER": _PROTOCOL_VERSION,
    "NO_SHARED_CIPHER": _HANDSHAKE_FAILURE,
    "NO_SHARED_SIGNATURE_ALGORITHMS": _HANDSHAKE_FAILURE,
    "NO_SUITABLE_KEY_SHARE": _HANDSHAKE_FAILURE,
}
"""By OpenSSL's name for what was wrong. Source: RFC 8446 6.2."""

_TRUST = (
    "make the client trust the authority, as `peeklock ca` shows; if it does, it uses a name or an address "
    "that is not in the certificate: add it with --tls-name"
)

ProtocolFactory = Callable[[], asyncio.Protocol]


class Listener:
    """The listening ports of a broker; bounds hold over all of them."""

    def __init__(
        self,
        amqp: ProtocolFactory,
        http: ProtocolFactory,
        tls: Callable[[], ssl.SSLContext],
        *,
        allow_plaintext: bool = False,
        wait_s: Callable[[str], float | None] = lambda _: 0.0,
        note: Note = log.info,
    ) -> None:
        """Make a listener that `bind` opens.

        Args:
            amqp: makes the protocol of an AMQP connection.
            http: makes that of an HTTP connection.
            tls: makes the TLS context; called in a thread at the first TLS connection.
            allow_plaintext: accept connections without TLS from other machines.
            wait_s: returns how long a connection from an address must wait, s; None = it is turned away.
            note: logs what a peer can cause; the lines are limited.
        """
        self._amqp = amqp
        self._http = http
        self._tls = tls
        self._allow_plaintext = allow_plaintext
        self._wait_s = wait_s
        self._note = note
        self._context: ssl.SSLContext | None = None
        self._making: asyncio.Future[ssl.SSLContext] | None = None
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._newcomers: dict[_Newcomer, None] = {}  # in the order in which they came
        self._encrypting: dict[_Newcomer, float] = {}  # since when, in that order
        self._waiting: dict[_Newcomer, None] = {}  # for a place among those
        self._pressing: asyncio.TimerHandle | None = None
        self._descriptors_max = descriptors_max()
        self._told_full_at_s = -TELL_FULL_S
        self._told_fault = ""
        self.tls_fails = False
        """Whether the last attempt to make the TLS context failed."""
        self.refused_plaintext = 0
        self.failed_handshakes = 0
        self.dropped_newcomers = 0
        self.turned_away = 0

    def bind(self, host: str, port: int) -> int:
        """Listen on every address of a host; return the port (0 asks for a free one). Raises: OSError."""
        opened = listen(host, port)
        for sock in opened:
            self._sockets.append(sock)
            self._loop.add_reader(sock, self._accept, sock)
        return int(opened[0].getsockname()[1])

    async def prepare_tls(self) -> None:
        """Make the TLS context now, in a thread, and not for the first client; log a new fault."""
        try:
            await self.context()
        except OSError as failure:  # ssl.SSLError is one
            if str(failure) != self._told_fault:
                self._told_fault = str(failure)
                do = "correct the files: they are checked every minute"
                log.error("no TLS connection can be accepted", {"reason": str(failure), "do": do})
        else:
            if self._told_fault:
                self._told_fault = ""
                log.info("TLS connections can be accepted again")

    def use(self, context: ssl.SSLContext) -> None:
        """Use this context for new TLS connections; open ones keep theirs."""
        self._context = context

    def close(self) -> None:
        """Stop listening; open connections stay."""
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            sock.close()
        for newcomer in list(self._newcomers):
            newcomer.drop()

    def figures(self) -> dict[str, int]:
        """Return what was refused since the start, for `GET /health`."""
        return {
            "refused_plaintext": self.refused_plaintext,
            "failed_handshakes": self.failed_handshakes,
            "dropped_newcomers": self.dropped_newcomers,
            "turned_away": self.turned_away,
        }

    # Accepting

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN_MAX):
            try:
                sock, (host, port, *_) = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as failure:
                self._out_of_descriptors(listening, str(failure))
                return
            # The lowest free number is assigned, so the number tells how many are in use.
            if sock.fileno() >= self._descriptors_max:
                if not self._out_of_descriptors(listening, "no file descriptor is left for connections"):
                    sock.close()
                    return
            wait_s = self._wait_s(host)
            if wait_s is None:
                self.turned_away += 1
                sock.close()
                self._pause(listening, TURNED_AWAY_PAUSE_S)
                return
            if len(self._newcomers) >= NEWCOMERS_MAX:
                self._drop_oldest(f"more than {NEWCOMERS_MAX} connections have not sent anything yet")
            sock.setblocking(False)
            with contextlib.suppress(OSError):  # it may be closed already
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._newcomers[_Newcomer(self, self._loop, sock, f"{host}:{port}", wait_s)] = None

    def _out_of_descriptors(self, listening: socket.socket, reason: str) -> bool:
        """Close a newcomer to free a descriptor, else pause accepting; return whether one is free."""
        if self._newcomers:
            self._drop_oldest(reason)
            return True
        if self._loop.time() >= self._told_full_at_s + TELL_FULL_S:
            self._told_full_at_s = self._loop.time()
            log.warning(
                "no further connection is accepted now; open ones continue",
                {"reason": reason, "do": "raise the limit of open files (ulimit -n)"},
            )
        self._pause(listening, 1.0)
        return False

    def _drop_oldest(self, reason: str) -> None:
        self._drop(next(iter(self._newcomers)), reason)

    def _drop(self, newcomer: _Newcomer, reason: str) -> None:
        self.dropped_newcomers += 1
        self._note("a connection that was silent for too long was closed", {"reason": reason})
        newcomer.drop()

    def _pause(self, listening: socket.socket, seconds: float) -> None:
        self._loop.remove_reader(listening)
        self._loop.call_later(seconds, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening, self._accept, listening)

    # From newcomers

    def left(self, newcomer: _Newcomer) -> None:
        """Forget a newcomer that is closed or has chosen its protocol."""
        self._newcomers.pop(newcomer, None)
        self._waiting.pop(newcomer, None)
        if self._encrypting.pop(newcomer, None) is not None:
            self._admit()

    def wants_tls(self, newcomer: _Newcomer) -> None:
        """Begin the hand-shake of a newcomer, now or when there is a place."""
        self._waiting[newcomer] = None
        self._admit()

    def _admit(self) -> None:
        while self._waiting and len(self._encrypting) < HANDSHAKES_MAX:
            newcomer = next(iter(self._waiting))
            del self._waiting[newcomer]
            self._encrypting[newcomer] = self._loop.time()
            newcomer.begin_tls()
        if self._waiting and self._pressing is None:
            since = next(iter(self._encrypting.values()))
            self._pressing = self._loop.call_at(since + HANDSHAKE_S_PRESSED, self._press)

    def _press(self) -> None:
        """Close newcomers that have held a place for too long; each frees a place."""
        self._pressing = None
        too_long = self._loop.time() - HANDSHAKE_S_PRESSED
        for newcomer in [newcomer for newcomer, since in self._encrypting.items() if since <= too_long]:
            if not self._waiting:
                return
            self._drop(newcomer, f"more than {HANDSHAKES_MAX} connections are within a TLS hand-shake")
        self._admit()

    def protocol(self, first: bytes) -> asyncio.Protocol:
        """Return the protocol for a connection's first bytes."""
        # The letter A decides: no HTTP method that we serve starts with it.
        return self._amqp() if first[:1] == b"A" else self._http()

    def takes_plaintext(self, local: str, peer: str) -> bool:
        """Return whether a connection to this address of ours may do without TLS; log it if it may not."""
        if self._allow_plaintext or is_loopback_address(local):
            return True
        self.refused_plaintext += 1
        do = "leave UseDevelopmentEmulator=true out of its connection string, or start with --allow-plaintext"
        self._note("a connection without TLS was refused", {"peer": peer, "address": local, "do": do})
        return False

    def handshake_failed(self, peer: str, failure: OSError) -> None:
        """Log a failed hand-shake: a client that does not trust the certificate may not say so."""
        self.failed_handshakes += 1
        fields = {"peer": peer, "reason": str(failure) or type(failure).__name__}
        if isinstance(failure, ConnectionError | ssl.SSLEOFError):
            fields["reason"] = "the client ended the connection"
        reason = getattr(failure, "reason", None) or ""
        if isinstance(failure, ConnectionError) or "UNKNOWN_CA" in reason or "CERTIFICATE" in reason:
            fields["do"] = _TRUST
        self._note("a TLS hand-shake failed", fields)

    async def context(self) -> ssl.SSLContext:
        """Return the TLS context, made in a thread at the first call: making a pair takes 100 ms.

        Raises: OSError, ssl.SSLError; the next call tries again.
        """
        if self._context is not None:
            return self._context
        if self._making is None:
            self._making = self._loop.run_in_executor(None, self._tls)
        try:
            made = await asyncio.shield(self._making)
        except (OSError, ssl.SSLError):
            self._making = None
            self.tls_fails = True
            raise
        self.tls_fails = False
        if self._context is None:
            self._context = made
        return self._context


class _Newcomer(asyncio.Protocol):
    """A connection that has not chosen a protocol yet: first a bare socket, then a transport."""

    def __init__(
        self,
        listener: Listener,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        peer: str,
        wait_s: float,
    ) -> None:
        self._listener = listener
        self._loop = loop
        self._sock = sock
        self._peer = peer
        self._connecting: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._may_speak = True
        self._has_tls = False
        self._refused = False
        self._dropped = False
        self._timer = loop.call_later(FIRST_BYTES_S_MAX + wait_s, self.drop)
        self._waiting: asyncio.TimerHandle | None = None
        if wait_s:
            self._waiting = loop.call_later(wait_s, self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        self._loop.add_reader(self._sock, self._look)

    def drop(self) -> None:
        """Close it without an answer: its protocol is not known yet."""
        self._leave()
        self._dropped = True
        if self._transport is not None:
            self._transport.abort()
        elif self._connecting is None:
            self._loop.remove_reader(self._sock)
            self._sock.close()
        elif self._has_tls:
            self._connecting.cancel()
            self._connecting = None  # the task holds its cancellation, that its frames, and those this object
        # Else the transport is made within two turns, and aborted then. uvloop would close that of a
        # cancelled task, perhaps after its first bytes had chosen a protocol, and never tell that protocol.

    def _leave(self) -> None:
        self._timer.cancel()
        if self._waiting is not None:
            self._waiting.cancel()
        self._listener.left(self)

    def _look(self) -> None:
        try:
            first = self._sock.recv(1, socket.MSG_PEEK)
            local = self._sock.getsockname()[0]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if not first:
            self.drop()
            return
        self._loop.remove_reader(self._sock)
        if first[0] == _TLS_HANDSHAKE_RECORD:
            self._listener.wants_tls(self)
            return
        self._may_speak = self._listener.takes_plaintext(local, self._peer)
        self._connecting = self._loop.create_task(self._connect())
        self._connecting.add_done_callback(tell_failure)

    def begin_tls(self) -> None:
        """Begin the hand-shake."""
        self._has_tls = True
        self._connecting = self._loop.create_task(self._encrypt())
        self._connecting.add_done_callback(tell_failure)

    async def _connect(self) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self, self._sock)
        except OSError:  # it is closed already
            self._sock.close()
            self._leave()

    async def _encrypt(self) -> None:
        sock = self._sock
        with contextlib.ExitStack() as at_end:
            spare: socket.socket | None = None
            try:
                # asyncio closes a socket whose hand-shake fails before OpenSSL's alert is written, and the
                # peer would not learn why.
                spare = at_end.enter_context(sock.dup())
                context = await self._listener.context()
                await self._loop.connect_accepted_socket(
                    lambda: self, sock, ssl=context, ssl_handshake_timeout=FIRST_BYTES_S_MAX
                )
            except asyncio.CancelledError:
                sock.close()
                raise
            except OSError as failure:  # ssl.SSLError and TimeoutError are
                # Its frames refer to us and to the failure: a cycle that only the collector would free.
                failure.__traceback__ = None
                self._listener.handshake_failed(self._peer, failure)
                sock.close()
                self._leave()
                if spare is not None:
                    _alert(spare, failure)

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        if self._dropped:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None
        if self._refused or self._dropped:
            return
        if not self._may_speak:
            self._refuse(transport, AMQP_TLS_HEADER if data[:1] == b"A" else _HTTPS_ONLY)
        elif data[0] & _SSL2_HELLO:
            # No HTTP request starts so: an old client's SSL hello, or noise.
            self._refuse(transport, _alert_record(_PROTOCOL_VERSION))
        else:
            self._leave()
            protocol = self._listener.protocol(data)
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            protocol.data_received(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()

    def _refuse(self, transport: asyncio.Transport, answer: bytes) -> None:
        """Answer, then read on for a moment: a socket closed with bytes unread loses what was written."""
        self._refused = True
        self._timer.cancel()
        self._timer = self._loop.call_later(LINGER_S, self.drop)
        transport.write(answer)
        end_output(transport)


_REASON = b'{"status": 403, "reason": "this broker accepts no plain text from other machines: use https"}\n'
_HTTPS_ONLY = (
    b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"Connection: close\r\n\r\n%b" % (len(_REASON), _REASON)
)


def _alert(sock: socket.socket, failure: OSError) -> None:
    """Send the alert for a failed hand-shake, unless the peer sent one or is gone; a failure is ignored."""
    reason = getattr(failure, "reason", None) or ""
    if "ALERT" in reason or isinstance(failure, ConnectionError | TimeoutError | ssl.SSLEOFError):
        return
    library = isinstance(failure, ssl.SSLError) and bool(reason)
    code = _ALERTS.get(reason, _DECODE_ERROR) if library else _INTERNAL_ERROR
    with contextlib.suppress(OSError):
        sock.send(_alert_record(code))
        sock.shutdown(socket.SHUT_WR)
        sock.recv(65536)  # else closing the socket is a reset, which overtakes the alert


def _alert_record(code: int) -> bytes:
    """Return a fatal alert, unencrypted. Source: RFC 8446 5.1 and 6."""
    return bytes((0x15, 3, 1, 0, 2, 2, code))
