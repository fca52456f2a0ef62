"""Makes a store of a back-up and its increments.

The store begins a new life: what happened after the back-up is undone, but clients and the event log have
seen its numbers. So batches, sequence numbers and claims skip far ahead, and the journal begins with the live
facts in new frames. Body rows stay as they are, damaged ones too. An event row says that the store was
restored; a reader of the event log then knows which batches were undone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from peeklock.broker.vocabulary.changes import MessageStored
from peeklock.broker.vocabulary.events import EventType
from peeklock.store.backup.format import (
    BackupUnusable,
    Block,
    Kind,
    Row,
    read_section,
    unpack_blobs,
)
from peeklock.store.backup.verifying import Source
from peeklock.store.base import Blob, Definitions, StoreDamaged, StoreFiller
from peeklock.store.encoding import body_rows, definitions, event_rows
from peeklock.store.encoding.fold import Chain, Fold
from peeklock.store.renumbering import renumbered_entries, renumbered_frames

SKIPPED_BATCHES = 10_000_000_000
"""Numbers of batches that are skipped. Our choice: at 3,000 commits a second these take 38 days, and a folder
can be restored a hundred times before a rescue takes its numbers for damage."""

SKIPPED_NUMBERS = 1_000_000_000_000
"""Sequence numbers and claims that are skipped. Our choice: at 20,000 messages a second these take a year and
a half; a partition has 48 bits, 281 times as many, and then begins again at 0 (S-03)."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a store was made of."""

    messages: int
    rows: int
    damaged_rows: list[int]
    """Body rows that were damaged in the back-up already."""
    last_no: int
    """The last batch of the back-up."""
    first_no: int
    """The first batch of the new life."""


def restore_store(
    source: Source, filler: StoreFiller, now_ms: int, wrote: Callable[[int], object] = lambda size_bytes: None
) -> Restored:
    """Fill a store, which is durable then and not finished.

    `wrote` is called with the bytes of body rows. Raises: BackupUnusable, StoreDamaged, StoreFailed, OSError.
    """
    last = source.last
    reading = _Reading(source, filler, wrote)
    for block in _blocks(source):
        reading.add(block)
    reading.check_complete()
    try:
        found = definitions.read_all(last.entries)
    except StoreDamaged as damage:
        raise _unusable(source, str(damage)) from damage
    filler.add_entries(renumbered_entries(last.entries, found, SKIPPED_NUMBERS))
    first_no = last.end.last_no + SKIPPED_BATCHES
    messages, event_no = _write_journal(reading.fold, found, first_no, filler)
    if last.head.role != "system":  # it has no events
        filler.add_event_row(event_no, _event_row(source, event_no, now_ms))
    filler.write()
    return Restored(messages, len(last.rows), reading.damaged_rows, last.end.last_no, event_no)


class _Reading:
    """The frames and rows of one store on their way."""

    def __init__(self, source: Source, filler: StoreFiller, wrote: Callable[[int], object]) -> None:
        self._source = source
        self._filler = filler
        self._wrote = wrote
        self._wanted: dict[int, Row] = dict(source.last.rows)
        self._chain = Chain()
        self.fold = Fold()
        self._last_no = 0
        self.damaged_rows: list[int] = []

    def add(self, block: Block) -> None:
        """Take the frames and rows of a block that are live."""
        try:
            if block.kind is Kind.ROWS:
                self._filler.add_body_rows(self._live_rows(block))
            elif block.kind is Kind.FRAMES:
                first_no = self._source.last.end.first_no
                for no, meta in unpack_blobs(block.unpacked()):
                    if no >= first_no:
                        self.fold.add(no, meta)
                        self._chain.follow(no, meta)
                        self._last_no = no
        except (StoreDamaged, BackupUnusable) as damage:
            raise _unusable(self._source, str(damage)) from damage

    def _live_rows(self, block: Block) -> Iterator[Blob]:
        for no, data in unpack_blobs(block.unpacked()):
            if self._wanted.get(no) != (body_rows.checksum_of(data), len(data)):
                continue
            del self._wanted[no]
            try:
                _, damaged = body_rows.read(no, data)
            except StoreDamaged:
                damaged = [0]
            if damaged:
                self.damaged_rows.append(no)
            self._wrote(len(data))
            yield no, data

    def check_complete(self) -> None:
        """Check that all frames and rows have come. Raises: BackupUnusable."""
        if self._wanted:
            raise _unusable(self._source, f"body row {min(self._wanted)} is in none of the files")
        last_no = self._source.last.end.last_no
        if self._last_no != last_no:
            raise _unusable(self._source, f"its last frame is {self._last_no}, and should be {last_no}")


def _unusable(source: Source, why: str) -> BackupUnusable:
    last = source.sections[-1].path
    return BackupUnusable(f"{last} cannot be used: the store '{source.last.head.name}' is not whole: {why}")


def _blocks(source: Source) -> Iterator[Block]:
    for section in source.sections:
        with section.path.open("rb") as file:
            yield from read_section(file, section.at, section.end, section.checksum)


def _write_journal(fold: Fold, found: Definitions, first_no: int, filler: StoreFiller) -> tuple[int, int]:
    """Write the live facts; return the number of messages, and of the last frame."""
    count = 0

    def see(queue_id: int, stored: list[MessageStored], is_known: bool) -> None:
        nonlocal count
        count += len(stored) if is_known else 0

    no = first_no
    for frame in renumbered_frames(fold.finish(), found, first_no, SKIPPED_NUMBERS, see):
        filler.add_frames([frame])
        no = frame[0]
    return count, no


def _event_row(source: Source, no: int, now_ms: int) -> bytes:
    """Return the event row that says what was restored, as the events of batch `no`."""
    reason = {
        "backed_up_at": source.taken_at,
        "skipped_batches": SKIPPED_BATCHES,
        "skipped_numbers": SKIPPED_NUMBERS,
    }
    event = event_rows.BLANK._replace(
        type=EventType.RESTORED,
        at_ms=now_ms,
        sequence_number=source.last.end.last_no,
        related_number=no,
        reason=json.dumps(reason),
    )
    return event_rows.seal(no, event_rows.pack([event]))
