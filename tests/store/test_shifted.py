"""Scheduled messages that were shifted, over a restart of the store."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

from peeklock.amqp.codec import decode
from peeklock.amqp.messaging import Sections
from peeklock.broker.namespace import Namespace
from peeklock.broker.vocabulary.commands import (
    Address,
    CancelScheduled,
    Command,
    CreateEntity,
    LockToken,
    Peek,
    ReplyTo,
    Schedule,
    SequenceNumber,
)
from peeklock.broker.vocabulary.descriptions import QueueDescription
from peeklock.broker.vocabulary.effects import (
    Done,
    Effect,
    MessagesFound,
    MessagesScheduled,
    ScheduledShifted,
)
from peeklock.broker.vocabulary.extension_commands import ShiftScheduled
from peeklock.broker.vocabulary.message import Message, MessageState, MessageView
from peeklock.broker.vocabulary.quotas import STANDARD
from peeklock.engine.bodies import BodyCache
from peeklock.engine.driver import Commit, Driver, HandOut
from peeklock.engine.engine import Engine
from peeklock.store.sqlite.store import SqliteStore

NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000
ORDERS = Address("orders")
ME = ReplyTo(1, 0, 1)


class Opened:
    """An engine over a folder."""

    def __init__(self, folder: Path) -> None:
        tokens = itertools.count(1)
        self.store = SqliteStore(folder)
        namespace = Namespace(
            limits=STANDARD, tokens=lambda: LockToken(next(tokens).to_bytes(16, "big")), digest_key=b"key"
        )
        self.engine = Engine(namespace, BodyCache())
        self.driver = Driver(self.engine)
        self.driver.connect(ME.connection_id)
        self.driver.rest()  # the test says when something falls due
        self.batches = 0

    async def start(self, now_ms: int) -> None:
        await self.store.open()
        await self.engine.recover(self.store, now_ms)

    async def ask(self, command: Command, now_ms: int) -> Effect:
        """Return the answer once it may leave."""
        driver, answers = self.driver, []
        driver.offer([command], now_ms)
        while driver.unfinished:
            driver.go_on(now_ms)
        while not driver.idle:
            for action in driver.step(now_ms):
                if isinstance(action, Commit):
                    self.batches += 1
                    driver.committed(action.batch.no, await self.store.commit(action.batch), now_ms)
                elif isinstance(action, HandOut):
                    answers += action.effects
        (answer,) = answers
        return answer

    async def peek(self, now_ms: int) -> list[MessageView]:
        found = await self.ask(Peek(ORDERS, SequenceNumber(0), 1000, 1 << 30, ME), now_ms)
        assert isinstance(found, MessagesFound)
        return found.messages


def test_shifted_times_and_numbers_hold_over_a_restart(tmp_path: Path) -> None:
    """More than one step, in one batch. Req: S-05, S-06, R-01, R-02"""

    async def test() -> None:
        broker = Opened(tmp_path)
        await broker.start(NOW_MS)
        await broker.ask(CreateEntity(QueueDescription("orders"), ME), NOW_MS)
        times = [NOW_MS + MINUTE_MS + n for n in range(700)]
        messages = [(Message(10, scheduled_at_ms=at_ms), Sections(b"x" * 10)) for at_ms in times]
        scheduled = await broker.ask(Schedule(ORDERS, messages, ME), NOW_MS)
        assert isinstance(scheduled, MessagesScheduled)
        before = broker.batches
        shifted = await broker.ask(ShiftScheduled(ME, None, None, 2 * MINUTE_MS), NOW_MS)
        assert shifted == ScheduledShifted(ME, 700)
        some = tuple(scheduled.sequence_numbers[:2])
        await broker.ask(ShiftScheduled(ME, ORDERS, some, None), NOW_MS)
        assert broker.batches == before + 2
        await broker.store.close()

        later_ms = NOW_MS + 2 * MINUTE_MS
        broker = Opened(tmp_path)
        await broker.start(later_ms)
        views = await broker.peek(later_ms)
        expected = [NOW_MS] * 2 + [at_ms + 2 * MINUTE_MS for at_ms in times[2:]]
        assert [view.message.scheduled_at_ms for view in views] == expected
        assert [view.message.sequence_number for view in views] == scheduled.sequence_numbers
        overlays = [view.message.overlay for view in views]
        shown = [decode(overlay)[0] for overlay in overlays if overlay is not None]
        assert shown == [{"x-opt-scheduled-enqueue-time": at_ms} for at_ms in expected]
        last = scheduled.sequence_numbers[-1]
        assert await broker.ask(CancelScheduled(ORDERS, [last], ME), later_ms) == Done(ME)
        broker.engine.advance(later_ms)
        views = await broker.peek(later_ms)
        assert sum(view.state is MessageState.ACTIVE for view in views) == 2
        await broker.store.close()

    asyncio.run(test())
