"""On which addresses a listener listens, whom it refuses, and how it bears strangers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import pytest
import uvloop

from peeklock.server.descriptors import raise_descriptor_limit
from peeklock.server.net import listener as listening
from peeklock.server.net.listener import AMQP_TLS_HEADER, Listener
from peeklock.server.net.sockets import is_loopback_address
from tests.server.contexts import server_context

ELSEWHERE = "192.0.2.1"
"""An address that no machine has. Source: RFC 5737."""


def play(story: Callable[[Listener], Awaitable[None]]) -> None:
    async def run() -> None:
        listener = Listener(asyncio.Protocol, asyncio.Protocol, _no_tls)
        try:
            await story(listener)
        finally:
            listener.close()

    asyncio.run(run())


def _no_tls() -> Any:
    raise AssertionError("nobody spoke TLS")


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let every name stand for these addresses."""

    def let(*addresses: str) -> None:
        def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
            families = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in addresses]
            return [
                (family, socket.SOCK_STREAM, 6, "", (address, port))
                for family, address in zip(families, addresses, strict=True)
            ]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    return let


def answers(address: str, port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((address, port)) == 0


@pytest.mark.parametrize("asked", [0, None])
def test_every_address_of_a_name_is_listened_on_with_one_port(
    resolve: Callable[..., None], asked: int | None
) -> None:
    resolve("127.0.0.1", "127.0.0.2")
    if asked is None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            asked = free.getsockname()[1]

    async def story(listener: Listener) -> None:
        port = listener.bind("two.example", asked)
        assert asked in (0, port)
        assert answers("127.0.0.1", port)
        assert answers("127.0.0.2", port)
        assert not answers("127.0.0.3", port)

    play(story)


def test_an_address_that_this_machine_does_not_have_is_left_out(resolve: Callable[..., None]) -> None:
    resolve(ELSEWHERE, "127.0.0.1")

    async def story(listener: Listener) -> None:
        assert answers("127.0.0.1", listener.bind("half.example", 0))

    play(story)


def test_a_name_none_of_whose_addresses_is_ours_is_refused(resolve: Callable[..., None]) -> None:
    resolve(ELSEWHERE)

    async def story(listener: Listener) -> None:
        with pytest.raises(OSError, match="assign requested address"):
            listener.bind("far.example", 0)

    play(story)


def test_a_port_taken_on_one_address_leaves_none_open(resolve: Callable[..., None]) -> None:
    resolve("127.0.0.8", "127.0.0.9")  # addresses of this test: nobody else has the port there

    async def story(listener: Listener) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.9", 0))
            other.listen()
            port = other.getsockname()[1]
            with pytest.raises(OSError, match="in use"):
                listener.bind("two.example", port)
            assert not answers("127.0.0.8", port)

    play(story)


class Echo(asyncio.Protocol):
    """Says what it was taken for, and keeps what it got."""

    def __init__(self, kind: str, made: list[Echo]) -> None:
        self.kind = kind
        made.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(self.kind.encode() + b":" + data)


async def until(what: Callable[[], object]) -> None:
    """Wait for what the other end of a connection, in this loop, has to do."""
    while True:
        if what():
            return
        await asyncio.sleep(0)


class Scene:
    """A listener on 127.0.0.1 whose protocols echo."""

    def __init__(self, **settings: Any) -> None:
        self.made: list[Echo] = []
        self.lines: list[tuple[str, Mapping[str, Any]]] = []
        self.tls = server_context(None)
        self.listener = Listener(
            lambda: Echo("amqp", self.made),
            lambda: Echo("http", self.made),
            lambda: self.tls,
            note=lambda event, fields: self.lines.append((event, fields)),
            **settings,
        )
        self.port = self.listener.bind("127.0.0.1", 0)

    def events(self) -> list[str]:
        return [event for event, _ in self.lines]

    async def open(self, **settings: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, **settings)

    async def say(self, data: bytes) -> bytes:
        """Send bytes on a connection of its own, and read to its end."""
        reader, writer = await self.open()
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(reader.read(), 10)
        return b"reset"


def play_scene(
    loop: Callable[[], asyncio.AbstractEventLoop],
    story: Callable[[Scene], Awaitable[None]],
    **settings: Any,
) -> None:
    async def run() -> None:
        scene = Scene(**settings)
        try:
            await asyncio.wait_for(story(scene), 20)
        finally:
            scene.listener.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


either_loop = pytest.mark.parametrize(
    "loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
Loop = Callable[[], asyncio.AbstractEventLoop]


def blind(latest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = latest
    if latest < ssl.TLSVersion.TLSv1_2:
        context.minimum_version = latest
        context.set_ciphers("ALL:@SECLEVEL=0")
    return context


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    client = blind().wrap_bio(ssl.MemoryBIO(), outgoing)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@either_loop
def test_one_port_takes_every_protocol_with_and_without_tls(loop: Loop) -> None:
    """Req: T-09"""

    async def story(scene: Scene) -> None:
        for context in (None, blind(), blind(ssl.TLSVersion.TLSv1_2)):
            for data, answer in ((b"AMQP", b"amqp:AMQP"), (b"GET /", b"http:GET /")):
                reader, writer = await scene.open(ssl=context)
                writer.write(data)
                assert await reader.readexactly(len(answer)) == answer
                writer.transport.abort()
        assert scene.lines == []
        assert set(scene.listener.figures().values()) == {0}

    play_scene(loop, story)


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.0.2.1", False),
        ("0.0.0.0", False),
        ("::ffff:192.0.2.1", False),
        ("fe80::1%eth0", False),
        ("2001:db8::1", False),
    ],
)
def test_which_addresses_of_ours_nobody_else_can_reach(address: str, loopback: bool) -> None:
    assert is_loopback_address(address) is loopback


@pytest.fixture
def from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every connection for one that came in by an address which others can reach."""
    monkeypatch.setattr(listening, "is_loopback_address", lambda address: False)


@either_loop
@pytest.mark.usefixtures("from_elsewhere")
def test_plain_text_from_other_machines_is_refused_in_the_peers_own_protocol(loop: Loop) -> None:
    """Req: R-04"""

    async def story(scene: Scene) -> None:
        assert await scene.say(b"AMQP\x03\x01\x00\x00") == AMQP_TLS_HEADER
        for request in (
            b"GET /$Resources/queues HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /$servicebus/websocket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n",
            b"PUT /q HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n" + bytes(900_000),
        ):
            answer = await scene.say(request)
            assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\n")
            assert answer.endswith(b'use https"}\n')
        assert scene.listener.figures()["refused_plaintext"] == 4
        assert scene.events() == ["a connection without TLS was refused"] * 4
        reader, writer = await scene.open(ssl=blind())
        writer.write(b"AMQP")
        assert await reader.readexactly(9) == b"amqp:AMQP", "with TLS it is taken"
        writer.transport.abort()
        assert [echo.kind for echo in scene.made] == ["amqp"], "nobody else got so far"

    play_scene(loop, story)


@either_loop
@pytest.mark.usefixtures("from_elsewhere")
def test_plain_text_from_other_machines_is_taken_when_that_was_asked_for(loop: Loop) -> None:
    async def story(scene: Scene) -> None:
        reader, writer = await scene.open()
        writer.write(b"AMQP")
        assert await reader.readexactly(9) == b"amqp:AMQP"
        writer.transport.abort()

    play_scene(loop, story, allow_plaintext=True)


def other_addresses() -> list[str]:
    """Find addresses of this machine that others can reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent: it only chooses the address to send from
        except OSError:
            return []
        return [probe.getsockname()[0]]


@pytest.mark.skipif(not other_addresses(), reason="this machine has no address but loopback")
@either_loop
def test_the_address_that_a_connection_came_in_by_decides(loop: Loop) -> None:
    async def story(scene: Scene) -> None:
        port = scene.listener.bind("0.0.0.0", 0)
        for address, answer in ((other_addresses()[0], AMQP_TLS_HEADER), ("127.0.0.1", b"amqp:AMQP")):
            reader, writer = await asyncio.open_connection(address, port)
            writer.write(b"AMQP")
            assert await reader.readexactly(len(answer)) == answer
            writer.transport.abort()

    play_scene(loop, story)


@either_loop
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")  # old versions are what is tested
def test_a_client_of_an_old_version_is_told_so(loop: Loop, version: ssl.TLSVersion) -> None:
    async def story(scene: Scene) -> None:
        with pytest.raises(ssl.SSLError, match=r"(?i)alert protocol version"):
            await scene.open(ssl=blind(version))
        assert scene.listener.figures()["failed_handshakes"] == 1
        assert scene.lines[0][0] == "a TLS hand-shake failed"
        assert "unsupported protocol" in scene.lines[0][1]["reason"]

    play_scene(loop, story)


@either_loop
def test_a_client_without_a_common_cipher_is_told_so(loop: Loop) -> None:
    async def story(scene: Scene) -> None:
        client = blind(ssl.TLSVersion.TLSv1_2)
        client.set_ciphers("AES128-SHA")
        with pytest.raises(ssl.SSLError, match=r"(?i)handshake failure"):
            await scene.open(ssl=client)

    play_scene(loop, story)


@either_loop
def test_a_client_that_does_not_trust_us_leaves_a_line_that_says_so(loop: Loop) -> None:
    def distrust(port: int) -> None:
        plain = socket.create_connection(("127.0.0.1", port), timeout=10)
        ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")

    async def story(scene: Scene) -> None:
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(distrust, scene.port)
        await until(lambda: scene.lines)
        event, fields = scene.lines[0]
        assert event == "a TLS hand-shake failed"
        assert "unknown ca" in fields["reason"]
        assert fields["peer"].startswith("127.0.0.1:")
        assert fields["do"].startswith("make the client trust the authority, as `peeklock ca` shows")
        assert "--tls-name" in fields["do"], "OpenSSL's alert does not tell a wrong name from no trust"

    play_scene(loop, story)


@either_loop
def test_a_client_that_goes_in_mid_hand_shake_leaves_a_line(loop: Loop) -> None:
    async def story(scene: Scene) -> None:
        _, writer = await scene.open()
        writer.write(client_hello())
        writer.close()
        await until(lambda: scene.lines)
        assert scene.lines[0][1]["reason"] == "the client ended the connection"

    play_scene(loop, story)


NOISE = random.Random(5)


@either_loop
@pytest.mark.parametrize(
    "data",
    [
        b"\x16" + NOISE.randbytes(500),
        b"\x16\x03\x01\x00\x05" + NOISE.randbytes(5),
        b"\x16\x03\x01\xff\xff" + NOISE.randbytes(200_000),
        b"\x16\x03\x01" + client_hello()[3:60] + NOISE.randbytes(2000),
        b"\x80\x2e\x01\x03\x01" + NOISE.randbytes(43),
        bytes([0x16, 3, 0, 0, 4, 1, 0, 0, 0]),
    ],
    ids=["noise", "short record", "long record", "altered hello", "SSL 2 hello", "SSL 3 record"],
)
def test_tls_garbage_is_answered_by_an_alert(loop: Loop, data: bytes) -> None:
    """Req: R-05"""

    async def story(scene: Scene) -> None:
        answer = await scene.say(data)
        assert answer == b"reset" or (answer[0], answer[5], len(answer)) == (0x15, 2, 7)
        assert scene.made == []

    play_scene(loop, story)


@either_loop
def test_a_pair_that_cannot_be_made_is_told_to_tls_clients_and_the_next_one_tries_again(loop: Loop) -> None:
    async def story(scene: Scene) -> None:
        good, tries = scene.tls, [OSError("the file is damaged")]

        def tls() -> ssl.SSLContext:
            if tries:
                raise tries.pop()
            return good

        scene.listener._tls = tls
        with pytest.raises(ssl.SSLError, match=r"(?i)alert internal error"):
            await scene.open(ssl=blind())
        assert scene.lines[0][1]["reason"] == "the file is damaged"
        reader, writer = await scene.open(ssl=blind())
        writer.write(b"AMQP")
        assert await reader.readexactly(9) == b"amqp:AMQP"
        writer.transport.abort()

    play_scene(loop, story)


@either_loop
@pytest.mark.parametrize("stage", ["silent", "half a hand-shake", "silent within TLS", "refused and silent"])
def test_a_connection_that_does_not_say_what_it_wants_is_ended_in_time(
    loop: Loop, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: R-05"""
    monkeypatch.setattr(listening, "FIRST_BYTES_S_MAX", 0.2)
    monkeypatch.setattr(listening, "LINGER_S", 0.2)
    if stage == "refused and silent":
        monkeypatch.setattr(listening, "is_loopback_address", lambda address: False)

    async def story(scene: Scene) -> None:
        reader, writer = await scene.open(ssl=blind() if stage == "silent within TLS" else None)
        if stage == "half a hand-shake":
            writer.write(client_hello()[:50])
        if stage == "refused and silent":
            writer.write(b"A")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() in (b"", AMQP_TLS_HEADER)
        await until(lambda: not scene.listener._newcomers)
        assert scene.made == []
        writer.transport.abort()

    play_scene(loop, story)


@either_loop
def test_too_many_newcomers_cost_the_oldest_its_place(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "NEWCOMERS_MAX", 3)

    async def story(scene: Scene) -> None:
        silent = [await scene.open()]
        silent.append(await scene.open())
        silent[1][1].write(client_hello()[:50])
        silent.append(await scene.open(ssl=blind()))
        for _, writer in silent[:3]:
            reader, late = await scene.open()
            with contextlib.suppress(ConnectionError):
                assert await silent.pop(0)[0].read() == b""
            writer.transport.abort()
            silent.append((reader, late))
        assert scene.listener.figures()["dropped_newcomers"] == 3
        silent[0][1].write(b"AMQP")
        assert await silent[0][0].readexactly(9) == b"amqp:AMQP", "who is left is served"
        await scene.open()
        assert len(scene.listener._newcomers) == 3, "who has spoken is none any more"

    play_scene(loop, story)


@either_loop
@pytest.mark.parametrize("turns", range(3))
def test_a_newcomer_that_is_dropped_while_its_transport_is_made_chooses_no_protocol(
    loop: Loop, turns: int
) -> None:
    """Req: R-05. uvloop closed the transport without a word to the protocol that its first bytes had chosen:
    the stop of the broker then failed at the first use of it."""

    async def story(scene: Scene) -> None:
        reader, writer = await scene.open()
        writer.write(b"AMQP")
        await until(lambda: any(newcomer._connecting for newcomer in scene.listener._newcomers))
        for _ in range(turns):
            await asyncio.sleep(0)
        for newcomer in list(scene.listener._newcomers):
            newcomer.drop()
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            assert scene.made == []
        writer.transport.abort()

    play_scene(loop, story)


@either_loop
def test_without_file_descriptors_a_newcomer_makes_room_and_open_connections_go_on(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(scene: Scene) -> None:
        reader, writer = await scene.open()
        writer.write(b"AMQP")
        await reader.readexactly(9)
        silent, _ = await scene.open()
        await until(lambda: scene.listener._newcomers)
        scene.listener._descriptors_max = 0
        late, late_writer = await scene.open()
        with contextlib.suppress(ConnectionError):
            assert await silent.read() == b"", "the newcomer made room"
        late_writer.write(b"AMQP")
        assert await late.readexactly(9) == b"amqp:AMQP"
        last, _ = await scene.open()
        with contextlib.suppress(ConnectionError):
            assert await last.read() == b"", "nobody is left to make room"
        assert caplog.messages == ["no further connection is accepted now; open ones continue"]
        writer.write(b"AMQP")
        assert await reader.readexactly(9) == b"amqp:AMQP"
        scene.listener._descriptors_max = 1 << 20
        later, later_writer = await scene.open()
        later_writer.write(b"AMQP")
        assert await later.readexactly(9) == b"amqp:AMQP", "after a second it goes on"

    play_scene(loop, story)


def test_an_accept_that_fails_for_want_of_descriptors_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Full(socket.socket):
        """A listening socket of a process that is out of descriptors."""

        def accept(self) -> Any:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def story(scene: Scene) -> None:
        with Full() as full:
            for _ in range(3):
                scene.listener._accept(full)
        (record,) = caplog.records
        assert record.message == "no further connection is accepted now; open ones continue"
        assert vars(record)["fields"]["reason"] == "[Errno 24] Too many open files"

    play_scene(asyncio.new_event_loop, story)


def test_the_limit_of_open_files_is_raised_to_what_is_allowed() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_address_without_patience_waits_or_is_turned_away() -> None:
    """Req: R-04, R-05. What it has sent meanwhile is read after its wait; the others do not wait."""

    async def run() -> None:
        waits: list[float | None] = [0.05, None, 0.0]
        began: asyncio.Queue[float] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        class Http(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                began.put_nowait(loop.time())

        listener = Listener(asyncio.Protocol, Http, _no_tls, wait_s=lambda _: waits.pop(0))
        port = listener.bind("127.0.0.1", 0)
        started = loop.time()
        clients = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /")
            clients.append((reader, writer))
        assert await clients[1][0].read() == b""
        assert listener.figures()["turned_away"] == 1
        assert await began.get() - started < await began.get() - started
        assert loop.time() - started >= 0.05
        for _, writer in clients:
            writer.close()
        listener.close()

    asyncio.run(asyncio.wait_for(run(), 10))


def test_one_that_waits_is_forgotten_when_the_listener_closes() -> None:
    async def run() -> None:
        listener = Listener(asyncio.Protocol, asyncio.Protocol, _no_tls, wait_s=lambda _: 0.05)
        port = listener.bind("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.01)
        listener.close()
        assert await reader.read() == b""
        writer.close()
        await asyncio.sleep(0.06)

    asyncio.run(asyncio.wait_for(run(), 10))


@either_loop
def test_a_storm_of_tls_clients_waits_for_places_and_all_are_served(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart, when all come back at once."""
    monkeypatch.setattr(listening, "HANDSHAKES_MAX", 3)

    async def story(scene: Scene) -> None:
        async def client() -> bytes:
            reader, writer = await scene.open(ssl=blind())
            writer.write(b"AMQP")
            answer = await reader.readexactly(9)
            writer.transport.abort()
            return answer

        assert await asyncio.gather(*(client() for _ in range(40))) == [b"amqp:AMQP"] * 40
        assert set(scene.listener.figures().values()) == {0}
        assert not scene.listener._encrypting
        assert not scene.listener._waiting

    play_scene(loop, story)


@either_loop
@pytest.mark.parametrize("stalled", ["half a hand-shake", "silent within TLS"])
def test_who_stalls_within_tls_makes_place_for_those_who_wait(
    loop: Loop, stalled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: R-05"""
    monkeypatch.setattr(listening, "HANDSHAKES_MAX", 3)
    monkeypatch.setattr(listening, "HANDSHAKE_S_PRESSED", 0.1)

    async def story(scene: Scene) -> None:
        silent = []
        for _ in range(3):
            if stalled == "half a hand-shake":
                silent.append(await scene.open())
                silent[-1][1].write(client_hello()[:50])
            else:
                silent.append(await scene.open(ssl=blind()))
        await until(lambda: len(scene.listener._encrypting) == 3)
        await asyncio.sleep(0.15)
        assert scene.listener.figures()["dropped_newcomers"] == 0, "nobody waits"
        late = [await scene.open(ssl=blind()) for _ in range(2)]
        for reader, writer in late:
            writer.write(b"AMQP")
            assert await reader.readexactly(9) == b"amqp:AMQP"
        assert 1 <= scene.listener.figures()["dropped_newcomers"] <= 3
        for _, writer in [*silent, *late]:
            writer.transport.abort()
        await until(lambda: not scene.listener._newcomers)
        assert not scene.listener._encrypting

    play_scene(loop, story)
