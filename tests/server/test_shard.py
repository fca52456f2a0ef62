"""The loop that joins connections, engine and store, driven in the test's own event loop."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from peeklock.broker.commands import (
    Address,
    CreateQueue,
    DropConnection,
    LookUp,
    OpenReceiver,
    OpenSender,
    ReceiveMode,
    Send,
    SetCredit,
)
from peeklock.broker.descriptions import QueueDescription
from peeklock.broker.effects import Effect, ReceiverOpened
from peeklock.broker.message import Message
from peeklock.broker.namespace import Namespace
from peeklock.broker.quotas import STANDARD
from peeklock.engine.bodies import BodyCache
from peeklock.engine.engine import Engine
from peeklock.server.shard import Shard
from peeklock.store.memory import MemoryStore
from peeklock.testing.faults import FaultyStore

NOW_MS = 1_700_000_000_000
LINK = (1, 0, 1)


class Connection:
    """One that keeps what it is given, and wants the bodies it is told to want."""

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.wanted: set[int] = set()
        self.asked = 0

    def handle(self, effect: Effect, now_ms: int) -> None:
        self.effects.append(effect)

    def flush(self, now_ms: int) -> None:
        pass

    def bodies_wanted(self) -> set[int]:
        self.asked += 1
        return self.wanted

    def bodies_arrived(self, now_ms: int) -> None:
        self.wanted = set()


async def started(*, free: int | None = None, **options: Any) -> tuple[Shard, Namespace]:
    namespace = Namespace(limits=STANDARD, tokens=lambda: os.urandom(16), digest_key=b"test")
    engine, store = Engine(namespace, BodyCache()), FaultyStore(MemoryStore(), free=free)
    await store.open()
    await engine.recover(store, NOW_MS)
    options = {"min_free_bytes": lambda: 0, "on_failure": lambda failure: None, **options}
    shard = Shard(engine, namespace, store, lambda: NOW_MS, **options)
    await shard.submit(lambda to: CreateQueue(QueueDescription("orders"), to))
    return shard, namespace


async def until_idle(shard: Shard) -> None:
    await shard.submit(lambda to: LookUp(Address("orders"), to))


def test_a_delivery_for_a_connection_that_was_closed_meanwhile_is_available_again() -> None:
    """Req: L-13, L-16. A proper close leaves locks alone, but this message never went out."""

    async def test() -> None:
        shard, namespace = await started()
        connection = Connection()
        shard.add(1, connection)
        shard.offer((OpenReceiver(LINK, Address("orders"), ReceiveMode.PEEK_LOCK),))
        await until_idle(shard)
        [opened] = [effect for effect in connection.effects if isinstance(effect, ReceiverOpened)]
        message = Message(7, bare_offset=0)
        shard.offer((SetCredit(LINK, 1, 1000, False), Send(opened.queue_id, message, b"payload", None)))
        assert namespace.totals().locks == 1
        shard.offer((DropConnection(1, broken=False),))
        shard.remove(1)
        await until_idle(shard)
        await until_idle(shard)
        totals = namespace.totals()
        assert (totals.locks, totals.active_messages, message.delivery_count) == (0, 1, 0)
        await shard.stop()

    asyncio.run(test())


def test_connections_that_wait_for_no_body_are_not_asked_when_one_arrives() -> None:
    """Req: T-08. Work for each body that is read, not for each connection that is open."""

    async def test() -> None:
        shard, _ = await started()
        waiting, others = Connection(), [Connection() for _ in range(3)]
        for number, connection in enumerate([waiting, *others], start=1):
            shard.add(number, connection)
            shard.offer((OpenSender((number, 0, 1), Address("orders")),))
        shard.offer((Send(4, Message(7, bare_offset=0), b"payload", (1, 0, 1, 0)),))
        await until_idle(shard)
        for connection in others:
            connection.asked = 0
        waiting.wanted = {1}
        shard.offer((Send(4, Message(7, bare_offset=0), b"payload", (1, 0, 1, 1)),))
        await until_idle(shard)
        await until_idle(shard)
        assert waiting.wanted == set()
        assert [connection.asked for connection in others] == [0, 0, 0]
        await shard.stop()

    asyncio.run(test())


def test_a_defect_in_housekeeping_is_told_at_once() -> None:
    """Req: R-06. Its task lives as long as the process: asyncio alone would never tell."""

    async def test() -> None:
        told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.set_result(context))

        def broken() -> int:
            raise OSError("the volume is gone")

        shard, _ = await started(free=1, min_free_bytes=broken)
        context = await asyncio.wait_for(told, 5)
        assert str(context["exception"]) == "the volume is gone"
        await shard.stop()

    asyncio.run(test())
