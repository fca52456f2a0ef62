"""One life of the broker under simulation: its parts, and how it starts.

Owns: the recovery, the clock, the turns and the connections of one process. Must not know: when a commit, a
read or a timer of the driver ends (`driving`), what clients want.
"""

from __future__ import annotations

from collections.abc import Callable
from traceback import format_exception
from typing import TYPE_CHECKING

from peeklock.auth.authority import Authority
from peeklock.broker.vocabulary.commands import OWN_CONNECTION_ID, ClockStepped, Command, UpdateEntity
from peeklock.broker.vocabulary.descriptions import Description
from peeklock.broker.vocabulary.quotas import TIERS
from peeklock.engine.bodies import BodyCache
from peeklock.gateway.choice import OneNamespace
from peeklock.gateway.context import GatewayLimits
from peeklock.server.loop.clock import SlewedClock
from peeklock.testing.pump import finish
from tests.simulation.oracle.bounds import Guest
from tests.simulation.oracle.records import Violation
from tests.simulation.world.alarms import Alarm
from tests.simulation.world.driving import Driving
from tests.simulation.world.http_service import HTTP_CONNECTION_ID, HttpService
from tests.simulation.world.machine import TICK_MS
from tests.simulation.world.own_requests import OwnRequests
from tests.simulation.world.pieces import Connection, Pieces
from tests.simulation.world.served import Served
from tests.simulation.world.sizes import BODIES_BYTES_MAX, small_buffers
from tests.simulation.world.topology import in_order, lock_grace_ms, without_forwards
from tests.simulation.world.wire import Wire
from tests.simulation.world.world import World

if TYPE_CHECKING:
    from tests.simulation.oracle.checker import Checker
    from tests.simulation.world.node import FaultRates, Node

SLICE = 2
"""Messages of a batch that are read, and then stored, in one turn: few, so that most batches take several
turns."""


class Process:
    """One life of the broker: engine, gateways, timers. Its memory is lost with it."""

    def __init__(self, world: World, node: Node, pieces: Pieces, clock: SlewedClock, offset_ms: int) -> None:
        """Begin empty; `offset_ms`: how far the clock is ahead of `Node.passed_ms`."""
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
        """Time that the work of connections has taken: the clock of turns only."""
        self.rounds = 0
        """How many rounds of waiting connections were served."""
        self.turns = pieces.turns(
            self.call_soon,
            self._call_later,
            on_defect=self._escaped,
            clock_s=lambda: world.now_ms / 1000 + self.worked_s,
        )
        self._tracking = 0
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
        self.own = OwnRequests(self)
        self._driving = Driving(self, node)
        self.go_on = self._driving.go_on
        """Steps the driver in this turn."""

    def recover(self, entities: list[Description]) -> None:
        finish(self.engine.recover(self._node.store, self.now_ms))
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
                commands.append(UpdateEntity(entity, self.own.reply_to()))
        commands += [UpdateEntity(entity, self.own.reply_to()) for entity in in_circles]
        self._driving.start()
        self.offer(commands)

    @property
    def checker(self) -> Checker:
        return self._node.checker

    @property
    def fault_rates(self) -> FaultRates:
        return self._node.fault_rates

    # Time

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

    # Connections

    def offer(self, commands: list[Command]) -> None:
        """Apply commands; their effects leave when they are durable."""
        if commands:
            self.driver.offer(commands, self.now_ms)
            self.go_on()

    def connection(self, connection_id: int) -> Connection | None:
        """Return a connection, or its stand-in when it is gone."""
        if connection_id == HTTP_CONNECTION_ID:
            return self.http
        return self.own if connection_id == OWN_CONNECTION_ID else self.connections.get(connection_id)

    def accept(self, connection_id: int, wire: Wire, guest: Guest | None) -> None:
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
        self.connections[connection_id] = Served(self, connection_id, wire, gateway, guest)
        self.driver.connect(connection_id)
        if guest is not None:
            self.bounds.came(guest)

    def forget(self, connection_id: int) -> None:
        """Drop a connection that is over."""
        self.connections.pop(connection_id, None)
        self.driver.disconnect(connection_id)

    # Turns

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call a function in the next turn: a turn takes 1 ms when something is left for the next."""
        self.world.after(1, Alarm(self, call).ring)

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> Alarm:
        """Serve a round after a delay, in the next turn at the earliest."""

        def serve() -> None:
            self.rounds += 1
            call()

        alarm = Alarm(self, serve)
        self.world.after(max(round(delay_s * 1000), 1), alarm.ring)
        return alarm

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call a function after a delay."""
        self.world.after(round(delay_s * 1000), Alarm(self, call).ring)

    def _met(self, defect: Exception, tracking_id: str) -> None:
        raise Violation(f"a connection has met a defect:\n{_traceback(defect)}")

    def _escaped(self, defect: Exception) -> None:
        """Take what has left a gateway: no defect may get this far."""
        if isinstance(defect, Violation):
            raise defect
        raise Violation(f"a defect has left the gateway:\n{_traceback(defect)}")

    # Randomness

    def _token(self) -> bytes:
        return self._random.randbytes(16)

    def track(self) -> str:
        self._tracking += 1
        return f"track-{self._tracking}"


def _traceback(defect: Exception) -> str:
    return "".join(format_exception(defect))
