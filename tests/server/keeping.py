"""A connection to a shard, for tests that look at what it is given."""

from __future__ import annotations

from collections.abc import Iterable

from peeklock.broker.vocabulary.effects import Effect


class KeepingConnection:
    """One that keeps what it is given, writes nothing and wants no bodies."""

    def __init__(self) -> None:
        self.effects: list[Effect] = []

    def handle(self, effects: Iterable[Effect], now_ms: int) -> None:
        self.effects.extend(effects)

    def flush(self, now_ms: int) -> None:
        pass

    def bodies_wanted(self) -> set[int]:
        return set()

    def bodies_arrived(self, now_ms: int) -> None:
        pass
