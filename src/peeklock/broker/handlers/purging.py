"""Purges: deleting all messages of a queue, a slice at a time.

Owns: which purges are under way and how far each has come. Must not know: how a queue keeps or removes its
messages.

Theory of operation. A purge goes once through the active and once through the deferred messages, by position,
up to the position that was next when it was asked for: what is stored later stays, and no message is looked
at twice, however many stay because they are locked, too young, or expired and left to the sweep. A slice is a
bounded number of messages looked at, and durable by itself. The purges of one queue wait for each other, so
that whoever asks again is not told a half; different queues take turns. A purge goes on when its asker is
gone.
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
"""Messages looked at before others have a turn: about 2 ms of work."""

WAITING_MAX = 16
"""Purges of one queue under way and waiting. Our choice: one is enough, unless somebody asks again and
again."""


class _Purge:
    """One purge, waiting or under way."""

    __slots__ = ("count", "cursor", "end", "enqueued_before_ms", "left", "queue", "reply_to")

    def __init__(self, queue: MessageQueue, reply_to: ReplyTo, enqueued_before_ms: int) -> None:
        self.queue = queue
        self.reply_to = reply_to
        self.enqueued_before_ms = enqueued_before_ms
        self.left: list[MessageTable] = [queue.deferred, queue.active]  # to go through, the last one first
        self.cursor = 0  # position to go on from
        self.end = queue.next_position
        self.count = 0

    def advance(self, count_max: int, out: Outcome) -> int:
        """Delete on, looking at so many messages at most; answer at how many. `left` is empty at the end."""
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
        self._by_queue: dict[int, deque[_Purge]] = {}  # in the order of their turns

    @property
    def is_busy(self) -> bool:
        """Whether a purge is waiting or under way."""
        return bool(self._by_queue)

    def purge(self, command: ask.PurgeMessages, out: Outcome) -> None:
        queue = self._entities.readable(command.address)
        queue.accessed_at_ms = out.now_ms
        purges = self._by_queue.setdefault(queue.queue_id, deque())
        if len(purges) >= WAITING_MAX:
            raise ServerBusy(
                f"'{queue.name}' is being purged, and {len(purges) - 1} more purges wait for that"
            )
        purges.append(_Purge(queue, command.reply_to, command.enqueued_before_ms))
        self._shared.timers.set(self, out.now_ms)

    def advance(self, count_max: int, out: Outcome) -> int:
        """Do a slice for the queue whose turn it is."""
        queue_id = next(iter(self._by_queue))
        purges = self._by_queue.pop(queue_id)
        purge = purges[0]
        work = 1
        if self._entities.queues.get(queue_id) is not purge.queue:
            error = EntityDeleted(f"'{purge.queue.name}' was deleted while it was purged")
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
