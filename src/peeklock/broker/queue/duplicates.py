"""Duplicate detection: the message ids of one entity that are within the window. They outlive messages and
restarts.

Theory of operation. A dict maps the digest of an id to one int with the time it was seen and the first
message's number: 130 to 180 bytes an id, and 0.6 us. (Records in a bytes object for every few ids would take
43 bytes, and three times as long.) A small window is one dict; a large one is 256, by the first byte of the
digest, so that none takes long to grow. Entries are in the order of time, and a sweep through the dicts
removes the first ones. A dict does not free the space of removed entries at its front, so one that has lost a
third is copied.

A scheduled message that is cancelled was never enqueued: its id is free again, unless another message has it.
So the digests of scheduled messages are found by number too.
Source: semantics D-01, S-01; wire contract 10.3.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from hashlib import blake2b
from operator import attrgetter
from typing import Final

from peeklock.broker.vocabulary.addresses import SequenceNumber
from peeklock.broker.vocabulary.changes import MessageIdSeen
from peeklock.broker.vocabulary.quotas import DUPLICATE_IDS_MAX

DIGEST_BYTES: Final = 16
"""64 bits of collision resistance without knowledge of the key."""

PURGE_EVERY_MS: Final = 1_000
"""A lookup compares the exact time; the purge only frees memory, and needs no timer per id."""

_SWEEPS_A_WINDOW: Final = 16
"""Sweeps in a window: an id is in memory for a sixteenth of it too long."""

_ONE_SHARD_MAX: Final = 16_384
"""Ids in one dict: to divide them takes 2 ms."""

_SHARDS: Final = 256

_FREED: Final = 0
"""`MessageIdSeen.seen_at_ms` of an id that is free again."""

_NUMBER_BITS: Final = 63
_NUMBER_MAX: Final = (1 << _NUMBER_BITS) - 1


class Duplicates:
    """Message ids by keyed digest."""

    __slots__ = (
        "_future_ms",
        "_keyed",
        "_lost",
        "_mask",
        "_oldest_ms",
        "_shards",
        "_sweep_no",
        "_sweep_oldest_ms",
        "count",
        "count_max",
        "queue_id",
        "waiting",
        "window_ms",
    )

    def __init__(self, queue_id: int, key: bytes, window_ms: int, count_max: int = DUPLICATE_IDS_MAX) -> None:
        self.queue_id = queue_id
        self.window_ms = window_ms
        self.count_max = count_max
        self.count = 0  # of ids remembered
        self.waiting: dict[SequenceNumber, bytes] = {}  # digests of scheduled messages
        self._keyed = blake2b(digest_size=DIGEST_BYTES, key=key)
        self._shards: list[dict[bytes, int]] = [{}]  # seen_at_ms << 63 | sequence_number
        self._lost = [0]  # removed from each since it was copied
        self._mask = 0
        self._oldest_ms = 0  # not later than the oldest id
        self._future_ms = 0  # latest time from before the clock was set back; 0 = all are in order
        self._sweep_no = 0  # shard to continue with; 0 = no sweep
        self._sweep_oldest_ms = 0

    def __len__(self) -> int:
        return self.count

    @property
    def full(self) -> bool:
        """Whether no further id can be remembered: none is forgotten before its window ends."""
        return self.count >= self.count_max

    def digest(self, message_id: bytes, partition_key: str | None = None) -> bytes:
        """Return 16 bytes for an encoded message id; in a partitioned queue with the partition key."""
        hashed = self._keyed.copy()
        if partition_key is not None:
            # No encoded id begins with a digit, so no id alone equals a key with an id.
            key = partition_key.encode()
            hashed.update(b"%d:%b" % (len(key), key))
        hashed.update(message_id)
        return hashed.digest()

    def first_number(self, digest: bytes, now_ms: int) -> SequenceNumber | None:
        """Return the number of the first message with this id, None if there was none within the window."""
        no = digest[0] & self._mask
        seen = self._shards[no].get(digest)
        if seen is None:
            return None
        if (seen >> _NUMBER_BITS) + self.window_ms > now_ms:
            return SequenceNumber(seen & _NUMBER_MAX)
        del self._shards[no][digest]  # the next `note` puts it at the end
        self._lost[no] += 1
        self.count -= 1
        return None

    def note(
        self, digest: bytes, sequence_number: SequenceNumber, now_ms: int, instant_ms: int | None = None
    ) -> MessageIdSeen:
        """Remember an id that `first_number` did not find.

        Args:
            instant_ms: UTC, if it differs from `now_ms`: a restart measures the window by it.
        """
        if not self.count:
            self._reset(now_ms)
        self._shards[digest[0] & self._mask][digest] = now_ms << _NUMBER_BITS | sequence_number
        self.count += 1
        if not self._mask and self.count > _ONE_SHARD_MAX:
            self._divide()
        return MessageIdSeen(
            self.queue_id, digest, now_ms if instant_ms is None else instant_ms, sequence_number
        )

    def free(self, sequence_number: SequenceNumber) -> MessageIdSeen | None:
        """Forget the id of a cancelled scheduled message; return None if another message has it."""
        digest = self.waiting.get(sequence_number)
        if digest is None:
            return None
        no = digest[0] & self._mask
        seen = self._shards[no].get(digest)
        if seen is None or seen & _NUMBER_MAX != sequence_number:
            return None
        del self._shards[no][digest]
        self._lost[no] += 1
        self.count -= 1
        return MessageIdSeen(self.queue_id, digest, _FREED, sequence_number)

    def forget_all(self, now_ms: int) -> list[MessageIdSeen]:
        """Forget all ids; return the facts of that."""
        freed = [
            MessageIdSeen(self.queue_id, digest, _FREED, SequenceNumber(seen & _NUMBER_MAX))
            for shard in self._shards
            for digest, seen in shard.items()
        ]
        self.count, self._future_ms = 0, 0
        self.waiting.clear()
        self._reset(now_ms)
        return freed

    def next_ms(self) -> int | None:
        """Return when there may be something to forget."""
        if not self.count:
            return None
        return self._oldest_ms + self.window_ms + max(PURGE_EVERY_MS, self.window_ms // _SWEEPS_A_WINDOW)

    def purge(self, now_ms: int, count_max: int) -> int:
        """Continue the sweep that is due and forget about `count_max` ids; return the work done.

        There is more while `next_ms` is past.
        """
        if not self._sweep_no:
            self._sweep_oldest_ms = now_ms  # ids noted during the sweep are no older
        if self._future_ms + self.window_ms <= now_ms:
            self._future_ms = 0
        work = 0
        while work < count_max and self._sweep_no < len(self._shards):
            shard, forgotten = self._forget_past(self._sweep_no, now_ms, count_max)
            work += 1 + forgotten
            if forgotten < count_max:  # else this one may have more
                if shard:
                    oldest = min(shard.values()) if self._future_ms else next(iter(shard.values()))
                    self._sweep_oldest_ms = min(self._sweep_oldest_ms, oldest >> _NUMBER_BITS)
                self._sweep_no += 1
        if not self.count:
            self._reset(now_ms)
        elif self._sweep_no == len(self._shards):
            self._sweep_no = 0
            self._oldest_ms = self._sweep_oldest_ms
        return work

    def still_holds(self, change: MessageIdSeen, now_ms: int) -> bool:
        """Return whether a fact is the latest about its id and within the window."""
        seen = self._shards[change.digest[0] & self._mask].get(change.digest)
        return (
            seen is not None
            and change.seen_at_ms != _FREED
            and seen & _NUMBER_MAX == change.sequence_number
            and (seen >> _NUMBER_BITS) + self.window_ms > now_ms
        )

    def restore(
        self, changes: Iterable[MessageIdSeen], now_ms: int, scheduled: Container[SequenceNumber] = ()
    ) -> None:
        """Load facts of the journal, in any order, that are still within the window.

        Args:
            scheduled: sequence numbers of the scheduled messages.
        """
        by_time = attrgetter("seen_at_ms")
        within: list[MessageIdSeen] = []
        freed: set[tuple[bytes, SequenceNumber]] = set()
        for change in changes:
            if change.seen_at_ms == _FREED:
                freed.add((change.digest, change.sequence_number))
            elif change.seen_at_ms + self.window_ms > now_ms:
                within.append(change)
        latest = {
            change.digest: change
            for change in sorted(within, key=by_time)
            if (change.digest, change.sequence_number) not in freed
        }
        for change in sorted(latest.values(), key=by_time):
            self.note(change.digest, change.sequence_number, change.seen_at_ms)
            if change.sequence_number in scheduled:
                self.waiting[change.sequence_number] = change.digest
            if change.seen_at_ms > now_ms:
                self._future_ms = change.seen_at_ms
        self._oldest_ms = min(self._oldest_ms, now_ms)

    def check(self) -> None:
        """Assert that every id is in its shard and none is too old."""
        for no, shard in enumerate(self._shards):
            for digest, seen in shard.items():
                assert digest[0] & self._mask == no
                assert seen >> _NUMBER_BITS >= self._oldest_ms
        assert self.count == sum(map(len, self._shards))
        assert len(self._shards) == len(self._lost) == self._mask + 1

    def _reset(self, now_ms: int) -> None:
        """Free the memory of a larger window: no id is left."""
        self._shards = [{}]
        self._lost = [0]
        self._mask = 0
        self._oldest_ms = now_ms
        self._sweep_no = 0

    def _divide(self) -> None:
        """Divide one dict into many; the order within each stays."""
        (shard,) = self._shards
        self._shards = [{} for _ in range(_SHARDS)]
        for digest, seen in shard.items():
            self._shards[digest[0]][digest] = seen
        self._lost = [0] * _SHARDS
        self._mask = _SHARDS - 1
        self._sweep_no = 0

    def _forget_past(self, no: int, now_ms: int, count_max: int) -> tuple[dict[bytes, int], int]:
        """Remove at most `count_max` ids that are past the window; return the shard and their number."""
        shard = self._shards[no]
        limit = now_ms - self.window_ms + 1 << _NUMBER_BITS
        gone: list[bytes] = []
        for digest, seen in shard.items():
            if seen < limit:
                gone.append(digest)
                if len(gone) == count_max:
                    break
            elif not self._future_ms:
                break
        for digest in gone:
            del shard[digest]
        self.count -= len(gone)
        self._lost[no] += len(gone)
        if 3 * self._lost[no] > len(shard):
            shard = self._shards[no] = dict(shard)
            self._lost[no] = 0
        return shard, len(gone)
