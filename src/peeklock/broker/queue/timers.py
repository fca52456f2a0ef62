"""When something is due: for the namespace a queue or another part of it, for a queue a message.

Owns: `Timers` (the next instant of each of them), `DueIndex` (the earliest instant in each chunk of a table),
`Expiry` and `Activation` on top of it. Must not know: what happens to what is due.

Theory of operation: an instant per message would cost a heap entry of 80 bytes or more and leave one behind
for every completed message. Instead a heap holds one lower bound per chunk of 256 neighbours, which is made
exact by looking through the chunk when it falls due. A bound may be early (its message is gone), never late.
Messages without a time-to-live of their own expire in the order they were enqueued, so a cursor is enough for
them, and a later change of the entity's default reaches them (E-04).
"""

from __future__ import annotations

from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Protocol

from peeklock.broker.queue.message_table import CHUNK_BITS, MessageTable
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS
from peeklock.broker.vocabulary.message import NEVER_MS, Message

FAR_MS = 1 << 62
"""Later than any instant: larger than every time span plus every time of day."""


class TimerKey(IntEnum):
    """The parts of a namespace that have a timer. Of those due at one instant the lowest key is called first.

    A queue's key is its id, 4 or more; an idle entity's is the negative of its main queue's id.
    """

    PURGING = -3
    RECORDER = -2
    TRANSACTIONS = -1
    DELETIONS = 0
    GRACES = 1


class Timed(Protocol):
    """Whoever wants to be called at an instant."""

    timer_ms: int
    """When; FAR_MS when not at all. Set by `Timers`."""

    @property
    def timer_key(self) -> int:
        """Tells apart who is due at one instant; see `TimerKey`."""

    def advance(self, count_max: int, out: Outcome) -> int:
        """Do what is due, about `count_max` items; answer the work done."""


class Timers:
    """Who wants to be called, by the instant they want it.

    Each has at most one entry that counts, the one equal to its `timer_ms`; others are passed over. Who is
    due is called in rounds: whoever is not done after a call comes again in the next round, so that a long
    sweep, which is due since it began, does not hold up the others.
    """

    __slots__ = ("_heap", "_round", "_size_max", "next_ms")

    def __init__(self) -> None:
        self.next_ms: int | None = None
        """The earliest instant that somebody wants, None when nobody does. Read at each commit."""
        self._heap: list[tuple[int, int, Timed]] = []
        self._round: list[tuple[int, int, Timed]] = []  # the last one is next
        self._size_max = 64

    def set(self, timed: Timed, due_ms: int) -> None:
        """Have somebody called at an instant, instead of at the one set before."""
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
        """Have somebody not called."""
        before_ms, timed.timer_ms = timed.timer_ms, FAR_MS
        if before_ms == self.next_ms:
            self._find_next()

    def _find_next(self) -> None:
        """Drop what does not count from both ends, and take the earlier of what they end in then."""
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
        """Return somebody who is due, and forget the timer; None when nobody is."""
        if self.next_ms is None or self.next_ms > now_ms:
            return None
        self._find_next()  # the last of the round counts from here on
        if not self._round:
            heap = self._heap
            while heap and heap[0][0] <= now_ms:
                self._round.append(heappop(heap))
            self._round.reverse()
        timed = self._round.pop()[2]
        self.cancel(timed)
        return timed


class DueIndex:
    """For each chunk of a table a lower bound of the instants in it."""

    __slots__ = ("_bounds", "_heap", "_table")

    def __init__(self, table: MessageTable) -> None:
        self._table = table
        self._bounds: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []  # (bound, chunk id); counts when `_bounds` says the same

    def add(self, position: int, due_ms: int) -> None:
        """Take notice of an instant of the message at a position."""
        chunk_id = position >> CHUNK_BITS
        bound = self._bounds.get(chunk_id)
        if bound is None or due_ms < bound:
            self._bounds[chunk_id] = due_ms
            heappush(self._heap, (due_ms, chunk_id))
            if len(self._heap) > 2 * self._table.chunk_count + 64:
                self._compact()

    def next_ms(self) -> int | None:
        """Give the lowest bound."""
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
        """Give a chunk whose bound is reached, and forget the bound: the caller looks through it and adds
        again."""
        bound = self.next_ms()
        if bound is None or bound > now_ms:
            return None
        chunk_id = heappop(self._heap)[1]
        del self._bounds[chunk_id]
        return chunk_id

    def look_everywhere(self) -> None:
        """Have every chunk looked through: any instant in it may have changed."""
        for chunk_id in self._table.chunk_ids:
            self.add(chunk_id << CHUNK_BITS, 0)

    def covers(self, position: int, due_ms: int) -> bool:
        """Whether an instant will be found in time (for checks)."""
        bound = self._bounds.get(position >> CHUNK_BITS)
        return bound is not None and bound <= due_ms and (bound, position >> CHUNK_BITS) in self._heap

    def _compact(self) -> None:
        self._bounds = {
            chunk_id: bound for chunk_id, bound in self._bounds.items() if self._table.has_chunk(chunk_id)
        }
        self._heap = [(bound, chunk_id) for chunk_id, bound in self._bounds.items()]
        heapify(self._heap)


class Expiry:
    """Which unlocked active messages of a queue expire, and when."""

    __slots__ = ("_cursor", "_default_due_ms", "_index", "_table", "default_ttl_ms", "has_leads")

    def __init__(self, table: MessageTable, default_ttl_ms: int) -> None:
        self._table = table
        self._index = DueIndex(table)
        self.default_ttl_ms = default_ttl_ms
        # Every unlocked message without a time-to-live of its own stands at or after the cursor, and none of
        # them expires before `_default_due_ms`.
        self._cursor = 0
        self._default_due_ms = FAR_MS
        self.has_leads = False  # there was a message with a `lead_ms`: such stand in the index

    def note(self, message: Message) -> int:
        """Take notice of an unlocked message; answer an instant at which to look, FAR_MS when there is
        none."""
        if message.expires_at_ms != NEVER_MS:
            due_ms = message.expires_at_ms - message.lead_ms
            self._index.add(message.position, due_ms)
            return due_ms
        if self.default_ttl_ms >= UNLIMITED_MS:
            return FAR_MS
        due_ms = message.enqueued_at_ms + self.default_ttl_ms
        if message.lead_ms:  # not in the order of those that the cursor goes over
            due_ms -= message.lead_ms
            self._index.add(message.position, due_ms)
            return due_ms
        if message.position < self._cursor:
            self._cursor = message.position
        if due_ms < self._default_due_ms:
            self._default_due_ms = due_ms
        return due_ms

    def change_default(self, default_ttl_ms: int) -> None:
        """Apply another default to what is stored (E-04)."""
        self.default_ttl_ms = default_ttl_ms
        self._cursor = 0
        self._default_due_ms = FAR_MS
        oldest = self._table.first_from(0)
        if oldest is not None and default_ttl_ms < UNLIMITED_MS:
            self._default_due_ms = oldest.enqueued_at_ms + default_ttl_ms
            if self.has_leads:
                self._index.look_everywhere()

    def next_ms(self) -> int:
        """When to look again; FAR_MS when nothing expires."""
        own_ms = self._index.next_ms()
        return self._default_due_ms if own_ms is None else min(own_ms, self._default_due_ms)

    def take_due(self, now_ms: int, count_max: int) -> tuple[list[Message], int]:
        """Give expired messages, about as many as asked for; the caller removes them at once. Answer the work
        done too.

        When the instant of `next_ms` is still past afterwards, there is more.
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
        """Move the cursor over messages that have expired by the default, or are not its concern."""
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
        """Every unlocked message that can expire is covered by an instant that is not late."""
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
    """Which scheduled messages of a queue are due, in the order of their times."""

    __slots__ = ("_due", "_index", "_table")

    def __init__(self, table: MessageTable) -> None:
        self._table = table
        self._index = DueIndex(table)
        self._due: list[tuple[int, int]] = []  # (scheduled_at_ms, position) of messages already found due

    def note(self, message: Message) -> int:
        """Take notice of a scheduled message, or of another time of it; answer its time."""
        assert message.scheduled_at_ms is not None
        self._index.add(message.position, message.scheduled_at_ms)
        return message.scheduled_at_ms

    def next_ms(self) -> int:
        if self._due:
            return self._due[0][0]
        due_ms = self._index.next_ms()
        return FAR_MS if due_ms is None else due_ms

    def take_due(self, now_ms: int, count_max: int) -> tuple[list[Message], int]:
        """Give due messages by (time, position), at most `count_max`; the caller removes them. Answer the
        work done too."""
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
        # A chunk that is due and not looked through may hold an earlier message: wait for it.
        while self._due and len(found) < count_max and (next_ms is None or self._due[0][0] < next_ms):
            scheduled_at_ms, position = heappop(self._due)
            message_due = self._table.get(position)
            # It may have been cancelled or shifted meanwhile, or found due twice, when its chunk was looked
            # through twice.
            if message_due is None or message_due.scheduled_at_ms != scheduled_at_ms:
                continue
            if not (found and found[-1] is message_due):
                found.append(message_due)
        return found, work + len(found)

    def check(self) -> None:
        """Every scheduled message is either found due or covered by a bound that is not late."""
        due = set(self._due)
        for message in self._table:
            at_ms = message.scheduled_at_ms
            assert at_ms is not None
            assert (at_ms, message.position) in due or self._index.covers(message.position, at_ms)
