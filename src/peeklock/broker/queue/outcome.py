"""The outcome of one command or one slice of due work: changes, effects, counters and events.

A handler gets the outcome as its last argument and states once what happened: `out.completed(...)` counts it,
and records it while there is a recorder. Facts go to `changes`, what follows once they are durable to
`effects`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from peeklock.broker.content.overlay import dead_letter_reason
from peeklock.broker.queue.counters import APPLICATION, COUNTED, REASONS, Counters
from peeklock.broker.vocabulary.addresses import NOT_NUMBERED, LockToken, SequenceNumber
from peeklock.broker.vocabulary.changes import Change
from peeklock.broker.vocabulary.effects import Effect
from peeklock.broker.vocabulary.events import Event, EventType

if TYPE_CHECKING:
    from peeklock.amqp.messaging import Sections
    from peeklock.broker.queue.links import Consumer
    from peeklock.broker.queue.message_queue import MessageQueue
    from peeklock.broker.queue.message_session import MessageSession
    from peeklock.broker.queue.peek_lock import Lock
    from peeklock.broker.queue.recorder import Recorder
    from peeklock.broker.vocabulary.commands import Command
    from peeklock.broker.vocabulary.descriptions import Description
    from peeklock.broker.vocabulary.message import Message


class Outcome:
    """See the module. A namespace has one and empties it after each call; after a defect the process ends."""

    __slots__ = (
        "_recorder",
        "changes",
        "copies",
        "counters",
        "effects",
        "further",
        "left",
        "now_ms",
        "touched",
    )

    def __init__(self, recorder: Recorder | None = None) -> None:
        """Begin at time 0."""
        self._recorder = recorder  # None: no events
        self.counters = Counters()
        """Of the namespace."""
        self.now_ms = 0
        """UTC ms of the call under way."""
        self.changes: list[Change] = []
        self.effects: list[Effect] = []
        self.copies = 0
        """Copies and forwards so far."""
        self.further = 0
        """Messages done after the first one of the command."""
        self.left: Command | None = None
        """Rest of the command that must be done by itself."""
        self.touched: dict[int, MessageQueue] = {}
        """Queues to be served before the call ends, by id."""

    def touch(self, queue: MessageQueue) -> None:
        """Have a queue served before the call ends."""
        self.touched[queue.queue_id] = queue

    # Around a call

    def resume(self, command: object, now_ms: int) -> None:
        """Continue a command that is done in steps; its copies so far count on."""
        self.now_ms = now_ms
        if self._recorder is not None:
            self._recorder.begin(command, now_ms)

    def begin_due(self, now_ms: int) -> None:
        """Begin work that is due."""
        self.now_ms = now_ms
        self.copies = 0
        if self._recorder is not None:
            self._recorder.begin_due(now_ms)

    def take(self) -> tuple[list[Change], list[Effect]]:
        """Return the changes and effects, and empty them."""
        taken = self.changes, self.effects
        self.changes = []
        self.effects = []
        return taken

    def attribute(self, command: object) -> None:
        """Attribute what follows to a command that is done within another call."""
        if self._recorder is not None:
            self._recorder.begin(command, self.now_ms)

    def attribute_to_time(self) -> None:
        """Attribute what follows to time alone."""
        if self._recorder is not None:
            self._recorder.begin_due(self.now_ms)

    def attribute_to_end(self, connection_id: int, *, broken: bool) -> None:
        """Attribute what follows to the end of a connection."""
        if self._recorder is not None:
            self._recorder.begin_end(connection_id, self.now_ms, broken=broken)

    def attribute_to_transaction(self, command: object, transaction_id: bytes) -> None:
        """Attribute what follows to a command of a transaction."""
        if self._recorder is not None:
            self._recorder.begin(command, self.now_ms)
            self._recorder.begin_transaction(transaction_id)

    # Arrivals

    def sent(self, queue: MessageQueue, message: Message) -> None:
        """Count a message from a client."""
        size_bytes = message.size_bytes
        counters, totals = queue.counters, self.counters
        counters.received += 1
        counters.received_bytes += size_bytes
        totals.received += 1
        totals.received_bytes += size_bytes

    def passed_in(self, queue: MessageQueue, message: Message) -> None:
        """Count a message that another entity has passed on or copied."""
        queue.counters.received += 1
        queue.counters.received_bytes += message.size_bytes

    def arrived(
        self,
        queue: MessageQueue,
        message: Message,
        sections: Sections | None,
        reason: str | None = None,
    ) -> None:
        """Record a message that is numbered and stored, or passed on.

        Args:
            sections: None for a message whose body is stored already.
        """
        if self._recorder is not None:
            self._recorder.arrived(queue, message, sections, EventType.ENQUEUED, reason)

    def scheduled(
        self, queue: MessageQueue, message: Message, sections: Sections | None, *, reason: str | None = None
    ) -> None:
        """Count and record a message that is numbered and stored for later."""
        queue.counters.scheduled += 1
        self.counters.scheduled += 1
        if self._recorder is not None:
            self._recorder.arrived(queue, message, sections, EventType.SCHEDULED, reason)

    def number_issued(self, queue: MessageQueue, message: Message, transaction_id: bytes) -> None:
        """Record that a message of a transaction is numbered before it is stored."""
        if self._recorder is not None:
            self._recorder.number_issued(queue, message, transaction_id)

    def duplicate_dropped(
        self,
        queue: MessageQueue,
        message: Message,
        first_number: SequenceNumber,
        sections: Sections | None,
        used_number: SequenceNumber = NOT_NUMBERED,
    ) -> None:
        """Count and record an accepted message that is not stored; see `Recorder.duplicate_dropped`.

        Args:
            sections: None for a message whose body is stored already, which is not recorded.
        """
        queue.counters.duplicates += 1
        self.counters.duplicates += 1
        if self._recorder is not None and sections is not None:
            self._recorder.duplicate_dropped(queue, message, first_number, sections, used_number)

    # Deliveries and settlements

    def delivered(self, queue: MessageQueue, message: Message, lock: Lock | None, receiver: Consumer) -> None:
        """Count and record a delivery over a link, under a lock or, without one, of a deleted message."""
        size_bytes = message.size_bytes
        counters, totals = queue.counters, self.counters
        counters.delivered += 1
        counters.delivered_bytes += size_bytes
        totals.delivered += 1
        totals.delivered_bytes += size_bytes
        if self._recorder is not None:
            self._recorder.delivered(queue, message, lock, receiver)

    def handed_over(
        self,
        queue: MessageQueue,
        message: Message,
        kind: EventType = EventType.DELIVERED,
        *,
        reason: str | None = None,
        related_number: int = 0,
        until_ms: int = 0,
    ) -> None:
        """Count and record a delivery of a deferred or claimed message, which answers a request."""
        size_bytes = message.size_bytes
        counters, totals = queue.counters, self.counters
        counters.delivered += 1
        counters.delivered_bytes += size_bytes
        totals.delivered += 1
        totals.delivered_bytes += size_bytes
        if self._recorder is not None:
            self._recorder.message(
                kind, queue, message, reason, related_number=related_number, until_ms=until_ms
            )

    def completed(self, queue: MessageQueue, message: Message, reason: str | None = None) -> None:
        """Count and record the completion of a message, which is removed next."""
        queue.counters.completed += 1
        self.counters.completed += 1
        if self._recorder is not None:
            self._recorder.completed(queue, message, reason)

    def happened(
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
        """Count and record another event of a message, which changes only its delivery count."""
        counter = COUNTED.get(kind)
        if counter is not None:
            self._count(queue, counter)
        if self._recorder is not None:
            self._recorder.message(kind, queue, message, reason, related, related_number, token, until_ms)

    def _count(self, queue: MessageQueue, counter: str) -> None:
        for counters in (queue.counters, self.counters):
            setattr(counters, counter, getattr(counters, counter) + 1)

    def dead_lettered(
        self,
        queue: MessageQueue,
        message: Message,
        overlay: bytes | None,
        to: str | None,
        token: LockToken | None = None,
        kind: EventType = EventType.DEAD_LETTERED,
    ) -> None:
        """Count and record a dead letter; `kind` is EXPIRED for one whose time-to-live ended."""
        reason = None if overlay is None else dead_letter_reason(overlay)
        label = reason if reason in REASONS else APPLICATION
        assert label is not None
        for counters in (queue.counters, self.counters):
            counters.dead_lettered[label] = counters.dead_lettered.get(label, 0) + 1
        number = message.sequence_number if to else 0
        self.happened(kind, queue, message, reason, to, number, token)

    # Forwards

    def forwarded(self, queue: MessageQueue, message: Message, to: str | None = None) -> Event | None:
        """Return the event of a message that is about to be passed on; then `passed_on` or `fanned_out`."""
        return None if self._recorder is None else self._recorder.forwarded(queue, message, to)

    def passed_on(self, queue: MessageQueue, forwarded: Event | None, number: SequenceNumber) -> None:
        """Count and record a forward, with the number at the target."""
        queue.counters.forwarded += 1
        self.counters.forwarded += 1
        if self._recorder is not None and forwarded is not None:
            self._recorder.passed_on(forwarded, number)

    def fanned_out(self, forwarded: Event | None, copies: int) -> None:
        """Record that a topic's message was copied."""
        if self._recorder is not None and forwarded is not None:
            self._recorder.fanned_out(forwarded, copies)

    # Sessions, entities, the broker

    def session(
        self, kind: EventType, queue: MessageQueue, session: MessageSession, size_bytes: int = 0
    ) -> None:
        """Record an event of a session; see `Recorder.session`."""
        if self._recorder is not None:
            self._recorder.session(kind, queue, session, size_bytes)

    def entity(self, kind: EventType, queue: MessageQueue, description: Description) -> None:
        """Record an event of the entity with this main queue."""
        if self._recorder is not None:
            self._recorder.entity(kind, queue, description)

    def connection_lost(self) -> None:
        """Record that the connection broke, and leaves message locks."""
        if self._recorder is not None:
            self._recorder.connection_lost()

    def clock_stepped(self, step_ms: int) -> None:
        """Record that the wall clock was set, or (0) accepted."""
        if self._recorder is not None:
            self._recorder.clock_stepped(step_ms, self.now_ms)

    def epoch_started(self, lock_grace_ms: int | None) -> None:
        """Record the start of the broker."""
        if self._recorder is not None:
            self._recorder.epoch_started(lock_grace_ms)
