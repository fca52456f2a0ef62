"""Replays a journal: `Fold` takes what lasts, `Chain` checks that no frame is missing or replaced.

Each frame states the checksum of the frame before it, under its own checksum. So a frame from an older copy
of the file, which is sound by itself, is found by the frame behind it. The journal drops frames at its head
alone, so the chain is whole from the first frame that is kept. A frame of version 1 states nothing: the chain
begins at the last one of them. No frame proves that it is the last one (see `sqlite.tail`).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from itertools import repeat
from typing import Final

from peeklock.broker.vocabulary.changes import MessageIdSeen, MessageStored, NumbersIssued
from peeklock.store.base import LiveFacts, StoreDamaged
from peeklock.store.encoding import frames, records
from peeklock.store.encoding.records import Texts

PIECE_RECORDS: Final = 5_000
"""Records decoded at a time after a fold: some 1 MB of objects beyond what lasts."""


class Fold:
    """Replays frames: the last record of a key wins.

    A record stays a slice of bytes, keyed by its position; one C call puts a whole run into the table or
    takes it out (about 0.2 us a record). What is left after the last frame is decoded. In the worst case a
    journal has three times the live records; an object for each would take three times as long. The texts of
    a frame are read when the first record needs one; equal texts become one object.
    """

    def __init__(self) -> None:
        self._first_no = 1
        self._sizes = array("L")
        self._stored: dict[int, dict[int, bytes]] = {}
        self._overlays: dict[int, dict[int, bytes]] = {}
        self._copies: dict[int, dict[int, int]] = {}
        self._texts: dict[int, bytes | Texts] = {}  # by frame; bytes until they are needed
        self._equal_texts: dict[str | None, str | None] = {}
        self._numbers: dict[int, tuple[int, NumbersIssued]] = {}
        self._ids: dict[tuple[int, bytes], MessageIdSeen] = {}
        self._id_frames: dict[int, int] = {}

    def add(self, no: int, meta: bytes) -> None:
        """Replay frame `no`, the next in the chain (`Chain` checks that). Raises: StoreDamaged."""
        runs = frames.runs(no, meta)
        if not self._sizes:
            self._first_no = no
        self._sizes.append(len(meta))
        for kind, queue_id, data in runs:
            if kind in frames.STORED_PAIRS:
                pairs = frames.STORED_PAIRS[kind].iter_unpack(data)
                self._stored.setdefault(queue_id, {}).update(pairs)
            elif kind == frames.REMOVED:
                for live in (
                    self._stored.get(queue_id),
                    self._overlays.get(queue_id),
                    self._copies.get(queue_id),
                ):
                    if live:
                        deque(map(live.pop, frames.read_positions(data), repeat(None)), maxlen=0)
            elif kind == frames.ID_SEEN:
                ids = frames.read_ids(queue_id, data)
                self._id_frames[no] = self._id_frames.get(no, 0) + len(ids)
                self._ids.update(((queue_id, seen.digest), seen) for seen in ids)
            elif kind == frames.OVERLAYS:
                self._overlays.setdefault(queue_id, {}).update(frames.read_overlays(data))
            elif kind == frames.COPIES_LEFT:
                self._copies.setdefault(queue_id, {}).update(frames.read_copies_left(data))
            elif kind == frames.TEXTS:
                self._texts[no] = data
            else:
                for numbers in frames.read_numbers(kind, data):
                    self._numbers[numbers.queue_id] = (no, numbers)

    def finish(self) -> LiveFacts:
        """Return what lasts; use the fold once: taking the messages frees its memory."""
        return LiveFacts(
            self._first_no,
            self._sizes,
            self._take_messages(),
            list(self._numbers.values()),
            list(self._ids.values()),
            self._id_frames,
        )

    def _take_messages(self) -> Iterator[tuple[int, list[MessageStored]]]:
        while self._stored:
            queue_id, stored = self._stored.popitem()
            overlays = self._overlays.pop(queue_id, {})
            copies = self._copies.pop(queue_id, {})
            # The table takes 42 to 84 bytes an entry. It is freed before any message is made, and each record
            # with its piece: otherwise both forms of all messages are in memory at once.
            positions, rests = list(stored), list(stored.values())
            del stored
            for start in range(0, len(positions), PIECE_RECORDS):
                piece = slice(start, start + PIECE_RECORDS)
                taken = rests[piece]
                rests[piece] = repeat(b"", len(taken))
                found = records.messages(queue_id, positions[piece], taken, overlays, self._texts_of)
                del taken
                records.set_copies_left(found, copies)
                yield queue_id, found
                del found

    def _texts_of(self, no: int) -> Texts:
        texts = self._texts[no]
        if isinstance(texts, bytes):
            read = frames.read_texts(no, texts)
            texts = self._texts[no] = list(map(self._equal_texts.setdefault, read, read))
        return texts


class Chain:
    """Follows frames in their order."""

    def __init__(self) -> None:
        self._next_no: int | None = None  # None before the first frame
        self._checksum: int | None = None  # of the frame before, None = unknown

    def follow(self, no: int, meta: bytes) -> None:
        """Check that a sound frame follows the frame before. Raises: StoreDamaged; go on all the same."""
        expected, checksum = self._next_no, self._checksum
        self._next_no, self._checksum = no + 1, frames.checksum_of(meta)
        if expected is not None and no != expected:
            raise StoreDamaged(_gap(expected, no))
        previous = frames.previous_of(meta)
        if checksum is not None and previous is not None and previous != checksum:
            raise StoreDamaged(
                f"frame {no} does not follow frame {no - 1}: it was written after one with the checksum "
                f"{previous:08x}, and frame {no - 1} has {checksum:08x}"
            )

    def follow_damaged(self, no: int) -> None:
        """Check a damaged frame, and the frame after it, by number alone. Raises: StoreDamaged."""
        expected = self._next_no
        self._next_no, self._checksum = no + 1, None
        if expected is not None and no != expected:
            raise StoreDamaged(_gap(expected, no))


def _gap(expected: int, found: int) -> str:
    missing = f"frame {expected} is" if found == expected + 1 else f"frames {expected} to {found - 1} are"
    return f"{missing} missing from the journal: frame {found} comes next"
