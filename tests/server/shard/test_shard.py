"""The loop that joins connections, engine and store, driven in the test's own event loop."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from peeklock.amqp.messaging import Sections, scan
from peeklock.broker.handlers.storing import SLICE_MESSAGES
from peeklock.broker.namespace import Namespace
from peeklock.broker.vocabulary.changes import (
    QUEUES_PER_ENTITY,
    Change,
    EntityStored,
    MessageStored,
    RuleStored,
)
from peeklock.broker.vocabulary.commands import (
    Address,
    CountDroppedSend,
    CreateEntity,
    DeleteEntity,
    DropConnection,
    LinkId,
    LockToken,
    LookUp,
    OpenReceiver,
    OpenSender,
    PurgeMessages,
    ReceiveMode,
    ReplyTo,
    Send,
    SendBatch,
    SetCredit,
    UpdateEntity,
)
from peeklock.broker.vocabulary.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.effects import (
    Accepted,
    Deliver,
    Effect,
    Fetch,
    MessagesDeleted,
    ReceiverOpened,
    SenderOpened,
)
from peeklock.broker.vocabulary.message import Message
from peeklock.broker.vocabulary.quotas import STANDARD
from peeklock.engine.bodies import BUDGET_BYTES, BodyCache
from peeklock.engine.driver import BESIDE_CLIENTS, CLIENTS_WAIT_MS, READ_ROWS_MAX, WINDOW
from peeklock.engine.engine import RECORD_BYTES, Engine
from peeklock.engine.reclaim import SETTLE_MS
from peeklock.rules.filters import SqlFilter
from peeklock.server.loop.clock import boottime_s
from peeklock.server.loop.turns import Turns
from peeklock.server.shard import housekeeping
from peeklock.server.shard.back_pressure import LAG_MS_MAX
from peeklock.server.shard.driver_loop import HAND_OUT_S
from peeklock.server.shard.shard import Losses, Shard
from peeklock.store.base import NEVER, Batch, Store
from peeklock.store.memory import MemoryStore
from peeklock.store.sqlite.store import SqliteStore
from peeklock.testing.clock import ManualClock
from peeklock.testing.faults import FaultyStore
from tests.gateway.harness import message_bytes
from tests.server.keeping import KeepingConnection

NOW_MS = 1_700_000_000_000
LINK = LinkId(1, 1)


class Connection(KeepingConnection):
    """One that wants the bodies it is told to want."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: set[int] = set()
        self.asked = 0

    def bodies_wanted(self) -> set[int]:
        self.asked += 1
        return self.wanted

    def bodies_arrived(self, now_ms: int) -> None:
        self.wanted = set()


async def started(
    *, free: int | None = None, cache_bytes: int = BUDGET_BYTES, inner: Store | None = None, **options: Any
) -> tuple[Shard, Namespace]:
    namespace = Namespace(limits=STANDARD, tokens=lambda: LockToken(os.urandom(16)), digest_key=b"test")
    engine, store = Engine(namespace, BodyCache(cache_bytes)), FaultyStore(inner or MemoryStore(), free=free)
    await store.open()
    await engine.recover(store, NOW_MS)
    options = {
        "now_ms": lambda: NOW_MS,
        "min_free_bytes": lambda: 0,
        "on_definitions": lambda facts, now_ms: None,
        "on_failure": lambda failure: None,
        "turns": turns_of(monotonic),
        **options,
    }
    shard = Shard(engine, namespace, store, **options)
    await shard.submit(lambda to: CreateEntity(QueueDescription("orders"), to))
    return shard, namespace


class Leased(MemoryStore):
    """A store of which this process is the owner for some time."""

    until_s = NEVER

    def valid_until_s(self) -> float:
        return self.until_s


def test_a_stop_waits_for_no_answer_that_may_not_leave() -> None:
    """The lease is over, and the database may be gone for good. Req: R-06"""

    async def test() -> None:
        store = Leased()
        store.until_s = boottime_s() + 3600
        shard, _ = await started(inner=store)
        connection = Connection()
        shard.add(1, connection)
        store.until_s = 0.0
        shard.offer((OpenReceiver(LINK, Address("orders"), ReceiveMode.PEEK_LOCK),))
        await asyncio.wait_for(shard.stop(), 10)
        assert not connection.effects

    asyncio.run(test())


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
        shard.offer(
            (SetCredit(LINK, 1, 1000, False), Send(opened.queue_id, message, Sections(b"payload"), None))
        )
        assert namespace.totals().locks == 1
        shard.offer((DropConnection(1, broken=False),))
        shard.remove(1)
        await until_idle(shard)
        await until_idle(shard)
        totals = namespace.totals()
        assert (totals.locks, totals.active_messages, message.delivery_count) == (0, 1, 0)
        await shard.stop()

    asyncio.run(test())


class ScriptedClock:
    """Moves by a step each time that it is read."""

    def __init__(self, step_s: float) -> None:
        self.now_s, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def turns_of(clock_s: Callable[[], float]) -> Turns:
    loop = asyncio.get_running_loop()
    return Turns(loop.call_soon, loop.call_later, on_defect=lambda defect: None, clock_s=clock_s)


def test_commands_beyond_the_time_of_a_turn_are_left_over() -> None:
    """Req: T-08. One command may be as long as a peek of 4,096 messages."""

    async def test() -> None:
        clock_s = ScriptedClock(0.0)
        shard, namespace = await started(turns=turns_of(clock_s))
        commands = [OpenSender(LinkId(1, number), Address("orders")) for number in range(1, 11)]
        clock_s.step_s = 0.001
        left = shard.offer_until(commands, clock_s.now_s + 0.0035)
        assert left == commands[4:]
        assert shard.offer_until(left, clock_s.now_s - 1) == commands[5:]  # one at the least
        assert shard.offer_until(commands[5:], clock_s.now_s + 1) == ()
        shard.close_batch()
        await until_idle(shard)
        assert namespace.totals().links == 10
        await shard.stop()

    asyncio.run(test())


def test_effects_are_handed_out_in_order_a_part_in_each_turn() -> None:
    """Req: T-08, R-01. What became durable later does not overtake."""

    async def test() -> None:
        clock_s = ScriptedClock(0.0)
        shard, _ = await started(turns=turns_of(clock_s))
        connection = Connection()
        shard.add(1, connection)
        clock_s.step_s = HAND_OUT_S
        first = 4 * WINDOW
        shard.offer(OpenSender(LinkId(1, number), Address("orders")) for number in range(1, first + 1))
        most, seen, offered = 0, 0, first
        while seen < offered:
            await asyncio.sleep(0)
            most = max(most, len(connection.effects) - seen)
            seen = len(connection.effects)
            if 0 < seen < first:
                offered += 1
                shard.offer((OpenSender(LinkId(1, offered), Address("orders")),))
        assert most <= WINDOW
        assert offered >= first + 3
        numbers = [effect.link.number for effect in connection.effects if isinstance(effect, SenderOpened)]
        assert numbers == list(range(1, offered + 1))
        await shard.stop()

    asyncio.run(test())


class AskingConnection(KeepingConnection):
    """One that asks again for each answer, a little later, until it has `COUNT`."""

    COUNT = 10

    def __init__(self, shard: Shard, clock: ManualClock) -> None:
        super().__init__()
        self._shard = shard
        self._clock = clock

    def handle(self, effects: Iterable[Effect], now_ms: int) -> None:
        super().handle(effects, now_ms)
        self._clock.advance(5)
        if len(self.effects) < self.COUNT:
            self._shard.offer((OpenSender(LinkId(1, len(self.effects) + 1), Address("orders")),))


def test_time_does_not_go_back_after_commands_that_come_while_effects_are_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else an event has a later time than the one that it decides by. Req: S-04, L-03."""

    async def test() -> None:
        clock = ManualClock(NOW_MS)
        shard, _ = await started(now_ms=clock)
        driver, times = shard._driver, [NOW_MS]

        def kept(call: Callable[[Any, int], Any], what: Any, now_ms: int) -> Any:
            times.append(now_ms)
            return call(what, now_ms)

        step = driver.step
        monkeypatch.setattr(driver, "offer", partial(kept, driver.offer))
        monkeypatch.setattr(driver, "step", lambda now_ms: kept(lambda _, now_ms: step(now_ms), None, now_ms))
        connection = AskingConnection(shard, clock)
        shard.add(1, connection)
        shard.offer((OpenSender(LINK, Address("orders")),))
        while len(connection.effects) < AskingConnection.COUNT:  # noqa: ASYNC110  # they come turn by turn
            await asyncio.sleep(0)
        assert times == sorted(times)
        await shard.stop()

    asyncio.run(test())


def test_the_bodies_of_what_waits_to_be_handed_out_are_kept() -> None:
    """Receiving deletes them: the batch after that drops their rows. Req: T-08, R-01"""

    async def test() -> None:
        clock_s = ScriptedClock(0.0)
        shard, _ = await started(turns=turns_of(clock_s))
        found: list[bytes | None] = []

        class Reader(Connection):
            def handle(self, effects: Iterable[Effect], now_ms: int) -> None:
                effects = list(effects)
                super().handle(effects, now_ms)
                found.extend(shard.body(effect.message) for effect in effects if isinstance(effect, Deliver))

        reader = Reader()
        shard.add(1, reader)
        shard.offer((OpenReceiver(LINK, Address("orders"), ReceiveMode.RECEIVE_AND_DELETE),))
        await until_idle(shard)
        [opened] = [effect for effect in reader.effects if isinstance(effect, ReceiverOpened)]
        count = 300
        messages = [Message(100, bare_offset=0) for _ in range(count)]
        shard.offer(Send(opened.queue_id, message, Sections(bytes(100)), None) for message in messages)
        await shard.catch_up()
        clock_s.step_s = HAND_OUT_S / 10
        shard.offer((SetCredit(LINK, count, 1_000_000, False),))
        number = 1000
        while len(found) < count:
            await asyncio.sleep(0)
            number += 1
            shard.offer(
                (
                    OpenSender(LinkId(1, number), Address("orders")),
                    Send(opened.queue_id, Message(7, bare_offset=0), Sections(b"another"), None),
                )
            )
        assert found[:count] == [bytes(100)] * count
        await shard.stop()

    asyncio.run(test())


def test_catching_up_waits_until_all_effects_are_handed_out() -> None:
    async def test() -> None:
        clock_s = ScriptedClock(0.0)
        shard, _ = await started(turns=turns_of(clock_s))
        connection = Connection()
        shard.add(1, connection)
        clock_s.step_s = HAND_OUT_S / 10
        shard.offer(OpenSender(LinkId(1, number), Address("orders")) for number in range(1, 101))
        await shard.catch_up()
        assert len(connection.effects) == 100
        await shard.stop()

    asyncio.run(test())


def test_a_large_batch_is_stored_a_step_a_turn_in_one_commit() -> None:
    """Others have their turns in between, and commit nothing of it. Req: T-07, R-05"""

    async def test() -> None:
        shard, namespace = await started()
        connection = Connection()
        shard.add(1, connection)
        await until_idle(shard)
        count = 10 * SLICE_MESSAGES
        sent = [(Message(7, bare_offset=0), Sections(b"payload")) for _ in range(count)]
        behind = Send(4, Message(9, bare_offset=0), Sections(b"behind it"), None)
        shard.offer((SendBatch(4, sent, ReplyTo(1, 1, 0)), behind))
        stored = [namespace.totals().active_messages]
        while stored[-1] <= count:
            await asyncio.sleep(0)
            stored.append(namespace.totals().active_messages)
        assert max(after - before for before, after in pairwise(stored)) == SLICE_MESSAGES
        assert connection.effects == []
        await shard.catch_up()
        assert connection.effects == [Accepted(ReplyTo(1, 1, 0))]
        frames = [frame async for frame in shard._store.load()]
        sizes = [sum(isinstance(change, MessageStored) for change in frame.changes) for frame in frames]
        assert [size for size in sizes if size] == [count, 1]
        await shard.stop()

    asyncio.run(test())


def test_a_stop_waits_for_a_command_that_is_under_way() -> None:
    """Req: R-01"""

    async def test() -> None:
        shard, namespace = await started()
        sent = [(Message(7, bare_offset=0), Sections(b"payload")) for _ in range(5 * SLICE_MESSAGES)]
        shard.offer(
            (SendBatch(4, sent, None), Send(4, Message(9, bare_offset=0), Sections(b"behind it"), None))
        )
        await shard.stop()
        assert namespace.totals().active_messages == len(sent) + 1
        frames = [frame async for frame in shard._store.load()]
        assert sum(isinstance(change, MessageStored) for f in frames for change in f.changes) == len(sent) + 1

    asyncio.run(test())


def test_a_stop_waits_for_a_read_that_its_last_commit_has_begun(tmp_path: Path) -> None:
    """A node gives a namespace back and goes on with others. Req: R-02"""

    async def test() -> None:
        clock = ManualClock(NOW_MS)
        shard, _ = await started(inner=SqliteStore(tmp_path), now_ms=lambda: clock.now_ms)
        await shard.submit(lambda to: CreateEntity(QueueDescription("others"), to))
        orders, others = QUEUES_PER_ENTITY, 2 * QUEUES_PER_ENTITY
        sends = [
            Send(queue, Message(1000, bare_offset=0), Sections(b"p" * 1000), None)
            for queue in (orders, orders, orders, others)
        ]
        shard.offer(sends)
        await shard.submit(lambda to: PurgeMessages(Address("orders"), NOW_MS, to))
        clock.now_ms += SETTLE_MS + 1
        shard.offer(sends[-1:])
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        await shard.stop()
        await asyncio.sleep(0)
        assert not failures

    asyncio.run(test())


def test_event_rows_that_are_not_there_take_no_commits_to_forget() -> None:
    """Capture may have been off for millions of batches between two that are exported. Req: X-03"""

    async def test() -> None:
        shard, _ = await started()
        for no in (1, 2, 900_000):
            shard.event_backlog.add(no, 100)
        shard.forget_events(899_999)
        await shard.catch_up()
        frames = [frame async for frame in shard._store.load()]
        assert len(frames) < 5
        assert shard.event_backlog.first_no == 900_000
        await shard.stop()

    asyncio.run(test())


def test_connections_that_wait_for_no_body_are_not_asked_when_one_arrives() -> None:
    """Req: T-08. Work for each body that is read, not for each connection that is open."""

    async def test() -> None:
        shard, _ = await started()
        waiting, others = Connection(), [Connection() for _ in range(3)]
        for number, connection in enumerate([waiting, *others], start=1):
            shard.add(number, connection)
            shard.offer((OpenSender(LinkId(number, 1), Address("orders")),))
        shard.offer((Send(4, Message(7, bare_offset=0), Sections(b"payload"), ReplyTo(1, 1, 0)),))
        await until_idle(shard)
        for connection in others:
            connection.asked = 0
        waiting.wanted = {1}
        shard.offer((Send(4, Message(7, bare_offset=0), Sections(b"payload"), ReplyTo(1, 1, 1)),))
        await until_idle(shard)
        await until_idle(shard)
        assert waiting.wanted == set()
        assert [connection.asked for connection in others] == [0, 0, 0]
        await shard.stop()

    asyncio.run(test())


@pytest.mark.parametrize("cache_bytes", [1, BUDGET_BYTES])
def test_routing_fields_of_stored_messages_are_read_for_the_core(cache_bytes: int) -> None:
    """Whether their bodies are in memory or not; many rows are read in pieces. Req: F-01, D-01."""

    async def test() -> None:
        shard, namespace = await started(cache_bytes=cache_bytes)
        await shard.submit(
            lambda to: CreateEntity(QueueDescription("unique", requires_duplicate_detection=True), to)
        )
        for n in range(READ_ROWS_MAX + 5):  # each in a row of its own
            payload = message_bytes(properties=[f"id {n // 2}"])
            shard.offer((Send(4, Message(len(payload)), scan(payload), None),))
            await until_idle(shard)
        shard.offer((UpdateEntity(QueueDescription("orders", forward_to="unique"), ReplyTo(1, 0, 0)),))
        for _ in range(20):
            await until_idle(shard)
        orders, unique = (view for view in namespace.entity_views())
        assert (orders.active_count, orders.transfer_dead_letter_count) == (0, 0)
        assert unique.active_count == (READ_ROWS_MAX + 5 + 1) // 2
        await shard.stop()

    asyncio.run(test())


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
def test_a_clock_that_is_set_is_no_lag(step_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lag of the loop is told by what passes, not by any clock that can be set. Req: S-04."""
    monkeypatch.setattr(housekeeping, "HOUSEKEEPING_S", 0.01)

    async def test() -> None:
        now = [NOW_MS]
        shard, _ = await started(now_ms=lambda: now[0])
        for _ in range(3):
            now[0] += step_ms
            await asyncio.sleep(0.02)
            assert shard._pressure.lag_ms < LAG_MS_MAX
            assert (await shard.health())["status"] == "ok"
        await shard.stop()

    asyncio.run(test())


def test_a_row_that_is_read_for_its_routing_is_not_dropped_meanwhile() -> None:
    """The message may be gone by then. Req: F-01, R-06."""

    async def test() -> None:
        shard, _ = await started(cache_bytes=1)
        payload = message_bytes(properties=["id"])
        for _ in range(3):
            shard.offer((Send(4, Message(len(payload)), scan(payload), None),))
            await until_idle(shard)
        bodies = shard._driver._engine.bodies
        message = shard._driver._engine.namespace.find(4, 1)
        assert message is not None
        assert bodies.get(message.body_row, 0) is None
        shard._driver._leaving = [Fetch(4, message)]
        shard._driving.run()
        # The next one is read ahead. The last is in memory.
        assert bodies.wanted == {message.body_row, message.body_row + 1}
        await until_idle(shard)
        assert bodies.wanted == set()
        await shard.stop()

    asyncio.run(test())


class Purging:
    """A queue of many messages that is purged, and what its shard does meanwhile."""

    COUNT = 20_000

    def __init__(self, shard: Shard, namespace: Namespace) -> None:
        self.shard = shard
        self.namespace = namespace
        self.left: list[int] = []

    async def fill(self) -> None:
        for _ in range(self.COUNT):
            self.shard.offer((Send(4, Message(1), Sections(b"x"), None),))
        await until_idle(self.shard)

    async def purge(self) -> None:
        done = self.shard.submit(lambda to: PurgeMessages(Address("orders"), NOW_MS, to))
        while not done.done():
            self.left.append(self.namespace.totals().active_messages)
            await asyncio.sleep(0)
        effect = await done
        assert isinstance(effect, MessagesDeleted)
        assert effect.count == self.COUNT


def test_a_purge_takes_no_more_than_a_slice_between_two_turns_of_the_loop() -> None:
    """Req: A-06. Nobody else asks for anything: it does not pause either."""

    async def test() -> None:
        clock = ManualClock(NOW_MS)
        shard, namespace = await started(now_ms=lambda: clock.now_ms)
        purging = Purging(shard, namespace)
        await purging.fill()
        purge = asyncio.ensure_future(purging.purge())
        await asyncio.sleep(0)
        clock.now_ms += CLIENTS_WAIT_MS
        await purge
        steps = [before - after for before, after in pairwise([*purging.left, 0])]
        assert max(steps) <= 1000
        # The purge itself was asked for just before its first slice, so a pause comes behind that one.
        second = [turn for turn, removed in enumerate(steps) if removed][1]
        assert len(steps[second:]) < 10 * purging.COUNT / 1000
        await shard.stop()

    asyncio.run(test())


def test_a_purge_waits_for_the_commit_in_flight() -> None:
    """A slice for each commit: batches stay small, and the loop is free while the disk works. Req: A-06."""

    async def test() -> None:
        shard, namespace = await started()
        purging = Purging(shard, namespace)
        await purging.fill()
        ready = asyncio.Event()
        commit = shard._store.commit

        async def slow(batch: Batch) -> int:
            await ready.wait()
            return await commit(batch)

        # The store's own method is put off, so that all is offered before anything is durable.
        shard._store.commit = slow  # type: ignore[method-assign]  # of this one instance
        done = shard.submit(lambda to: PurgeMessages(Address("orders"), NOW_MS, to))
        for _ in range(50):
            await asyncio.sleep(0)
        assert namespace.totals().active_messages >= purging.COUNT - 1000
        ready.set()
        await done
        assert namespace.totals().active_messages == 0
        await shard.stop()

    asyncio.run(test())


def test_a_client_is_answered_between_the_slices_of_a_purge() -> None:
    """The slices are smaller while clients are at work. Req: A-06."""

    async def test() -> None:
        clock = ManualClock(NOW_MS)
        shard, namespace = await started(now_ms=lambda: clock.now_ms)
        purging = Purging(shard, namespace)
        await purging.fill()
        purge = asyncio.ensure_future(purging.purge())
        answered_at = []
        while not purge.done():
            await until_idle(shard)
            clock.now_ms += 1  # a slice and its commit took it
            answered_at.append(namespace.totals().active_messages)
        assert len([left for left in answered_at if 0 < left < purging.COUNT]) >= 10
        await purge
        steps = [before - after for before, after in pairwise(purging.left)]
        assert max(steps) == BESIDE_CLIENTS
        await shard.stop()

    asyncio.run(test())


def test_expiry_does_not_rest_for_clients() -> None:
    """Req: E-02. A slice comes with every turn of a client that never stops asking."""

    async def test() -> None:
        clock = ManualClock(NOW_MS)
        shard, namespace = await started(now_ms=lambda: clock.now_ms)
        count = 20_000
        for _ in range(count):
            shard.offer((Send(4, Message(1, ttl_ms=1), Sections(b"x"), None),))
        await until_idle(shard)
        clock.now_ms += 1
        turns = 0
        while namespace.totals().active_messages:
            await until_idle(shard)
            turns += 1
        assert turns <= 2 * count / 1000
        await shard.stop()

    asyncio.run(test())


@pytest.mark.parametrize(("free", "taken"), [(10_000 + 2 * 3000, 3), (10_000 + 2 * 3000 - 2, 2), (10_000, 0)])
def test_the_guard_counts_what_is_about_to_be_written(free: int, taken: int) -> None:
    """Between two looks: each message takes its size twice. At the limit and one byte before. Req: R-06."""

    async def test() -> None:
        shard, namespace = await started(free=free, min_free_bytes=lambda: 10_000)
        await asyncio.sleep(0)  # the first look
        shard._pressure.look_at_room()
        shard.add(1, Connection())
        size = 1000 - RECORD_BYTES
        sends = [Send(4, Message(size), Sections(bytes(size)), None) for _ in range(8)]
        left = shard.offer_until(sends, float("inf"))
        shard.close_batch()
        assert not left
        assert namespace.totals().active_messages == taken + 1  # the one that went beyond was in hand
        assert (await shard.health())["status"] == "low space: sends are refused"
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


def test_facts_about_entities_and_rules_are_handed_on_once_they_are_durable() -> None:
    """And nothing else is, whatever is in the same batch."""

    async def test() -> None:
        told: list[Change] = []
        shard, _ = await started(on_definitions=lambda facts, now_ms: told.extend(facts))
        assert [type(fact) for fact in told] == [EntityStored]
        told.clear()
        ready = asyncio.Event()
        commit = shard._store.commit

        async def slow(batch: Batch) -> int:
            await ready.wait()
            return await commit(batch)

        # The store's own method is put off, so that all is offered before anything is durable.
        shard._store.commit = slow  # type: ignore[method-assign]  # of this one instance
        done = shard.submit(lambda to: CreateEntity(TopicDescription("news"), to))
        shard.submit(lambda to: CreateEntity(SubscriptionDescription("news", "all"), to))
        shard.offer((Send(4, Message(1), Sections(b"x"), None),))
        await asyncio.sleep(0)
        assert told == []
        ready.set()
        await done
        assert [type(fact) for fact in told] == [EntityStored, EntityStored, RuleStored]
        await shard.stop()

    asyncio.run(test())


def test_messages_that_no_rule_takes_are_counted_in_the_figures() -> None:
    """Req: P-01."""

    async def test() -> None:
        shard, _ = await started()
        topic: Any = await shard.submit(lambda to: CreateEntity(TopicDescription("news"), to))
        queue_id = topic.entity.entity_id * QUEUES_PER_ENTITY
        shard.offer((Send(queue_id, Message(1), Sections(b"x"), None),))
        await until_idle(shard)
        assert (await shard.health())["unmatched_messages"] == 1
        await shard.stop()

    asyncio.run(test())


def test_dropped_sends_are_counted_and_warned_of_wherever_they_were_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Req: T-06. By the core for its queue, and by the gateway, which asks for it to be counted."""

    async def test() -> None:
        shard, _ = await started()
        shard.offer((Send(99, Message(1), Sections(b""), None), CountDroppedSend()))
        assert (await shard.health())["dropped_sends"] == 2
        for _ in range(2):
            shard._losses.log()
        records: list[Any] = caplog.records
        (line,) = [record for record in records if record.levelno == logging.WARNING]
        assert line.getMessage().startswith("pre-settled sends were refused and dropped")
        assert line.fields == {"dropped": 2, "since_start": 2}
        await shard.stop()

    asyncio.run(test())


def test_losses_that_go_on_are_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Req: T-06"""
    namespace = Namespace(limits=STANDARD, tokens=lambda: LockToken(bytes(16)), digest_key=b"test")
    now_s = 0
    losses = Losses(namespace, lambda: now_s)
    for now_s in range(130):  # noqa: B007  # the clock reads it
        namespace.apply(CountDroppedSend(), NOW_MS)
        losses.log()
    records: list[Any] = caplog.records
    assert [record.fields["dropped"] for record in records] == [1, 60, 60]


def test_losses_after_the_last_line_are_told_when_the_shard_stops(caplog: pytest.LogCaptureFixture) -> None:
    """Req: T-06"""

    async def test() -> None:
        shard, _ = await started()
        shard.offer((CountDroppedSend(),))
        await until_idle(shard)
        shard._losses.log()
        shard.offer((CountDroppedSend(),))
        await until_idle(shard)
        await shard.stop()
        records: list[Any] = caplog.records
        assert records[-1].fields == {"dropped": 1, "since_start": 2}

    asyncio.run(test())


def test_rules_that_fail_are_counted_in_the_figures_and_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Also where they count as false, and when their topic is gone. Req: P-04."""

    async def test() -> None:
        shard, _ = await started()
        topic: Any = await shard.submit(lambda to: CreateEntity(TopicDescription("news"), to))
        for name, dead_letters in (("a", True), ("b", False)):
            description = SubscriptionDescription("news", name, dead_lettering_on_filter_errors=dead_letters)
            rule = RuleDescription("r", SqlFilter("1 / n = 1"))
            await shard.submit(partial(CreateEntity, description, rule=rule))
        queue_id = topic.entity.entity_id * QUEUES_PER_ENTITY
        payload = message_bytes(application_properties={"n": 0})
        shard.offer((Send(queue_id, Message(len(payload), bare_offset=0), scan(payload), None),))
        await shard.submit(lambda to: DeleteEntity("news", to))
        assert (await shard.health())["failed_evaluations"] == 2
        for _ in range(2):
            shard._losses.log()
        records: list[Any] = caplog.records
        (line,) = [record for record in records if record.levelno == logging.WARNING]
        assert line.getMessage().startswith("rules could not be evaluated for messages")
        assert line.fields == {"failed": 2, "since_start": 2}
        await shard.stop()

    asyncio.run(test())
