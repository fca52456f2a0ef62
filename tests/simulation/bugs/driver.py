"""Planted bugs in the loop of the broker: each subclasses the real driver.

Owns: how each is broken. Must not know: how it is found (`bugs` says what must be).
"""

from __future__ import annotations

from collections.abc import Iterable

from peeklock.broker.vocabulary.effects import Effect
from peeklock.engine.driver import NEVER, Action, Driver


class OvertakingEffects(Driver):
    """Hands out what nothing durable precedes before the rest of the last batch has left."""

    def step(self, now_ms: int, lease_until_ms: float = NEVER) -> list[Action]:
        if self._left and self._leaving:
            waiting = self._leaving[self._left :]
            self._leaving, self._left = self._engine.release() + waiting, 0
        return super().step(now_ms, lease_until_ms)


class DroppedRows(Driver):
    """Does not keep the rows that are being read."""

    def _read(self, rows: set[int]) -> None:
        super()._read(rows)
        self._engine.bodies.wanted -= rows


class KeptUndelivered(Driver):
    """Does not give back what reaches nobody."""

    def undelivered(self, effects: Iterable[Effect], now_ms: int) -> None:
        pass


class EndlessLeases(Driver):
    """Hands out without a batch as if the lease never ended."""

    def step(self, now_ms: int, lease_until_ms: float = NEVER) -> list[Action]:
        return super().step(now_ms)
