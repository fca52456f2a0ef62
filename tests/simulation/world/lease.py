"""The lease of a simulated process on a store.

Owns: until when the process may answer without a write. Must not know: what it answers. Today's store gives
no leases; the driver has the rule for stores that do.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from peeklock.engine.driver import NEVER

if TYPE_CHECKING:
    from tests.simulation.world.shard import Shard

LEASE_MS = 200

RENEWAL_MS_MAX = 300
"""Every third renewal comes up to 100 ms after the end of the lease."""


def leases(seed: int) -> bool:
    """Return whether the namespace of a seed has a lease, and hands out in several turns."""
    return seed % 4 == 1


class Lease:
    """A lease with random renewals, often too late."""

    def __init__(self, shard: Shard) -> None:
        """Hold the lease without an end, unless the seed says otherwise."""
        self._shard = shard
        self._random = Random(f"lease {shard.world.seed}")
        self._pauses = leases(shard.world.seed)
        self._until_ms: float = NEVER
        if self._pauses:
            self.renew()

    @property
    def until_ms(self) -> float:
        """Until when, by the clock of the process."""
        return self._until_ms

    def renew(self) -> None:
        """Renew the lease, and plan the next renewal."""
        shard = self._shard
        if shard.process.dead:
            return
        self._until_ms = shard.process.now_ms + LEASE_MS
        shard.world.after(self._random.randint(1, RENEWAL_MS_MAX), self.renew)
        shard.go_on()

    def turn_is_over(self) -> bool:
        """Return whether the rest of a hand-out waits for the next turn."""
        return self._pauses and self._random.random() < 0.3
