"""Peers that play the scenarios of the .NET client side by side, on one simulated broker.

Owns: a player's bytes on the world's wires. The player checks what its scenario expects; there is no history,
since each scenario has its own entities. Must not know: the steps. The broker does not die here: a scenario
is one client's whole life.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from peeklock.broker.vocabulary.descriptions import (
    Description,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.testing.wire import CLIENT, WireState
from tests.interop.dotnet.drivers import HOST, KEY, KEY_NAME, renamed, settings_of
from tests.interop.dotnet.player import Player
from tests.interop.dotnet.scenario import Scenario, load, names
from tests.interop.dotnet.stage import Account, Action, Connect, Cut, Pass, Read, Write
from tests.simulation.oracle.checker import Checker
from tests.simulation.world.node import Node
from tests.simulation.world.pieces import Pieces
from tests.simulation.world.sizes import SMALL_SIZES, patched
from tests.simulation.world.tenant import FaultRates, Tenant
from tests.simulation.world.wire import Wire
from tests.simulation.world.world import World

KIND = "sim"
"""A placeholder in the names of the entities."""

LARGE = ("28", "31", "32")
"""Numbers of scenarios that send more than a simulated broker keeps in memory."""

ANSWER_MS_MAX = 30_000
"""Time for any answer. Our choice: many times the delay of wires and commits."""

END_MS_MAX = 3_600_000


class Onlooker(Checker):
    """Accepts what is stored: only the players know who sent it."""

    def committed(self, batch: Any, landed_ms: int) -> None:
        pass


class Visitor:
    """One scenario."""

    def __init__(self, world: World, tenant: Tenant, scenario: Scenario) -> None:
        self._world = world
        self._tenant = tenant
        account = Account(HOST, KEY_NAME, KEY, renamed(scenario, KIND))
        self.player = Player(scenario, account, lambda: tenant.node.wall_ms)
        self._actions: Iterator[Action] = self.player.play()
        self._wire: Wire | None = None
        self._waits = 0
        """Number of the wait, so that a time-out knows its own."""
        self._waiting = False
        self.done = False

    def go_on(self) -> None:
        """Run the player up to its next wait."""
        self._waiting = False
        for action in self._actions:
            match action:
                case Connect():
                    self._leave()
                    self._connect()
                case Cut():
                    assert self._wire is not None
                    self._wire.cut()
                    self._wire = None
                case Write() | Read():
                    assert self._wire is not None
                    self._wire.write(CLIENT, self.player.client.take())
                    if isinstance(action, Read):
                        return self._wait()
                case Pass(ms):
                    self._world.after(ms, self.go_on)
                    return None
        self._leave()
        self.done = True
        return None

    def _wait(self) -> None:
        self._waiting = True
        self._waits += 1
        self._world.after(ANSWER_MS_MAX, self._late, self._waits)

    def _late(self, wait: int) -> None:
        if self._waiting and wait == self._waits:
            self.player.received(b"")
            self.go_on()

    def _connect(self) -> None:
        wire = self._wire = self._tenant.connect()
        assert wire is not None
        wire.on_data[CLIENT] = lambda data: self._arrived(wire, data)
        wire.on_end[CLIENT] = lambda: self._arrived(wire, b"")

    def _arrived(self, wire: Wire, data: bytes) -> None:
        if wire is not self._wire:
            return
        if data:
            self.player.received(data)
        else:
            self.player.ended()
        if self._waiting:
            self.go_on()

    def _leave(self) -> None:
        if self._wire is not None and self._wire.memory.state is WireState.OPEN:
            self._wire.close(CLIENT)
        self._wire = None


@dataclass
class Visit:
    """All scenarios on one broker."""

    seed: int
    pieces: Pieces = field(default_factory=Pieces)

    def run(self) -> int:
        """Play all scenarios to their ends. Return how many there were. Raises: PlayFailed."""
        with patched((*SMALL_SIZES, *self.pieces.patches)):
            return self._run()

    def _run(self) -> int:
        scenarios = [load(name) for name in names() if not name.startswith(LARGE)]
        world = World(self.seed)
        node = Node(world, self.pieces)
        tenant = Tenant(node, world, Onlooker(lambda: world.now_ms), _entities(scenarios))
        node.start()
        world.run_to(world.now_ms + 2_000)
        random = world.random
        tenant.fault_rates = FaultRates(
            wire_ms_max=random.choice((0, 3, 40)), commit_ms_max=random.choice((0, 8, 20))
        )
        visitors = [Visitor(world, tenant, scenario) for scenario in scenarios]
        for visitor in visitors:
            world.after(random.randint(0, 200), visitor.go_on)
        ended = world.run_until(lambda: all(one.done for one in visitors), world.now_ms + END_MS_MAX)
        assert ended, [one.player.scenario.name for one in visitors if not one.done]
        assert node.process is not None
        node.process.shard_of(tenant).namespace.check(node.process.now_ms)
        return len(visitors)


def _entities(scenarios: list[Scenario]) -> list[Description]:
    made: list[Description] = []
    for scenario in scenarios:
        called = renamed(scenario, KIND)
        for entity in scenario.entities:
            settings = settings_of(entity)
            if entity.kind == "queue":
                made.append(QueueDescription(called[entity.name], **settings))
            elif entity.kind == "topic":
                made.append(TopicDescription(called[entity.name], **settings))
            else:
                made.append(SubscriptionDescription(called[entity.topic], entity.name, **settings))
    return made
