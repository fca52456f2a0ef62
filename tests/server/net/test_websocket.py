"""AMQP over WebSocket: the upgrade, frames in every form, and what a peer may do wrong."""

from __future__ import annotations

import asyncio
import base64
import itertools
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peeklock.server.net import websocket
from peeklock.server.net.websocket import FRAME_BYTES_MAX, FRAMES_A_TURN_MAX, WebSocketProtocol
from tests.admin.serving import World
from tests.server.contexts import server_context
from tests.server.stepping import Clock, Insatiable, stepped_turns

TLS = server_context(None)
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPTED = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # both are the example of RFC 6455 1.3
CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


def frame(
    payload: bytes = b"",
    opcode: int = BINARY,
    *,
    fin: bool = True,
    rsv: int = 0,
    key: bytes | None = b"\1\2\3\4",
) -> bytes:
    """Make a frame as a client does, or as none should: `key` None leaves the mask out."""
    size = len(payload)
    mask = 0 if key is None else 0x80
    head = bytes([fin << 7 | rsv << 4 | opcode])
    if size < 126:
        head += bytes([mask | size])
    elif size < 65536:
        head += struct.pack("!BH", mask | 126, size)
    else:
        head += struct.pack("!BQ", mask | 127, size)
    if key is None:
        return head + payload
    return head + key + bytes(a ^ b for a, b in zip(payload, itertools.cycle(key), strict=False))


def unframe(data: bytes) -> list[tuple[int, bytes]]:
    """Take a server's frames apart, which are whole and not masked."""
    found = []
    while data:
        opcode, size, at = data[0], data[1], 2
        assert opcode & 0x80, "a fragment"
        assert size < 128, "masked"
        if size == 126:
            size, at = struct.unpack("!H", data[2:4])[0], 4
        elif size == 127:
            size, at = struct.unpack("!Q", data[2:10])[0], 10
        found.append((opcode & 15, data[at : at + size]))
        assert len(found[-1][1]) == size, "cut off"
        data = data[at + size :]
    return found


def close_code(payload: bytes) -> int:
    return int(struct.unpack("!H", payload[:2])[0])


class Carried(asyncio.Protocol):
    """What a WebSocket carries in these tests: it keeps what comes, and says it again if asked to."""

    def __init__(self, *, echo: bool = False, last_words: bytes = b"") -> None:
        self.received = b""
        self.events: list[str] = []
        self.lost = asyncio.Event()
        self.paused = asyncio.Event()
        self._echo = echo
        self._last_words = last_words

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        assert isinstance(data, bytes)
        self.received += data
        if self._echo:
            self.transport.write(data)

    def eof_received(self) -> bool:
        self.events.append("eof")
        self.transport.write(self._last_words)
        return False

    def pause_writing(self) -> None:
        self.events.append("pause")
        self.paused.set()

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.lost.set()


class Client:
    """A client's end of a WebSocket on a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def upgrade(self, path: str = "/$servicebus/websocket", early: bytes = b"") -> dict[str, str]:
        self.writer.write(request(path) + early)
        status, headers, _ = await self.answer()
        assert status == 101
        return headers

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        raw = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status_line, *lines = raw.split("\r\n")[:-2]
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(status_line.split(" ")[1]), headers, body

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def receive(self) -> tuple[int, bytes]:
        head = await self.reader.readexactly(2)
        size = head[1]
        if size >= 126:
            more = await self.reader.readexactly(2 if size == 126 else 8)
            size = int.from_bytes(more, "big")
        return head[0] & 15, await self.reader.readexactly(size)

    async def ended(self) -> bytes:
        """What still came until the server closed."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""


def request(path: str = "/$servicebus/websocket", **changes: str | None) -> bytes:
    """Make an upgrade; `changes` are headers by name with `_` for `-`, None leaves one out."""
    headers: dict[str, str | None] = {
        "Host": "localhost",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": KEY,
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "AMQPWSB10",
    }
    method, version = changes.pop("method", "GET"), changes.pop("version", "1.1")
    headers.update({name.replace("_", "-"): value for name, value in changes.items()})
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([f"{method} {path} HTTP/{version}", *lines, "", ""]).encode()


Story = Callable[[World, Client], Awaitable[None]]


def play(story: Story, carried: Callable[[], Carried] = Carried, *, tls: bool = False) -> None:
    """Run a story against a listening world, within ten seconds."""

    async def run() -> None:
        world = World()
        made: list[Carried] = []

        def amqp() -> Carried:
            made.append(carried())
            return made[-1]

        world.amqp = amqp
        world.carried = made  # type: ignore[attr-defined]  # for the story
        listener, port = world.listen(TLS)
        context = None
        if tls:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        async with asyncio.timeout(10):
            client = Client(*await asyncio.open_connection("127.0.0.1", port, ssl=context))
            try:
                await story(world, client)
            finally:
                client.writer.close()
                listener.close()

    asyncio.run(run())


def carried_by(world: World) -> Carried:
    return cast(Carried, world.carried[0])  # type: ignore[attr-defined]  # set by `play`


# The upgrade


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize(
    "path",
    [
        "/$servicebus/websocket",
        "/$servicebus/websocket/",
        "/$ServiceBus/WebSocket?sb-hc-action=connect",
        "/%24servicebus/websocket",
        "http://proxy.example/$servicebus/websocket/",
    ],
)
def test_an_upgrade_is_taken_at_the_path_in_every_form(path: str, tls: bool) -> None:
    """Req: T-09. Source: wire contract 1.1; RFC 6455 4.2.2."""

    async def story(world: World, client: Client) -> None:
        headers = await client.upgrade(path)
        assert headers["sec-websocket-accept"] == ACCEPTED
        assert headers["sec-websocket-protocol"] == "AMQPWSB10"
        assert headers["upgrade"] == "websocket"
        assert "sec-websocket-extensions" not in headers
        client.send(frame(b"AMQP"), frame(b"\x00\x01"))
        assert await client.receive() == (BINARY, b"AMQP\x00\x01")

    play(story, lambda: Carried(echo=True), tls=tls)


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ("amqp", "amqp"),
        ("chat, AMQPWSB10", "AMQPWSB10"),
        ("amqp,AMQPWSB10", "AMQPWSB10"),
        ("amqpwsb10", "AMQPWSB10"),
    ],
)
def test_the_subprotocol_is_one_that_was_offered(offered: str, chosen: str) -> None:
    """Req: T-09. Source: wire contract 1.1; OASIS AMQP WebSocket Binding 2.1."""

    async def story(world: World, client: Client) -> None:
        client.send(
            request(Sec_WebSocket_Protocol=offered, Connection="keep-alive, Upgrade", Upgrade="WebSocket")
        )
        status, headers, _ = await client.answer()
        assert (status, headers["sec-websocket-protocol"]) == (101, chosen)

    play(story)


def test_what_a_client_sends_with_its_request_is_not_lost() -> None:
    async def story(world: World, client: Client) -> None:
        await client.upgrade(early=frame(b"early") + frame(b" bird")[:5])
        client.send(frame(b" bird")[5:])
        assert await client.receive() == (BINARY, b"early")
        assert await client.receive() == (BINARY, b" bird")

    play(story, lambda: Carried(echo=True))


def test_an_upgrade_may_follow_other_requests_on_its_connection() -> None:
    async def story(world: World, client: Client) -> None:
        client.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", request(Sec_WebSocket_Key=None), request())
        assert [(await client.answer())[0] for _ in range(3)] == [200, 400, 101]

    play(story)


@pytest.mark.parametrize(
    ("changes", "status", "text", "header"),
    [
        ({"Sec_WebSocket_Protocol": None}, 400, b"AMQPWSB10", None),
        ({"Sec_WebSocket_Protocol": "mqtt"}, 400, b"AMQPWSB10", None),
        ({"Sec_WebSocket_Version": "8"}, 426, b"13", ("sec-websocket-version", "13")),
        ({"Sec_WebSocket_Version": None}, 426, b"13", ("sec-websocket-version", "13")),
        ({"Sec_WebSocket_Key": None}, 400, b"Sec-WebSocket-Key", None),
        ({"Sec_WebSocket_Key": "short"}, 400, b"Sec-WebSocket-Key", None),
        ({"Sec_WebSocket_Key": base64.b64encode(bytes(17)).decode()}, 400, b"Sec-WebSocket-Key", None),
        ({"Sec_WebSocket_Key": f"{KEY}\r\nSec-WebSocket-Key: {KEY}"}, 400, b"Sec-WebSocket-Key", None),
        ({"Sec_WebSocket_Key": "\xff\xfe"}, 400, b"Sec-WebSocket-Key", None),
        ({"Upgrade": None}, 426, b"Upgrade: websocket", ("upgrade", "websocket")),
        ({"Upgrade": "h2c"}, 426, b"Upgrade: websocket", ("upgrade", "websocket")),
        ({"Connection": "keep-alive"}, 426, b"Connection: Upgrade", ("upgrade", "websocket")),
        ({"method": "POST", "Content_Length": "0"}, 405, b"GET", ("allow", "GET")),
        ({"version": "1.0"}, 400, b"HTTP/1.1", None),
        ({"Content_Length": "3"}, 400, b"no body", None),
        ({"path": "/orders"}, 404, b"/$servicebus/websocket", None),
    ],
)
def test_an_upgrade_that_is_not_one_is_refused_in_words(
    changes: dict[str, str], status: int, text: bytes, header: tuple[str, str] | None
) -> None:
    """Req: R-05. Source: RFC 6455 4.2.1, RFC 9110 15.5.22."""

    async def story(world: World, client: Client) -> None:
        client.send(request(**changes), b"abc" if changes.get("Content_Length") == "3" else b"")
        found, headers, body = await client.answer()
        assert found == status
        assert text in body
        assert headers["content-type"] == "text/plain"
        assert header is None or headers[header[0]].lower() == header[1].lower()
        assert [fields["status"] for event, fields in world.logged] == [status]
        assert world.commands == []

    play(story)


# Frames


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reading = True
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def can_write_eof(self) -> bool:
        return False


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, bytes, list[int]]:
    """Bytes, the same in frames and fragments with pings between, and where reads cut those."""
    payload = draw(st.binary(max_size=400))
    cuts = sorted(draw(st.lists(st.integers(0, len(payload)), max_size=12)))
    pieces = [payload[a:b] for a, b in itertools.pairwise([0, *cuts, len(payload)])]
    wire = b""
    first = True
    for number, piece in enumerate(pieces):
        last = number == len(pieces) - 1 or draw(st.booleans())
        key = draw(st.binary(min_size=4, max_size=4))
        wire += frame(piece, BINARY if first else CONT, fin=last, key=key)
        first = last
        if draw(st.integers(0, 4)) == 0:
            wire += frame(draw(st.binary(max_size=5)), draw(st.sampled_from([PING, PONG])))
    reads = sorted(draw(st.lists(st.integers(0, len(wire)), max_size=12)))
    return payload, wire, reads


@given(streams())
@settings(max_examples=300, deadline=None)
def test_however_bytes_are_split_into_frames_fragments_and_reads_they_are_the_same(
    stream: tuple[bytes, bytes, list[int]],
) -> None:
    """Req: T-09. Source: wire contract 1.1: frame boundaries carry no meaning."""
    payload, wire, cuts = stream

    async def test() -> None:
        carried, transport = Carried(), Wire()
        protocol = WebSocketProtocol(
            carried, stepped_turns(Clock()), lambda event, fields: pytest.fail(event)
        )
        protocol.connection_made(transport)
        for a, b in itertools.pairwise([0, *cuts, len(wire)]):
            if a < b:
                protocol.data_received(wire[a:b])
        assert carried.received == payload
        assert carried.events == ["made"]
        assert all(opcode == PONG for opcode, _ in unframe(transport.written))
        protocol.connection_lost(None)

    asyncio.run(test())


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 1_100_000])
def test_each_write_is_one_binary_frame(size: int) -> None:
    async def test() -> None:
        carried, transport = Carried(), Wire()
        WebSocketProtocol(carried, stepped_turns(Clock()), lambda event, fields: None).connection_made(
            transport
        )
        carried.transport.write(bytes(size))
        carried.transport.write(b"next")
        expected = [(BINARY, bytes(size))] if size else []
        assert unframe(transport.written) == [*expected, (BINARY, b"next")]
        assert carried.transport.can_write_eof()  # with a close frame

    asyncio.run(test())


def test_a_ping_is_answered_with_its_own_bytes_also_between_fragments() -> None:
    async def story(world: World, client: Client) -> None:
        await client.upgrade()
        client.send(frame(b"a", fin=False), frame(b"there?", PING), frame(b"b", CONT))
        assert await client.receive() == (PONG, b"there?")
        client.send(frame(b"", PING))
        assert await client.receive() == (PONG, b"")
        assert carried_by(world).received == b"ab"

    play(story)


def test_a_frame_of_the_largest_size_is_read_and_the_mask_may_be_zero() -> None:
    """Req: R-05. Byte by byte past the limit is in the table below."""

    async def story(world: World, client: Client) -> None:
        await client.upgrade()
        client.send(frame(bytes(FRAME_BYTES_MAX), key=bytes(4)), frame(b"", PING))
        assert await client.receive() == (PONG, b"")
        assert carried_by(world).received == bytes(FRAME_BYTES_MAX)

    play(story)


def test_what_is_carried_can_have_the_peer_wait() -> None:
    """Req: T-08."""

    async def test() -> None:
        carried, transport = Carried(), Wire()
        protocol = WebSocketProtocol(carried, stepped_turns(Clock()), lambda event, fields: None)
        protocol.connection_made(transport)
        carried.transport.pause_reading()
        assert not bool(transport.reading)  # bool(): else mypy takes the later one for impossible
        protocol.pause_writing()
        carried.transport.resume_reading()
        assert not bool(transport.reading)  # the output is full: pings would be answered into memory
        protocol.resume_writing()
        assert transport.reading
        assert carried.events == ["made", "pause", "resume"]

    asyncio.run(test())


@pytest.mark.parametrize("cut_short", [False, True])
def test_a_read_of_very_many_frames_leaves_turns_to_others(cut_short: bool) -> None:
    """Req: R-05, T-08. An end of the stream in the midst of it loses nothing."""

    async def test() -> None:
        carried, transport = Carried(), Wire()
        protocol = WebSocketProtocol(carried, stepped_turns(Clock()), lambda event, fields: None)
        protocol.connection_made(transport)
        payload = bytes(n % 251 for n in range(30_000))
        protocol.data_received(b"".join(frame(payload[n : n + 1]) for n in range(len(payload))))
        assert 0 < len(carried.received) < 2 * FRAMES_A_TURN_MAX
        assert not bool(transport.reading)  # bool(): else mypy takes the later one for impossible
        if cut_short:
            protocol.eof_received()
            assert "eof" not in carried.events
        turns = 0
        while not transport.reading:
            await asyncio.sleep(0)
            turns += 1
        assert turns >= len(payload) // (2 * FRAMES_A_TURN_MAX)
        assert carried.received == payload
        assert ("eof" in carried.events) is cut_short
        protocol.connection_lost(None)

    asyncio.run(test())


def test_a_websocket_that_waits_for_its_first_turn_reads_no_more() -> None:
    """Req: R-05, T-08."""

    async def test() -> None:
        carried, transport, clock = Carried(), Wire(), Clock()
        turns = stepped_turns(clock)
        protocol = WebSocketProtocol(carried, turns, lambda event, fields: None)
        protocol.connection_made(transport)
        turns.take(Insatiable(clock))
        protocol.data_received(frame(b"x"))
        assert (carried.received, transport.reading) == (b"", False)
        await asyncio.sleep(0)  # a round of the other, which uses up all of it
        await asyncio.sleep(0)
        assert (carried.received, transport.reading) == (b"x", True)
        protocol.connection_lost(None)

    asyncio.run(test())


def test_a_peer_that_vanishes_while_its_frames_wait_is_forgotten() -> None:
    async def test() -> None:
        carried, transport = Carried(), Wire()
        protocol = WebSocketProtocol(carried, stepped_turns(Clock()), lambda event, fields: None)
        protocol.connection_made(transport)
        protocol.data_received(frame(b"x") * 10_000)
        protocol.connection_lost(None)
        taken = carried.received
        await asyncio.sleep(0)
        assert (carried.received, carried.events) == (taken, ["made", "lost"])

    asyncio.run(test())


def test_a_peer_that_pings_and_reads_no_answers_is_read_no_further() -> None:
    """Req: R-05, T-08."""

    async def story(world: World, client: Client) -> None:
        await client.upgrade()
        cast(asyncio.Transport, client.writer.transport).pause_reading()
        flood = frame(bytes(125), PING) * 8000
        client.send(*[flood] * 40)
        carried = carried_by(world)
        await carried.paused.wait()
        for _ in range(20):  # turns in which more would be read
            await asyncio.sleep(0)
        assert carried.transport.get_write_buffer_size() < 2_000_000

    play(story)


# Ends


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(b"hello", TEXT), 1003),
        (frame(b"x", rsv=4), 1002),
        (frame(b"x", rsv=1), 1002),
        (frame(b"x", key=None), 1002),
        (frame(b"x", 3), 1002),
        (frame(b"x", 11), 1002),
        (frame(b"x", CONT), 1002),
        (frame(fin=False) + frame(b"y"), 1002),
        (frame(b"x", PING, fin=False), 1002),
        (frame(bytes(126), PING), 1002),
        (frame(b"\x03", CLOSE), 1002),
        (frame(struct.pack("!H", 1005), CLOSE), 1002),
        (frame(struct.pack("!H", 1000) + b"\xff", CLOSE), 1007),
        (frame(bytes(FRAME_BYTES_MAX + 1))[:14], 1009),
        (b"\x82\xff" + b"\xff" * 8 + bytes(4), 1009),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 1002),
        (b"AMQP\x03\x01\x00\x00", 1002),
    ],
)
@pytest.mark.parametrize("tls", [False, True])
def test_a_peer_that_breaks_the_protocol_is_told_why_and_let_go(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, code: int, tls: bool
) -> None:
    """Req: R-05. What came before counts; what comes after does not. Source: RFC 6455 7.4.1."""
    monkeypatch.setattr(websocket, "CLOSE_S_MAX", 0.05)

    async def story(world: World, client: Client) -> None:
        await client.upgrade()
        client.send(frame(b"before"), sent, frame(b"after"))
        opcode, payload = await client.receive()
        assert (opcode, close_code(payload)) == (CLOSE, code)
        client.send(frame(b"much later"))
        assert await client.ended() == b""
        carried = carried_by(world)
        await carried.lost.wait()
        assert carried.received == b"before"
        assert carried.events == ["made", "eof", "lost"]
        assert [event for event, _ in world.logged] == ["a WebSocket was ended"]

    play(story, tls=tls)


@pytest.mark.parametrize("payload", [b"", struct.pack("!H", 1000), struct.pack("!H", 1001) + b"bye"])
def test_the_close_of_a_peer_is_answered_alike_and_ends_what_is_carried(payload: bytes) -> None:
    """Source: RFC 6455 5.5.1."""

    async def story(world: World, client: Client) -> None:
        await client.upgrade()
        client.send(frame(b"last"), frame(payload, CLOSE))
        assert await client.receive() == (CLOSE, payload)
        assert await client.ended() == b""
        carried = carried_by(world)
        await carried.lost.wait()
        assert (carried.received, carried.events) == (b"last", ["made", "eof", "lost"])
        assert world.logged == []

    play(story)


def test_our_close_frame_stands_behind_all_that_was_written_and_waits_for_theirs() -> None:
    async def story(world: World, client: Client) -> None:
        await client.upgrade()
        client.send(frame(b"", PING))
        await client.receive()
        carried = carried_by(world)
        carried.transport.write(bytes(300_000))
        carried.transport.close()
        carried.transport.write(b"too late")
        client.send(frame(b"crossing"))
        assert await client.receive() == (BINARY, bytes(300_000))
        opcode, payload = await client.receive()
        assert (opcode, close_code(payload)) == (CLOSE, 1000)
        assert carried.events == ["made"]
        client.send(frame(payload, CLOSE))
        assert await client.ended() == b""
        await carried.lost.wait()
        assert (carried.received, carried.events) == (b"", ["made", "lost"])

    play(story)


def test_a_peer_that_does_not_answer_our_close_frame_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Req: R-05."""
    monkeypatch.setattr(websocket, "CLOSE_S_MAX", 0.02)

    async def story(world: World, client: Client) -> None:
        await client.upgrade()
        client.send(frame(b"", PING))
        await client.receive()
        carried = carried_by(world)
        carried.transport.pause_reading()  # as an AMQP connection does under load
        carried.transport.close()
        assert close_code((await client.receive())[1]) == 1000
        assert await client.ended() == b""
        await carried.lost.wait()

    play(story)


def test_a_peer_that_reads_nothing_does_not_keep_a_websocket_that_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Req: R-05, T-08."""
    monkeypatch.setattr(websocket, "CLOSE_S_MAX", 0.02)
    monkeypatch.setattr(websocket, "DRAIN_S_MAX", 0.02)

    async def story(world: World, client: Client) -> None:
        await client.upgrade()
        client.send(frame(b"", PING))
        await client.receive()
        cast(asyncio.Transport, client.writer.transport).pause_reading()
        carried = carried_by(world)
        carried.transport.write(bytes(20_000_000))
        carried.transport.close()
        await carried.lost.wait()

    play(story)


def test_a_peer_that_has_closed_its_half_still_gets_the_last_words() -> None:
    async def story(world: World, client: Client) -> None:
        await client.upgrade()
        client.send(frame(b"x"))
        client.writer.write_eof()
        assert await client.receive() == (BINARY, b"farewell")
        assert close_code((await client.receive())[1]) == 1000
        assert await client.ended() == b""
        await carried_by(world).lost.wait()

    play(story, lambda: Carried(last_words=b"farewell"))


def test_a_peer_that_vanishes_ends_what_is_carried() -> None:
    async def story(world: World, client: Client) -> None:
        await client.upgrade()
        client.send(frame(b"", PING), frame(b"half of it")[:5])
        await client.receive()
        client.writer.transport.abort()
        await carried_by(world).lost.wait()

    play(story)


# Time


def test_trickling_bytes_do_not_extend_the_time_for_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Req: R-05."""
    monkeypatch.setattr(websocket, "FRAME_S_MAX", 0.05)
    monkeypatch.setattr(websocket, "CLOSE_S_MAX", 0.02)

    async def story(world: World, client: Client) -> None:
        await client.upgrade()
        client.send(frame(bytes(5000))[:10])
        answer = asyncio.ensure_future(client.receive())
        while not answer.done():
            client.send(b"x")
            await asyncio.sleep(0.005)
        assert close_code(answer.result()[1]) == 1008
        assert await client.ended() == b""

    play(story)


def test_a_peer_that_completes_frames_has_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "FRAME_S_MAX", 0.25)

    async def story(world: World, client: Client) -> None:
        await client.upgrade()
        for number in range(30):
            whole = frame(b"%d" % number)
            client.send(whole[:3])
            await asyncio.sleep(0.01)
            client.send(whole[3:])
            assert await client.receive() == (BINARY, b"%d" % number)

    play(story, lambda: Carried(echo=True))


def test_the_time_for_a_frame_does_not_run_while_the_peer_is_made_to_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket, "FRAME_S_MAX", 0.02)

    async def test() -> None:
        carried, transport = Carried(), Wire()
        protocol = WebSocketProtocol(carried, stepped_turns(Clock()), lambda event, fields: None)
        protocol.connection_made(transport)
        protocol.data_received(frame(b"x" * 10)[:4])
        carried.transport.pause_reading()
        await asyncio.sleep(0.04)
        carried.transport.resume_reading()
        protocol.data_received(frame(b"x" * 10)[4:])
        assert carried.received == b"x" * 10
        protocol.connection_lost(None)

    asyncio.run(test())


# What a carried protocol may ask of its transport


def test_what_is_asked_of_the_transport_beneath_is_passed_through() -> None:
    async def story(world: World, client: Client) -> None:
        await client.upgrade()
        client.send(frame(b"", PING))
        await client.receive()
        transport: Any = carried_by(world).transport
        assert transport.get_extra_info("peername")[1] == client.writer.get_extra_info("sockname")[1]
        assert transport.get_extra_info("nothing", 5) == 5
        transport.set_write_buffer_limits(high=10)
        transport.write(bytes(8_000_000))
        assert transport.get_write_buffer_size() > 0
        assert "pause" in carried_by(world).events
        assert not transport.is_closing()
        transport.close()
        assert transport.is_closing()
        transport.abort()
        await carried_by(world).lost.wait()

    play(story)


# Anything at all


@given(
    st.lists(st.one_of(st.binary(max_size=40), st.builds(frame, st.binary(max_size=20), st.integers(0, 15))))
)
@settings(max_examples=300, deadline=None)
def test_whatever_comes_is_answered_with_whole_frames_and_never_with_a_defect(pieces: list[bytes]) -> None:
    """Req: R-05. 1011 would be a defect of the library's."""

    async def test() -> None:
        carried, transport = Carried(echo=True), Wire()
        protocol = WebSocketProtocol(carried, stepped_turns(Clock()), lambda event, fields: None)
        protocol.connection_made(transport)
        for piece in pieces:
            protocol.data_received(piece)
        answers = unframe(transport.written)
        closes = [payload for opcode, payload in answers if opcode == CLOSE]
        assert len(closes) <= 1
        if closes:
            assert answers[-1] == (CLOSE, closes[0])
            assert not closes[0] or close_code(closes[0]) != 1011
        protocol.connection_lost(None)

    asyncio.run(test())
