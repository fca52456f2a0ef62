"""The smallest namespace an engine can drive: numbered messages in queues, no rules.

Stands in where a test is about durability or space and not about queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from peeklock.broker.queue.timers import Timers
from peeklock.broker.vocabulary.changes import (
    QUEUES_PER_ENTITY,
    SESSION_STATES,
    Change,
    EntityRemoved,
    EntityStored,
    MessageIdSeen,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
    RuleStored,
)
from peeklock.broker.vocabulary.commands import LinkId, LockToken, ReplyTo, SequenceNumber
from peeklock.broker.vocabulary.descriptions import QueueDescription
from peeklock.broker.vocabulary.effects import Deliver, Done, Effect
from peeklock.broker.vocabulary.message import Message

ENTITY_ID = 1
QUEUE_ID = ENTITY_ID * QUEUES_PER_ENTITY
DEAD_LETTER_QUEUE_ID = QUEUE_ID + 1
STATES_QUEUE_ID = QUEUE_ID + SESSION_STATES


@dataclass
class Put:
    payload: bytes
    message_id: bytes | None = None
    queue_id: int = QUEUE_ID
    session_id: str | None = None


@dataclass
class Many:
    """Put several messages, one a step."""

    payloads: Sequence[bytes]


@dataclass
class Fan:
    """Put a copy of one message into each of several queues."""

    payload: bytes
    queue_ids: Sequence[int]


@dataclass
class Take:
    """Remove a message and deliver it, as receive-and-delete does."""

    position: int
    queue_id: int = QUEUE_ID


@dataclass
class Touch:
    """Count a delivery attempt and set the overlay."""

    position: int
    overlay: bytes | None = None
    queue_id: int = QUEUE_ID


@dataclass
class Move:
    """Dead-letter: a new message that shares the body and knows where it came from."""

    position: int
    removed_first: bool = False
    queue_id: int = QUEUE_ID


@dataclass
class Look:
    """Answer without a change."""


@dataclass
class Skip:
    """Use up a number, as for a message that is passed on and then dropped as a duplicate."""


@dataclass
class Create:
    entity_id: int = ENTITY_ID


@dataclass
class Delete:
    entity_id: int = ENTITY_ID


class TinyNamespace:
    """Queues as dicts from position to message. Answers are numbered, so that their order can be seen.

    Main queues count in partitions, all alike.
    """

    events_due = False
    is_purging = False

    def __init__(self, *, id_window_ms: int = 1000) -> None:
        self.timers = Timers()
        self.entities: dict[int, EntityStored] = {}
        self.rules: list[RuleStored] = []
        self.queues: dict[int, dict[int, Message]] = {}
        self.next: dict[int, int] = {}
        self.ids: dict[tuple[int, bytes], MessageIdSeen] = {}
        self.id_window_ms = id_window_ms
        self._issued: set[int] = set()
        self._removed: dict[int, list[Message]] = {}
        self._answers = 0
        self._left: list[bytes] = []  # of `Many`

    def look_for_bodies(self, at_hand: Callable[[Message], bool]) -> None:
        """Ignore it: nothing is delivered here."""

    @property
    def unfinished(self) -> bool:
        return bool(self._left)

    def go_on(self, now_ms: int) -> tuple[list[Change], list[Effect]]:
        payload = self._left.pop(0)
        message = self._number(QUEUE_ID, Message(len(payload)), now_ms)
        return [MessageStored(QUEUE_ID, message, payload)], [] if self._left else [self._done()]

    def take_events(self) -> None:
        return None

    def _done(self) -> Done:
        self._answers += 1
        return Done(ReplyTo(1, 0, self._answers))

    def apply(self, command: object, now_ms: int) -> tuple[list[Change], list[Effect]]:
        match command:
            case Put(payload, message_id, queue_id, session_id):
                message = self._number(queue_id, Message(len(payload)), now_ms)
                message.session_id = session_id
                changes: list[Change] = [MessageStored(queue_id, message, payload)]
                if message_id is not None:
                    digest = message_id.rjust(16, b"\0")
                    seen = self.ids[queue_id, digest] = MessageIdSeen(
                        queue_id, digest, now_ms, SequenceNumber(message.position)
                    )
                    changes.append(seen)
                return changes, [self._done()]
            case Many(payloads):
                assert not self._left
                self._left += payloads
                return self.go_on(now_ms)
            case Fan(payload, queue_ids):
                copies = [(queue_id, Message(len(payload))) for queue_id in queue_ids]
                for queue_id, copy in copies:
                    self._number(queue_id, copy, now_ms)
                return [MessageStored(queue_id, copy, payload) for queue_id, copy in copies], [self._done()]
            case Take(position, queue_id):
                message = self.queues[queue_id].pop(position)
                return [MessageRemoved(queue_id, message)], [
                    Deliver(message, LockToken(bytes(16)), 0, 0, None, message.state, None, link=LinkId(1, 0))
                ]
            case Touch(position, overlay, queue_id):
                message = self.queues[queue_id][position]
                message.delivery_count += 1
                message.overlay = overlay
                return [MessageStored(queue_id, message)], [self._done()]
            case Move(position, removed_first, queue_id):
                message = self.queues[queue_id].pop(position)
                copy = message.moved()
                copy.dead_letter_source = f"queue-{queue_id}"
                copy.hops = 1
                self._number(queue_id + 1, copy, now_ms)
                changes = [MessageStored(queue_id + 1, copy), MessageRemoved(queue_id, message)]
                return changes[::-1] if removed_first else changes, [self._done()]
            case Look():
                return [], [self._done()]
            case Skip():
                self._number(QUEUE_ID, Message(0), now_ms)
                del self.queues[QUEUE_ID][self.next[QUEUE_ID] - 1]
                return [], [self._done()]
            case Create(entity_id):
                entity = EntityStored(entity_id, QueueDescription(f"queue-{entity_id}"), now_ms, now_ms)
                self.restore_entity(entity)
                return [entity], [self._done()]
            case Delete(entity_id):
                del self.entities[entity_id]
                for sub in range(QUEUES_PER_ENTITY):
                    queue_id = entity_id * QUEUES_PER_ENTITY + sub
                    self._removed.setdefault(entity_id, []).extend(self.queues.pop(queue_id, {}).values())
                return [EntityRemoved(entity_id)], [self._done()]
        raise AssertionError(command)

    def _number(self, queue_id: int, message: Message, now_ms: int) -> Message:
        position = self.next.get(queue_id, 1)
        self.next[queue_id] = position + 1
        self._issued.add(queue_id)
        message.position = message.sequence_number = SequenceNumber(position)
        message.enqueued_at_ms = now_ms
        self.queues[queue_id][position] = message
        return message

    def advance(self, now_ms: int, items: int | None = None) -> tuple[list[Change], list[Effect]]:
        return [], []

    def numbers_issued(self) -> list[NumbersIssued]:
        issued = [self._numbers(queue_id) for queue_id in sorted(self._issued) if queue_id in self.queues]
        self._issued.clear()
        return issued

    def _numbers(self, queue_id: int) -> NumbersIssued:
        position = self.next[queue_id]
        partitions = () if queue_id % QUEUES_PER_ENTITY else (position,) * 16
        return NumbersIssued(queue_id, position, SequenceNumber(position), 0, partitions)

    def restore_entity(self, entity: EntityStored) -> None:
        self.entities[entity.entity_id] = entity
        for sub in range(QUEUES_PER_ENTITY):
            self.queues[entity.entity_id * QUEUES_PER_ENTITY + sub] = {}

    def restore_rule(self, rule: RuleStored) -> None:
        self.rules.append(rule)

    def restore(self, changes: Iterable[Change]) -> None:
        for change in changes:
            match change:
                case MessageStored(queue_id, message):
                    self.queues[queue_id][message.position] = message
                case NumbersIssued(queue_id, position):
                    self.next[queue_id] = position
                    assert change == self._numbers(queue_id)
                case MessageIdSeen(queue_id, digest):
                    self.ids[queue_id, digest] = change

    def finish_restore(self, now_ms: int, next_entity_id: int) -> None:
        self.next_entity_id = next_entity_id

    def find(self, queue_id: int, position: int) -> Message | None:
        return self.queues.get(queue_id, {}).get(position)

    def still_holds(self, change: NumbersIssued | MessageIdSeen, now_ms: int) -> Change | None:
        if change.queue_id not in self.queues:
            return None
        if isinstance(change, NumbersIssued):
            return self._numbers(change.queue_id)
        return change if change.seen_at_ms + self.id_window_ms > now_ms else None

    def removed_entity_messages(self, entity_id: int) -> Iterator[Message]:
        return iter(self._removed.pop(entity_id, []))
