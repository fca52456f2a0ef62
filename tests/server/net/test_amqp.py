"""An AMQP connection between a transport and the shard."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from peeklock.amqp import composites
from peeklock.amqp.composites import composite
from peeklock.amqp.frames import frame
from peeklock.amqp.messaging import BATCH_FORMAT
from peeklock.amqp.types import Role
from peeklock.auth import Authority
from peeklock.broker.namespace import Namespace
from peeklock.broker.vocabulary.commands import CreateEntity, LockToken
from peeklock.broker.vocabulary.descriptions import QueueDescription
from peeklock.broker.vocabulary.quotas import STANDARD
from peeklock.engine.bodies import BodyCache
from peeklock.engine.engine import Engine
from peeklock.gateway.choice import OneNamespace
from peeklock.gateway.connection import Gateway
from peeklock.server.loop.turns import Turns
from peeklock.server.net import amqp, ending
from peeklock.server.net.amqp import AmqpConnection
from peeklock.server.shard.shard import Shard
from peeklock.server.tls.certificates import make_pair
from peeklock.store.memory import MemoryStore
from tests.amqp.pair import attach, begin, frames_of, sasl_and_open, transfer
from tests.gateway.harness import message_bytes, section
from tests.server.stepping import Clock, Insatiable, raised, stepped_turns

NOW_MS = 1_700_000_000_000


Connect = Callable[..., Awaitable[tuple[asyncio.Transport, asyncio.Future[int]]]]


def with_shard(test: Callable[[Connect], Awaitable[None]]) -> None:
    """Run a test that is given a function: it makes a connection over a socket, and a future of its end."""

    async def run() -> None:
        namespace = Namespace(limits=STANDARD, tokens=lambda: LockToken(bytes(16)), digest_key=b"test")
        engine, store = Engine(namespace, BodyCache()), MemoryStore()
        await store.open()
        await engine.recover(store, NOW_MS)
        loop = asyncio.get_running_loop()
        turns = Turns(loop.call_soon, loop.call_later, on_defect=raised)
        shard = Shard(
            engine,
            namespace,
            store,
            lambda: NOW_MS,
            min_free_bytes=lambda: 0,
            on_definitions=lambda facts, now_ms: None,
            on_failure=lambda failure: None,
            turns=turns,
        )

        def gateway(connection_id: int, now_ms: int) -> Gateway:
            return Gateway(
                connection_id,
                namespaces=OneNamespace(Authority.development()),
                tracking=lambda: "id",
                log=lambda event, fields: None,
                now_ms=now_ms,
            )

        async def connect(
            ours: socket.socket, tls: ssl.SSLContext | None = None
        ) -> tuple[asyncio.Transport, asyncio.Future[int]]:
            closed: asyncio.Future[int] = loop.create_future()
            transport, _ = await loop.connect_accepted_socket(
                lambda: AmqpConnection(1, shard, turns, gateway, closed.set_result), ours, ssl=tls
            )
            return transport, closed

        await test(connect)
        await shard.stop()

    asyncio.run(run())


def test_a_peer_that_reads_no_more_does_not_keep_a_connection_that_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Req: R-05, T-08. Neither does closing wait for it for ever: what it does not read is dropped."""
    monkeypatch.setattr(ending, "LINGER_S", 0.02)
    monkeypatch.setattr(ending, "END_S_MAX", 0.1)

    async def test(connect: Connect) -> None:
        ours, theirs = socket.socketpair()
        transport, closed = await connect(ours)
        transport.write(bytes(8_000_000))  # far more than the socket takes
        theirs.sendall(b"AMQP\x00\x09\x09\x09")
        assert await asyncio.wait_for(closed, 5) == 1
        theirs.close()

    with_shard(test)


def test_a_peer_that_has_reset_its_connection_does_not_fail_the_turn_that_ends_it() -> None:
    """Req: T-08. asyncio's own loop shuts a socket down at once, which a reset refuses."""

    async def test(connect: Connect) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            theirs = socket.create_connection(listener.getsockname())
            ours, _ = listener.accept()
        transport, closed = await connect(ours)
        connection = transport.get_protocol()
        assert isinstance(connection, AmqpConnection)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
        connection.shut_down(NOW_MS)
        assert await asyncio.wait_for(closed, 5) == 1

    with_shard(test)


def test_a_peer_that_does_not_end_tls_does_not_keep_a_connection_that_is_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Req: R-05, T-08. Celery's clients read only when used: a stop waited 10 s for them."""
    monkeypatch.setattr(ending, "LINGER_S", 0.05)
    pair = make_pair(["localhost"], datetime.datetime.now(datetime.UTC))
    for name, content in zip(("certificate", "key"), pair, strict=True):
        (tmp_path / name).write_bytes(content)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE

    async def test(connect: Connect) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            theirs = socket.create_connection(listener.getsockname())
            ours, _ = listener.accept()
        ours.setblocking(False)
        accepted = asyncio.ensure_future(connect(ours, server))
        peer = await asyncio.to_thread(client.wrap_socket, theirs)
        _, closed = await accepted
        peer.sendall(b"AMQP\x00\x09\x09\x09")
        begun = time.monotonic()
        assert await asyncio.wait_for(closed, 10) == 1
        assert 0.05 <= time.monotonic() - begun < 5
        assert peer.recv(8)[:4] == b"AMQP"  # what we said is there all the same
        peer.close()

    with_shard(test)


class Pipe(asyncio.Transport):
    """A transport that keeps what is written, and hands in what a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reading = True
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closing:
            raise RuntimeError("the handler is closed")  # as uvloop's transports do
        self.written += data

    def take(self) -> list[Any]:
        """Return the codes of the frames that were written since the last time."""
        written, self.written = self.written, b""
        return [code for _, code, _, _ in frames_of(written)]

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


def with_pipe(
    mechanism: str,
    test: Callable[[AmqpConnection, Pipe, Namespace], Awaitable[None]],
    clock_s: Callable[[], float] = lambda: 0.0,
) -> None:
    """Run a test over an opened connection, on a loop in which no time passes but turns."""

    async def run() -> None:
        namespace = Namespace(limits=STANDARD, tokens=lambda: LockToken(bytes(16)), digest_key=b"test")
        engine, store = Engine(namespace, BodyCache()), MemoryStore()
        await store.open()
        await engine.recover(store, NOW_MS)
        turns = stepped_turns(clock_s)
        shard = Shard(
            engine,
            namespace,
            store,
            lambda: NOW_MS,
            min_free_bytes=lambda: 0,
            on_definitions=lambda facts, now_ms: None,
            on_failure=lambda failure: None,
            turns=turns,
        )
        await shard.submit(lambda to: CreateEntity(QueueDescription("orders"), to))

        def gateway(connection_id: int, now_ms: int) -> Gateway:
            return Gateway(
                connection_id,
                namespaces=OneNamespace(Authority.development()),
                tracking=lambda: "id",
                log=lambda event, fields: None,
                now_ms=now_ms,
            )

        connection, pipe = AmqpConnection(1, shard, turns, gateway, lambda _: None), Pipe()
        connection.connection_made(pipe)
        connection.data_received(sasl_and_open(mechanism, KEY if mechanism == "PLAIN" else b""))
        await asyncio.sleep(0)
        assert composites.OPEN in pipe.take()
        await test(connection, pipe, namespace)
        await shard.stop()

    asyncio.run(run())


def end(channel: int) -> bytes:
    return frame(channel, composite(composites.END, []))


@pytest.mark.parametrize(("mechanism", "pairs_a_turn"), [("ANONYMOUS", 4), ("PLAIN", 64)])
def test_a_read_of_very_many_frames_is_worked_on_a_part_in_each_turn(
    mechanism: str, pairs_a_turn: int
) -> None:
    """Req: R-05, T-08. A stranger's turns are shorter."""

    async def test(connection: AmqpConnection, pipe: Pipe, namespace: Namespace) -> None:
        pairs = 5 * pairs_a_turn
        connection.data_received((begin(7) + end(7)) * pairs)
        done: list[int] = []
        while not (done and pipe.reading):
            await asyncio.sleep(0)
            done.append(len(pipe.take()))
        assert done == [2 * pairs_a_turn] * 5

    with_pipe(mechanism, test)


def test_what_comes_behind_unread_bytes_waits_its_turn() -> None:
    async def test(connection: AmqpConnection, pipe: Pipe, namespace: Namespace) -> None:
        connection.data_received((begin(7) + end(7)) * 10)
        connection.data_received(begin(8))  # TLS hands on what it has, though it is told to pause
        await asyncio.sleep(0)
        assert len(pipe.take()) == 8
        for _ in range(5):
            await asyncio.sleep(0)
        assert pipe.take() == [composites.BEGIN, composites.END] * 6 + [composites.BEGIN]
        assert pipe.reading

    with_pipe("ANONYMOUS", test)


@pytest.mark.parametrize("ending", ["a frame of another connection", "a stop"])
def test_nothing_is_written_to_a_transport_that_is_closed_already(ending: str) -> None:
    """Its end is told later, or never where the event loop could not close it. Req: R-05."""

    async def test(connection: AmqpConnection, pipe: Pipe, namespace: Namespace) -> None:
        pipe.closing = True
        if ending == "a stop":
            connection.shut_down(NOW_MS)
        else:
            connection.data_received(begin(7))
            await asyncio.sleep(0)
        assert pipe.written == b""
        connection.connection_lost(None)
        assert connection.peer == ""

    with_pipe("PLAIN", test)


def test_a_connection_that_waits_for_its_first_turn_reads_no_more() -> None:
    """Req: R-05. libuv reads up to 8 MB of a socket in one turn."""

    clock = Clock()

    async def test(connection: AmqpConnection, pipe: Pipe, namespace: Namespace) -> None:
        connection._turns.take(Insatiable(clock))
        connection.data_received(begin(7))
        assert (pipe.take(), pipe.reading) == ([], False)
        await asyncio.sleep(0)  # a round of the other, which uses up all of it
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # what was done is written at the end of the turn
        assert (pipe.take(), pipe.reading) == ([composites.BEGIN], True)

    with_pipe("ANONYMOUS", test, clock)


@pytest.mark.parametrize("lost", [False, True])
def test_the_end_of_the_stream_waits_behind_unread_bytes(lost: bool) -> None:
    """Req: L-13. A client sends, closes and leaves in one read; all of it is done, also if it is gone."""

    async def test(connection: AmqpConnection, pipe: Pipe, namespace: Namespace) -> None:
        handshake = begin() + attach(0, Role.SENDER, address="orders")
        connection.data_received(handshake)
        for _ in range(3):
            await asyncio.sleep(0)
        assert namespace.totals().links == 1
        messages = b"".join(transfer(0, number, message_bytes()) for number in range(3000))
        connection.data_received(messages + frame(0, composite(composites.CLOSE, [])))
        if lost:
            connection.connection_lost(ConnectionResetError())
        else:
            assert connection.eof_received()  # the answers can be written still
        assert namespace.totals().active_messages == 1024
        assert (namespace.totals().links, pipe.closing) == (1, False)
        for _ in range(6):
            await asyncio.sleep(0)
        assert (namespace.totals().active_messages, namespace.totals().links) == (3000, 0)
        assert pipe.closing is not lost

    with_pipe("PLAIN", test)


def test_a_batch_that_is_read_in_part_is_sent_although_the_stream_ends_behind_it() -> None:
    """Req: T-06, T-07. Settled transfers are never answered: their sender may go at once."""

    async def test(connection: AmqpConnection, pipe: Pipe, namespace: Namespace) -> None:
        connection.data_received(begin() + attach(0, Role.SENDER, address="orders"))
        for _ in range(3):
            await asyncio.sleep(0)
        batch = section(0x75, message_bytes()) * 3000
        frames = [batch[at : at + 60_000] for at in range(0, len(batch), 60_000)]
        for number, part in enumerate(frames, 1):
            more = number < len(frames)
            sent = transfer(0, 0, part, message_format=BATCH_FORMAT, settled=True, more=more)
            connection.data_received(sent)
        connection.connection_lost(None)
        assert namespace.totals().active_messages == 0
        for _ in range(40):
            await asyncio.sleep(0)
        assert (namespace.totals().active_messages, namespace.totals().links) == (3000, 0)

    with_pipe("PLAIN", test)


KEY = b"\0RootManageSharedAccessKey\0SAS_KEY_VALUE"


def test_output_for_a_stranger_is_little_until_its_first_valid_claim() -> None:
    """Req: R-05. Above it, reading pauses."""

    async def test(connect: Connect) -> None:
        for hello, high in (
            (sasl_and_open(), amqp.STRANGER_WRITE_BUFFER_BYTES_HIGH),
            (sasl_and_open("PLAIN", KEY), amqp.WRITE_BUFFER_BYTES_HIGH),
        ):
            ours, theirs = socket.socketpair()
            transport, closed = await connect(ours)
            protocol = transport.get_protocol()
            assert isinstance(protocol, AmqpConnection)
            protocol.data_received(hello)
            await asyncio.sleep(0)  # the end of the turn
            assert transport.get_write_buffer_limits()[1] == high
            assert transport.is_reading()
            transport.write(bytes(4_000_000))  # more than the socket takes
            protocol.flush(NOW_MS)
            assert not transport.is_reading()
            theirs.close()
            transport.abort()
            await closed

    with_shard(test)
