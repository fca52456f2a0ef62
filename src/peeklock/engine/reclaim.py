"""The ledger of space: what lives in each body row and each frame, and what can go.

Owns: who shares which body, live counts of rows and frames, the choice of what to drop, copy or truncate.
Must not know: effects, commits under way, files.

Body rows. A row dies when its last owner is released, and may be dropped from the batch after the one in
which it died: a delivery released with that batch may still read it. A row under half alive is copied
forward, but only after it has stayed so for a second: a queue that is drained in order takes every row
through that state within moments. A row of one message is its owner's own entry here, without an object
around it: a slow backlog has a row for each message.

Frames. A message's `journal_no` names the frame of its last record, so a frame's live count says how many
records it still holds that nothing later replaced. Frames at the head with none are forgotten; a head frame
with some is read, these are recorded anew, and then it has none either. This starts at 4 MB and three times
what lives, and goes on in slices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, repeat
from operator import attrgetter
from typing import TypeAlias

from peeklock.broker.vocabulary.changes import NumbersIssued
from peeklock.broker.vocabulary.message import Message
from peeklock.store.base import FrameKeys, Store

JOURNAL_BYTES_MIN = 4 * 1024 * 1024
"""A journal up to this size is left alone. Source: architecture, reclaim."""

JOURNAL_FACTOR = 3
"""A journal may be so many times what lives in it: each record is then rewritten half a time on average.

Source: architecture, reclaim.
"""

STORED_RECORD_BYTES = 89
OVERLAY_RECORD_BYTES = 12  # and the overlay itself
TEXT_PLACES_BYTES = 8  # a record with texts is so much wider
TEXT_RECORD_BYTES = 4  # and the text itself, once a frame
NUMBERS_RECORD_BYTES = 32
PARTITION_NUMBER_BYTES = 8  # for each partition, in addition
ID_RECORD_BYTES = 32
"""Bytes of records in a frame, for the estimate of what lives; `store.frames` has the layout, a test
compares."""

SETTLE_MS = 1000
"""How long a row must stay under half alive before it is copied. Source: our choice, see above."""

HEAD_READ_BYTES = 64 * 1024
"""Head of the journal read per slice: at most 730 records, some 2 ms of work."""

COPY_READ_BYTES = 1024 * 1024
"""Rows read per slice to be copied: at most half of it lives, written with one commit."""

COPY_RECORDS_MAX = 2000
"""Messages per slice whose bodies are copied, about 3 ms of work; those that share one body go together. A
row of bodies that many share may take several slices, and is read for each."""

TRUNCATE_BYTES_MAX = 512 * 1024
DROP_BYTES_MAX = 2 * 1024 * 1024
DROP_ROWS_MAX = 500
"""Work of one commit. Source: our choice; a drained row of 256 KiB frees 64 pages, 2 MiB are freed in some
2 ms; the journal's head, of many small rows, costs four times as much, and goes commit after commit."""

DROP_ALONE_BYTES = 1024 * 1024
"""Fewer dead bytes wait for a commit that has facts: a commit of its own would delay the next client's."""

DROP_TOGETHER_ROWS = 8
DROP_TOGETHER_BYTES = 32 * 1024
"""Fewer dead rows wait for others while more than these live: of a backlog of single messages a row takes
some 20 us to drop alone, 5 beside seven neighbours. Where little lives all rows share a page, which each
commit writes anyway. Half of what a small batch may drop (see `store.pace`): what waited and what one small
batch left dead do not make the next one large."""

RELEASE_MAX = 2000
"""Messages of deleted entities released per batch, about 1 ms."""

SHARERS_LISTED_MAX = 32
"""So many messages that share a body are kept in a list, 9 bytes each; more of them in a dict, 30 to 60 bytes
each, since one that leaves a list is looked for: 7 ns for each that stands before it."""

LIST_ROWS_MAX = 1000
"""Body rows listed per slice after a start."""


@dataclass(slots=True)
class ReclaimFound:
    """What a `ReclaimRead` asked for."""

    rows: dict[int, list[bytes]] = field(default_factory=dict)
    head: list[FrameKeys] = field(default_factory=list)
    listed: list[tuple[int, int]] | None = None


@dataclass(slots=True)
class ReclaimRead:
    """What has to be read from the store before space can be won; bounded."""

    rows: list[int]
    """Body rows to copy forward."""
    head_bytes: int
    """Read so much of the journal's head; 0 = nothing."""
    list_after: int | None
    """List the body rows above this one, to find those that a stopped process left behind."""

    async def read_from(self, store: Store) -> ReclaimFound:
        """Read it. Raises: StoreDamaged, StoreFailed."""
        found = ReclaimFound()
        if self.rows:
            found.rows = await store.read_body_rows(self.rows)
        if self.head_bytes:
            found.head = await store.read_head(self.head_bytes)
        if self.list_after is not None:
            found.listed = await store.list_body_rows(self.list_after, LIST_ROWS_MAX)
        return found


_UNKNOWN = -(1 << 62)
"""Size of a row that is still open or was found at a start: below any, so that it is never sparse."""

BODY_ROW_OVERHEAD_BYTES = 64
"""Taken off the listed size of a row: at least its head and the lengths of few small payloads."""


_session_id_of = attrgetter("session_id")
_dead_letter_source_of = attrgetter("dead_letter_source")


_Owner: TypeAlias = Message | list[Message] | dict[Message, None] | None
"""Who owns a slot: nobody, one message, or all that share it; see `SHARERS_LISTED_MAX`."""


class _Row:
    """A body row with several slots."""

    __slots__ = ("live", "live_bytes", "owners", "total_bytes")

    def __init__(self) -> None:
        self.owners: list[_Owner] = []
        self.live = 0
        self.live_bytes = 0  # of slots with an owner
        self.total_bytes = _UNKNOWN


def extra_bytes(message: Message, texts: set[str | None]) -> int:
    """Give what a record takes beyond its fixed width.

    Args:
        message: whose record.
        texts: those that its frame already has; the message's own are added.
    """
    size_bytes = 0
    if message.overlay is not None:
        size_bytes += OVERLAY_RECORD_BYTES + len(message.overlay)
    if message.session_id is not None or message.dead_letter_source is not None:
        size_bytes += TEXT_PLACES_BYTES
        for text in (message.session_id, message.dead_letter_source):
            if text is not None and text not in texts:
                texts.add(text)
                size_bytes += TEXT_RECORD_BYTES + len(text.encode())
    return size_bytes


def numbers_bytes(numbers: NumbersIssued) -> int:
    """Give what the record of a queue's counters takes."""
    return NUMBERS_RECORD_BYTES + PARTITION_NUMBER_BYTES * len(numbers.partitions)


def _sharers(owner: _Owner) -> list[Message]:
    if owner is None:
        return []
    return [owner] if isinstance(owner, Message) else list(owner)


def _row_of(alone: Message) -> _Row:
    row = _Row()
    row.owners = [*repeat(None, alone.body_slot), alone]
    row.live = 1
    row.live_bytes = alone.size_bytes
    return row


class SpaceLedger:
    """Counts what lives. Messages are told to it as their records are made; it never looks at the
    namespace."""

    def __init__(self) -> None:
        self._rows: dict[int, Message | _Row | None] = {}
        self._emptied: dict[int, int] = {}  # row -> bytes, lost its last owner in the open batch
        self._droppable: dict[int, int] = {}  # row -> bytes, died before
        self._droppable_bytes = 0
        self._sparse: dict[int, int] = {}  # row -> since when, oldest first
        self.deleting: deque[Iterator[Message]] = deque()  # messages of deleted entities, to be released
        self.live_messages = 0
        self.first_no = 1
        self.frame_live = [0]  # one per frame, the open batch's last
        self.frame_sizes: list[int] = []  # of committed frames
        self.journal_bytes = 0
        self.journal_is_long = False
        """Whether the journal's head shall be forgotten or recorded anew, as of the last commit."""
        self.id_frames: dict[int, int] = {}  # frame -> message ids recorded in it
        self.ids_recorded = 0
        self._extra_bytes = 0
        self._extra_messages = 0  # how many there were when that was found
        self._pass_until: int | None = None
        self._pass_extra_bytes = 0
        self.now_ms = 0
        self._list_after: int | None = None
        self._list_before = 0

    def holds_row(self, row: int) -> bool:
        """Whether anything lives in a body row."""
        return row in self._rows

    # Bodies

    def open_row(self, row: int) -> _Row:
        """Begin a row; its owners are added by the caller, slot by slot, until `close_row`."""
        entry = self._rows[row] = _Row()
        return entry

    def close_row(self, row: int, size_bytes: int) -> None:
        """End a row: from now on it can be sparse."""
        entry = self._rows[row]
        assert type(entry) is _Row
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
        """Count a new message that shares a body: moved to the dead-letter queue, activated."""
        row, slot = message.body_row, message.body_slot
        entry = self._rows[row]
        if entry is None:  # its one message was released just now
            self._rows[row] = message
            return
        if type(entry) is not _Row:
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
        self.frame_live[message.journal_no - self.first_no] -= 1
        self.live_messages -= 1
        self._release_body(message)

    def _release_body(self, message: Message) -> None:
        row = message.body_row
        entry = self._rows[row]
        if type(entry) is not _Row:
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
            if len(there) == SHARERS_LISTED_MAX // 2:  # a dict keeps the room that it once needed
                entry.owners[slot] = list(there)
        else:
            assert type(there) is list, f"slot {slot} of body row {row} is not this message's"
            there.remove(message)
            if len(there) == 1:
                entry.owners[slot] = there[0]

    def living_in(self, rows: Iterable[int]) -> Iterator[tuple[int, int, list[Message]]]:
        """Give (row, slot, messages) of what lives in rows of several slots, as much as is copied in a slice.
        They may be released meanwhile."""
        left = COPY_RECORDS_MAX
        for row in rows:
            entry = self._rows.get(row)
            if type(entry) is not _Row:
                continue
            for slot, owner in enumerate(entry.owners):
                if left <= 0:
                    return
                if owner is not None:
                    messages = _sharers(owner)
                    left -= len(messages)
                    yield row, slot, messages

    def owners_in(self, row: int) -> Iterator[tuple[int, list[Message]]]:
        """Give (slot, messages) of what lives in a row."""
        entry = self._rows.get(row)
        if isinstance(entry, Message):
            yield entry.body_slot, [entry]
        elif entry is not None:
            for slot, owner in enumerate(entry.owners):
                if owner is not None:
                    yield slot, _sharers(owner)

    def keep_rows(self, rows: Iterable[int]) -> None:
        """Do not copy these rows forward, until more of what is in them dies."""
        for row in rows:
            self._sparse.pop(row, None)

    def rows(self) -> Iterable[int]:
        """Give the body rows in which anything lives."""
        return self._rows.keys()

    def release_bodies(self, messages: Iterable[Message]) -> None:
        """Count messages out of their slot before they are given another place."""
        for message in messages:
            self._release_body(message)

    @property
    def drops_alone(self) -> bool:
        """Whether so many rows are dead that they are worth a batch without facts."""
        return self._droppable_bytes >= DROP_ALONE_BYTES or len(self._droppable) >= DROP_ROWS_MAX

    @property
    def _drops_together(self) -> bool:
        """Whether so many rows are dead that they go with a batch of facts."""
        return (
            len(self._droppable) >= min(DROP_TOGETHER_ROWS, len(self._rows))
            or self._droppable_bytes >= DROP_TOGETHER_BYTES
            or self.drops_alone
        )

    def take_dropped(self, wanted: set[int], reading: set[int], *, alone: bool) -> dict[int, int]:
        """Return dead rows to drop with this batch and their bytes, none that is wanted or being read.
        `alone`: the batch would have no facts."""
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
        """End the open batch for body rows: what died in it may be dropped from the next one on."""
        if not self._emptied:
            return
        for row, size_bytes in self._emptied.items():
            entry = self._rows[row]  # it may have a new owner by now
            if entry is None or (type(entry) is _Row and not entry.live):
                del self._rows[row]
                self._sparse.pop(row, None)
                self._droppable[row] = size_bytes
                self._droppable_bytes += size_bytes
        self._emptied.clear()

    # Journal

    @property
    def live_bytes(self) -> int:
        """Estimate of what lives in the journal; message ids count until their frame is forgotten.

        Overlays, texts and counters are not counted one by one. How much they come to is seen whenever all
        that lives has been recorded anew, and shrinks with the number of messages until the next time.
        Without it, a journal of many large overlays would be rewritten for ever.
        """
        extra_bytes = self._extra_bytes
        if self.live_messages < self._extra_messages:
            extra_bytes = extra_bytes * self.live_messages // self._extra_messages
        return self.live_messages * STORED_RECORD_BYTES + self.ids_recorded * ID_RECORD_BYTES + extra_bytes

    def _look_at_journal(self) -> None:
        size_bytes = self.journal_bytes
        self.journal_is_long = (
            size_bytes > JOURNAL_BYTES_MIN and size_bytes > JOURNAL_FACTOR * self.live_bytes
        )

    def add_extra(self, size_bytes: int, no: int) -> None:
        """Count what is recorded again from frame `no` beyond the records of messages and their ids.

        Counters are recorded with each truncation, and count once a pass.
        """
        if self._pass_until is not None and no < self._pass_until:
            self._pass_extra_bytes += size_bytes

    def add_frame(self, size_bytes: int) -> None:
        """Count a committed frame."""
        self.frame_sizes.append(size_bytes)
        self.journal_bytes += size_bytes
        if self._pass_until is not None and self.first_no >= self._pass_until:
            self._pass_until = None
            self._extra_bytes = self._pass_extra_bytes
            self._extra_messages = self.live_messages
        self._look_at_journal()

    def add_ids(self, count: int) -> None:
        """Count message ids recorded in the open batch."""
        no = self.first_no + len(self.frame_live) - 1
        self.id_frames[no] = self.id_frames.get(no, 0) + count
        self.ids_recorded += count

    def forget_ids(self, no: int) -> None:
        """The message ids of frame `no` lapsed or were recorded anew."""
        self.ids_recorded -= self.id_frames.pop(no, 0)

    def take_truncation(self) -> int:
        """Give the number before which frames of a long journal are forgotten with the open batch, 0 for
        none."""
        self._begin_pass()
        size_bytes = count = 0
        for live, frame_bytes in zip(self.frame_live, self.frame_sizes, strict=False):
            if live or size_bytes > TRUNCATE_BYTES_MAX or self.first_no + count in self.id_frames:
                break
            size_bytes += frame_bytes
            count += 1
        if not count:
            return 0
        del self.frame_live[:count]
        del self.frame_sizes[:count]
        self.first_no += count
        self.journal_bytes -= size_bytes
        self._look_at_journal()
        return self.first_no

    def _begin_pass(self) -> None:
        """Count from the open batch on what is recorded anew, unless that goes on already."""
        if self._pass_until is None:
            self._pass_until = self.first_no + len(self.frame_live) - 1
            self._pass_extra_bytes = 0

    def check_head(self, no: int) -> None:
        """Make sure that all which lived in frame `no` was recorded anew, but for what a deleted entity
        left."""
        index = no - self.first_no
        assert index < 0 or self.deleting or not self.frame_live[index], (
            f"frame {no} still counts {self.frame_live[index]} records"
        )

    # Deleted entities

    def doom(self, messages: Iterable[Message]) -> None:
        """Take the messages of a deleted entity, to be released in slices."""
        self.deleting.append(iter(messages))

    def release_deleting(self) -> None:
        """Release a slice of what was doomed."""
        left = RELEASE_MAX
        while self.deleting and left:
            count = 0
            for message in islice(self.deleting[0], left):
                self.release(message)
                count += 1
            left -= count
            if left:
                self.deleting.popleft()
                left -= 1  # thousands of subscriptions may go with their topic, each with no message

    # What to read

    def wanted(self, pinned: Container[int]) -> ReclaimRead | None:
        """Name what should be read next to win space; the rows that are `pinned` cannot be read yet."""
        if not self._sparse and not self.journal_is_long and self._list_after is None:
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
            if type(entry) is _Row and entry.live and 2 * entry.live_bytes < entry.total_bytes:
                rows.append(row)
                size_bytes += entry.total_bytes
                records += entry.live
            else:
                stale.append(row)
        for row in stale:
            del self._sparse[row]
        head_bytes = 0
        if self.journal_is_long and not self.deleting and self.frame_sizes:
            if self.frame_live[0] or self.first_no in self.id_frames:
                self._begin_pass()  # not with the truncation: the whole journal may be this one read
                # At least as much as a commit under load adds, or the head would never be caught up with.
                head_bytes = max(HEAD_READ_BYTES, 2 * self.frame_sizes[-1])
        if rows or head_bytes or self._list_after is not None:
            return ReclaimRead(rows, head_bytes, self._list_after)
        return None

    def take_listed(self, listed: Sequence[tuple[int, int]]) -> None:
        """Learn the sizes of rows that were there before this start, and which of them are dead."""
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
            if type(entry) is not _Row:
                assert isinstance(entry, Message)
                if 2 * entry.size_bytes >= payload_bytes:
                    continue
                entry = self._rows[row] = _row_of(entry)
            entry.total_bytes = payload_bytes
            if entry.live and 2 * entry.live_bytes < payload_bytes:
                self._sparse.setdefault(row, self.now_ms)
        if len(listed) == LIST_ROWS_MAX:
            self._list_after = listed[-1][0]

    # Recovery

    def restore_journal(self, first_no: int, frame_sizes: Sequence[int], id_frames: dict[int, int]) -> None:
        """Take the figures of the journal as it was found; messages follow with `adopt`."""
        self.first_no = first_no
        self.frame_sizes = list(frame_sizes)
        self.frame_live = [0] * (len(frame_sizes) + 1)
        self.journal_bytes = sum(frame_sizes)
        self.id_frames = id_frames
        self.ids_recorded = sum(id_frames.values())
        self._look_at_journal()

    def adopt(self, messages: Sequence[Message]) -> None:
        """Count restored messages of one queue. A text is counted once, in however many frames it will be:
        what that comes to is seen when all has been recorded anew."""
        rows = self._rows
        frame_live = self.frame_live
        first_no = self.first_no
        texts = {*map(_session_id_of, messages), *map(_dead_letter_source_of, messages)} - {None}
        if texts:
            self._extra_bytes += len(messages) * TEXT_PLACES_BYTES
            self._extra_bytes += sum(TEXT_RECORD_BYTES + len(text.encode()) for text in texts)
        for message in messages:
            frame_live[message.journal_no - first_no] += 1
            if message.overlay is not None:
                self._extra_bytes += OVERLAY_RECORD_BYTES + len(message.overlay)
            row = message.body_row
            entry = rows.get(row)
            if entry is None:
                rows[row] = message
                continue
            if type(entry) is _Row and message.body_slot == len(entry.owners):
                entry.owners.append(message)
                entry.live += 1
                entry.live_bytes += message.size_bytes
            else:
                self.share(message)
        self.live_messages += len(messages)
        self._extra_messages = self.live_messages
        self._look_at_journal()

    def list_rows_before(self, row: int) -> None:
        """Begin to list the rows of earlier processes, all below `row`, to drop those in which nothing
        lives."""
        self._list_after = 0
        self._list_before = row

    def check(self, messages: Iterable[Message]) -> None:
        """Compare the counts with all messages there are; an assertion fails when they do not agree.

        Right after `take_batch` only, and not while messages of deleted entities wait.
        """
        frame_live = [0] * len(self.frame_live)
        slots: dict[int, dict[int, list[Message]]] = {}
        count = 0
        for message in messages:
            count += 1
            frame_live[message.journal_no - self.first_no] += 1
            slots.setdefault(message.body_row, {}).setdefault(message.body_slot, []).append(message)
        assert count == self.live_messages
        assert frame_live == self.frame_live
        assert sum(self.frame_sizes) == self.journal_bytes
        assert sum(self.id_frames.values()) == self.ids_recorded
        assert sum(self._droppable.values()) == self._droppable_bytes
        for row, entry in self._rows.items():
            there = slots.pop(row, {})
            if type(entry) is _Row:
                assert entry.live == sum(map(len, there.values()))
                owned = {
                    slot: set(map(id, _sharers(owner))) for slot, owner in enumerate(entry.owners) if owner
                }
                assert owned == {slot: set(map(id, sharers)) for slot, sharers in there.items()}
            else:
                assert list(there.values()) == ([] if entry is None else [[entry]])
            assert there or row in self._emptied
        assert not slots, f"rows {sorted(slots)} are not counted"
