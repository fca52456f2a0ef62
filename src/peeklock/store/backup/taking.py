"""Writes what a store has into a back-up, while commits go on.

Frames and body rows never change: they are added with higher numbers, and dropped. So they are read piece by
piece, each in a short look at the store, until little is left. A last look sees one instant: it reads the
rest, the facts that do change, and which rows there are. What was read before and is dropped by then does no
harm: a restore takes the rows and frames of that instant alone.

An increment leaves out what the back-up before it has. That is right even where the head of the journal was
cut meanwhile, since each live fact then has a later record. But then no frame proves that the store is the
same, so a full back-up is made.

The number of a row is used again only after another process writes to the store, and only if all higher rows
were dropped. Later frames name each such row, so rows that they name are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from peeklock.store.backup.format import (
    BLOCK_BYTES,
    Kind,
    Row,
    StoreEnd,
    StoreHead,
    pack_blobs,
    pack_entries,
    pack_live,
)
from peeklock.store.backup.verifying import Covered
from peeklock.store.backup.writing import Writer
from peeklock.store.base import Blob, StoreReader
from peeklock.store.encoding import body_rows, frames

PASSES_MAX = 5
"""How often the reading tries to come near the end before it looks at one instant. Our choice: each time a
tenth is left, where a back-up is ten times as fast as the commits; a slow pipe may never come near."""

ENTRIES_A_BLOCK = 10_000


def why_full(reader: StoreReader, covered: Covered) -> str | None:
    """Return why a store cannot be told from what a back-up has of it; None = an increment will do."""
    last_no = covered.end.last_no
    found = reader.frames(max(0, last_no - 1), 1)
    if not found and not last_no:
        return None
    if not found:
        ends = reader.ends()
        return f"the store ends at batch {ends.last_no:,}, before {last_no:,}: it is an older copy"
    no, meta = found[0]
    if no == last_no:
        is_same = frames.checksum_of(meta) == covered.end.checksum
    elif no == last_no + 1:
        is_same = frames.previous_of(meta) == covered.end.checksum
    else:
        return f"the journal was cut past batch {last_no:,}: it begins at {no:,}"
    return None if is_same else f"batch {last_no:,} is another one: the store was restored or replaced"


def take_store(
    reader: StoreReader,
    writer: Writer,
    head: StoreHead,
    covered: Covered | None,
    read: Callable[[int], object] = lambda size_bytes: None,
) -> StoreEnd:
    """Write a store.

    Args:
        reader: of the store.
        writer: of the back-up.
        head: what the store is.
        covered: what the back-up before has of it; None = nothing is left out.
        read: called with the number of bytes that were read.

    Raises: StoreDamaged, StoreFailed; what the writer raises.
    """
    writer.add_record(Kind.STORE_HEAD, head)
    return _Taking(reader, writer, covered, read).take()


class _Taking:
    """One store under way."""

    def __init__(
        self,
        reader: StoreReader,
        writer: Writer,
        covered: Covered | None,
        read: Callable[[int], object],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._read = read
        self._writer_name = reader.writer_name()
        self._rows: dict[int, Row] = {} if covered is None else dict(covered.rows)
        self._covered_row = 0 if covered is None else covered.end.last_row
        self._last_row = self._covered_row
        self._last_no = 0 if covered is None else covered.end.last_no
        self._checksum = 0 if covered is None else covered.end.checksum
        self._named: set[int] = set()
        """Rows that frames name which are newer than the look that found the rows."""
        self._new_from_no = self._last_no + 1 if covered is not None else reader.ends().last_no + 1

    def take(self) -> StoreEnd:
        reader = self._reader
        for _ in range(PASSES_MAX):
            if self._take_rows(reader.ends().last_row) < BLOCK_BYTES:
                break
        for _ in range(PASSES_MAX):
            if self._take_frames(reader.ends().last_no) < BLOCK_BYTES:
                break
        with reader.at_one_instant():
            ends = reader.ends()
            self._take_rows(ends.last_row)
            self._take_frames(ends.last_no)
            numbers = reader.body_row_numbers()
            self._compare(numbers)
            entries = reader.entries()
        for start in range(0, len(entries), ENTRIES_A_BLOCK):
            self._writer.add(Kind.ENTRIES, pack_entries(entries[start : start + ENTRIES_A_BLOCK]))
        live = ((no, self._rows[no]) for no in numbers if no in self._rows)
        self._writer.add(Kind.LIVE, pack_live(live))
        end = StoreEnd(ends.first_no, self._last_no, self._checksum, self._last_row)
        self._writer.add_record(Kind.STORE_END, end)
        return end

    def _take_rows(self, to: int) -> int:
        """Write the body rows up to a number; return their bytes."""
        total_bytes = 0
        while self._last_row < to and (found := self._reader.body_rows(self._last_row, BLOCK_BYTES)):
            total_bytes += self._write_rows(found)
            self._last_row = max(self._last_row, found[-1][0])
        return total_bytes

    def _write_rows(self, found: Iterable[Blob]) -> int:
        # SQLite keeps the type beside each value, under no checksum: what is not bytes is damaged.
        sound = [(no, data) for no, data in found if type(data) is bytes]
        self._rows.update((no, (body_rows.checksum_of(data), len(data))) for no, data in sound)
        return self._write(Kind.ROWS, sound)

    def _take_frames(self, to: int) -> int:
        """Write the frames up to a number; return their bytes."""
        total_bytes = 0
        while self._last_no < to and (found := self._reader.frames(self._last_no, BLOCK_BYTES)):
            for no, meta in found:
                if no >= self._new_from_no:
                    self._named |= frames.read_rows(no, meta)
            self._last_no, self._checksum = found[-1][0], frames.checksum_of(found[-1][1])
            total_bytes += self._write(Kind.FRAMES, found)
        return total_bytes

    def _write(self, kind: Kind, blobs: Iterable[Blob]) -> int:
        data = pack_blobs(blobs)
        self._writer.add(kind, data)
        self._read(len(data))
        return len(data)

    def _compare(self, numbers: Iterable[int]) -> None:
        """Write again the rows whose number was used again since they were read."""
        is_same_writer = self._reader.writer_name() == self._writer_name
        to = self._covered_row if is_same_writer else self._last_row
        for no in numbers:
            if no <= to and no in self._named:
                data = self._reader.body_row(no)
                if type(data) is bytes and self._rows.get(no) != (body_rows.checksum_of(data), len(data)):
                    self._write_rows([(no, data)])
