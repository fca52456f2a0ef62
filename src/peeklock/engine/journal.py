"""The frames of the journal: what each still holds, and how its head gets short again.

A message's `journal_no` names the frame of its last record, so the live count of a frame is the number of its
records that nothing later replaced. Frames at the head without live records are forgotten. A head frame with
some is read and its facts are recorded again; then it has none either. This starts at 4 MB and three times
what lives, and proceeds in slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from peeklock.broker.vocabulary.changes import NumbersIssued
from peeklock.broker.vocabulary.message import Message

JOURNAL_BYTES_MIN = 4 * 1024 * 1024
"""A journal up to this size is left alone. Source: architecture, reclaim."""

JOURNAL_FACTOR = 3
"""Size of the journal relative to what lives in it: each record is rewritten half a time on average. Source:
architecture, reclaim."""

STORED_RECORD_BYTES = 89
OVERLAY_RECORD_BYTES = 12  # and the overlay itself
TEXT_PLACES_BYTES = 8  # a record with texts is so much wider
TEXT_RECORD_BYTES = 4  # and the text itself, once a frame
NUMBERS_RECORD_BYTES = 32
PARTITION_NUMBER_BYTES = 8  # for each partition, in addition
ID_RECORD_BYTES = 32
"""Bytes of records in a frame, to estimate what lives; a test compares them with `store.encoding.frames`."""

HEAD_READ_BYTES = 64 * 1024
"""Head of the journal read per slice: at most 730 records, some 2 ms of work."""

TRUNCATE_BYTES_MAX = 512 * 1024
"""Frames forgotten by one commit. Our choice: many small rows, they cost four times as much as body rows."""

_session_id_of = attrgetter("session_id")
_dead_letter_source_of = attrgetter("dead_letter_source")


def extra_bytes(message: Message, texts: set[str | None]) -> int:
    """Return the bytes of a record beyond its fixed width.

    `texts` are those that its frame already has; the message's own are added.
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
    """Return the bytes of the record of a queue's counters."""
    return NUMBERS_RECORD_BYTES + PARTITION_NUMBER_BYTES * len(numbers.partitions)


class JournalLedger:
    """Counts the live records of each frame."""

    def __init__(self) -> None:
        self.first_no = 1
        self.frame_live = [0]  # one per frame, the open batch's last
        self.frame_sizes: list[int] = []  # of committed frames
        self.size_bytes = 0
        self.is_long = False
        """Whether the head is to be forgotten or recorded again, as of the last commit."""
        self.live_messages = 0
        self.id_frames: dict[int, int] = {}  # frame -> message ids recorded in it
        self.ids_recorded = 0
        self._extra_bytes = 0
        self._extra_messages = 0  # number of messages when that was counted
        self._pass_until: int | None = None
        self._pass_extra_bytes = 0

    @property
    def live_bytes(self) -> int:
        """Estimate of what lives in the journal; message ids count until their frame is forgotten.

        Overlays, texts and counters are not counted one by one. A pass, in which all that lives is recorded
        again, measures them; until the next one the measure shrinks with the number of messages. Without it,
        a journal of many large overlays would be rewritten endlessly.
        """
        extra = self._extra_bytes
        if self.live_messages < self._extra_messages:
            extra = extra * self.live_messages // self._extra_messages
        return self.live_messages * STORED_RECORD_BYTES + self.ids_recorded * ID_RECORD_BYTES + extra

    def _resized(self) -> None:
        size_bytes = self.size_bytes
        self.is_long = size_bytes > JOURNAL_BYTES_MIN and size_bytes > JOURNAL_FACTOR * self.live_bytes

    def add_extra(self, size_bytes: int, no: int) -> None:
        """Count bytes recorded again from frame `no` beyond the records of messages and their ids.

        Counters are recorded with each truncation, and count once a pass.
        """
        if self._pass_until is not None and no < self._pass_until:
            self._pass_extra_bytes += size_bytes

    def add_frame(self, size_bytes: int) -> None:
        """Count a committed frame."""
        self.frame_sizes.append(size_bytes)
        self.size_bytes += size_bytes
        if self._pass_until is not None and self.first_no >= self._pass_until:
            self._pass_until = None
            self._extra_bytes = self._pass_extra_bytes
            self._extra_messages = self.live_messages
        self._resized()

    def add_ids(self, count: int) -> None:
        """Count message ids recorded in the open batch."""
        no = self.first_no + len(self.frame_live) - 1
        self.id_frames[no] = self.id_frames.get(no, 0) + count
        self.ids_recorded += count

    def forget_ids(self, no: int) -> None:
        """Uncount the message ids of frame `no`: they lapsed or were recorded again."""
        self.ids_recorded -= self.id_frames.pop(no, 0)

    def take_truncation(self) -> int:
        """Return the number before which the open batch forgets frames of a long journal; 0 for none."""
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
        self.size_bytes -= size_bytes
        self._resized()
        return self.first_no

    def _begin_pass(self) -> None:
        """Measure from the open batch on what is recorded again, unless a pass is under way."""
        if self._pass_until is None:
            self._pass_until = self.first_no + len(self.frame_live) - 1
            self._pass_extra_bytes = 0

    def head_wanted(self) -> int:
        """Return how many bytes of the head to read, to record again what lives there; 0 for none."""
        if not self.is_long or not self.frame_sizes:
            return 0
        if not self.frame_live[0] and self.first_no not in self.id_frames:
            return 0
        self._begin_pass()  # not with the truncation: this one read may be the whole journal
        # At least as much as a commit under load adds, or the head would never be caught up with.
        return max(HEAD_READ_BYTES, 2 * self.frame_sizes[-1])

    def check_head(self, no: int) -> None:
        """Assert that nothing lives in frame `no`: all of it was recorded again."""
        index = no - self.first_no
        assert index < 0 or not self.frame_live[index], (
            f"frame {no} still has {self.frame_live[index]} records"
        )

    def restore(self, first_no: int, frame_sizes: Sequence[int], id_frames: dict[int, int]) -> None:
        """Set the figures of the journal as found; messages follow with `adopt`."""
        self.first_no = first_no
        self.frame_sizes = list(frame_sizes)
        self.frame_live = [0] * (len(frame_sizes) + 1)
        self.size_bytes = sum(frame_sizes)
        self.id_frames = id_frames
        self.ids_recorded = sum(id_frames.values())
        self._resized()

    def adopt(self, messages: Sequence[Message]) -> None:
        """Count restored messages of one queue. A text counts once, in however many frames it is."""
        texts = {*map(_session_id_of, messages), *map(_dead_letter_source_of, messages)} - {None}
        if texts:
            self._extra_bytes += len(messages) * TEXT_PLACES_BYTES
            self._extra_bytes += sum(TEXT_RECORD_BYTES + len(text.encode()) for text in texts)
        frame_live, first_no = self.frame_live, self.first_no
        for message in messages:
            frame_live[message.journal_no - first_no] += 1
            if message.overlay is not None:
                self._extra_bytes += OVERLAY_RECORD_BYTES + len(message.overlay)
        self.live_messages += len(messages)
        self._extra_messages = self.live_messages
        self._resized()

    def check(self, frame_numbers: Sequence[int]) -> None:
        """Assert that the counts agree with the frame numbers of all messages."""
        frame_live = [0] * len(self.frame_live)
        for no in frame_numbers:
            frame_live[no - self.first_no] += 1
        assert len(frame_numbers) == self.live_messages
        assert frame_live == self.frame_live
        assert sum(self.frame_sizes) == self.size_bytes
        assert sum(self.id_frames.values()) == self.ids_recorded
