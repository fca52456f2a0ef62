"""A store in memory: `--durability memory`, the in-process broker and the simulator.

Facts are kept in the encoding of disks, so that the same values are read. The async methods never suspend,
so that a simulator can run them without an event loop. `crash` loses what a process would lose: batches that
are staged but not flushed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Awaitable, Sequence

from peeklock.store.base import Batch, Definitions, Frame, FrameKeys, LiveFacts, StoreFailed
from peeklock.store.encoding import body_rows, definitions, event_rows, frames
from peeklock.store.encoding.fold import Chain, Fold
from peeklock.store.event_backlog import EventBacklog


class MemoryStore:
    """A `Store` that keeps facts as long as it lives; `open`, `close` and `crash` may follow in any order."""

    def __init__(self) -> None:
        self._journal: dict[int, bytes] = {}
        self._bodies: dict[int, bytes] = {}
        self._entries: dict[str, definitions.Entry] = {}
        self._keys: list[str] = []  # of the entries, sorted
        self._next_entity_id = 1
        self._last_no = 0
        self._staged: list[tuple[Batch, bytes, definitions.Entries | None]] = []
        self.event_rows: dict[int, bytes] = {}  # by batch number
        self.event_backlog = EventBacklog(())

    async def open(self) -> None:
        """Do nothing."""

    async def load_definitions(self) -> Definitions:
        found = definitions.read_all(self._entries[key] for key in self._keys)
        self._next_entity_id = found.next_entity_id
        return found

    async def load(self) -> AsyncIterator[Frame]:
        chain = Chain()
        for no, meta in list(self._journal.items()):
            frame = frames.decode(no, meta)
            chain.follow(no, meta)
            yield frame

    async def load_live(self) -> LiveFacts:
        fold = Fold()
        chain = Chain()
        for no, meta in self._journal.items():
            fold.add(no, meta)
            chain.follow(no, meta)
        return fold.finish()

    def commit(self, batch: Batch) -> Awaitable[int]:
        size_bytes = self.stage(batch)
        self.flush()
        return _done(size_bytes)

    def stage(self, batch: Batch) -> int:
        """Take a batch that is on its way to the disk: a crash loses it. Return the size of its frame."""
        before = self._staged[-1][1] if self._staged else next(reversed(self._journal.values()), b"")
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
            self._journal[batch.no] = meta
            for row, payloads in batch.body_rows.items():
                self._bodies[row] = body_rows.pack(row, payloads)
            for row in batch.dropped_rows:
                self._bodies.pop(row, None)
            for no in self._journal_before(batch.truncate_before):
                del self._journal[no]
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

    def _journal_before(self, no: int) -> list[int]:
        before = []
        for other in self._journal:  # in ascending order, as they were added
            if other >= no:
                break
            before.append(other)
        return before

    def crash(self) -> None:
        """Lose the staged batches, as a process that is killed."""
        self._staged.clear()

    async def read_body_rows(self, rows: Sequence[int]) -> dict[int, list[bytes]]:
        return {row: body_rows.read_what_is_left(row, self._bodies.get(row))[0] for row in rows}

    async def list_body_rows(self, after: int, count_max: int) -> list[tuple[int, int]]:
        rows = sorted(self._bodies)
        start = bisect_right(rows, after)
        return [(row, len(self._bodies[row])) for row in rows[start : start + count_max]]

    async def last_body_row(self) -> int:
        return max(self._bodies, default=0)

    async def read_head(self, bytes_max: int) -> list[FrameKeys]:
        head: list[FrameKeys] = []
        size_bytes = 0
        for no, meta in self._journal.items():
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

    async def close(self) -> None:
        """Do nothing."""


async def _done(size_bytes: int) -> int:
    return size_bytes
