"""The broker under simulation: a machine, and the processes that serve its namespaces one after another.

Owns: when a process starts and dies, and the time that passes over all of them. Must not know: how a process
works, what one namespace contains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING

from peeklock.broker.vocabulary.effects import Effect
from peeklock.server.loop.clock import SlewedClock
from peeklock.store.base import Store
from peeklock.testing.wire import MemoryWire
from tests.simulation.oracle.bounds import Bounds, Guest
from tests.simulation.world.commits import Commits
from tests.simulation.world.lease import Lease
from tests.simulation.world.machine import Machine, sets_clocks
from tests.simulation.world.pieces import Pieces
from tests.simulation.world.process import Process
from tests.simulation.world.wire import Wire
from tests.simulation.world.world import World

if TYPE_CHECKING:
    from tests.simulation.world.shard import Shard
    from tests.simulation.world.tenant import Tenant


class Node:
    """One broker with one or two namespaces, whose stores outlive its processes."""

    def __init__(self, world: World, pieces: Pieces) -> None:
        """Describe a broker that has not started, without a namespace."""
        self.world = world
        self.pieces = pieces
        self.tenants: list[Tenant] = []
        """The namespaces, the default one first."""
        self.bounds = Bounds(lambda: world.now_ms)
        self.machine = Machine(world)
        self.process: Process | None = None
        self._behind_ms = 0
        """How far the broker's passed time is behind the world's, while no process runs."""
        self.deaths = 0
        self._last_id = 0

    def add(self, tenant: Tenant) -> None:
        """Serve a namespace from the next start on."""
        self.tenants.append(tenant)

    def new_id(self) -> int:
        """Return the id of a new connection."""
        self._last_id += 1
        return self._last_id

    def start(self) -> None:
        """Start a process: recover each namespace from its store, create missing entities."""
        if self.process is not None:
            return
        clock = SlewedClock(self.machine.wall_s, self.machine.passed_s)
        offset_ms = clock.now_ms() - self.passed_ms
        self.world.note(f"start, broker clock {offset_ms:+d}")
        for tenant in self.tenants:
            tenant.checker.started(offset_ms)
            tenant.compare(tenant.store)
        self.process = Process(self, clock, offset_ms)
        self.process.recover()
        if sets_clocks(self.world.seed):
            self.process.follow_clock()
        self.process.limit()

    def die(self, why: str) -> None:
        """End the process at once: its memory is lost, of all namespaces, every connection breaks."""
        process = self.process
        if process is None:
            return
        self._behind_ms = self.world.now_ms - self.passed_ms
        self.process = None
        self.world.note(f"crash: {why}")
        self.deaths += 1
        for tenant in self.tenants:
            tenant.checker.crashed()
        process.dead = True
        process.cut()

    def jump(self, ms: int) -> None:
        """Suspend all machines, the broker's among them."""
        for tenant in self.tenants:
            tenant.checker.jumped()
        self.world.jump(ms)
        for tenant in self.tenants:
            tenant.checker.jumped()

    @property
    def passed_ms(self) -> int:
        """The time as it passes at the broker: across restarts, and independent of steps of a clock."""
        if self.process is None:
            return self.world.now_ms - self._behind_ms
        return self.process.passed_ms

    @property
    def wall_ms(self) -> int:
        """The wall clock of the broker's machine, which clients use too."""
        return self.world.now_ms + self.machine.ahead_ms

    def accept_clock(self) -> None:
        """Accept the wall clock, as an operator does."""
        if self.process is not None:
            self.world.note("the wall clock is right")
            self.process.accept_clock()

    # What a process has from its node

    def connect(self, tenant: Tenant, random: Random, guest: Guest | None) -> Wire | None:
        """Open a wire for a client of a namespace; None while no process listens."""
        if self.process is None:
            return None
        memory = MemoryWire(random, delay_ms_max=tenant.fault_rates.wire_ms_max, split=True)
        wire = Wire(tenant.world, memory)
        self.process.accept(self.new_id(), wire, guest, tenant)
        return wire

    def world_of(self, tenant: Tenant) -> World:
        """Return the world in which a namespace works here."""
        return tenant.world

    def store_of(self, tenant: Tenant) -> Store:
        """Return what a process reads of a namespace."""
        return tenant.store

    def commits(self, shard: Shard, committed: Callable[[int, int], None]) -> Commits:
        """Return what commits the batches of a namespace."""
        return Commits(shard, committed)

    def lease_of(self, shard: Shard) -> Lease:
        """Return the lease on the store of a namespace."""
        return Lease(shard)

    def check_leaving(self, batch_no: int | None, effects: Iterable[Effect]) -> None:
        """Check that effects may leave: after a batch, or without one."""

    def find_half_open(self) -> None:
        """Break half-open connections, as TCP's keep-alive does: the broker sees a broken connection."""
        if self.process is not None:
            self.process.find_half_open()
