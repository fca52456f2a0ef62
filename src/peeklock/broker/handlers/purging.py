"""Purges: deletion of all messages of a queue, in slices.

Theory of operation. A purge passes once over the active and once over the deferred messages, by position, up
to the next position at its start: later messages stay, and no message is examined twice, however many stay
because they are locked, too young, or expired. A slice examines a bounded number and is durable by itself.
Purges of one queue wait for each other, so that a repeated request gets no partial answer; queues take turns.
A purge continues without its requester.
Source: semantics A-06.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from peeklock.broker.entities.entities import Entities
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.message_table import MessageTable
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.shared import Shared
from peeklock.broker.queue.timers import FAR_MS, TimerKey
from peeklock.broker.vocabulary import commands as ask
from peeklock.broker.vocabulary.commands import ReplyTo
from peeklock.broker.vocabulary.effects import Failed, MessagesDeleted
from peeklock.broker.vocabulary.errors import EntityDeleted, ServerBusy
from peeklock.broker.vocabulary.events import EventType

SLICE = 1_000
"""Messages examined before others have a turn: about 2 ms of work."""

WAITING_MAX = 16
"""Purges of one queue, running and waiting. Our choice: one is enough, unless a request is repeated."""


class _Purge:
    """One purge, running or waiting."""

    __slots__ = ("count", "cursor", "end", "enqueued_before_ms", "left", "queue", "reply_to")

    def __init__(self, queue: MessageQueue, reply_to: ReplyTo, enqueued_before_ms: int) -> None:
        self.queue = queue
        self.reply_to = reply_to
        self.enqueued_before_ms = enqueued_before_ms
        self.left: list[MessageTable] = [queue.deferred, queue.active]  # the last one first
        self.cursor = 0  # next position
        self.end = queue.next_position
        self.count = 0

    def advance(self, count_max: int, out: Outcome) -> int:
        """Examine at most `count_max` messages and delete; return how many. `left` is empty at the end."""
        queue = self.queue
        work = 0
        while self.left and work < count_max:
            table = self.left[-1]
            found = list(islice(table.iterate(self.cursor), count_max - work))
            work += len(found)
            for message in found:
                if message.position >= self.end:
                    found = []
                    break
                self.cursor = message.position + 1
                if (
                    message.lock is None
                    and message.enqueued_at_ms <= self.enqueued_before_ms
                    and not (table is queue.active and queue.has_expired(message, out.now_ms))
                ):
                    out.happened(EventType.PURGED, queue, message)
                    queue.remove(message, out)
                    self.count += 1
            if work < count_max or not found:
                self.left.pop()
                self.cursor = 0
        queue.forget_returned()
        return work


class Purging:
    """The purges of a namespace."""

    timer_key = TimerKey.PURGING

    def __init__(self, entities: Entities, shared: Shared) -> None:
        self.timer_ms = FAR_MS
        self._entities = entities
        self._shared = shared
        self._by_queue: dict[int, deque[_Purge]] = {}  # in turn

    @property
    def is_busy(self) -> bool:
        """Whether there is a purge."""
        return bool(self._by_queue)

    def purge(self, command: ask.PurgeMessages, out: Outcome) -> None:
        queue = self._entities.readable(command.address)
        queue.accessed_at_ms = out.now_ms
        purges = self._by_queue.setdefault(queue.queue_id, deque())
        if len(purges) >= WAITING_MAX:
            raise ServerBusy(f"'{queue.name}' is being purged, and {len(purges) - 1} more purges wait")
        purges.append(_Purge(queue, command.reply_to, command.enqueued_before_ms))
        self._shared.timers.set(self, out.now_ms)

    def advance(self, count_max: int, out: Outcome) -> int:
        """Do a slice for the next queue."""
        queue_id = next(iter(self._by_queue))
        purges = self._by_queue.pop(queue_id)
        purge = purges[0]
        work = 1
        if self._entities.queues.get(queue_id) is not purge.queue:
            error = EntityDeleted(f"'{purge.queue.name}' was deleted during the purge")
            out.effects.extend(Failed(purge.reply_to, error) for purge in purges)
        else:
            work += purge.advance(min(count_max, SLICE), out)
            if not purge.left:
                out.effects.append(MessagesDeleted(purge.reply_to, purge.count))
                purges.popleft()
            if purges:
                self._by_queue[queue_id] = purges
        if self._by_queue:
            self._shared.timers.set(self, out.now_ms)
        return work
