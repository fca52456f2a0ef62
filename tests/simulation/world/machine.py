"""The machine of the broker: its two clocks, and the administrator who sets them.

Owns: what the clocks show in world time, and when the administrator sets one. He has a random source apart,
so the other choices of a seed do not change. Must not know: what follows in the broker, which reads the two
clocks through the same `SlewedClock` as on a real machine.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.simulation.world.world import START_MS, World

if TYPE_CHECKING:
    from tests.simulation.world.node import Node

SET_EVERY, SET_IN = 9, (6, 7)
"""Among so many seeds, those whose clocks go wrong while the broker runs."""

MINUTE_MS, HOUR_MS = 60_000, 3_600_000

STEPS_MS = (
    *(-20 * HOUR_MS, -HOUR_MS, -10 * MINUTE_MS, -20_000),
    *(7_000, 90_000, HOUR_MS, 20 * HOUR_MS, 30 * HOUR_MS),
)
"""Steps of the clock in ms; the last one is taken for an error."""

RATES = (1.0, 1.0, 0.97, 0.995, 1.004)
"""Rates of the monotonic clock. Others keep the wall clock right: the broker slews, and takes the rest as a
step."""

ROUND_MS_MAX = 12_000
"""The longest wait of the administrator between two actions."""

TICK_MS = 1_000
"""How often the broker compares its clocks, as the server does."""


def sets_clocks(seed: int) -> bool:
    """Return whether the clocks are set, or run slow, while the broker runs."""
    return seed % SET_EVERY in SET_IN


class Machine:
    """A wall clock, and a monotonic clock that also counts while the machine is suspended."""

    def __init__(self, world: World, rate: float = 1.0) -> None:
        """Set the clocks; `rate`: of the monotonic one."""
        self._world = world
        self._rate = rate
        self.ahead_ms = 0
        """Difference of the wall clock to the world's."""

    def wall_s(self) -> float:
        """Return the machine's UTC. The half millisecond on top outweighs the rounding of floats."""
        return (self._world.now_ms + self.ahead_ms + 0.5) / 1000

    def passed_s(self) -> float:
        """Return the seconds that have passed."""
        return ((self._world.now_ms - START_MS) * self._rate + 0.5) / 1000


class Administrator:
    """Sets the clock of a running broker, and accepts it by the operator's command."""

    def __init__(self, world: World, node: Node, slowness: int) -> None:
        self._world = world
        self._node = node
        self._random = Random(f"clocks of {world.seed}")
        self._slowness = slowness
        self._ahead_ms_max = 0
        self._stopped = False
        node.machine = Machine(world, self._random.choice(RATES))

    def start(self) -> None:
        """Begin to change the clock."""
        self._world.after(self._random.randint(1_000, ROUND_MS_MAX) * self._slowness, self._go_on)

    def _go_on(self) -> None:
        if self._stopped:
            return
        random, machine = self._random, self._node.machine
        self._ahead_ms_max = max(self._ahead_ms_max, machine.ahead_ms)
        roll = random.random()
        if roll < 0.6:
            self._set(machine.ahead_ms + random.choice(STEPS_MS))
        elif roll < 0.8:
            self._set(0)
        else:
            self._node.accept_clock()
        self.start()

    def _set(self, ahead_ms: int) -> None:
        step_ms = ahead_ms - self._node.machine.ahead_ms
        self._world.note(f"the wall clock is set by {step_ms:+d} ms")
        self._node.machine.ahead_ms = ahead_ms
        self._ahead_ms_max = max(self._ahead_ms_max, ahead_ms)

    def stop(self) -> None:
        """Return to the greatest UTC that clients have seen: then nothing waits longer than it was meant
        to."""
        self._stopped = True
        self._set(self._ahead_ms_max)
        # A broker that starts now compares its clocks for the second time after four ticks.
        self._world.after(5 * TICK_MS, self._node.accept_clock)
