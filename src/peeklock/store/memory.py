"""A store in memory: `--durability memory`, the in-process broker and the simulator.

Facts are kept in the encoding of disks, so that the same values are read. The async methods never suspend,
so that a simulator can run them without an event loop. `crash` loses what a process would lose: batches that
are staged but not flushed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice

from peeklock.store.base import (
    NEVER,
    Batch,
    Blob,
    Definitions,
    Ends,
    Entry,
    Frame,
    FrameKeys,
    LiveFacts,
    StoreFailed,
    StoreUnfinished,
)
from peeklock.store.blobs import Blobs
from peeklock.store.encoding import body_rows, definitions, event_rows, frames
from peeklock.store.encoding.fold import Chain, Fold
from peeklock.store.event_backlog import EventBacklog


class MemoryStore:
    """A `Store` that keeps facts as long as it lives; `open`, `close` and `crash` may follow in any order."""

    def __init__(self) -> None:
        self._journal = Blobs()
        self._bodies = Blobs()
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []  # of the entries, sorted
        self._next_entity_id = 1
        self._last_no = 0
        self._staged: list[tuple[Batch, bytes, definitions.Entries | None]] = []
        self.event_rows: dict[int, bytes] = {}  # by batch number
        self.event_backlog = EventBacklog(())
        self._is_unfinished = False

    async def open(self) -> None:
        """Do nothing. Raises: StoreUnfinished."""
        if self._is_unfinished:
            raise StoreUnfinished("a restore into this store in memory did not end: restore into a new one")

    async def load_definitions(self) -> Definitions:
        found = definitions.read_all(self._entries[key] for key in self._keys)
        self._next_entity_id = found.next_entity_id
        return found

    async def load(self) -> AsyncIterator[Frame]:
        chain = Chain()
        for no, meta in list(self._journal.above(0)):
            frame = frames.decode(no, meta)
            chain.follow(no, meta)
            yield frame

    async def load_live(self) -> LiveFacts:
        fold = Fold()
        chain = Chain()
        for no, meta in self._journal.above(0):
            fold.add(no, meta)
            chain.follow(no, meta)
        return fold.finish()

    def commit(self, batch: Batch) -> Awaitable[int]:
        size_bytes = self.stage(batch)
        self.flush()
        return _done(size_bytes)

    def stage(self, batch: Batch) -> int:
        """Take a batch that is on its way to the disk: a crash loses it. Return the size of its frame."""
        before = self._staged[-1][1] if self._staged else self._journal.get(self._journal.last()) or b""
        meta = frames.encode(batch, frames.checksum_of(before))
        entries = definitions.entries_of(batch.changes, self._next_entity_id)
        if entries is not None:
            self._next_entity_id = entries.next_entity_id
        self._staged.append((batch, meta, entries))
        return len(meta)

    def flush(self) -> None:
        """Make staged batches durable, in order. Raises: StoreFailed for a batch out of turn."""
        for batch, meta, entries in self._staged:
            if self._last_no and batch.no != self._last_no + 1:
                raise StoreFailed(f"batch {batch.no} was offered after batch {self._last_no}")
            self._last_no = batch.no
            self._journal.add(batch.no, meta)
            for row, payloads in batch.body_rows.items():
                self._bodies.add(row, body_rows.pack(row, payloads))
            for row in batch.dropped_rows:
                self._bodies.drop(row)
            self._journal.drop_before(batch.truncate_before)
            if entries is not None:
                self._keep_entries(entries)
            if batch.events is not None:
                self.event_rows[batch.no] = event_rows.seal(batch.no, event_rows.pack(batch.events))
                self.event_backlog.add(batch.no, len(self.event_rows[batch.no]))
            if batch.events_exported_to:
                self.event_backlog.drop_to(batch.events_exported_to)
                for no in [no for no in self.event_rows if no <= batch.events_exported_to]:
                    del self.event_rows[no]
        self._staged.clear()

    def _keep_entries(self, entries: definitions.Entries) -> None:
        for entry in entries.written:
            key = entry[0]
            if key not in self._entries:
                insort(self._keys, key)
            self._entries[key] = entry
        for first, last in entries.deleted:
            start, stop = bisect_left(self._keys, first), bisect_right(self._keys, last)
            for key in self._keys[start:stop]:
                del self._entries[key]
            del self._keys[start:stop]

    def crash(self) -> None:
        """Lose the staged batches, as a process that is killed."""
        self._staged.clear()

    async def read_body_rows(self, rows: Sequence[int]) -> dict[int, Sequence[bytes]]:
        return {row: body_rows.read_what_is_left(row, self._bodies.get(row))[0] for row in rows}

    async def list_body_rows(self, after: int, count_max: int) -> list[tuple[int, int]]:
        return [(row, len(data)) for row, data in islice(self._bodies.above(after), count_max)]

    async def last_body_row(self) -> int:
        return self._bodies.last()

    async def read_head(self, bytes_max: int) -> list[FrameKeys]:
        head: list[FrameKeys] = []
        size_bytes = 0
        for no, meta in self._journal.above(0):
            if head and size_bytes + len(meta) > bytes_max:
                break
            size_bytes += len(meta)
            head.append(frames.read_keys(no, meta))
        return head

    @property
    def created_at_ms(self) -> int:
        return 0

    def free_bytes(self) -> int | None:
        return None

    def valid_until_s(self) -> float:
        return NEVER

    def failure(self) -> None:
        return None

    def reader(self) -> MemoryReader:
        entries = list(map(self._entries.__getitem__, self._keys))
        return MemoryReader(self._journal.copy(), self._bodies.copy(), entries)

    def filler(self) -> MemoryFiller:
        """Return a filler of this store, which is new."""
        self._is_unfinished = True
        return MemoryFiller(self)

    def fill(self, frames: dict[int, bytes], bodies: dict[int, bytes], entries: dict[str, Entry]) -> None:
        """Take over what a filler has; event rows are there."""
        for blobs, found in ((self._journal, frames), (self._bodies, bodies)):
            for no, data in sorted(found.items()):
                blobs.add(no, data)
        self._entries = entries
        self._keys = sorted(entries)
        self._last_no = self._journal.last()
        self.event_backlog = EventBacklog((no, len(data)) for no, data in sorted(self.event_rows.items()))
        self._is_unfinished = False

    async def close(self) -> None:
        """Do nothing."""


class MemoryReader:
    """See `store.base.StoreReader`; it sees the store as it was when the reader was made."""

    def __init__(self, frames: Blobs, bodies: Blobs, entries: list[Entry]) -> None:
        """`entries`: by key."""
        self._frames, self._rows, self._entries = frames, bodies, entries

    def ends(self) -> Ends:
        return Ends(self._frames.first(), self._frames.last(), self._rows.last())

    def frames(self, after: int, bytes_max: int) -> list[Blob]:
        return _some(self._frames, after, bytes_max)

    def body_rows(self, after: int, bytes_max: int) -> list[Blob]:
        return _some(self._rows, after, bytes_max)

    def body_row(self, no: int) -> bytes | None:
        return self._rows.get(no)

    def body_row_numbers(self) -> list[int]:
        return self._rows.numbers()

    def entries(self) -> list[Entry]:
        return self._entries

    def at_one_instant(self) -> AbstractContextManager[None]:
        return nullcontext()

    def writer_name(self) -> str:
        return "this process"

    def close(self) -> None:
        """Do nothing."""


class MemoryFiller:
    """See `store.base.StoreFiller`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._frames: dict[int, bytes] = {}
        self._bodies: dict[int, bytes] = {}
        self._entries: dict[str, Entry] = {}

    def add_body_rows(self, rows: Iterable[Blob]) -> None:
        self._bodies.update(rows)

    def add_frames(self, frames: Iterable[Blob]) -> None:
        self._frames.update(frames)

    def add_entries(self, entries: Iterable[Entry]) -> None:
        self._entries.update((entry[0], entry) for entry in entries)

    def add_event_row(self, no: int, data: bytes) -> None:
        self._store.event_rows[no] = data

    def write(self) -> None:
        """Do nothing."""

    def finish(self) -> None:
        self._store.fill(self._frames, self._bodies, self._entries)

    def abandon(self) -> None:
        """Do nothing."""


def _some(blobs: Blobs, after: int, bytes_max: int) -> list[Blob]:
    """Return the next blobs, until they have so many bytes."""
    found: list[Blob] = []
    size_bytes = 0
    for no, data in blobs.above(after):
        if size_bytes >= bytes_max:
            break
        found.append((no, data))
        size_bytes += len(data)
    return found


async def _done(size_bytes: int) -> int:
    return size_bytes
