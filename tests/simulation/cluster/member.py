"""One node of a cluster: its lease on the store, and its processes one after another.

Owns: when the node takes, renews, loses and gives back the lease, as `store.postgres.leases` does, and what
befalls it: frozen, cut off from the database, dead. Must not know: what the database decides, what clients
want.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from peeklock.broker.vocabulary.effects import Deliver, Effect, LocksRenewed, SessionLockRenewed
from peeklock.server.loop.clock import SlewedClock
from peeklock.store.base import Store
from peeklock.store.postgres.leases import RENEWALS, Lease
from tests.simulation.cluster.commits import StoreCommits, StoreLease
from tests.simulation.cluster.database import Answer, Row, Transaction, renewed
from tests.simulation.cluster.link import Link
from tests.simulation.cluster.relay import Relay
from tests.simulation.oracle.records import Violation
from tests.simulation.world.node import Node
from tests.simulation.world.process import Process
from tests.simulation.world.world import World

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster import Cluster
    from tests.simulation.world.shard import Shard
    from tests.simulation.world.tenant import Tenant

TTL_MS = 1_000


def _is_of_lock(effect: Effect) -> bool:
    """Return whether an effect says that a client holds something: locks are not stored, so that no commit
    checks them."""
    if isinstance(effect, Deliver):
        return effect.lock_token is not None
    return isinstance(effect, LocksRenewed | SessionLockRenewed)


LOAD_MS_MAX = 150
"""For reading the store, behind the commit of the lease."""

WATCH_MS = 100
"""How often a node looks at the row: as with `LISTEN`, and polling besides."""


class GatedWorld(World):
    """The world as a node sees it: what happens while it is frozen happens when it is thawed."""

    def __init__(self, world: World, name: str) -> None:
        """Share the time and the random source."""
        super().__init__(world.seed)
        self.random = world.random
        self._time = world._time
        self._prefix = f"{name}: "
        self.is_frozen = False
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def at(self, due_ms: int, do: Callable[..., None], *args: Any) -> None:
        """Plan an event."""
        super().at(due_ms, self._come, do, args)

    def _come(self, do: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.is_frozen:
            self._held.append((do, args))
        else:
            do(*args)

    def thaw(self) -> None:
        """Go on."""
        self.is_frozen = False
        held, self._held = self._held, []
        for do, args in held:
            self.at(self.now_ms, do, *args)


class Member(Node):
    """One node; see the module."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        """Describe a node that has not started."""
        self.gated = GatedWorld(cluster.world, name)
        super().__init__(self.gated, cluster.pieces)
        self.cluster = cluster
        self.name = name
        self.tenants = cluster.tenants
        self.ttl_ms = TTL_MS
        self.link = Link(cluster.world, self.gated, Random(f"link of {name} {cluster.world.seed}"))
        self.relay = Relay(self)
        self._random = Random(f"loads of {name} {cluster.world.seed}")
        self.is_up = False
        self.is_cut_from_clients = False
        self.lease: Lease | None = None
        self.owner: str | None = None
        """The session that owns the store, as far as this node knows."""
        self._life = 0
        self._takes = False

    # Lives of the node

    @property
    def session(self) -> str:
        """Of this process alone; the part before the colon is the instance."""
        return f"{self.name}:{self._life}"

    @property
    def is_reachable(self) -> bool:
        """Whether the administration gets through."""
        return self.is_up and not self.gated.is_frozen and not self.link.is_cut

    def start(self) -> None:
        """Start the node: it waits for the lease."""
        if not self.is_up:
            self.is_up = True
            self._life += 1
            self.world.note(f"starts as {self.session}")
            self._watch(self._life)
            self._keep(self._life)

    def die(self, why: str) -> None:
        """End the process of the node at once; it starts again soon."""
        if not self.is_up:
            return
        self.is_up = False
        self.world.note(f"ends: {why}")
        self.cluster.deaths += 1
        process, self.process, self.lease, self._takes = self.process, None, None, False
        self.owner = None
        if process is not None:
            process.dead = True
            process.cut()
        self.relay.cut()
        self.cluster.choose()
        # Whoever starts it again does so with an empty memory: what was held for it is for a dead process.
        self.gated.thaw()
        self.cluster.world.after(self.cluster.world.random.choice((1, 20, 800)), self.start)

    def release(self) -> None:
        """Stop properly between two commits, and give the lease back: `_RELEASE`."""
        lease = self.lease
        if lease is None or lease.commits or self.gated.is_frozen:
            return
        epoch = lease.epoch

        def change(row: Row, now_ms: int) -> Row | None:
            return replace(row, session=None, expires_ms=now_ms) if row.epoch == epoch else None

        self.ask(Transaction(self.session, change, _ignored), self.cluster.database.run)
        self.die("stopped")

    def freeze(self, ms: int) -> None:
        """Stop the node for a while, as SIGSTOP does: nothing in it notices."""
        if self.is_up and not self.gated.is_frozen:
            self.world.note(f"is frozen for {ms} ms")
            self.gated.is_frozen = True
            self.cluster.choose()
            self.cluster.world.after(ms, self.thaw)

    def thaw(self) -> None:
        """End a freeze."""
        if self.gated.is_frozen:
            self.world.note("is thawed")
            self.relay.blind_until_ms = self.world.now_ms + TTL_MS
            self.gated.thaw()
            self.cluster.choose()

    def cut_from_store(self, ms: int) -> None:
        """Lose all packets from and to the database for a while."""
        self.world.note(f"is cut off from the database for {ms} ms")
        self.link.is_cut = True
        self.cluster.choose()
        self.cluster.world.after(ms, self.reach_store)

    def reach_store(self) -> None:
        """End that."""
        self.relay.blind_until_ms = self.world.now_ms + 2 * TTL_MS
        self.link.is_cut = False
        self.cluster.choose()

    # The lease

    def boottime_s(self) -> float:
        """As `store.postgres.leases.boottime_s`: it goes on while the node is frozen."""
        return self.cluster.world.now_ms / 1000

    def ask(self, transaction: Transaction, run: Callable[[Transaction], None]) -> None:
        """Send a transaction."""
        then = transaction.answered

        def statement(answered: Callable[[Row | Answer], None]) -> None:
            transaction.answered = answered
            run(transaction)

        self.link.ask(statement, then)

    def _watch(self, life: int) -> None:
        """Look at the row now and then: who owns the store, and may it be taken?"""
        if life != self._life or not self.is_up:
            return
        self.gated.after(WATCH_MS, self._watch, life)
        self.link.ask(self.cluster.database.look, lambda found: self._looked(life, found))

    def _looked(self, life: int, row: Row | Answer) -> None:
        if life != self._life or not self.is_up or isinstance(row, Answer):
            return
        self.owner = row.session
        self.relay.follow(row.session)
        if self.lease is not None or self._takes:
            return
        is_ours = row.session is not None and row.session.split(":")[0] == self.name
        if row.session is None or is_ours or row.expires_ms <= self.world.now_ms:
            self._take(row.session)

    def _take(self, before: str | None) -> None:
        """Take the lease: as `Leases.take`. Nothing is read before it has returned."""
        self._takes = True
        life, session, database = self._life, self.session, self.cluster.database
        sent_s = self.boottime_s()

        def change(row: Row, now_ms: int) -> Row | None:
            known = row.session is None or row.session.split(":")[0] == self.name
            if not known and row.expires_ms > now_ms:
                return None
            return renewed(row, now_ms, self.ttl_ms, session=session, epoch=row.epoch + 1)

        def run(transaction: Transaction) -> None:
            if before is not None and before != session:
                database.end_backends(before)
            self.taking()
            database.run(transaction)

        def answered(found: Row | Answer) -> None:
            if life != self._life or not self.is_up:
                return
            self._takes = False
            if isinstance(found, Row):
                self.lease = Lease(1, found.epoch, found.batch_no, self.ttl_ms / 1000, sent_s)
                self.gated.after(self._random.randint(0, LOAD_MS_MAX), self._serve, life)

        taken = Transaction(session, change, answered, replicated=lambda row: self.cluster.taken(self, row))
        self.ask(taken, run)

    def taking(self) -> None:
        """Do nothing while the lease is being taken; a planted bug reads here."""

    def take_again(self, then: Callable[[Row | Answer], None]) -> None:
        """Take the own lease again, after the own backend was ended: as `Leases.take_again`."""
        session, database = self.session, self.cluster.database

        def change(row: Row, now_ms: int) -> Row | None:
            return renewed(row, now_ms, self.ttl_ms, epoch=row.epoch + 1) if row.session == session else None

        def run(transaction: Transaction) -> None:
            database.end_backends(session)
            database.run(transaction)

        again = Transaction(session, change, then, replicated=lambda row: self.cluster.taken_again(row))
        self.ask(again, run)

    def _keep(self, life: int) -> None:
        """Renew the lease if it is idle: as `Leases._keep`, a thread of its own."""
        if life != self._life or not self.is_up:
            return
        self.gated.after(self.ttl_ms // RENEWALS, self._keep, life)
        lease, session = self.lease, self.session
        if lease is None or lease.commits or lease.is_lost:
            return
        if self.boottime_s() - lease.sent_s < self.ttl_ms / 1000 / RENEWALS / 2:
            return
        sent_s = self.boottime_s()

        def change(row: Row, now_ms: int) -> Row | None:
            return renewed(row, now_ms, self.ttl_ms) if row.session == session else None

        def answered(found: Row | Answer) -> None:
            if isinstance(found, Row):
                lease.renewed(max(sent_s, lease.sent_s))
            elif found is Answer.NONE:
                lease.is_lost = True

        self.ask(Transaction(session, change, answered), self.cluster.database.renew)

    # The process

    def _serve(self, life: int) -> None:
        """Serve the namespace: recover it from what is visible now."""
        if life != self._life or not self.is_up:
            return
        self.world.note(f"owns the store, epoch {self.lease.epoch if self.lease else 0}")
        clock = SlewedClock(self.machine.wall_s, self.machine.passed_s)
        for tenant in self.tenants:
            tenant.compare(self.store_of(tenant))
        self.process = Process(self, clock, clock.now_ms() - self.passed_ms)
        self.process.recover()
        self.process.limit()
        self.cluster.choose()

    @property
    def passed_ms(self) -> int:
        """The time as it passes everywhere."""
        return self.world.now_ms

    def world_of(self, tenant: Tenant) -> World:
        """Return the world of this node."""
        return self.gated

    def store_of(self, tenant: Tenant) -> Store:
        """Return what is visible in the database."""
        return self.cluster.database.primary

    def commits(self, shard: Shard, committed: Callable[[int, int], None]) -> StoreCommits:
        """Return what commits to the database."""
        return StoreCommits(shard, committed, self)

    def lease_of(self, shard: Shard) -> StoreLease:
        """Return the lease of the process."""
        return StoreLease(shard, self)

    def check_leaving(self, batch_no: int | None, effects: Iterable[Effect]) -> None:
        """Check that a deposed process says nothing that only the owner knows: all without a batch, and who
        holds what. Raises: Violation."""
        late_ms = self.cluster.deposed_for_ms(self.session)
        if late_ms is None:
            return
        told = [effect for effect in effects if batch_no is None or _is_of_lock(effect)]
        if told:
            raise Violation(
                f"effects leave {self.session} {'without' if batch_no is None else 'behind'} a batch, "
                f"{late_ms} ms after {self.cluster.owner} has taken the store over: {told[:3]}"
            )


def _ignored(found: object) -> None:
    pass
