"""The way from a node to the database and back.

Owns: how long a statement is under way, and that it is lost while the node is cut off. Must not know: what a
statement does. A frozen node sends nothing and takes no answer; what it has sent before arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeVar

from tests.simulation.cluster.database import Answer
from tests.simulation.world.world import World

T = TypeVar("T")

ONE_WAY_MS_MAX = 2
STATEMENT_MS = 1_200
"""`statement_timeout` and `tcp_user_timeout`, at the scale of a simulation."""

Then = Callable[[T | Answer], None]


class Link:
    """Carries statements; `is_cut` loses all that is under way."""

    def __init__(self, network: World, node: World, random: Random) -> None:
        """Connect a node; its own world stands still while it is frozen."""
        self._network = network
        self._node = node
        self._random = random
        self.is_cut = False

    def ask(self, statement: Callable[[Then[T]], None], then: Then[T]) -> None:
        """Send a statement; `then` gets its answer, or `LOST` in the end."""
        call = _Call(then)

        def arrive() -> None:
            if not self.is_cut:
                statement(answer)

        def answer(found: T | Answer) -> None:
            self._network.after(self._one_way_ms(), back, found)

        def back(found: T | Answer) -> None:
            if not self.is_cut:
                self._node.after(0, call.end, found)

        self._network.after(self._one_way_ms(), arrive)
        self._node.after(STATEMENT_MS, call.end, Answer.LOST)

    def _one_way_ms(self) -> int:
        return self._random.randint(0, ONE_WAY_MS_MAX)


class _Call:
    """One statement under way."""

    def __init__(self, then: Callable[..., None]) -> None:
        self._then: Callable[..., None] | None = then

    def end(self, found: object) -> None:
        """Pass on the first answer."""
        then, self._then = self._then, None
        if then is not None:
            then(found)
