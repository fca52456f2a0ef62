"""One life of the broker under simulation: the adapter between connections, the driver and a store in virtual
time.

Owns: when a commit, a read or a timer of the driver is over, and the recovery. Must not know: what leaves
when (see `engine.driver`), what clients want.

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
    ReplyTo,
    UpdateEntity,
)
from peeklock.broker.descriptions import Description
from peeklock.broker.effects import Deliver, Done, Effect, EntityFound, Failed, RulesFound
from peeklock.broker.errors import (
    ArgumentInvalid,
    EntityAlreadyExists,
    EntityNotFound,
    RuleAlreadyExists,
    RuleNotFound,
    ServerBusy,
)
from peeklock.broker.message import MessageState
from peeklock.broker.namespace import Namespace
from peeklock.broker.quotas import TIERS
from peeklock.engine.bodies import BodyCache, has_lost
from peeklock.engine.driver import Action, BodiesRead, Commit, Driver, HandOut, ReadRows, Reclaim, WakeAt
from peeklock.engine.engine import Engine
from peeklock.engine.reclaim import ReclaimRead
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
from tests.simulation.lease import Lease
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
    driver: Callable[..., Driver] = Driver
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
        self._durable_no = 0
        self._given: set[bytes] = set()  # lock tokens that a connection has been given
        self._busy = False
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
        self.driver = pieces.driver(self.engine)
        self.driver.connect(HTTP_CONNECTION_ID)
        self.body = self.driver.body
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
        self._lease = Lease(self)
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
        self.driver.connect(connection_id)
        if guest is not None:
            self.bounds.came(guest)

    def forget(self, connection_id: int) -> None:
        """Drop a connection that is over."""
        self.connections.pop(connection_id, None)
        self.driver.disconnect(connection_id)

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

    # What the driver says

    def offer(self, commands: list[Command]) -> None:
        if commands:
            self.driver.offer(commands, self.now_ms)
            self.go_on()

    def go_on(self) -> None:
        """Have the driver go on in this turn."""
        if not self._pumping:
            self._pumping = True
            self.world.at(self.world.now_ms, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        driver, now = self.driver, self.now_ms
        if driver.unfinished and not self.dead:
            driver.go_on(now)
            if driver.unfinished:
                self.go_on()
        while not self.dead:
            for action in driver.step(now, self._lease.until_ms):
                self._do(action, now)
            if not driver.more:
                break
            if self._lease.turn_is_over():
                self.call_soon(self._pump)
                break
        if not driver.in_flight:
            self._set_busy(driver.more)
        if driver.idle and not self.dead:
            self._check_locks()

    def _check_locks(self) -> None:
        """Check that what is locked was given to a connection, now that all effects have left."""
        for queue in self.namespace._queues.values():
            for token, lock in queue.locks.items():
                if token not in self._given and lock.message.state is MessageState.ACTIVE:
                    raise Violation(f"locked, and nobody was given it: {lock.message}")

    def _do(self, action: Action, now: int) -> None:
        world = self.world
        match action:
            case HandOut():
                self._hand_out(action, now)
            case BodiesRead(connection_id):
                if connection_id == HTTP_CONNECTION_ID:
                    self.http.bodies_arrived()
                elif connection_id in self.connections:
                    self.connections[connection_id].gateway.bodies_arrived(self.body, now)
                self._flush(connection_id)
            case Commit(batch):
                self._commit(batch)
            case ReadRows(rows):
                world.after(self._random.randint(0, 8), self._read, rows)
            case Reclaim(wanted):
                world.after(self._random.randint(0, 5), self._reclaim, wanted)
            case WakeAt(at_ms):
                self._wake_at(at_ms, now)

    def _hand_out(self, action: HandOut, now: int) -> None:
        connection_id, no = action.connection_id, action.batch_no
        if no is not None and no > self._durable_no:
            raise Violation(f"effects of batch {no} leave, and it is not on stable storage")
        if no is None and now >= self._lease.until_ms:
            raise Violation(f"effects leave without a batch {now - self._lease.until_ms} ms after the lease")
        connection = self.connections.get(connection_id)
        if connection is not None or connection_id == HTTP_CONNECTION_ID:
            tokens = [effect.lock_token for effect in action.effects if type(effect) is Deliver]
            self._given.update(token for token in tokens if token is not None)
        if connection is not None:
            for effect in action.effects:
                connection.gateway.handle(effect, self.body, now)
        elif connection_id == HTTP_CONNECTION_ID:
            for effect in action.effects:
                self.http.handle(effect)
        elif connection_id == OWN_CONNECTION_ID:
            for effect in action.effects:
                self._answered(effect)
        else:
            self.driver.undelivered(action.effects, now)
        self._flush(connection_id)

    def _flush(self, connection_id: int) -> None:
        connection = self.connections.get(connection_id)
        if connection is not None:
            connection.flush()
            self.driver.want(connection_id, connection.gateway.bodies_wanted())
        elif connection_id == HTTP_CONNECTION_ID:
            self.http.flush()
            self.driver.want(connection_id, self.http.bodies_wanted())

    def _answered(self, effect: Effect) -> None:
        """Take the answer to what this process asked.

        What the administration asks for may be there already, or gone by itself, or what it is to forward to,
        or just being deleted in slices.
        """
        reply_to: ReplyTo = effect.reply_to  # type: ignore[union-attr]  # no effect of a link comes here
        then = self._asked.pop(reply_to, None)
        if then is not None:
            then(effect)
            return
        assert isinstance(effect, EntityFound | RulesFound | Done) or (
            isinstance(effect, Failed) and isinstance(effect.error, _EXPECTED)
        ), effect
        wish = self.wishes.pop(reply_to, None)
        if wish is not None:
            condition = _condition(effect.error) if isinstance(effect, Failed) else None
            self._node.checker.rulings.answered(wish, condition)

    def _set_busy(self, busy: bool) -> None:
        if busy != self._busy:
            self._busy = busy
            (self.turns.batch_taken if busy else self.turns.batch_done)()

    def _commit(self, batch: Batch) -> None:
        world, weather = self.world, self._node.weather
        if batch.no % CHECK_EVERY == 0:
            self.namespace.check(self.now_ms)
        self._set_busy(False)  # the last batch is through
        self._set_busy(True)
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
        self._durable_no = taken.no
        self._node.checker.committed(taken, self.passed_ms)

    def _committed(self, no: int, size_bytes: int) -> None:
        if not self.dead:
            self.driver.committed(no, size_bytes, self.now_ms)
            self._pump()

    def _reclaim(self, wanted: ReclaimRead) -> None:
        if not self.dead:
            self.world.note("reclaim")
            self.driver.reclaimed(drive(wanted.read_from(self._node.store)), self.now_ms)
            self._pump()

    def _read(self, rows: list[int]) -> None:
        if self.dead:
            return
        self.world.note(f"read body rows {rows}")
        found = drive(self._node.store.read_body_rows(rows))
        if any(map(has_lost, found.values())):
            raise Violation(f"of the body rows {rows} that are waited for some are gone")
        self.driver.rows_read(found, self.now_ms)
        self._pump()

    # Time

    def _wake_at(self, at_ms: int | None, now: int) -> None:
        if at_ms != self._timer_ms:
            self._timer_ms = at_ms
            if at_ms is not None:
                self.world.after(at_ms - now, self._due, at_ms)

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
