"""One namespace at work: commands in, durable batches, effects out. The only place that commits.

Owns: the engine, the store, and the loop that joins them: commands of all connections are applied as they
arrive, one batch commits while the next one fills, effects are handed to their connection after the commit.
Must not know: bytes of any protocol. Everything here runs on the event loop's thread; only the store has
threads of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from peeklock.broker.changes import Change
from peeklock.broker.commands import Command, Fetched, LimitSending, Release
from peeklock.broker.effects import (
    CoordinatorOpened,
    Deliver,
    DetachLink,
    Drained,
    Effect,
    Fetch,
    LinkRefused,
    ReceiverOpened,
    SenderOpened,
)
from peeklock.broker.namespace import Namespace
from peeklock.engine.engine import Engine
from peeklock.engine.reclaim import ReclaimRead
from peeklock.server import log
from peeklock.server.definitions import DEFINITIONS
from peeklock.server.tasks import tell_failure
from peeklock.store.base import Store, StoreError

if TYPE_CHECKING:
    from peeklock.broker.message import Message
    from peeklock.store.event_backlog import EventBacklog

_BY_LINK = frozenset(
    {CoordinatorOpened, DetachLink, Deliver, Drained, LinkRefused, ReceiverOpened, SenderOpened}
)
"""Effects addressed by link; all others but `Fetch` are addressed by reply_to."""

OWN_CONNECTION_ID = 0
"""Connection id of requests made by this process itself (administration, start-up); real connections start at
1."""

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

READ_ROWS_MAX = 16
"""Body rows read in one go: some 4 MB."""


class Connection(Protocol):
    """What the shard needs of a connection: a place to hand effects to."""

    def handle(self, effect: Effect, now_ms: int) -> None:
        """Take one effect; nothing is written yet."""

    def flush(self, now_ms: int) -> None:
        """Write what the effects of this turn have led to."""

    def bodies_wanted(self) -> set[int]:
        """Name the body rows that deliveries wait for."""

    def bodies_arrived(self, now_ms: int) -> None:
        """Try the waiting deliveries again."""


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
    ) -> None:
        """Join an opened store and a recovered engine.

        `on_definitions` is called with the facts about entities and rules of a batch once they are durable,
        and the time.
        `on_failure` is called when a commit or the core itself fails: the process must stop then, since
        memory is not what the disk has.
        """
        self._engine = engine
        self._namespace = namespace
        self._store = store
        self.now_ms = now_ms
        self._min_free_bytes = min_free_bytes
        self._on_definitions = on_definitions
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._connections: dict[int, Connection] = {}
        self._waiters: dict[int, asyncio.Future[Effect]] = {}
        self._requests = 0
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms: int | None = None
        self._asked_at_ms = 0
        self._slice_started_at: float | None = None  # monotonic; of one after which more is due
        self._rest_until = 0.0  # monotonic; the next one may follow then
        self._tasks: set[asyncio.Task[None]] = set()
        self._rows_under_way: set[int] = set()
        self._waiting_for_room: set[Connection] = set()
        self._waiting_for_bodies: dict[int, Connection] = {}
        self._fetches: dict[int, list[tuple[Fetch, int]]] = {}  # by row under way, with their slots
        self._idle = asyncio.Event()
        self._idle.set()
        self._failed = False
        self._limits = LimitSending()
        self._capture_full: Callable[[], bool] = bool  # no event log: never
        self._resting = False  # nothing happens by itself any more
        self._dropped_sends_told = 0
        self._failed_evaluations_told = 0
        self._ticked_at = self._loop.time()
        self.lag_ms = 0
        self._housekeeping = self._loop.create_task(self._keep_house())
        self._housekeeping.add_done_callback(tell_failure)

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
        self._connections.pop(connection_id, None)
        self._waiting_for_bodies.pop(connection_id, None)

    def offer(self, commands: Iterable[Command]) -> None:
        """Apply commands now; their effects follow when durable."""
        self._apply(commands)
        # While a batch is in flight, its end closes the next one.
        if not self._scheduled and not self._engine.in_flight:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def offer_from_socket(self, commands: Iterable[Command]) -> None:
        """Apply commands and close a batch at once if none is in flight: a turn of the loop less.

        Never to be called while effects are handed out, since later ones would overtake.
        """
        self._apply(commands)
        if not self._engine.in_flight:
            self._pump()

    def _apply(self, commands: Iterable[Command]) -> None:
        now = self._asked_at_ms = self.now_ms()
        offer = self._engine.offer
        try:
            for command in commands:
                offer(command, now)
        except BaseException as defect:
            # What the core has half done must not be built upon, whoever asked for it.
            self._fail(defect)
            raise

    def submit(self, make: Callable[[tuple[int, int, int, int]], Command]) -> asyncio.Future[Effect]:
        """Ask something for this process itself; `make` is given the reply-to. The future gives the answering
        effect."""
        self._requests += 1
        future: asyncio.Future[Effect] = self._loop.create_future()
        self._waiters[self._requests] = future
        self.offer((make((OWN_CONNECTION_ID, 0, 0, self._requests)),))
        return future

    # The way down and up

    def _pump(self) -> None:
        self._scheduled = False
        if self._failed:
            return
        engine = self._engine
        if engine.in_flight:
            return  # its end comes here again
        now = self.now_ms()
        self._advance(now)
        engine.skip_events(self._store.event_backlog.first_no)
        batch = engine.take_batch(now)
        if batch is None:
            self._rest()
            self._dispatch(engine.release(), now)
        else:
            self._idle.clear()
            definitions = [change for change in batch.changes if type(change) in DEFINITIONS]
            # A callback, not a task that awaits: two turns of the loop less in the latency of each send.
            committing = asyncio.ensure_future(self._store.commit(batch))
            committing.add_done_callback(partial(self._committed, batch.no, definitions))
        self._set_timer(now)

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
        self._rest()
        now = self.now_ms()
        if definitions:
            self._on_definitions(definitions, now)
        self._dispatch(self._engine.committed(no, frame_bytes, now), now)
        if self._waiting_for_room:
            waiting, self._waiting_for_room = self._waiting_for_room, set()
            for connection in waiting:
                connection.flush(now)
        self._win_space()
        self._idle.set()
        self._pump()

    def _dispatch(self, effects: list[Effect], now: int) -> None:
        touched: dict[int, Connection] = {}
        undelivered: list[Command] = []
        fetches: list[Fetch] = []
        connections = self._connections
        by_link = _BY_LINK
        for effect in effects:
            if type(effect) in by_link:
                to: int = effect.link[0]  # type: ignore[union-attr]
            elif type(effect) is Fetch:
                fetches.append(effect)
                continue
            else:
                to = effect.reply_to[0]  # type: ignore[union-attr]
            connection = touched.get(to)
            if connection is None:
                if to == OWN_CONNECTION_ID:
                    self._answer(effect)
                    continue
                connection = connections.get(to)
                if connection is None:
                    if type(effect) is Deliver and effect.lock_token is not None:
                        # Its connection was closed meanwhile, which leaves locks alone; the client never
                        # had this message (L-16). Nothing is locked any more if it broke (L-13).
                        undelivered.append(Release(effect.message.queue_id, effect.lock_token, None))
                    continue
                touched[to] = connection
            connection.handle(effect, now)
        for connection_id, connection in touched.items():
            connection.flush(now)
            self._fetch_bodies(connection_id, connection)
        if undelivered:
            self.offer(undelivered)
        if fetches:
            self._fetch_routing(fetches)

    def _answer(self, effect: Any) -> None:
        future = self._waiters.pop(effect.reply_to[3], None)
        if future is not None and not future.done():
            future.set_result(effect)

    # Bodies that are not in memory

    def body(self, message: Message) -> bytes | None:
        """Give a message's body if it is in memory."""
        return self._engine.bodies.get(message.body_row, message.body_slot)

    def _fetch_bodies(self, connection_id: int, connection: Connection) -> None:
        """Read the body rows that a connection's deliveries wait for, and the row after: backlogs are read in
        order."""
        wanted = connection.bodies_wanted()
        if not wanted:
            self._waiting_for_bodies.pop(connection_id, None)
            return
        self._waiting_for_bodies[connection_id] = connection
        engine = self._engine
        rows = {row for row in wanted if row not in self._rows_under_way}
        if not rows:
            return
        following = max(rows) + 1
        if (
            following not in self._rows_under_way
            and engine.holds_row(following)
            and engine.bodies.get(following, 0) is None
        ):
            rows.add(following)
        self._want(rows)

    def _fetch_routing(self, fetches: list[Fetch]) -> None:
        """Answer with the routing fields of stored messages, once their bodies are in memory."""
        answers: list[Command] = []
        rows = set()
        for fetch in fetches:
            payload = self.body(fetch.message)
            if payload is None:
                # Named now: a body that is copied forward meanwhile is still where it was.
                row, slot = fetch.message.body_row, fetch.message.body_slot
                self._fetches.setdefault(row, []).append((fetch, slot))
                rows.add(row)
            else:
                answers.append(_fetched(fetch, payload))
        if answers:
            self.offer(answers)
        if rows := rows - self._rows_under_way:
            self._want(rows)

    def _want(self, rows: set[int]) -> None:
        """Read rows that are not under way; they are not dropped meanwhile."""
        self._rows_under_way |= rows
        for row in rows:
            self._engine.bodies.want(row)
        self._spawn(self._read_bodies(sorted(rows)))

    async def _read_bodies(self, rows: list[int]) -> None:
        for first in range(0, len(rows), READ_ROWS_MAX):
            try:
                found = await self._store.read_body_rows(rows[first : first + READ_ROWS_MAX])
            except StoreError as failure:
                self._fail(failure)
                return
            self._rows_under_way.difference_update(found)
            self._take_bodies(found)

    def _take_bodies(self, found: dict[int, list[bytes]]) -> None:
        now = self.now_ms()
        answers: list[Command] = []
        for row, payloads in found.items():
            self._engine.bodies.put(row, payloads)
            answers += [_fetched(fetch, payloads[slot]) for fetch, slot in self._fetches.pop(row, ())]
        if answers:
            self.offer(answers)
        for connection_id, connection in list(self._waiting_for_bodies.items()):
            connection.bodies_arrived(now)
            connection.flush(now)
            self._fetch_bodies(connection_id, connection)

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
        self._engine.reclaim_offer(found)
        self._pump()

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            at = self._loop.time()
            self.lag_ms = max(0, round((at - self._ticked_at - HOUSEKEEPING_S) * 1000))
            self._ticked_at = at
            free = await self._store.free_bytes()
            limits = LimitSending(
                low_space=free is not None and free < self._min_free_bytes(),
                lagging=self.lag_ms > LAG_MS_MAX,
                capture_full=self._capture_full(),
            )
            if limits != self._limits:
                log.warning(
                    "sending is open again" if limits == LimitSending() else "sending is limited",
                    {
                        "low_space": limits.low_space,
                        "lagging": limits.lagging,
                        "capture_full": limits.capture_full,
                        "free_bytes": free,
                        "lag_ms": self.lag_ms,
                    },
                )
                self._limits = limits
                self.offer((limits,))
            self._win_space()
            self._tell_losses()

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
            "uncommitted_bytes": self.uncommitted_bytes,
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
            if self._engine.idle:
                break

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


def _fetched(fetch: Fetch, payload: bytes) -> Fetched:
    return Fetched(fetch.queue_id, fetch.message.position, payload)
