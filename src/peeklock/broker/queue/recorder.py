"""The recorder: events for the event log, while capture is on.

`Outcome` calls it; without a recorder an event costs one comparison.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.timers import FAR_MS, TimerKey
from peeklock.broker.vocabulary import events
from peeklock.broker.vocabulary.addresses import NOT_NUMBERED, LockToken, SequenceNumber
from peeklock.broker.vocabulary.descriptions import KINDS, Description
from peeklock.broker.vocabulary.events import BY_REQUEST, Event, EventTuple, EventType

if TYPE_CHECKING:
    from peeklock.amqp.messaging import Sections
    from peeklock.broker.queue.links import Consumer
    from peeklock.broker.queue.message_queue import MessageQueue
    from peeklock.broker.queue.message_session import MessageSession
    from peeklock.broker.queue.peek_lock import Lock
    from peeklock.broker.queue.timers import Timers
    from peeklock.broker.queue.wall_clock import WallClock
    from peeklock.broker.vocabulary.message import Message

_HEAD_BYTES_MAX = 4096
"""A larger properties section is not recorded, not even the message id: a part cannot be decoded."""

BODIES_BYTES_MAX = 128 * 1024 * 1024
"""While this many bytes of whole messages wait for a batch, only the properties of further ones are recorded,
and `reason` says so. Our choice: all connections together have half of it in flight, but one message to a
topic may become 2,000 with a body each, all in one row of the store, and a row ends at 1 GB."""

BODY_LEFT_OUT = "body left out: too many bytes at once"

# Globals: the lookup of an enumeration's member takes as long as a call.
_COMPLETED = EventType.COMPLETED
_DELIVERED = EventType.DELIVERED

_NO_ORIGIN = (0,)
"""Connection id for what time alone causes."""


class Recorder:
    """The events of a namespace since the last batch.

    Three are made for each message, so arrival, delivery and settlement each make a tuple and nothing else:
    0.5 us.
    """

    timer_key = TimerKey.RECORDER

    def __init__(self, timers: Timers, wall: WallClock, captures_body: Callable[[str], bool]) -> None:
        """Begin without events.

        Args:
            captures_body: whether events of a queue, by name, hold whole messages.
        """
        self.timer_ms = FAR_MS
        self.captures = True  # events are kept for the log
        self.due = False  # an event has waited long enough for a batch
        self._timers = timers
        self._wall = wall
        self._captures_body = captures_body
        self._with_body: dict[int, bool] = {}  # by queue id
        self._events: list[EventTuple] = []
        self._bodies_bytes = 0  # in the events
        self._now_ms = 0
        self._at_ms = 0  # UTC in events, which never goes back
        self._origin: tuple[int, ...] = _NO_ORIGIN
        self._transaction_id: bytes | None = None
        self._connection_lost = False

    # Around commands

    def begin(self, command: object, now_ms: int) -> None:
        """Attribute what follows to this command."""
        self._now_ms = now_ms
        at_ms = now_ms + self._wall.due_ahead_ms
        if at_ms > self._at_ms:
            self._at_ms = at_ms
        self._origin = getattr(command, "reply_to", None) or getattr(command, "link", None) or _NO_ORIGIN
        self._transaction_id = None
        self._connection_lost = False

    def begin_due(self, now_ms: int) -> None:
        """Attribute what follows to time alone."""
        self.begin(None, now_ms)

    def begin_end(self, connection_id: int, now_ms: int, *, broken: bool) -> None:
        """Attribute what follows to the end of a connection."""
        self.begin(None, now_ms)
        self._origin = (connection_id,)
        self._connection_lost = broken

    def begin_transaction(self, transaction_id: bytes) -> None:
        """Attribute what follows, until the end of the command, to a transaction."""
        self._transaction_id = transaction_id

    def take(self) -> list[EventTuple]:
        """Return the events since the last call, in order."""
        taken = self._events
        self._events = []
        self._bodies_bytes = 0
        self.due = False
        self._timers.cancel(self)
        return taken

    def flush(self) -> None:
        """Make a batch due for the events that wait."""
        self.due = bool(self._events)

    def advance(self, count_max: int, out: Outcome) -> int:
        """Implement `Timed`."""
        self.flush()
        return 1

    def _first(self) -> None:
        """Set the timer for the first event of a batch."""
        self._timers.set(self, self._now_ms + events.FLUSH_MS)

    def _add(self, event: EventTuple) -> None:
        if not self._events:
            self._first()
        self._events.append(event)

    # Messages

    def arrived(
        self,
        queue: MessageQueue,
        message: Message,
        sections: Sections | None,
        kind: EventType = EventType.ENQUEUED,
        reason: str | None = None,
    ) -> None:
        """Record a message that is numbered and stored, or passed on.

        Args:
            sections: None for a message whose body is stored already.
        """
        queue_id = queue.queue_id
        head = None
        if sections is not None:
            with_body = self._with_body.get(queue_id)
            if with_body is None:
                with_body = self._with_body[queue_id] = self._captures_body(queue.name)
            if with_body and self._bodies_bytes < BODIES_BYTES_MAX:
                head = sections.payload
                self._bodies_bytes += len(head)
            else:
                head = _properties_section(sections)
                if with_body and reason is None:
                    reason = BODY_LEFT_OUT
        if not self._events:
            self._first()
        self._events.append(
            (
                kind, self._at_ms, queue_id, queue.name, message.sequence_number,
                message.enqueued_sequence_number, message.delivery_count, message.state, message.size_bytes,
                message.enqueued_at_ms, message.expires_at_ms, message.scheduled_at_ms or 0, 0, 0,
                self._origin[0], None, message.session_id, reason, None, self._transaction_id, None, head, 0,
            )
        )  # fmt: skip

    def message(
        self,
        kind: EventType,
        queue: MessageQueue,
        message: Message,
        reason: str | None = None,
        related: str | None = None,
        related_number: int = 0,
        token: LockToken | None = None,
        until_ms: int = 0,
    ) -> None:
        """Record an event of a message, which changes only its delivery count."""
        lock = message.lock
        if token is None and lock is not None:
            token = lock.token
        if not self._events:
            self._first()
        self._events.append(
            (
                kind, self._at_ms, queue.queue_id, queue.name, message.sequence_number,
                message.enqueued_sequence_number, message.delivery_count, message.state, message.size_bytes,
                message.enqueued_at_ms, message.expires_at_ms, message.scheduled_at_ms or 0,
                until_ms and until_ms + self._wall.due_ahead_ms, related_number, self._origin[0], related,
                message.session_id, reason, None, self._transaction_id, token, None,
                1 if self._connection_lost and kind is EventType.LOCK_LAPSED else 0,
            )
        )  # fmt: skip

    def delivered(self, queue: MessageQueue, message: Message, lock: Lock | None, receiver: Consumer) -> None:
        """Record a delivery, under a lock or, without one, in receive-and-delete mode."""
        token, until_ms = (None, 0) if lock is None else (lock.token, lock.until_ms())
        if not self._events:
            self._first()
        self._events.append(
            (
                _DELIVERED, self._at_ms, queue.queue_id, queue.name, message.sequence_number,
                message.enqueued_sequence_number, message.delivery_count, message.state, message.size_bytes,
                message.enqueued_at_ms, message.expires_at_ms, 0,
                until_ms and until_ms + self._wall.due_ahead_ms, 0, receiver.link.connection_id, None,
                message.session_id, None, receiver.name, None, token, None, 0,
            )
        )  # fmt: skip

    def completed(self, queue: MessageQueue, message: Message, reason: str | None) -> None:
        """Record a completion, with a reason if no receiver settled it."""
        self.message(_COMPLETED, queue, message, reason)

    # Sessions, entities, the broker

    def session(
        self, kind: EventType, queue: MessageQueue, session: MessageSession, size_bytes: int = 0
    ) -> None:
        """Record an event of a session; `size_bytes` is that of its new state. Only this is set for one that
        is not held."""
        lock = session.lock
        if lock is None:
            event = self._other(kind, queue.queue_id, queue.name)
            self._add(event._replace(session_id=session.text, size_bytes=size_bytes, reason=BY_REQUEST))
            return
        receiver = lock.receiver
        self._add(
            self._other(kind, queue.queue_id, queue.name)._replace(
                session_id=lock.session_id,
                locked_until_ms=self._wall.instant_ms(lock.locked_until_ms),
                connection_id=receiver.link.connection_id,
                link_name=receiver.name,
                size_bytes=size_bytes,
                connection_lost=int(self._connection_lost and kind is EventType.SESSION_RELEASED),
            )
        )

    def entity(self, kind: EventType, queue: MessageQueue, description: Description) -> None:
        """Record an event of the entity with this main queue, with its settings."""
        event = self._other(kind, queue.queue_id, description.name)
        self._add(event._replace(reason=_settings(description)))

    def connection_lost(self) -> None:
        """Record that the connection broke, and leaves message locks."""
        self._add(self._other(EventType.CONNECTION_LOST))

    def epoch_started(self, lock_grace_ms: int | None) -> None:
        """Record the start of the broker, with the settings that lives depend on."""
        settings = {"lock_grace_ms": lock_grace_ms}
        event = self._other(EventType.EPOCH_STARTED)
        self._add(event._replace(reason=json.dumps(settings, separators=(",", ":"))))
        self.due = True  # also without traffic

    def clock_stepped(self, step_ms: int, now_ms: int) -> None:
        """Record that the wall clock was set, or (0) accepted."""
        wall = self._wall
        self._now_ms = now_ms
        self._at_ms = max(self._at_ms, now_ms + wall.due_ahead_ms)
        values = {"step_ms": step_ms, "ahead_ms": wall.ahead_ms, "due_ahead_ms": wall.due_ahead_ms}
        event = self._other(EventType.CLOCK_STEPPED)
        self._add(event._replace(reason=json.dumps(values, separators=(",", ":"))))
        self.due = True

    def duplicate_dropped(
        self,
        queue: MessageQueue,
        message: Message,
        first_number: SequenceNumber,
        sections: Sections,
        used_number: SequenceNumber = NOT_NUMBERED,
    ) -> None:
        """Record an accepted message that was not stored.

        Args:
            first_number: of the first message with its id.
            used_number: its own number, in a transaction.
        """
        event = self._other(EventType.DUPLICATE_DROPPED, queue.queue_id, queue.name)
        head = _properties_section(sections)
        self._add(
            event._replace(
                sequence_number=first_number,
                related_number=used_number,
                size_bytes=message.size_bytes,
                head=head,
            )
        )

    def _other(self, kind: EventType, queue_id: int = 0, queue_name: str | None = None) -> Event:
        """Return an event that is not of one stored message."""
        return Event(
            kind, self._at_ms, queue_id, queue_name, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            self._origin[0], None, None, None, None, self._transaction_id, None, None, 0,
        )  # fmt: skip

    def number_issued(self, queue: MessageQueue, message: Message, transaction_id: bytes) -> None:
        """Record that a message of a transaction is numbered before it is stored. Nothing else of the command
        belongs to the transaction: a duplicate that it drops stays dropped."""
        self._transaction_id = transaction_id
        self.message(EventType.NUMBER_ISSUED, queue, message)
        self._transaction_id = None

    # Forwards

    def forwarded(self, queue: MessageQueue, message: Message, to: str | None = None) -> Event:
        """Return the event of a message that is about to be passed on, and changed; `passed_on` adds it."""
        self.message(EventType.FORWARDED, queue, message, None, to)
        return Event._make(self._events.pop())

    def passed_on(self, forwarded: Event, number: int) -> None:
        """Record a forward, with the number at the target."""
        self._add(forwarded._replace(related_number=number))

    def fanned_out(self, forwarded: Event, copies: int) -> None:
        """Record that the rules were applied to a topic's message."""
        if copies:
            self.passed_on(forwarded, copies)
        else:
            self._add(forwarded._replace(type=EventType.UNMATCHED))


def _settings(description: Description) -> str:
    """Return an entity's kind and settings as JSON, without keys."""
    settings: dict[str, object] = {"kind": KINDS[type(description)].value, **asdict(description)}
    settings["status"] = description.status.value
    settings["authorization_rules"] = [
        {"name": rule.name, "rights": rule.rights} for rule in description.authorization_rules
    ]
    return json.dumps(settings, ensure_ascii=False, separators=(",", ":"))


def _properties_section(sections: Sections) -> bytes | None:
    """Return the properties section of an encoded message; None if it has none, or a large one."""
    start, end = sections.bare_offset, sections.properties_end
    return sections.payload[start:end] if 0 < end - start <= _HEAD_BYTES_MAX else None
