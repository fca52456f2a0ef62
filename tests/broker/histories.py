"""Random commands on several entities of all kinds, through an engine and a memory store.

Owns: who is attached, what was sent, what is asked next. Must not know: what must be true of the answers;
`test_histories` looks at that. A message is told by its size, which never changes.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

from peeklock.amqp import codec
from peeklock.amqp.messaging import Sections
from peeklock.broker.entities.entity import Entity
from peeklock.broker.namespace import Namespace
from peeklock.broker.queue.browsing import key_to_browse_from
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.vocabulary import commands as ask
from peeklock.broker.vocabulary import effects as do
from peeklock.broker.vocabulary.commands import (
    Address,
    Disposition,
    LinkId,
    ReceiveMode,
    ReplyTo,
    SequenceNumber,
    SessionRequest,
    SubQueue,
)
from peeklock.broker.vocabulary.descriptions import (
    UNLIMITED_MS,
    Description,
    EntityKind,
    EntityStatus,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.extension_commands import (
    DeleteMatching,
    ReplaceSessionState,
    Reset,
    SearchMessages,
    SettleByNumber,
    ShiftScheduled,
)
from peeklock.broker.vocabulary.message import Message, MessageState, Routing
from peeklock.engine.bodies import BodyCache
from peeklock.engine.driver import Commit, Driver, HandOut, ReadRows, Reclaim
from peeklock.engine.engine import Engine
from peeklock.rules.filters import FalseFilter, Filter, SqlAction, SqlFilter, TrueFilter
from peeklock.store.base import Batch
from peeklock.store.memory import MemoryStore
from tests.broker.harness import LOTS, START_MS
from tests.broker.harness import payload_of as encoded
from tests.engine.rig import at_once

NAMES = "abcd"
TOPICS = "tu"
SUBSCRIPTIONS = ("one", "two", "three")
RULES = ("p", "q", "r")
CONNECTIONS = 3

EVEN = SqlFilter("sys.Size % 2 = 0")
SPLIT = SqlFilter("10 / (sys.Size % 3) > 6")
"""True of what leaves 1, false of what leaves 2; a multiple of 3 cannot be evaluated."""
DIVIDING = SqlAction("SET part = 10 / (sys.Size % 5)")
"""Cannot be done to a multiple of 5."""


class RoutedEngine(Engine):
    """Makes sections for what is read: the bodies here have none, but each its own size."""

    def __init__(self, namespace: Namespace, bodies: BodyCache, routings: dict[int, Routing]) -> None:
        super().__init__(namespace, bodies)
        self._routings = routings

    def offer(self, command: Any, now_ms: int) -> None:
        if type(command) is ask.Fetched:
            command = replace(command, payload=encoded(self._routings[len(command.payload)]))
        super().offer(command, now_ms)


class Scene:
    """Entities, their clients, and a step at a time."""

    def __init__(self, seed: int, *, topics: bool = False) -> None:
        self.random = Random(seed)
        self.topics = TOPICS if topics else ""
        self.now_ms = START_MS
        self.counter = itertools.count(1)
        self.first = self.random.choice([1, (1 << 63) - 9, (1 << 48) - 9])
        self.routings: dict[int, Routing] = {}  # of each message, by size
        self.mortal: set[int] = set()  # sizes of messages with a time-to-live
        self.ids: Counter[bytes] = Counter()
        self.store = MemoryStore()
        self.start()
        self.create(len(NAMES) + 3 * len(self.topics))

    def start(self) -> None:
        """Begin with what the store has; nobody is attached."""
        self.namespace = self.make_namespace()
        self.engine = RoutedEngine(self.namespace, BodyCache(2_000), self.routings)
        at_once(self.engine.recover(self.store, self.now_ms))
        self.driver = Driver(self.engine)
        self.driver.rest()  # `pass_time` says when something falls due
        for number in range(1, CONNECTIONS + 1):
            self.driver.connect(number)
        self.flying: tuple[Batch, int, Any] | None = None
        self.senders: dict[LinkId, Any] = {}  # with the answer and the destination
        self.receivers: list[LinkId] = []
        self.deleting: set[LinkId] = set()
        self.enlisted: dict[bytes, tuple[LinkId, list[Any]]] = {}  # by transaction, with its coordinator
        self.reads: list[list[int]] = []
        self.purging = False

    def make_namespace(self) -> Namespace:
        raise NotImplementedError

    def restart(self) -> None:
        raise NotImplementedError

    def snapshot(self) -> Any:
        raise NotImplementedError

    def entities(self) -> list[Entity]:
        return list(self.namespace._entities)

    def queues(self) -> list[MessageQueue]:
        return [queue for entity in self.entities() for queue in entity.queues()]

    # Commits

    def offer(self, command: Any) -> None:
        self.driver.offer([command], self.now_ms)

    def begin(self) -> None:
        if self.flying is None:
            self.go_on()

    def finish(self) -> None:
        if self.flying is None:
            return
        batch, size_bytes, self.durable = self.flying
        self.flying = None
        self.store.flush()
        self.driver.committed(batch.no, size_bytes, self.now_ms)
        self.go_on()

    def go_on(self) -> None:
        """Do what the driver says, but for reads."""
        more = True
        while more:
            for action in self.driver.step(self.now_ms):
                match action:
                    case HandOut():
                        self.take(action.effects)
                    case Commit(batch):
                        self.flying = (batch, self.store.stage(batch), self.snapshot())
                    case Reclaim(wanted):
                        self.driver.reclaimed(at_once(wanted.read_from(self.store)), self.now_ms)
                    case ReadRows(rows):
                        self.reads.append(rows)
            more = self.driver.more

    def take(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, do.SenderOpened) and effect.link in self.senders:
                self.senders[effect.link][0] = effect
            elif isinstance(effect, do.Declared):
                self.enlisted[effect.transaction_id] = (LinkId(*effect.reply_to[:2]), [])

    # What is asked for

    def reply_to(self, connection: int = 1) -> ReplyTo:
        return ReplyTo(connection, 0, next(self.counter))

    def link(self) -> LinkId:
        return LinkId(self.random.randint(1, CONNECTIONS), next(self.counter))

    def name(self) -> str:
        names: list[str] = [*[entity.name for entity in self.entities()] * 5, *NAMES, *self.topics]
        return self.random.choice(names)

    def address(self) -> Address:
        return Address(self.name(), self.random.choice([*[SubQueue.MAIN] * 5, *SubQueue]))

    def where(self, queue: MessageQueue) -> Address:
        return Address(queue.main.name, SubQueue(queue.queue_id % 4))

    def any_description(self) -> Description:
        pick = self.random.choice
        if not self.topics or self.random.random() < 0.3:
            return self.description(pick(NAMES))
        about = self.description(pick(self.topics))
        common: dict[str, Any] = {"default_ttl_ms": about.default_ttl_ms, "status": about.status}
        known = [entity.name for entity in self.entities() if entity.kind is EntityKind.TOPIC]
        if not known or self.random.random() < 0.3:
            return TopicDescription(
                about.name,
                requires_duplicate_detection=about.requires_duplicate_detection,
                enable_partitioning=about.enable_partitioning,
                **common,
            )
        for name in ("requires_session", "lock_duration_ms", "dead_lettering_on_expiration"):
            common[name] = getattr(about, name)
        return SubscriptionDescription(
            pick(known),
            pick(SUBSCRIPTIONS),
            max_delivery_count=about.max_delivery_count,
            dead_lettering_on_filter_errors=pick([True, False]),
            forward_to=about.forward_to,
            forward_dead_lettered_to=about.forward_dead_lettered_to,
            **common,
        )

    def rule(self) -> RuleDescription:
        pick = self.random.choice
        action = pick(
            [None, None, None, None, SqlAction("SET mark = 'x'"), SqlAction("SET sys.Label = 'x'"), DIVIDING]
        )
        filters: list[Filter] = [TrueFilter(), TrueFilter(), TrueFilter(), EVEN, SPLIT, FalseFilter()]
        return RuleDescription(pick(RULES), pick(filters), action)

    def description(self, name: str) -> QueueDescription:
        pick = self.random.choice
        sessions = pick([True, False, False])
        return QueueDescription(
            name,
            requires_session=sessions,
            requires_duplicate_detection=pick([True, False, False]),
            enable_partitioning=pick([True, False, False]),
            lock_duration_ms=pick([5_000, 9_000]),
            default_ttl_ms=pick([UNLIMITED_MS, UNLIMITED_MS, 4_000]),
            dead_lettering_on_expiration=pick([True, False]),
            max_delivery_count=pick([1, 2, 10]),
            status=pick([*[EntityStatus.ACTIVE] * 8, EntityStatus.SEND_DISABLED, EntityStatus.DISABLED]),
            forward_to=pick([None, None, *NAMES, *self.topics]),
            forward_dead_lettered_to=pick([None, None, None, None, *NAMES, *self.topics]),
        )

    def message(self, *, reads_routing: bool = True) -> tuple[Message, Sections]:
        pick = self.random.choice
        size = 40 + next(self.counter)
        session_id = pick([None, "s", "t", ""])
        message_id = pick(
            [
                None,
                *[None] * 4 * len(self.topics),
                codec.encode("1"),
                codec.encode("2"),
                codec.encode(str(size)),
            ]
        )
        self.routings[size] = Routing(message_id, session_id, pick([session_id, session_id or "k"]))
        self.ids[message_id or b""] += 1
        ttl_ms = pick([None, None, None, 0, 3_000])
        if ttl_ms is not None:
            self.mortal.add(size)
        message = Message(
            size,
            ttl_ms=ttl_ms,
            scheduled_at_ms=pick([None, None, None, self.now_ms + 700]),
            routing=self.routings[size] if reads_routing else None,
        )
        return message, Sections(payload_of(size))

    def lock(self) -> Any:
        return self.random.choice(
            [lock for queue in self.queues() for lock in queue.locks.values()] or [None]
        )

    def sending(self) -> Any:
        opened: list[tuple[LinkId, Any, Any]] = [
            (link, *found) for link, found in self.senders.items() if found[0] is not None
        ]
        if not opened:
            return None
        link, answer, destination = self.random.choice(opened)
        reply_to = ReplyTo(*link, next(self.counter)) if self.random.random() < 0.9 else None
        messages = [
            self.message(reads_routing=answer.reads_routing) for _ in range(self.random.randint(1, 3))
        ]
        if len(messages) > 1:
            return ask.SendBatch(answer.queue_id, messages, reply_to, destination)
        return ask.Send(answer.queue_id, *messages[0], reply_to, destination)

    def settling(self) -> Any:
        lock = self.lock()
        if lock is None:
            return None
        properties = self.random.choice([None, {"x": 1}, {"big": "y" * 40_000}])
        if self.random.random() < 0.2:
            tokens = [*lock.queue.locks][:3]
            how = self.random.choice([*Disposition])
            where = self.where(lock.queue)
            return ask.UpdateDisposition(where, tokens, how, self.reply_to(), "why", None, properties)
        kind = self.random.choice([ask.Complete, ask.Complete, ask.Abandon, ask.Defer, ask.DeadLetter])
        command = kind(lock.queue.queue_id, lock.token, self.reply_to())
        return command if kind is ask.Complete else replace(command, properties=properties)

    def held(self) -> Any:
        """Return an entity, one of its held sessions, and a reply-to of the holder."""
        found = [
            (queue.name, session.lock.session_id, self.reply_to(session.lock.receiver.link.connection_id))
            for queue in self.queues()
            for session in queue.sessions or ()
            if session.lock is not None
        ]
        return self.random.choice(found or [None])

    def create(self, count: int) -> None:
        while len(self.entities()) < count:  # some descriptions are refused
            rule = self.rule() if self.topics else None
            self.offer(ask.CreateEntity(self.any_description(), self.reply_to(), rule))

    def open_sender(self) -> None:
        link = self.link()
        destination = self.random.choice([None, None, Address(self.name())])
        self.senders[link] = [None, destination]
        to_topic = self.topics and self.random.random() < 0.6
        name = self.random.choice(self.topics) if to_topic else self.name()
        self.offer(ask.OpenSender(link, Address(name), destination))

    def open_receiver(self) -> None:
        address, link = self.address(), self.link()
        entity = self.namespace._entities._by_path.get(address.path.lower())
        wish = None
        if entity is not None and entity.main.sessions is not None and address.sub_queue is SubQueue.MAIN:
            wait_until_ms = self.now_ms + self.random.choice([0, 500, 7_000])
            wish = SessionRequest(self.random.choice([None, None, "s", "new"]), wait_until_ms)
        mode = self.random.choice([*[ReceiveMode.PEEK_LOCK] * 4, ReceiveMode.RECEIVE_AND_DELETE])
        if mode is ReceiveMode.RECEIVE_AND_DELETE:
            self.deleting.add(link)
        self.receivers.append(link)
        self.offer(ask.OpenReceiver(link, address, mode, wish))

    def give_credit(self) -> None:
        link = self.random.choice(self.receivers or [None])
        if link is None:
            return
        opened: Any = self.namespace._shared.links.by_link.get(link)
        if opened is not None:
            total = opened.deliveries + self.random.choice([0, 1, 2, 1_000])
            self.offer(ask.SetCredit(link, total, LOTS, self.random.random() < 0.3))

    def close(self) -> None:
        link = self.random.choice([*self.receivers, *self.senders, self.link()])
        self.senders.pop(link, None)
        self.offer(ask.CloseLink(link))

    def drop(self) -> None:
        number = self.random.randint(1, CONNECTIONS)
        self.senders = {link: found for link, found in self.senders.items() if link.connection_id != number}
        self.offer(ask.DropConnection(number, self.random.random() < 0.6))

    def update(self) -> None:
        entity = self.random.choice(self.entities())
        drawn = self.description(entity.name)
        fields = ["status", "lock_duration_ms", "default_ttl_ms", "forward_to", "user_metadata"]
        fields.append("forward_dead_lettered_to")
        if entity.kind is EntityKind.TOPIC:
            fields = ["status", "default_ttl_ms", "user_metadata"]
        changed = {name: getattr(drawn, name) for name in self.random.sample(fields, 2)}
        self.offer(ask.UpdateEntity(replace(entity.description, **changed), self.reply_to()))

    def change_rules(self) -> None:
        paths = [entity.name for entity in self.entities() if entity.topic is not None]
        if not paths:
            return
        path, rule = self.random.choice(paths), self.rule()
        kind = self.random.choice([ask.AddRule, ask.AddRule, ask.UpdateRule, ask.RemoveRule])
        what = rule.name if kind is ask.RemoveRule else rule
        self.offer(kind(path, what, self.reply_to()))

    def by_number(self) -> None:
        """Cancel scheduled messages, or receive deferred ones."""
        found = [queue for queue in self.queues() if len(queue.scheduled) or len(queue.deferred)]
        if not found:
            return
        queue = self.random.choice(found)
        scheduled, deferred = [*queue.scheduled], [*queue.deferred]
        if scheduled and self.random.random() < 0.3:
            numbers = [message.sequence_number for message in scheduled[:2]]
            self.offer(ask.CancelScheduled(self.where(queue), numbers, self.reply_to()))
        elif deferred:
            message = self.random.choice(deferred)
            session = None if queue.sessions is None else queue.sessions.get(message.session_id or "")
            lock = None if session is None else session.lock
            reply_to = self.reply_to() if lock is None else self.reply_to(lock.receiver.link.connection_id)
            mode = self.random.choice([*ReceiveMode])
            numbers = [message.sequence_number]
            self.offer(ask.ReceiveDeferred(self.where(queue), numbers, mode, reply_to, message.session_id))

    def look_everywhere(self) -> None:
        """Find messages, or delete what is found."""
        kind = self.random.choice([SearchMessages, SearchMessages, DeleteMatching])
        where = self.random.choice([None, EVEN, SPLIT])
        address = self.random.choice([None, self.address()])
        self.offer(kind(self.reply_to(), where, address, None, self.random.randint(1, 3)))

    def shift(self) -> None:
        address = self.random.choice([None, self.address()])
        by_ms = self.random.choice([None, -700, -100, 500, 3_000])
        at_ms = self.random.choice([None, self.now_ms, self.now_ms + 700])
        self.offer(ShiftScheduled(self.reply_to(), address, None, by_ms, at_ms))

    def settle_by_number(self) -> None:
        """Settle a message that nobody may hold, or one that is not there."""
        queue = self.random.choice(self.queues())
        there = [message.sequence_number for message in queue.all_messages()]
        number = self.random.choice([*there, SequenceNumber(7)])
        disposition = self.random.choice([*Disposition])
        self.offer(SettleByNumber(self.reply_to(), self.where(queue), number, disposition, "seen"))

    def edit_state(self) -> None:
        state = self.random.choice([None, b"x" * self.random.randint(0, 300)])
        self.offer(ReplaceSessionState(self.address(), self.random.choice("pqrP"), state, self.reply_to()))

    def enlist(self) -> None:
        command = self.random.choice([self.sending, self.settling])()
        if command is None or not self.enlisted:
            return
        transaction_id, (link, commands) = self.random.choice([*self.enlisted.items()])
        _, effects = self.namespace.apply(
            ask.Enlist(link.connection_id, transaction_id, command), self.now_ms
        )
        if command.reply_to is None or isinstance(effects[0], do.Enlisted):
            commands.append(command)

    def discharge(self) -> None:
        ids = [*self.enlisted]
        transaction_id = self.random.choice(ids or [None])
        if (
            transaction_id is not None
            and self.enlisted[transaction_id][0] in self.namespace._shared.links.by_link
        ):
            link = self.enlisted[transaction_id][0]
            fail = self.random.random() < 0.2
            self.offer(ask.Discharge(link, transaction_id, fail, ReplyTo(*link, next(self.counter))))
            del self.enlisted[transaction_id]

    def declare(self) -> None:
        link = self.link()
        self.offer(ask.OpenCoordinator(link))
        self.offer(ask.Declare(link, ReplyTo(*link, next(self.counter))))

    def use_session(self) -> None:
        held = self.held()
        if held is None:
            return
        name, session_id, reply_to = held
        state = self.random.choice([None, b"", b"state", bytes(300)])
        self.offer(
            self.random.choice(
                [
                    ask.SetSessionState(Address(name), session_id, state, reply_to),
                    ask.GetSessionState(Address(name), session_id, reply_to),
                    ask.RenewSessionLock(Address(name), session_id, reply_to),
                ]
            )
        )

    def read(self) -> None:
        self.random.shuffle(self.reads)
        while self.reads and self.random.random() < 0.9:
            found = at_once(self.store.read_body_rows(self.reads.pop()))
            self.driver.rows_read(found, self.now_ms)

    def peek(self) -> None:
        queue = self.random.choice(self.queues())
        session_id = self.random.choice([None, "s"])
        found = [m for m in queue.all_messages() if session_id is None or m.session_id == session_id]
        if queue.fan_out is not None:  # the others are on their way to the subscriptions
            found = [message for message in found if message.state is MessageState.SCHEDULED]
        near = self.random.choice([m.sequence_number for m in found] or [0])
        start = SequenceNumber(near + self.random.randint(-1, 1))
        command = ask.Peek(self.where(queue), start, 5, LOTS, self.reply_to(), session_id)
        _, effects = self.namespace.apply(command, self.now_ms)
        if isinstance(effects[0], do.MessagesFound):
            keys = {queue.key_of(message.sequence_number): message for message in found}
            expected = [keys[key] for key in sorted(keys) if key >= key_to_browse_from(queue, start)]
            assert [view.message for view in effects[0].messages] == expected[:5]

    def pass_time(self) -> None:
        self.now_ms += self.random.choice([0, 1, 1, 200, 500, 1_000, 2_000, 20_000])
        for _ in range(self.random.choice([0, 1, 3, 1_000])):
            due_ms = self.namespace.timers.next_ms
            if due_ms is None or due_ms > self.now_ms:
                return
            self.purging = bool(self.namespace._purging._by_queue)
            self.engine.advance(self.now_ms)
            self.driver.offer((), self.now_ms)  # something has happened, and not by it

    def offer_any(self, command: Any) -> None:
        if command is not None:
            self.offer(command)

    def step(self) -> None:
        self.create(1)
        lock = self.lock()
        before_ms = self.now_ms - self.random.choice([0, 1_000])
        steps: list[tuple[float, Any]] = [
            (60 if self.topics else 25, lambda: self.offer_any(self.sending())),
            (25, lambda: self.offer_any(self.settling())),
            (40 if self.topics else 14, self.give_credit),
            (9, self.pass_time),
            (20 if self.topics else 9, self.open_receiver),
            (8, self.enlist),
            (12, self.by_number),
            (5, self.read),
            (5, lambda: self.offer(ask.Schedule(self.address(), [self.message()], self.reply_to()))),
            (4, self.open_sender),
            (4, self.peek),
            (3, lambda: self.offer_any(lock and ask.Release(lock.queue.queue_id, lock.token, None))),
            (
                3,
                lambda: self.offer_any(
                    lock and ask.RenewLocks(self.where(lock.queue), [lock.token], self.reply_to())
                ),
            ),
            (3, self.use_session),
            (2, self.discharge),
            (2, self.close),
            (2, self.update),
            (2, self.declare),
            (1, lambda: self.offer(ask.DeleteMessages(self.address(), 2, before_ms, self.reply_to()))),
            (1, lambda: self.offer(ask.PurgeMessages(self.address(), before_ms, self.reply_to()))),
            (1, self.look_everywhere),
            (1, self.shift),
            (2, self.settle_by_number),
            (0.5, self.edit_state),
            (1, lambda: self.create(self.random.randint(1, len(NAMES) + 3 * len(self.topics)))),
            (16 if self.topics else 0, self.change_rules),
            (0.5, self.drop),
            (0.2, lambda: self.offer(Reset(self.reply_to()))),
            (0.4, self.restart),
            (0.3, lambda: self.offer(ask.DeleteEntity(self.name(), self.reply_to()))),
        ]
        weights, actions = zip(*steps, strict=True)
        self.random.choices(actions, weights)[0]()
        if self.random.random() < 0.5:
            self.begin()
        if self.random.random() < 0.5:
            self.finish()


def payload_of(size: int) -> bytes:
    """Return the payload of the message of this size, which no other has."""
    return (b"%d;" % size).ljust(size, b".")
