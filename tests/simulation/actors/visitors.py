"""Peers that play the scenarios of the .NET client, all beside each other, on one simulated broker.

Owns: carrying a player's bytes over lines of the world. What a scenario expects its player checks; there is
no history, since each has entities of its own. Must not know: the steps. The broker does not die here: a
scenario is one client's whole life.
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
from tests.simulation.world.line import Line
from tests.simulation.world.node import FaultRates, Node
from tests.simulation.world.pieces import Pieces
from tests.simulation.world.sizes import SMALL_SIZES, patched
from tests.simulation.world.world import World

KIND = "sim"
"""In the names of the entities."""

LARGE = ("28", "31", "32")
"""Numbers of scenarios that send more than the broker of a simulation keeps in memory."""

ANSWER_MS_MAX = 30_000
"""For any answer. Our choice: many times what wires and commits delay."""

END_MS_MAX = 3_600_000


class Onlooker(Checker):
    """Believes what is stored: who sent it is known to the players alone."""

    def committed(self, batch: Any, landed_ms: int) -> None:
        pass


class Visitor:
    """One scenario."""

    def __init__(self, world: World, node: Node, scenario: Scenario) -> None:
        self._world = world
        self._node = node
        account = Account(HOST, KEY_NAME, KEY, renamed(scenario, KIND))
        self.player = Player(scenario, account, lambda: node.wall_ms)
        self._actions: Iterator[Action] = self.player.play()
        self._line: Line | None = None
        self._waits = 0
        """Grows with each wait, so that a time-out knows whose it is."""
        self._waiting = False
        self.done = False

    def go_on(self) -> None:
        """Do what the player says, up to where it waits."""
        self._waiting = False
        for action in self._actions:
            match action:
                case Connect():
                    self._leave()
                    self._connect()
                case Cut():
                    assert self._line is not None
                    self._line.cut()
                    self._line = None
                case Write() | Read():
                    assert self._line is not None
                    self._line.write(CLIENT, self.player.client.take())
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
        line = self._line = self._node.connect()
        assert line is not None
        line.on_data[CLIENT] = lambda data: self._arrived(line, data)
        line.on_end[CLIENT] = lambda: self._arrived(line, b"")

    def _arrived(self, line: Line, data: bytes) -> None:
        if line is not self._line:
            return
        if data:
            self.player.received(data)
        else:
            self.player.ended()
        if self._waiting:
            self.go_on()

    def _leave(self) -> None:
        if self._line is not None and self._line.wire.state is WireState.OPEN:
            self._line.close(CLIENT)
        self._line = None


@dataclass
class Visit:
    """All scenarios on one broker."""

    seed: int
    pieces: Pieces = field(default_factory=Pieces)

    def run(self) -> int:
        """Play them to their ends. Return how many there were. Raises: PlayFailed."""
        with patched((*SMALL_SIZES, *self.pieces.patches)):
            return self._run()

    def _run(self) -> int:
        scenarios = [load(name) for name in names() if not name.startswith(LARGE)]
        world = World(self.seed)
        node = Node(world, Onlooker(lambda: world.now_ms), self.pieces, _entities(scenarios))
        node.start()
        world.run_to(world.now_ms + 2_000)
        random = world.random
        node.fault_rates = FaultRates(
            wire_ms_max=random.choice((0, 3, 40)), commit_ms_max=random.choice((0, 8, 20))
        )
        visitors = [Visitor(world, node, scenario) for scenario in scenarios]
        for visitor in visitors:
            world.after(random.randint(0, 200), visitor.go_on)
        ended = world.run_until(lambda: all(one.done for one in visitors), world.now_ms + END_MS_MAX)
        assert ended, [one.player.scenario.name for one in visitors if not one.done]
        assert node.process is not None
        node.process.namespace.check(node.process.now_ms)
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
