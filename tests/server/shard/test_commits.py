"""Commits of a shard over a store on disk: in which turn of the loop, in whose batch, and when they fail."""

from __future__ import annotations

import asyncio
import math
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from peeklock.amqp.messaging import Sections
from peeklock.broker.namespace import Namespace
from peeklock.broker.vocabulary.changes import Change
from peeklock.broker.vocabulary.commands import (
    Address,
    Command,
    CreateEntity,
    LinkId,
    LockToken,
    OpenSender,
    ReplyTo,
    Send,
)
from peeklock.broker.vocabulary.descriptions import QueueDescription
from peeklock.broker.vocabulary.effects import Accepted
from peeklock.broker.vocabulary.message import Message
from peeklock.broker.vocabulary.quotas import STANDARD
from peeklock.engine.bodies import BUDGET_BYTES, BodyCache
from peeklock.engine.engine import Engine
from peeklock.server.loop.turns import Turns
from peeklock.server.shard.driver_loop import GATHERED_BYTES_MAX
from peeklock.server.shard.shard import Shard
from peeklock.store.base import StoreFailed
from peeklock.store.sqlite.pace import Pace
from peeklock.store.sqlite.store import SqliteStore
from tests.server.keeping import KeepingConnection
from tests.server.stepping import raised

NOW_MS = 1_700_000_000_000


class Database(sqlite3.Connection):
    """Counts commits; those of one thread can be made to fail."""

    commits = 0
    fails_in: int | None = None

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql == "COMMIT":
            if threading.get_ident() == Database.fails_in:
                raise sqlite3.OperationalError("disk I/O error")
            Database.commits += 1
        return super().execute(sql, *values)


class Client(KeepingConnection):
    """One that sends."""

    def __init__(self, shard: Shard, connection_id: int) -> None:
        super().__init__()
        self.shard = shard
        self.link = LinkId(connection_id, 1)
        self.sent = 0
        shard.add(connection_id, self)
        shard.offer((OpenSender(self.link, Address("orders")),))

    @property
    def accepted(self) -> int:
        return sum(isinstance(effect, Accepted) for effect in self.effects)

    def send(self, size_bytes: int = 10) -> None:
        """Send as a connection does that has read one transfer."""
        self.sent += 1
        message = Message(size_bytes, bare_offset=0)
        to = ReplyTo(self.link.connection_id, self.link.number, self.sent)
        command: Command = Send(4, message, Sections(b"x" * size_bytes), to)
        assert not self.shard.offer_until((command,), math.inf)
        self.shard.close_batch()


async def started(
    folder: Path,
    clients: int,
    *,
    quick_s: float = math.inf,
    on_definitions: Callable[[Iterable[Change], int], None] = lambda facts, now_ms: None,
) -> tuple[Shard, list[Client], list[BaseException]]:
    """Return a shard with as many clients that have opened a sender, and what it says that failed."""
    namespace = Namespace(limits=STANDARD, tokens=lambda: LockToken(os.urandom(16)), digest_key=b"test")
    engine = Engine(namespace, BodyCache(BUDGET_BYTES))
    store = SqliteStore(
        folder,
        durability="os",
        connect=lambda *args, **options: sqlite3.connect(*args, factory=Database, **options),
        idle_after_s=3600,
        pace=Pace(quick_s),
    )
    await store.open()
    await engine.recover(store, NOW_MS)
    loop = asyncio.get_running_loop()
    failures: list[BaseException] = []
    shard = Shard(
        engine,
        namespace,
        store,
        now_ms=lambda: NOW_MS,
        min_free_bytes=lambda: 0,
        on_definitions=on_definitions,
        on_failure=failures.append,
        turns=Turns(loop.call_soon, loop.call_later, on_defect=raised, clock_s=monotonic),
    )
    await shard.submit(lambda to: CreateEntity(QueueDescription("orders"), to))
    made = [Client(shard, number) for number in range(1, clients + 1)]
    await shard.catch_up()
    return shard, made, failures


@pytest.fixture(autouse=True)
def fresh() -> None:
    Database.commits, Database.fails_in = 0, None


def test_a_send_is_accepted_at_the_end_of_the_turn_that_read_it(tmp_path: Path) -> None:
    """Req: R-01."""

    async def test() -> None:
        shard, [client], _ = await started(tmp_path, 1)
        while True:
            before = Database.commits
            client.send()
            assert (client.accepted, Database.commits) == (client.sent - 1, before)
            await asyncio.sleep(0)
            if client.accepted == client.sent:
                break
            await shard.catch_up()  # the writing thread did not rest
        assert Database.commits == before + 1
        await shard.stop()

    asyncio.run(test())


@pytest.mark.parametrize("quick_s", [0, math.inf])
def test_those_who_send_in_the_same_turn_share_a_commit(tmp_path: Path, quick_s: float) -> None:
    async def test() -> None:
        shard, clients, _ = await started(tmp_path, 8, quick_s=quick_s)
        before = Database.commits
        for client in clients:
            client.send()
        await shard.catch_up()
        assert [client.accepted for client in clients] == [1] * 8
        assert Database.commits == before + 1
        await shard.stop()

    asyncio.run(test())


def test_what_is_large_does_not_wait_for_the_end_of_the_turn(tmp_path: Path) -> None:
    async def test() -> None:
        shard, [first, second], _ = await started(tmp_path, 2)
        before = Database.commits
        first.send(GATHERED_BYTES_MAX)
        second.send()
        await shard.catch_up()
        assert (first.accepted, second.accepted) == (1, 1)
        assert Database.commits == before + 2
        await shard.stop()

    asyncio.run(test())


def test_a_commit_that_fails_on_the_loop_stops_the_broker(tmp_path: Path) -> None:
    """Nobody is told anything that follows from it. Req: R-01, R-06."""

    async def test() -> None:
        shard, [client], failures = await started(tmp_path, 1)
        Database.fails_in = threading.get_ident()
        while not failures:
            await shard.catch_up()  # the writing thread has not rested so far
            accepted = client.accepted
            client.send()
            await asyncio.sleep(0)
        [failure] = failures
        assert isinstance(failure, StoreFailed)
        assert (await shard.health())["status"] == "failed: the broker is stopping"
        client.send()
        for _ in range(3):
            await asyncio.sleep(0)
        assert client.accepted == accepted
        assert len(failures) == 1
        await shard.stop()

    asyncio.run(test())


def test_what_fails_behind_a_commit_stops_the_broker(tmp_path: Path) -> None:
    """The driver would wait for the end of that commit for ever. Req: R-01, R-06."""

    async def test() -> None:
        defects = [ValueError("a defect")]

        def told(facts: Iterable[Change], now_ms: int) -> None:
            if "second" in repr(facts):
                raise defects[0]

        shard, _, failures = await started(tmp_path, 1, on_definitions=told)
        shard.submit(lambda to: CreateEntity(QueueDescription("second"), to))
        await shard.catch_up()
        assert failures == defects
        assert (await shard.health())["status"] == "failed: the broker is stopping"

    asyncio.run(test())
