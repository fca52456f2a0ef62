"""All nodes, as the one broker that clients see, and who owns the store in truth.

Owns: through which node a client connects, and what the checker learns of a takeover. Must not know: how a
node takes the lease.

To the checker a takeover is the death of one process and the start of the next, at the moment at which
nothing loses it any more. What the deposed process still does is then that of a dead one.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from peeklock.store.base import Batch
from tests.simulation.cluster.database import Database, Row
from tests.simulation.cluster.member import Member
from tests.simulation.oracle.bounds import Guest
from tests.simulation.oracle.records import Violation
from tests.simulation.world.node import Node
from tests.simulation.world.pieces import Pieces
from tests.simulation.world.tenant import Tenant
from tests.simulation.world.wire import Wire
from tests.simulation.world.world import World


class Cluster(Node):
    """Several nodes on one store."""

    def __init__(self, world: World, pieces: Pieces, nodes: int) -> None:
        """Describe nodes that have not started."""
        super().__init__(world, pieces)
        self.database = Database(world)
        self.members = [Member(self, f"n{number + 1}") for number in range(nodes)]
        self.owner: str | None = None
        """The session that has taken the store last, for good."""
        self._owned_since_ms = 0
        self.takeovers = 0
        self.on_cut: Callable[[Wire], None] = Wire.cut
        """Cuts the wire of a client, whom the checker hears of."""
        self._event_batches: set[int] = set()
        self._random = Random(f"clients of nodes {world.seed}")

    def start(self) -> None:
        """Start all nodes."""
        for member in self.members:
            member.start()

    @property
    def passed_ms(self) -> int:
        """The time as it passes everywhere."""
        return self.world.now_ms

    def connect(self, tenant: Tenant, random: Random, guest: Guest | None) -> Wire | None:
        """Connect a client through any node."""
        member = self._random.choice(self.members)
        if not member.is_up or member.is_cut_from_clients:
            return None
        return member.relay.accept(tenant, random)

    def find_half_open(self) -> None:
        """Break half-open connections, at the nodes too."""
        for member in self.members:
            member.relay.find_half_open()
            member.find_half_open()

    def process_of(self, session: str | None) -> Member | None:
        """Return the node whose process has a session, if it lives."""
        found = (member for member in self.members if member.is_up and member.session == session)
        return next(found, None)

    def choose(self) -> None:
        """Lead the administration to the owner, if it can be reached."""
        owner = self.process_of(self.owner)
        self.process = owner.process if owner is not None and owner.is_reachable else None

    # The truth

    def is_fenced(self, row: Row, epoch: int) -> bool:
        """Return whether the fence lets a commit pass: `WHERE epoch = ...`."""
        return row.epoch == epoch

    def taken(self, member: Member, row: Row) -> None:
        """Note that a node has taken the lease, and nothing loses that."""
        self.world.note(f"{row.session} has the store, epoch {row.epoch}, batch {row.batch_no}")
        first = self.owner is None
        if row.session != self.owner:
            self.takeovers += 1
        self.owner, self._owned_since_ms = row.session, self.world.now_ms
        for tenant in self.tenants:
            if not first:
                tenant.checker.crashed()
            tenant.checker.started(0)
        self.choose()

    def taken_again(self, row: Row) -> None:
        """Note that the owner has taken its lease again. Raises: Violation."""
        if row.session != self.owner:
            raise Violation(f"{row.session} takes the lease of {self.owner} again")

    def landed(self, session: str, batch: Batch) -> None:
        """Check that a batch which nothing loses any more is of the owner. Raises: Violation."""
        if session != self.owner:
            raise Violation(f"batch {batch.no} of {session} is durable, and {self.owner} owns the store")
        if batch.events is not None:
            self._event_batches.add(batch.no)

    def deposed_for_ms(self, session: str) -> int | None:
        """Return since when another process owns the store; None = it has not been taken over."""
        return None if session == self.owner else self.world.now_ms - self._owned_since_ms

    def finish(self) -> None:
        """Check that the log of events has no gap. Raises: Violation."""
        rows = self.database.standby.event_rows
        if missing := self._event_batches - rows.keys():
            raise Violation(f"events of the batches {sorted(missing)} are not in the log")
        if strange := rows.keys() - self._event_batches:
            raise Violation(f"events of the batches {sorted(strange)} are in the log, and are not durable")
