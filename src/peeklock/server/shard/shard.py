"""One namespace in the server: what connections, listeners and the event log ask of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from peeklock.broker.handlers.figures import FiguresCount
from peeklock.broker.handlers.totals import Totals, TotalsCount
from peeklock.broker.namespace import Namespace
from peeklock.broker.queue.counters import Counters, RequestCounters
from peeklock.broker.queue.wall_clock import WallClock
from peeklock.broker.vocabulary.changes import Change
from peeklock.broker.vocabulary.commands import OWN_CONNECTION_ID, Command
from peeklock.broker.vocabulary.descriptions import Description, RuleDescription
from peeklock.broker.vocabulary.effects import EntityView
from peeklock.broker.vocabulary.message import Message
from peeklock.config.namespace_limits import NO_LIMITS, NamespaceLimits
from peeklock.engine.driver import Driver
from peeklock.engine.engine import Engine
from peeklock.server import log
from peeklock.server.loop.turns import Turns
from peeklock.server.shard.back_pressure import BackPressure, OwnLimits, Sources, TokenBucket
from peeklock.server.shard.connections import Connections
from peeklock.server.shard.definitions import DEFINITIONS
from peeklock.server.shard.driver_loop import DriverLoop
from peeklock.server.shard.housekeeping import Housekeeping
from peeklock.server.shard.measures import Measures
from peeklock.server.shard.own_requests import OwnRequests
from peeklock.server.shard.spanned_loop import SpannedLoop, Spans
from peeklock.server.shard.vitals import Vitals
from peeklock.store.base import Batch, Store, StoreReader

if TYPE_CHECKING:
    from peeklock.store.event_backlog import EventBacklog

FRESH_S = 2.0
"""How long figures of several slices are shown. Our choice, as for the counts of the API."""

TELL_S = 60.0
"""Between two lines about losses. Our choice, as for other lines that a peer can cause."""


class Shard:
    """One namespace over one store."""

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
        spans: Spans | None = None,
        housekeeping: Housekeeping | None = None,
        limits: NamespaceLimits = NO_LIMITS,
    ) -> None:
        """Join an opened store and a recovered engine; `limits` are its own.

        `spans` is told what happens to messages. `housekeeping`: of all shards; None = this is the only one.
        `on_definitions` is called with the changes of entities and rules once they are durable, and the time.
        `on_failure` is called when a commit or the core fails: memory and disk differ, the process must stop.
        """
        self._namespace, self._store = namespace, store
        self._driver = driver = Driver(engine)
        self._turns = turns
        self.measures = Measures(lambda: namespace.counters.received)
        """What commits take."""
        self._on_definitions = on_definitions
        self._connections = Connections(driver, turns)
        make_loop = DriverLoop if spans is None else partial(SpannedLoop, spans=spans)
        self._driving = driving = make_loop(
            driver,
            store,
            self._connections,
            now_ms,
            turns,
            on_committed=self._committed,
            on_failure=on_failure,
            measures=self.measures,
        )
        self._connections.add(OWN_CONNECTION_ID, own := OwnRequests(driving.offer))
        self.now_ms = now_ms
        self.body: Callable[[Message], bytes | None] = driver.body
        """Return a message's body if it is in memory."""
        self.timers = driver.timers
        """When something is due by itself."""
        # Methods of the parts, without a call in between.
        self.add, self.remove = self._connections.add, self._connections.remove
        self.wait_for_room = self._connections.wait_for_room
        self.offer = driving.offer
        self.close_batch = driving.close_batch
        self.tick = driving.timer.tick
        self.submit = own.submit
        self.ask = own.ask
        self._kept_house_s = asyncio.get_running_loop().time()
        self._losses = Losses(namespace, asyncio.get_running_loop().time)
        self._totals = TotalsRequests(namespace.count_totals, turns, lambda: driver.mark)
        self._pressure = self._back_pressure(min_free_bytes, limits)
        asyncio.get_running_loop().call_soon(self._pressure.look_at_volume)  # its failure ends the process
        self._housekeeping = Housekeeping(turns) if housekeeping is None else housekeeping
        self._housekeeping.add(self)

    def _back_pressure(self, min_free_bytes: Callable[[], int], limits: NamespaceLimits) -> BackPressure:
        driver, namespace, bucket = self._driver, self._namespace, None
        if limits.messages_per_second is not None:
            counters = namespace.counters
            bucket = TokenBucket(limits.messages_per_second, lambda: counters.received, self._turns.clock_s)
        own = OwnLimits(bucket, limits.size_bytes_max, lambda: namespace.size_bytes)
        return BackPressure(
            Sources(min_free_bytes, self._store.free_bytes, lambda: driver.open_bytes, own),
            tell=lambda limits: self.offer((limits,)),
        )

    @property
    def wall(self) -> WallClock:
        """The wall clock as the core knows it."""
        return self._namespace.wall

    @property
    def is_deleting(self) -> bool:
        """Whether a topic is being deleted in slices."""
        return self._namespace.is_deleting

    @property
    def uncommitted_bytes(self) -> int:
        """Payload bytes offered and not yet durable, over all connections."""
        return self._driver.open_bytes

    # Figures

    @property
    def counters(self) -> Counters:
        """Counters of the namespace."""
        return self._namespace.counters

    def requests(self) -> dict[str, RequestCounters]:
        """Return the counters of requests, by operation."""
        return self._namespace.requests()

    def entity_views(self) -> Iterable[EntityView]:
        """Return the entities, for those who follow their changes from now on."""
        return self._namespace.entity_views()

    def definitions(self) -> tuple[list[Description], dict[str, list[RuleDescription]]]:
        """Return the entities that are not being deleted, and rules by path of a subscription."""
        return self._namespace.definitions()

    def count_figures(self) -> FiguresCount:
        """Return a reading of the figures of each entity, to be done in slices."""
        return self._namespace.count_figures()

    async def totals(self) -> Totals:
        """Return the figures of the namespace; see `TotalsRequests`."""
        return await self._totals.totals()

    @property
    def mark(self) -> int | None:
        """A number that stays the same while nothing happens in the namespace; None = something just has."""
        return self._driver.mark

    @property
    def lag_ms(self) -> int:
        """Lateness of the loop when it was last measured."""
        return self._pressure.lag_ms

    @property
    def lost_bodies(self) -> int:
        """Messages dead-lettered for a damaged body, since the start."""
        return self._driver.lost_bodies

    @property
    def free_bytes(self) -> int | None:
        """Free bytes of the volume when it was last looked at; None = the store is not on a volume."""
        return self._pressure.free_bytes

    def status(self) -> str:
        """Return `ok`, or what is wrong."""
        return "failed: the broker is stopping" if self._driving.failed else self._pressure.status()

    # Commands in

    def offer_until(self, commands: Sequence[Command], until_s: float) -> Sequence[Command]:
        """Apply commands, all at one time, until `until_s` of the turns' clock; return those left over.

        At least one is applied. The caller closes the batch (`close_batch`) when it has no more.
        """
        driver, pressure, clock_s = self._driver, self._pressure, self._turns.clock_s
        has_rate = pressure.has_rate

        def stop() -> bool:
            if driver.open_bytes > pressure.room and not pressure.limits.low_space:
                pressure.limit()
            if has_rate and not pressure.limits.throttled and pressure.is_throttled:
                pressure.limit()
            return clock_s() >= until_s

        return self._driving.offer_some(commands, self.now_ms(), stop)

    def _committed(self, batch: Batch, now_ms: int) -> None:
        if not DEFINITIONS.isdisjoint(map(type, batch.changes)):
            definitions = [change for change in batch.changes if type(change) in DEFINITIONS]
            self._on_definitions(definitions, now_ms)
        self._pressure.committed()

    # Housekeeping

    def keep_house(self, at_s: float, lag_ms: int) -> None:
        """Look at the volume, set the limits, log losses, look for space; see `Housekeeping`."""
        if (failure := self._store.failure()) is not None and not self._driving.failed:
            self._driving.fail(failure)
            return
        pressure = self._pressure
        pressure.lag_ms, self._kept_house_s = lag_ms, at_s
        pressure.look_at_volume()
        pressure.limit()
        self._losses.log()
        self._driver.look_for_space()
        self._driving.run()

    def vitals(self) -> Vitals:
        """Return what decides whether the broker lives and is ready."""
        idle_s = asyncio.get_running_loop().time() - self._kept_house_s
        return Vitals(self._driving.failed, idle_s, self._pressure.status(), self._driving.has_lapsed)

    async def health(self) -> dict[str, Any]:
        """Return figures for `GET /health`; `status` is `ok` or names a fault."""
        totals = await self.totals()
        return {
            "status": self.status(),
            "lag_ms": self.lag_ms,
            "free_bytes": self.free_bytes,
            "longest_turn_ms": self._turns.longest_turn_ms,
            "uncommitted_bytes": self.uncommitted_bytes,
            "lost_bodies": self.lost_bodies,
            **asdict(totals),
        }

    async def catch_up(self) -> None:
        """Do what is due and commit all that was offered; for a clock that was moved.

        Effects that wait for the lease on the store still wait then.
        """
        driving = self._driving
        driving.timer.cancel()  # it assumes a clock that runs evenly
        while not driving.failed:
            driving.run()
            await driving.store_calls.between_commits.wait()
            if self._driver.idle or driving.awaits_lease:
                break
            await asyncio.sleep(0)  # for the turns that hand out, and for the steps of a command

    async def answer(self) -> None:
        """Commit what was offered and hand out all that follows, also answers that wait for a body."""
        await self.catch_up()
        store_calls = self._driving.store_calls
        while store_calls.reads and self._connections.wait_for_bodies:
            await store_calls.wait_for_read()
            await self.catch_up()

    # The event log

    @property
    def event_backlog(self) -> EventBacklog:
        """Events kept in the store for the event log."""
        return self._store.event_backlog

    def watch_capture(self, is_full: Callable[[], bool]) -> None:
        """Refuse sends while `is_full` returns that the event log backlog is full."""
        self._pressure.capture_full = is_full

    def forget_events(self, no: int) -> None:
        """Drop the events of the batches up to this one, with the next commits."""
        self._driver.forget_events(no)
        self.offer(())

    # Back-ups

    def reader(self) -> StoreReader:
        """Return a reader of its store. Raises: StoreFailed."""
        return self._store.reader()

    # The end

    async def rest(self) -> None:
        """Commit what was offered and the events so far; after that nothing happens by itself."""
        self._housekeeping.remove(self)
        self._losses.log_all()
        self._namespace.flush_events()
        self._driver.offer((), self.now_ms())  # so that it finds the events
        await self.catch_up()
        self._driver.rest()
        self._driving.timer.cancel()

    async def stop(self) -> None:
        """Commit what was offered, then close the store."""
        await self.rest()
        await self._driving.store_calls.finish_reads()
        await self._store.close()


class Losses:
    """Logs losses that no client learns of: the first at once, what follows in one line each `TELL_S`."""

    def __init__(self, namespace: Namespace, clock_s: Callable[[], float]) -> None:
        self._namespace = namespace
        self._clock_s = clock_s
        self._told_s = -TELL_S
        self._dropped_sends = 0
        self._failed_evaluations = 0

    def log(self) -> None:
        """Warn of what was counted since the last time, if that was long enough ago."""
        counted = self._namespace.dropped_sends + self._namespace.failed_evaluations
        now_s = self._clock_s()
        if counted > self._dropped_sends + self._failed_evaluations and now_s >= self._told_s + TELL_S:
            self._told_s = now_s
            self.log_all()

    def log_all(self) -> None:
        """Warn of what was counted since the last time."""
        dropped_sends = self._namespace.dropped_sends
        if dropped_sends > self._dropped_sends:
            log.warning(
                "pre-settled sends were refused and dropped; their senders cannot learn it",
                {"dropped": dropped_sends - self._dropped_sends, "since_start": dropped_sends},
            )
            self._dropped_sends = dropped_sends
        failed = self._namespace.failed_evaluations
        if failed > self._failed_evaluations:
            log.warning(
                "rules could not be evaluated for messages: dead letters with the reason "
                "FilterEvaluationException name them; in subscriptions without "
                "DeadLetteringOnFilterEvaluationExceptions they count as false",
                {"failed": failed - self._failed_evaluations, "since_start": failed},
            )
            self._failed_evaluations = failed


class TotalsRequests:
    """Requests for the figures of a namespace, which are added up between other turns of the event loop.

    There is one count at a time, and one slice of it a turn. Its figures are shown while nothing happens in
    the namespace. Those of several slices cost some ms: they are shown for `FRESH_S`, whatever happens, also
    to those who ask during the count.
    """

    def __init__(
        self, begin: Callable[[], TotalsCount], turns: Turns, mark: Callable[[], int | None]
    ) -> None:
        """Count nothing yet.

        Args:
            begin: begins a count.
            turns: measures the loop's turns.
            mark: returns a number that stays the same while nothing happens; None = something just has.
        """
        self._begin = begin
        self._turns = turns
        self._mark = mark
        self._under_way: asyncio.Task[Totals] | None = None
        self._kept: Totals | None = None
        self._kept_mark: int | None = None
        self._kept_until_s = 0.0

    async def totals(self) -> Totals:
        """Return the figures that are kept, else those of a count."""
        kept = self._kept
        if kept is not None and (self._is_still() or self._turns.clock_s() < self._kept_until_s):
            return kept
        if self._under_way is None:
            self._under_way = asyncio.get_running_loop().create_task(self._count())
        return await asyncio.shield(self._under_way)  # others may wait for it too

    def _is_still(self) -> bool:
        """Return whether nothing has happened since the last count began."""
        return self._kept_mark is not None and self._mark() == self._kept_mark

    async def _count(self) -> Totals:
        turns = self._turns
        turns.begin()
        began_s, mark = turns.clock_s(), self._mark()
        is_long = False
        try:
            count = self._begin()
            while not count.advance():
                is_long = True
                await asyncio.sleep(0)
                turns.begin()
        finally:
            self._under_way = None
        self._kept, self._kept_mark = count.totals, mark
        self._kept_until_s = began_s + FRESH_S if is_long else began_s
        return count.totals
