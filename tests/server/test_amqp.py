"""An AMQP connection between a transport and the shard."""

from __future__ import annotations

import asyncio
import socket

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
from peeklock.server.shard import Shard
from peeklock.store.memory import MemoryStore

NOW_MS = 1_700_000_000_000


def test_a_peer_that_reads_no_more_does_not_keep_a_connection_that_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Req: R-05, T-08. Neither does closing wait for it for ever: what it does not read is dropped."""
    monkeypatch.setattr(amqp, "LINGER_S", 0.02)
    monkeypatch.setattr(amqp, "END_S_MAX", 0.1)

    async def test() -> None:
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
        closed: asyncio.Future[int] = loop.create_future()

        def gateway(connection_id: int, now_ms: int) -> Gateway:
            return Gateway(
                connection_id,
                namespaces=OneNamespace(Authority.development()),
                tracking=lambda: "id",
                log=lambda event, fields: None,
                now_ms=now_ms,
            )

        ours, theirs = socket.socketpair()
        transport, _ = await loop.create_connection(
            lambda: AmqpConnection(1, shard, gateway, closed.set_result), sock=ours
        )
        transport.write(bytes(8_000_000))  # far more than the socket takes
        theirs.sendall(b"AMQP\x00\x09\x09\x09")
        assert await asyncio.wait_for(closed, 5) == 1
        theirs.close()
        await shard.stop()

    asyncio.run(test())
