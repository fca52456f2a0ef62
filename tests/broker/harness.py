"""A namespace with a clock in hand: the short words in which the tests of this room speak.

Owns: one `Namespace`, its time, and a copy of every change as a store would have it. Each step checks all
indexes.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from peeklock.amqp import codec
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties, Sections, scan
from peeklock.broker.content.routing import routing_of
from peeklock.broker.namespace import Namespace
from peeklock.broker.queue.counters import Counters
from peeklock.broker.vocabulary.changes import (
    QUEUES_PER_ENTITY,
    Change,
    ClaimRemoved,
    ClaimStored,
    CursorRemoved,
    CursorStored,
    EntityRemoved,
    EntityStored,
    MessageIdSeen,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
    RuleRemoved,
    RuleStored,
)
from peeklock.broker.vocabulary.commands import (
    Abandon,
    Address,
    AddRule,
    CloseLink,
    Command,
    Complete,
    CreateEntity,
    DeadLetter,
    Declare,
    Defer,
    Discharge,
    DropConnection,
    Enlist,
    LinkId,
    LockToken,
    LookUp,
    OpenCoordinator,
    OpenReceiver,
    OpenSender,
    Peek,
    ReceiveDeferred,
    ReceiveMode,
    Release,
    RenewLocks,
    ReplyTo,
    Schedule,
    Send,
    SendBatch,
    SequenceNumber,
    SessionRequest,
    SetCredit,
    SubQueue,
    UpdateEntity,
)
from peeklock.broker.vocabulary.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    subscription_path,
)
from peeklock.broker.vocabulary.effects import (
    Accepted,
    CoordinatorOpened,
    Declared,
    Deliver,
    Effect,
    Enlisted,
    EntityFound,
    EntityView,
    Failed,
    LinkRefused,
    LocksRenewed,
    MessagesFound,
    MessagesScheduled,
    ReceiverOpened,
    Rejected,
    RulesFound,
    SenderOpened,
    Settled,
    SettlementFailed,
)
from peeklock.broker.vocabulary.errors import ServiceBusError
from peeklock.broker.vocabulary.events import ENDS, Event, EventTuple, EventType
from peeklock.broker.vocabulary.message import Message, MessageView, Routing
from peeklock.broker.vocabulary.quotas import STANDARD, TierLimits
from peeklock.rules.filters import Filter, SqlAction

START_MS = 1_700_000_000_000
MINUTE_MS = 60_000
LOTS = 1 << 60
EMPTY = Sections(b"")
"""Stands for a message that nobody looks into."""

E = TypeVar("E")


def stored_messages(namespace: Namespace) -> set[tuple[int, int]]:
    """Return (queue id, sequence number) of all that is stored, without session states."""
    return {
        (queue.queue_id, message.sequence_number)
        for queue in namespace._queues.values()  # no command lists messages of all queues
        for message in queue.all_messages()
    }


COUNTED: dict[int, str] = {
    EventType.SCHEDULED: "scheduled",
    EventType.DELIVERED: "delivered",
    EventType.CLAIMED: "delivered",
    EventType.COMPLETED: "completed",
    EventType.ABANDONED: "abandoned",
    EventType.DEFERRED: "deferred",
    EventType.EXPIRED: "expired",
    EventType.DEAD_LETTERED: "dead_lettered",
    EventType.LOCK_LAPSED: "lock_lapses",
}
"""Counters that events tell of, one each; of the others see `counters_of`."""


def counters_of(event: Event) -> Iterator[str]:
    """Yield the names of the counters that an event is counted in."""
    if event.type in COUNTED:
        yield COUNTED[event.type]
    if event.type is EventType.EXPIRED and event.related_entity is not None:
        yield "dead_lettered"
    elif event.type is EventType.FORWARDED and event.related_entity is not None:  # else to its subscriptions
        yield "forwarded"


def counted(counters: Counters) -> dict[str, int]:
    """Return those counters that events tell of in full, but for zeros."""
    figures = {name: getattr(counters, name) for name in {*COUNTED.values(), "forwarded"} - {"dead_lettered"}}
    figures["dead_lettered"] = sum(counters.dead_lettered.values())
    return {name: count for name, count in figures.items() if count}


class Broker:
    """Drives a namespace; what is due happens by itself when the clock moves."""

    def __init__(self, limits: TierLimits = STANDARD, **settings: Any) -> None:
        self.now_ms = START_MS
        self.settings = {
            "limits": limits,
            "digest_key": b"test",
            "captures_body": lambda name: False,
            "lock_grace_ms": 0,
            **settings,
        }
        self.counter = itertools.count(1)
        self.tokens = itertools.count(1)
        self.facts: list[Change] = []
        self.payloads: dict[int, bytes] = {}  # of what was published, by size
        self.events: list[Event] = []
        self.lives: set[tuple[int, int]] = set()  # (queue id, number) of what is stored, told by events alone
        self.told: Counter[tuple[int, str]] = Counter()  # what the counters of each entity must say
        self.checks = True  # a test with thousands of messages checks the indexes when it has them
        self.namespace = self._new()

    def _new(self) -> Namespace:
        return Namespace(tokens=lambda: LockToken(next(self.tokens).to_bytes(16, "big")), **self.settings)

    # Driving

    def reply_to(self, connection: int = 1) -> ReplyTo:
        return ReplyTo(connection, 0, next(self.counter))

    def link(self, connection: int = 1) -> LinkId:
        return LinkId(connection, next(self.counter))

    def do(self, command: Command) -> list[Effect]:
        changes, effects = self.namespace.apply(command, self.now_ms)
        while self.namespace.unfinished:
            more, others = self.namespace.go_on(self.now_ms)
            changes += more
            effects += others
        self._keep(changes)
        return effects

    def one(self, command: Command, kind: type[E]) -> E:
        """Apply a command and give its only answer of a kind."""
        effects = self.do(command)
        found = [effect for effect in effects if isinstance(effect, kind)]
        assert len(found) == 1, effects
        return found[0]

    def settle_time(self) -> list[Effect]:
        """Do everything that is due at this instant."""
        effects: list[Effect] = []
        for _ in range(100_000):
            due_ms = self.namespace.timers.next_ms
            if due_ms is None or due_ms > self.now_ms:
                return effects
            changes, more = self.namespace.advance(self.now_ms)
            self._keep(changes)
            effects += more
        raise AssertionError("what is due never comes to an end")

    def advance(self, ms: int) -> list[Effect]:
        """Move the clock from deadline to deadline, as the server does."""
        end_ms = self.now_ms + ms
        effects = self.settle_time()
        while True:
            due_ms = self.namespace.timers.next_ms
            if due_ms is None or due_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, due_ms)
            effects += self.settle_time()
        self.now_ms = end_ms
        return effects

    def jump(self, ms: int) -> None:
        """Move the clock without doing what falls due: a late timer."""
        self.now_ms += ms

    def _keep(self, changes: list[Change]) -> None:
        for change in [*changes, *self.namespace.numbers_issued()]:
            if isinstance(change, MessageStored):
                kept = copy.copy(change.message)
                kept.lock = None  # what is never written
                self.facts.append(replace(change, message=kept))
            else:
                self.facts.append(change)
        self._follow(self.namespace.take_events() or [])
        if self.checks:
            self.namespace.check(self.now_ms)
            assert self.lives == stored_messages(self.namespace)
            self._check_counters()

    def _follow(self, tuples: list[EventTuple]) -> None:
        """Check that each life begins and ends once in the events."""
        events = [Event._make(event) for event in tuples]
        self.events += events
        for event in events:
            self.told.update((event.queue_id // QUEUES_PER_ENTITY, name) for name in counters_of(event))
            life = (event.queue_id, event.sequence_number)
            if event.type in (EventType.ENQUEUED, EventType.SCHEDULED):
                assert life not in self.lives, event
                self.lives.add(life)
            elif event.type in ENDS:
                assert life in self.lives, event
                self.lives.remove(life)
            elif event.type is EventType.ENTITY_DELETED:
                self.lives = {life for life in self.lives if life[0] // 4 != event.queue_id // 4}

    def _check_counters(self) -> None:
        """Compare the counters with the events; both tell of the same happenings."""
        if self.settings["captures_body"] is None:
            return
        total: Counter[str] = sum((Counter({name: n}) for (_, name), n in self.told.items()), Counter())
        assert counted(self.namespace.counters) == +total
        for entity in self.namespace._entities:
            told = {name: n for (entity_id, name), n in self.told.items() if entity_id == entity.entity_id}
            assert counted(entity.counters) == told, entity.name

    def restart(self, down_ms: int = 0) -> None:
        """Start anew from the facts, as after a crash."""
        self.told.clear()
        self.now_ms += down_ms
        removed = {fact.entity_id for fact in self.facts if isinstance(fact, EntityRemoved)}
        entities = {fact.entity_id: fact for fact in self.facts if isinstance(fact, EntityStored)}
        next_id = max(entities, default=0) + 1
        self.namespace = self._new()
        for entity in entities.values():
            if entity.entity_id not in removed:
                self.namespace.restore_entity(entity)
        rules: dict[tuple[int, str], RuleStored] = {}
        for fact in self.facts:
            if isinstance(fact, RuleStored):
                rules[fact.entity_id, fact.rule.name.lower()] = fact
            elif isinstance(fact, RuleRemoved):
                del rules[fact.entity_id, fact.name.lower()]
        for rule in rules.values():
            if rule.entity_id not in removed:
                self.namespace.restore_rule(rule)
        kinds = (
            MessageStored, MessageRemoved, NumbersIssued, MessageIdSeen,
            CursorStored, CursorRemoved, ClaimStored, ClaimRemoved,
        )  # fmt: skip
        journal = [copy.copy(fact) for fact in self.facts if isinstance(fact, kinds)]
        for fact in journal:
            if isinstance(fact, MessageStored | MessageRemoved):
                fact.message = copy.copy(fact.message)
                fact.message.lock = None
                fact.message.lead_ms = 0  # neither is written
        for at in range(0, len(journal), 3):
            self.namespace.restore(journal[at : at + 3])
        self.namespace.finish_restore(self.now_ms, next_id)
        self.namespace.check(self.now_ms)
        self._follow(self.namespace.take_events() or [])
        if self.checks:
            assert self.lives == stored_messages(self.namespace)

    # Words

    def create(self, name: str = "orders", **settings: Any) -> int:
        """Create a queue; give the id of its main queue."""
        found = self.one(CreateEntity(QueueDescription(name, **settings), self.reply_to()), EntityFound)
        return found.entity.entity_id * 4

    def create_topic(self, name: str = "news", **settings: Any) -> int:
        """Create a topic; give its id as that of a queue."""
        found = self.one(CreateEntity(TopicDescription(name, **settings), self.reply_to()), EntityFound)
        return found.entity.entity_id * 4

    def subscribe(
        self,
        name: str = "all",
        filter: Filter | None = None,
        *,
        topic: str = "news",
        action: str | None = None,
        **settings: Any,
    ) -> int:
        """Create a subscription with one rule, `rule`, or the default one; give the id of its main queue."""
        rule = None
        if filter is not None:
            rule = RuleDescription("rule", filter, None if action is None else SqlAction(action))
        description = SubscriptionDescription(topic, name, **settings)
        found = self.one(CreateEntity(description, self.reply_to(), rule), EntityFound)
        return found.entity.entity_id * 4

    def add_rule(
        self, subscription: str, name: str, filter: Filter, action: str | None = None, *, topic: str = "news"
    ) -> None:
        rule = RuleDescription(name, filter, None if action is None else SqlAction(action))
        self.one(AddRule(subscription_path(topic, subscription), rule, self.reply_to()), RulesFound)

    def publish(
        self,
        properties: dict[str, Any] | None = None,
        *,
        topic_id: int = 4,
        ttl_ms: int | None = None,
        scheduled_at_ms: int | None = None,
        **fields: Any,
    ) -> list[Effect]:
        """Send one message to a topic, as the gateway does; `fields` are of the properties section."""
        fields.setdefault("message_id", "1")  # the broker gives one to a message without
        payload = encode_message(
            properties=Properties(**fields), application_properties=properties, data=b"body"
        )
        sections = scan(payload)
        message = Message(
            len(payload), ttl_ms=ttl_ms, scheduled_at_ms=scheduled_at_ms, routing=routing_of(sections, None)
        )
        reply_to = self.reply_to()
        effects = self.do(Send(topic_id, message, sections, reply_to))
        assert effects[0] == Accepted(reply_to), effects
        self.payloads[len(payload)] = payload
        return effects

    def refused(self, command: Command) -> ServiceBusError:
        """Apply a command that must be refused as a whole, and give the reason."""
        facts = len(self.facts)
        effects = self.do(command)
        assert len(effects) == 1, effects
        assert isinstance(effects[0], Failed | Rejected | SettlementFailed | LinkRefused), effects
        assert len(self.facts) == facts
        return effects[0].error

    def update(self, name: str = "orders", **settings: Any) -> list[Effect]:
        description = self.view(name).description
        return self.do(UpdateEntity(replace(description, **settings), self.reply_to()))

    def view(self, name: str = "orders") -> EntityView:
        return self.one(LookUp(Address(name), self.reply_to()), EntityFound).entity

    def send(self, queue_id: int = 4, size: int = 100, **fields: Any) -> Message:
        """Send one message that must be accepted."""
        message = arriving(size, **fields)
        reply_to = self.reply_to()
        effects = self.do(Send(queue_id, message, EMPTY, reply_to))
        assert effects[0] == Accepted(reply_to)
        return message

    def send_batch(self, messages: list[Message], queue_id: int = 4) -> list[Effect]:
        return self.do(SendBatch(queue_id, [(message, EMPTY) for message in messages], self.reply_to()))

    def schedule(self, *delays_ms: int, name: str = "orders", **fields: Any) -> list[SequenceNumber]:
        command = Schedule(Address(name), self.later(*delays_ms, **fields), self.reply_to())
        return self.one(command, MessagesScheduled).sequence_numbers

    def later(self, *delays_ms: int, **fields: Any) -> list[tuple[Message, Sections]]:
        """Make messages to be enqueued in so many ms each."""
        return [(arriving(100, scheduled_at_ms=self.now_ms + delay, **fields), EMPTY) for delay in delays_ms]

    def sender(self, name: str = "orders", connection: int = 1) -> LinkId:
        return self.one(OpenSender(self.link(connection), Address(name)), SenderOpened).link

    def receiver(
        self,
        name: str = "orders",
        *,
        sub_queue: SubQueue = SubQueue.MAIN,
        deletes: bool = False,
        connection: int = 1,
    ) -> LinkId:
        mode = ReceiveMode.RECEIVE_AND_DELETE if deletes else ReceiveMode.PEEK_LOCK
        command = OpenReceiver(self.link(connection), Address(name, sub_queue), mode)
        return self.one(command, ReceiverOpened).link

    def accept(
        self,
        session_id: str | None = None,
        name: str = "orders",
        *,
        wait_ms: int = 65_000,
        deletes: bool = False,
        connection: int = 1,
    ) -> ReceiverOpened:
        """Accept a session that is there to be had at once."""
        return self.one(self.wish(session_id, name, wait_ms, deletes, connection), ReceiverOpened)

    def wish(
        self,
        session_id: str | None = None,
        name: str = "orders",
        wait_ms: int = 65_000,
        deletes: bool = False,
        connection: int = 1,
    ) -> OpenReceiver:
        mode = ReceiveMode.RECEIVE_AND_DELETE if deletes else ReceiveMode.PEEK_LOCK
        wish = SessionRequest(session_id, self.now_ms + wait_ms)
        return OpenReceiver(self.link(connection), Address(name), mode, wish)

    def credit(self, link: LinkId, deliveries_max: int = LOTS, bytes_max: int = LOTS) -> list[Deliver]:
        return deliveries(self.do(SetCredit(link, deliveries_max, bytes_max)))

    def receive(
        self,
        count: int = 1,
        name: str = "orders",
        *,
        sub_queue: SubQueue = SubQueue.MAIN,
        deletes: bool = False,
    ) -> list[Deliver]:
        """Receive over a link of its own, which is closed properly: the locks stay."""
        link = self.receiver(name, sub_queue=sub_queue, deletes=deletes)
        found = self.credit(link, count)
        self.do(CloseLink(link))
        return found

    def receive_dead(self, count: int = 1, name: str = "orders", *, deletes: bool = False) -> list[Deliver]:
        return self.receive(count, name, sub_queue=SubQueue.DEAD_LETTER, deletes=deletes)

    def peek(
        self,
        from_number: int = 0,
        count: int = 1000,
        bytes_max: int = LOTS,
        *,
        name: str = "orders",
        sub_queue: SubQueue = SubQueue.MAIN,
        session_id: str | None = None,
    ) -> list[MessageView]:
        first = SequenceNumber(from_number)
        command = Peek(Address(name, sub_queue), first, count, bytes_max, self.reply_to(), session_id)
        return self.one(command, MessagesFound).messages

    def peek_dead(self, from_number: int = 0, count: int = 1000) -> list[MessageView]:
        return self.peek(from_number, count, sub_queue=SubQueue.DEAD_LETTER)

    def receive_deferred(
        self,
        *numbers: int,
        deletes: bool = False,
        sub_queue: SubQueue = SubQueue.MAIN,
        connection: int = 1,
        session_id: str | None = None,
    ) -> list[MessageView]:
        mode = ReceiveMode.RECEIVE_AND_DELETE if deletes else ReceiveMode.PEEK_LOCK
        command = ReceiveDeferred(
            Address("orders", sub_queue),
            list(map(SequenceNumber, numbers)),
            mode,
            self.reply_to(connection),
            session_id,
        )
        return self.one(command, MessagesFound).messages

    def complete(self, view: MessageView, queue_id: int = 4) -> None:
        self.one(Complete(queue_id, token(view), self.reply_to()), Settled)

    def abandon(self, view: MessageView, queue_id: int = 4, **fields: Any) -> list[Effect]:
        return self.settled(Abandon(queue_id, token(view), self.reply_to(), **fields))

    def defer(self, view: MessageView, queue_id: int = 4, **fields: Any) -> list[Effect]:
        return self.settled(Defer(queue_id, token(view), self.reply_to(), **fields))

    def dead_letter(self, view: MessageView, queue_id: int = 4, **fields: Any) -> list[Effect]:
        return self.settled(DeadLetter(queue_id, token(view), self.reply_to(), **fields))

    def release(self, view: MessageView, queue_id: int = 4) -> list[Effect]:
        return self.settled(Release(queue_id, token(view), self.reply_to()))

    def settled(self, command: Abandon | Defer | DeadLetter | Release | Complete) -> list[Effect]:
        effects = self.do(command)
        assert effects[0] == Settled(command.reply_to), effects  # type: ignore[arg-type]  # given above
        return effects[1:]

    def renew(
        self, *views: MessageView, sub_queue: SubQueue = SubQueue.MAIN, connection: int = 1
    ) -> list[int]:
        tokens = [token(view) for view in views]
        command = RenewLocks(Address("orders", sub_queue), tokens, self.reply_to(connection))
        return self.one(command, LocksRenewed).locked_until_ms

    def drop(
        self,
        connection: int = 1,
        *,
        broken: bool = True,
        undelivered: Sequence[Deliver] = (),
        queue_id: int = 4,
    ) -> list[Effect]:
        """End a connection, and let happen what is due then; some deliveries of a queue were never sent."""
        never_sent = [(queue_id, token(delivery)) for delivery in undelivered]
        return [*self.do(DropConnection(connection, broken, never_sent)), *self.settle_time()]

    # Transactions

    def coordinator(self, connection: int = 1) -> LinkId:
        return self.one(OpenCoordinator(self.link(connection)), CoordinatorOpened).link

    def declare(self, link: LinkId) -> bytes:
        return self.one(Declare(link, self.reply_to(link.connection_id)), Declared).transaction_id

    def enlist(
        self, transaction_id: bytes, command: Any, connection: int = 1, *, via: str | None = None
    ) -> None:
        """Enlist a command, which nobody else may hear of."""
        facts = len(self.facts)
        effects = self.do(Enlist(connection, transaction_id, command, via))
        assert effects == [Enlisted(command.reply_to)], effects
        assert len(self.facts) == facts

    def enlist_schedule(
        self, transaction_id: bytes, *delays_ms: int, name: str = "orders", **fields: Any
    ) -> list[SequenceNumber]:
        """Schedule in a transaction; give the numbers."""
        command = Schedule(Address(name), self.later(*delays_ms, **fields), self.reply_to())
        return self.one(Enlist(1, transaction_id, command), MessagesScheduled).sequence_numbers

    def discharge(self, link: LinkId, transaction_id: bytes, *, fail: bool = False) -> list[Effect]:
        """Commit or roll back; give what follows beside the answer."""
        reply_to = self.reply_to(link.connection_id)
        effects = self.do(Discharge(link, transaction_id, fail, reply_to))
        assert Accepted(reply_to) in effects, effects
        return [effect for effect in effects if effect != Accepted(reply_to)]


def arriving(
    size: int = 100,
    *,
    message_id: bytes | None = None,
    session_id: str | None = None,
    partition_key: str | None = None,
    **fields: Any,
) -> Message:
    """Make a message as the gateway does for an entity that decides by these fields."""
    return Message(size, routing=Routing(message_id, session_id, partition_key), **fields)


def deliveries(effects: list[Effect]) -> list[Deliver]:
    return [effect for effect in effects if isinstance(effect, Deliver)]


def token(view: MessageView) -> LockToken:
    assert view.lock_token is not None
    return view.lock_token


def numbers(views: list[Any]) -> list[int]:
    return [view.message.sequence_number for view in views]


def payload_of(routing: Routing) -> bytes:
    """Encode a message from which these routing fields are read."""
    key = routing.partition_key
    message_id = None if routing.message_id is None else codec.decode(routing.message_id)[0]
    return encode_message(
        message_annotations=None if key is None else {"x-opt-partition-key": key},
        properties=Properties(message_id=message_id, group_id=routing.session_id),
        data=b"",
    )
