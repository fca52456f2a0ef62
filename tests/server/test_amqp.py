"""An AMQP connection between a transport and the shard."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from peeklock.auth import Authority
from peeklock.broker.namespace import Namespace
from peeklock.broker.quotas import STANDARD
from peeklock.engine.bodies import BodyCache
from peeklock.engine.engine import Engine
from peeklock.gateway.connection import Gateway
from peeklock.gateway.namespaces import OneNamespace
from peeklock.server import amqp
from peeklock.server.amqp import AmqpConnection
from peeklock.server.certificates import make_pair
from peeklock.server.shard import Shard
from peeklock.store.memory import MemoryStore

NOW_MS = 1_700_000_000_000

Connect = Callable[..., Awaitable[tuple[asyncio.Transport, asyncio.Future[int]]]]


def with_shard(test: Callable[[Connect], Awaitable[None]]) -> None:
    """Run a test that is given a function: it makes a connection over a socket, and a future of its end."""

    async def run() -> None:
        namespace = Namespace(limits=STANDARD, tokens=lambda: bytes(16), digest_key=b"test")
        engine, store = Engine(namespace, BodyCache()), MemoryStore()
        await store.open()
        await engine.recover(store, NOW_MS)
        loop = asyncio.get_running_loop()
        shard = Shard(
            engine,
            namespace,
            store,
            lambda: NOW_MS,
            min_free_bytes=lambda: 0,
            on_definitions=lambda facts, now_ms: None,
            on_failure=lambda failure: None,
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
                lambda: AmqpConnection(1, shard, gateway, closed.set_result), ours, ssl=tls
            )
            return transport, closed

        await test(connect)
        await shard.stop()

    asyncio.run(run())


def test_a_peer_that_reads_no_more_does_not_keep_a_connection_that_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Req: R-05, T-08. Neither does closing wait for it for ever: what it does not read is dropped."""
    monkeypatch.setattr(amqp, "LINGER_S", 0.02)
    monkeypatch.setattr(amqp, "END_S_MAX", 0.1)

    async def test(connect: Connect) -> None:
        ours, theirs = socket.socketpair()
        transport, closed = await connect(ours)
        transport.write(bytes(8_000_000))  # far more than the socket takes
        theirs.sendall(b"AMQP\x00\x09\x09\x09")
        assert await asyncio.wait_for(closed, 5) == 1
        theirs.close()

    with_shard(test)


def test_a_peer_that_does_not_end_tls_does_not_keep_a_connection_that_is_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Req: R-05, T-08. Celery's clients read only when used: a stop waited 10 s for them."""
    monkeypatch.setattr(amqp, "LINGER_S", 0.05)
    pair = make_pair(["localhost"], datetime.datetime.now(datetime.UTC))
    for name, content in zip(("certificate", "key"), pair, strict=True):
        (tmp_path / name).write_bytes(content)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE

    async def test(connect: Connect) -> None:
        ours, theirs = socket.socketpair()
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
