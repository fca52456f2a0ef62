"""One namespace at work on an event loop: the adapter between connections, the driver and a store.

Owns: the loop's callbacks, tasks and timer of one driver. Must not know: bytes of any protocol, what leaves
when (see `engine.driver`). Everything here runs on the event loop's thread; only the store has threads of
its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from peeklock.broker.changes import Change
from peeklock.broker.commands import NO_LINK, OWN_CONNECTION_ID, Command, ReplyTo
from peeklock.broker.effects import BodiesLost, Effect
from peeklock.broker.message import Message
from peeklock.broker.namespace import Namespace
from peeklock.broker.wall_clock import WallClock
from peeklock.engine.driver import Action, BodiesRead, Commit, Driver, HandOut, ReadRows, Reclaim, WakeAt
from peeklock.engine.engine import Engine
from peeklock.engine.reclaim import ReclaimRead
from peeklock.server.back_pressure import BackPressure, Sources
from peeklock.server.definitions import DEFINITIONS
from peeklock.server.losses import Losses, tell_lost_bodies
from peeklock.server.tasks import tell_failure
from peeklock.server.turns import Turns
from peeklock.store.base import Batch, Store, StoreError

if TYPE_CHECKING:
    from peeklock.store.event_backlog import EventBacklog

HOUSEKEEPING_S = 0.25

HAND_OUT_S = 0.005
"""For handing out effects in one turn of the loop; the rest follows in the next ones. Our choice: 500 or more
effects, which is more than clients cause in one commit, unless it is slow or they flood us."""


class Connection(Protocol):
    """What the shard needs of a connection: a place to hand effects to."""

    def handle(self, effect: Effect, now_ms: int) -> None:
        """Take one effect; nothing is written yet."""

    def flush(self, now_ms: int) -> None:
        """Write what the effects of this turn have led to."""

    def bodies_wanted(self) -> set[int]:
        """Return the body rows that deliveries wait for."""

    def bodies_arrived(self, now_ms: int) -> None:
        """Try the waiting deliveries again."""


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
        self.body: Callable[[Message], bytes | None] = driver.body
        """Returns a message's body if it is in memory."""
        self.next_deadline_ms: Callable[[], int | None] = driver.next_deadline_ms
        """Returns when something is due by itself, None for never."""
        self.now_ms = now_ms
        self._on_definitions = on_definitions
        self._on_failure = on_failure
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._connections: dict[int, Connection] = {}
        self._waiters: dict[int, Callable[[Effect], None]] = {}
        self._requests = 0
        self._scheduled = False
        self._goes_on = False
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting_for_room: set[Connection] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._failed = False
        self._losses = Losses(namespace)
        self._pressure = BackPressure(
            Sources(min_free_bytes, store.free_bytes, lambda: driver.open_bytes),
            tell=lambda limits: self.offer((limits,)),
        )
        self._ticked_at = self._loop.time()
        self._housekeeping = self._loop.create_task(self._keep_house())
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

    def wait_for_room(self, connection: Connection) -> None:
        """Flush a connection that does not read now once more after the next commit."""
        self._waiting_for_room.add(connection)

    # Commands in

    def add(self, connection_id: int, connection: Connection) -> None:
        """Let effects for this connection id reach it."""
        self._connections[connection_id] = connection
        self._driver.connect(connection_id)

    def remove(self, connection_id: int) -> None:
        """Forget a connection; effects still to come for it are dropped."""
        connection = self._connections.pop(connection_id, None)
        if connection is not None:
            self._waiting_for_room.discard(connection)
        self._driver.disconnect(connection_id)

    def offer(self, commands: Iterable[Command]) -> None:
        """Apply commands now; their effects follow when durable."""
        try:
            self._driver.offer(commands, self.now_ms())
        except BaseException as defect:
            # What the core has half done must not be built upon, whoever asked for it.
            self._fail(defect)
            raise
        # While a batch is in flight, its end closes the next one.
        if not self._driver.in_flight:
            self._plan()

    def offer_until(self, commands: Sequence[Command], until_s: float) -> Sequence[Command]:
        """Apply commands until this time of the turns' clock; return those that are left over.

        At least one is applied. The caller closes the batch (`close_batch`) when it has no more.
        """
        driver, pressure, clock_s = self._driver, self._pressure, self._turns.clock_s

        def stop() -> bool:
            if driver.open_bytes > pressure.room and not pressure.limits.low_space:
                pressure.limit()
            return clock_s() >= until_s

        try:
            return driver.offer_some(commands, self.now_ms(), stop)
        except BaseException as defect:
            self._fail(defect)
            raise

    def close_batch(self) -> None:
        """Close a batch at once if none is in flight: a turn of the loop less than by `offer`."""
        if not self._driver.in_flight and not self._driver.more:
            self._run()

    def submit(self, make: Callable[[ReplyTo], Command]) -> asyncio.Future[Effect]:
        """Ask something for this process itself; `make` is given the reply-to. The future gives the answering
        effect."""
        future: asyncio.Future[Effect] = self._loop.create_future()

        def answered(effect: Effect) -> None:
            if not future.done():
                future.set_result(effect)

        self.ask(make, answered)
        return future

    def ask(self, make: Callable[[ReplyTo], Command], then: Callable[[Effect], None]) -> None:
        """Do the same without a future: `then` is called with the answering effect, and must not raise."""
        self._requests += 1
        self._waiters[self._requests] = then
        self.offer((make(ReplyTo(OWN_CONNECTION_ID, NO_LINK, self._requests)),))

    # What the driver says

    def _plan(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._planned)

    def _planned(self) -> None:
        self._scheduled = False
        self._run()

    def _run_unless_planned(self) -> None:
        """Run once in a turn: what is handed out in parts has its part in each."""
        if not self._scheduled:
            self._run()

    def _run(self) -> None:
        """Do what the driver says, for as long as a turn of the loop may take; the rest in the next turns."""
        if self._failed:
            return
        self._turns.begin()
        driver, clock_s = self._driver, self._turns.clock_s
        planned, self._scheduled = self._scheduled, True  # what is offered meanwhile needs no other run
        now = self.now_ms()
        until_s = clock_s() + HAND_OUT_S
        while True:
            try:
                actions = driver.step(now)
            except BaseException as defect:
                self._fail(defect)
                raise
            for action in actions:
                self._do(action, now)
            if not driver.more or clock_s() >= until_s:
                break
        self._scheduled = planned
        if driver.more:
            self._plan()
        if driver.unfinished and not self._goes_on:
            self._goes_on = True
            self._loop.call_soon(self._go_on)
        if not driver.in_flight:
            self._set_busy(driver.more)

    def _do(self, action: Action, now: int) -> None:
        match action:
            case HandOut():
                self._hand_out(action, now)
            case Commit():
                self._commit(action.batch)
            case WakeAt():
                self._wake_at(action.at_ms, now)
            case BodiesRead():
                connection = self._connections.get(action.connection_id)
                if connection is not None:
                    connection.bodies_arrived(now)
                    connection.flush(now)
                    self._driver.want(action.connection_id, connection.bodies_wanted())
            case ReadRows():
                self._spawn(self._read(action.rows))
            case Reclaim():
                self._spawn(self._reclaim(action.wanted))

    def _hand_out(self, action: HandOut, now: int) -> None:
        clock_s = self._turns.clock_s
        started_s = clock_s()
        connection_id = action.connection_id
        connection = self._connections.get(connection_id)
        if connection is not None:
            handle = connection.handle
            for effect in action.effects:
                handle(effect, now)
            connection.flush(now)
            self._driver.want(connection_id, connection.bodies_wanted())
        elif connection_id == OWN_CONNECTION_ID:
            for effect in action.effects:
                self._answer(effect)
        else:  # it was closed by what another one has been given
            self._driver.undelivered(action.effects, now)
        self._turns.handed_out(clock_s() - started_s)

    def _answer(self, effect: Any) -> None:
        if type(effect) is BodiesLost:
            tell_lost_bodies(effect)
            return
        then = self._waiters.pop(effect.reply_to.number, None)
        if then is not None:
            then(effect)

    def _commit(self, batch: Batch) -> None:
        self._idle.clear()
        self._set_busy(False)  # the last batch is through
        self._set_busy(True)
        definitions = [change for change in batch.changes if type(change) in DEFINITIONS]
        # A callback, not a task that awaits: two turns of the loop less in the latency of each send.
        committing = asyncio.ensure_future(self._store.commit(batch))
        committing.add_done_callback(partial(self._committed, batch.no, definitions))

    def _committed(self, no: int, definitions: list[Change], committing: asyncio.Future[int]) -> None:
        try:
            frame_bytes = committing.result()
        except BaseException as failure:  # also cancellation: the batch's fate is unknown then
            self._fail(failure)
            return
        self._turns.begin()
        now = self.now_ms()
        if definitions:
            self._on_definitions(definitions, now)
        self._pressure.look_at_room()
        self._driver.committed(no, frame_bytes, now)
        self._idle.set()
        self._run()
        if self._waiting_for_room:
            waiting, self._waiting_for_room = self._waiting_for_room, set()
            for connection in waiting:
                connection.flush(now)

    def _go_on(self) -> None:
        """Do the next step of a command that has many: one a turn, so that everybody else has theirs."""
        self._goes_on = False
        if self._failed:
            return
        self._turns.begin()
        try:
            self._driver.go_on(self.now_ms())
        except BaseException as defect:
            self._fail(defect)
            raise
        self._run()

    def _set_busy(self, busy: bool) -> None:
        """Let those that never stop sending rest until what they asked for is done."""
        if busy != self._busy:
            self._busy = busy
            (self._turns.batch_taken if busy else self._turns.batch_done)()

    async def _read(self, rows: list[int]) -> None:
        try:
            found = await self._store.read_body_rows(rows)
            self._driver.rows_read(found, self.now_ms())
        except StoreError as failure:
            self._fail(failure)
            return
        self._run_unless_planned()

    async def _reclaim(self, wanted: ReclaimRead) -> None:
        try:
            found = await wanted.read_from(self._store)
            self._driver.reclaimed(found, self.now_ms())
        except StoreError as failure:
            self._fail(failure)
            return
        self._run_unless_planned()

    # Time

    def _wake_at(self, at_ms: int | None, now: int) -> None:
        if at_ms == self._timer_at_ms and self._timer is not None:
            return
        self._cancel_timer()
        self._timer_at_ms = at_ms
        if at_ms is not None:
            self._timer = self._loop.call_later(max((at_ms - now) / 1000, 0), self._due)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def tick(self, now: int) -> None:
        """Do what fell due while the machine slept, which the loop's timers do not count; to be called about
        once a second."""
        if self._timer is not None and self._timer_at_ms is not None and self._timer_at_ms <= now - 1000:
            self._timer.cancel()
            self._due()

    def _due(self) -> None:
        self._timer = None
        self._timer_at_ms = None
        self._run()

    async def _keep_house(self) -> None:
        pressure = self._pressure
        pressure.look_at_volume()
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            at = self._loop.time()
            pressure.lag_ms = max(0, round((at - self._ticked_at - HOUSEKEEPING_S) * 1000))
            self._ticked_at = at
            pressure.look_at_volume()
            pressure.limit()
            self._losses.tell()
            self._driver.look_for_space()
            self._run()

    def health(self) -> dict[str, Any]:
        """Return figures for `GET /health`; `status` is `ok` or says what is wrong."""
        status = "failed: the broker is stopping" if self._failed else self._pressure.status()
        return {
            "status": status,
            "lag_ms": self._pressure.lag_ms,
            "longest_turn_ms": self._turns.longest_turn_ms,
            "uncommitted_bytes": self.uncommitted_bytes,
            "lost_bodies": self._driver.lost_bodies,
            **asdict(self._namespace.totals()),
        }

    def _fail(self, failure: BaseException) -> None:
        self._failed = True
        self._driver.failed()
        self._idle.set()
        self._on_failure(failure)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(tell_failure)

    async def catch_up(self) -> None:
        """Do what is due and commit all that was offered; of use when the clock was moved."""
        self._cancel_timer()  # set for a clock that runs evenly
        while not self._failed:
            self._run()
            await self._idle.wait()
            if self._driver.idle:
                break
            await asyncio.sleep(0)  # for the turns that hand out, and for the steps of a command

    async def answer(self) -> None:
        """Commit what was offered and hand out all that follows, answers that wait for a body among it."""
        await self.catch_up()
        while self._tasks and any(one.bodies_wanted() for one in self._connections.values()):
            await asyncio.wait(set(self._tasks), return_when=asyncio.FIRST_COMPLETED)
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
        self._cancel_timer()

    async def stop(self) -> None:
        """Commit what was offered, then close the store."""
        await self.rest()
        await self._store.close()
