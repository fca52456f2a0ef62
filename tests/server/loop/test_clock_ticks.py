"""What the ticks of a second see of a clock that goes on while the machine sleeps, or that is set."""

from __future__ import annotations

import asyncio
import os

from peeklock.amqp.messaging import Sections
from peeklock.broker.namespace import Namespace
from peeklock.broker.vocabulary.commands import (
    Address,
    ClockStepped,
    CreateEntity,
    LinkId,
    LockToken,
    OpenReceiver,
    ReceiveMode,
    Schedule,
    Send,
    SetCredit,
)
from peeklock.broker.vocabulary.descriptions import QueueDescription
from peeklock.broker.vocabulary.effects import Deliver, ReceiverOpened
from peeklock.broker.vocabulary.message import Message, Routing
from peeklock.broker.vocabulary.quotas import STANDARD
from peeklock.engine.bodies import BUDGET_BYTES, BodyCache
from peeklock.engine.engine import Engine
from peeklock.server.loop.clock import SlewedClock
from peeklock.server.loop.timers import SLICES, tick_round
from peeklock.server.shard.shard import Shard
from peeklock.store.memory import MemoryStore
from tests.server.keeping import KeepingConnection
from tests.server.stepping import Clock, stepped_turns

LINK = LinkId(1, 1)
LOCK_MS = 60_000
HOUR_S = 3600


class Machine:
    """Its clocks: the loop has another one, which does not count sleep."""

    def __init__(self) -> None:
        self.wall_s = 1_700_000_000.0
        self.passed_s = 50.0
        self.clock = SlewedClock(lambda: self.wall_s, lambda: self.passed_s)

    def sleep(self, seconds: float) -> None:
        """Go on with both clocks, while nobody is awake."""
        self.wall_s += seconds
        self.passed_s += seconds

    def tick(self, shard: Shard) -> None:
        """Do what the server does once a second."""
        step_ms = self.clock.adjust()
        if step_ms:
            shard.offer((ClockStepped(step_ms),))
        shard.tick(self.clock.now_ms())


class Connection(KeepingConnection):
    """One that is delivered to."""

    def delivered(self) -> list[int]:
        """Return the delivery counts of what has come."""
        return [effect.delivery_count for effect in self.effects if isinstance(effect, Deliver)]


class Ticked:
    def __init__(self) -> None:
        self.at: list[int] = []

    def tick(self, now_ms: int) -> None:
        self.at.append(now_ms)


async def turns_of_the_loop() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def started(machine: Machine) -> tuple[Shard, Connection, int]:
    """Start a shard with a receiver that has credit; the last value is its queue."""
    namespace = Namespace(limits=STANDARD, tokens=lambda: LockToken(os.urandom(16)), digest_key=b"test")
    engine, store = Engine(namespace, BodyCache(BUDGET_BYTES)), MemoryStore()
    await engine.recover(store, machine.clock.now_ms())
    shard = Shard(
        engine,
        namespace,
        store,
        machine.clock.now_ms,
        min_free_bytes=lambda: 0,
        on_definitions=lambda facts, now_ms: None,
        on_failure=lambda failure: None,
        turns=stepped_turns(Clock()),
    )
    queue = QueueDescription("orders", lock_duration_ms=LOCK_MS)
    await shard.submit(lambda to: CreateEntity(queue, to))
    connection = Connection()
    shard.add(1, connection)
    shard.offer((OpenReceiver(LINK, Address("orders"), ReceiveMode.PEEK_LOCK),))
    await turns_of_the_loop()
    [opened] = [effect for effect in connection.effects if isinstance(effect, ReceiverOpened)]
    shard.offer((SetCredit(LINK, 10, 1000, False),))
    return shard, connection, opened.queue_id


def test_what_falls_due_while_the_machine_sleeps_is_done_at_the_next_tick() -> None:
    """The loop's timer counts no sleep: by it the lock would last for another minute. Req: L-02"""

    async def test() -> None:
        machine = Machine()
        shard, connection, queue_id = await started(machine)
        shard.offer((Send(queue_id, Message(7, bare_offset=0), Sections(b"payload"), None),))
        await turns_of_the_loop()
        assert connection.delivered() == [0]
        machine.sleep(LOCK_MS / 1000)
        machine.tick(shard)
        await turns_of_the_loop()
        assert connection.delivered() == [0], "a second is left to the timer"
        machine.sleep(1)
        machine.tick(shard)
        await turns_of_the_loop()
        assert connection.delivered() == [0, 1]
        await shard.stop()

    asyncio.run(test())


def test_a_step_makes_due_what_the_wall_clock_says_and_ends_no_lock() -> None:
    """Req: L-02, S-07"""

    async def test() -> None:
        machine = Machine()
        shard, connection, queue_id = await started(machine)
        shard.offer((Send(queue_id, Message(7, bare_offset=0), Sections(b"payload"), None),))
        at_ms = machine.clock.now_ms() + HOUR_S * 1000
        later = Message(7, bare_offset=0, scheduled_at_ms=at_ms, routing=Routing())
        await shard.submit(lambda to: Schedule(Address("orders"), [(later, Sections(b"payload"))], to))
        await turns_of_the_loop()
        assert connection.delivered() == [0]
        machine.wall_s += HOUR_S
        for _ in range(3):
            machine.sleep(1)
            machine.tick(shard)
            await turns_of_the_loop()
        assert machine.clock.ahead_ms == HOUR_S * 1000
        assert connection.delivered() == [0, 0], "the scheduled one has come, the first is still locked"
        await shard.stop()

    asyncio.run(test())


def test_a_sleep_within_a_round_is_seen_by_those_that_are_ticked_behind_it() -> None:
    machine = Machine()
    connections = {number: Ticked() for number in range(SLICES)}
    began_ms = machine.clock.now_ms()
    turns = 0

    async def sleep(seconds: float) -> None:
        nonlocal turns
        turns += 1
        machine.sleep(HOUR_S if turns == 5 else seconds)

    asyncio.run(tick_round(connections, machine.clock.now_ms, sleep, 1.0))
    passed = [connection.at[0] - began_ms for connection in connections.values()]
    assert passed == sorted(passed)
    assert [ms >= HOUR_S * 1000 for ms in passed] == [False] * 4 + [True] * 6
