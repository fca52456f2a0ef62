"""One seed with several nodes: what befalls them, and the verdict.

Owns: the faults of nodes, database and network between them. The clients, the checker and the phases are
those of one node (`tests.simulation.plan`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.simulation.actors.http_clients import has_http
from tests.simulation.bugs.registry import BUGS
from tests.simulation.cluster.cluster import Cluster
from tests.simulation.cluster.member import Member
from tests.simulation.oracle.records import Violation
from tests.simulation.plan import Result, Simulation, finished, run_seed
from tests.simulation.play import Play
from tests.simulation.world.accounts import FIRST
from tests.simulation.world.pieces import Pieces
from tests.simulation.world.sizes import SMALL_SIZES, patched
from tests.simulation.world.topology import has_circle
from tests.simulation.world.wire import Wire
from tests.simulation.world.world import World

FAULTS_MS = 20_000
FROZEN_MS = (300, 1_100, 2_500)
"""Shorter and longer than a lease."""

STALL_MS = 800


def run_nodes_seed(
    seed: int, *, nodes: int = 3, bug: str | None = None, trace: Callable[[str], None] | None = None
) -> Result:
    """Run one seed with several nodes to its end or to its first violation."""
    pieces = Pieces() if bug is None else BUGS[bug].pieces()
    with patched((*SMALL_SIZES, *pieces.patches)):
        world = World(_world_seed(seed, nodes), trace=trace)
        return finished(seed, ClusterSimulation(world, pieces, nodes))


def run_with(
    seed: int,
    *,
    nodes: int | None = None,
    bug: str | None = None,
    trace: Callable[[str], None] | None = None,
    events: Path | None = None,
) -> Result:
    """Run one seed with so many nodes, or with those that a planted bug needs; None = one without leases."""
    if nodes is None and bug is not None:
        nodes = BUGS[bug].nodes
    if nodes is None:
        return run_seed(seed, bug=bug, trace=trace, events=events)
    return run_nodes_seed(seed, nodes=nodes, bug=bug, trace=trace)


def _world_seed(seed: int, nodes: int) -> int:
    """Return the seed of the clients and entities: one of those with AMQP alone, and without circles."""
    random = Random(f"{nodes} nodes {seed}")
    while has_http(found := random.randrange(1_000_000)) or has_circle(found):
        pass
    return found


class ClusterSimulation(Simulation):
    """One world with several nodes and their clients."""

    node: Cluster

    def __init__(self, world: World, pieces: Pieces, nodes: int) -> None:
        self.world = world
        self.random = world.random
        self.slowness = 1
        self.node = Cluster(world, pieces, nodes)
        self.first = Play(world, self.node, FIRST, 1, first_uid=0, records_events=True)
        self.plays = [self.first]
        self.node.on_cut = self._cut
        self.hostile = None
        self.administrator = None
        self.faults_ms = FAULTS_MS
        self._faults = Random(f"faults of nodes {world.seed}")
        if self._faults.random() < 0.5:  # few clients: what leaves without a batch waits for none
            self.first.actors = self._faults.sample(self.first.actors, len(self.first.actors) // 2)

    def begin(self) -> None:
        """Start the nodes and wait for the entities."""
        super().begin()
        rates = self.first.tenant.fault_rates
        rates.wire_ms_max = min(rates.wire_ms_max, 40)
        self.first.checker.history.wire_ms_max = 3_000  # a frozen node holds bytes

    def figures(self) -> dict[str, int]:
        """Return counts of what clients have seen, and of takeovers."""
        return {**self.first.checker.figures(), "takeovers": self.node.takeovers}

    # Faults

    def _fault(self) -> int:
        """Inject one fault."""
        random, cluster = self._faults, self.node
        roll = random.random()
        owner = cluster.process_of(cluster.owner)
        member = owner if owner is not None and random.random() < 0.7 else random.choice(cluster.members)
        if roll < 0.12:
            member.die("killed")
        elif roll < 0.18:
            member.release()
        elif roll < 0.27:
            member.freeze(random.choice(FROZEN_MS))
        elif roll < 0.36 and owner is not None:
            owner.freeze(max(FROZEN_MS))
            self._thaw_behind(owner)
        elif roll < 0.46:
            member.cut_from_store(random.choice(FROZEN_MS))
        elif roll < 0.51:
            self._cut_from_clients(member, random.choice(FROZEN_MS))
        elif roll < 0.58:
            cluster.database.stall(random.choice((100, 400, STALL_MS)))
        elif roll < 0.64:
            cluster.database.promote()
        elif roll < 0.70 and owner is not None:
            cluster.database.lose(owner.session)
        elif roll < 0.80 and owner is not None:
            self._lose_in_stall(owner)
        else:
            self.first.befall(random.random())
        return 0

    def _thaw_behind(self, owner: Member) -> None:
        """Thaw a frozen owner just when another node has taken the store over."""
        if self.node.owner == owner.session:
            self.world.after(2, self._thaw_behind, owner)
        else:
            self.world.after(self._faults.randint(0, 12), owner.thaw)

    def _lose_in_stall(self, owner: Member) -> None:
        """Stall the standby, end the owner in a commit that waits for it, and promote the standby perhaps."""
        database, world, random = self.node.database, self.world, self._faults
        database.stall(STALL_MS)
        if random.random() < 0.4:
            world.after(random.randint(300, STALL_MS), database.promote)
        end_ms = world.now_ms + STALL_MS

        def end_in_commit() -> None:
            if database.is_waiting(owner.session):
                owner.die("killed in a commit that waits for the standby")
            elif world.now_ms < end_ms:
                world.after(5, end_in_commit)

        end_in_commit()

    def _cut(self, wire: Wire) -> None:
        """Cut the wire of a client."""
        for actor in self.first.actors:
            if actor.wire is wire:
                actor.cut()
        wire.cut()

    def _cut_from_clients(self, member: Member, ms: int) -> None:
        """Cut clients from a node; their connections through it turn half open."""
        self.world.note(f"{member.name} is cut off from clients for {ms} ms")
        member.is_cut_from_clients = True
        for actor in self.first.actors:
            if member.relay.has(actor.wire):
                actor.drop()

        def end() -> None:
            member.is_cut_from_clients = False

        self.world.after(ms, end)

    def _heal(self) -> None:
        """End all faults of nodes first, and wait for an owner."""
        self.world.run_to(self.world.now_ms + max(FROZEN_MS) + 1_000)
        if not self.world.run_until(lambda: self.node.process is not None, self.world.now_ms + 10_000):
            raise Violation("nobody owns the store 10 s after the last fault")
        super()._heal()

    def _finish(self) -> None:
        self.first.checker.finish()
        self.node.finish()
