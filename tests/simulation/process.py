"""One life of the broker under simulation: it drives the real pieces as `server.shard` does, and recovers.

Owns: the loop of one namespace in virtual time, and the steps of a commit. Must not know: what clients want.

A commit is taken, copied, and lands some virtual ms later; the process may die before it lands, or between
the landing and the answer. The store itself is only touched at the landing, so that a batch is wholly there
or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from traceback import format_exception
from typing import TYPE_CHECKING, Any

from peeklock.auth.authority import Authority
from peeklock.broker.commands import (
    NO_LINK,
    OWN_CONNECTION_ID,
    ClockStepped,
    Command,
    Fetched,
    Release,
    ReplyTo,
    UpdateEntity,
)
from peeklock.broker.descriptions import Description
from peeklock.broker.effects import (
    BY_LINK,
    Deliver,
    Done,
    Effect,
    EntityFound,
    Failed,
    Fetch,
    RulesFound,
)
from peeklock.broker.errors import (
    ArgumentInvalid,
    EntityAlreadyExists,
    EntityNotFound,
    RuleAlreadyExists,
    RuleNotFound,
    ServerBusy,
)
from peeklock.broker.message import Message
from peeklock.broker.namespace import Namespace
from peeklock.broker.quotas import TIERS
from peeklock.engine.bodies import BodyCache, has_lost
from peeklock.engine.engine import Engine
from peeklock.gateway.connection import Gateway
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.namespaces import OneNamespace
from peeklock.rest.receives import Receives
from peeklock.server.clock import SlewedClock
from peeklock.server.turns import Turns
from peeklock.store.base import Batch, Store, StoreFailed
from peeklock.testing.faults import Fault
from tests.simulation.alarms import Alarm
from tests.simulation.bounds import Guest
from tests.simulation.http_service import HTTP_CONNECTION_ID, HttpService
from tests.simulation.line import Line
from tests.simulation.machine import TICK_MS
from tests.simulation.records import Violation, frozen, snapshot
from tests.simulation.rulings import EXISTS, MISSING, Wish
from tests.simulation.served import Served
from tests.simulation.sizes import BODIES_BYTES_MAX, Patch, small_buffers
from tests.simulation.topology import in_order, lock_grace_ms, without_forwards
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.checker import Checker
    from tests.simulation.node import Node, Weather


_EXPECTED = (
    EntityNotFound | EntityAlreadyExists | ArgumentInvalid | RuleNotFound | RuleAlreadyExists | ServerBusy
)

SLICE = 2
"""Messages of a batch that are read, and then stored, in one turn: few, so that most batches take several."""

CHECK_EVERY = 50
"""Batches between two looks at the broker's own indexes."""


@dataclass(slots=True)
class Pieces:
    """What the broker is made of; a planted bug replaces one."""

    namespace: Callable[..., Namespace] = Namespace
    engine: Callable[..., Engine] = Engine
    store: Callable[[Store], Store] = field(default=lambda store: store)
    gateway: Callable[..., Gateway] = Gateway
    turns: Callable[..., Turns] = Turns
    receives: Callable[..., Receives] = Receives
    patches: Sequence[Patch] = ()
    """What is replaced in the broker while the seed runs."""


class Process:
    """One life of the broker: engine, gateways, timers. All memory of it is lost with it."""

    def __init__(self, world: World, node: Node, pieces: Pieces, clock: SlewedClock, offset_ms: int) -> None:
        """Begin with nothing; `offset_ms`: how far the clock is ahead of `Node.passed_ms`."""
        self.world = world
        self.clock = clock
        self._offset_ms = offset_ms
        self._random = world.random
        self._node = node
        self.pieces = pieces
        self.dead = False
        self.connections: dict[int, Served] = {}
        self.bounds = node.checker.bounds
        self.buffers = small_buffers()
        self.bounds.started(self.buffers)
        self.worked_s = 0.0
        """What the work of connections has taken: it is the clock of turns only."""
        self.rounds = 0
        """How often what waits has been served."""
        self.turns = pieces.turns(
            self.call_soon,
            self._call_later,
            on_defect=self._escaped,
            clock_s=lambda: world.now_ms / 1000 + self.worked_s,
        )
        self._pumping = False
        self._timer_ms: int | None = None
        self._opened_ms = self.passed_ms
        self._requests = 0
        self._tracking = 0
        self._rows_under_way: set[int] = set()
        self._fetches: dict[int, list[tuple[Fetch, int]]] = {}
        self.wishes: dict[ReplyTo, Wish] = {}
        """What the administration wants of rules, until it is answered."""
        self._asked: dict[ReplyTo, Callable[[Any], None]] = {}
        self.namespace = pieces.namespace(
            limits=TIERS["standard"],
            tokens=self._token,
            digest_key=b"simulation",
            captures_body=node.captures_body,
            slice_items=SLICE,
            lock_grace_ms=lock_grace_ms(world.seed),
        )
        self.engine = pieces.engine(self.namespace, BodyCache(BODIES_BYTES_MAX))
        self.namespaces = OneNamespace(Authority.development())
        self.http = HttpService(self)

    def recover(self, entities: list[Description]) -> None:
        drive(self.engine.recover(self._node.store, self.now_ms))
        self.namespace.check(self.now_ms)
        known = {
            entity.description.name: entity.description
            for entity in self._node.checker.facts.entities.values()
        }
        commands: list[Command] = []
        in_circles: list[Description] = []
        for entity in in_order(entities):
            if entity.name not in known:
                known[entity.name] = first = without_forwards(entity, known)
                commands.append(self._node.creation(first))
                if first != entity:
                    in_circles.append(entity)
            elif known[entity.name] != entity:
                commands.append(UpdateEntity(entity, self.own_reply()))
        commands += [UpdateEntity(entity, self.own_reply()) for entity in in_circles]
        self.offer(commands)

    def own_reply(self) -> ReplyTo:
        self._requests += 1
        return ReplyTo(OWN_CONNECTION_ID, NO_LINK, self._requests)

    def ask(self, make: Callable[[ReplyTo], Command], then: Callable[[Any], None]) -> None:
        """Ask something for this process itself: `then` is called with the effect."""
        reply_to = self.own_reply()
        self._asked[reply_to] = then
        self.offer([make(reply_to)])

    @property
    def checker(self) -> Checker:
        return self._node.checker

    @property
    def weather(self) -> Weather:
        return self._node.weather

    # Connections

    @property
    def now_ms(self) -> int:
        """The core's time."""
        return self.clock.now_ms()

    @property
    def passed_ms(self) -> int:
        """The time as it passes at the broker, over all processes."""
        return self.clock.now_ms() - self._offset_ms

    def follow_clock(self) -> None:
        """Compare the clocks from now on, as the server does."""
        self.world.after(TICK_MS, self._tick)

    def _tick(self) -> None:
        if self.dead:
            return
        step_ms = self.clock.adjust()
        if step_ms:
            self.world.note(f"the broker finds that the clock was set by {step_ms:+d} ms")
            self._node.checker.clock_stepped(step_ms)
            self.offer([ClockStepped(step_ms)])
        self.follow_clock()

    def accept(self, connection_id: int, line: Line, guest: Guest | None) -> None:
        """Serve a connection."""
        gateway = self.pieces.gateway(
            connection_id,
            namespaces=self.namespaces,
            tracking=self.track,
            log=lambda event, fields: None,
            now_ms=self.now_ms,
            limits=GatewayLimits(slice_messages=SLICE),
            on_defect=self._met,
            buffers=self.buffers,
            ahead_ms=lambda: self.clock.ahead_ms,
        )
        self.connections[connection_id] = Served(self, connection_id, line, gateway, guest)
        if guest is not None:
            self.bounds.came(guest)

    def forget(self, connection_id: int) -> None:
        """Drop a connection that is over."""
        self.connections.pop(connection_id, None)

    # Turns

    def call_soon(self, call: Callable[[], None]) -> None:
        """Have a function called in the next turn: a turn takes 1 ms when something is left for the next."""
        self.world.after(1, Alarm(self, call).ring)

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> Alarm:
        """Have a round served after so long, in the next turn at the earliest."""

        def serve() -> None:
            self.rounds += 1
            call()

        alarm = Alarm(self, serve)
        self.world.after(max(round(delay_s * 1000), 1), alarm.ring)
        return alarm

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Have a function called after so long."""
        self.world.after(round(delay_s * 1000), Alarm(self, call).ring)

    def _met(self, defect: Exception, tracking_id: str) -> None:
        raise Violation(f"a connection has met a defect:\n{_traceback(defect)}")

    def _escaped(self, defect: Exception) -> None:
        """Take what has left a gateway: no defect is to get so far."""
        if isinstance(defect, Violation):
            raise defect
        raise Violation(f"a defect has left the gateway:\n{_traceback(defect)}")

    # The way down and up, as in server.shard

    def offer(self, commands: list[Command]) -> None:
        if not commands:
            return
        now = self.now_ms
        for command in commands:
            self.engine.offer(command, now)
        self._plan_pump()

    def _plan_pump(self) -> None:
        if not self._pumping:
            self._pumping = True
            self.world.at(self.world.now_ms, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self.dead:
            return
        now = self.now_ms
        if self.engine.under_way:
            self.engine.go_on(now)
        if self.engine.under_way:
            self._plan_pump()
        self.engine.advance(now)
        if not self.engine.in_flight:
            batch = self.engine.take_batch(now)
            if batch is None:
                self._dispatch(self.engine.release())
            else:
                self._commit(batch)
        self._set_timer()

    def _commit(self, batch: Batch) -> None:
        world, weather = self.world, self._node.weather
        if batch.no % CHECK_EVERY == 0:
            self.namespace.check(self.now_ms)
        self.turns.batch_taken()
        taken = snapshot(batch, self._opened_ms, self.passed_ms)
        self._opened_ms = self.passed_ms
        world.note(f"batch {batch.no}: {len(batch.changes)} changes, {len(batch.body_rows)} rows")
        took_ms = self._random.randint(0, weather.commit_ms_max)
        if self._random.random() < weather.slow_commits:
            took_ms = self._random.randint(100, 2_000)
        landed_ms = self._random.randint(0, took_ms)
        world.after(landed_ms, self._land, frozen(batch), taken, took_ms - landed_ms)

    def _land(self, batch: Batch, taken: Any, answer_ms: int) -> None:
        if self.dead:
            return
        world, node = self.world, self._node
        dies = self._random.random() < node.weather.crash_in_commit
        if dies and self._random.random() < 0.5:
            node.die(f"in commit {batch.no}, which is lost")
            return
        try:
            size_bytes = drive(node.store.commit(batch))
        except StoreFailed as failure:
            if Fault.AFTER.value in str(failure):
                self._landed(taken)
            node.die(str(failure))
            return
        self._landed(taken)
        if dies:
            node.die(f"in commit {batch.no}, which is stored")
            return
        world.after(answer_ms, self._committed, batch.no, size_bytes)

    def _landed(self, taken: Any) -> None:
        self.world.note(f"batch {taken.no} is durable")
        self._node.checker.committed(taken, self.passed_ms)

    def _committed(self, no: int, size_bytes: int) -> None:
        if self.dead:
            return
        self._dispatch(self.engine.committed(no, size_bytes, self.now_ms))
        self.turns.batch_done()
        wanted = self.engine.reclaim_wanted()
        if wanted is not None:
            self.world.after(self._random.randint(0, 5), self._reclaim, wanted)
        self._pump()

    def _reclaim(self, wanted: Any) -> None:
        if self.dead:
            return
        self.world.note("reclaim")
        self.engine.reclaim_offer(drive(wanted.read_from(self._node.store)))
        self._pump()

    def _dispatch(self, effects: list[Effect]) -> None:
        touched: dict[int, Served] = {}
        undelivered: list[Command] = []
        fetches: list[Fetch] = []
        now = self.now_ms
        for effect in effects:
            if isinstance(effect, Fetch):
                fetches.append(effect)
                continue
            to: int = effect.link.connection_id if type(effect) in BY_LINK else effect.reply_to.connection_id  # type: ignore[union-attr]
            if to == HTTP_CONNECTION_ID:
                self.http.handle(effect)
                continue
            if to == OWN_CONNECTION_ID:
                if (then := self._asked.pop(effect.reply_to, None)) is not None:  # type: ignore[union-attr]
                    then(effect)
                    continue
                # What the administration asks for may be there already, or gone by itself, or what it is to
                # forward to, or just being deleted in slices.
                assert isinstance(effect, EntityFound | RulesFound | Done) or (
                    isinstance(effect, Failed) and isinstance(effect.error, _EXPECTED)
                ), effect
                wish = self.wishes.pop(effect.reply_to, None)
                if wish is not None:
                    condition = _condition(effect.error) if isinstance(effect, Failed) else None
                    self._node.checker.rulings.answered(wish, condition)
                continue
            connection = self.connections.get(to)
            if connection is not None:
                connection.gateway.handle(effect, self.body, now)
                touched[to] = connection
            elif isinstance(effect, Deliver) and effect.lock_token is not None:
                undelivered.append(Release(effect.message.queue_id, effect.lock_token, None))
        for connection in touched.values():
            connection.flush()
            self._fetch(connection.gateway)
        self.http.flush()
        self._fetch(self.http)
        self.offer(undelivered)
        self._fetch_routing(fetches)

    # Bodies that are not in memory

    def body(self, message: Message) -> bytes | None:
        body: bytes | None = self.engine.bodies.get(message.body_row, message.body_slot)
        return body

    def _fetch(self, reader: Gateway | HttpService) -> None:
        rows = sorted(row for row in reader.bodies_wanted() if row not in self._rows_under_way)
        self._want(rows)

    def _fetch_routing(self, fetches: list[Fetch]) -> None:
        answers: list[Command] = []
        for fetch in fetches:
            payload = self.body(fetch.message)
            if payload is not None:
                answers.append(_routing(fetch, payload))
                continue
            row, slot = fetch.message.body_row, fetch.message.body_slot
            self._fetches.setdefault(row, []).append((fetch, slot))
            if row not in self._rows_under_way:
                self._want([row])
        self.offer(answers)

    def _want(self, rows: list[int]) -> None:
        if rows:
            self._rows_under_way.update(rows)
            for row in rows:
                self.engine.bodies.want(row)
            self.world.after(self._random.randint(0, 8), self._fetched, rows)

    def _fetched(self, rows: list[int]) -> None:
        if self.dead:
            return
        self.world.note(f"read body rows {rows}")
        found = drive(self._node.store.read_body_rows(rows))
        assert not any(map(has_lost, found.values())), f"of the body rows {rows} some are damaged or gone"
        self._rows_under_way.difference_update(rows)
        answers: list[Command] = []
        for row, payloads in found.items():
            self.engine.bodies.put(row, payloads)
            answers += [_routing(fetch, payloads[slot]) for fetch, slot in self._fetches.pop(row, ())]
        self.offer(answers)
        for connection in list(self.connections.values()):
            gateway = connection.gateway
            if gateway.bodies_wanted():
                gateway.bodies_arrived(self.body, self.now_ms)
                connection.flush()
                self._fetch(gateway)
        if self.http.bodies_wanted():
            self.http.bodies_arrived()
            self.http.flush()
            self._fetch(self.http)

    # Time

    def _set_timer(self) -> None:
        due_ms = self.engine.next_deadline_ms()
        if due_ms is None:
            self._timer_ms = None
        elif self._timer_ms is None or due_ms < self._timer_ms:
            self._timer_ms = due_ms
            self.world.after(due_ms - self.now_ms, self._due, due_ms)

    def _due(self, due_ms: int) -> None:
        if self.dead or self._timer_ms != due_ms:
            return
        self._timer_ms = None
        self.world.note("timer")
        self._pump()

    # Randomness

    def _token(self) -> bytes:
        return self._random.randbytes(16)

    def track(self) -> str:
        self._tracking += 1
        return f"track-{self._tracking}"


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits to its end."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise AssertionError("the memory store is not to wait for anything")


def _traceback(defect: Exception) -> str:
    return "".join(format_exception(defect))


def _condition(error: Exception) -> str:
    """Name a refusal as clients are told it."""
    return EXISTS if isinstance(error, RuleAlreadyExists) else MISSING


def _routing(fetch: Fetch, payload: bytes) -> Fetched:
    return Fetched(fetch.queue_id, fetch.message.position, payload)
