"""One namespace at work: commands in, durable batches, effects out. The only place that commits.

Owns: the engine, the store, and the loop that joins them: commands of all connections are applied as they
arrive, one batch commits while the next one fills, effects are handed to their connection after the commit.
Must not know: bytes of any protocol. Everything here runs on the event loop's thread; only the store has
threads of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from peeklock.broker.changes import Change
from peeklock.broker.commands import NO_LINK, OWN_CONNECTION_ID, Command, LimitSending, Release, ReplyTo
from peeklock.broker.effects import (
    BY_LINK,
    Deliver,
    Effect,
    Fetch,
)
from peeklock.broker.namespace import Namespace
from peeklock.broker.wall_clock import WallClock
from peeklock.engine.engine import Engine
from peeklock.engine.reclaim import ReclaimRead
from peeklock.server import log
from peeklock.server.bodies import BodyReader, Connection
from peeklock.server.definitions import DEFINITIONS
from peeklock.server.tasks import tell_failure
from peeklock.server.turns import Turns
from peeklock.store.base import Store, StoreError

if TYPE_CHECKING:
    from peeklock.store.event_backlog import EventBacklog

LAG_MS_MAX = 1000
"""New sends are answered server-busy when the loop lags more than this. Source: architecture,
back-pressure."""

HOUSEKEEPING_S = 0.25

CLIENTS_WAIT_MS = 100
"""So long after its last command some client is likely to send the next one."""

REST_FACTOR = 4
"""A purge then rests for so many times what a slice and its commit took: four fifths of the loop and of the
disk are the clients'. Our choice: with two thirds, it made the p99 of another queue's sends more than five
times as long in half of the runs. Expiry and activation do not rest: they are to act within two seconds."""

ROOM_UNLIMITED = 1 << 62

HAND_OUT_S = 0.005
"""For handing out effects in one turn of the loop; the rest follows in the next ones. Our choice: 500 or more
effects, which is more than clients cause in one commit, unless it is slow or they flood us."""


class Shard:
    """Drives one engine over one store."""

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
        self._engine = engine
        self._namespace = namespace
        self._store = store
        self.now_ms = now_ms
        self._min_free_bytes = min_free_bytes
        self._on_definitions = on_definitions
        self._on_failure = on_failure
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._effects: deque[Effect] = deque()
        """Those of durable batches that have not been handed out yet, in order."""
        self._connections: dict[int, Connection] = {}
        self._waiters: dict[int, Callable[[Effect], None]] = {}
        self._requests = 0
        self._scheduled = False
        self._goes_on = False
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms: int | None = None
        self._asked_at_ms = 0
        self._slice_started_at: float | None = None  # monotonic; of one after which more is due
        self._rest_until = 0.0  # monotonic; the next one may follow then
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting_for_room: set[Connection] = set()
        self._bodies = BodyReader(
            engine,
            store,
            now_ms=now_ms,
            offer=self.offer,
            spawn=self._spawn,
            on_failure=self._fail,
            submit=self.submit,
        )
        self.body = self._bodies.body
        """Returns a message's body if it is in memory."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._failed = False
        self._limits = LimitSending()
        self._min_free = 0
        self._free: int | None = None
        self._room = ROOM_UNLIMITED
        """Bytes of messages that may be offered before too little of the volume is left."""
        self._capture_full: Callable[[], bool] = bool  # no event log: never
        self._resting = False  # nothing happens by itself any more
        self._dropped_sends_told = 0
        self._failed_evaluations_told = 0
        self._ticked_at = self._loop.time()
        self.lag_ms = 0
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
        return self._engine.open_bytes

    def wait_for_room(self, connection: Connection) -> None:
        """Flush a connection that does not read now once more after the next commit."""
        self._waiting_for_room.add(connection)

    # Commands in

    def add(self, connection_id: int, connection: Connection) -> None:
        """Let effects for this connection id reach it."""
        self._connections[connection_id] = connection

    def remove(self, connection_id: int) -> None:
        """Forget a connection; effects still to come for it are dropped."""
        connection = self._connections.pop(connection_id, None)
        if connection is not None:
            self._waiting_for_room.discard(connection)
        self._bodies.forget(connection_id)

    def offer(self, commands: Iterable[Command]) -> None:
        """Apply commands now; their effects follow when durable."""
        self._apply(commands)
        # While a batch is in flight, its end closes the next one.
        if not self._scheduled and not self._engine.in_flight:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def offer_until(self, commands: Sequence[Command], until_s: float) -> Sequence[Command]:
        """Apply commands until this time of the turns' clock; return those that are left over.

        At least one is applied. The caller closes the batch (`close_batch`) when it has no more.
        """
        now = self._asked_at_ms = self.now_ms()
        engine = self._engine
        offer, clock_s = engine.offer, self._turns.clock_s
        try:
            for number, command in enumerate(commands, 1):
                offer(command, now)
                if engine.open_bytes > self._room and not self._limits.low_space:
                    self._limit_sending()
                if clock_s() >= until_s:
                    return commands[number:]
        except BaseException as defect:
            # What the core has half done must not be built upon, whoever asked for it.
            self._fail(defect)
            raise
        return ()

    def close_batch(self) -> None:
        """Close a batch at once if none is in flight: a turn of the loop less than by `offer`."""
        if not self._engine.in_flight:
            self._pump()

    def _apply(self, commands: Iterable[Command]) -> None:
        now = self._asked_at_ms = self.now_ms()
        offer = self._engine.offer
        try:
            for command in commands:
                offer(command, now)
        except BaseException as defect:
            self._fail(defect)
            raise

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

    # The way down and up

    def _pump(self) -> None:
        self._scheduled = False
        if self._failed:
            return
        self._turns.begin()
        engine = self._engine
        if engine.under_way and not self._goes_on:
            self._goes_on = True
            self._loop.call_soon(self._go_on)
        if engine.in_flight or self._namespace.unfinished:
            return  # its end comes here again
        if self._effects:
            return  # the next batch could drop the body of one of them; the last of them comes here again
        now = self.now_ms()
        self._advance(now)
        engine.skip_events(self._store.event_backlog.first_no)
        batch = engine.take_batch(now)
        if batch is None:
            self._rest()
            self._dispatch(engine.release(), now)
            self._set_busy(bool(self._effects))
        else:
            self._idle.clear()
            self._set_busy(True)
            definitions = [change for change in batch.changes if type(change) in DEFINITIONS]
            # A callback, not a task that awaits: two turns of the loop less in the latency of each send.
            committing = asyncio.ensure_future(self._store.commit(batch))
            committing.add_done_callback(partial(self._committed, batch.no, definitions))
        self._set_timer(now)

    def _go_on(self) -> None:
        """Do the next step of a command that has many: one a turn, so that everybody else has theirs."""
        self._goes_on = False
        if self._failed:
            return
        self._turns.begin()
        try:
            self._engine.go_on(self.now_ms())
        except BaseException as defect:
            self._fail(defect)
            raise
        self._pump()

    def _advance(self, now: int) -> None:
        """Let happen what is due: a slice for each commit; a purge pauses while clients are at work."""
        started_at = monotonic()
        if self._resting or started_at < self._rest_until:
            return
        self._engine.advance(now)
        if self._namespace.is_purging and now - self._asked_at_ms < CLIENTS_WAIT_MS:
            self._slice_started_at = started_at

    def _rest(self) -> None:
        if self._slice_started_at is not None:
            now = monotonic()
            self._rest_until = now + REST_FACTOR * (now - self._slice_started_at)
            self._slice_started_at = None

    def _committed(self, no: int, definitions: list[Change], committing: asyncio.Future[int]) -> None:
        try:
            frame_bytes = committing.result()
        except BaseException as failure:  # also cancellation: the batch's fate is unknown then
            self._fail(failure)
            return
        self._turns.begin()
        self._rest()
        now = self.now_ms()
        if definitions:
            self._on_definitions(definitions, now)
        self._look_at_room()
        self._dispatch(self._engine.committed(no, frame_bytes, now), now)
        if self._waiting_for_room:
            waiting, self._waiting_for_room = self._waiting_for_room, set()
            for connection in waiting:
                connection.flush(now)
        self._win_space()
        self._idle.set()
        self._set_busy(bool(self._effects))
        self._pump()

    def _set_busy(self, busy: bool) -> None:
        """Let those that never stop sending rest until what they asked for is done."""
        if busy != self._busy:
            self._busy = busy
            (self._turns.batch_taken if busy else self._turns.batch_done)()

    def _dispatch(self, effects: list[Effect], now: int) -> None:
        """Hand out effects, behind those that wait for it already."""
        waiting = bool(self._effects)
        self._effects += effects
        if self._effects and not waiting:
            self._hand_out(now)

    def _hand_out_rest(self) -> None:
        self._turns.begin()
        self._hand_out(self.now_ms())
        if not self._effects:
            self._set_busy(False)
            self._pump()

    def _hand_out(self, now: int) -> None:
        """Hand out effects for as long as a turn of the loop may take; the rest in the next turns."""
        touched: dict[int, Connection] = {}
        undelivered: list[Command] = []
        fetches: list[Fetch] = []
        connections = self._connections
        by_link = BY_LINK
        effects, clock_s = self._effects, self._turns.clock_s
        started_s = clock_s()
        until_s = started_s + HAND_OUT_S
        while effects and clock_s() < until_s:
            effect = effects.popleft()
            if type(effect) in by_link:
                to: int = effect.link.connection_id  # type: ignore[union-attr]
            elif type(effect) is Fetch:
                fetches.append(effect)
                continue
            else:
                to = effect.reply_to.connection_id  # type: ignore[union-attr]
            connection = touched.get(to)
            if connection is None:
                if to == OWN_CONNECTION_ID:
                    self._answer(effect)
                    continue
                connection = connections.get(to)
                if connection is None:
                    if type(effect) is Deliver and effect.lock_token is not None:
                        # Its connection is over; the client never had this message (L-16).
                        undelivered.append(Release(effect.message.queue_id, effect.lock_token, None))
                    continue
                touched[to] = connection
            connection.handle(effect, now)
        for connection_id, connection in touched.items():
            connection.flush(now)
            self._bodies.fetch(connection_id, connection)
        self._turns.handed_out(clock_s() - started_s)
        if undelivered:
            self.offer(undelivered)
        if fetches:
            self._bodies.fetch_routing(fetches)
        if effects:
            self._loop.call_soon(self._hand_out_rest)

    def _answer(self, effect: Any) -> None:
        then = self._waiters.pop(effect.reply_to.number, None)
        if then is not None:
            then(effect)

    # Time and space

    def _set_timer(self, now: int) -> None:
        if self._resting:
            return
        due = self._engine.next_deadline_ms()
        if due == self._timer_at_ms and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at_ms = due
        if due is not None:
            wait_s = max((due - now) / 1000, self._rest_until - monotonic(), 0)
            self._timer = self._loop.call_later(wait_s, self._due)

    def tick(self, now: int) -> None:
        """Do what fell due while the machine slept, which the loop's timers do not count; to be called about
        once a second."""
        if self._timer is not None and self._timer_at_ms is not None and self._timer_at_ms <= now - 1000:
            self._timer.cancel()
            self._due()

    def _due(self) -> None:
        self._timer = None
        self._timer_at_ms = None
        self._pump()

    def _win_space(self) -> None:
        wanted = self._engine.reclaim_wanted()
        if wanted is not None:
            self._spawn(self._reclaim(wanted))

    async def _reclaim(self, wanted: ReclaimRead) -> None:
        try:
            found = await wanted.read_from(self._store)
        except StoreError as failure:
            self._fail(failure)
            return
        self._bodies.lose(found.rows)
        self._engine.reclaim_offer(found)
        self._pump()

    async def _keep_house(self) -> None:
        self._min_free = self._min_free_bytes()
        self._look_at_room()
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            at = self._loop.time()
            self.lag_ms = max(0, round((at - self._ticked_at - HOUSEKEEPING_S) * 1000))
            self._ticked_at = at
            self._min_free = self._min_free_bytes()
            self._look_at_room()
            self._limit_sending()
            self._win_space()
            self._tell_losses()

    def _look_at_room(self) -> None:
        """Learn how many bytes may be offered until too little of the volume is left.

        A message takes its size in the WAL and again in the database.
        """
        self._free = self._store.free_bytes()
        # What was refused for space is taken again only when there is clearly more: not in turns.
        kept = self._min_free + (self._min_free // 2 if self._limits.low_space else 0)
        self._room = ROOM_UNLIMITED if self._free is None else (self._free - kept) // 2

    def _limit_sending(self) -> None:
        limits = LimitSending(
            low_space=self._room <= 0 or self._engine.open_bytes > self._room,
            lagging=self.lag_ms > LAG_MS_MAX,
            capture_full=self._capture_full(),
        )
        if limits == self._limits:
            return
        log.warning(
            "sending is open again" if limits == LimitSending() else "sending is limited",
            {
                "low_space": limits.low_space,
                "lagging": limits.lagging,
                "capture_full": limits.capture_full,
                "free_bytes": self._free,
                "lag_ms": self.lag_ms,
            },
        )
        self._limits = limits
        self.offer((limits,))

    def _tell_losses(self) -> None:
        """Warn of what went wrong since the last time and no client was told of."""
        dropped_sends = self._namespace.dropped_sends
        if dropped_sends > self._dropped_sends_told:
            log.warning(
                "pre-settled sends were refused and dropped; their senders cannot learn it",
                {"dropped": dropped_sends - self._dropped_sends_told, "since_start": dropped_sends},
            )
            self._dropped_sends_told = dropped_sends
        failed = self._namespace.failed_evaluations
        if failed > self._failed_evaluations_told:
            log.warning(
                "rules could not be evaluated for messages: dead letters of subscriptions with the reason "
                "FilterEvaluationException say which and why; look at the rules of subscriptions without "
                "DeadLetteringOnFilterEvaluationExceptions, where they count as false",
                {"failed": failed - self._failed_evaluations_told, "since_start": failed},
            )
            self._failed_evaluations_told = failed

    def health(self) -> dict[str, Any]:
        """Give figures for `GET /health`; `status` is `ok` or says what is wrong."""
        if self._failed:
            status = "failed: the broker is stopping"
        elif self._limits.low_space:
            status = "low space: sends are refused"
        elif self._limits.lagging:
            status = "lagging: sends are refused"
        elif self._limits.capture_full:
            status = "the event log lags behind by all that it may: sends are refused"
        else:
            status = "ok"
        return {
            "status": status,
            "lag_ms": self.lag_ms,
            "longest_turn_ms": self._turns.longest_turn_ms,
            "uncommitted_bytes": self.uncommitted_bytes,
            "lost_bodies": self._bodies.lost_bodies,
            **asdict(self._namespace.totals()),
        }

    def _fail(self, failure: BaseException) -> None:
        self._failed = True
        self._idle.set()
        self._on_failure(failure)

    def _spawn(self, coroutine: Any) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(tell_failure)

    def next_deadline_ms(self) -> int | None:
        """Give when something is due by itself, None for never."""
        return self._engine.next_deadline_ms()

    async def catch_up(self) -> None:
        """Do what is due and commit all that was offered; of use when the clock was moved."""
        if self._timer is not None:  # set for a clock that runs evenly
            self._timer.cancel()
            self._timer = None
        while not self._failed:
            self._pump()
            await self._idle.wait()
            if self._effects or self._engine.under_way:
                await asyncio.sleep(0)  # for the turns that hand them out, and for its steps
            elif self._engine.idle:
                break

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
        self._capture_full = is_full

    def forget_events(self, no: int) -> None:
        """Drop what happened in the batches up to this one, with the commits to come."""
        if no > self._engine.events_exported_to:
            self._engine.events_exported_to = no
            self.offer(())

    # The end

    async def rest(self) -> None:
        """Commit what was offered and what has happened; from then on nothing happens by itself."""
        self._housekeeping.cancel()
        self._namespace.flush_events()
        await self.catch_up()
        self._resting = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def stop(self) -> None:
        """Commit what was offered, then close the store."""
        await self.rest()
        await self._store.close()
