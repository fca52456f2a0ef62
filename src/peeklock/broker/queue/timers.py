"""Timers: for the namespace which queue or part of it is due, for a queue which message.

Theory of operation. An instant per message would take a heap entry of 80 bytes or more, and leave a stale one
for every completed message. Instead a heap holds one lower bound per chunk of 256 neighbours; when it is due,
the chunk is searched and the bound made exact. A bound may be early (its message is gone), never late.
Messages without their own time-to-live expire in the order in which they were enqueued, so a cursor is enough
for them, and a change of the entity's default applies to them (E-04).
"""

from __future__ import annotations

from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from peeklock.broker.queue.message_table import CHUNK_BITS, MessageTable
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS
from peeklock.broker.vocabulary.message import NEVER_MS, Message

FAR_MS: Final = 1 << 62
"""Later than any instant: larger than every time span plus every time of day."""


class TimerKey(IntEnum):
    """Keys of the parts of a namespace that have a timer; of those due at one instant the lowest is first.

    A queue's key is its id, 4 or more; an idle entity's is the negative of its main queue's id.
    """

    PURGING = -3
    RECORDER = -2
    TRANSACTIONS = -1
    DELETIONS = 0
    GRACES = 1


class Timed(Protocol):
    """What has a timer."""

    timer_ms: int
    """When it is due; FAR_MS = not at all. Set by `Timers`."""

    @property
    def timer_key(self) -> int:
        """Order among those due at one instant; see `TimerKey`."""

    def advance(self, count_max: int, out: Outcome) -> int:
        """Do about `count_max` items of what is due; return the work done."""


class Timers:
    """Timers of a namespace, by instant.

    Each has at most one valid entry, with the instant in `timer_ms`. Due ones are called in rounds: one that
    is not done is called again in the next round, so that a long sweep does not block the others.
    """

    __slots__ = ("_heap", "_round", "_size_max", "next_ms")

    def __init__(self) -> None:
        self.next_ms: int | None = None
        """The earliest instant, None without timers. Read at each commit."""
        self._heap: list[tuple[int, int, Timed]] = []
        self._round: list[tuple[int, int, Timed]] = []  # the last one is next
        self._size_max = 64

    def set(self, timed: Timed, due_ms: int) -> None:
        """Set a timer to another instant."""
        before_ms, timed.timer_ms = timed.timer_ms, due_ms
        heappush(self._heap, (due_ms, timed.timer_key, timed))
        if len(self._heap) > self._size_max:
            self._heap = [entry for entry in self._heap if entry[2].timer_ms == entry[0]]
            heapify(self._heap)
            self._size_max = 2 * len(self._heap) + 64
        if self.next_ms is None or due_ms < self.next_ms:
            self.next_ms = due_ms
        elif before_ms == self.next_ms:
            self._find_next()

    def cancel(self, timed: Timed) -> None:
        """Clear a timer."""
        before_ms, timed.timer_ms = timed.timer_ms, FAR_MS
        if before_ms == self.next_ms:
            self._find_next()

    def _find_next(self) -> None:
        """Drop stale entries at both ends, and take the earlier valid one."""
        heap = self._heap
        while heap and heap[0][2].timer_ms != heap[0][0]:
            heappop(heap)
        left = self._round
        while left and left[-1][2].timer_ms != left[-1][0]:
            left.pop()
        if heap and left:
            self.next_ms = min(heap[0][0], left[-1][0])
        elif heap or left:
            self.next_ms = heap[0][0] if heap else left[-1][0]
        else:
            self.next_ms = None

    def take_due(self, now_ms: int) -> Timed | None:
        """Return one that is due, and clear its timer; None if none is."""
        if self.next_ms is None or self.next_ms > now_ms:
            return None
        self._find_next()  # drops stale entries at the end of the round
        if not self._round:
            heap = self._heap
            while heap and heap[0][0] <= now_ms:
                self._round.append(heappop(heap))
            self._round.reverse()
        timed = self._round.pop()[2]
        self.cancel(timed)
        return timed


class DueIndex:
    """A lower bound of the instants in each chunk of a table."""

    __slots__ = ("_bounds", "_heap", "_table")

    def __init__(self, table: MessageTable) -> None:
        self._table = table
        self._bounds: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []  # (bound, chunk id); valid if equal in `_bounds`

    def add(self, position: int, due_ms: int) -> None:
        """Add the instant of the message at a position."""
        chunk_id = position >> CHUNK_BITS
        bound = self._bounds.get(chunk_id)
        if bound is None or due_ms < bound:
            self._bounds[chunk_id] = due_ms
            heappush(self._heap, (due_ms, chunk_id))
            if len(self._heap) > 2 * self._table.chunk_count + 64:
                self._compact()

    def next_ms(self) -> int | None:
        """Return the lowest bound."""
        heap = self._heap
        while heap:
            bound, chunk_id = heap[0]
            if self._bounds.get(chunk_id) == bound:
                if self._table.has_chunk(chunk_id):
                    return bound
                del self._bounds[chunk_id]
            heappop(heap)
        return None

    def take_chunk(self, now_ms: int) -> int | None:
        """Return a chunk whose bound is due, and forget the bound: the caller adds what is left of it."""
        bound = self.next_ms()
        if bound is None or bound > now_ms:
            return None
        chunk_id = heappop(self._heap)[1]
        del self._bounds[chunk_id]
        return chunk_id

    def look_everywhere(self) -> None:
        """Make every chunk due: any instant may have changed."""
        for chunk_id in self._table.chunk_ids:
            self.add(chunk_id << CHUNK_BITS, 0)

    def covers(self, position: int, due_ms: int) -> bool:
        """Return whether an instant will be found in time (for checks)."""
        bound = self._bounds.get(position >> CHUNK_BITS)
        return bound is not None and bound <= due_ms and (bound, position >> CHUNK_BITS) in self._heap

    def _compact(self) -> None:
        self._bounds = {
            chunk_id: bound for chunk_id, bound in self._bounds.items() if self._table.has_chunk(chunk_id)
        }
        self._heap = [(bound, chunk_id) for chunk_id, bound in self._bounds.items()]
        heapify(self._heap)


class Expiry:
    """When unlocked active messages of a queue expire."""

    __slots__ = ("_cursor", "_default_due_ms", "_index", "_table", "default_ttl_ms", "has_leads")

    def __init__(self, table: MessageTable, default_ttl_ms: int) -> None:
        self._table = table
        self._index = DueIndex(table)
        self.default_ttl_ms = default_ttl_ms
        # Unlocked messages without their own time-to-live are at or after the cursor, and none of them
        # expires before `_default_due_ms`.
        self._cursor = 0
        self._default_due_ms = FAR_MS
        self.has_leads = False  # messages with a `lead_ms` are in the index

    def note(self, message: Message) -> int:
        """Add an unlocked message; return when to look again, FAR_MS for never."""
        if message.expires_at_ms != NEVER_MS:
            due_ms = message.expires_at_ms - message.lead_ms
            self._index.add(message.position, due_ms)
            return due_ms
        if self.default_ttl_ms >= UNLIMITED_MS:
            return FAR_MS
        due_ms = message.enqueued_at_ms + self.default_ttl_ms
        if message.lead_ms:  # out of the cursor's order
            due_ms -= message.lead_ms
            self._index.add(message.position, due_ms)
            return due_ms
        if message.position < self._cursor:
            self._cursor = message.position
        if due_ms < self._default_due_ms:
            self._default_due_ms = due_ms
        return due_ms

    def change_default(self, default_ttl_ms: int) -> None:
        """Apply another default to stored messages (E-04)."""
        self.default_ttl_ms = default_ttl_ms
        self._cursor = 0
        self._default_due_ms = FAR_MS
        oldest = self._table.first_from(0)
        if oldest is not None and default_ttl_ms < UNLIMITED_MS:
            self._default_due_ms = oldest.enqueued_at_ms + default_ttl_ms
            if self.has_leads:
                self._index.look_everywhere()

    def next_ms(self) -> int:
        """Return when to look again; FAR_MS if nothing expires."""
        own_ms = self._index.next_ms()
        return self._default_due_ms if own_ms is None else min(own_ms, self._default_due_ms)

    def take_due(self, now_ms: int, count_max: int) -> tuple[list[Message], int]:
        """Return about `count_max` expired messages, which the caller removes at once, and the work done.

        There is more while `next_ms` is past.
        """
        found: list[Message] = []
        work = 0
        while work < count_max:
            chunk_id = self._index.take_chunk(now_ms)
            if chunk_id is None:
                break
            bound = FAR_MS
            work += 16 - len(found)
            for message in self._table.chunk(chunk_id):
                due_ms = message.expires_at_ms
                if message.lead_ms:
                    due_ms = (due_ms or message.enqueued_at_ms + self.default_ttl_ms) - message.lead_ms
                if due_ms != NEVER_MS and message.lock is None:
                    if due_ms <= now_ms:
                        found.append(message)
                    elif due_ms < bound:
                        bound = due_ms
            if bound != FAR_MS:
                self._index.add(chunk_id << CHUNK_BITS, bound)
            work += len(found)
        if self._default_due_ms <= now_ms and work < count_max:
            work += self._walk(now_ms, count_max, found)
        return found, work

    def _walk(self, now_ms: int, count_max: int, found: list[Message]) -> int:
        """Move the cursor over messages that have expired by the default, or do not expire by it."""
        steps = 0
        cursor = self._cursor
        for message in self._table.iterate(cursor):
            if message.expires_at_ms == NEVER_MS and message.lock is None and not message.lead_ms:
                due_ms = message.enqueued_at_ms + self.default_ttl_ms
                if due_ms > now_ms:
                    self._cursor = message.position
                    self._default_due_ms = due_ms
                    return steps
                found.append(message)
            cursor = message.position + 1
            steps += 1
            if steps >= count_max:
                self._cursor = cursor
                return steps
        self._cursor = cursor
        self._default_due_ms = FAR_MS
        return steps

    def check(self) -> None:
        """Assert that every unlocked message that can expire has a bound that is not late."""
        for message in self._table:
            if message.lock is not None:
                continue
            if message.expires_at_ms != NEVER_MS:
                assert self._index.covers(message.position, message.expires_at_ms - message.lead_ms)
            elif message.lead_ms:
                due_ms = message.enqueued_at_ms + self.default_ttl_ms - message.lead_ms
                assert self.default_ttl_ms >= UNLIMITED_MS or self._index.covers(message.position, due_ms)
            elif self.default_ttl_ms < UNLIMITED_MS:
                assert message.position >= self._cursor
                assert self._default_due_ms <= message.enqueued_at_ms + self.default_ttl_ms


class Activation:
    """Which scheduled messages of a queue are due, by time."""

    __slots__ = ("_due", "_index", "_table")

    def __init__(self, table: MessageTable) -> None:
        self._table = table
        self._index = DueIndex(table)
        self._due: list[tuple[int, int]] = []  # (scheduled_at_ms, position) of messages found due

    def note(self, message: Message) -> int:
        """Add a scheduled message, or its new time; return that."""
        assert message.scheduled_at_ms is not None
        self._index.add(message.position, message.scheduled_at_ms)
        return message.scheduled_at_ms

    def next_ms(self) -> int:
        if self._due:
            return self._due[0][0]
        due_ms = self._index.next_ms()
        return FAR_MS if due_ms is None else due_ms

    def take_due(self, now_ms: int, count_max: int) -> tuple[list[Message], int]:
        """Return at most `count_max` due messages by (time, position), to be removed, and the work done."""
        work = 0
        while work < count_max:
            chunk_id = self._index.take_chunk(now_ms)
            if chunk_id is None:
                break
            bound = FAR_MS
            for message in self._table.chunk(chunk_id):
                scheduled_at_ms = message.scheduled_at_ms
                assert scheduled_at_ms is not None
                if scheduled_at_ms <= now_ms:
                    heappush(self._due, (scheduled_at_ms, message.position))
                elif scheduled_at_ms < bound:
                    bound = scheduled_at_ms
            if bound != FAR_MS:
                self._index.add(chunk_id << CHUNK_BITS, bound)
            work += 16
        found: list[Message] = []
        next_ms = self._index.next_ms()
        # A chunk that is due and not searched yet may hold an earlier message.
        while self._due and len(found) < count_max and (next_ms is None or self._due[0][0] < next_ms):
            scheduled_at_ms, position = heappop(self._due)
            message_due = self._table.get(position)
            # It may have been cancelled or shifted, or its chunk searched twice.
            if message_due is None or message_due.scheduled_at_ms != scheduled_at_ms:
                continue
            if not (found and found[-1] is message_due):
                found.append(message_due)
        return found, work + len(found)

    def check(self) -> None:
        """Assert that every scheduled message is found due or has a bound that is not late."""
        due = set(self._due)
        for message in self._table:
            at_ms = message.scheduled_at_ms
            assert at_ms is not None
            assert (at_ms, message.position) in due or self._index.covers(message.position, at_ms)
