"""Planted bugs in the loop of the broker: each subclasses the real driver."""

from __future__ import annotations

from collections.abc import Iterable

from peeklock.broker.vocabulary.effects import Effect
from peeklock.engine.driver import NEVER, Action, Driver


class OvertakingEffects(Driver):
    """Hands out effects without a batch before the rest of the last batch has left."""

    def step(self, now_ms: int, lease_until_ms: float = NEVER) -> list[Action]:
        if self._left and self._leaving:
            waiting = self._leaving[self._left :]
            self._leaving, self._left = self._engine.release() + waiting, 0
        return super().step(now_ms, lease_until_ms)


class DroppedRows(Driver):
    """Drops body rows while they are read."""

    def _read(self, rows: set[int]) -> None:
        super()._read(rows)
        self._engine.bodies.wanted -= rows


class KeptUndelivered(Driver):
    """Does not give back messages that reach no connection."""

    def undelivered(self, effects: Iterable[Effect], now_ms: int) -> None:
        pass


class EndlessLeases(Driver):
    """Hands out without a batch as if the lease had no end."""

    def step(self, now_ms: int, lease_until_ms: float = NEVER) -> list[Action]:
        return super().step(now_ms)
