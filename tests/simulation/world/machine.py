"""The broker's machine: its two clocks, and who sets them.

Owns: what the clocks show in world time, and when an administrator sets one, by dice of his own, so that the
choices of a seed are not moved by it. Must not know: what follows in the broker, which has the same
`SlewedClock` over these two as on a real machine.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.simulation.world.world import START_MS, World

if TYPE_CHECKING:
    from tests.simulation.world.node import Node

SET_EVERY, SET_IN = 9, (6, 7)
"""In which of so many seeds the clocks of the running broker go wrong."""

MINUTE_MS, HOUR_MS = 60_000, 3_600_000

STEPS_MS = (
    *(-20 * HOUR_MS, -HOUR_MS, -10 * MINUTE_MS, -20_000),
    *(7_000, 90_000, HOUR_MS, 20 * HOUR_MS, 30 * HOUR_MS),
)
"""By how much a clock is set: the last one is taken for an error."""

RATES = (1.0, 1.0, 0.97, 0.995, 1.004)
"""How fast the clock runs that only counts. The wall clock is kept right by others: the broker slews, and
what it cannot slew away becomes a step."""

ROUND_MS_MAX = 12_000
"""An administrator waits so long at most between two things he does."""

TICK_MS = 1_000
"""How often the broker compares its clocks, as the server does."""


def sets_clocks(seed: int) -> bool:
    """Whether the clocks of the running broker are set, or run slow."""
    return seed % SET_EVERY in SET_IN


class Machine:
    """A wall clock, and one that counts what passes, also while nobody is awake."""

    def __init__(self, world: World, rate: float = 1.0) -> None:
        """`rate`: how fast the one that counts runs."""
        self._world = world
        self._rate = rate
        self.ahead_ms = 0
        """Of the wall clock, to the world's."""

    def wall_s(self) -> float:
        """Return UTC as the machine has it. Half a millisecond on top outweighs what floats lose."""
        return (self._world.now_ms + self.ahead_ms + 0.5) / 1000

    def passed_s(self) -> float:
        """Return the seconds that have passed."""
        return ((self._world.now_ms - START_MS) * self._rate + 0.5) / 1000


class Administrator:
    """Who sets the clock of a running broker, and says that it is right."""

    def __init__(self, world: World, node: Node, slowness: int) -> None:
        self._world = world
        self._node = node
        self._random = Random(f"clocks of {world.seed}")
        self._slowness = slowness
        self._ahead_ms_max = 0
        self._stopped = False
        node.machine = Machine(world, self._random.choice(RATES))

    def start(self) -> None:
        """Begin to do things to the clock."""
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
        """Leave a clock as far as any that clients have gone by: nothing waits for longer than it was to."""
        self._stopped = True
        self._set(self._ahead_ms_max)
        # A broker that starts now looks at the clock for the second time after four ticks.
        self._world.after(5 * TICK_MS, self._node.accept_clock)
