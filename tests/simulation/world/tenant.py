"""One namespace of the broker under simulation, over all its processes: a store, entities, a checker.

Owns: what the administration asks of the namespace, the rates of faults of its store and connections, and
by which hosts and keys its clients find it. Must not know: the other namespace, how a process works, what
clients want.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from peeklock.broker.vocabulary.commands import (
    AddRule,
    CreateEntity,
    DeleteEntity,
    LimitSending,
    RemoveRule,
    ReplyTo,
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
from peeklock.store.base import Batch, Store
from peeklock.store.memory import MemoryStore
from peeklock.testing.faults import Fault, FaultyStore
from peeklock.testing.pump import finish
from tests.simulation.oracle.bounds import Guest
from tests.simulation.oracle.checker import Checker
from tests.simulation.world.accounts import FIRST, Account, accounts_of
from tests.simulation.world.node import Node
from tests.simulation.world.topology import topic_of
from tests.simulation.world.wire import Wire
from tests.simulation.world.world import World

if TYPE_CHECKING:
    from tests.simulation.world.shard import Shard


@dataclass(slots=True)
class FaultRates:
    """How likely faults of store and network are; the plan changes it when the faults end."""

    wire_ms_max: int = 4
    commit_ms_max: int = 12
    slow_commits: float = 0.0
    failing_commits: float = 0.0
    crash_in_commit: float = 0.0


class Tenant:
    """One namespace. What differs between namespaces is drawn from the random source of its own world."""

    def __init__(
        self,
        node: Node,
        world: World,
        checker: Checker,
        entities: list[Description],
        first_rules: dict[str, RuleDescription] | None = None,
        *,
        name: str = FIRST,
        records_events: bool = False,
    ) -> None:
        """Describe a namespace that no process serves yet, and give it to the node.

        Args:
            first_rules: with which subscriptions are created, by path, where that is not the usual one.
            records_events: what happens is kept in the store, as with `--capture`.
        """
        self.name = name
        self.captures_body = no_body if records_events else None
        self.node = node
        self.world = world
        self.checker = checker
        self.entities = entities
        self._first_rules = first_rules or {}
        self.fault_rates = FaultRates()
        self.facts_store = MemoryStore()
        self.store = FaultyStore(node.pieces.store(self.facts_store), fault=self._fault)
        self.limits = LimitSending()
        self._accounts = accounts_of(name)
        node.add(self)

    @property
    def _shard(self) -> Shard | None:
        """The namespace in the present process."""
        process = self.node.process
        return None if process is None else process.shard_of(self)

    # Clients

    def account(self) -> Account:
        """Choose the account of a new client; it is the usual one in the first namespace."""
        return self.world.random.choice(self._accounts) if len(self._accounts) > 1 else self._accounts[0]

    def connect(self, guest: Guest | None = None, random: Random | None = None) -> Wire | None:
        """Open a wire for a client of the namespace; None while no process listens.

        Args:
            guest: the peer is hostile, and the checker knows it as this.
            random: decides the wire's delays and losses, in place of the world's.
        """
        return self.node.connect(self, random or self.world.random, guest)

    # The administration

    def limit(self, limits: LimitSending) -> None:
        """Run low on disk space, lag, or recover from either."""
        self.limits = limits
        self.checker.limited()
        self.world.note(f"limits: {limits}")
        if (shard := self._shard) is not None:
            shard.offer([limits])

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
        self.entities = [description if e.name == description.name else e for e in self.entities]
        if description.status is not before.status:
            self.checker.limited()
        if description.status is not EntityStatus.ACTIVE:
            self.checker.history.was_disabled = True
        if (shard := self._shard) is not None:
            self.world.note(f"update: {description}")
            drops_locks = description != replace(known, user_metadata=description.user_metadata)
            targets = [t for t in (description.forward_to, description.forward_dead_lettered_to) if t]
            there = all(self.entity(target) and self.checker.exists(target) for target in targets)
            sure = known == before and there
            for name in (description.name, *self._behind(description.name)):
                self.checker.updated(name, drops_locks=drops_locks or not sure, sure=sure)
            shard.offer([UpdateEntity(description, shard.own.reply_to())])

    def create(self, description: Description) -> None:
        """Create an entity, live, for the first time or again."""
        if self.entity(description.name) is None:
            self.entities.append(description)
        if (shard := self._shard) is not None:
            self.world.note(f"create: {description}")
            shard.offer([self.creation(description, shard.own.reply_to())])

    def creation(self, description: Description, reply_to: ReplyTo) -> CreateEntity:
        """Return the command that creates an entity; a subscription gets its first rule with it."""
        if not isinstance(description, SubscriptionDescription):
            return CreateEntity(description, reply_to)
        rule = self._first_rules.get(description.name)
        wanted = rule or RuleDescription(DEFAULT_RULE_NAME)
        self.checker.rulings.asking(description.name, wanted.name, wanted)
        return CreateEntity(description, reply_to, rule)

    def delete(self, name: str) -> None:
        """Delete an entity, live, as the administration does; a topic's subscriptions go with it."""
        shard = self._shard
        if shard is not None and self.entity(name) is not None:
            self.world.note(f"delete: {name}")
            names = [name, *self._behind(name)]
            self.entities = [entity for entity in self.entities if entity.name not in names]
            for each in names:
                self.checker.deleting(each)
            shard.offer([DeleteEntity(name, shard.own.reply_to())])

    def rule(self, path: str, name: str, rule: RuleDescription | None, kind: str) -> None:
        """Change a rule of a subscription, live, as the administration does: `add`, `update` or `remove`."""
        shard = self._shard
        if shard is None:
            return
        self.world.note(f"{kind} rule {name} of {path}: {rule}")
        reply_to = shard.own.reply_to()
        shard.own.rule_changes[reply_to] = self.checker.rulings.asking(path, name, rule)
        if rule is None:
            shard.offer([RemoveRule(path, name, reply_to)])
        elif kind == "add":
            shard.offer([AddRule(path, rule, reply_to)])
        else:
            shard.offer([UpdateRule(path, rule, reply_to)])

    def entity(self, name: str) -> Description | None:
        """Return the settings that an entity should have; None when it should be missing."""
        return next((entity for entity in self.entities if entity.name == name), None)

    def _behind(self, name: str) -> list[str]:
        """Return the subscriptions of a topic."""
        return [entity.name for entity in self.entities if topic_of(entity) == name]

    def compare(self, store: Store) -> None:
        """Compare the content of the store, as a process reads it, with what was committed."""
        self.checker.facts.compare_definitions(finish(store.load_definitions()))
        frames = finish(_all(store.load()))
        rows = sorted({record.row for record in self.checker.facts.live.values()})
        self.checker.facts.compare(frames, finish(store.read_body_rows(rows)))

    def _fault(self, batch: Batch) -> Fault | None:
        if self.world.random.random() < self.fault_rates.failing_commits:
            return self.world.random.choice([Fault.BEFORE, Fault.AFTER])
        return None


def no_body(name: str) -> bool:
    """Whether events contain whole messages: never."""
    return False


async def _all(items: Any) -> list[Any]:
    return [item async for item in items]
