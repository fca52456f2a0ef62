"""Planted bugs between two namespaces of one process: each lets something of one reach the other.

Those that join the parts of two namespaces expect that each process has two: see `has_second` of the plan.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from peeklock.broker.namespace import Namespace
from peeklock.engine.bodies import BodyCache
from peeklock.engine.driver import NEVER, Action, Driver, HandOut
from peeklock.engine.engine import Engine
from peeklock.gateway.choice import Choice, Hosted
from peeklock.server.namespaces.registry import Registry
from tests.simulation.world.sizes import BODIES_BYTES_MAX, Patch


def _default(registry: Registry, key_name: str) -> Hosted:
    """Return the default namespace, whatever key it is."""
    return registry.default


IGNORED_KEYS: tuple[Patch, ...] = ((Registry, "by_key", _default),)


def _take_silently(choice: Choice, hosted: Hosted, by: Any) -> None:
    """Choose a namespace without a word to the owner of the connection."""
    choice._hosted = hosted
    choice._by = by


UNTOLD_CHOICES: tuple[Patch, ...] = ((Choice, "_take", _take_silently),)


class _LeakyBodies(BodyCache):
    """Looks for a row that it does not have in another cache."""

    beside: BodyCache | None = None

    def get(self, row: int, slot: int) -> bytes | None:
        found = super().get(row, slot)
        other = None if self.beside is None else self.beside._rows.get(row)
        return other[slot] if found is None and other is not None and slot < len(other) else found


class SharedBodies:
    """Makes the engines of a process; the second one finds the bodies of the first."""

    def __init__(self) -> None:
        self._of_first: BodyCache | None = None

    def __call__(self, namespace: Namespace, bodies: BodyCache) -> Engine:
        """Return the engine of the first namespace of a process, then that of the second one."""
        first, self._of_first = self._of_first, bodies
        if first is None:
            return Engine(namespace, bodies)
        self._of_first = None
        leaky = _LeakyBodies(BODIES_BYTES_MAX)
        leaky.beside = first
        return Engine(namespace, leaky)


class CrossedDriver(Driver):
    """Now and then leaves what is for a connection to the driver of the other namespace."""

    CROSSED_EVERY = 50

    def __init__(self, engine: Engine, crossing: list[HandOut]) -> None:
        """Drive an engine; `crossing` is shared by all drivers."""
        super().__init__(engine)
        self._crossing = crossing
        self._handed_out = 0
        self._mine: list[HandOut] = []

    def step(self, now_ms: int, lease_until_ms: float = NEVER) -> list[Action]:
        actions: list[Action] = []
        for action in super().step(now_ms, lease_until_ms):
            if isinstance(action, HandOut) and action.connection_id > 0:
                self._handed_out += 1
                if self._handed_out % self.CROSSED_EVERY == 0:
                    action = replace(action, batch_no=None)
                    self._mine.append(action)
                    self._crossing.append(action)
                    continue
            actions.append(action)
        others = [action for action in self._crossing if not any(action is mine for mine in self._mine)]
        for action in others:
            self._crossing.remove(action)
        return [*others, *actions]
