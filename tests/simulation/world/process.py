"""One life of the broker under simulation: what its namespaces share, and how it starts.

Owns: the clock, the turns and the connections of one process, and which namespace a connection or a request
has chosen. Must not know: what one namespace consists of (`shard`), what clients want.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from traceback import format_exception
from typing import TYPE_CHECKING, cast

from peeklock.broker.vocabulary.commands import AcceptClock, ClockStepped, LimitSending
from peeklock.gateway.context import GatewayLimits
from peeklock.server.loop.clock import SlewedClock
from peeklock.server.namespaces.registry import Registry
from tests.simulation.oracle.bounds import Guest
from tests.simulation.oracle.records import Violation
from tests.simulation.world.alarms import Alarm
from tests.simulation.world.http_service import HttpService
from tests.simulation.world.machine import TICK_MS
from tests.simulation.world.served import Served
from tests.simulation.world.shard import SLICE, Shard
from tests.simulation.world.sizes import small_buffers
from tests.simulation.world.wire import Wire

if TYPE_CHECKING:
    from peeklock.server.namespaces.served import ServedNamespace
    from tests.simulation.world.node import Node
    from tests.simulation.world.tenant import Tenant


class Process:
    """One life of the broker: engines, gateways, timers. Its memory is lost with it."""

    def __init__(self, node: Node, clock: SlewedClock, offset_ms: int) -> None:
        """Begin empty; `offset_ms`: how far the clock is ahead of `Node.passed_ms`."""
        self.world = world = node.world
        self.node = node
        self.clock = clock
        self._offset_ms = offset_ms
        self.pieces = node.pieces
        self.dead = False
        self.connections: dict[int, Served] = {}
        self.bounds = node.bounds
        self.buffers = small_buffers()
        self.bounds.started(self.buffers)
        self.worked_s = 0.0
        """Time that the work of connections has taken: the clock of turns only."""
        self.rounds = 0
        """How many rounds of waiting connections were served."""
        self.turns = self.pieces.turns(
            self.call_soon,
            self._call_later,
            on_defect=self._escaped,
            clock_s=lambda: world.now_ms / 1000 + self.worked_s,
        )
        self._tracking = 0
        self.shards = [Shard(self, tenant) for tenant in node.tenants]
        self.registry = self._register()

    def _register(self) -> Registry:
        """Return the server's registry of the namespaces; a shard has all that it asks for."""
        first, *others = (cast("ServedNamespace", shard) for shard in self.shards)
        registry = Registry(first)
        for other in others:
            registry.add(other)
        return registry

    def recover(self) -> None:
        """Recover all namespaces."""
        for shard in self.shards:
            shard.recover()

    def shard_of(self, tenant: Tenant) -> Shard:
        """Return the part of this process that serves a namespace."""
        return next(shard for shard in self.shards if shard.tenant is tenant)

    def limit(self) -> None:
        """Tell what limits sending since before the start."""
        for shard in self.shards:
            if shard.tenant.limits != LimitSending():
                shard.offer([shard.tenant.limits])

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
            for shard in self.shards:
                shard.checker.clock_stepped(step_ms)
                shard.offer([ClockStepped(step_ms)])
        self.follow_clock()

    def accept_clock(self) -> None:
        """Accept the wall clock, as an operator does."""
        for shard in self.shards:
            shard.checker.clock_accepted()
            shard.offer([AcceptClock()])

    # Connections

    def accept(self, connection_id: int, wire: Wire, guest: Guest | None, tenant: Tenant) -> None:
        """Serve a connection: of the default namespace until its client has chosen one."""
        gateway = self.pieces.gateway(
            connection_id,
            namespaces=self.registry,
            tracking=self.track,
            log=lambda event, fields: None,
            now_ms=self.now_ms,
            limits=GatewayLimits(slice_messages=SLICE),
            on_defect=self._met,
            buffers=self.buffers,
            ahead_ms=lambda: self.clock.ahead_ms,
            on_chosen=partial(self._chosen, connection_id),
        )
        first = self.shards[0]
        self.connections[connection_id] = Served(first, connection_id, wire, gateway, guest, tenant)
        first.driver.connect(connection_id)
        if guest is not None:
            self.bounds.came(guest)

    def _chosen(self, connection_id: int, shard: Shard) -> None:
        """Hand a connection over to the namespace that its client has chosen."""
        connection = self.connections[connection_id]
        if shard is not connection.shard:
            self.world.note(f"c{connection_id} joins '{shard.name}'")
            connection.shard.driver.disconnect(connection_id)
            connection.shard = shard
            shard.driver.connect(connection_id)

    def forget(self, connection_id: int) -> None:
        """Drop a connection that is over."""
        connection = self.connections.pop(connection_id, None)
        if connection is not None:
            connection.shard.driver.disconnect(connection_id)

    def http_for(self, headers: Mapping[str, str]) -> HttpService:
        """Return the HTTP side of the namespace that a request is for, as `server.net.protocols` does."""
        found = self.registry.by_host(headers["host"]) or self.registry.by_token(headers["authorization"])
        return cast("Shard", found or self.registry.default).http

    def cut(self) -> None:
        """Break all connections: the process died."""
        for connection in self.connections.values():
            connection.wire.cut()
        for shard in self.shards:
            shard.http.cut()

    def find_half_open(self) -> None:
        """Break half-open connections."""
        for connection in list(self.connections.values()):
            connection.find_half_open()
        for shard in self.shards:
            shard.http.find_half_open()

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

    # Names

    def track(self) -> str:
        """Return a fresh name for an error."""
        self._tracking += 1
        return f"track-{self._tracking}"


def _traceback(defect: Exception) -> str:
    return "".join(format_exception(defect))
