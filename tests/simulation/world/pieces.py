"""The classes that a simulated broker is made of.

Owns: which class is used for each part. Must not know: how a planted bug breaks one (`bugs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from peeklock.broker.namespace import Namespace
from peeklock.broker.vocabulary.effects import Effect
from peeklock.engine.driver import Driver
from peeklock.engine.engine import Engine
from peeklock.gateway.connection import Gateway
from peeklock.rest.receives import Receives
from peeklock.server.loop.turns import Turns
from peeklock.store.base import Store
from tests.simulation.world.sizes import Patch


class Connection(Protocol):
    """The consumer of effects."""

    def handle(self, effects: Iterable[Effect], now_ms: int) -> None: ...

    def flush(self) -> None: ...

    def bodies_wanted(self) -> set[int]: ...

    def bodies_arrived(self, now_ms: int) -> None: ...


@dataclass(slots=True)
class Pieces:
    """The classes of the broker; a planted bug replaces one."""

    namespace: Callable[..., Namespace] = Namespace
    engine: Callable[..., Engine] = Engine
    driver: Callable[..., Driver] = Driver
    store: Callable[[Store], Store] = field(default=lambda store: store)
    gateway: Callable[..., Gateway] = Gateway
    turns: Callable[..., Turns] = Turns
    receives: Callable[..., Receives] = Receives
    patches: Sequence[Patch] = ()
    """Replacements in the broker's modules while the seed runs."""
