"""One queue of messages: the machine that stores, delivers, locks and settles.

Owns: all messages of one queue, where each stands, and its locks. Must not know: links' owners, names of
other entities, the wire, the store. Everything happens at the `now_ms` given; what became true is appended to
`changes`, what follows to `effects`.

Theory of operation. A message stands in exactly one table, by its durable state: `active`, `deferred` or
`scheduled`. An active one is also in one of these situations:

    fresh      at or after `cursor`, never handed out since start
    returned   its position is in the heap `returned`, always before the cursor
    locked     `message.lock` is set and `locks` knows the token
    expired    passed over by a delivery, until the sweep of the same instant takes it away

Returned ones come first, so that the lowest position available is always next (L-07). Deferred and scheduled
messages never stand in the way of the cursor. A position is the unwrapped order of arrival and never comes
again, so a stale one in a heap or index names nothing.

A dead-letter queue is the same machine, with positions of its own and `numbers` to find messages by sequence
number; nothing expires there and nothing is dead-lettered from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from typing import Any

from peeklock.broker import properties as overlays
from peeklock.broker.changes import Change, MessageRemoved, MessageStored, NumbersIssued
from peeklock.broker.descriptions import UNLIMITED_MS, QueueDescription
from peeklock.broker.duplicates import PURGE_EVERY_MS, Duplicates
from peeklock.broker.effects import Deliver, Drained, Effect
from peeklock.broker.errors import InvalidOperation
from peeklock.broker.message import NEVER_MS, Message, MessageState, MessageView
from peeklock.broker.message_table import MessageTable
from peeklock.broker.peek_lock import Lock
from peeklock.broker.receivers import Receivers
from peeklock.broker.sequence_numbers import number_of, order_of
from peeklock.broker.shared import Shared
from peeklock.broker.timers import FAR_MS, Activation, Expiry

PASS_OVER_MAX = 10_000
"""Expired or vanished messages one delivery passes over before it lets others have a turn: about 5 ms."""

ACTIVATION_LAG_MS = 1_000
"""An activation that lags by so much enqueues at its own time, not at the scheduled one (S-07)."""

_TOO_LARGE = b"too large"
"""Stands for an overlay over the limit; compared by identity."""

ACTIVE = MessageState.ACTIVE
DEFERRED = MessageState.DEFERRED
SCHEDULED = MessageState.SCHEDULED


class MessageQueue:
    """The messages of one queue or sub-queue."""

    __slots__ = (
        "_shared",
        "accepts_sends",
        "accessed_at_ms",
        "activation",
        "active",
        "cursor",
        "dead_letter_on_expiry",
        "dead_letters",
        "default_ttl_ms",
        "deferred",
        "duplicates",
        "expiry",
        "last_enqueued_at_ms",
        "lock_duration_ms",
        "locks",
        "main",
        "max_delivery_count",
        "message_size_bytes_max",
        "name",
        "next_position",
        "numbers",
        "numbers_dirty",
        "queue_id",
        "receivers",
        "returned",
        "scheduled",
        "size_bytes",
        "timer_ms",
    )

    def __init__(
        self,
        queue_id: int,
        name: str,
        shared: Shared,
        *,
        dead_letters: MessageQueue | None,
        first_position: int,
        message_size_bytes_max: int,
    ) -> None:
        """Make an empty queue.

        Args:
            dead_letters: where its dead letters go; None makes it a dead-letter queue itself.
            first_position: of the first message to arrive.
        """
        self.queue_id = queue_id
        self.name = name
        self._shared = shared
        self.dead_letters = dead_letters
        self.main = self  # of a dead-letter queue: the queue whose numbers its messages bear
        self.message_size_bytes_max = message_size_bytes_max
        self.next_position = first_position
        self.last_enqueued_at_ms = 0
        self.numbers_dirty = False
        self.size_bytes = 0
        self.timer_ms = FAR_MS
        self.accepts_sends = False
        self.accessed_at_ms = 0

        self.lock_duration_ms = 0
        self.max_delivery_count = FAR_MS
        self.dead_letter_on_expiry = False
        self.default_ttl_ms = UNLIMITED_MS
        self.duplicates: Duplicates | None = None

        self.active = MessageTable()
        self.deferred = MessageTable()
        self.scheduled = MessageTable()
        self.numbers: MessageTable | None = None
        self.expiry: Expiry | None = None
        if dead_letters is None:
            self.numbers = MessageTable()
        else:
            dead_letters.main = self
            self.expiry = Expiry(self.active, UNLIMITED_MS)
        self.activation = Activation(self.scheduled)
        self.locks: dict[bytes, Lock] = {}  # in the order in which they lapse, since all last equally long
        self.receivers = Receivers()
        self.cursor = 0
        self.returned: list[int] = []

    # Settings

    def configure(self, description: QueueDescription) -> None:
        """Apply an entity's settings, also while in use (A-07)."""
        self.lock_duration_ms = description.lock_duration_ms
        if self.expiry is None:
            return
        self.max_delivery_count = description.max_delivery_count
        self.dead_letter_on_expiry = description.dead_lettering_on_expiration
        self.default_ttl_ms = description.default_ttl_ms
        if self.expiry.default_ttl_ms != self.default_ttl_ms:
            self.expiry.change_default(description.default_ttl_ms)
            # A message passed over as expired may have become receivable: look at all again from the start.
            assert not self.locks, "locks are dropped before settings change (L-12)"
            self.returned = []
            self.cursor = 0
            self.wake(self.expiry.next_ms())
        if self.duplicates is not None:
            self.duplicates.window_ms = description.duplicate_window_ms

    def retire(self) -> None:
        """Stop being called: the entity is gone. The locks are forgotten; their holders may still name
        them."""
        self.timer_ms = FAR_MS
        self.locks = {}
        self.receivers = Receivers()

    # Arrival

    def store(self, message: Message, payload: bytes, now_ms: int, changes: list[Change]) -> int:
        """Store an arriving message, at once or scheduled; answer its sequence number.

        A duplicate is dropped, and the first message's number answered (D-01, S-01).
        """
        message_id = message.message_id
        if message_id is not None:
            message.message_id = None  # not kept for every stored message
            duplicates = self.duplicates
            if duplicates is not None:
                digest = duplicates.digest(message_id)
                first_number = duplicates.first_number(digest, now_ms)
                if first_number is not None:
                    return first_number
                changes.append(duplicates.note(digest, number_of(self.next_position), now_ms))
                if len(duplicates) == 1:
                    self.wake(now_ms + duplicates.window_ms + PURGE_EVERY_MS)
        position = self._take_position()
        message.position = position
        number = number_of(position)
        message.sequence_number = number
        message.enqueued_sequence_number = number
        self.size_bytes += message.size_bytes
        scheduled_at_ms = message.scheduled_at_ms
        if scheduled_at_ms is None or scheduled_at_ms <= now_ms:
            self._enqueue(message, now_ms)
        else:
            message.state = SCHEDULED
            message.enqueued_at_ms = max(now_ms, self.last_enqueued_at_ms)
            self.scheduled.put(position, message)
            self.wake(self.activation.note(message))
        changes.append(MessageStored(self.queue_id, message, payload))
        return number

    def _take_position(self) -> int:
        position = self.next_position
        self.next_position = position + 1
        if not self.numbers_dirty:
            self.numbers_dirty = True
            self._shared.issued.append(self)
        return position

    def _enqueue(self, message: Message, enqueued_at_ms: int) -> None:
        """Make a message with a new position active; its time-to-live counts from here (E-01, S-04)."""
        if enqueued_at_ms < self.last_enqueued_at_ms:
            enqueued_at_ms = self.last_enqueued_at_ms
        else:
            self.last_enqueued_at_ms = enqueued_at_ms
        message.enqueued_at_ms = enqueued_at_ms
        ttl_ms = message.ttl_ms
        if ttl_ms is not None:
            message.expires_at_ms = enqueued_at_ms + min(ttl_ms, self.default_ttl_ms)
            message.ttl_ms = None  # from here on it is expires_at_ms - enqueued_at_ms
        self.active.put(message.position, message)
        if ttl_ms is not None or self.default_ttl_ms < UNLIMITED_MS:
            self._note_expiry(message)

    def _activate(self, waiting: Message, now_ms: int, changes: list[Change]) -> None:
        """Enqueue a scheduled message as if just sent (S-07)."""
        assert waiting.scheduled_at_ms is not None
        self.scheduled.remove(waiting.position)
        message = waiting.moved()
        position = self._take_position()
        message.position = position
        message.sequence_number = number_of(position)
        lags = now_ms - waiting.scheduled_at_ms >= ACTIVATION_LAG_MS
        self._enqueue(message, now_ms if lags else waiting.scheduled_at_ms)
        changes.append(MessageRemoved(self.queue_id, waiting))
        changes.append(MessageStored(self.queue_id, message))

    def _take_in_dead_letter(self, message: Message, changes: list[Change]) -> None:
        assert self.numbers is not None
        message.position = self._take_position()
        self.size_bytes += message.size_bytes
        self.active.put(message.position, message)
        self.numbers.put(self.order_of(message), message)
        changes.append(MessageStored(self.queue_id, message))

    # Delivery

    def deliver(self, now_ms: int, changes: list[Change], effects: list[Effect]) -> None:
        """Hand out what is available to the receivers with credit, in turn."""
        receivers = self.receivers
        turns = receivers.turns
        passed_over = 0
        while turns:
            message = self._take_available()
            if message is None:
                break
            expires_at_ms = message.expires_at_ms or message.enqueued_at_ms + self.default_ttl_ms
            if expires_at_ms <= now_ms and self.expiry is not None:
                # Left to the sweep, which is woken for this instant and delivers again: the message may have
                # arrived just now, and then its body has no place yet that a dead letter could share.
                passed_over += 1
                self.wake(now_ms)
                if passed_over < PASS_OVER_MAX:
                    continue
                return
            receiver = turns[0]
            token = self._shared.tokens()
            if receiver.deletes:
                locked_until_ms = 0
                self.remove(message, changes)
            else:
                locked_until_ms = now_ms + self.lock_duration_ms
                lock = Lock(token, message, self, locked_until_ms, receiver.locks)
                message.lock = lock
                self.locks[token] = receiver.locks[token] = lock
                if locked_until_ms < self.timer_ms:
                    self._shared.timers.set(self, locked_until_ms)
            receiver.deliveries += 1
            receiver.size_bytes += message.size_bytes
            effects.append(
                Deliver(
                    message,
                    token,
                    locked_until_ms,
                    message.delivery_count,
                    self._ttl_ms(message),
                    message.state,
                    receiver.link,
                )
            )
            if receiver.deliveries >= receiver.deliveries_max or receiver.size_bytes >= receiver.bytes_max:
                turns.popleft()
                receiver.waiting = False
            elif len(turns) > 1:
                turns.rotate(-1)
        if receivers.draining:
            effects.extend(Drained(receiver.link) for receiver in receivers.drained())

    def _take_available(self) -> Message | None:
        """Give the available message with the lowest position, which is no longer available then."""
        active = self.active
        while self.returned:
            message = active.get(heappop(self.returned))
            if message is not None:
                return message
        if self.cursor >= self.next_position:
            return None
        message = active.first_from(self.cursor)
        self.cursor = self.next_position if message is None else message.position + 1
        return message

    def _ttl_ms(self, message: Message) -> int | None:
        """What header.ttl says to a receiver: the message's own, else the entity's when finite (E-05)."""
        if message.expires_at_ms != NEVER_MS:
            return message.expires_at_ms - message.enqueued_at_ms
        if self.default_ttl_ms < UNLIMITED_MS:
            return self.default_ttl_ms
        return None

    # Settlement

    def held(self, token: bytes, now_ms: int) -> Lock | None:
        """Give the lock with this token while it is held; at exactly its end it counts as lost."""
        lock = self.locks.get(token)
        if lock is None or lock.locked_until_ms <= now_ms:
            return None
        return lock

    def complete(self, lock: Lock, changes: list[Change]) -> None:
        """Remove a locked message (L-05)."""
        self._end(lock)
        self.remove(lock.message, changes)

    def abandon(
        self, lock: Lock, now_ms: int, changes: list[Change], properties: Mapping[str, Any] | None = None
    ) -> None:
        """Give a locked message back, counted, with properties changed (L-06)."""
        overlay = self._overlay_for(lock, properties)
        if overlay is _TOO_LARGE:
            self._dead_letter_too_large(lock, changes)
        else:
            self.give_back(lock, now_ms, changes, counted=True, overlay=overlay)

    def defer(self, lock: Lock, changes: list[Change], properties: Mapping[str, Any] | None = None) -> None:
        """Set a locked message aside until it is asked for by number (L-10)."""
        overlay = self._overlay_for(lock, properties)
        if overlay is _TOO_LARGE:
            self._dead_letter_too_large(lock, changes)
            return
        self._end(lock)
        message = lock.message
        if overlay is not None:
            message.overlay = overlay
        if message.state is ACTIVE:
            self.active.remove(message.position)
            message.state = DEFERRED
            self.deferred.put(message.position, message)
        changes.append(MessageStored(self.queue_id, message))

    def dead_letter(
        self,
        lock: Lock,
        changes: list[Change],
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """Move a locked message to the dead-letter queue (L-09).

        Raises: InvalidOperation: this is a dead-letter queue.
        Source: wire contract 3.8.
        """
        if self.dead_letters is None:
            raise InvalidOperation(
                f"'{self.name}' is a dead-letter queue: its messages cannot be dead-lettered further"
            )
        overlay = overlays.with_reason(lock.message.overlay, reason, description, properties)
        if overlay is not None and len(overlay) > overlays.OVERLAY_BYTES_MAX:
            self._dead_letter_too_large(lock, changes)
            return
        self._end(lock)
        self._move_to_dead_letters(lock.message, overlay, changes)

    def give_back(
        self, lock: Lock, now_ms: int, changes: list[Change], *, counted: bool, overlay: bytes | None = None
    ) -> None:
        """End a lock without a settlement: the message is available again at its place (L-07), or its time is
        up.

        Args:
            counted: whether it was a delivery attempt (L-08); the last one allowed dead-letters it.
            overlay: the changed properties, None when there is no change.
        """
        self._end(lock)
        message = lock.message
        if overlay is not None:
            message.overlay = overlay
        if counted:
            message.delivery_count += 1
        if message.state is ACTIVE and self.has_expired(message, now_ms):
            self._expire(message, changes)  # "If it is also expired then, expiry decides" L-08
        elif counted and message.delivery_count >= self.max_delivery_count:
            self._move_to_dead_letters(
                message,
                overlays.with_reason(
                    message.overlay,
                    "MaxDeliveryCountExceeded",
                    f"Message could not be consumed after {self.max_delivery_count} delivery attempts.",
                ),
                changes,
            )
        else:
            if counted or overlay is not None:
                changes.append(MessageStored(self.queue_id, message))
            if message.state is ACTIVE:
                heappush(self.returned, message.position)
                self._note_expiry(message)

    def drop_locks(self) -> None:
        """End all locks, not counted: the entity changed (L-12). What has expired meanwhile is left to the
        sweep."""
        for lock in list(self.locks.values()):
            self._end(lock)
            if lock.message.state is ACTIVE:
                heappush(self.returned, lock.message.position)
                self._note_expiry(lock.message)

    def renew(self, lock: Lock, now_ms: int) -> int:
        """Let a lock last for a whole duration from now on; answer until when."""
        lock.locked_until_ms = now_ms + self.lock_duration_ms
        self.locks[lock.token] = self.locks.pop(lock.token)  # to the end of the order in which they lapse
        return lock.locked_until_ms

    def _end(self, lock: Lock) -> None:
        token = lock.token
        del self.locks[token]
        del lock.holder[token]
        lock.message.lock = None

    def remove(self, message: Message, changes: list[Change]) -> None:
        if message.state is ACTIVE:
            self.active.remove(message.position)
        elif message.state is DEFERRED:
            self.deferred.remove(message.position)
        else:
            self.scheduled.remove(message.position)
        if self.numbers is not None:
            self.numbers.remove(self.order_of(message))
        self.size_bytes -= message.size_bytes
        changes.append(MessageRemoved(self.queue_id, message))

    def _move_to_dead_letters(self, message: Message, overlay: bytes | None, changes: list[Change]) -> None:
        assert self.dead_letters is not None
        self.remove(message, changes)
        moved = message.moved()
        moved.overlay = overlay
        self.dead_letters._take_in_dead_letter(moved, changes)

    def _expire(self, message: Message, changes: list[Change]) -> None:
        if self.dead_letter_on_expiry:
            overlay = overlays.with_reason(
                message.overlay, "TTLExpiredException", "The message expired and was dead lettered."
            )
            self._move_to_dead_letters(message, overlay, changes)
        else:
            self.remove(message, changes)

    def require_settleable(self, lock: Lock, properties: Mapping[str, Any] | None) -> None:
        """Raise now what `abandon` or `defer` would raise, before the first of several locks is settled."""
        if self.dead_letters is None:
            self._overlay_for(lock, properties)

    def _overlay_for(self, lock: Lock, properties: Mapping[str, Any] | None) -> bytes | None:
        if not properties:
            return None
        overlay = overlays.merged(lock.message.overlay, properties)
        if len(overlay) <= overlays.OVERLAY_BYTES_MAX:
            return overlay
        if self.dead_letters is None:
            raise InvalidOperation(
                f"the changed properties of sequence number {lock.message.sequence_number} of '{self.name}' "
                f"are {len(overlay)} bytes, at most {overlays.OVERLAY_BYTES_MAX} are allowed"
            )
        return _TOO_LARGE

    def _dead_letter_too_large(self, lock: Lock, changes: list[Change]) -> None:
        """Dead-letter a message whose properties outgrew the limit, without the change that did it (3.8)."""
        self._end(lock)
        overlay = overlays.with_reason(
            lock.message.overlay, "HeaderSizeExceeded", "The size quota for this stream has been exceeded."
        )
        self._move_to_dead_letters(lock.message, overlay, changes)

    # Time

    def wake(self, due_ms: int) -> None:
        """Have `advance` called at an instant, if it would not be called earlier anyway."""
        if due_ms < self.timer_ms:
            self._shared.timers.set(self, due_ms)

    def has_expired(self, message: Message, now_ms: int) -> bool:
        """Whether an active message can no longer be received, since exactly its instant."""
        expires_at_ms = message.expires_at_ms or message.enqueued_at_ms + self.default_ttl_ms
        return expires_at_ms <= now_ms and self.expiry is not None

    def _note_expiry(self, message: Message) -> None:
        if self.expiry is not None:
            self.wake(self.expiry.note(message))

    def advance(self, now_ms: int, count_max: int, changes: list[Change], effects: list[Effect]) -> int:
        """Do what is due, about `count_max` items of each kind; answer the work done and set the next
        timer."""
        work = 1 + self._lapse(now_ms, count_max, changes)
        if self.expiry is not None and self.expiry.next_ms() <= now_ms:
            expired, steps = self.expiry.take_due(now_ms, count_max)
            for message in expired:
                self._expire(message, changes)
            work += steps
            if not len(self.active):
                self.returned = []  # nothing it names is left
        if self.activation.next_ms() <= now_ms:
            due, steps = self.activation.take_due(now_ms, count_max)
            for message in due:
                self._activate(message, now_ms, changes)
            work += steps
        if self.duplicates is not None:
            next_ms = self.duplicates.next_ms()
            if next_ms is not None and next_ms <= now_ms:
                work += self.duplicates.purge(now_ms, count_max)
        self.serve(now_ms, changes, effects)
        self.set_timer()
        return work

    def set_timer(self) -> None:
        """Have `advance` called when the next thing is due."""
        self.wake(self._next_ms())

    def serve(self, now_ms: int, changes: list[Change], effects: list[Effect]) -> None:
        """Deliver what became available here and in the dead-letter queue."""
        if self.receivers.turns or self.receivers.draining:
            self.deliver(now_ms, changes, effects)
        dead_letters = self.dead_letters
        if dead_letters is not None and dead_letters.receivers.turns:
            dead_letters.deliver(now_ms, changes, effects)

    def _lapse(self, now_ms: int, count_max: int, changes: list[Change]) -> int:
        lapsed: list[Lock] = []
        for lock in self.locks.values():
            if lock.locked_until_ms > now_ms or len(lapsed) >= count_max:
                break
            lapsed.append(lock)
        for lock in lapsed:
            self.give_back(lock, now_ms, changes, counted=True)
        return len(lapsed)

    def _next_ms(self) -> int:
        next_ms = self.activation.next_ms()
        for lock in self.locks.values():
            next_ms = min(next_ms, lock.locked_until_ms)
            break
        if self.expiry is not None:
            next_ms = min(next_ms, self.expiry.next_ms())
        if self.duplicates is not None:
            purge_ms = self.duplicates.next_ms()
            if purge_ms is not None:
                next_ms = min(next_ms, purge_ms)
        return next_ms

    # By number

    def hand_over(
        self, message: Message, holder: dict[bytes, Lock] | None, now_ms: int, changes: list[Change]
    ) -> MessageView:
        """Give a deferred message to who asked for it: locked for `holder`, or removed when that is None."""
        ttl_ms = self._ttl_ms(message)
        if holder is None:
            self.remove(message, changes)
            return MessageView(message, None, 0, message.delivery_count, ttl_ms, message.state)
        token = self._shared.tokens()
        lock = Lock(token, message, self, now_ms + self.lock_duration_ms, holder)
        message.lock = lock
        self.locks[token] = holder[token] = lock
        self.wake(lock.locked_until_ms)
        return MessageView(
            message, token, lock.locked_until_ms, message.delivery_count, ttl_ms, message.state
        )

    def delete(self, messages: list[Message], changes: list[Change]) -> None:
        """Remove messages that are not locked (A-06, S-06)."""
        for message in messages:
            self.remove(message, changes)
        if not len(self.active):
            self.returned = []  # nothing it names is left

    def find(self, position: int) -> Message | None:
        """Give the message at a position, whatever its state."""
        return self.active.get(position) or self.deferred.get(position) or self.scheduled.get(position)

    def all_messages(self) -> Iterator[Message]:
        """Go through all messages, in no particular order. The queue must not change meanwhile."""
        yield from self.active
        yield from self.deferred
        yield from self.scheduled

    def numbers_issued(self) -> NumbersIssued:
        """State the counters as a fact."""
        return NumbersIssued(
            self.queue_id,
            self.next_position,
            number_of(self.next_position),
            self.last_enqueued_at_ms,
        )

    def order_of(self, message: Message) -> int:
        """Give the order behind a message's number; in a dead-letter queue that is not its position."""
        return order_of(message.sequence_number, self.main.next_position)
