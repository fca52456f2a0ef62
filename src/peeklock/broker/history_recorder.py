"""Taking down what the history wants to know, beside the events of the log or without them.

Owns: which event means what to the history. Must not know: what becomes of entries.

The `Outcome` of a call tells the recorder what happened, so that there is no other place where messages would
have to be looked at. While capture is off no event is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from peeklock.broker.events import Event, EventType
from peeklock.broker.history import Delivery, Ending, History, Outcome, view_of
from peeklock.broker.recorder import Recorder

if TYPE_CHECKING:
    from peeklock.amqp.messaging import Sections
    from peeklock.broker.message import Message, MessageView
    from peeklock.broker.message_queue import MessageQueue
    from peeklock.broker.peek_lock import Lock
    from peeklock.broker.receivers import ReceiverLink
    from peeklock.broker.timers import Timers
    from peeklock.broker.wall_clock import WallClock

_ENDINGS: Final = {
    EventType.ABANDONED: Ending.ABANDONED,
    EventType.RELEASED: Ending.RELEASED,
    EventType.LOCK_LAPSED: Ending.LOCK_LAPSED,
    EventType.DEFERRED: Ending.DEFERRED,
    EventType.CLAIM_RELEASED: Ending.RELEASED,
}

_OUTCOMES: Final = {
    EventType.DEAD_LETTERED: Outcome.DEAD_LETTERED,
    EventType.EXPIRED: Outcome.EXPIRED,
    EventType.PURGED: Outcome.PURGED,
    EventType.CANCELLED: Outcome.CANCELLED,
}

_COMPLETED: Final = EventType.COMPLETED
_COMPLETED_BY: Final = {
    "receive-and-delete": Outcome.RECEIVED_AND_DELETED,
    "cursor": Outcome.COMMITTED,
}


class HistoryRecorder(Recorder):
    """A recorder that tells a history too."""

    def __init__(
        self,
        timers: Timers,
        wall: WallClock,
        captures_body: Callable[[str], bool] | None,
        history: History,
    ) -> None:
        """Begin with nothing.

        Args:
            captures_body: as for `Recorder`; None = no events are kept.
        """
        super().__init__(timers, wall, captures_body or (lambda name: False))
        self.captures = captures_body is not None
        self._history = history
        self._went: tuple[MessageQueue, MessageView] | None = None  # what was forwarded last

    def arrived(
        self,
        queue: MessageQueue,
        message: Message,
        sections: Sections | None,
        kind: EventType = EventType.ENQUEUED,
        *,
        reason: str | None = None,
    ) -> None:
        self._history.arrived(queue, message, sections)
        if self.captures:
            super().arrived(queue, message, sections, kind, reason=reason)

    def message(
        self,
        kind: EventType,
        queue: MessageQueue,
        message: Message,
        reason: str | None = None,
        related: str | None = None,
        related_number: int = 0,
        token: bytes | None = None,
        until_ms: int = 0,
    ) -> None:
        if kind is _COMPLETED:
            outcome = Outcome.COMPLETED if reason is None else _COMPLETED_BY[reason]
            self._history.completed(queue, message, outcome, self._at_ms, self._asker[0])
        else:
            self._tell(kind, queue, message, reason, related)
        if self.captures:
            super().message(kind, queue, message, reason, related, related_number, token, until_ms)

    def _tell(
        self,
        kind: EventType,
        queue: MessageQueue,
        message: Message,
        reason: str | None,
        related: str | None,
    ) -> None:
        history, at_ms = self._history, self._at_ms
        if kind is EventType.DELIVERED or kind is EventType.CLAIMED:
            history.delivered(queue, message, Delivery(at_ms, self._asker[0], None, None))
        elif kind in _ENDINGS:
            history.given_back(queue, message, _ENDINGS[kind], at_ms)
        elif kind is EventType.ACTIVATED:
            history.went_on(queue, message)
        elif kind is EventType.FORWARDED:
            history.went_on(queue, message)
            self._went = queue, view_of(message)
        elif (outcome := _OUTCOMES.get(kind)) is not None:
            history.went_on(queue, message)
            view = view_of(message)
            history.add(queue, view, outcome, at_ms, self._asker[0], reason=reason, moved_to=related)

    def delivered(
        self,
        queue: MessageQueue,
        message: Message,
        lock: Lock | None,
        receiver: ReceiverLink,
    ) -> None:
        link = receiver.link
        self._history.delivered(
            queue, message, Delivery(self._at_ms, link.connection_id, link, receiver.name)
        )
        if self.captures:
            super().delivered(queue, message, lock, receiver)

    def forwarded(self, queue: MessageQueue, message: Message, to: str | None = None) -> Event:
        if self.captures:
            return super().forwarded(queue, message, to)
        self.message(EventType.FORWARDED, queue, message, None, to)
        return self._other(EventType.FORWARDED, queue.queue_id, queue.name)

    def fanned_out(self, forwarded: Event, copies: int) -> None:
        super().fanned_out(forwarded, copies)
        if not copies:
            assert self._went is not None
            queue, view = self._went
            self._history.add(queue, view, Outcome.UNMATCHED, self._at_ms, self._asker[0])

    def _add(self, event: tuple[object, ...]) -> None:
        if self.captures:
            super()._add(event)
