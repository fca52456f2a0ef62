"""Random histories of several entities of all kinds, through the engine and a memory store, with crashes.

What is believed of the broker is read off its tables before and after each call: no message is there twice or
comes from nowhere, none goes for a reason that the call does not give, the changes tell just what the tables
do, and a restart finds what was durable. A message is told by its size, which never changes.
"""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.broker import commands as ask
from peeklock.broker import effects as do
from peeklock.broker.changes import EntityRemoved, MessageRemoved, MessageStored
from peeklock.broker.descriptions import UNLIMITED_MS
from peeklock.broker.message import Message, MessageState
from peeklock.broker.message_queue import MessageQueue
from peeklock.broker.namespace import Namespace
from peeklock.broker.quotas import STANDARD
from tests.broker.histories import Scene, payload_of
from tests.engine.rig import at_once

SMALL = {
    "broker.namespace.SLICE": 3,
    "broker.delivery.PASS_OVER_MAX": 2,
    "broker.forwarding.FETCH_MAX": 2,
    "broker.message_session.COMPACT_MIN": 2,
    "engine.engine.ROW_BYTES_MAX": 700,
    "engine.reclaim.JOURNAL_BYTES_MIN": 6_000,
    "engine.reclaim.HEAD_READ_BYTES": 1_500,
    "engine.reclaim.DROP_ALONE_BYTES": 100,
}
"""Limits scaled down, so that few messages reach them."""

REFUSALS = (do.Rejected, do.Failed, do.SettlementFailed)
TAKING = (
    ask.Complete | ask.UpdateDisposition | ask.Discharge | ask.ReceiveDeferred | ask.DeleteMessages
    | ask.CancelScheduled
)  # fmt: skip
"""Commands that may take messages away."""

Stored = tuple[MessageQueue, Message, Any, int, Any]
"""Where a message stands, its record, its lock, its delivery count, and what else can change of it."""


class Looked(Namespace):
    """A namespace that has every call looked at."""

    history: History

    def apply(self, command: Any, now_ms: int) -> Any:
        before = self.history.present()
        changes, effects = super().apply(command, now_ms)
        self.history.compare(command, before, changes, effects)
        return changes, effects

    def advance(self, now_ms: int) -> Any:
        before = self.history.present()
        changes, effects = super().advance(now_ms)
        self.history.compare(None, before, changes, effects)
        return changes, effects


class History(Scene):
    """A scene, and what is believed of it."""

    def __init__(self, seed: int) -> None:
        self.durable: Any = []
        self.payloads: dict[tuple[int, int], bytes] = {}  # of states, by queue id and position
        super().__init__(seed)

    def make_namespace(self) -> Namespace:
        namespace = Looked(
            limits=STANDARD,
            tokens=lambda: next(self.counter).to_bytes(16, "big"),
            digest_key=b"key",
            first_sequence_number=self.first,
        )
        namespace.history = self
        return namespace

    def present(self) -> dict[int, Stored]:
        found: dict[int, Stored] = {}
        for queue in self.queues():
            for message in queue.all_messages():
                assert message.size_bytes not in found, "twice"
                others = (message.state, message.overlay)
                found[message.size_bytes] = (queue, message, message.lock, message.delivery_count, others)
        return found

    def payload(self, message: Message) -> bytes:
        row, slot = message.body_row, message.body_slot
        payload = self.engine.bodies.get(row, slot)
        return at_once(self.store.read_body_rows([row]))[row][slot] if payload is None else payload

    def snapshot(self) -> Any:
        """Give all that must survive."""
        volatile = ("lock", "routing", "body_row", "body_slot", "journal_no")
        fields = [name for name in Message.__slots__ if name not in volatile]
        found: list[Any] = []
        for entity in self.entities():
            found.append(entity.stored())
            holders: list[Any] = [queue for queue in entity.queues() if queue.next_position > 1]
            for holder in holders if entity.states is None else [*holders, entity.states]:
                messages = sorted(holder.all_messages(), key=lambda message: message.position)
                issued = holder.numbers_issued() if holder is entity.main else holder.next_position
                found.append((issued, holder.size_bytes))
                found += [[getattr(message, name) for name in fields] for message in messages]
        return found

    # What a call did

    def compare(
        self, command: Any, before: dict[int, Stored], changes: list[Any], effects: list[Any]
    ) -> None:
        self.namespace.check(self.now_ms)
        after = self.present()
        told: dict[tuple[int, int], Message | None] = {}
        for change in changes:
            if isinstance(change, MessageStored | MessageRemoved):
                stored = isinstance(change, MessageStored)
                told[change.queue_id, change.message.position] = change.message if stored else None
                if stored and change.payload is not None and change.queue_id % 4 == 3:
                    self.payloads[change.queue_id, change.message.position] = change.payload
        deleted = {change.entity_id for change in changes if isinstance(change, EntityRemoved)}
        before = {size: found for size, found in before.items() if found[0].queue_id // 4 not in deleted}
        for size, (queue, message, *_) in after.items():
            if size not in before or before[size][1] is not message:
                assert told[queue.queue_id, message.position] is message
        for size, (queue, message, lock, *shown) in before.items():
            if size not in after or after[size][1] is not message:
                assert told[queue.queue_id, message.position] is None
            elif shown != [*after[size][3:]]:
                assert lock is not None
                assert 0 <= message.delivery_count - shown[0] <= 1
                assert told[queue.queue_id, message.position] is message
        reply_to = getattr(command, "reply_to", None)
        refused = any(isinstance(effect, REFUSALS) and effect.reply_to == reply_to for effect in effects)
        if refused and not isinstance(command, ask.PurgeMessages):
            assert not changes
        sent = self.sent_by(command)
        assert after.keys() - before.keys() <= sent, "from nowhere"
        taken = {
            effect.message.size_bytes
            for effect in effects
            if isinstance(effect, do.Deliver) and effect.link in self.deleting
        }
        if command is not None and reply_to is not None and not refused:
            for size in sent - after.keys() - taken:
                assert self.is_repeated(size), "lost at once"
        for size in before.keys() - after.keys() - taken:
            assert isinstance(command, TAKING) or self.may_go(command, size), "vanished"
        for queue in self.queues():
            if queue.timer_ms > self.now_ms:
                self.nobody_waits_in_vain(queue)

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
        message_id = self.routings[size].message_id
        return message_id is not None and self.ids[message_id] > 1

    def may_go(self, command: Any, size: int) -> bool:
        """Whether a message may be gone: its time is up, its id was seen where it was passed on, or a
        purge."""
        expires = any(entity.main.default_ttl_ms < UNLIMITED_MS for entity in self.entities())
        return size in self.mortal or expires or self.is_repeated(size) or (command is None and self.purging)

    def nobody_waits_in_vain(self, queue: MessageQueue) -> None:
        """Nothing is due: whoever has credit has been given all there is, and what is parked is asked for."""

        def available(messages: Any) -> list[Message]:
            active = [message for message in messages if message.state is MessageState.ACTIVE]
            return [m for m in active if m.lock is None and not queue.has_expired(m, self.now_ms)]

        if queue.sessions is None:
            assert not (queue.line.receivers.turns and available(queue.active))
        for session in queue.sessions or ():
            if session.is_held(self.now_ms) and session.receivers.turns:
                assert not available(session.messages(queue))
        if queue.forward_to is not None and queue.dead_letters is not None and available(queue.active):
            asked = self.namespace._shared.forwarding._asked.get(queue.queue_id, {})
            assert None in asked.values()

    # Commits and crashes

    def begin(self) -> None:
        before = self.flying
        super().begin()
        if self.flying is not before and not self.engine.ledger.has_doomed:
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
        for size, (_, message, *_) in self.present().items():
            assert self.payload(message) == payload_of(size)
        for queue_id, states in self.namespace._entities.states.items():
            for record in states.all_messages():
                assert self.payload(record) == self.payloads[queue_id, record.position]


@pytest.mark.parametrize("scale", ["small", "full"])
@pytest.mark.parametrize("seed", range(8))
def test_a_random_history_keeps_every_promise(seed: int, scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Req: R-02, S-01, F-01, F-03, G-01, D-01"""
    if scale == "small":
        for name, value in SMALL.items():
            monkeypatch.setattr(f"peeklock.{name}", value)
    history = History(seed)
    for _ in range(400):
        history.step()
