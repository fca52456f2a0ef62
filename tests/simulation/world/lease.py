"""The lease of a simulated process on its store.

Owns: until when the process may answer without a write. Must not know: what it answers. Today's store gives
no leases; the driver has the rule for stores that do.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from peeklock.engine.driver import NEVER

if TYPE_CHECKING:
    from tests.simulation.world.process import Process

LEASE_MS = 200

RENEWAL_MS_MAX = 300
"""Every third renewal comes up to 100 ms after the end of the lease."""


def leases(seed: int) -> bool:
    """Return whether the process of a seed has a lease, and hands out in several turns."""
    return seed % 4 == 1


class Lease:
    """A lease with random renewals, often too late."""

    def __init__(self, process: Process) -> None:
        """Hold the lease without an end, unless the seed says otherwise."""
        self._process = process
        self._random = Random(f"lease {process.world.seed}")
        self._pauses = leases(process.world.seed)
        self.until_ms: float = NEVER
        if self._pauses:
            self.renew()

    def renew(self) -> None:
        """Renew the lease, and plan the next renewal."""
        process = self._process
        if process.dead:
            return
        self.until_ms = process.now_ms + LEASE_MS
        process.world.after(self._random.randint(1, RENEWAL_MS_MAX), self.renew)
        process.go_on()

    def turn_is_over(self) -> bool:
        """Return whether the rest of a hand-out waits for the next turn."""
        return self._pauses and self._random.random() < 0.3
