"""The driver of one namespace on an event loop: in which turns it is stepped, and its actions done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import ParamSpec, TypeVar

from peeklock.broker.vocabulary.commands import Command
from peeklock.engine.driver import Action, BodiesRead, Commit, Driver, HandOut, ReadRows, WakeAt
from peeklock.server.loop.clock import boottime_s
from peeklock.server.loop.timers import WakeTimer
from peeklock.server.loop.turns import Batches, Turns
from peeklock.server.shard.connections import Connections
from peeklock.server.shard.measures import Measures
from peeklock.server.shard.store_calls import StoreCalls
from peeklock.store.base import NEVER, Batch, Store

P = ParamSpec("P")
T = TypeVar("T")

HAND_OUT_S = 0.005
"""For handing out effects in one turn of the loop; the rest follows in the next ones. Our choice: 500 or more
effects, more than clients cause in one commit, unless it is slow or they flood us."""

GATHERED_BYTES_MAX = 64 * 1024
"""A smaller batch waits for what others send until the end of this turn, so that clients that wait for each
answer share a commit. A larger one is written while they are read. Our choice."""


class DriverLoop:
    """Steps the driver and does its actions."""

    def __init__(
        self,
        driver: Driver,
        store: Store,
        connections: Connections,
        now_ms: Callable[[], int],
        turns: Turns,
        *,
        on_committed: Callable[[Batch, int], None],
        on_failure: Callable[[BaseException], None],
        measures: Measures,
    ) -> None:
        """Run nothing yet.

        `on_committed` is called with each durable batch and the time, before its effects leave. `on_failure`
        is called when a commit or the core fails: memory and disk differ then.
        """
        self._driver = driver
        self._connections = connections
        self._now_ms = now_ms
        self._turns = turns
        self._batches = Batches(turns)
        self._on_failure = on_failure
        self._offered = measures.offered
        self._next_run = NextTurn(self.run, turns)
        self._next_step = NextTurn(self._go_on, turns)
        self.timer = WakeTimer(self.run)
        self.store_calls = StoreCalls(
            driver,
            store,
            now_ms,
            on_committed,
            partial(self.run, True),
            self._next_run.now,
            self.fail,
            measures,
        )
        self.failed = False
        self._valid_until_s = None if store.valid_until_s() == NEVER else store.valid_until_s
        """None = the store is ours for good."""

    def offer(self, commands: Iterable[Command]) -> None:
        """Apply commands now; their effects follow when durable. A batch in flight closes theirs."""
        self._offered()
        self._guarded(self._driver.offer, commands, self._now_ms())
        if not self._driver.in_flight:
            self._next_run.plan_at_end()

    def offer_some(
        self, commands: Sequence[Command], now_ms: int, stop: Callable[[], bool]
    ) -> Sequence[Command]:
        """Apply commands until `stop()`, at least one; return the others. Call `close_batch` at the end."""
        self._offered()
        return self._guarded(self._driver.offer_some, commands, now_ms, stop)

    def close_batch(self) -> None:
        """Close a batch if none is in flight; a small one at the end of the turn, with what others send."""
        if not self._driver.in_flight:
            if self._driver.open_bytes < GATHERED_BYTES_MAX:
                self._next_run.plan_at_end()
            else:
                self._next_run.now()

    def run(self, committed: bool = False) -> None:
        """Do the actions of the driver, as many as a turn allows. `committed`: a slow commit has ended."""
        if self.failed:
            return
        self._turns.begin()
        driver, clock_s = self._driver, self._turns.clock_s
        next_run = self._next_run  # once a turn: effects handed out in parts have one part in each
        planned, next_run.planned = next_run.planned, True  # commands offered until then need no other run
        now_ms = self._now_ms()
        until_s = clock_s() + HAND_OUT_S
        while True:
            try:
                if self._valid_until_s is None:
                    actions = driver.step(now_ms)
                else:
                    actions = driver.step(now_ms, self._lease_until_ms(now_ms))
            except BaseException as defect:  # as in `_guarded`, without its call: twice for each commit
                self.fail(defect)
                raise
            for action in actions:
                durable_ms = self._do(action, now_ms)
                if durable_ms is not None:
                    committed, now_ms = True, durable_ms
            more = driver.more
            if not more or clock_s() >= until_s:
                break
            # Commands may have come while effects were handed out, and the driver's time never goes back.
            now_ms = self._now_ms()
        next_run.planned = planned
        if more:
            next_run.plan()
        if driver.unfinished:
            self._next_step.plan()
        if not driver.in_flight:
            self._batches.set_under_way(more)
        if committed:
            self._connections.flush_waiting(now_ms)

    def fail(self, failure: BaseException) -> None:
        """Stop: the store or the core has failed."""
        self.failed = True
        self._driver.failed()
        self.store_calls.between_commits.set()  # do not wait for a commit in doubt
        self._on_failure(failure)

    @property
    def has_lapsed(self) -> bool:
        """Whether the store may be another process' by now: what needs no commit does not leave."""
        return self._valid_until_s is not None and self._valid_until_s() <= boottime_s()

    @property
    def awaits_lease(self) -> bool:
        """Whether nothing can be done before the lease on the store is renewed."""
        driver = self._driver
        return self.has_lapsed and not (driver.more or driver.in_flight or driver.unfinished)

    def _lease_until_ms(self, now_ms: int) -> float:
        """Return until when the store is ours for sure, by the clock of `now_ms`, which people may set."""
        assert self._valid_until_s is not None
        return now_ms + (self._valid_until_s() - boottime_s()) * 1000

    def _guarded(self, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Call the core; what it left half done when it raises must not be used."""
        try:
            return call(*arguments, **options)
        except BaseException as defect:
            self.fail(defect)
            raise

    def _go_on(self) -> None:
        """Do the next step of a command with many: one a turn, so that other work has its turns."""
        if not self.failed:
            self._turns.begin()
            self._guarded(self._driver.go_on, self._now_ms())
            self.run()

    def _do(self, action: Action, now_ms: int) -> int | None:
        """Do an action; return the time if it made a batch durable. A `match` would cost 2 us a turn."""
        if isinstance(action, WakeAt):
            self.timer.set(action.at_ms, now_ms)
        elif isinstance(action, HandOut):
            self._connections.hand_out(action, now_ms)
        elif isinstance(action, Commit):
            self._batches.taken()
            return self.store_calls.commit(action.batch)
        elif isinstance(action, BodiesRead):
            self._connections.bodies_read(action.connection_id, now_ms)
        elif isinstance(action, ReadRows):
            self.store_calls.read_rows(action.rows)
        else:
            self.store_calls.reclaim(action.wanted)
        return None


class NextTurn:
    """A call in the next turn of the event loop, or at the end of this one, once for all that ask for it."""

    def __init__(self, call: Callable[[], None], turns: Turns) -> None:
        """Plan nothing yet."""
        self._loop = asyncio.get_running_loop()
        self._call = call
        self._turns = turns
        self._ends_turn = False
        self.planned = False
        """Whether the call is planned. Also set while its work is being done."""

    def plan(self) -> None:
        """Call in the next turn."""
        if not self.planned:
            self.planned = True
            self._loop.call_soon(self._come)

    def plan_at_end(self) -> None:
        """Call at the end of this turn, unless the call is planned."""
        if not (self.planned or self._ends_turn):
            self._ends_turn = True
            self._turns.at_end(self._end)

    def now(self) -> None:
        """Call now, unless the call is planned."""
        if not self.planned:
            self._call()

    def _end(self) -> None:
        self._ends_turn = False
        if not self.planned:
            self._call()

    def _come(self) -> None:
        self.planned = False
        self._call()
