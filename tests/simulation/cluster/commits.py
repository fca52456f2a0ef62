"""The commits of a process on a store with leases, and its lease on it, as `PostgresStore` has them.

Owns: what a process does with a commit in doubt, and when it gives up. Must not know: how the database
decides, what a batch contains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from peeklock.store.base import Batch
from tests.simulation.cluster.database import Answer, Row, Transaction, renewed
from tests.simulation.oracle.records import Snapshot, frozen, snapshot
from tests.simulation.world.commits import CHECK_EVERY, Commits
from tests.simulation.world.lease import Lease as WorldLease

if TYPE_CHECKING:
    from tests.simulation.cluster.member import Member
    from tests.simulation.world.shard import Shard

PAUSE_MS = 50
"""As `store.PAUSE_S`."""

GIVE_UP_MS = 1_500
"""As `store.GIVE_UP_S`; less than clients wait for an answer."""

HOUSE_MS = 200
"""How often a shard keeps house: it notices a lost lease, and steps the driver."""


class StoreLease(WorldLease):
    """The lease of a process, as `DriverLoop` asks for it."""

    def __init__(self, shard: Shard, member: Member) -> None:
        """Look at the lease that the member has taken."""
        super().__init__(shard)
        self._member = member
        self._shard = shard
        self._keep_house()

    @property
    def until_ms(self) -> float:
        """As `PostgresStore.valid_until_s`; both clocks show the same here."""
        lease = self._member.lease
        return 0.0 if lease is None or lease.is_lost else lease.valid_until_s * 1000

    def _keep_house(self) -> None:
        if self._shard.process.dead:
            return
        lease = self._member.lease
        if lease is not None and lease.is_lost:
            self._member.die("it is deposed")
            return
        self._shard.go_on()
        self._shard.world.after(HOUSE_MS, self._keep_house)


class StoreCommits(Commits):
    """Commits of one process, one at a time, each a transaction with the fence first."""

    def __init__(self, shard: Shard, committed: Callable[[int, int], None], member: Member) -> None:
        """Begin with no commit."""
        super().__init__(shard, committed)
        self._member = member

    def begin(self, batch: Batch) -> None:
        """Start the commit of a batch."""
        process = self._process
        if batch.no % CHECK_EVERY == 0:
            self._shard.namespace.check(process.now_ms)
        taken = snapshot(batch, self._opened_ms, process.passed_ms)
        self._opened_ms = process.passed_ms
        self._world.note(f"batch {batch.no}: {len(batch.changes)} changes, {len(batch.body_rows)} rows")
        self._began_ms = self._world.now_ms
        self._write(frozen(batch), taken)

    def _write(self, batch: Batch, taken: Snapshot) -> None:
        """As `PostgresStore._write_once`."""
        member, lease = self._member, self._member.lease
        assert lease is not None
        sent_s = member.boottime_s()
        lease.commits = True
        epoch, session, database = lease.epoch, member.session, member.cluster.database

        def fence(row: Row, now_ms: int) -> Row | None:
            if not member.cluster.is_fenced(row, epoch):
                return None
            return renewed(row, now_ms, member.ttl_ms, batch_no=batch.no)

        def replicated(row: Row) -> None:
            member.cluster.landed(session, batch)
            self._landed(taken)

        def answered(found: Row | Answer) -> None:
            lease.commits = False
            if self._process.dead:
                return
            if isinstance(found, Row):
                lease.renewed(sent_s)
                self._committed(batch.no, len(batch.changes) * FRAME_BYTES)
            elif found is Answer.LOST:
                self._doubt(batch, taken)
            else:
                member.die(f"commit {batch.no}: {found.value}")

        write = Transaction(session, fence, answered, batch, replicated)
        member.ask(write, database.run)

    def _doubt(self, batch: Batch, taken: Snapshot) -> None:
        """Take the own lease again, after a pause: as `PostgresStore._is_durable`."""
        self._world.note(f"batch {batch.no} is in doubt")
        if self._world.now_ms - self._began_ms > GIVE_UP_MS:
            self._member.die(f"whether batch {batch.no} is durable is unknown")
        else:
            self._world.after(PAUSE_MS, self._take_again, batch, taken)

    def _take_again(self, batch: Batch, taken: Snapshot) -> None:
        member, lease = self._member, self._member.lease
        if self._process.dead or lease is None:
            return
        sent_s = member.boottime_s()

        def answered(found: Row | Answer) -> None:
            if self._process.dead:
                return
            if isinstance(found, Answer):
                if found is Answer.LOST:
                    self._doubt(batch, taken)
                else:
                    member.die("another process owns the store now")
                return
            lease.epoch = found.epoch
            lease.renewed(sent_s)
            if found.batch_no == batch.no:
                self._committed(batch.no, len(batch.changes) * FRAME_BYTES)
            elif found.batch_no == batch.no - 1:
                self._write(batch, taken)
            else:
                member.die(f"the store ends with batch {found.batch_no}")

        member.take_again(answered)


FRAME_BYTES = 100
"""The size of a change in a frame, roughly: it decides when the head of the journal is dropped."""
