"""Delivery: which receiver gets which message next.

A ready queue holds available messages and their receivers. A queue has one; a queue that requires sessions
has one per session. The lowest available position is always next, so messages that were given back come first
(L-07).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, Protocol

from peeklock.broker.queue.links import Receivers
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.peek_lock import Holder, Lock
from peeklock.broker.vocabulary.commands import DELIVERY_BYTES
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS
from peeklock.broker.vocabulary.effects import Deliver, Drained
from peeklock.broker.vocabulary.message import Message, MessageView

if TYPE_CHECKING:
    from peeklock.broker.queue.message_queue import MessageQueue
    from peeklock.broker.queue.message_session import MessageSession

PASS_OVER_MAX = 10_000
"""Expired or removed messages that one delivery skips, before others have a turn: about 5 ms."""

EXHAUSTED_MAX: Final = 256
"""Messages that one delivery dead-letters for their MaxDeliveryCount: at 10 to 25 us each 6 ms at most."""


class ReadyQueue(Protocol):
    """Available messages in order, and their receivers."""

    receivers: Receivers

    @property
    def session(self) -> MessageSession | None:
        """The session whose lock the messages are under."""

    def take(self, queue: MessageQueue) -> Message | None:
        """Take the available message with the lowest position."""

    def give_back(self, position: int) -> None:
        """Make the message at a position available again."""


class PlainReadyQueue:
    """The ready queue of a queue without sessions.

    fresh      at or after `cursor`, not delivered since the start; some may be held for a `Cursor`
    returned   in the heap `returned`, always before the cursor
    """

    __slots__ = ("cursor", "receivers", "returned")

    session: MessageSession | None = None

    def __init__(self) -> None:
        self.receivers = Receivers()
        self.cursor = 0
        self.returned: list[int] = []

    def take(self, queue: MessageQueue) -> Message | None:
        """Take the available message with the lowest position."""
        active = queue.active
        while self.returned:
            message = active.get(heappop(self.returned))
            if message is not None:
                return message
        while self.cursor < queue.next_position:
            message = active.first_from(self.cursor)
            if message is None:
                self.cursor = queue.next_position
                return None
            self.cursor = message.position + 1
            if message.lock is None:
                return message
        return None

    def give_back(self, position: int) -> None:
        """Make the message at a position available again; the cursor has yet to reach later ones."""
        if position < self.cursor:
            heappush(self.returned, position)

    def pass_over_claimed(self, queue: MessageQueue) -> None:
        """Start after the first messages that are held for cursors."""
        for message in queue.active:
            if message.lock is None:
                self.cursor = message.position
                return

    def rescan(self) -> None:
        """Start again, after a change of what can be received. Only cursors may hold messages."""
        self.returned = []
        self.cursor = 0


def deliver(queue: MessageQueue, ready_queue: ReadyQueue, out: Outcome) -> None:
    """Deliver available messages to the receivers with credit, in turn.

    A message whose MaxDeliveryCount was lowered to its count or below is dead-lettered instead (L-08).
    """
    now_ms = out.now_ms
    session = ready_queue.session
    if session is not None and not session.is_held(now_ms):
        return  # its lock is about to lapse, which answers a drain
    receivers = ready_queue.receivers
    turns = receivers.turns
    wall, bodies = queue.shared.wall, queue.shared.bodies
    instant_ms = now_ms + wall.due_ahead_ms
    default_ttl_ms = queue.default_ttl_ms if queue.default_ttl_ms < UNLIMITED_MS else None
    passed_over = exhausted = 0
    while turns:
        message = ready_queue.take(queue)
        if message is None:
            break
        expires_at_ms = message.expires_at_ms or message.enqueued_at_ms + queue.default_ttl_ms
        expired = expires_at_ms - message.lead_ms <= instant_ms and queue.expiry is not None
        if expired or message.delivery_count >= queue.max_delivery_count:
            if expired:  # left to the sweep: the body may have no place yet that a dead letter could share
                passed_over += 1
                queue.wake(now_ms)
            else:
                queue.dead_letter_exhausted(message, out)
                exhausted += 1
            if passed_over < PASS_OVER_MAX and exhausted < EXHAUSTED_MAX:
                continue
            _serve_later(queue, session, now_ms)
            return
        receiver = receivers.first()
        if receiver.deletes and not bodies.in_memory(message) and message.position != receiver.body_position:
            ready_queue.give_back(message.position)
            bodies.add_receiver(receiver, queue.queue_id, message, out)
            continue
        token, shown_ms = queue.new_token(), 0
        if receiver.deletes:
            out.delivered(queue, message, None, receiver)
            out.completed(queue, message, "receive-and-delete")
            queue.remove(message, out)
        else:
            until_ms = now_ms + queue.lock_duration_ms if session is None else 0
            lock = Lock(token, message, queue, until_ms, receiver.locks, session)
            if session is None:
                shown_ms = until_ms + wall.ahead_ms
                if until_ms < queue.timer_ms:
                    queue.wake(until_ms)
            message.lock = queue.locks[token] = receiver.locks[token] = lock
            out.delivered(queue, message, lock, receiver)
        queue.accessed_at_ms = now_ms
        receiver.deliveries += 1
        receiver.size_bytes += message.size_bytes + DELIVERY_BYTES
        ttl_ms = message.expires_at_ms - message.enqueued_at_ms if message.expires_at_ms else default_ttl_ms
        count, state, link = message.delivery_count, message.state, receiver.link
        out.effects.append(Deliver(message, token, shown_ms, count, ttl_ms, state, message.overlay, link))
        receivers.served(receiver)
    if receivers.draining:
        out.effects.extend(Drained(receiver.link) for receiver in receivers.drained())


def _serve_later(queue: MessageQueue, session: MessageSession | None, now_ms: int) -> None:
    """Continue a delivery after others have had a turn."""
    queue.wake(now_ms)
    if session is not None and queue.sessions is not None:
        queue.sessions.serve_later(session)


def hand_over(queue: MessageQueue, message: Message, holder: Holder | None, out: Outcome) -> MessageView:
    """Deliver a deferred message by request: locked for `holder`, or removed if that is None."""
    ttl_ms = queue.default_ttl_ms if queue.default_ttl_ms < UNLIMITED_MS else None
    if message.expires_at_ms:
        ttl_ms = message.expires_at_ms - message.enqueued_at_ms
    view = MessageView(message, None, 0, message.delivery_count, ttl_ms, message.state, message.overlay)
    if holder is None:
        out.handed_over(queue, message)
        out.completed(queue, message, "receive-and-delete")
        queue.remove(message, out)
        return view
    view.lock_token = token = queue.new_token()
    session = None if queue.sessions is None else queue.sessions.session_of(message)
    own_until_ms = 0 if session is not None else out.now_ms + queue.lock_duration_ms
    lock = Lock(token, message, queue, own_until_ms, holder, session)
    message.lock = queue.locks[token] = holder[token] = lock
    until_ms = lock.until_ms()
    out.handed_over(queue, message, until_ms=until_ms)
    if session is None:
        queue.wake(until_ms)
    view.locked_until_ms = queue.shared.wall.shown_ms(until_ms)
    return view
