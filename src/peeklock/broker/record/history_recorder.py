"""The recorder that fills the history, with the events of the log or without them.

Nearly every message arrives, is delivered and is completed: each of the three is one method without further
calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from peeklock.broker.queue.recorder import Recorder
from peeklock.broker.record.history import (
    BODY_BYTES_MAX,
    DELIVERIES_MAX,
    Ending,
    History,
    Life,
    Outcome,
    Place,
    shortened,
    view_of,
)
from peeklock.broker.vocabulary.events import BY_REQUEST, Event, EventType

if TYPE_CHECKING:
    from peeklock.amqp.messaging import Sections
    from peeklock.broker.queue.links import Consumer
    from peeklock.broker.queue.message_queue import MessageQueue
    from peeklock.broker.queue.peek_lock import Lock
    from peeklock.broker.queue.timers import Timers
    from peeklock.broker.queue.wall_clock import WallClock
    from peeklock.broker.vocabulary.commands import LinkId, LockToken
    from peeklock.broker.vocabulary.message import Message, MessageView

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

_HANDED_OVER: Final = {EventType.DELIVERED, EventType.CLAIMED}

_COMPLETED: Final = EventType.COMPLETED
_COMPLETED_BY: Final = {
    None: Outcome.COMPLETED,
    "receive-and-delete": Outcome.RECEIVED_AND_DELETED,
    "cursor": Outcome.COMMITTED,
}


class HistoryRecorder(Recorder):
    """A recorder that also fills a history."""

    def __init__(
        self, timers: Timers, wall: WallClock, captures_body: Callable[[str], bool] | None, history: History
    ) -> None:
        """Begin without events. `captures_body`: as for `Recorder`; None = no events are kept."""
        super().__init__(timers, wall, captures_body or (lambda name: False))
        self.captures = captures_body is not None
        self._history = history
        self._lives = history.lives
        self._late = history.late
        self._going: Life | None = None  # of the last message that left its place, and may arrive elsewhere
        self._went: tuple[MessageQueue, MessageView] | None = None  # the last forwarded message

    def arrived(
        self,
        queue: MessageQueue,
        message: Message,
        sections: Sections | None,
        kind: EventType = EventType.ENQUEUED,
        reason: str | None = None,
    ) -> None:
        lives, place = self._lives, (queue.queue_id, message.sequence_number)
        if sections is None:  # the message that just left its place
            lives[place] = (None, False) if self._going is None else self._going[:2]
        elif sections.body_end - sections.body_offset <= BODY_BYTES_MAX:
            lives[place] = sections.payload, False
        else:
            lives[place] = shortened(sections), True
        if len(lives) > self._history.size:
            lives.popitem(last=False)
        if self.captures:
            super().arrived(queue, message, sections, kind, reason)

    def delivered(self, queue: MessageQueue, message: Message, lock: Lock | None, receiver: Consumer) -> None:
        place = queue.queue_id, message.sequence_number
        life, link = self._lives.get(place), receiver.link
        if life is not None and len(life) == 2:
            first = 1, self._at_ms, link.connection_id, link, receiver.name, None, 0
            self._lives[place] = life[0], life[1], first
        else:
            self._handed_over(place, link.connection_id, link, receiver.name)
        if self.captures:
            super().delivered(queue, message, lock, receiver)

    def completed(self, queue: MessageQueue, message: Message, reason: str | None) -> None:
        queue_id = queue.queue_id
        place = queue_id, message.sequence_number
        self._going = life = self._lives.pop(place, None) or self._late.pop(place, None)
        history = self._history
        history.last_no += 1
        how, by = _COMPLETED_BY[reason], self._origin[0]
        history.left.append((queue.main.name, queue_id, message, life, how, None, None, self._at_ms, by))
        if self.captures:
            super().message(_COMPLETED, queue, message, reason)

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
        place = queue.queue_id, message.sequence_number
        if kind in _ENDINGS:
            if reason != BY_REQUEST:  # else it ended no delivery
                self._given_back(place, _ENDINGS[kind])
        elif kind in _OUTCOMES:
            self._leaves(place)
            self._left(queue, view_of(message), _OUTCOMES[kind], reason, related)
        elif kind in _HANDED_OVER:
            self._handed_over(place, self._origin[0], None, None)
        elif kind is EventType.ACTIVATED:
            self._leaves(place)
        if self.captures:
            super().message(kind, queue, message, reason, related, related_number, token, until_ms)

    def forwarded(self, queue: MessageQueue, message: Message, to: str | None = None) -> Event:
        self._leaves((queue.queue_id, message.sequence_number))
        self._went = queue, view_of(message)
        if self.captures:
            return super().forwarded(queue, message, to)
        return self._other(EventType.FORWARDED, queue.queue_id, queue.name)

    def fanned_out(self, forwarded: Event, copies: int) -> None:
        super().fanned_out(forwarded, copies)
        if not copies:
            assert self._went is not None
            self._left(*self._went, Outcome.UNMATCHED)

    def _add(self, event: tuple[object, ...]) -> None:
        if self.captures:
            super()._add(event)

    # Rare events

    def _handed_over(
        self, place: Place, connection_id: int, link: LinkId | None, link_name: str | None
    ) -> None:
        """Add a delivery. A message that is not followed, as after a start, is followed from here on."""
        followed = self._lives if place in self._lives else self._late
        payload, body_cut, *handed = followed.get(place) or (None, False)
        no = handed[-1][0] + 1 if handed else 1
        handed.append((no, self._at_ms, connection_id, link, link_name, None, 0))
        followed[place] = payload, body_cut, *handed[-DELIVERIES_MAX:]
        if len(followed) > self._history.size:
            followed.popitem(last=False)

    def _given_back(self, place: Place, how: Ending) -> None:
        """End the last delivery of a message that stays."""
        followed = self._lives if place in self._lives else self._late
        payload, body_cut, *handed = followed.get(place) or (None, False)
        if handed:
            no, at_ms, connection_id, link, link_name, _, _ = handed[-1]
            handed[-1] = no, at_ms, connection_id, link, link_name, how, self._at_ms
            followed[place] = payload, body_cut, *handed

    def _leaves(self, place: Place) -> None:
        """Remember the life of a message that leaves its place, for good or for another one."""
        self._going = self._lives.pop(place, None) or self._late.pop(place, None)

    def _left(
        self,
        queue: MessageQueue,
        view: MessageView,
        outcome: Outcome,
        reason: str | None = None,
        moved_to: str | None = None,
    ) -> None:
        """Add an entry for the last message that left its place; it arrives at `moved_to` next, if given."""
        history, name = self._history, queue.main.name
        history.last_no += 1
        where, when, by = (name, queue.queue_id), self._at_ms, self._origin[0]
        history.left.append((*where, view, self._going, outcome, reason, moved_to, when, by))
