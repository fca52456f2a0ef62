"""One queue of messages: the machine that stores, locks, gives back and removes.

Theory of operation. A message is in exactly one table, by its durable state: `active`, `deferred` or
`scheduled`. An active one is also in one of these situations:

    available  in the ready queue of the queue, or of its session (`delivery`)
    locked     `message.lock` is set and `locks` has the token
    claimed    `message.lock` is the claim of a cursor (`cursors`)
    expired    skipped by a delivery, until the sweep of the same instant removes it
    pending    the queue forwards, and has not passed it on yet (`forwarding`)

A position is the unwrapped order of arrival and is never reused, so a stale one in a heap or index names
nothing. A topic is the same machine without dead letters and receivers: its messages are scheduled or
pending. A dead-letter queue is the same machine with its own positions; nothing expires there, and nothing is
dead-lettered from it. There, and in a partitioned queue, the position is not the order of sequence numbers,
and `numbers` finds messages by the key of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from peeklock.broker.content import overlay as overlays
from peeklock.broker.queue import delivery, enqueue
from peeklock.broker.queue.counters import Counters
from peeklock.broker.queue.duplicates import Duplicates
from peeklock.broker.queue.message_sessions import MessageSessions
from peeklock.broker.queue.message_table import MessageTable
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.peek_lock import Holder, Lock
from peeklock.broker.queue.sequence_numbers import (
    Partitions,
    order_of,
)
from peeklock.broker.queue.shared import Distributor, Shared
from peeklock.broker.queue.timers import FAR_MS, Activation, Expiry
from peeklock.broker.vocabulary.changes import MessageRemoved, MessageStored
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS
from peeklock.broker.vocabulary.events import BY_REQUEST, EventType
from peeklock.broker.vocabulary.message import ACTIVE, Message, MessageState

if TYPE_CHECKING:
    from peeklock.broker.queue.cursors import Cursors
    from peeklock.broker.vocabulary.addresses import LockToken, SequenceNumber

FORWARDS_MAX: Final = 4
"""Items of due work that a forwarded message counts: it makes as many hops at most (wire contract 10.1)."""

DEFERRED: Final = MessageState.DEFERRED
SCHEDULED: Final = MessageState.SCHEDULED


class MessageQueue:
    """The messages of one queue or sub-queue."""

    __slots__ = (
        "accepts_sends",
        "accessed_at_ms",
        "activation",
        "active",
        "arrived_at_ms",
        "checks_sends",
        "copied_by",
        "counters",
        "cursors",
        "dead_letter_on_expiry",
        "dead_letters",
        "default_ttl_ms",
        "deferred",
        "duplicates",
        "expiry",
        "fan_out",
        "forward_cursor",
        "forward_due_ms",
        "forward_to",
        "last_enqueued_at_ms",
        "lock_duration_ms",
        "locks",
        "main",
        "max_delivery_count",
        "message_size_bytes_max",
        "name",
        "new_token",
        "next_position",
        "numbers",
        "numbers_dirty",
        "partitions",
        "passes_on",
        "queue_id",
        "ready_queue",
        "scheduled",
        "sessions",
        "shared",
        "size_bytes",
        "timer_ms",
    )

    def __init__(
        self,
        queue_id: int,
        name: str,
        shared: Shared,
        *,
        dead_letters: MessageQueue | None = None,
        first_position: int = 1,
        fan_out: Distributor | None = None,
        copied_by: Distributor | None = None,
        counters: Counters,
    ) -> None:
        """Make an empty queue: with a fan-out a topic, else without dead letters a dead-letter queue."""
        self.queue_id = queue_id
        self.name = name
        self.shared = shared
        self.new_token = shared.tokens
        self.dead_letters = dead_letters
        self.fan_out = fan_out
        self.copied_by = copied_by  # of a subscription: its topic's, which counts the size of all
        self.counters = counters
        self.main = self  # of a dead-letter queue: the queue that numbered its messages
        self.message_size_bytes_max = 0
        self.next_position = first_position
        self.last_enqueued_at_ms = 0
        self.numbers_dirty = False
        self.size_bytes = 0
        self.timer_ms = FAR_MS
        self.accepts_sends = False
        self.checks_sends = False  # a send must be checked for more than status and size
        self.accessed_at_ms = 0
        self.arrived_at_ms = 0  # of the last message, in the core's time
        self.lock_duration_ms = 0
        self.max_delivery_count = FAR_MS
        self.dead_letter_on_expiry = False
        self.default_ttl_ms = UNLIMITED_MS
        self.forward_to: str | None = None
        self.passes_on = fan_out is not None  # to another entity, or to the subscriptions
        self.forward_due_ms = FAR_MS  # for pending messages
        self.forward_cursor = 0  # earlier messages stay
        self.duplicates: Duplicates | None = None
        self.partitions: Partitions | None = None
        self.sessions: MessageSessions | None = None
        self.cursors: Cursors | None = None  # made with the first one
        self.active = MessageTable()
        self.deferred = MessageTable()
        self.scheduled = MessageTable()
        self.numbers: MessageTable | None = None
        self.expiry: Expiry | None = None
        if dead_letters is not None:
            dead_letters.main = self
            self.expiry = Expiry(self.active, UNLIMITED_MS)
        elif fan_out is None:
            self.numbers = MessageTable()
        self.activation = Activation(self.scheduled)
        # Without sessions in the order in which they lapse: all last equally long.
        self.locks: dict[LockToken, Lock] = {}
        self.ready_queue = delivery.PlainReadyQueue()  # unused in a queue with sessions

    @property
    def timer_key(self) -> int:
        return self.queue_id

    @property
    def reads_routing(self) -> bool:
        """Whether message id, session id or partition key matter here."""
        plain = self.duplicates is None and self.sessions is None and self.partitions is None
        return not plain or self.fan_out is not None

    @property
    def holds_dead_letters(self) -> bool:
        return self.dead_letters is None and self.fan_out is None

    def retire(self) -> None:
        """Cancel the timer of a deleted queue and forget its locks; their holders may still name them."""
        self.shared.timers.cancel(self)
        self.locks = {}
        self.ready_queue = delivery.PlainReadyQueue()
        self.cursors = None

    def dead_letter(
        self,
        message: Message,
        overlay: bytes | None,
        out: Outcome,
        why: EventType = EventType.DEAD_LETTERED,
        token: LockToken | None = None,
    ) -> None:
        """Move a stored, unlocked message to the dead-letter queue, or to where that forwards.

        Args:
            why: the event to record.
            token: of the lock that was ended for it, if a receiver asked.
        """
        dead_letters = self.dead_letters
        assert dead_letters is not None
        out.dead_lettered(self, message, overlay, dead_letters.name, token, why)
        self.remove(message, out)
        moved = message.moved()
        moved.overlay = overlay
        enqueue.dead_letter_arriving(dead_letters, moved, None, out)

    def dead_letter_exhausted(self, message: Message, out: Outcome) -> None:
        """Dead-letter an unlocked message that has no deliveries left (L-08)."""
        overlay = overlays.with_reason(
            message.overlay,
            "MaxDeliveryCountExceeded",
            f"Message could not be consumed after {self.max_delivery_count} delivery attempts.",
        )
        self.dead_letter(message, overlay, out)

    # Delivery

    def serve(self, out: Outcome) -> None:
        """Deliver available messages."""
        if self.sessions is not None:
            self.sessions.serve(out)
        else:
            receivers = self.ready_queue.receivers
            if receivers.turns or receivers.draining:
                delivery.deliver(self, self.ready_queue, out)

    # Locks

    def held(self, token: LockToken, now_ms: int) -> Lock | None:
        """Return the lock with this token if it is held and can be settled; at exactly its end it is lost."""
        lock = self.locks.get(token)
        if lock is None or lock.transaction_id is not None or lock.holder.until_ms <= now_ms:
            return None
        if lock.locked_until_ms <= now_ms and lock.until_ms() <= now_ms:
            return None
        return lock

    def complete(self, lock: Lock, out: Outcome) -> None:
        """Remove a locked message (L-05)."""
        message = lock.message
        out.completed(self, message)
        token = lock.token  # `end` inlined
        del self.locks[token]
        del lock.holder[token]
        message.lock = lock.transaction_id = None
        self.remove(message, out)

    def give_back(
        self,
        lock: Lock,
        out: Outcome,
        *,
        counted: bool,
        why: EventType,
        reason: str | None = None,
        overlay: bytes | None = None,
    ) -> None:
        """End a lock and keep the message: available at its place (L-07), set aside if `why` is DEFERRED
        (L-10), or gone if it has expired.

        Args:
            counted: whether it was a delivery attempt (L-08); the last one dead-letters. A dead-letter queue
            does not count.
            why: the event to record, with `reason`.
            overlay: the changed properties, None without a change.
        """
        counted = counted and not self.holds_dead_letters
        self.end(lock)
        message = lock.message
        if overlay is not None:
            message.overlay = overlay
        if counted:
            message.delivery_count += 1
        out.happened(why, self, message, reason=reason, token=lock.token)
        if why is EventType.DEFERRED:
            self._set_aside(message)
        if message.state is ACTIVE and self.has_expired(message, out.now_ms):
            # "If it is also expired then, expiry decides" L-08; a deferred message does not expire (E-02).
            self.expire(message, out)
        elif counted and message.delivery_count >= self.max_delivery_count:
            self.dead_letter_exhausted(message, out)
        else:
            if counted or overlay is not None or why is EventType.DEFERRED:
                out.changes.append(MessageStored(self.queue_id, message))
            if message.state is ACTIVE:
                self.make_available(message)

    def renew(self, lock: Lock, holder: Holder, out: Outcome) -> int:
        """Renew a lock for a whole duration and move it to `holder`; return until when."""
        del lock.holder[lock.token]
        lock.holder = holder
        holder[lock.token] = lock
        lock.locked_until_ms = out.now_ms + self.lock_duration_ms
        self.locks[lock.token] = self.locks.pop(lock.token)  # it lapses last
        until_ms = lock.locked_until_ms
        out.happened(EventType.RENEWED, self, lock.message, until_ms=until_ms)
        return lock.locked_until_ms

    def end(self, lock: Lock) -> None:
        """Forget a lock; the caller decides about the message."""
        token = lock.token
        del self.locks[token]
        del lock.holder[token]
        lock.message.lock = None
        lock.transaction_id = None

    def make_available(self, message: Message) -> None:
        """Make an active message that is no longer held available at its place."""
        if self.sessions is None:
            self.ready_queue.give_back(message.position)
        else:
            self.sessions.given_back(message)
        if self.forward_to is not None:
            self.forward_stored_from(message.position)  # a dead letter that was locked
        self.note_expiry(message)

    def set_aside(self, message: Message, out: Outcome) -> None:
        """Defer an active message that nobody holds; that is no delivery attempt."""
        out.happened(EventType.DEFERRED, self, message, reason=BY_REQUEST)
        self._set_aside(message)
        out.changes.append(MessageStored(self.queue_id, message))

    def _set_aside(self, message: Message) -> None:
        if message.state is ACTIVE:
            self.active.remove(message.position)
            message.state = DEFERRED
            self.deferred.put(message.position, message)
            if self.sessions is not None:
                self.sessions.deferred(message)

    def remove(self, message: Message, out: Outcome) -> None:
        """Remove a message in any state; it is not locked, or deleted as it is received."""
        if message.state is ACTIVE:
            self.active.remove(message.position)
        elif message.state is DEFERRED:
            self.deferred.remove(message.position)
        else:
            self.scheduled.remove(message.position)
            if self.duplicates is not None:
                self.duplicates.waiting.pop(message.sequence_number, None)
        if self.numbers is not None:
            self.numbers.remove(self.key_of(message.sequence_number))
        if self.sessions is not None:
            self.sessions.removed(message)
        self.size_bytes -= message.size_bytes
        if self.copied_by is not None:
            self.copied_by.size_bytes -= message.size_bytes
        out.changes.append(MessageRemoved(self.queue_id, message))

    # Time

    def wake(self, due_ms: int) -> None:
        """Set the timer to an instant, unless it is set to an earlier one."""
        if due_ms < self.timer_ms:
            self.shared.timers.set(self, due_ms)

    def has_expired(self, message: Message, now_ms: int) -> bool:
        """Return whether an active message has expired; at exactly its instant it has."""
        expires_at_ms = message.expires_at_ms or message.enqueued_at_ms + self.default_ttl_ms
        instant_ms = now_ms + self.shared.wall.due_ahead_ms
        return expires_at_ms - message.lead_ms <= instant_ms and self.expiry is not None

    def expire(self, message: Message, out: Outcome) -> None:
        """Dead-letter or remove an expired message (E-08)."""
        if self.dead_letter_on_expiry:
            overlay = overlays.with_reason(
                message.overlay, "TTLExpiredException", "The message expired and was dead lettered."
            )
            self.dead_letter(message, overlay, out, why=EventType.EXPIRED)
        else:
            out.happened(EventType.EXPIRED, self, message)
            self.remove(message, out)

    def note_expiry(self, message: Message) -> None:
        """Index an unlocked message for its expiry."""
        if self.expiry is not None:
            self.wake(self.shared.wall.core_ms(self.expiry.note(message)))

    def forward_stored_from(self, position: int) -> None:
        """Have stored messages from a position on passed on, if they must be."""
        self.forward_cursor = min(self.forward_cursor, position)
        if self.passes_on and len(self.active):
            self.forward_due_ms = 0
            self.wake(0)

    def advance(self, count_max: int, out: Outcome) -> int:
        """Do what is due, about `count_max` items of each kind; set the timer and return the work done."""
        now_ms = out.now_ms
        copies = out.copies
        dead_letters = self.dead_letters
        if self.forward_to is not None or (dead_letters is not None and dead_letters.forward_to is not None):
            count_max = max(1, count_max // FORWARDS_MAX)
        if self.sessions is None:
            work = 1 + self._lapse(count_max, out)
        else:
            work = 1 + self.sessions.advance(count_max, out)
        instant_ms = self.shared.wall.instant_ms(now_ms)
        if self.expiry is not None and self.expiry.next_ms() <= instant_ms:
            expired, steps = self.expiry.take_due(instant_ms, count_max)
            for message in expired:
                self.expire(message, out)
            work += steps
            self.forget_returned()
        if self.activation.next_ms() <= instant_ms:
            due, steps = self.activation.take_due(instant_ms, count_max)
            for message in due:
                enqueue.activate(self, message, out)
            work += steps
        if self.forward_due_ms <= now_ms:
            work += self.shared.forwarding.pass_on_stored(self, count_max, out)
        if self.cursors is not None and self.cursors.next_ms() <= now_ms:
            work += self.cursors.advance(count_max, out)
        if self.duplicates is not None:
            next_ms = self.duplicates.next_ms()
            if next_ms is not None and next_ms <= now_ms:
                work += self.duplicates.purge(now_ms, count_max)
        self.serve(out)
        self.set_timer()
        return work + out.copies - copies

    def forget_returned(self) -> None:
        """Empty the heap of returned messages once the queue has none."""
        if not len(self.active):
            self.ready_queue.returned = []

    def set_timer(self) -> None:
        """Set the timer to the next thing that is due."""
        self.wake(self._next_ms())

    def _lapse(self, count_max: int, out: Outcome) -> int:
        lapsed: list[Lock] = []
        for lock in self.locks.values():
            if lock.locked_until_ms > out.now_ms or len(lapsed) >= count_max:
                break
            lapsed.append(lock)
        for lock in lapsed:
            self.give_back(lock, out, counted=True, why=EventType.LOCK_LAPSED)
        return len(lapsed)

    def _next_ms(self) -> int:
        wall = self.shared.wall
        next_ms = min(wall.core_ms(self.activation.next_ms()), self.forward_due_ms)
        if self.sessions is not None:
            next_ms = min(next_ms, self.sessions.next_ms())
        else:
            for lock in self.locks.values():
                next_ms = min(next_ms, lock.locked_until_ms)
                break
        if self.expiry is not None:
            next_ms = min(next_ms, wall.core_ms(self.expiry.next_ms()))
        if self.cursors is not None:
            next_ms = min(next_ms, self.cursors.next_ms())
        if self.duplicates is not None:
            purge_ms = self.duplicates.next_ms()
            if purge_ms is not None:
                next_ms = min(next_ms, purge_ms)
        return next_ms

    # By position and number

    def find(self, position: int) -> Message | None:
        """Return the message at a position, in any state."""
        return self.active.get(position) or self.deferred.get(position) or self.scheduled.get(position)

    def key_of(self, number: SequenceNumber) -> int:
        """Return the key of a number in `numbers`; without that table it is the position."""
        main = self.main
        if main.partitions is not None:
            return main.partitions.key_of(number)
        return order_of(number, main.next_position)

    def all_messages(self) -> Iterator[Message]:
        """Yield all messages in no particular order. The queue must not change meanwhile."""
        yield from self.active
        yield from self.deferred
        yield from self.scheduled
