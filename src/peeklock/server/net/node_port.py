"""The port at which other nodes hand on clients: TLS with the key pair of the nodes, then a line about the
client, then its bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from functools import partial
from typing import cast

from peeklock.cluster.hello import BYTES_MAX, NOT_OWNED, PING, TAKEN, TURNED_AWAY, Hello, HelloInvalid, read
from peeklock.config.hosts import host_and_port_of
from peeklock.server import log
from peeklock.server.loop.tasks import tell_failure
from peeklock.server.namespaces.lifecycle import Wanted
from peeklock.server.net.amqp import RELAYED
from peeklock.server.net.handed_on import HandedOnTransport
from peeklock.server.net.listener import ACCEPTS_PER_TURN_MAX
from peeklock.server.net.relay import Relay
from peeklock.server.net.sockets import listen
from peeklock.server.settings import Settings, StartFailed

HELLO_S_MAX = 5.0
"""For the hand-shake, and for the line. Our choice: the other node sends both at once."""

SHAKING_MAX = 256
"""Connections whose TLS hand-shake is not done, after which a peer is known to be a node; one more closes the
oldest. Our choice: 16 MiB."""

FULL_PAUSE_S = 1.0
"""Before the next accept when no file descriptor was left. Our choice, as of the listener."""


class NodePort:
    """The port of one node."""

    def __init__(self, settings: Settings) -> None:
        """Listen, but answer nothing yet. Raises: StartFailed."""
        self._sockets, self.address = _listening(settings)
        """`address`: where other nodes reach it."""
        self._loop = asyncio.get_running_loop()
        self._shaking: dict[asyncio.Task[None], None] = {}  # in the order in which they came
        self._handed_on: set[_HandedOn] = set()
        """Those without a protocol yet."""

    def open(self, relay: Relay, context: ssl.SSLContext) -> None:
        """Take clients from now on."""
        for listening in self._sockets:
            self._listen(listening, relay, context)

    def close(self) -> None:
        """Take nothing more."""
        for sock in self._sockets:
            if sock.fileno() >= 0:
                self._loop.remove_reader(sock)
                sock.close()
        for task in self._shaking:
            task.cancel()
        for handed_on in list(self._handed_on):
            handed_on.abort()

    def _listen(self, listening: socket.socket, relay: Relay, context: ssl.SSLContext) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening, self._accept, listening, relay, context)

    def _accept(self, listening: socket.socket, relay: Relay, context: ssl.SSLContext) -> None:
        for _ in range(ACCEPTS_PER_TURN_MAX):
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no file descriptor is left
                self._loop.remove_reader(listening)
                self._loop.call_later(FULL_PAUSE_S, self._listen, listening, relay, context)
                return
            if len(self._shaking) >= SHAKING_MAX:
                oldest = next(iter(self._shaking))
                del self._shaking[oldest]
                oldest.cancel()
                why = f"more than {SHAKING_MAX} connections are within a TLS hand-shake"
                relay.note("a connection to the port of the nodes was closed", {"reason": why})
            sock.setblocking(False)
            with contextlib.suppress(OSError):  # it may be closed already
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._shake(sock, relay, context))
            self._shaking[task] = None
            task.add_done_callback(partial(self._shaken, sock))
            task.add_done_callback(tell_failure)

    async def _shake(self, sock: socket.socket, relay: Relay, context: ssl.SSLContext) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: _HandedOn(relay, self._handed_on),
                sock,
                ssl=context,
                ssl_handshake_timeout=HELLO_S_MAX,
            )
        except OSError:  # also of the hand-shake: the peer is no node
            sock.close()

    def _shaken(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._shaking.pop(task, None)
        if task.cancelled():
            sock.close()


def _listening(settings: Settings) -> tuple[list[socket.socket], str]:
    """Return sockets, and the address that other nodes are told. Raises: StartFailed."""
    host, port = settings.host, 0
    named = settings.node_address
    if named is not None:
        host, port = host_and_port_of(named)
    elif host in ("0.0.0.0", "::", ""):
        host = socket.gethostname()
    try:
        opened = listen(settings.host, port)
    except OSError as failure:
        raise StartFailed(
            f"cannot listen on {settings.host}:{port} for other nodes: {failure.strerror or failure}; choose "
            "another port with --node-address"
        ) from failure
    shown = f"[{host}]" if ":" in host else host
    return opened, f"{shown}:{opened[0].getsockname()[1]}"


class _HandedOn(asyncio.Protocol):
    """A connection from another node, until it has its protocol."""

    def __init__(self, relay: Relay, waiting: set[_HandedOn]) -> None:
        """Be among those that wait until it has its protocol."""
        self._relay = relay
        self._waiting = waiting
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._hello: Hello | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._waiting.add(self)
        self._timer = asyncio.get_running_loop().call_later(HELLO_S_MAX, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._received += data
        transport = self._transport
        if transport is None or self._hello is not None:
            return  # it waits for its turn
        line, end, _ = self._received.partition(b"\n")
        if not end:
            if len(line) > BYTES_MAX:
                transport.abort()
            return
        try:
            self._hello = hello = read(bytes(line))
        except HelloInvalid as failure:
            log.warning("a connection of another node was refused", {"reason": str(failure)})
            transport.abort()
            return
        del self._received[: len(line) + 1]
        assert self._timer is not None
        self._timer.cancel()
        if hello.kind == PING:
            transport.write(TAKEN)
            transport.close()
            return
        wait_s = self._relay.protocols.wait_s(hello.host) if hello.host else 0.0
        if wait_s is None:
            self._refuse(transport, TURNED_AWAY)
        elif self._owned(hello) is None:
            self._refuse(transport, NOT_OWNED)
        else:
            # Before it waits: the other node waits for its answer for a shorter time.
            transport.write(TAKEN)
            if wait_s:
                transport.pause_reading()
                self._timer = asyncio.get_running_loop().call_later(wait_s, self._take, transport, hello)
            else:
                self._take(transport, hello)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._waiting.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        """Close the connection at once: the node stops."""
        if self._transport is not None:
            self._transport.abort()

    def _owned(self, hello: Hello) -> Wanted | None:
        """Return the namespace of the client, None = this node does not own it."""
        member = self._relay.member
        wanted = member.directory.by_store.get(hello.store)
        return None if wanted is None or member.served(wanted) is None else wanted

    def _refuse(self, transport: asyncio.Transport, answer: bytes) -> None:
        transport.write(answer)
        transport.close()

    def _take(self, transport: asyncio.Transport, hello: Hello) -> None:
        wanted = self._owned(hello)
        protocol = None if wanted is None else self._relay.local(hello.kind, wanted)
        if protocol is None:  # it was given back meanwhile
            transport.abort()
            return
        self._waiting.discard(self)
        transport.resume_reading()
        client = {"peername": (hello.host, hello.port) if hello.host else None, RELAYED: True}
        if not hello.has_tls:
            client["sslcontext"] = None
        handed_on = HandedOnTransport(transport, hello.answered, client, _mismatch)
        transport.set_protocol(protocol)
        protocol.connection_made(handed_on)
        if self._received:
            protocol.data_received(bytes(self._received))


def _mismatch() -> None:
    do = "update all nodes to one release"
    log.error("another node has answered a client otherwise than this one", {"do": do})
