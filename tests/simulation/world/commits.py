"""The commits of a simulated process: each is taken, copied, and lands some virtual ms later.

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
    from tests.simulation.world.node import Node
    from tests.simulation.world.process import Process

CHECK_EVERY = 50
"""Batches between two checks of the broker's own indexes."""


class Commits:
    """Commits of one process, one at a time."""

    def __init__(self, process: Process, node: Node, committed: Callable[[int, int], None]) -> None:
        """Begin with no commit; `committed` gets the number of a batch and the size of its frame."""
        self._process = process
        self._node = node
        self._committed = committed
        self._random = process.world.random
        self._opened_ms = process.passed_ms
        self.durable_no = 0
        """Number of the last batch on stable storage."""

    def begin(self, batch: Batch) -> None:
        """Start the commit of a batch."""
        process, fault_rates, world = self._process, self._node.fault_rates, self._process.world
        if batch.no % CHECK_EVERY == 0:
            process.namespace.check(process.now_ms)
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
        node = self._node
        dies = self._random.random() < node.fault_rates.crash_in_commit
        if dies and self._random.random() < 0.5:
            node.die(f"in commit {batch.no}, which is lost")
            return
        try:
            size_bytes = finish(node.store.commit(batch))
        except StoreFailed as failure:
            if Fault.AFTER.value in str(failure):
                self._landed(taken)
            node.die(str(failure))
            return
        self._landed(taken)
        if dies:
            node.die(f"in commit {batch.no}, which is stored")
            return
        self._process.world.after(answer_ms, self._committed, batch.no, size_bytes)

    def _landed(self, taken: Any) -> None:
        self._process.world.note(f"batch {taken.no} is durable")
        self.durable_no = taken.no
        self._node.checker.committed(taken, self._process.passed_ms)
