"""Listening sockets, and the choice of protocol by a connection's first bytes.

Owns: accepting, and the deadline for the first bytes. Must not know: what the protocols do. Any port serves
all three: a connection that starts with `AMQP` is AMQP, with a TLS record (0x16) it is TLS around AMQP or
HTTP, else it is HTTP.

The first byte is looked at (MSG_PEEK) before a transport exists, so that the TLS hand-shake is asyncio's own
from its first byte on; within TLS the first decrypted bytes decide.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import cast

from peeklock.server import log
from peeklock.server.tasks import tell_failure

FIRST_BYTES_S_MAX = 20.0
"""A connection that has said nothing by then is closed; Azure's token deadline is the same. Our choice."""

ACCEPTS_PER_TURN_MAX = 64
"""Accepts in one turn of the loop, so that a connection storm does not starve open connections. Our
choice."""

PORT_TRIES_MAX = 10
"""Searches for a port that is free on every address of a host. Our choice."""

_TLS_HANDSHAKE_RECORD = 0x16

ProtocolFactory = Callable[[], asyncio.Protocol]


class Listener:
    """One listening port."""

    def __init__(
        self, amqp: ProtocolFactory, http: ProtocolFactory, tls: Callable[[], ssl.SSLContext]
    ) -> None:
        """`tls` is called in a thread when the first TLS connection comes."""
        self._amqp = amqp
        self._http = http
        self._tls = tls
        self._making: asyncio.Future[ssl.SSLContext] | None = None
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._waiting: dict[socket.socket, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

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
        """Make the TLS context now, beside the loop, and not for the first client."""
        try:
            await self._context()
        except (OSError, ssl.SSLError) as failure:
            log.error("no TLS connection can be taken", {"reason": str(failure)})

    def close(self) -> None:
        """Stop listening; connections that are open stay."""
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            sock.close()
        for sock in list(self._waiting):
            self._give_up(sock)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN_MAX):
            try:
                sock, _address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as failure:  # out of file descriptors, most likely: breathe, then go on
                log.error("a connection could not be accepted", {"reason": str(failure)})
                self._loop.remove_reader(listening)
                self._loop.call_later(1.0, self._resume, listening)
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._waiting[sock] = self._loop.call_later(FIRST_BYTES_S_MAX, self._give_up, sock)
            self._loop.add_reader(sock, self._look, sock)

    def _resume(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening, self._accept, listening)

    def _give_up(self, sock: socket.socket) -> None:
        timer = self._waiting.pop(sock)
        timer.cancel()
        self._loop.remove_reader(sock)
        sock.close()

    def _look(self, sock: socket.socket) -> None:
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if not first:
            self._give_up(sock)
            return
        self._waiting.pop(sock).cancel()
        self._loop.remove_reader(sock)
        task = self._loop.create_task(self._connect(sock, first[0] == _TLS_HANDSHAKE_RECORD))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(tell_failure)

    async def _connect(self, sock: socket.socket, encrypted: bool) -> None:
        def factory() -> asyncio.Protocol:
            return _FirstBytes(self._amqp, self._http)

        try:
            if encrypted:
                context = await self._context()
                await self._loop.connect_accepted_socket(
                    factory, sock, ssl=context, ssl_handshake_timeout=FIRST_BYTES_S_MAX
                )
            else:
                await self._loop.connect_accepted_socket(factory, sock)
        except (TimeoutError, OSError, ssl.SSLError) as failure:
            # A client that does not trust the certificate ends here: worth a line, since the client sees
            # only a reset.
            reason = str(failure) or type(failure).__name__
            log.warning("a connection ended before its first bytes", {"reason": reason})
            sock.close()

    async def _context(self) -> ssl.SSLContext:
        """Give the TLS context, made at the first call beside the loop: making a pair takes 100 ms.

        Raises: OSError, ssl.SSLError; the next call tries again.
        """
        if self._making is None:
            self._making = self._loop.run_in_executor(None, self._tls)
        try:
            return await asyncio.shield(self._making)
        except (OSError, ssl.SSLError):
            self._making = None
            raise


def _listen(host: str, port: int) -> list[socket.socket]:
    """Open a socket on each address of a host that this machine has, all on one port. Raises: OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
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


class _FirstBytes(asyncio.Protocol):
    """Waits for the first decrypted bytes, then hands the transport on."""

    def __init__(self, amqp: ProtocolFactory, http: ProtocolFactory) -> None:
        self._amqp = amqp
        self._http = http
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports do not derive from asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(FIRST_BYTES_S_MAX, transport.abort)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None
        if self._timer is not None:
            self._timer.cancel()
        # The letter A alone decides: no HTTP method that we serve starts with it.
        protocol = self._amqp() if data[:1] == b"A" else self._http()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
