"""The driver of one namespace on an event loop: the adapter that does what it says.

Owns: in which turns of the loop the driver is stepped. Must not know: what leaves when (see `engine.driver`),
who the connections are, why something is offered. Only the store has threads of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import ParamSpec, TypeVar

from peeklock.broker.vocabulary.commands import Command
from peeklock.engine.driver import Action, BodiesRead, Commit, Driver, HandOut, ReadRows, WakeAt
from peeklock.server.loop.next_turn import NextTurn
from peeklock.server.loop.turns import Batches, Turns
from peeklock.server.loop.wake_timer import WakeTimer
from peeklock.server.shard.connections import Connections
from peeklock.server.shard.store_calls import StoreCalls
from peeklock.store.base import Batch, Store

P = ParamSpec("P")
T = TypeVar("T")

HAND_OUT_S = 0.005
"""For handing out effects in one turn of the loop; the rest follows in the next ones. Our choice: 500 or more
effects, which is more than clients cause in one commit, unless it is slow or they flood us."""

GATHERED_BYTES_MAX = 64 * 1024
"""A smaller batch waits for what others have sent until this turn: who waits for each answer shares a commit.
A larger one is written while they are read. Our choice."""


class DriverLoop:
    """See the module."""

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
    ) -> None:
        """Run nothing yet. `on_committed` is called with each durable batch and the time, before its effects
        leave; `on_failure` when a commit or the core fails: memory is not what the disk has then."""
        self._driver = driver
        self._connections = connections
        self._now_ms = now_ms
        self._turns = turns
        self._batches = Batches(turns)
        self._on_failure = on_failure
        self._next_run = NextTurn(self.run, turns)
        self._next_step = NextTurn(self._go_on, turns)
        self.timer = WakeTimer(self.run)
        self.store_calls = StoreCalls(
            driver, store, now_ms, on_committed, partial(self.run, True), self._next_run.now, self.fail
        )
        self.failed = False

    def offer(self, commands: Iterable[Command]) -> None:
        """Apply commands now; their effects follow when durable: a batch in flight closes theirs."""
        self._guarded(self._driver.offer, commands, self._now_ms())
        if not self._driver.in_flight:
            self._next_run.plan_at_end()

    def offer_some(
        self, commands: Sequence[Command], now_ms: int, stop: Callable[[], bool]
    ) -> Sequence[Command]:
        """Apply commands until `stop` says so, one at least; return the others. `close_batch` comes last."""
        return self._guarded(self._driver.offer_some, commands, now_ms, stop)

    def close_batch(self) -> None:
        """Close a batch if none is in flight: with what others send in this turn, if it is small."""
        if not self._driver.in_flight:
            if self._driver.open_bytes < GATHERED_BYTES_MAX:
                self._next_run.plan_at_end()
            else:
                self._next_run.now()

    def run(self, committed: bool = False) -> None:
        """Do what the driver says, the rest of a turn in the next. `committed`: a slow commit has ended."""
        if self.failed:
            return
        self._turns.begin()
        driver, clock_s = self._driver, self._turns.clock_s
        next_run = self._next_run  # once in a turn: what is handed out in parts has its part in each
        planned, next_run.planned = next_run.planned, True  # what is offered meanwhile needs no other run
        now_ms = self._now_ms()
        until_s = clock_s() + HAND_OUT_S
        while True:
            try:
                actions = driver.step(now_ms)
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
        self.store_calls.between_commits.set()  # what is in doubt is not waited for
        self._on_failure(failure)

    def _guarded(self, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Call the core. What it has half done when it raises must not be built upon."""
        try:
            return call(*arguments, **options)
        except BaseException as defect:
            self.fail(defect)
            raise

    def _go_on(self) -> None:
        """Do the next step of a command that has many: one a turn, so that other work has its turns."""
        if not self.failed:
            self._turns.begin()
            self._guarded(self._driver.go_on, self._now_ms())
            self.run()

    def _do(self, action: Action, now_ms: int) -> int | None:
        """Do it; return the time if a batch is durable by that. A `match` would cost each turn some 2 us."""
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
