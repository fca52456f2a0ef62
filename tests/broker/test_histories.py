"""Random histories of several entities of all kinds, through the engine and a memory store, with crashes.

The tables of the broker are read before and after each call: no message is stored twice or
comes from nowhere, none goes for a reason that the call does not give, the changes tell just what the tables
do, and a restart finds what was durable. A message is told by its size, which never changes; a topic's copies
are told apart by where they stand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from peeklock.broker.entities.entity import Entity
from peeklock.broker.handlers import open_transactions
from peeklock.broker.namespace import Namespace
from peeklock.broker.queue import enqueue, message_session
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.message_session import SessionLockState
from peeklock.broker.record import history as departures
from peeklock.broker.vocabulary import commands as ask
from peeklock.broker.vocabulary import effects as do
from peeklock.broker.vocabulary import message as messages
from peeklock.broker.vocabulary.addresses import LockToken
from peeklock.broker.vocabulary.changes import (
    QUEUES_PER_ENTITY,
    SESSION_STATES,
    EntityRemoved,
    MessageRemoved,
    MessageStored,
)
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS
from peeklock.broker.vocabulary.extension_commands import (
    DeleteMatching,
    Reset,
    SettleByNumber,
    ShiftScheduled,
)
from peeklock.broker.vocabulary.message import FIELDS, Message, MessageState
from peeklock.broker.vocabulary.quotas import STANDARD
from peeklock.rules.filters import TrueFilter
from tests.broker.histories import DIVIDING, EVEN, SPLIT, Scene, payload_of
from tests.engine.rig import at_once

SMALL = {
    "broker.queue.enqueue.COPIES_MAX": 4,
    "broker.queue.enqueue.FORWARDED_COPIES_MAX": 2,
    "broker.entities.forwarding.COPIES_FOLLOWING_MAX": 30,
    "broker.entities.fan_out.COPIES_FOLLOWING_MAX": 30,
    "broker.vocabulary.message.COPIES_FOLLOWING_MAX": 30,
    "store.encoding.frames.COPIES_FOLLOWING_MAX": 30,
    "store.encoding.records.COPIES_FOLLOWING_MAX": 30,
    "broker.namespace.SLICE": 3,
    "broker.queue.delivery.PASS_OVER_MAX": 2,
    "broker.entities.forwarding.FETCH_MAX": 2,
    "broker.handlers.searching.EXAMINED_MAX": 9,
    "broker.handlers.searching.ROUND_MAX": 2,
    "broker.queue.message_session.COMPACT_MIN": 2,
    "engine.engine.ROW_BYTES_MAX": 700,
    "engine.journal.JOURNAL_BYTES_MIN": 6_000,
    "engine.journal.HEAD_READ_BYTES": 1_500,
    "engine.reclaim.DROP_ALONE_BYTES": 100,
}
"""Limits scaled down, so that few messages reach them."""

REFUSALS = (do.Rejected, do.Failed, do.SettlementFailed)
TAKING = (
    ask.Complete | ask.UpdateDisposition | ask.Discharge | ask.ReceiveDeferred | ask.DeleteMessages
    | ask.CancelScheduled | DeleteMatching | SettleByNumber | ask.Fetched
)  # fmt: skip
"""Commands that may take messages away."""

LIVES: dict[str, Mapping[Any, Iterable[Any]]] = {
    "message": messages.TRANSITIONS,
    "session lock": message_session.TRANSITIONS,
    "transaction": open_transactions.TRANSITIONS,
}
ROWS = {(kind, old, new) for kind, table in LIVES.items() for old, states in table.items() for new in states}

Stored = tuple[MessageQueue, Message, Any, int, Any]
"""Where a message stands, its record, its lock, its delivery count, and what else can change of it."""

Place = tuple[int, int]
"""Queue id and position."""


class Looked(Namespace):
    """A namespace that has every call looked at."""

    history: History

    def apply(self, command: Any, now_ms: int) -> Any:
        before, lives = self.history.present(), self.history.lives()
        changes, effects = super().apply(command, now_ms)
        self.history.compare(command, before, changes, effects)
        self.history.states_follow_their_tables(lives)
        return changes, effects

    def advance(self, now_ms: int, items: int | None = None) -> Any:
        before, lives = self.history.present(), self.history.lives()
        changes, effects = super().advance(now_ms, items)
        self.history.compare(None, before, changes, effects)
        self.history.states_follow_their_tables(lives)
        return changes, effects


class History(Scene):
    """A scene, and what is believed of it."""

    def __init__(self, seed: int, *, topics: bool = False) -> None:
        self.durable: Any = []
        self.payloads: dict[Place, bytes] = {}  # of states
        self.forwards: dict[str, set[str]] = {}
        self.moves: set[tuple[str, Any, Any]] = set()
        """What was seen of each kind of thing: its state before a call, and after."""
        super().__init__(seed, topics=topics)

    def make_namespace(self) -> Namespace:
        namespace = Looked(
            limits=STANDARD,
            tokens=lambda: LockToken(next(self.counter).to_bytes(16, "big")),
            digest_key=b"key",
            first_sequence_number=self.first,
            history=departures.History(20),
        )
        namespace.history = self
        return namespace

    def present(self) -> dict[Place, Stored]:
        found: dict[Place, Stored] = {}
        for queue in self.queues():
            for message in queue.all_messages():
                others = (message.state, message.overlay)
                place = queue.queue_id, message.position
                assert place not in found
                found[place] = (queue, message, message.lock, message.delivery_count, others)
        return found

    def payload(self, message: Message) -> bytes:
        row, slot = message.body_row, message.body_slot
        payload = self.engine.bodies.get(row, slot)
        return at_once(self.store.read_body_rows([row]))[row][slot] if payload is None else payload

    def snapshot(self) -> Any:
        """Return all that must survive."""
        volatile = ("lock", "routing", "body_row", "body_slot", "journal_no")
        fields = [name for name in FIELDS if name not in volatile]
        found: list[Any] = []
        for entity in self.entities():
            found.append((entity.stored(), {name: rule.description for name, rule in entity.rules.items()}))
            holders: list[Any] = [queue for queue in entity.queues() if queue.next_position > 1]
            for holder in holders if entity.states is None else [*holders, entity.states]:
                messages = sorted(holder.all_messages(), key=lambda message: message.position)
                issued = enqueue.numbers_issued(holder) if holder is entity.main else holder.next_position
                found.append((issued, holder.size_bytes))
                found += [[getattr(message, name) for name in fields] for message in messages]
        return found

    # What a call did

    def compare(
        self, command: Any, before: dict[Place, Stored], changes: list[Any], effects: list[Any]
    ) -> None:
        self.namespace.check(self.now_ms)
        self.has_circle()  # takes note of the forwards
        after = self.present()
        told: dict[Place, Message | None] = {}
        for change in changes:
            if isinstance(change, MessageStored | MessageRemoved):
                place = change.queue_id, change.message.position
                told[place] = change.message if isinstance(change, MessageStored) else None
            if isinstance(change, MessageStored) and change.payload is not None and change.queue_id % 4 == 3:
                self.payloads[change.queue_id, change.message.position] = change.payload
        deleted = {change.entity_id for change in changes if isinstance(change, EntityRemoved)}
        before = {place: found for place, found in before.items() if found[0].queue_id // 4 not in deleted}
        for place, (_, message, *_) in after.items():
            if place not in before or before[place][1] is not message:
                assert told[place] is message
        for place, (_, message, lock, *shown) in before.items():
            if place not in after or after[place][1] is not message:
                assert told[place] is None
            elif shown != [*after[place][3:]]:
                assert lock is not None or isinstance(command, ShiftScheduled | SettleByNumber)
                assert 0 <= message.delivery_count - shown[0] <= 1
                assert told[place] is message
        self.records_follow_their_table(told, before, after)
        reply_to = getattr(command, "reply_to", None)
        refused = any(isinstance(effect, REFUSALS) and effect.reply_to == reply_to for effect in effects)
        if refused and not isinstance(command, ask.PurgeMessages):
            assert not changes
        sent = self.sent_by(command)
        was = Counter(message.size_bytes for _, message, *_ in before.values())
        now = Counter(message.size_bytes for _, message, *_ in after.values())
        assert now.keys() - was.keys() <= sent, "from nowhere"
        left = {message.size_bytes for place, (_, message, *_) in before.items() if place not in after}
        for size, count in (now - was).items():
            # A topic makes several of one, which must have gone for it.
            assert count == 1 or self.topics, "twice"
            assert not was[size] or (self.topics and size in left), "twice"
        self.all_copies(command, changes, refused=refused)
        taken = {
            effect.message.size_bytes
            for effect in effects
            if isinstance(effect, do.Deliver) and effect.link in self.deleting
        }
        if command is not None and reply_to is not None and not refused:
            for size in sent - now.keys() - taken:
                assert self.is_repeated(size) or self.may_not_be_chosen(size), "lost at once"
        for size in (was - now).keys() - taken:
            assert isinstance(command, TAKING) or self.may_go(command, size), "vanished"
        for queue in self.queues():
            if queue.timer_ms > self.now_ms:
                self.nobody_waits_in_vain(queue)

    def records_follow_their_table(
        self, told: dict[Place, Message | None], before: dict[Place, Stored], after: dict[Place, Stored]
    ) -> None:
        """What was written of a record is a row of the life of a message."""
        for place in told:
            if place[0] % QUEUES_PER_ENTITY != SESSION_STATES:
                old, new = [found[place][4][0] if place in found else None for found in (before, after)]
                if old is not None or new is not None:
                    self.moves.add(("message", old, new))

    def lives(self) -> dict[tuple[str, Any], Any]:
        """Return the state of each lock of a session, and of each transaction."""
        found: dict[tuple[str, Any], Any] = {
            ("transaction", number): state for number, state in self.namespace._transactions.states().items()
        }
        for queue in self.queues():
            if queue.sessions is not None:
                for key, state in queue.sessions.lock_states().items():
                    found["session lock", (queue.queue_id, key)] = state
        return found

    def states_follow_their_tables(self, before: dict[tuple[str, Any], Any]) -> None:
        """Whatever has another state than before the call has one that its table allows."""
        after = self.lives()
        for thing in before.keys() | after.keys():
            kind = thing[0]
            nothing = SessionLockState.FREE if kind == "session lock" else None
            old, new = before.get(thing, nothing), after.get(thing, nothing)
            if old is not new:
                self.moves.add((kind, old, new))
        assert self.moves <= ROWS

    def all_copies(self, command: Any, changes: list[Any], *, refused: bool) -> None:
        """Each subscription has got just what its rules choose, of a message that was sent to its topic."""
        if not isinstance(command, ask.Send | ask.SendBatch) or refused or command.destination is not None:
            return
        topic = self.namespace._entities.of_queue(command.queue_id)
        if topic is None or topic.fan_out is None:
            return
        stored = Counter(
            (change.queue_id // 4, change.message.size_bytes)
            for change in changes
            if isinstance(change, MessageStored) and not change.message.hops  # else back in a circle
        )
        batch = [(command.message, command.sections)] if isinstance(command, ask.Send) else command.messages
        comes_back = topic.name in self.reached(topic.name)  # and is copied again
        for message, _ in batch:
            size = message.size_bytes
            waits = stored[topic.entity_id, size] or message.sequence_number == 0  # or nobody is told
            for entity in topic.subscriptions():
                forwards = entity.main.forward_to or entity.description.forward_dead_lettered_to
                if not (waits or forwards or comes_back or self.is_repeated(size)):
                    assert stored[entity.entity_id, size] == self.copies_for(entity, size), entity.name
        bodies = {id(change.payload) for change in changes if isinstance(change, MessageStored)}
        assert len(bodies) <= len(batch), "one body for all"

    def copies_for(self, entity: Entity, size: int) -> int:
        """How many copies of a message a subscription is to have, by an evaluation of our own."""
        plain, acting, failed = False, 0, False
        for rule in entity.rules.values():
            wanted, action = rule.description.filter, rule.description.action
            chosen = wanted == TrueFilter() or (wanted == EVEN and size % 2 == 0)
            chosen |= wanted == SPLIT and size % 3 == 1
            if (wanted == SPLIT and size % 3 == 0) or (chosen and action == DIVIDING and size % 5 == 0):
                failed = True
            elif chosen:
                acting += action is not None
                plain |= action is None
        return 1 if failed and entity.dead_letters_on_filter_errors else plain + acting

    def may_not_be_chosen(self, size: int) -> bool:
        """Whether some topic has no subscription for it."""
        topics = [entity for entity in self.entities() if entity.fan_out is not None]
        return any(
            all(
                entity.main.forward_to is not None or not self.copies_for(entity, size)
                for entity in topic.subscriptions()
            )
            for topic in topics
        )

    def sent_by(self, command: Any) -> set[int]:
        if isinstance(command, ask.Send):
            return {command.message.size_bytes}
        if isinstance(command, ask.SendBatch | ask.Schedule):
            return {message.size_bytes for message, _ in command.messages}
        if isinstance(command, ask.Discharge) and not command.fail:
            enlisted = self.enlisted[command.transaction_id][1]
            return {size for one in enlisted for size in self.sent_by(one)}
        return set()

    def is_repeated(self, size: int) -> bool:
        """Whether an entity may have seen its id before: another message has it, or it came there in a
        circle."""
        message_id = self.routings[size].message_id
        return message_id is not None and (self.ids[message_id] > 1 or self.has_circle())

    def has_circle(self) -> bool:
        """Whether messages may have come back to an entity, by all the forwards that there were."""
        for entity in self.entities():
            about = entity.description
            ways = self.forwards.setdefault(entity.name, set())
            ways |= {path for path in (about.forward_to, about.forward_dead_lettered_to) if path}
            ways |= {subscription.name for subscription in entity.subscriptions()}
        return any(name in self.reached(name) for name in self.forwards)

    def reached(self, name: str) -> set[str]:
        reached: set[str] = set()
        left = [name]
        while left:
            found = self.forwards.get(left.pop(), set()) - reached
            reached |= found
            left += found
        return reached

    def may_go(self, command: Any, size: int) -> bool:
        """Whether a message may be gone: its time is up, its id was seen where it was passed on, a
        purge, or a reset."""
        expires = any(entity.main.default_ttl_ms < UNLIMITED_MS for entity in self.entities())
        return (
            size in self.mortal
            or expires
            or self.is_repeated(size)
            or self.may_not_be_chosen(size)
            or (command is None and self.purging)
            or isinstance(command, Reset)
        )

    def nobody_waits_in_vain(self, queue: MessageQueue) -> None:
        """Nothing is due: whoever has credit has been given all there is, and what is parked is asked for."""

        def available(messages: Any) -> list[Message]:
            active = [message for message in messages if message.state is MessageState.ACTIVE]
            return [m for m in active if m.lock is None and not queue.has_expired(m, self.now_ms)]

        if queue.sessions is None:
            assert not (queue.ready_queue.receivers.turns and available(queue.active))
        for session in queue.sessions or ():
            if session.is_held(self.now_ms) and session.receivers.turns:
                assert not available(session.messages(queue))
        passes_on = queue.forward_to is not None and queue.dead_letters is not None
        if (passes_on and available(queue.active)) or (queue.fan_out is not None and len(queue.active)):
            asked = self.namespace._entities.forwarding._asked.get(queue.queue_id, {})
            assert None in asked.values()

    # Commits and crashes

    def begin(self) -> None:
        before = self.flying
        super().begin()
        if self.flying is not before and not self.engine.ledger.deleting:
            self.engine.ledger.check(m for entity in self.entities() for m in entity.all_messages())

    def take(self, effects: list[Any]) -> None:
        super().take(effects)
        for effect in effects:
            if isinstance(effect, do.Deliver):
                assert self.payload(effect.message) == payload_of(effect.message.size_bytes)

    def restart(self) -> None:
        self.begin()
        if self.random.random() < 0.7:
            self.finish()
        self.store.crash()
        self.now_ms += self.random.choice([0, 1_000, 30_000])
        self.start()
        assert self.snapshot() == self.durable
        for _, message, *_ in self.present().values():
            assert self.payload(message) == payload_of(message.size_bytes)
        for queue_id, states in self.namespace._entities.states.items():
            for record in states.all_messages():
                assert self.payload(record) == self.payloads[queue_id, record.position]


def seeds(first: int, count: int) -> list[Any]:
    """Return the first of so many seeds, and the others as long tests."""
    return [seed if seed < first else pytest.param(seed, marks=pytest.mark.long) for seed in range(count)]


@pytest.mark.parametrize("scale", ["small", "full"])
@pytest.mark.parametrize("seed", seeds(4, 8))
def test_a_random_history_keeps_every_promise(seed: int, scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Req: R-02, S-01, F-01, F-03, G-01, D-01"""
    if scale == "small":
        for name, value in SMALL.items():
            monkeypatch.setattr(f"peeklock.{name}", value)
    history = History(seed)
    for _ in range(400):
        history.step()


@pytest.mark.parametrize("scale", ["small", "full"])
@pytest.mark.parametrize("seed", seeds(3, 6))
def test_a_random_history_with_topics_keeps_every_promise(
    seed: int, scale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: R-02, S-01, F-01, F-03, P-01, P-02, P-03, P-04"""
    if scale == "small":
        for name, value in SMALL.items():
            monkeypatch.setattr(f"peeklock.{name}", value)
    history = History(seed, topics=True)
    for _ in range(600):
        history.step()


def test_random_histories_take_each_row_of_each_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that no history takes does not belong there; what is in no table fails every history."""
    for name in ("TRANSACTION_MS_MAX", "EMPTY_TRANSACTION_MS_MAX"):
        # A history lasts a minute.
        monkeypatch.setattr(f"peeklock.broker.handlers.transactions.{name}", 10_000)
    moves: set[tuple[str, Any, Any]] = set()
    for seed in range(24):
        history = History(seed)
        for _ in range(400):
            history.step()
        moves |= history.moves
        if moves == ROWS:
            return
    assert moves == ROWS
