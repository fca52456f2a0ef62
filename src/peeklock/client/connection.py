"""One blocking AMQP connection of a process to a namespace.

Owns: the socket, the waiting, tokens and their renewal, and coming back after a break. Must not know: what is
asked over its links, Spark. Our sans-IO engine speaks the protocol, as a client.

Theory of operation. A worker of Spark is one thread that wants answers, so nothing happens but inside a call:
`wait` writes, reads and hands out events until what it waits for is there. One lock is held for the time of a
call. A daemon thread uses the pauses: it keeps the connection from being given up for its silence, and puts
new tokens before the old ones run out. A connection that broke is made anew by the next call that needs it;
links and requests notice by `Link.lost` and open themselves again.
Source: wire contract 1.3-1.8; the order of steps is that of the official clients.
"""

from __future__ import annotations

import os
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

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
from peeklock.auth.sas import generate
from peeklock.client.connection_string import ConnectionString
from peeklock.client.errors import CONNECTION_LOST, ServiceBusError, refused
from peeklock.client.links import ReceiveMode, Receiver, SessionChoice
from peeklock.client.management import Management, TokenNode
from peeklock.client.sender import Sender

TOKEN_MS: Final = 3_600_000
"""Life of the tokens that we make. Source: wire contract 1.7 (the official clients' hour)."""

RENEWAL_MS: Final = TOKEN_MS // 10
"""What is left of a token when the next one is put. Source: wire contract 1.7."""

ANSWER_S: Final = 30.0
"""How long one answer may take before the connection counts as dead. Our choice: the slowest operation, a
commit of a thousand messages, takes milliseconds."""

FRAME_BYTES: Final = 1_048_576
"""Largest frame that we take, so that an answer comes in one piece. Source: wire contract 1.4 (Python)."""

READ_BYTES: Final = 1 << 18
BEAT_S: Final = 15.0
"""How often a silent connection is looked after. Source: half of the shortest usual idle time-out, 60 s (wire
contract 1.4), with room."""
PAUSES_S: Final = (0.05, 2.0)
"""First and longest pause between attempts; each is twice the one before."""

_Result = TypeVar("_Result")


class Endpoint(Protocol):
    """What the connection tells the owner of a channel."""

    def took(self, event: Event) -> None:
        """Take an event of the channel."""

    def lost(self, error: ServiceBusError) -> None:
        """Hear that the channel is gone."""


def wall_ms() -> int:
    """Return the UTC time in ms."""
    return time.time_ns() // 1_000_000


class BlockingConnection:
    """See the module. Not made to be shared by threads that wait for each other, but safe with them."""

    def __init__(self, settings: ConnectionString, *, now_ms: Callable[[], int] = wall_ms) -> None:
        """Connect with the first call that needs it. `now_ms`: UTC time, for tokens."""
        self.settings = settings
        self.lock = threading.RLock()
        self._now_ms = now_ms
        self._engine: Engine | None = None
        self._socket: socket.socket | None = None
        self._selector: selectors.BaseSelector | None = None
        self._mask = 0
        self._out = memoryview(b"")
        self._opened = False
        self._endpoints: dict[int, Endpoint] = {}
        self._tokens: dict[str, int] = {}
        """Until when each path is authorised, UTC ms."""
        self._token_node = TokenNode(self)
        self._management: dict[str, Management] = {}
        self._names = 0
        self._closed: threading.Event | None = None
        """Ends the thread that keeps the connection alive."""

    # For users of the room

    def management(self, path: str) -> Management:
        """Return the management node of an entity, e.g. `orders` or `orders/$DeadLetterQueue`."""
        with self.lock:
            return self._management.setdefault(path, Management(self, path))

    def sender(self, path: str, *, in_flight_max: int = 1000, in_flight_bytes_max: int = 8 << 20) -> Sender:
        """Return a new sender to a queue or topic; so many messages and bytes may wait for their outcome."""
        return Sender(self, path, in_flight_max, in_flight_bytes_max)

    def receiver(self, path: str, mode: ReceiveMode, session: SessionChoice = None) -> Receiver:
        """Return a new receiver of a queue, subscription or sub-queue."""
        return Receiver(self, path, mode, session)

    def close(self) -> None:
        """Leave properly; a later call connects again."""
        with self.lock:
            if self._closed is not None:
                self._closed.set()
                self._closed = None
            if self._engine is not None:
                self._engine.close()
                self.flush()
                self._lose(self.error(CONNECTION_LOST, "the connection was closed by its own side", ""))

    # For links

    @property
    def engine(self) -> Engine:
        """The protocol machine of the connection that stands. Raises: ServiceBusError (none does)."""
        if self._engine is None:
            raise self.error(CONNECTION_LOST, "the connection is lost", "")
        return self._engine

    @property
    def host(self) -> str:
        """Host and port, for texts."""
        return f"{self.settings.host}:{self.settings.port}"

    def error(self, condition: str | None, text: str, entity: str) -> ServiceBusError:
        """Make an error that names host and entity."""
        return refused(condition, text, host=self.host, entity=entity)

    def open(self, deadline: float) -> None:
        """Connect if no connection stands. Raises: ServiceBusError."""
        if self._engine is None:
            self._connect(deadline)

    def authorise(self, path: str, deadline: float) -> None:
        """Put a token for an entity, unless one is there that will last for some time.

        Raises:
            ServiceBusError: refused; or the connection broke.
        """
        known = path.lower()
        expires_ms = self._tokens.get(known, 0)
        now_ms = self._now_ms()
        if self.settings.signature:
            if expires_ms:
                return
            token, expires_ms = self.settings.signature, now_ms + TOKEN_MS
        elif expires_ms - now_ms > RENEWAL_MS:
            return
        else:
            expires_ms = now_ms + TOKEN_MS
            token = generate(
                f"sb://{self.settings.host}/{path}", self.settings.key_name, self.settings.key, expires_ms
            )
        self._token_node.put(f"sb://{self.settings.host}/{path}", path, token, deadline)
        self._tokens[known] = expires_ms

    def forget_token(self, path: str) -> bool:
        """Let the next call put a new token; say whether there was one that can be made anew."""
        return self._tokens.pop(path.lower(), None) is not None and not self.settings.signature

    def begin(self, endpoint: Endpoint) -> int:
        """Begin a session whose events go to `endpoint`; give its channel."""
        channel = self.engine.begin()
        self._endpoints[channel] = endpoint
        return channel

    def end(self, channel: int) -> None:
        """End a session; its endpoint hears nothing more."""
        if self._endpoints.pop(channel, None) is not None and self._engine is not None:
            self._engine.end(channel)

    def link_name(self) -> str:
        """Return a name that no link of this process had before."""
        self._names += 1
        return f"peeklock-spark-{os.getpid()}-{self._names}"

    def wait(self, done: Callable[[], bool], deadline: float, entity: str) -> None:
        """Exchange bytes until something is so; `deadline` as of `time.monotonic`.

        A peer that does not answer until then counts as lost: whether it did what was asked is unknown.

        Raises:
            ServiceBusError: the connection broke, or the time is over.
        """
        while not done():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                error = self.error(CONNECTION_LOST, "no answer came in time", entity)
                self._lose(error)
                raise error
            self.exchange(left_s)

    def flush(self) -> None:
        """Write what can be written now. A break shows itself in the next `exchange`."""
        if self._engine is not None and self._socket is not None:
            try:
                self._write(self._socket, self._engine)
            except OSError as error:
                self._lose(self._broken(error))

    def exchange(self, timeout_s: float) -> None:
        """Write what there is, wait up to `timeout_s` for something to read, and hand out what came.

        Raises:
            ServiceBusError: the connection broke.
        """
        engine, sock, selector = self.engine, self._socket, self._selector
        assert sock is not None, "a socket stands as long as its engine"
        assert selector is not None
        try:
            self._write(sock, engine)
            if not (isinstance(sock, ssl.SSLSocket) and sock.pending()):
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
        """Call `attempt(deadline)` until it gives a result, or an error that trying again does not help.

        The deadline (`time.monotonic`) of each attempt is `ANSWER_S` away, that of all `timeout_s` (as the
        settings say if None). The lock is held for each attempt; the pauses between them are others', unless
        the caller holds it too.

        Raises:
            ServiceBusError: the last one.
        """
        limit_s = self.settings.timeout_s if timeout_s is None else timeout_s
        started = time.monotonic()
        pause_s = PAUSES_S[0]
        while True:
            asked = time.monotonic()
            try:
                with self.lock:
                    started += time.monotonic() - asked  # to wait for others is not to try
                    return attempt(min(started + limit_s, time.monotonic() + ANSWER_S))
            except ServiceBusError as error:
                if not error.retryable:
                    raise
                spent_s = time.monotonic() - started
                if spent_s + pause_s >= limit_s:
                    text = f"{error.text} It was tried for {spent_s:.0f} s."
                    raise ServiceBusError(error.condition, text, error.entity, True) from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSES_S[1])

    # Inside

    def _connect(self, deadline: float) -> None:
        settings = self.settings
        left_s = max(0.1, deadline - time.monotonic())
        try:
            sock = socket.create_connection((settings.host, settings.port), timeout=left_s)
        except OSError as error:
            raise self._broken(error) from error
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if settings.tls:
                sock = _trusting(settings).wrap_socket(sock, server_hostname=settings.host)
            sock.setblocking(False)
        except OSError as error:
            sock.close()
            raise self._broken(error) from error
        self._socket = sock
        self._selector = selectors.DefaultSelector()
        self._mask = selectors.EVENT_READ
        self._selector.register(sock, self._mask)
        self._out = memoryview(b"")
        self._opened = False
        self._engine = Engine(
            "client",
            container_id=self.link_name(),
            now_ms=_steady_ms(),
            hostname=settings.host,
            max_frame_size=FRAME_BYTES,
            sasl_mechanisms=("ANONYMOUS",),
            properties={Symbol("product"): "peeklock-spark"},
        )
        self._engine.open()
        self.wait(lambda: self._opened, deadline, "")
        if self._closed is None:
            self._closed = threading.Event()
            arguments = (self._closed,)
            threading.Thread(target=self._keep_alive, args=arguments, name="peeklock", daemon=True).start()

    def _write(self, sock: socket.socket, engine: Engine) -> None:
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
            kind = type(event)
            if kind is ConnectionOpened:
                self._opened = True
            elif kind is ConnectionClosed:
                assert isinstance(event, ConnectionClosed)
                if event.error is None:
                    lost = self.error(CONNECTION_LOST, "the broker ended the connection", "")
                else:
                    lost = self.error(str(event.error.condition), event.error.description, "")
                    lost.retryable = True  # a new connection may be welcome, whatever ended this one
                self._lose(lost)
                raise lost
            elif isinstance(event, _OF_A_CHANNEL):
                endpoint = self._endpoints.get(event.channel)
                if endpoint is not None:
                    endpoint.took(event)

    def _broken(self, error: OSError) -> ServiceBusError:
        if isinstance(error, ssl.SSLCertVerificationError):
            advice = "option caFile names the PEM file of certificates to trust"
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
        """Use the pauses between calls; see the module."""
        while not closed.wait(BEAT_S):
            if not self.lock.acquire(blocking=False):
                continue  # a call is under way, which does the same
            try:
                if self._engine is not None:
                    self.exchange(0)
                for path in [*self._tokens]:
                    self.authorise(path, time.monotonic() + ANSWER_S)
            except ServiceBusError:
                pass  # the next call finds out, and says so
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
    """Return this process's connection for these settings; it is made once and used by all."""
    with _connections_lock:
        found = _connections.get(settings)
        if found is None:
            found = _connections[settings] = BlockingConnection(settings)
        return found


def close_all() -> None:
    """Leave every namespace properly; a later call connects again."""
    with _connections_lock:
        found = [*_connections.values()]
        _connections.clear()
    for one in found:
        one.close()


def _after_fork() -> None:
    """Begin anew: sockets, locks and threads of the parent are the parent's."""
    global _connections, _connections_lock
    _connections = {}
    _connections_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _trusting(settings: ConnectionString) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=settings.ca_file)


def _steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000
