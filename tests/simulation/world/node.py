"""The broker under simulation: a store, and the processes that serve it one after another.

Owns: when a process starts and dies, what the administration asks of it, and the rates of faults. Must not
know: how a process works, what clients want.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from peeklock.broker.vocabulary.commands import (
    AcceptClock,
    AddRule,
    CreateEntity,
    DeleteEntity,
    LimitSending,
    RemoveRule,
    UpdateEntity,
    UpdateRule,
)
from peeklock.broker.vocabulary.descriptions import (
    DEFAULT_RULE_NAME,
    Description,
    EntityStatus,
    RuleDescription,
    SubscriptionDescription,
)
from peeklock.server.loop.clock import SlewedClock
from peeklock.store.base import Batch
from peeklock.store.memory import MemoryStore
from peeklock.testing.faults import Fault, FaultyStore
from peeklock.testing.pump import finish
from peeklock.testing.wire import MemoryWire, WireState
from tests.simulation.oracle.bounds import Guest
from tests.simulation.oracle.checker import Checker
from tests.simulation.world.machine import Machine, sets_clocks
from tests.simulation.world.pieces import Pieces
from tests.simulation.world.process import Process
from tests.simulation.world.topology import topic_of
from tests.simulation.world.wire import Wire
from tests.simulation.world.world import World


@dataclass(slots=True)
class FaultRates:
    """How likely faults of store and network are; the plan changes it when the faults end."""

    wire_ms_max: int = 4
    commit_ms_max: int = 12
    slow_commits: float = 0.0
    failing_commits: float = 0.0
    crash_in_commit: float = 0.0


class Node:
    """One broker over one store that outlives its processes."""

    def __init__(
        self,
        world: World,
        checker: Checker,
        pieces: Pieces,
        entities: list[Description],
        first_rules: dict[str, RuleDescription] | None = None,
        *,
        records_events: bool = False,
    ) -> None:
        """Describe a broker that has not started.

        Args:
            first_rules: with which subscriptions are created, by path, where that is not the usual one.
            records_events: what happens is kept in the store, as with `--capture`.
        """
        self.captures_body = no_body if records_events else None
        self._world = world
        self._random = world.random
        self.checker = checker
        self._pieces = pieces
        self._entities = entities
        self._first_rules = first_rules or {}
        self.fault_rates = FaultRates()
        self.machine = Machine(world)
        self.facts_store = MemoryStore()
        self.store = FaultyStore(pieces.store(self.facts_store), fault=self._fault)
        self.process: Process | None = None
        self._behind_ms = 0
        """How far the broker's passed time is behind the world's, while no process runs."""
        self.deaths = 0
        self._connections = 0
        self._limits = LimitSending()

    # From the world

    def start(self) -> None:
        """Start a process: recover from the store, create missing entities."""
        if self.process is not None:
            return
        clock = SlewedClock(self.machine.wall_s, self.machine.passed_s)
        offset_ms = clock.now_ms() - self.passed_ms
        self._world.note(f"start, broker clock {offset_ms:+d}")
        self.checker.started(offset_ms)
        self._compare()
        self.process = Process(self._world, self, self._pieces, clock, offset_ms)
        self.process.recover(self._entities)
        if sets_clocks(self._world.seed):
            self.process.follow_clock()
        if self._limits != LimitSending():
            self.process.offer([self._limits])

    def die(self, why: str) -> None:
        """End the process at once: its memory is lost, every connection breaks."""
        process = self.process
        if process is None:
            return
        self._behind_ms = self._world.now_ms - self.passed_ms
        self.process = None
        self._world.note(f"crash: {why}")
        self.deaths += 1
        self.checker.crashed()
        process.dead = True
        for connection in process.connections.values():
            connection.wire.cut()
        process.http.cut()

    def limit(self, limits: LimitSending) -> None:
        """Run low on disk space, lag, or recover from either."""
        self._limits = limits
        self.checker.limited()
        self._world.note(f"limits: {limits}")
        if self.process is not None:
            self.process.offer([limits])

    def update(self, description: Description) -> None:
        """Change an entity's settings, live, as the administration does."""
        before = self.entity(description.name)
        if before is None:
            return
        facts = self.checker.facts
        ids = facts.named(description.name)
        known = facts.description(ids[-1] * 4) if ids else before
        if description == before == known:
            return
        self._entities = [description if e.name == description.name else e for e in self._entities]
        if description.status is not before.status:
            self.checker.limited()
        if description.status is not EntityStatus.ACTIVE:
            self.checker.history.was_disabled = True
        if self.process is not None:
            self._world.note(f"update: {description}")
            drops_locks = description != replace(known, user_metadata=description.user_metadata)
            targets = [t for t in (description.forward_to, description.forward_dead_lettered_to) if t]
            there = all(self.entity(target) and self.checker.exists(target) for target in targets)
            sure = known == before and there
            for name in (description.name, *self._behind(description.name)):
                self.checker.updated(name, drops_locks=drops_locks or not sure, sure=sure)
            self.process.offer([UpdateEntity(description, self.process.own.reply_to())])

    def create(self, description: Description) -> None:
        """Create an entity, live, for the first time or again."""
        if self.entity(description.name) is None:
            self._entities.append(description)
        if self.process is not None:
            self._world.note(f"create: {description}")
            self.process.offer([self.creation(description)])

    def creation(self, description: Description) -> CreateEntity:
        """Return the command that creates an entity; a subscription gets its first rule with it."""
        assert self.process is not None
        if not isinstance(description, SubscriptionDescription):
            return CreateEntity(description, self.process.own.reply_to())
        rule = self._first_rules.get(description.name)
        wanted = rule or RuleDescription(DEFAULT_RULE_NAME)
        self.checker.rulings.asking(description.name, wanted.name, wanted)
        return CreateEntity(description, self.process.own.reply_to(), rule)

    def delete(self, name: str) -> None:
        """Delete an entity, live, as the administration does; a topic's subscriptions go with it."""
        if self.process is not None and self.entity(name) is not None:
            self._world.note(f"delete: {name}")
            names = [name, *self._behind(name)]
            self._entities = [entity for entity in self._entities if entity.name not in names]
            for each in names:
                self.checker.deleting(each)
            self.process.offer([DeleteEntity(name, self.process.own.reply_to())])

    def rule(self, path: str, name: str, rule: RuleDescription | None, kind: str) -> None:
        """Change a rule of a subscription, live, as the administration does: `add`, `update` or `remove`."""
        process = self.process
        if process is None:
            return
        self._world.note(f"{kind} rule {name} of {path}: {rule}")
        reply_to = process.own.reply_to()
        process.own.rule_changes[reply_to] = self.checker.rulings.asking(path, name, rule)
        if rule is None:
            process.offer([RemoveRule(path, name, reply_to)])
        elif kind == "add":
            process.offer([AddRule(path, rule, reply_to)])
        else:
            process.offer([UpdateRule(path, rule, reply_to)])

    def entity(self, name: str) -> Description | None:
        """Return the settings that an entity should have; None when it should be missing."""
        return next((entity for entity in self._entities if entity.name == name), None)

    def _behind(self, name: str) -> list[str]:
        """Return the subscriptions of a topic."""
        return [entity.name for entity in self._entities if topic_of(entity) == name]

    def connect(self, guest: Guest | None = None, random: Random | None = None) -> Wire | None:
        """Open a wire to the broker; None while no process listens.

        Args:
            guest: the peer is hostile, and the checker knows it as this.
            random: decides the wire's delays and losses, in place of the world's.
        """
        process = self.process
        if process is None:
            return None
        self._connections += 1
        memory = MemoryWire(random or self._random, delay_ms_max=self.fault_rates.wire_ms_max, split=True)
        wire = Wire(self._world, memory)
        process.accept(self._connections, wire, guest)
        return wire

    @property
    def passed_ms(self) -> int:
        """The time as it passes at the broker: across restarts, and independent of steps of a clock."""
        if self.process is None:
            return self._world.now_ms - self._behind_ms
        return self.process.passed_ms

    @property
    def wall_ms(self) -> int:
        """The wall clock of the broker's machine, which clients use too."""
        return self._world.now_ms + self.machine.ahead_ms

    def accept_clock(self) -> None:
        """Accept the wall clock, as an operator does."""
        if self.process is not None:
            self._world.note("the wall clock is right")
            self.checker.clock_accepted()
            self.process.offer([AcceptClock()])

    def find_half_open(self) -> None:
        """Break half-open connections, as TCP's keep-alive does: the broker sees a broken connection."""
        process = self.process
        if process is not None:
            for connection in list(process.connections.values()):
                if connection.wire.memory.state is WireState.DROPPED:
                    connection.ended()
            process.http.find_half_open()

    def _fault(self, batch: Batch) -> Fault | None:
        if self._random.random() < self.fault_rates.failing_commits:
            return self._random.choice([Fault.BEFORE, Fault.AFTER])
        return None

    def _compare(self) -> None:
        """Compare the store's content with what was committed."""
        self.checker.facts.compare_definitions(finish(self.store.load_definitions()))
        frames = finish(_all(self.store.load()))
        rows = sorted({record.row for record in self.checker.facts.live.values()})
        self.checker.facts.compare(frames, finish(self.store.read_body_rows(rows)))


def no_body(name: str) -> bool:
    """Whether events contain whole messages: never."""
    return False


async def _all(items: Any) -> list[Any]:
    return [item async for item in items]
