"""Planted bugs of several nodes on one store: in the lease, the takeover, the relay."""

from __future__ import annotations

from copy import deepcopy
from weakref import WeakKeyDictionary

from peeklock.engine.driver import NEVER
from peeklock.store.base import Store
from peeklock.store.memory import MemoryStore
from peeklock.store.postgres.leases import Lease
from tests.simulation.cluster.cluster import Cluster
from tests.simulation.cluster.database import Row
from tests.simulation.cluster.member import Member
from tests.simulation.cluster.relay import Relay
from tests.simulation.world.sizes import Patch
from tests.simulation.world.tenant import Tenant


def _let_pass(cluster: Cluster, row: Row, epoch: int) -> bool:
    """Commit whatever the epoch is."""
    return True


SKIPPED_FENCES: tuple[Patch, ...] = ((Cluster, "is_fenced", _let_pass),)

_read: WeakKeyDictionary[Member, list[MemoryStore]] = WeakKeyDictionary()
_store_of = Member.store_of


def _read_now(member: Member) -> None:
    """Read what is visible before the lease is taken."""
    _read[member] = [deepcopy(member.cluster.database.primary)] * 2


def _what_was_read(member: Member, tenant: Tenant) -> Store:
    """Return that for the comparison and for the recovery."""
    early = _read.get(member)
    return early.pop() if early else _store_of(member, tenant)


HASTY_READS: tuple[Patch, ...] = ((Member, "taking", _read_now), (Member, "store_of", _what_was_read))


def _renew_for_good(lease: Lease, sent_s: float) -> None:
    """Take the lease to hold for good once it was renewed."""
    lease.sent_s, lease.valid_until_s = sent_s, NEVER


ENDLESS_LEASES: tuple[Patch, ...] = ((Lease, "renewed", _renew_for_good),)


def _stay(relay: Relay, owner: str | None) -> None:
    """Leave sessions with the owner to which they were led."""


FAITHFUL_RELAYS: tuple[Patch, ...] = ((Relay, "follow", _stay),)
