"""The commits of one namespace in a process: each is taken, copied, and lands some virtual ms later.

Owns: when a commit lands and is answered, and whether the process dies in it. Must not know: what a batch
contains, what follows from it (`driving`).

The process may die before a commit lands, or between the landing and the answer. The store changes at the
landing only, so a batch is wholly stored or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from peeklock.store.base import Batch, StoreFailed
from peeklock.testing.faults import Fault
from peeklock.testing.pump import finish
from tests.simulation.oracle.records import frozen, snapshot

if TYPE_CHECKING:
    from tests.simulation.world.shard import Shard

CHECK_EVERY = 50
"""Batches between two checks of the broker's own indexes."""


class Commits:
    """Commits of one namespace in one process, one at a time."""

    def __init__(self, shard: Shard, committed: Callable[[int, int], None]) -> None:
        """Begin with no commit; `committed` gets the number of a batch and the size of its frame."""
        self._shard = shard
        self._process = shard.process
        self._tenant = shard.tenant
        self._committed = committed
        self._world = shard.world
        self._random = shard.world.random
        self._opened_ms = shard.process.passed_ms
        self.durable_no = 0
        """Number of the last batch on stable storage."""

    def begin(self, batch: Batch) -> None:
        """Start the commit of a batch."""
        process, fault_rates, world = self._process, self._tenant.fault_rates, self._world
        if batch.no % CHECK_EVERY == 0:
            self._shard.namespace.check(process.now_ms)
        taken = snapshot(batch, self._opened_ms, process.passed_ms)
        self._opened_ms = process.passed_ms
        world.note(f"batch {batch.no}: {len(batch.changes)} changes, {len(batch.body_rows)} rows")
        took_ms = self._random.randint(0, fault_rates.commit_ms_max)
        if self._random.random() < fault_rates.slow_commits:
            took_ms = self._random.randint(100, 2_000)
        landed_ms = self._random.randint(0, took_ms)
        world.after(landed_ms, self._land, frozen(batch), taken, took_ms - landed_ms)

    def _land(self, batch: Batch, taken: Any, answer_ms: int) -> None:
        if self._process.dead:
            return
        tenant, node = self._tenant, self._process.node
        dies = self._random.random() < tenant.fault_rates.crash_in_commit
        if dies and self._random.random() < 0.5:
            node.die(f"in commit {batch.no}, which is lost")
            return
        try:
            size_bytes = finish(tenant.store.commit(batch))
        except StoreFailed as failure:
            if Fault.AFTER.value in str(failure):
                self._landed(taken)
            node.die(str(failure))
            return
        self._landed(taken)
        if dies:
            node.die(f"in commit {batch.no}, which is stored")
            return
        self._world.after(answer_ms, self._committed, batch.no, size_bytes)

    def _landed(self, taken: Any) -> None:
        self._world.note(f"batch {taken.no} is durable")
        self.durable_no = taken.no
        self._tenant.checker.committed(taken, self._process.passed_ms)
