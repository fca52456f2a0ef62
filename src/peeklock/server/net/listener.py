"""Listening sockets, and the choice of protocol by a connection's first bytes.

Owns: accepting, who may speak without TLS, and the bounds on connections that have not said anything yet.
Must not know: what the protocols do. Any port serves all three: a connection that starts with `AMQP` is AMQP,
with a TLS record (0x16) it is TLS around AMQP or HTTP, else it is HTTP.

Theory of operation: a connection is a newcomer until its first bytes, within TLS the first decrypted ones,
have chosen a protocol. The first byte is looked at (MSG_PEEK) before a transport exists, so that the TLS
hand-shake is asyncio's own from its first byte on. A newcomer has one deadline for all of it, and there are
only so many: when another one comes, the oldest has to go. Fewer may be within TLS, which costs more; others
wait for their places, and who holds one while others wait has a second. So half-open connections cost memory
and file descriptors up to a bound, and an honest client needs a few round trips only.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
import ssl
import sys
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import cast

from peeklock.server import log
from peeklock.server.loop.tasks import tell_failure
from peeklock.server.net.refusal_log import Note

FIRST_BYTES_S_MAX = 20.0
"""A connection that has not said by then what it wants is closed; Azure's token deadline is the same. Our
choice."""

NEWCOMERS_MAX = 4096
"""Connections that have not said yet what they want. Our choice: 20 s of 200 new ones a second."""

HANDSHAKES_MAX = 1024
"""Newcomers within TLS at once, each with some 60 KiB; further ones wait, unread. Our choice: 60 MiB."""

HANDSHAKE_S_PRESSED = 1.0
"""How long one of them may hold its place while others wait for it. Our choice: two round trips around the
world."""

ACCEPTS_PER_TURN_MAX = 16
"""Accepts in one turn of the loop, so that a connection storm does not starve open connections. Our
choice: under 1 ms."""

TURNED_AWAY_PAUSE_S = 0.001
"""Before the next accept when one was turned away. Our choice: whoever comes back at once, 30,000 times a
second, would take half a core; a thousand a second take 3 %, and honest newcomers wait for a second or two
where they stand in one line with so many."""

DESCRIPTORS_RESERVED = 64
"""File descriptors that no connection gets: the store opens files while it runs. Our choice."""

TELL_FULL_S = 60.0
"""Between two log lines that say that there are no descriptors. Our choice."""

LINGER_S = 2.0
"""For reading and dropping what a refused client still sends. Our choice."""

PORT_TRIES_MAX = 10
"""Searches for a port that is free on every address of a host. Our choice."""

AMQP_TLS_HEADER = b"AMQP\x02\x01\x00\x00"
"""What an AMQP peer that has to speak TLS is told. Source: AMQP 1.0 2.2 (the header that we would accept) and
5.2 (protocol id 2)."""

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
    "tell the client to trust the authority, as `peeklock ca` shows; if it does, it uses a name or an "
    "address that is not in the certificate: give it with --tls-name"
)

ProtocolFactory = Callable[[], asyncio.Protocol]


class Listener:
    """The listening ports of a broker; what is bounded is bounded over all of them."""

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
            tls: makes the TLS context; called in a thread when the first TLS connection comes.
            allow_plaintext: connections without TLS are taken from other machines too.
            wait_s: gives how long a connection from an address has to wait, s; None = it is turned away.
            note: takes the log lines that anybody can cause, and has to limit them.
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
        self._descriptors_max = _descriptors_max()
        self._told_full_at_s = -TELL_FULL_S
        self._told_fault = ""
        self.tls_fails = False
        """Whether the TLS context could not be made when it was tried last."""
        self.refused_plaintext = 0
        self.failed_handshakes = 0
        self.dropped_newcomers = 0
        self.turned_away = 0

    def bind(self, host: str, port: int) -> int:
        """Listen on every address of a host; answer the port (0 asks for a free one). Raises: OSError."""
        for tries_left in reversed(range(PORT_TRIES_MAX)):
            try:
                opened = _listen(host, port)
                break
            except OSError as failure:
                # A port that is free on the first address may be taken on the second.
                if port != 0 or failure.errno != errno.EADDRINUSE or not tries_left:
                    raise
        for sock in opened:
            self._sockets.append(sock)
            self._loop.add_reader(sock, self._accept, sock)
        return int(opened[0].getsockname()[1])

    async def prepare_tls(self) -> None:
        """Make the TLS context now, beside the loop, and not for the first client; tell a new fault."""
        try:
            await self.context()
        except OSError as failure:  # ssl.SSLError is one
            if str(failure) != self._told_fault:
                self._told_fault = str(failure)
                do = "mend the files: they are looked at every minute"
                log.error("no TLS connection can be taken", {"reason": str(failure), "do": do})
        else:
            if self._told_fault:
                self._told_fault = ""
                log.info("TLS connections can be taken again")

    def use(self, context: ssl.SSLContext) -> None:
        """Meet new TLS connections with this one; those that are open keep theirs."""
        self._context = context

    def close(self) -> None:
        """Stop listening; connections that are open stay."""
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            sock.close()
        for newcomer in list(self._newcomers):
            newcomer.drop()

    def figures(self) -> dict[str, int]:
        """Give what was refused since the start, for `GET /health`."""
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
            # The lowest free number is given out, so the number says how many are in use.
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
                self._drop_oldest(f"more than {NEWCOMERS_MAX} connections have not said anything yet")
            sock.setblocking(False)
            with contextlib.suppress(OSError):  # it may be over already
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._newcomers[_Newcomer(self, self._loop, sock, f"{host}:{port}", wait_s)] = None

    def _out_of_descriptors(self, listening: socket.socket, reason: str) -> bool:
        """Make room at the cost of a newcomer, else let others wait; answer whether there is room."""
        if self._newcomers:
            self._drop_oldest(reason)
            return True
        if self._loop.time() >= self._told_full_at_s + TELL_FULL_S:
            self._told_full_at_s = self._loop.time()
            log.warning(
                "no further connection is taken now; those that are open go on",
                {"reason": reason, "do": "raise the limit of open files (ulimit -n)"},
            )
        self._pause(listening, 1.0)
        return False

    def _drop_oldest(self, reason: str) -> None:
        self._drop(next(iter(self._newcomers)), reason)

    def _drop(self, newcomer: _Newcomer, reason: str) -> None:
        self.dropped_newcomers += 1
        self._note("a connection that has said nothing for long was closed", {"reason": reason})
        newcomer.drop()

    def _pause(self, listening: socket.socket, seconds: float) -> None:
        self._loop.remove_reader(listening)
        self._loop.call_later(seconds, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening, self._accept, listening)

    # From newcomers

    def left(self, newcomer: _Newcomer) -> None:
        """Forget one that is over or has found its protocol."""
        self._newcomers.pop(newcomer, None)
        self._waiting.pop(newcomer, None)
        if self._encrypting.pop(newcomer, None) is not None:
            self._admit()

    def wants_tls(self, newcomer: _Newcomer) -> None:
        """Let one begin its hand-shake, now or when there is a place."""
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
        """End those that hold a place for too long; each that ends lets another one in."""
        self._pressing = None
        too_long = self._loop.time() - HANDSHAKE_S_PRESSED
        for newcomer in [newcomer for newcomer, since in self._encrypting.items() if since <= too_long]:
            if not self._waiting:
                return
            self._drop(newcomer, f"more than {HANDSHAKES_MAX} connections are within a TLS hand-shake")
        self._admit()

    def protocol(self, first: bytes) -> asyncio.Protocol:
        """Make the protocol for a connection's first bytes."""
        # The letter A alone decides: no HTTP method that we serve starts with it.
        return self._amqp() if first[:1] == b"A" else self._http()

    def takes_plaintext(self, local: str, peer: str) -> bool:
        """Tell whether a connection to this address of ours may go without TLS, and note when it may not."""
        if self._allow_plaintext or is_loopback_address(local):
            return True
        self.refused_plaintext += 1
        do = "leave UseDevelopmentEmulator=true out of its connection string; --allow-plaintext takes it"
        self._note("a connection without TLS was refused", {"peer": peer, "address": local, "do": do})
        return False

    def handshake_failed(self, peer: str, failure: OSError) -> None:
        """Note a hand-shake that failed: a client that does not trust the certificate may not say so."""
        self.failed_handshakes += 1
        fields = {"peer": peer, "reason": str(failure) or type(failure).__name__}
        if isinstance(failure, ConnectionError | ssl.SSLEOFError):
            fields["reason"] = "the client ended the connection"
        reason = getattr(failure, "reason", None) or ""
        if isinstance(failure, ConnectionError) or "UNKNOWN_CA" in reason or "CERTIFICATE" in reason:
            fields["do"] = _TRUST
        self._note("a TLS hand-shake failed", fields)

    async def context(self) -> ssl.SSLContext:
        """Give the TLS context, made at the first call beside the loop: making a pair takes 100 ms.

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
    """A connection that has not said yet what it wants: first a bare socket, then a transport."""

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
        self._refused = False
        self._timer = loop.call_later(FIRST_BYTES_S_MAX + wait_s, self.drop)
        self._waiting: asyncio.TimerHandle | None = None
        if wait_s:
            self._waiting = loop.call_later(wait_s, self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        self._loop.add_reader(self._sock, self._look)

    def drop(self) -> None:
        """End it without a word: nobody knows yet what it speaks."""
        self._leave()
        if self._transport is not None:
            self._transport.abort()
        elif self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None  # the task will hold its cancellation, and that its frames, and those us
        else:
            self._loop.remove_reader(self._sock)
            self._sock.close()

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
        """Begin the hand-shake: there is a place for it."""
        self._connecting = self._loop.create_task(self._encrypt())
        self._connecting.add_done_callback(tell_failure)

    async def _connect(self) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self, self._sock)
        except OSError:  # it is over already
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
                # Its frames hold us and what holds the failure: a circle that only the collector would free.
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

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None
        if self._refused:
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
        """Say why, then read on for a moment: a socket closed with bytes unread loses what was written."""
        self._refused = True
        self._timer.cancel()
        self._timer = self._loop.call_later(LINGER_S, self.drop)
        transport.write(answer)
        if transport.can_write_eof():
            transport.write_eof()


def is_loopback_address(address: str) -> bool:
    """Tell whether an IP address means this machine for this machine only."""
    ip = ip_address(address.partition("%")[0])  # %: the zone of a link address
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip.is_loopback


def raise_descriptor_limit() -> None:
    """Let this process open as many files as its hard limit allows: each connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # where the hard limit means less than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _descriptors_max() -> int:
    """Give the number from which on descriptors are not for connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(soft - DESCRIPTORS_RESERVED, soft // 2)


_REASON = b'{"status": 403, "reason": "this broker takes no plain text from other machines: use https"}\n'
_HTTPS_ONLY = (
    b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"Connection: close\r\n\r\n%b" % (len(_REASON), _REASON)
)


def _alert(sock: socket.socket, failure: OSError) -> None:
    """Tell a peer why its hand-shake failed, unless it said so itself or is gone; a hint, nothing more."""
    reason = getattr(failure, "reason", None) or ""
    if "ALERT" in reason or isinstance(failure, ConnectionError | TimeoutError | ssl.SSLEOFError):
        return
    library = isinstance(failure, ssl.SSLError) and bool(reason)
    code = _ALERTS.get(reason, _DECODE_ERROR) if library else _INTERNAL_ERROR
    with contextlib.suppress(OSError):
        sock.send(_alert_record(code))
        sock.shutdown(socket.SHUT_WR)
        sock.recv(65536)  # or the end of the socket would be a reset, which overtakes the alert


def _alert_record(code: int) -> bytes:
    """Write a fatal alert, before any encryption. Source: RFC 8446 5.1 and 6."""
    return bytes((0x15, 3, 1, 0, 2, 2, code))


def _listen(host: str, port: int) -> list[socket.socket]:
    """Open a socket on each address of a host that this machine has, all on one port. Raises: OSError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as failure:
        raise OSError("no host can have this name") from failure
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    opened: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, address in addresses:
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError as failure:  # no IPv6 in this kernel
                absent = failure
                continue
            opened.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6 and len(addresses) > 1:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has its own
            try:
                sock.bind((address[0], port, *address[2:]))
            except OSError as failure:
                if failure.errno != errno.EADDRNOTAVAIL:
                    raise
                absent = failure  # `localhost` is ::1 too, also where IPv6 is switched off
                opened.pop().close()
                continue
            sock.listen(4096)
            sock.setblocking(False)
            port = sock.getsockname()[1]
        if absent is not None:
            if not opened:
                raise absent
            log.warning("not every address is listened on", {"host": host, "reason": str(absent)})
    except OSError:
        for sock in opened:
            sock.close()
        raise
    return opened
