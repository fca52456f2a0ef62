"""The broker's process under simulation: it drives the real pieces as `server.shard` does, dies, and
recovers.

Owns: the loop of one namespace in virtual time, and the instants at which it may die. Must not know: what
clients want.

A commit is taken, copied, and lands some virtual ms later; the process may die before it lands, or between
the landing and the answer. The store itself is only touched at the landing, so that a batch is wholly there
or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

from peeklock.auth.authority import Authority
from peeklock.broker.changes import Change, MessageRemoved, MessageStored, NumbersIssued
from peeklock.broker.commands import (
    AddRule,
    Command,
    CreateEntity,
    DeleteEntity,
    Fetched,
    LimitSending,
    Release,
    RemoveRule,
    UpdateEntity,
    UpdateRule,
)
from peeklock.broker.descriptions import (
    DEFAULT_RULE_NAME,
    Description,
    EntityStatus,
    RuleDescription,
    SubscriptionDescription,
)
from peeklock.broker.effects import (
    CoordinatorOpened,
    Deliver,
    DetachLink,
    Done,
    Drained,
    Effect,
    EntityFound,
    Failed,
    Fetch,
    LinkRefused,
    ReceiverOpened,
    RulesFound,
    SenderOpened,
)
from peeklock.broker.errors import (
    ArgumentInvalid,
    EntityAlreadyExists,
    EntityNotFound,
    RuleAlreadyExists,
    RuleNotFound,
)
from peeklock.broker.message import Message
from peeklock.broker.namespace import Namespace
from peeklock.broker.quotas import TIERS
from peeklock.engine.bodies import BodyCache
from peeklock.engine.engine import Engine
from peeklock.gateway.connection import Gateway
from peeklock.gateway.namespaces import OneNamespace
from peeklock.store.base import Batch, Store, StoreFailed
from peeklock.store.memory import MemoryStore
from peeklock.testing.faults import Fault, FaultyStore
from peeklock.testing.wire import BROKER, MemoryWire, WireState
from tests.simulation.checker import Checker
from tests.simulation.line import Line
from tests.simulation.records import snapshot
from tests.simulation.rulings import EXISTS, MISSING, Wish
from tests.simulation.sizes import BODIES_BYTES_MAX
from tests.simulation.topology import in_order, topic_of
from tests.simulation.world import World

_BY_LINK = frozenset(
    {CoordinatorOpened, DetachLink, Deliver, Drained, LinkRefused, ReceiverOpened, SenderOpened}
)

OWN_CONNECTION_ID = 0

_EXPECTED = EntityNotFound | EntityAlreadyExists | ArgumentInvalid | RuleNotFound | RuleAlreadyExists

CHECK_EVERY = 50
"""Batches between two looks at the broker's own indexes."""


@dataclass(slots=True)
class Pieces:
    """What the broker is made of; a planted bug replaces one."""

    namespace: Callable[..., Namespace] = Namespace
    engine: Callable[..., Engine] = Engine
    store: Callable[[Store], Store] = field(default=lambda store: store)
    gateway: Callable[..., Gateway] = Gateway


@dataclass(slots=True)
class Weather:
    """How likely the store and the network misbehave; the plan changes it when the faults end."""

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
        self.weather = Weather()
        self.offset_ms = 0
        self.facts_store = MemoryStore()
        self.store = FaultyStore(pieces.store(self.facts_store), fault=self._fault)
        self.process: Process | None = None
        self.deaths = 0
        self._connections = 0
        self._limits = LimitSending()

    # What the world does with it

    def start(self) -> None:
        """Start a process: recover from the store, create missing entities."""
        if self.process is not None:
            return
        self._world.note(f"start, broker clock {self.offset_ms:+d}")
        self.checker.started(self.offset_ms)
        self._compare()
        self.process = Process(self._world, self, self._pieces)
        self.process.recover(self._entities)
        if self._limits != LimitSending():
            self.process.offer([self._limits])

    def die(self, why: str) -> None:
        """End the process at once: everything in memory is lost, every connection breaks."""
        process, self.process = self.process, None
        if process is None:
            return
        self._world.note(f"crash: {why}")
        self.deaths += 1
        self.checker.crashed()
        process.dead = True
        for line in process.lines.values():
            line.cut()

    def limit(self, limits: LimitSending) -> None:
        """Run low on space, lag, or recover from it."""
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
            self.process.offer([UpdateEntity(description, self.process.own_reply())])

    def create(self, description: Description) -> None:
        """Create an entity, live, again or for the first time."""
        if self.entity(description.name) is None:
            self._entities.append(description)
        if self.process is not None:
            self._world.note(f"create: {description}")
            self.process.offer([self.creation(description)])

    def creation(self, description: Description) -> CreateEntity:
        """Say how an entity is created; a subscription has its first rule then."""
        assert self.process is not None
        if not isinstance(description, SubscriptionDescription):
            return CreateEntity(description, self.process.own_reply())
        rule = self._first_rules.get(description.name)
        wanted = rule or RuleDescription(DEFAULT_RULE_NAME)
        self.checker.rulings.asking(description.name, wanted.name, wanted)
        return CreateEntity(description, self.process.own_reply(), rule)

    def delete(self, name: str) -> None:
        """Delete an entity, live, as the administration does; a topic's subscriptions go with it."""
        if self.process is not None and self.entity(name) is not None:
            self._world.note(f"delete: {name}")
            names = [name, *self._behind(name)]
            self._entities = [entity for entity in self._entities if entity.name not in names]
            for each in names:
                self.checker.deleting(each)
            self.process.offer([DeleteEntity(name, self.process.own_reply())])

    def rule(self, path: str, name: str, rule: RuleDescription | None, kind: str) -> None:
        """Change a rule of a subscription, live, as the administration does: `add`, `update` or `remove`
        it."""
        process = self.process
        if process is None:
            return
        self._world.note(f"{kind} rule {name} of {path}: {rule}")
        reply_to = process.own_reply()
        process.wishes[reply_to] = self.checker.rulings.asking(path, name, rule)
        if rule is None:
            process.offer([RemoveRule(path, name, reply_to)])
        elif kind == "add":
            process.offer([AddRule(path, rule, reply_to)])
        else:
            process.offer([UpdateRule(path, rule, reply_to)])

    def entity(self, name: str) -> Description | None:
        """Give the settings that an entity is to have; None when it is to be missing."""
        return next((entity for entity in self._entities if entity.name == name), None)

    def _behind(self, name: str) -> list[str]:
        """Give the subscriptions of a topic."""
        return [entity.name for entity in self._entities if topic_of(entity) == name]

    def connect(self) -> Line | None:
        """Lay a wire to the broker; None while no process listens."""
        process = self.process
        if process is None:
            return None
        self._connections += 1
        wire = MemoryWire(self._random, delay_ms_max=self.weather.wire_ms_max, split=True)
        line = Line(self._world, wire)
        process.accept(self._connections, line)
        return line

    @property
    def now_ms(self) -> int:
        """The broker's clock."""
        return self._world.now_ms + self.offset_ms

    def find_half_open(self) -> None:
        """Let TCP's keep-alive find the connections that are half open: to the broker they are broken."""
        process = self.process
        if process is not None:
            for connection_id, line in list(process.lines.items()):
                if line.wire.state is WireState.DROPPED:
                    process.ended(connection_id)

    def _fault(self, batch: Batch) -> Fault | None:
        if self._random.random() < self.weather.failing_commits:
            return self._random.choice([Fault.BEFORE, Fault.AFTER])
        return None

    def _compare(self) -> None:
        """Compare what the store gives back with what was committed."""
        self.checker.facts.compare_definitions(drive(self.store.load_definitions()))
        frames = drive(_all(self.store.load()))
        rows = sorted({record.row for record in self.checker.facts.live.values()})
        self.checker.facts.compare(frames, drive(self.store.read_body_rows(rows)))


class Process:
    """One life of the broker: engine, gateways, timers. All memory of it is lost with it."""

    def __init__(self, world: World, node: Node, pieces: Pieces) -> None:
        self._world = world
        self._random = world.random
        self._node = node
        self._pieces = pieces
        self.dead = False
        self.lines: dict[int, Line] = {}
        self.gateways: dict[int, Gateway] = {}
        self._pumping = False
        self._timer_ms: int | None = None
        self._ticks: dict[int, int] = {}
        self._opened_ms = world.now_ms
        self._requests = 0
        self._tracking = 0
        self._rows_under_way: set[int] = set()
        self._fetches: dict[int, list[tuple[Fetch, int]]] = {}
        self.wishes: dict[tuple[int, int, int, int], Wish] = {}
        """What the administration wants of rules, until it is answered."""
        self.namespace = pieces.namespace(
            limits=TIERS["standard"],
            tokens=self._token,
            digest_key=b"simulation",
            captures_body=node.captures_body,
        )
        self.engine = pieces.engine(self.namespace, BodyCache(BODIES_BYTES_MAX))
        self.namespaces = OneNamespace(Authority.development())

    def recover(self, entities: list[Description]) -> None:
        drive(self.engine.recover(self._node.store, self._node.now_ms))
        self.namespace.check(self._node.now_ms)
        known = {
            entity.description.name: entity.description
            for entity in self._node.checker.facts.entities.values()
        }
        commands: list[Command] = []
        for entity in in_order(entities):
            if entity.name not in known:
                commands.append(self._node.creation(entity))
            elif known[entity.name] != entity:
                commands.append(UpdateEntity(entity, self.own_reply()))
        self.offer(commands)

    def own_reply(self) -> tuple[int, int, int, int]:
        self._requests += 1
        return OWN_CONNECTION_ID, 0, 0, self._requests

    # Connections

    def accept(self, connection_id: int, line: Line) -> None:
        self.lines[connection_id] = line
        self.gateways[connection_id] = self._pieces.gateway(
            connection_id,
            namespaces=self.namespaces,
            tracking=self._track,
            log=lambda event, fields: None,
            now_ms=self._node.now_ms,
        )
        line.on_data[BROKER] = lambda data: self._received(connection_id, data)
        line.on_end[BROKER] = lambda: self.ended(connection_id)

    def _received(self, connection_id: int, data: bytes) -> None:
        if self.dead:
            return
        self._world.note(f"c{connection_id} -> {len(data)} {crc32(data):08x}")
        self.offer(self.gateways[connection_id].receive(data, self._node.now_ms))
        self._flush(connection_id)

    def ended(self, connection_id: int) -> None:
        if self.dead:
            return
        self._world.note(f"c{connection_id} -> end")
        self.offer(self.gateways[connection_id].eof(self._node.now_ms))
        self._flush(connection_id)
        self._remove(connection_id)

    def _remove(self, connection_id: int) -> None:
        line = self.lines.pop(connection_id, None)
        self.gateways.pop(connection_id, None)
        if line is not None:
            line.close(BROKER)

    def _flush(self, connection_id: int) -> None:
        gateway = self.gateways.get(connection_id)
        if gateway is None:
            return
        data = gateway.data_to_send()
        if data:
            self._world.note(f"c{connection_id} <- {len(data)} {crc32(data):08x}")
            self.lines[connection_id].write(BROKER, data)
        self.offer(gateway.written(0, self._node.now_ms))
        if gateway.closing:
            # The server's transport tells of its own end like of any other.
            self.offer(gateway.eof(self._node.now_ms))
            self._remove(connection_id)
            return
        self._plan_tick(connection_id, gateway)

    def _plan_tick(self, connection_id: int, gateway: Gateway) -> None:
        due_ms = gateway.next_deadline_ms()
        if due_ms is not None and self._ticks.get(connection_id, 0) != due_ms:
            self._ticks[connection_id] = due_ms
            self._world.at(due_ms - self._node.offset_ms, self._tick, connection_id, due_ms)

    def _tick(self, connection_id: int, due_ms: int) -> None:
        gateway = self.gateways.get(connection_id)
        if self.dead or gateway is None or self._ticks.get(connection_id) != due_ms:
            return
        del self._ticks[connection_id]
        deadline = gateway.next_deadline_ms()
        if deadline is not None and deadline <= self._node.now_ms:
            self._world.note(f"c{connection_id} tick")
            self.offer(gateway.tick(self._node.now_ms))
        self._flush(connection_id)

    # The way down and up, as in server.shard

    def offer(self, commands: list[Command]) -> None:
        if not commands:
            return
        now = self._node.now_ms
        for command in commands:
            self.engine.offer(command, now)
        if not self._pumping:
            self._pumping = True
            self._world.at(self._world.now_ms, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self.dead:
            return
        now = self._node.now_ms
        self.engine.advance(now)
        if not self.engine.in_flight:
            batch = self.engine.take_batch(now)
            if batch is None:
                self._dispatch(self.engine.release())
            else:
                self._commit(batch)
        self._set_timer()

    def _commit(self, batch: Batch) -> None:
        world, weather = self._world, self._node.weather
        if batch.no % CHECK_EVERY == 0:
            self.namespace.check(self._node.now_ms)
        taken = snapshot(batch, self._opened_ms, world.now_ms)
        self._opened_ms = world.now_ms
        world.note(f"batch {batch.no}: {len(batch.changes)} changes, {len(batch.body_rows)} rows")
        took_ms = self._random.randint(0, weather.commit_ms_max)
        if self._random.random() < weather.slow_commits:
            took_ms = self._random.randint(100, 2_000)
        landed_ms = self._random.randint(0, took_ms)
        world.after(landed_ms, self._land, _frozen(batch), taken, took_ms - landed_ms)

    def _land(self, batch: Batch, taken: Any, answer_ms: int) -> None:
        if self.dead:
            return
        world, node = self._world, self._node
        dies = self._random.random() < node.weather.crash_in_commit
        if dies and self._random.random() < 0.5:
            node.die(f"in commit {batch.no}, which is lost")
            return
        try:
            size_bytes = drive(node.store.commit(batch))
        except StoreFailed as failure:
            if Fault.AFTER.value in str(failure):
                self._landed(taken)
            node.die(str(failure))
            return
        self._landed(taken)
        if dies:
            node.die(f"in commit {batch.no}, which is stored")
            return
        world.after(answer_ms, self._committed, batch.no, size_bytes)

    def _landed(self, taken: Any) -> None:
        self._world.note(f"batch {taken.no} is durable")
        self._node.checker.committed(taken, self._world.now_ms)

    def _committed(self, no: int, size_bytes: int) -> None:
        if self.dead:
            return
        self._dispatch(self.engine.committed(no, size_bytes, self._node.now_ms))
        wanted = self.engine.reclaim_wanted()
        if wanted is not None:
            self._world.after(self._random.randint(0, 5), self._reclaim, wanted)
        self._pump()

    def _reclaim(self, wanted: Any) -> None:
        if self.dead:
            return
        self._world.note("reclaim")
        self.engine.reclaim_offer(drive(wanted.read_from(self._node.store)))
        self._pump()

    def _dispatch(self, effects: list[Effect]) -> None:
        touched: dict[int, Gateway] = {}
        undelivered: list[Command] = []
        fetches: list[Fetch] = []
        now = self._node.now_ms
        for effect in effects:
            if isinstance(effect, Fetch):
                fetches.append(effect)
                continue
            to: int = effect.link[0] if type(effect) in _BY_LINK else effect.reply_to[0]  # type: ignore[union-attr]
            if to == OWN_CONNECTION_ID:
                # What the administration asks for may be there already, or gone by itself, or what it is to
                # forward to.
                assert isinstance(effect, EntityFound | RulesFound | Done) or (
                    isinstance(effect, Failed) and isinstance(effect.error, _EXPECTED)
                ), effect
                wish = self.wishes.pop(effect.reply_to, None)
                if wish is not None:
                    condition = _condition(effect.error) if isinstance(effect, Failed) else None
                    self._node.checker.rulings.answered(wish, condition)
                continue
            gateway = self.gateways.get(to)
            if gateway is not None:
                gateway.handle(effect, self._body, now)
                touched[to] = gateway
            elif isinstance(effect, Deliver) and effect.lock_token is not None:
                undelivered.append(Release(effect.message.queue_id, effect.lock_token, None))
        for connection_id, gateway in touched.items():
            self._flush(connection_id)
            self._fetch(gateway)
        self.offer(undelivered)
        self._fetch_routing(fetches)

    # Bodies that are not in memory

    def _body(self, message: Message) -> bytes | None:
        body: bytes | None = self.engine.bodies.get(message.body_row, message.body_slot)
        return body

    def _fetch(self, gateway: Gateway) -> None:
        rows = sorted(row for row in gateway.bodies_wanted() if row not in self._rows_under_way)
        self._want(rows)

    def _fetch_routing(self, fetches: list[Fetch]) -> None:
        answers: list[Command] = []
        for fetch in fetches:
            payload = self._body(fetch.message)
            if payload is not None:
                answers.append(_routing(fetch, payload))
                continue
            row, slot = fetch.message.body_row, fetch.message.body_slot
            self._fetches.setdefault(row, []).append((fetch, slot))
            if row not in self._rows_under_way:
                self._want([row])
        self.offer(answers)

    def _want(self, rows: list[int]) -> None:
        if rows:
            self._rows_under_way.update(rows)
            for row in rows:
                self.engine.bodies.want(row)
            self._world.after(self._random.randint(0, 8), self._fetched, rows)

    def _fetched(self, rows: list[int]) -> None:
        if self.dead:
            return
        self._world.note(f"read body rows {rows}")
        found = drive(self._node.store.read_body_rows(rows))
        self._rows_under_way.difference_update(rows)
        answers: list[Command] = []
        for row, payloads in found.items():
            self.engine.bodies.put(row, payloads)
            answers += [_routing(fetch, payloads[slot]) for fetch, slot in self._fetches.pop(row, ())]
        self.offer(answers)
        for connection_id, gateway in list(self.gateways.items()):
            if gateway.bodies_wanted():
                gateway.bodies_arrived(self._body, self._node.now_ms)
                self._flush(connection_id)
                self._fetch(gateway)

    # Time

    def _set_timer(self) -> None:
        due_ms = self.engine.next_deadline_ms()
        if due_ms is None:
            self._timer_ms = None
        elif self._timer_ms is None or due_ms < self._timer_ms:
            self._timer_ms = due_ms
            self._world.at(due_ms - self._node.offset_ms, self._due, due_ms)

    def _due(self, due_ms: int) -> None:
        if self.dead or self._timer_ms != due_ms:
            return
        self._timer_ms = None
        self._world.note("timer")
        self._pump()

    # Randomness

    def _token(self) -> bytes:
        return self._random.randbytes(16)

    def _track(self) -> str:
        self._tracking += 1
        return f"track-{self._tracking}"


def no_body(name: str) -> bool:
    """Whether events hold whole messages: never."""
    return False


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits to its end."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise AssertionError("the memory store is not to wait for anything")


def _condition(error: Exception) -> str:
    """Name a refusal as clients are told it."""
    return EXISTS if isinstance(error, RuleAlreadyExists) else MISSING


def _routing(fetch: Fetch, payload: bytes) -> Fetched:
    return Fetched(fetch.queue_id, fetch.message.position, payload)


async def _all(items: Any) -> list[Any]:
    return [item async for item in items]


def _frozen(batch: Batch) -> Batch:
    """Copy a batch with its records, as a real store encodes it before anything else happens."""
    return Batch(
        batch.no,
        [_copied(change) for change in batch.changes],
        {row: list(payloads) for row, payloads in batch.body_rows.items()},
        list(batch.dropped_rows),
        batch.truncate_before,
        batch.events,
        batch.events_exported_to,
    )


def _copied(change: Change) -> Change:
    kind = type(change)
    if kind is MessageStored or kind is MessageRemoved:
        change = copy(change)
        change.message = copy(change.message)
        change.message.lock = None
    elif kind is NumbersIssued:
        change = copy(change)
    return change
