"""One blocking AMQP connection to a namespace: the socket, tokens, waiting, and reconnecting.

The sans-IO engine of `peeklock.amqp` speaks the protocol, in the client's role. All work happens inside a
call: `wait` writes, reads and hands out events until the answer is there. A lock is held during a call. A
daemon thread uses the pauses: it keeps the connection alive, and puts new tokens before the old ones expire.
The next call that needs a broken connection opens it again; links and requests learn of the break by
`Link.lost` and open themselves again. Source: wire contract 1.3-1.8; the steps are those of the official
clients.
"""

from __future__ import annotations

import os
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from peeklock.amqp.connection import Connection as Engine
from peeklock.amqp.events import (
    ConnectionClosed,
    ConnectionOpened,
    DeliveryReceived,
    DispositionReceived,
    Event,
    LinkAttached,
    LinkDetached,
    LinkDrained,
    LinkFlow,
    SessionEnded,
)
from peeklock.amqp.types import Symbol
from peeklock.client.connection_string import ConnectionString
from peeklock.client.errors import CONNECTION_LOST, NOT_IMPLEMENTED, UNAUTHORIZED, ServiceBusError, refused
from peeklock.client.links import ReceiveMode, Receiver, SessionChoice
from peeklock.client.management import Management, TokenNode
from peeklock.client.sender import Sender
from peeklock.client.tokens import LATE_MS, Token, token_for
from peeklock.client.transactions import Forwarder

if TYPE_CHECKING:
    from peeklock.client.websocket import WebSocket

ANSWER_S: Final = 30.0
"""Longest wait for one answer before the connection counts as lost. Our choice: the slowest operation, the
commit of a thousand messages, takes milliseconds."""

FRAME_BYTES: Final = 1_048_576
"""Largest frame that we accept: an answer comes in one piece. Source: wire contract 1.4 (Python)."""

READ_BYTES: Final = 1 << 18
BEAT_S: Final = 15.0
"""How often the thread serves an idle connection. Source: a quarter of the shortest usual idle time-out, 60 s
(wire contract 1.4)."""
PAUSES_S: Final = (0.05, 2.0)
"""First and longest pause between attempts, seconds; each is twice the one before."""

_Result = TypeVar("_Result")


class Endpoint(Protocol):
    """The owner of a channel."""

    def took(self, event: Event) -> None:
        """Handle an event of the channel."""

    def lost(self, error: ServiceBusError) -> None:
        """Handle the loss of the channel."""


def wall_ms() -> int:
    """Return the UTC time in ms since 1970."""
    return time.time_ns() // 1_000_000


class BlockingConnection:
    """A connection to a namespace, opened by the first call that needs it and again after each break.

    Threads may share it; their calls then take turns. Calls raise `ServiceBusError`.
    """

    def __init__(self, settings: ConnectionString, *, now_ms: Callable[[], int] = wall_ms) -> None:
        """Connect later. `now_ms`: returns UTC time in ms, for tokens."""
        self.settings = settings
        self.lock = threading.RLock()
        self._now_ms = now_ms
        self._engine: Engine | None = None
        self._socket: socket.socket | WebSocket | None = None
        self._selector: selectors.BaseSelector | None = None
        self._mask = 0
        self._out = memoryview(b"")
        self._opened = False
        self._endpoints: dict[int, Endpoint] = {}
        self._tokens: dict[str, Token] = {}
        """The last token of each path."""
        self._token_node = TokenNode(self)
        self._management: dict[str, Management] = {}
        self._names = 0
        self._closed: threading.Event | None = None
        """Ends the keep-alive thread."""

    # Public

    def management(self, path: str) -> Management:
        """Return the management node of an entity, such as `orders` or `orders/$DeadLetterQueue`.

        Raises: ServiceBusError: the broker is not said to be Service Bus.
        """
        if self.settings.generic:
            raise self.error(NOT_IMPLEMENTED, "it is not said to be Service Bus", path)
        with self.lock:
            return self._management.setdefault(path, Management(self, path))

    def sender(
        self,
        path: str,
        *,
        in_flight_max: int = 1000,
        in_flight_bytes_max: int = 8 << 20,
        sends_again: bool = True,
    ) -> Sender:
        """Return a new sender to a queue or topic.

        At most `in_flight_max` messages and `in_flight_bytes_max` bytes wait for their outcome at a time.
        `sends_again`: whether those without an outcome are sent again after a break; else it is an error.
        """
        return Sender(self, path, in_flight_max, in_flight_bytes_max, sends_again)

    def receiver(self, path: str, mode: ReceiveMode, session: SessionChoice = None) -> Receiver:
        """Return a new receiver of a queue, subscription or sub-queue.

        Args:
            path: such as `orders`, `events/Subscriptions/billing`, `orders/$DeadLetterQueue`.
            mode: lock each message until it is settled, or delete it at once.
            session: a session id or `NEXT`; None for an entity without sessions.
        """
        return Receiver(self, path, mode, session)

    def forwarder(self, source: str, target: str, session: SessionChoice = None) -> Forwarder:
        """Return a new receiver that moves messages to a queue or topic; `session`: as of `receiver`."""
        return Forwarder(self, source, target, session)

    def close(self) -> None:
        """Close the connection in order; a later call opens it again."""
        with self.lock:
            if self._closed is not None:
                self._closed.set()
                self._closed = None
            if self._engine is not None:
                self._engine.close()
                self.flush()
                self._lose(self.error(CONNECTION_LOST, "this client closed the connection", ""))

    # For links

    @property
    def engine(self) -> Engine:
        """The protocol machine of the open connection. Raises: ServiceBusError, if there is none."""
        if self._engine is None:
            raise self.error(CONNECTION_LOST, "the connection is lost", "")
        return self._engine

    @property
    def is_open(self) -> bool:
        """Whether the broker has been reached, and the connection has not broken."""
        return self._engine is not None

    @property
    def host(self) -> str:
        """Host and port, for errors."""
        return f"{self.settings.host}:{self.settings.port}"

    def error(self, condition: str | None, text: str, entity: str) -> ServiceBusError:
        """Return an error that names host and entity."""
        return refused(condition, text, host=self.host, entity=entity)

    def open(self, deadline: float) -> None:
        """Connect if there is no open connection. Raises: ServiceBusError."""
        if self._engine is None:
            self._connect(deadline)

    def authorise(self, path: str, deadline: float) -> None:
        """Put a token for an entity, unless one is valid for some time.

        Raises:
            ServiceBusError: refused; or the connection broke.
        """
        if self.settings.generic:
            return  # the login is that of the connection
        known = path.lower()
        now_ms = self._now_ms()
        old = self._tokens.get(known)
        if old is not None and now_ms < old.renew_at_ms:
            return
        audience = f"sb://{self.settings.host}/{path}"
        token = token_for(self.settings, audience, now_ms)
        if old is None or token.text != old.text:
            self._token_node.put(audience, path, token.text, token.type, deadline)
        else:  # a file whose next token is late
            token = replace(token, renew_at_ms=now_ms + LATE_MS)
        self._tokens[known] = token

    def forget_token(self, path: str) -> bool:
        """Have the next call put a new token; return whether there was one, and it can be renewed."""
        return self._tokens.pop(path.lower(), None) is not None and not self.settings.signature

    def begin(self, endpoint: Endpoint) -> int:
        """Begin a session whose events go to `endpoint`; return its channel."""
        channel = self.engine.begin()
        self._endpoints[channel] = endpoint
        return channel

    def end(self, channel: int) -> None:
        """End a session; its endpoint gets no more events."""
        if self._endpoints.pop(channel, None) is not None and self._engine is not None:
            self._engine.end(channel)

    def link_name(self) -> str:
        """Return a new link name, unique in this process."""
        self._names += 1
        return f"peeklock-client-{os.getpid()}-{self._names}"

    def wait(self, done: Callable[[], bool], deadline: float, entity: str) -> None:
        """Exchange bytes until `done()`; `deadline` as of `time.monotonic`.

        Without an answer until then the connection counts as lost: the outcome is unknown.

        Raises:
            ServiceBusError: the connection broke, or the deadline passed.
        """
        while not done():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                error = self.error(CONNECTION_LOST, "no answer came in time", entity)
                self._lose(error)
                raise error
            self.exchange(left_s)

    def flush(self) -> None:
        """Write what can be written now; the next `exchange` raises a break."""
        if self._engine is not None and self._socket is not None:
            try:
                self._write(self._socket, self._engine)
            except OSError as error:
                self._lose(self._broken(error))

    def exchange(self, timeout_s: float) -> None:
        """Write all output, wait up to `timeout_s` for input, and hand out its events.

        Raises:
            ServiceBusError: the connection broke.
        """
        engine, sock, selector = self.engine, self._socket, self._selector
        assert sock is not None, "there is a socket as long as its engine"
        assert selector is not None
        try:
            self._write(sock, engine)
            if not _pending(sock):
                due = engine.next_deadline_ms()
                if due is not None:
                    timeout_s = min(timeout_s, max(0, due - _steady_ms()) / 1000)
                mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
                if mask != self._mask:
                    selector.modify(sock, mask)
                    self._mask = mask
                if not selector.select(timeout_s):
                    self._take(engine.tick(_steady_ms()))
                    return
            try:
                data = sock.recv(READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            if data:
                self._take(engine.receive(data, _steady_ms()))
                if self._engine is engine and self._socket is not None:
                    self._write(self._socket, engine)
            else:
                self._take(engine.eof(_steady_ms()))
        except OSError as error:
            lost = self._broken(error)
            self._lose(lost)
            raise lost from error

    def retrying(self, attempt: Callable[[float], _Result], timeout_s: float | None = None) -> _Result:
        """Call `attempt(deadline)` until it returns, or raises an error that is not retryable.

        The deadline (`time.monotonic`) of each attempt is `ANSWER_S` away, that of all `timeout_s` (None: of
        the settings). The lock is held during an attempt; other threads may use the pauses, unless the caller
        holds it too.

        Raises:
            ServiceBusError: of the last attempt.
        """
        limit_s = self.settings.timeout_s if timeout_s is None else timeout_s
        started = time.monotonic()
        pause_s = PAUSES_S[0]
        while True:
            asked = time.monotonic()
            try:
                with self.lock:
                    started += time.monotonic() - asked  # waiting for other threads does not count
                    return attempt(min(started + limit_s, time.monotonic() + ANSWER_S))
            except ServiceBusError as error:
                if not error.retryable:
                    raise
                spent_s = time.monotonic() - started
                if spent_s + pause_s >= limit_s:
                    text = f"{error.text} It was retried for {spent_s:.0f} s."
                    raise ServiceBusError(error.condition, text, error.entity, True) from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSES_S[1])

    # Inside

    def _connect(self, deadline: float) -> None:
        settings = self.settings
        sock = self._dial(max(0.1, deadline - time.monotonic()))
        try:
            if settings.tls:
                sock = ssl.create_default_context(cadata=settings.certificates).wrap_socket(
                    sock, server_hostname=settings.host
                )
            self._socket = self._over_websocket(sock) if settings.websocket else sock
            self._socket.setblocking(False)
        except OSError as error:
            self._socket = None
            sock.close()
            raise self._broken(error) from error
        self._selector = selectors.DefaultSelector()
        self._mask = selectors.EVENT_READ
        self._selector.register(self._socket, self._mask)
        self._out = memoryview(b"")
        self._opened = False
        plain = settings.generic and settings.key_name
        self._engine = Engine(
            "client",
            container_id=self.link_name(),
            now_ms=_steady_ms(),
            hostname=settings.host,
            max_frame_size=FRAME_BYTES,
            sasl_mechanisms=("PLAIN",) if plain else ("ANONYMOUS",),
            sasl_response=f"\0{settings.key_name}\0{settings.key}".encode() if plain else b"",
            properties={Symbol("product"): "peeklock-client"},
        )
        self._engine.open()
        self.wait(lambda: self._opened, deadline, "")
        if self._closed is None:
            self._closed = threading.Event()
            threading.Thread(
                target=self._keep_alive, args=(self._closed,), name="peeklock-client", daemon=True
            ).start()

    def _dial(self, timeout_s: float) -> socket.socket:
        """Return a connected socket. Raises: ServiceBusError."""
        try:
            sock = socket.create_connection((self.settings.host, self.settings.port), timeout=timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise self._broken(error) from error
        return sock

    def _over_websocket(self, sock: socket.socket) -> WebSocket:
        """Shake hands. Raises: OSError."""
        from peeklock.client.websocket import WebSocket  # Spark's workers need no WebSocket

        return WebSocket(sock, self.settings.host, self.settings.port)

    def _write(self, sock: socket.socket | WebSocket, engine: Engine) -> None:
        while True:
            if not self._out:
                data = engine.data_to_send()
                if not data:
                    return
                self._out = memoryview(data)
            try:
                sent = sock.send(self._out)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            self._out = self._out[sent:]

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, ConnectionOpened):
                self._opened = True
            elif isinstance(event, ConnectionClosed):
                if event.error is None:
                    lost = self.error(CONNECTION_LOST, "the broker closed the connection", "")
                else:
                    lost = self.error(str(event.error.condition), event.error.description, "")
                    # A new connection may succeed; but a user and a password stay what they are.
                    lost.retryable = lost.condition != UNAUTHORIZED or not self.settings.generic
                self._lose(lost)
                raise lost
            elif isinstance(event, _OF_A_CHANNEL):
                endpoint = self._endpoints.get(event.channel)
                if endpoint is not None:
                    endpoint.took(event)

    def _broken(self, error: OSError) -> ServiceBusError:
        if isinstance(error, ssl.SSLCertVerificationError):
            advice = "give the broker's CA certificates as a PEM file (ca_file)"
            lost = self.error(CONNECTION_LOST, f"its certificate is not trusted ({error}); {advice}", "")
            lost.retryable = False
            return lost
        return self.error(CONNECTION_LOST, f"no connection ({error})", "")

    def _lose(self, error: ServiceBusError) -> None:
        if self._selector is not None:
            self._selector.close()
        if self._socket is not None:
            self._socket.close()
        self._engine = self._socket = self._selector = None
        self._tokens.clear()
        endpoints, self._endpoints = self._endpoints, {}
        for endpoint in endpoints.values():
            endpoint.lost(error)

    def _keep_alive(self, closed: threading.Event) -> None:
        """Run the connection in the pauses between calls."""
        while not closed.wait(BEAT_S):
            if not self.lock.acquire(blocking=False):
                continue  # a call is under way and does the same
            try:
                if self._engine is not None:
                    self.exchange(0)
                for path in [*self._tokens]:
                    self.authorise(path, time.monotonic() + ANSWER_S)
            except ServiceBusError:
                pass  # the next call raises it
            finally:
                self.lock.release()


_OF_A_CHANNEL = (
    DeliveryReceived,
    DispositionReceived,
    LinkAttached,
    LinkDetached,
    LinkDrained,
    LinkFlow,
    SessionEnded,
)

_connections: dict[ConnectionString, BlockingConnection] = {}
_connections_lock = threading.Lock()


def connection(settings: ConnectionString) -> BlockingConnection:
    """Return the connection of this process for these settings; all callers share it."""
    with _connections_lock:
        found = _connections.get(settings)
        if found is None:
            found = _connections[settings] = BlockingConnection(settings)
        return found


def close_all() -> None:
    """Close the shared connections in order; a later call opens new ones."""
    with _connections_lock:
        found = [*_connections.values()]
        _connections.clear()
    for one in found:
        one.close()


def _after_fork() -> None:
    """Start without connections: sockets, locks and threads belong to the parent."""
    global _connections, _connections_lock
    _connections = {}
    _connections_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _pending(sock: socket.socket | WebSocket) -> bool:
    """Return whether there are bytes to receive that `select` does not see."""
    if isinstance(sock, ssl.SSLSocket):
        return sock.pending() > 0
    return not isinstance(sock, socket.socket) and sock.pending()


def _steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000
