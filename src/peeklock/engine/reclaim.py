"""The ledger of space: what lives in each body row, and what to drop, copy forward or read.

A row dies when its last owner is released. It may be dropped from the batch after the one in which it died: a
delivery released with that batch may still read it. A row under half alive is copied forward, but only after
a second: a queue that is drained in order takes every row through that state within moments. A row of one
message is its owner's own entry, without an object around it: a slow backlog has a row for each message.

`journal` has the ledger of the frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, repeat
from typing import TypeAlias

from peeklock.broker.vocabulary.message import Message
from peeklock.engine.journal import JournalLedger
from peeklock.store.base import FrameKeys, Store

SETTLE_MS = 1000
"""How long a row must stay under half alive before it is copied. Our choice, see above."""

COPY_READ_BYTES = 1024 * 1024
"""Rows read per slice to be copied: at most half of it lives, written with one commit."""

COPY_RECORDS_MAX = 2000
"""Messages per slice whose bodies are copied, about 3 ms of work; those that share one body go together. A
row of widely shared bodies may take several slices, and is read for each."""

DROP_BYTES_MAX = 2 * 1024 * 1024
DROP_ROWS_MAX = 500
"""Work of one commit. Our choice: a drained row of 256 KiB frees 64 pages, 2 MiB are freed in some 2 ms."""

DROP_ALONE_BYTES = 1024 * 1024
"""Fewer dead bytes wait for a commit that has facts: a separate one would delay the next client."""

DROP_TOGETHER_ROWS = 8
DROP_TOGETHER_BYTES = 32 * 1024
"""Fewer dead rows wait for others while more than these live: a row of one message takes some 20 us to drop
alone, 5 beside seven neighbours. Where little lives all rows share a page, which each commit writes anyway.
Half of what a small batch may drop (see `store.pace`): waiting rows and those of one small batch do not make
the next one large."""

RELEASE_MAX = 2000
"""Messages of deleted entities released per batch, about 1 ms."""

SHARERS_LISTED_MAX = 32
"""Up to so many messages that share a body are in a list, 9 bytes each; more are in a dict, 30 to 60 bytes
each, since a removal searches the list: 7 ns for each message before it."""

LIST_ROWS_MAX = 1000
"""Body rows listed per slice after a start."""


@dataclass(slots=True)
class ReclaimFound:
    """Result of a `ReclaimRead`."""

    rows: dict[int, Sequence[bytes]] = field(default_factory=dict)
    head: list[FrameKeys] = field(default_factory=list)
    listed: list[tuple[int, int]] | None = None


@dataclass(slots=True)
class ReclaimRead:
    """A bounded read from the store, to win space with."""

    rows: list[int]
    """Body rows to copy forward."""
    head_bytes: int
    """Bytes to read of the journal's head; 0 = none."""
    list_after: int | None
    """List the body rows above this one, to find those of earlier processes; None = do not list."""

    async def read_from(self, store: Store) -> ReclaimFound:
        """Return what was read. Raises: StoreDamaged, StoreFailed."""
        found = ReclaimFound()
        if self.rows:
            found.rows = await store.read_body_rows(self.rows)
        if self.head_bytes:
            found.head = await store.read_head(self.head_bytes)
        if self.list_after is not None:
            found.listed = await store.list_body_rows(self.list_after, LIST_ROWS_MAX)
        return found


_UNKNOWN = -(1 << 62)
"""Size of a row that is open or was found at a start: so small that it is never sparse."""

BODY_ROW_OVERHEAD_BYTES = 64
"""Subtracted from the listed size of a row: its head and the lengths of few small payloads."""

_Owner: TypeAlias = Message | list[Message] | dict[Message, None] | None
"""Owner of a slot: none, one message, or all that share it; see `SHARERS_LISTED_MAX`."""


class BodyRow:
    """A body row with several slots."""

    __slots__ = ("live", "live_bytes", "owners", "total_bytes")

    def __init__(self) -> None:
        self.owners: list[_Owner] = []
        self.live = 0
        self.live_bytes = 0  # of slots with an owner
        self.total_bytes = _UNKNOWN


def _sharers(owner: _Owner) -> list[Message]:
    if owner is None:
        return []
    return [owner] if isinstance(owner, Message) else list(owner)


def _row_of(alone: Message) -> BodyRow:
    row = BodyRow()
    row.owners = [*repeat(None, alone.body_slot), alone]
    row.live = 1
    row.live_bytes = alone.size_bytes
    return row


class SpaceLedger:
    """Counts what lives. The engine reports messages as their records are made."""

    def __init__(self) -> None:
        self.journal = JournalLedger()
        self._rows: dict[int, Message | BodyRow | None] = {}
        self._emptied: dict[int, int] = {}  # row -> bytes, lost its last owner in the open batch
        self._droppable: dict[int, int] = {}  # row -> bytes, died before
        self._droppable_bytes = 0
        self._sparse: dict[int, int] = {}  # row -> since when, oldest first
        self.deleting: deque[Iterator[Message]] = deque()  # messages of deleted entities, to be released
        self.now_ms = 0
        self._list_after: int | None = None
        self._list_before = 0

    def holds_row(self, row: int) -> bool:
        """Whether anything lives in a body row."""
        return row in self._rows

    def open_row(self, row: int) -> BodyRow:
        """Begin a row; the caller adds its owners, slot by slot, until `close_row`."""
        entry = self._rows[row] = BodyRow()
        return entry

    def close_row(self, row: int, size_bytes: int) -> None:
        """End a row: it can be sparse from now on."""
        entry = self._rows[row]
        assert type(entry) is BodyRow
        count = len(entry.owners)
        entry.live += count  # releases so far have counted down from 0
        entry.live_bytes += size_bytes
        if count == 1 and entry.live == 1 and isinstance(entry.owners[0], Message):
            self._rows[row] = entry.owners[0]
            return
        entry.total_bytes = size_bytes
        if not entry.live:
            self._emptied[row] = size_bytes
        elif 2 * entry.live_bytes < size_bytes:
            self._sparse.setdefault(row, self.now_ms)

    def share(self, message: Message) -> None:
        """Count a message that shares a body: dead-lettered, activated, a copy."""
        row, slot = message.body_row, message.body_slot
        entry = self._rows[row]
        if entry is None:  # its one message was released just now
            self._rows[row] = message
            return
        if type(entry) is not BodyRow:
            alone = entry
            assert isinstance(alone, Message)
            entry = self._rows[row] = _row_of(alone)
        owners = entry.owners
        if slot >= len(owners):
            owners.extend([None] * (slot + 1 - len(owners)))
        there = owners[slot]
        entry.live += 1
        if there is None:
            owners[slot] = message
            entry.live_bytes += message.size_bytes
        elif type(there) is dict:
            there[message] = None
        elif type(there) is not list:
            assert isinstance(there, Message)
            owners[slot] = [there, message]
        elif len(there) < SHARERS_LISTED_MAX:
            there.append(message)
        else:
            owners[slot] = dict.fromkeys([*there, message])

    def release(self, message: Message) -> None:
        """Count a message out: its record and its share of the body."""
        journal = self.journal
        journal.frame_live[message.journal_no - journal.first_no] -= 1
        journal.live_messages -= 1
        self._release_body(message)

    def _release_body(self, message: Message) -> None:
        row = message.body_row
        entry = self._rows[row]
        if type(entry) is not BodyRow:
            assert entry is message, f"body row {row} belongs to another message"
            self._rows[row] = None
            self._emptied[row] = message.size_bytes
            return
        slot = message.body_slot
        entry.live -= 1
        there = entry.owners[slot]
        if there is message:
            entry.owners[slot] = None
            entry.live_bytes -= message.size_bytes
            if not entry.live:
                self._emptied[row] = max(entry.total_bytes, message.size_bytes)
            elif 2 * entry.live_bytes < entry.total_bytes and row not in self._sparse:
                self._sparse[row] = self.now_ms
        elif type(there) is dict:
            del there[message]
            if len(there) == SHARERS_LISTED_MAX // 2:  # a dict does not shrink
                entry.owners[slot] = list(there)
        else:
            assert type(there) is list, f"slot {slot} of body row {row} is not this message's"
            there.remove(message)
            if len(there) == 1:
                entry.owners[slot] = there[0]

    def living_in(self, rows: Iterable[int]) -> Iterator[tuple[int, int, list[Message]]]:
        """Yield (row, slot, messages) of rows with several slots, as much as a slice copies. Messages may be
        released meanwhile."""
        left = COPY_RECORDS_MAX
        for row in rows:
            entry = self._rows.get(row)
            if type(entry) is not BodyRow:
                continue
            for slot, owner in enumerate(entry.owners):
                if left <= 0:
                    return
                if owner is not None:
                    messages = _sharers(owner)
                    left -= len(messages)
                    yield row, slot, messages

    def owners_in(self, row: int) -> Iterator[tuple[int, list[Message]]]:
        """Yield (slot, messages) of what lives in a row."""
        entry = self._rows.get(row)
        if isinstance(entry, Message):
            yield entry.body_slot, [entry]
        elif entry is not None:
            for slot, owner in enumerate(entry.owners):
                if owner is not None:
                    yield slot, _sharers(owner)

    def keep_rows(self, rows: Iterable[int]) -> None:
        """Do not copy these rows forward until more of them dies."""
        for row in rows:
            self._sparse.pop(row, None)

    def rows(self) -> Iterable[int]:
        """Return the body rows in which anything lives."""
        return self._rows.keys()

    def release_bodies(self, messages: Iterable[Message]) -> None:
        """Count messages out of their slot before they move."""
        for message in messages:
            self._release_body(message)

    @property
    def drops_alone(self) -> bool:
        """Whether the dead rows are worth a batch of their own."""
        return self._droppable_bytes >= DROP_ALONE_BYTES or len(self._droppable) >= DROP_ROWS_MAX

    @property
    def _drops_together(self) -> bool:
        """Whether the dead rows go with a batch of facts."""
        return (
            self._droppable_bytes >= DROP_TOGETHER_BYTES  # first: the usual case under load
            or len(self._droppable) >= min(DROP_TOGETHER_ROWS, len(self._rows))
            or self.drops_alone
        )

    def take_dropped(self, wanted: set[int], reading: set[int], *, alone: bool) -> dict[int, int]:
        """Return dead rows, neither wanted nor being read, to drop with this batch, and their bytes. `alone`:
        the batch has no facts."""
        rows: dict[int, int] = {}
        if not self._droppable or not (self.drops_alone if alone else self._drops_together):
            return rows
        size_bytes = 0
        for row, row_bytes in self._droppable.items():
            if row in wanted or row in reading:
                continue
            rows[row] = row_bytes
            size_bytes += row_bytes
            if size_bytes >= DROP_BYTES_MAX or len(rows) == DROP_ROWS_MAX:
                break
        for row in rows:
            self._droppable_bytes -= self._droppable.pop(row)
        return rows

    def settle_rows(self) -> None:
        """End the open batch: rows that died in it may be dropped from the next one on."""
        if not self._emptied:
            return
        for row, size_bytes in self._emptied.items():
            entry = self._rows[row]  # it may have a new owner by now
            if entry is None or (type(entry) is BodyRow and not entry.live):
                del self._rows[row]
                self._sparse.pop(row, None)
                self._droppable[row] = size_bytes
                self._droppable_bytes += size_bytes
        self._emptied.clear()

    def delete(self, messages: Iterable[Message]) -> None:
        """Add the messages of a deleted entity, to be released in slices."""
        self.deleting.append(iter(messages))

    def release_deleting(self) -> None:
        """Release a slice of the messages of deleted entities."""
        left = RELEASE_MAX
        while self.deleting and left:
            count = 0
            for message in islice(self.deleting[0], left):
                self.release(message)
                count += 1
            left -= count
            if left:
                self.deleting.popleft()
                left -= 1  # a topic may have thousands of empty subscriptions

    def wanted(self, pinned: Container[int]) -> ReclaimRead | None:
        """Return the next read that wins space, without the `pinned` rows, which are not durable yet."""
        if not self._sparse and not self.journal.is_long and self._list_after is None:
            return None
        rows = []
        size_bytes = records = 0
        stale = []
        for row, since_ms in self._sparse.items():
            if since_ms + SETTLE_MS > self.now_ms or row in pinned:
                break
            if size_bytes >= COPY_READ_BYTES or records >= COPY_RECORDS_MAX:
                break
            entry = self._rows.get(row)
            if type(entry) is BodyRow and entry.live and 2 * entry.live_bytes < entry.total_bytes:
                rows.append(row)
                size_bytes += entry.total_bytes
                records += entry.live
            else:
                stale.append(row)
        for row in stale:
            del self._sparse[row]
        head_bytes = 0 if self.deleting else self.journal.head_wanted()
        if rows or head_bytes or self._list_after is not None:
            return ReclaimRead(rows, head_bytes, self._list_after)
        return None

    def take_listed(self, listed: Sequence[tuple[int, int]]) -> None:
        """Learn the sizes of rows from before this start, and which of them are dead."""
        self._list_after = None
        for row, size_bytes in listed:
            if row >= self._list_before:
                return
            entry = self._rows.get(row)
            if entry is None:
                if row not in self._rows and row not in self._droppable:
                    self._droppable[row] = size_bytes
                    self._droppable_bytes += size_bytes
                continue
            payload_bytes = size_bytes - BODY_ROW_OVERHEAD_BYTES
            if type(entry) is not BodyRow:
                assert isinstance(entry, Message)
                if 2 * entry.size_bytes >= payload_bytes:
                    continue
                entry = self._rows[row] = _row_of(entry)
            entry.total_bytes = payload_bytes
            if entry.live and 2 * entry.live_bytes < payload_bytes:
                self._sparse.setdefault(row, self.now_ms)
        if len(listed) == LIST_ROWS_MAX:
            self._list_after = listed[-1][0]

    def adopt(self, messages: Sequence[Message]) -> None:
        """Count restored messages of one queue."""
        self.journal.adopt(messages)
        rows = self._rows
        for message in messages:
            row = message.body_row
            entry = rows.get(row)
            if entry is None:
                rows[row] = message
            elif type(entry) is BodyRow and message.body_slot == len(entry.owners):
                entry.owners.append(message)
                entry.live += 1
                entry.live_bytes += message.size_bytes
            else:
                self.share(message)

    def list_rows_before(self, row: int) -> None:
        """Begin to list the rows of earlier processes, all below `row`, to drop the dead ones."""
        self._list_after = 0
        self._list_before = row

    def check(self, messages: Iterable[Message]) -> None:
        """Assert that the counts agree with all messages.

        Right after `take_batch` only, and not while messages of deleted entities wait.
        """
        slots: dict[int, dict[int, list[Message]]] = {}
        frame_numbers = []
        for message in messages:
            frame_numbers.append(message.journal_no)
            slots.setdefault(message.body_row, {}).setdefault(message.body_slot, []).append(message)
        self.journal.check(frame_numbers)
        assert sum(self._droppable.values()) == self._droppable_bytes
        for row, entry in self._rows.items():
            there = slots.pop(row, {})
            if type(entry) is BodyRow:
                assert entry.live == sum(map(len, there.values()))
                owned = {
                    slot: set(map(id, _sharers(owner))) for slot, owner in enumerate(entry.owners) if owner
                }
                assert owned == {slot: set(map(id, sharers)) for slot, sharers in there.items()}
            else:
                assert list(there.values()) == ([] if entry is None else [[entry]])
            assert there or row in self._emptied
        assert not slots, f"rows {sorted(slots)} are not counted"
