"""Who may write to a store, and until when.

A row of `lease` names the owner of each store. A commit begins with the fence: it fails where the epoch is
no longer the owner's, and else renews the lease. So a batch of an owner that was deposed is never written,
and an owner that commits needs no other renewal; the leases of idle stores are renewed together in one
statement. All times in the database are of its clock.

Effects, such as the renewal of a lock, leave only while the lease surely holds: for its length from the
moment at which the last renewal was sent, less a margin, by CLOCK_BOOTTIME, which goes on while a machine is
suspended.

Nothing may be read before the commit that takes the lease has returned. It waits for the standby: what is
visible then is replicated. Before, a batch of the old owner may be visible that a promotion of the standby
loses.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass

import psycopg

from peeklock.store.base import StoreError, StoreFailed, StoreUnfinished
from peeklock.store.postgres.connections import Connections, Link
from peeklock.store.postgres.errors import store_errors
from peeklock.store.postgres.format import require_format

TTL_S = 5.0
"""How long a lease lasts. Our choice: 2 s worked too."""

MARGIN = 1 / 10
"""Of the lease: for clocks that run unevenly, and for the way from a decision to the socket."""

RENEWALS = 4
"""So many times a lease, an idle owner renews it."""

FENCE = (
    "WITH held AS (UPDATE peeklock.lease SET batch_no = %s, expires = clock_timestamp() "
    "+ make_interval(secs => %s) WHERE shard = %s AND epoch = %s RETURNING 1) SELECT 1 / count(*) FROM held"
)
"""Divides by zero, which ends the transaction, if the lease is another's."""

_LOOK = (
    "SELECT is_whole, session, owner, instance = %s, extract(epoch FROM expires - clock_timestamp()) "
    "FROM peeklock.lease WHERE name = %s"
)
_INSERT = (
    "INSERT INTO peeklock.lease(name, is_whole, epoch, batch_no, expires) "
    "VALUES (%s, true, 0, 0, clock_timestamp()) ON CONFLICT DO NOTHING"
)
_TAKE = (
    "UPDATE peeklock.lease SET epoch = epoch + 1, expires = clock_timestamp() + make_interval(secs => %s), "
    "owner = %s, instance = %s, session = %s WHERE name = %s AND is_whole "
    "AND (session IS NULL OR session = %s OR instance = %s OR expires <= clock_timestamp()) "
    "RETURNING shard, epoch, batch_no"
)
_TAKE_AGAIN = (
    "UPDATE peeklock.lease SET epoch = epoch + 1, expires = clock_timestamp() + make_interval(secs => %s) "
    "WHERE shard = %s AND session = %s RETURNING epoch, batch_no"
)
_RELEASE = (
    "UPDATE peeklock.lease SET session = NULL, expires = clock_timestamp() WHERE shard = %s AND epoch = %s"
)
_RENEW = (
    "WITH free AS (SELECT shard FROM peeklock.lease WHERE shard = ANY(%s) AND session = %s "
    "FOR UPDATE SKIP LOCKED) UPDATE peeklock.lease SET expires = clock_timestamp() "
    "+ make_interval(secs => %s) FROM free WHERE lease.shard = free.shard RETURNING lease.shard"
)
_KEPT = "SELECT shard FROM peeklock.lease WHERE shard = ANY(%s) AND session = %s"
_END_BACKENDS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s "
    "AND pid <> pg_backend_pid()"
)


def boottime_s() -> float:
    """Return the time by which leases are measured, which counts while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that owns stores."""

    shown: str
    """For people, such as `process 12 on host-1`."""
    instance: str
    """The same after a restart: it takes its leases back at once. No two processes at a time have it."""
    session: str
    """Of this process alone."""

    @property
    def application_name(self) -> str:
        """The name of its connections."""
        return application_name(self.session)


def application_name(session: str) -> str:
    """Return the name of the connections of a process."""
    return f"peeklock {session}"


class Lease:
    """The lease on one store."""

    def __init__(self, shard: int, epoch: int, batch_no: int, ttl_s: float, sent_s: float) -> None:
        """`sent_s`: when it was asked for."""
        self.shard = shard
        self.epoch = epoch
        self.batch_no = batch_no
        """The last batch when it was taken."""
        self._ttl_s = ttl_s
        self.commits = False
        """Whether a commit is under way, which renews it."""
        self.is_lost = False
        """Whether another process has taken it."""
        self.renewed(sent_s)

    def renewed(self, sent_s: float) -> None:
        """Note a renewal that was sent then."""
        self.sent_s = sent_s
        self.valid_until_s = sent_s + self._ttl_s * (1 - MARGIN)


@dataclass(frozen=True, slots=True)
class Held:
    """Says that another process has the lease."""

    owner: str
    left_s: float
    """Until it may be taken, if it is not renewed."""


class Leases:
    """The leases of a process; a thread renews those of idle stores."""

    def __init__(self, connections: Connections, owner: Owner, ttl_s: float = TTL_S) -> None:
        """Have none."""
        self._connections = connections
        self.owner = owner
        self.ttl_s = ttl_s
        self._changing = threading.Lock()
        self._held: dict[int, Lease] = {}
        self._epochs: dict[str, int] = {}
        self._ended = threading.Event()
        # A thread of its own: neither a slow commit nor a long turn of the event loop holds a renewal up.
        threading.Thread(target=self._keep, name="peeklock-leases", daemon=True).start()

    def take(self, name: str) -> Lease | Held:
        """Take the lease on a store, which is made if it is not there.

        Raises: StoreTooNew, StoreUnfinished, StoreError.
        """
        owner = self.owner
        with (
            self._connections.lent() as link,
            store_errors(f"take the store '{name}' in {self._connections.shown}"),
        ):
            # At each take: a node of a newer release may have upgraded the tables since this process started.
            require_format(link.db, self._connections.shown)
            row = link.db.execute(_LOOK, (owner.instance, name)).fetchone()
            if row is None:
                link.db.execute(_INSERT, (name,))
            else:
                is_whole, session, shown, is_ours, left_s = row
                if not is_whole:
                    raise StoreUnfinished(
                        f"the store '{name}' in {self._connections.shown} is not whole: a restore into it "
                        "runs, or was interrupted. Drop the schema peeklock there, and restore again"
                    )
                if session is not None and session != owner.session:
                    if left_s > 0 and not is_ours:
                        return Held(str(shown), float(left_s))
                    self._end_backends(link, session)
            sent_s = boottime_s()
            taking = (self.ttl_s, owner.shown, owner.instance, owner.session, name)
            row = link.db.execute(_TAKE, (*taking, owner.session, owner.instance)).fetchone()
            if row is None:  # another one was quicker
                return Held("another process", self.ttl_s)
            self._require_replicated(link, name)
            shard, epoch, batch_no = row
            lease = Lease(shard, epoch, batch_no, self.ttl_s, sent_s)
        with self._changing:
            self._held[lease.shard] = lease
            self._epochs[name] = lease.epoch
        return lease

    def epoch(self, name: str) -> int:
        """Return the epoch in which this process last took a store; a later owner has a higher one."""
        with self._changing:
            return self._epochs[name]

    def take_again(self, lease: Lease, pid: int) -> int | None:
        """Take our lease again after a commit in doubt; return the last batch, None = it is another's.

        All that was sent before it has ended then, and what is visible is replicated. `pid`: of the backend
        that had the commit. Raises: StoreError, psycopg.Error.
        """
        with self._connections.lent() as link:
            link.db.execute(f"{_END_BACKENDS} AND pid = %s", (self.owner.application_name, pid))
            sent_s = boottime_s()
            row = link.db.execute(_TAKE_AGAIN, (self.ttl_s, lease.shard, self.owner.session)).fetchone()
            if row is None:
                lease.is_lost = True
                return None
            self._require_replicated(link, str(lease.shard))
        lease.epoch = row[0]
        lease.renewed(sent_s)
        return int(row[1])

    def release(self, lease: Lease) -> None:
        """Release it: others may take it at once. Nothing happens if the database cannot be reached."""
        with self._changing:
            self._held.pop(lease.shard, None)
        with contextlib.suppress(StoreError, psycopg.Error), self._connections.lent() as link:
            link.db.execute(_RELEASE, (lease.shard, lease.epoch))

    def stop(self) -> None:
        """Renew no more."""
        self._ended.set()

    def pause(self, seconds: float) -> None:
        """Wait before the next try, or until all ends."""
        self._ended.wait(seconds)

    def _keep(self) -> None:
        while not self._ended.wait(self.ttl_s / RENEWALS):
            with contextlib.suppress(StoreError, psycopg.Error):  # the next round tries again
                self._renew()

    def _renew(self) -> None:
        now_s = boottime_s()
        with self._changing:
            idle = [
                lease
                for lease in self._held.values()
                if not lease.commits
                and not lease.is_lost
                and now_s - lease.sent_s >= self.ttl_s / RENEWALS / 2
            ]
        if not idle:
            return
        shards = [lease.shard for lease in idle]
        with self._connections.lent() as link:
            sent_s = boottime_s()
            renewed = {
                row[0] for row in link.db.execute(_RENEW, (shards, self.owner.session, self.ttl_s)).fetchall()
            }
            if link.warnings:
                return
            for lease in idle:
                if lease.shard in renewed:
                    lease.renewed(max(sent_s, lease.sent_s))
            if len(renewed) < len(idle):
                # A row that is locked is being committed, or taken by another one.
                kept = {row[0] for row in link.db.execute(_KEPT, (shards, self.owner.session)).fetchall()}
                for lease in idle:
                    lease.is_lost |= lease.shard not in kept

    def _end_backends(self, link: Link, session: str) -> None:
        """End what an earlier owner has under way: it may wait for a standby, and hold the row meanwhile."""
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            link.db.execute(_END_BACKENDS, (application_name(session),))

    def _require_replicated(self, link: Link, name: str) -> None:
        if link.warnings:
            raise StoreFailed(
                f"the lease on '{name}' may not be on the standby: {link.warnings[-1]}; start again"
            )
