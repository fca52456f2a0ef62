"""A connection that is over is freed at once: by reference counting, on every loop and transport there is.

The broker is the real one on a port, the peer a blocking socket in a thread. The collector is off. After each
end no object of ours is left that was not there before, and no transport. What has no weak references is
counted among all objects.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import ssl
import struct
import types
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import uvloop

from peeklock.amqp.frames import frame
from peeklock.amqp.performatives import encode_close
from peeklock.amqp.session import Session
from peeklock.amqp.types import Role
from peeklock.auth import DEVELOPMENT_KEY, DEVELOPMENT_KEY_NAME, Authority, SasRule, generate
from peeklock.broker.vocabulary.commands import CreateEntity, DeleteEntity
from peeklock.broker.vocabulary.descriptions import QueueDescription
from peeklock.server.app import Broker
from peeklock.server.loop.clock import SlewedClock
from peeklock.server.net import ending, http, listener, websocket
from peeklock.server.settings import Settings
from tests.amqp.pair import attach, begin, end, flow, sasl_and_open, transfer
from tests.amqp.test_links import detach
from tests.gateway.harness import section
from tests.server.net.test_websocket import BINARY, CLOSE, TEXT
from tests.server.net.test_websocket import KEY as WEBSOCKET_KEY
from tests.server.net.test_websocket import frame as websocket_frame

KEY_NAME, KEY = "all", "key"
PLAIN = sasl_and_open("PLAIN", f"\0{KEY_NAME}\0{KEY}".encode())
WATCHED = ("peeklock.", "h11.", "websockets.", "uvloop.", "asyncio.selector_events", "asyncio.sslproto")
SPARED = {
    # Of the loop, not of a connection; their number changes with what the process does.
    "uvloop.loop.Loop",
    "uvloop.loop.TimerHandle",
    "uvloop.loop.UVTimer",  # one that keeps a connection shows by that connection
    "peeklock.broker.vocabulary.commands.LimitSending",
    # asyncio's own refers to itself by a bound method; when it is closed it holds nothing else.
    "asyncio.selector_events._SelectorSocketTransport",
}
CARRIERS = ("plain", "tls", "websocket", "websocket within tls")
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}

COMBINATIONS = [
    pytest.param(loop, carrier, marks=[pytest.mark.long] if loop == "asyncio" and carrier != "plain" else [])
    for loop in LOOPS
    for carrier in CARRIERS
]
"""Brokers run on uvloop, unless it cannot be installed."""


class MovedClock(SlewedClock):
    moved_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.moved_ms


def census() -> Counter[str]:
    """Count what is there of ours and of the loop's, by type, and our closures by name."""
    found: Counter[str] = Counter()
    for thing in gc.get_objects():
        kind = type(thing)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if kind is types.FunctionType:
            if thing.__closure__ and str(thing.__module__).startswith("peeklock."):
                found[f"function {thing.__module__}.{thing.__qualname__}"] += 1
        elif name.startswith(WATCHED) and name not in SPARED:
            found[name] += 1
    return found


class Peer:
    """A client's end, blocking, in bytes."""

    def __init__(self, port: int, carrier: str) -> None:
        self.socket: socket.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(10)
        if "tls" in carrier:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self.framed = "websocket" in carrier
        if self.framed:
            request = (
                "GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
                f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {WEBSOCKET_KEY}\r\n"
                "Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
            )
            self.socket.sendall(request.encode())
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += self.socket.recv(1)
            assert b" 101 " in answer

    def send(self, data: bytes) -> None:
        self.socket.sendall(websocket_frame(data) if self.framed else data)

    def read_to_the_end(self) -> None:
        try:
            while self.socket.recv(65536):
                pass
        except (ConnectionError, ssl.SSLError):
            pass

    def finish(self) -> None:
        """End the stream in order."""
        self.socket.close()

    def reset(self) -> None:
        linger = struct.pack("ii", 1, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.socket.close()


class Scene:
    """A broker in this loop, with a queue, and what is there before a connection."""

    def __init__(self, broker: Broker, clock: MovedClock, carrier: str) -> None:
        self.broker = broker
        self.clock = clock
        self.carrier = carrier
        self.before: Counter[str] = Counter()
        self.weak: list[weakref.ref[Any]] = []
        self.core_changes = False
        """A queue was made: the core is another one than before."""

    async def connect(self, data: bytes = b"", carrier: str | None = None) -> Peer:
        peer = await asyncio.to_thread(Peer, self.broker.amqp_port, carrier or self.carrier)
        if data:
            await asyncio.to_thread(peer.send, data)
        return peer

    async def attached(self, hello: bytes = PLAIN) -> Peer:
        """Connect with a sender that is in the midst of a delivery, a receiver and a pair to `$cbs`."""
        data = hello + begin() + attach(0, Role.SENDER, name="sender")
        data += attach(1, Role.RECEIVER, name="receiver") + flow(1, credit=10)
        data += attach(2, Role.SENDER, name="a", address="$cbs")
        data += attach(3, Role.RECEIVER, name="b", address="$cbs")
        data += attach(4, Role.SENDER, name="c", address="queue/$management")
        data += attach(5, Role.RECEIVER, name="d", address="queue/$management")
        peer = await self.connect(data)
        await self.until(lambda: census()["peeklock.gateway.nodes.requests.ReplyLink"] == 2)
        await asyncio.to_thread(peer.send, transfer(0, 0, bytes(1000), more=True))
        await self.until(lambda: census()["peeklock.amqp.link.Partial"] == 1)
        self.watch()
        return peer

    def watch(self) -> None:
        for connection in self.broker.protocols.connections.values():
            gateway = connection._gateway
            self.weak += map(weakref.ref, (connection, gateway, gateway._connection, gateway._links))

    def tick(self, ms: int) -> None:
        self.clock.moved_ms += ms
        for connection in list(self.broker.protocols.connections.values()):
            connection.tick(self.clock.now_ms())

    async def until(self, what: Callable[[], object], seconds: float = 5.0) -> bool:
        deadline = asyncio.get_running_loop().time() + seconds
        while not what():
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(0.005)
        return True

    async def left(self) -> Counter[str]:
        """Wait for everything to be as it was before; return what is left over."""
        await self.until(lambda: not self._more(), 3.0)
        left = self._more()
        assert left or not [ref for ref in self.weak if ref() is not None]
        return left

    def _more(self) -> Counter[str]:
        more = census() - self.before
        if self.core_changes:
            more = Counter({name: count for name, count in more.items() if "peeklock.broker" not in name})
        return more


Story = Callable[[Scene], Awaitable[None]]


async def by_fin(scene: Scene) -> None:
    (await scene.attached()).finish()


async def by_reset(scene: Scene) -> None:
    (await scene.attached()).reset()


async def by_close(scene: Scene) -> None:
    peer = await scene.attached()
    await asyncio.to_thread(peer.send, frame(0, encode_close(None)))
    await asyncio.to_thread(peer.read_to_the_end)
    peer.finish()


async def by_end_and_detach(scene: Scene) -> None:
    peer = await scene.attached()
    await asyncio.to_thread(peer.send, detach(0) + end() + frame(0, encode_close(None)))
    await asyncio.to_thread(peer.read_to_the_end)
    peer.finish()


async def by_a_protocol_error(scene: Scene) -> None:
    peer = await scene.attached()
    await asyncio.to_thread(peer.send, transfer(99, 0, b"x") + b"\x00\x00\x00\x01\x02\x00\x00\x00")
    await asyncio.to_thread(peer.read_to_the_end)
    peer.finish()


async def by_idleness(scene: Scene) -> None:
    peer = await scene.attached()
    scene.tick(240_001)
    await asyncio.to_thread(peer.read_to_the_end)
    peer.finish()


async def without_a_claim(scene: Scene) -> None:
    data = sasl_and_open() + begin() + attach(0, Role.SENDER, name="a", address="$cbs")
    peer = await scene.connect(data + transfer(0, 0, bytes(1000), more=True))
    await scene.until(lambda: census()["peeklock.amqp.link.Partial"] == 1)
    scene.watch()
    scene.tick(60_001)
    await asyncio.to_thread(peer.read_to_the_end)
    peer.finish()


async def by_a_wrong_key(scene: Scene) -> None:
    peer = await scene.connect(sasl_and_open("PLAIN", b"\0all\0wrong"))
    await asyncio.to_thread(peer.read_to_the_end)
    peer.finish()


async def by_bad_tokens(scene: Scene) -> None:
    data = sasl_and_open() + begin() + attach(0, Role.SENDER, name="a", address="$cbs")
    bad = section(0x74, {"operation": "put-token"}) + section(0x77, None)
    data += b"".join(transfer(0, number, bad, settled=True) for number in range(30))
    peer = await scene.connect(data)
    await asyncio.to_thread(peer.read_to_the_end)
    peer.finish()


async def by_the_end_of_the_entity(scene: Scene) -> None:
    """Only the links are over then."""
    peer = await scene.attached()
    await scene.broker.shard.submit(partial(DeleteEntity, "queue"))
    links = ("SenderEndpoint", "ReceiverEndpoint")
    gone = await scene.until(lambda: not any(name.rpartition(".")[2] in links for name in census()))
    assert gone
    peer.finish()
    await scene.broker.shard.submit(partial(CreateEntity, QueueDescription("queue")))
    scene.core_changes = True


async def by_shutdown(scene: Scene) -> None:
    peer = await scene.attached()
    for connection in list(scene.broker.protocols.connections.values()):
        connection.shut_down(scene.clock.now_ms())
    await asyncio.to_thread(peer.read_to_the_end)
    peer.finish()


async def by_abort(scene: Scene) -> None:
    peer = await scene.attached()
    for connection in list(scene.broker.protocols.connections.values()):
        connection.abort()
    peer.finish()


async def by_a_defect(scene: Scene) -> None:
    peer = await scene.attached()
    on_flow = Session.on_flow

    def failing(*arguments: Any, **named: Any) -> None:
        raise ZeroDivisionError("planted")

    Session.on_flow = failing  # type: ignore[method-assign]  # the planted defect
    logging.disable(logging.ERROR)  # pytest keeps what is logged, and so the frames of the failure
    try:
        await asyncio.to_thread(peer.send, flow(1, credit=1))
        await asyncio.to_thread(peer.read_to_the_end)
    finally:
        logging.disable(logging.NOTSET)
        Session.on_flow = on_flow  # type: ignore[method-assign]  # as it was
    assert scene.broker.defects.count
    peer.finish()


async def while_it_does_not_read(scene: Scene) -> None:
    """What waits to be written goes with it."""
    peer = await scene.attached()
    for connection in scene.broker.protocols.connections.values():
        assert connection._transport is not None
        connection._transport.write(bytes(4_000_000))
    peer.reset()


ENDS: list[Story] = [
    by_fin,
    by_reset,
    by_close,
    by_end_and_detach,
    by_a_protocol_error,
    by_idleness,
    without_a_claim,
    by_a_wrong_key,
    by_bad_tokens,
    by_the_end_of_the_entity,
    by_shutdown,
    by_abort,
    by_a_defect,
    while_it_does_not_read,
]


async def websocket_ended_by_the_peer(scene: Scene) -> None:
    peer = await scene.attached()
    peer.socket.sendall(websocket_frame(struct.pack("!H", 1000), CLOSE))
    await asyncio.to_thread(peer.read_to_the_end)
    peer.finish()


async def websocket_with_text(scene: Scene) -> None:
    peer = await scene.attached()
    peer.socket.sendall(websocket_frame(b"text", TEXT))
    await asyncio.to_thread(peer.read_to_the_end)
    peer.finish()


async def websocket_with_a_bad_frame(scene: Scene) -> None:
    peer = await scene.attached()
    peer.socket.sendall(websocket_frame(b"x", BINARY, rsv=7))
    await asyncio.to_thread(peer.read_to_the_end)
    peer.finish()


async def websocket_with_a_frame_too_large(scene: Scene) -> None:
    peer = await scene.attached()
    peer.socket.sendall(websocket_frame(bytes(2_000_000))[:100])
    await asyncio.to_thread(peer.read_to_the_end)
    peer.finish()


async def websocket_with_half_a_frame(scene: Scene) -> None:
    peer = await scene.attached()
    peer.socket.sendall(websocket_frame(bytes(1000))[:100])
    peer.finish()


WEBSOCKET_ENDS: list[Story] = [
    websocket_ended_by_the_peer,
    websocket_with_text,
    websocket_with_a_bad_frame,
    websocket_with_a_frame_too_large,
    websocket_with_half_a_frame,
]


def http_story(request: bytes, *, reads: bool = True, half: bool = False) -> Story:
    async def story(scene: Scene) -> None:
        carrier = "tls" if "tls" in scene.carrier else "plain"
        peer = await scene.connect(request, carrier)
        if reads:
            await asyncio.to_thread(peer.read_to_the_end)
        elif half:
            await asyncio.to_thread(peer.socket.recv, 1000)
        peer.finish()

    story.__name__ = f"http {request[:40]!r}"
    return story


def with_token(line: str, body: bytes = b"") -> bytes:
    token = generate("http://localhost", DEVELOPMENT_KEY_NAME, DEVELOPMENT_KEY, 4_000_000_000_000)
    kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
    return f"{line} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n{kind}\r\n".encode() + body


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
HTTP_ENDS: list[Story] = [
    http_story(HEALTH + b"Connection: close\r\n\r\n"),
    http_story(HEALTH + b"\r\n", reads=False, half=True),
    http_story(HEALTH + b"\r\n" + HEALTH + b"\r\n", reads=False),
    http_story(HEALTH, reads=False),
    http_story(b"GET /x\r\n\r\n"),
    http_story(b"\0\0\0\0\r\n\r\n"),
    http_story(b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999\r\n\r\n"),
    http_story(b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
    http_story(b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nabc", reads=False),
    http_story(b"GET /q HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
    http_story(with_token("GET /$api/v1/entities/queue/deliveries"), reads=False, half=True),
    http_story(with_token("GET /$api/v1/entities/none/deliveries"), reads=False, half=True),
    http_story(with_token("POST /$api/v1/entities/queue/locks", b'{"wait": 60}'), reads=False),
    http_story(with_token("GET /$api/v1/entities"), reads=False, half=True),
    http_story(b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
]


async def newcomer_that_says_nothing(scene: Scene) -> None:
    sock = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", scene.broker.amqp_port))
    await scene.until(lambda: census()["peeklock.server.net.listener._Newcomer"] == 1)
    sock.close()


async def newcomer_that_is_too_late(scene: Scene) -> None:
    sock = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", scene.broker.amqp_port))
    await scene.until(lambda: census()["peeklock.server.net.listener._Newcomer"] == 1)
    await asyncio.to_thread(sock.recv, 1)
    sock.close()


def tls_story(data: bytes, name: str, *, reads: bool = True) -> Story:
    async def story(scene: Scene) -> None:
        sock = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", scene.broker.amqp_port))
        sock.settimeout(10)
        await asyncio.to_thread(sock.sendall, data)
        if reads:
            try:
                while await asyncio.to_thread(sock.recv, 1000):
                    pass
            except ConnectionError:
                pass
        else:
            await scene.until(lambda: census()["peeklock.server.net.listener._Newcomer"] == 1)
        sock.close()

    story.__name__ = name
    return story


async def tls_client_that_does_not_trust(scene: Scene) -> None:
    def shake() -> None:
        sock = socket.create_connection(("127.0.0.1", scene.broker.amqp_port))
        with pytest.raises(ssl.SSLError):
            ssl.create_default_context().wrap_socket(sock, server_hostname="localhost")
        sock.close()

    await asyncio.to_thread(shake)


async def tls_and_then_nothing(scene: Scene) -> None:
    (await scene.connect(carrier="tls")).finish()


HELLO = b"\x16\x03\x01\x00\x10" + bytes(16)
NEWCOMER_ENDS: list[Story] = [
    newcomer_that_says_nothing,
    newcomer_that_is_too_late,
    tls_story(HELLO, "tls garbage"),
    tls_story(HELLO[:3], "tls half a record", reads=False),
    tls_story(HELLO[:3], "tls too late"),
    tls_client_that_does_not_trust,
    tls_and_then_nothing,
]


def play(loop: str, carrier: str, stories: list[Story]) -> dict[str, Any]:
    """Run each story with the collector off; return what each has left behind."""
    left: dict[str, Any] = {}

    async def run() -> None:
        clock = MovedClock()
        settings = Settings(None, None, "127.0.0.1", 0, 0, "memory", None, None, "standard", None)
        broker = Broker(settings, Authority([SasRule(KEY_NAME, KEY)]), clock=clock)
        await broker.start()
        await broker.shard.submit(partial(CreateEntity, QueueDescription("queue")))
        gc.collect()
        gc.freeze()  # what is there already is no matter
        scene = Scene(broker, clock, carrier)
        for story in stories:
            await story(scene)  # for what is made once
            await scene.until(lambda: not broker.protocols.connections)
            await asyncio.sleep(0.05)
            gc.collect()
            scene.before = census()
            scene.weak.clear()
            scene.core_changes = False
            await story(scene)
            remains = await scene.left()
            if remains:
                left[story.__name__] = dict(remains)
        broker.ask_to_stop()
        await broker.stopped()

    runner = asyncio.Runner(loop_factory=LOOPS[loop])
    gc.disable()
    try:
        with runner:
            runner.run(run())
    finally:
        gc.enable()
        gc.unfreeze()
    return left


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the deadlines of the ends short."""
    monkeypatch.setattr(ending, "LINGER_S", 0.05)
    monkeypatch.setattr(http, "LINGER_S", 0.05)
    monkeypatch.setattr(listener, "FIRST_BYTES_S_MAX", 0.5)
    monkeypatch.setattr(websocket, "CLOSE_S_MAX", 0.05)


@pytest.mark.parametrize(("loop", "carrier"), COMBINATIONS)
def test_every_end_of_an_amqp_connection_frees_it(loop: str, carrier: str) -> None:
    """Req: R-05."""
    stories = ENDS + (WEBSOCKET_ENDS if "websocket" in carrier else [])
    assert play(loop, carrier, stories) == {}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("carrier", ["plain", "tls"])
def test_every_end_of_an_http_connection_frees_it(loop: str, carrier: str) -> None:
    """Req: R-05."""
    assert play(loop, carrier, HTTP_ENDS) == {}


@pytest.mark.parametrize("loop", LOOPS)
def test_every_end_of_a_newcomer_frees_it(loop: str) -> None:
    """Req: R-05."""
    assert play(loop, "plain", NEWCOMER_ENDS) == {}
