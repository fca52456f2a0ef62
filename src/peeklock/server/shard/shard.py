"""One namespace at work in the server: what connections, listeners and the event log ask of it.

Owns: how driver, connections and back-pressure of a namespace are joined, the look at them four times a
second, the orderly end. Must not know: bytes of any protocol, what leaves when (see `engine.driver`), how the
driver is stepped (see `driver_loop`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from peeklock.broker.namespace import Namespace
from peeklock.broker.queue.wall_clock import WallClock
from peeklock.broker.vocabulary.changes import Change
from peeklock.broker.vocabulary.commands import OWN_CONNECTION_ID, Command
from peeklock.broker.vocabulary.message import Message
from peeklock.engine.driver import Driver
from peeklock.engine.engine import Engine
from peeklock.server.loop.tasks import tell_failure
from peeklock.server.loop.turns import Turns
from peeklock.server.shard.back_pressure import BackPressure, Sources
from peeklock.server.shard.connections import Connections
from peeklock.server.shard.definitions import DEFINITIONS
from peeklock.server.shard.driver_loop import DriverLoop
from peeklock.server.shard.losses import Losses
from peeklock.server.shard.own_requests import OwnRequests
from peeklock.server.shard.totals_requests import TotalsRequests
from peeklock.store.base import Batch, Store

if TYPE_CHECKING:
    from peeklock.store.event_backlog import EventBacklog

HOUSEKEEPING_S = 0.25


class Shard:
    """Drives one namespace over one store."""

    def __init__(
        self,
        engine: Engine,
        namespace: Namespace,
        store: Store,
        now_ms: Callable[[], int],
        *,
        min_free_bytes: Callable[[], int],
        on_definitions: Callable[[Iterable[Change], int], None],
        on_failure: Callable[[BaseException], None],
        turns: Turns,
    ) -> None:
        """Join an opened store and a recovered engine.

        `on_definitions` is called with the facts about entities and rules of a batch once they are durable,
        and the time.
        `on_failure` is called when a commit or the core itself fails: the process must stop then, since
        memory is not what the disk has.
        `turns` measures the loop's turns.
        """
        self._namespace = namespace
        self._store = store
        self._driver = driver = Driver(engine)
        self._turns = turns
        self._on_definitions = on_definitions
        self._connections = Connections(driver, turns)
        self._driving = driving = DriverLoop(
            driver,
            store,
            self._connections,
            now_ms,
            turns,
            on_committed=self._committed,
            on_failure=on_failure,
        )
        own = OwnRequests(driving.offer)
        self._connections.add(OWN_CONNECTION_ID, own)
        self.now_ms = now_ms
        self.body: Callable[[Message], bytes | None] = driver.body
        """Returns a message's body if it is in memory."""
        self.timers = driver.timers
        """Say when something is due by itself."""
        # What others do, by the names that the server knows: see `Connections`, `DriverLoop`, `OwnRequests`.
        self.add = self._connections.add
        self.remove = self._connections.remove
        self.wait_for_room = self._connections.wait_for_room
        self.offer = driving.offer
        self.close_batch = driving.close_batch
        self.tick = driving.timer.tick
        self.submit = own.submit
        self.ask = own.ask
        self._losses = Losses(namespace)
        self._totals = TotalsRequests(namespace.count_totals, turns)
        self._pressure = BackPressure(
            Sources(min_free_bytes, store.free_bytes, lambda: driver.open_bytes),
            tell=lambda limits: driving.offer((limits,)),
        )
        self._housekeeping = asyncio.get_running_loop().create_task(self._keep_house())
        self._housekeeping.add_done_callback(tell_failure)

    @property
    def wall(self) -> WallClock:
        """What the core knows of the wall clock."""
        return self._namespace.wall

    @property
    def is_deleting(self) -> bool:
        """Whether a topic is being deleted in slices."""
        return self._namespace.is_deleting

    @property
    def uncommitted_bytes(self) -> int:
        """Payload bytes offered and not yet durable, over all connections."""
        return self._driver.open_bytes

    # Commands in

    def offer_until(self, commands: Sequence[Command], now_ms: int, until_s: float) -> Sequence[Command]:
        """Apply commands, all at `now_ms`, until `until_s` of the turns' clock; return those left over.

        At least one is applied. The caller closes the batch (`close_batch`) when it has no more.
        """
        driver, pressure, clock_s = self._driver, self._pressure, self._turns.clock_s

        def stop() -> bool:
            if driver.open_bytes > pressure.room and not pressure.limits.low_space:
                pressure.limit()
            return clock_s() >= until_s

        return self._driving.offer_some(commands, now_ms, stop)

    def _committed(self, batch: Batch, now_ms: int) -> None:
        if not DEFINITIONS.isdisjoint(map(type, batch.changes)):
            definitions = [change for change in batch.changes if type(change) in DEFINITIONS]
            self._on_definitions(definitions, now_ms)
        self._pressure.committed()

    # Housekeeping

    async def _keep_house(self) -> None:
        pressure, time_s = self._pressure, asyncio.get_running_loop().time
        pressure.look_at_volume()
        before_s = time_s()
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            at_s = time_s()
            pressure.lag_ms = max(0, round((at_s - before_s - HOUSEKEEPING_S) * 1000))
            before_s = at_s
            pressure.look_at_volume()
            pressure.limit()
            self._losses.tell()
            self._driver.look_for_space()
            self._driving.run()

    async def health(self) -> dict[str, Any]:
        """Return figures for `GET /health`; `status` is `ok` or says what is wrong."""
        totals = await self._totals.totals()
        status = "failed: the broker is stopping" if self._driving.failed else self._pressure.status()
        return {
            "status": status,
            "lag_ms": self._pressure.lag_ms,
            "longest_turn_ms": self._turns.longest_turn_ms,
            "uncommitted_bytes": self.uncommitted_bytes,
            "lost_bodies": self._driver.lost_bodies,
            **asdict(totals),
        }

    async def catch_up(self) -> None:
        """Do what is due and commit all that was offered; of use when the clock was moved."""
        driving = self._driving
        driving.timer.cancel()  # set for a clock that runs evenly
        while not driving.failed:
            driving.run()
            await driving.store_calls.between_commits.wait()
            if self._driver.idle:
                break
            await asyncio.sleep(0)  # for the turns that hand out, and for the steps of a command

    async def answer(self) -> None:
        """Commit what was offered and hand out all that follows, answers that wait for a body among it."""
        await self.catch_up()
        store_calls = self._driving.store_calls
        while store_calls.reads and self._connections.wait_for_bodies:
            await store_calls.wait_for_read()
            await self.catch_up()

    # The event log

    @property
    def event_backlog(self) -> EventBacklog:
        """What has happened and is still kept here for the event log."""
        return self._store.event_backlog

    def watch_capture(self, is_full: Callable[[], bool]) -> None:
        """Ask from time to time whether sends have to be refused because the event log lags behind."""
        self._pressure.capture_full = is_full

    def forget_events(self, no: int) -> None:
        """Drop what happened in the batches up to this one, with the commits to come."""
        self._driver.forget_events(no)
        self.offer(())

    # The end

    async def rest(self) -> None:
        """Commit what was offered and what has happened; from then on nothing happens by itself."""
        self._housekeeping.cancel()
        self._namespace.flush_events()
        self._driver.offer((), self.now_ms())  # it is to find them
        await self.catch_up()
        self._driver.rest()
        self._driving.timer.cancel()

    async def stop(self) -> None:
        """Commit what was offered, then close the store."""
        await self.rest()
        await self._store.close()
