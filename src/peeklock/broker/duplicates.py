"""Which message ids were seen lately.

Owns: the window of one entity. Must not know: what happens to a duplicate. An id outlives its message, and a
restart.

Theory of operation: a record is 32 bytes: the digest, when it was seen, the first message's number. Records
stand in small buckets by the first bytes of the digest, each bucket one bytes object in order of time, so
that a look-up is one search in about 256 bytes and an id takes about 43 bytes, where a dict of objects takes
150 to 220. There is always one bucket for about 8 records: each 8th new record splits one bucket in two
(linear hashing), so that a large window never has to be rebuilt at once. What is past its window stands in
front of its bucket; it goes when the bucket is written to, or else when the sweep comes by.
Source: semantics D-01, S-01; wire contract 10.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from operator import attrgetter
from struct import Struct

from peeklock.broker.changes import MessageIdSeen
from peeklock.broker.quotas import DUPLICATE_IDS_MAX

DIGEST_BYTES = 16
"""64 bits of collision resistance against whoever does not know the key."""

PURGE_EVERY_MS = 1_000
"""An id is looked up by its exact time; forgetting it only frees memory, and need not wake anybody per id."""

_SWEEPS_A_WINDOW = 16
"""A sweep looks at every bucket; so many a window leave an id in memory for a sixteenth of it too long."""

_IDS_A_BUCKET = 8
"""On average. Twice as many make a search slower (0.15 us instead of 0.1), half as many take 7 bytes more."""

_RECORD = Struct(f"<{DIGEST_BYTES}sQQ")
_SIZE = _RECORD.size
_pack = _RECORD.pack
_seen_at = Struct(f"<{DIGEST_BYTES}xQ").unpack_from
_hashed = Struct("<I").unpack_from
_all_hashed = Struct(f"<I{_SIZE - 4}x").iter_unpack


class Duplicates:
    """Message ids by keyed digest."""

    __slots__ = (
        "_buckets",
        "_count",
        "_count_to_split",
        "_keyed",
        "_mask",
        "_oldest_ms",
        "_sweep_no",
        "_sweep_oldest_ms",
        "count_max",
        "queue_id",
        "window_ms",
    )

    def __init__(self, queue_id: int, key: bytes, window_ms: int, count_max: int = DUPLICATE_IDS_MAX) -> None:
        self.queue_id = queue_id
        self.window_ms = window_ms
        self.count_max = count_max
        self._keyed = blake2b(digest_size=DIGEST_BYTES, key=key)
        self._buckets = [b""]
        self._mask = 0  # of the smallest power of two that is not below the number of buckets
        self._count = 0
        self._count_to_split = _IDS_A_BUCKET
        self._oldest_ms = 0  # no record is older
        self._sweep_no = 0  # bucket to go on with; 0 = no sweep under way
        self._sweep_oldest_ms = 0

    def __len__(self) -> int:
        return self._count

    @property
    def full(self) -> bool:
        """Whether no further id can be remembered: none that is promised for the window is forgotten for
        it."""
        return self._count >= self.count_max

    def digest(self, message_id: bytes, partition_key: str | None = None) -> bytes:
        """Name an encoded message id by 16 bytes; in a partitioned queue together with the partition key."""
        hashed = self._keyed.copy()
        if partition_key is not None:
            # No encoded id begins with a digit, so that no id alone looks like a key with an id.
            key = partition_key.encode()
            hashed.update(b"%d:%b" % (len(key), key))
        hashed.update(message_id)
        return hashed.digest()

    def first_number(self, digest: bytes, now_ms: int) -> int | None:
        """Give the sequence number of the message that had this id first, None when none had within the
        window."""
        no = _hashed(digest)[0] & self._mask
        buckets = self._buckets
        if no >= len(buckets):
            no &= self._mask >> 1
        bucket = buckets[no]
        if digest not in bucket:
            return None
        at = _find(bucket, digest)
        if at < 0:
            return None
        _, seen_at_ms, number = _RECORD.unpack_from(bucket, at)
        if seen_at_ms + self.window_ms > now_ms:
            return int(number)
        buckets[no] = bucket[:at] + bucket[at + _SIZE :]  # so that no id stands twice
        self._count -= 1
        return None

    def note(self, digest: bytes, sequence_number: int, now_ms: int) -> MessageIdSeen:
        """Remember an id that `first_number` did not find."""
        if not self._count:
            self._start_anew(now_ms)
        self._put(digest, sequence_number, now_ms, now_ms)
        return MessageIdSeen(self.queue_id, digest, now_ms, sequence_number)

    def _put(self, digest: bytes, sequence_number: int, seen_at_ms: int, now_ms: int) -> None:
        no = _hashed(digest)[0] & self._mask
        buckets = self._buckets
        if no >= len(buckets):
            no &= self._mask >> 1
        bucket = buckets[no]
        if bucket and _seen_at(bucket)[0] + self.window_ms <= now_ms:
            bucket = self._without_past(bucket, now_ms)
        at = len(bucket)
        while at and _seen_at(bucket, at - _SIZE)[0] > seen_at_ms:
            at -= _SIZE  # from before the clock was set back
        buckets[no] = bucket[:at] + _pack(digest, seen_at_ms, sequence_number) + bucket[at:]
        self._count += 1
        if self._count > self._count_to_split:
            self._split()

    def next_ms(self) -> int | None:
        """When there may be something to forget."""
        if not self._count:
            return None
        return self._oldest_ms + self.window_ms + max(PURGE_EVERY_MS, self.window_ms // _SWEEPS_A_WINDOW)

    def purge(self, now_ms: int, count_max: int) -> int:
        """Go on with the sweep that is due, over so many buckets; answer the work done.

        While `next_ms` is past afterwards, there is more.
        """
        if not self._sweep_no:
            self._sweep_oldest_ms = now_ms  # what comes while the sweep goes on is no older
        buckets = self._buckets
        start = self._sweep_no
        end = min(start + count_max, len(buckets))
        for no in range(start, end):
            bucket = buckets[no]
            if bucket and _seen_at(bucket)[0] + self.window_ms <= now_ms:
                bucket = buckets[no] = self._without_past(bucket, now_ms)
            if bucket:
                self._sweep_oldest_ms = min(self._sweep_oldest_ms, _seen_at(bucket)[0])
        self._sweep_no = end
        if not self._count:
            self._start_anew(now_ms)
        elif end == len(buckets):
            self._sweep_no = 0
            self._oldest_ms = self._sweep_oldest_ms
        return end - start

    def still_holds(self, change: MessageIdSeen, now_ms: int) -> bool:
        """Whether a fact about an id is still the latest and within the window."""
        if change.seen_at_ms + self.window_ms <= now_ms:
            return False
        record = _pack(change.digest, change.seen_at_ms, change.sequence_number)
        return _find(self._bucket(change.digest), record) >= 0

    def restore(self, changes: Iterable[MessageIdSeen], now_ms: int) -> None:
        """Load what the journal said, in any order, and is still within the window."""
        by_time = attrgetter("seen_at_ms")
        within = [change for change in changes if change.seen_at_ms + self.window_ms > now_ms]
        latest = {change.digest: change for change in sorted(within, key=by_time)}
        # The clock may have been set back meanwhile: then nothing may be older than now.
        self._start_anew(min([now_ms, *(change.seen_at_ms for change in latest.values())]))
        for change in sorted(latest.values(), key=by_time):
            self._put(change.digest, change.sequence_number, change.seen_at_ms, now_ms)

    def check(self) -> None:
        """Every id stands once, in its bucket; no record is older than is said."""
        digests = set()
        for bucket in self._buckets:
            for digest, seen_at_ms, _ in _RECORD.iter_unpack(bucket):
                assert self._bucket(digest) is bucket
                assert seen_at_ms >= self._oldest_ms
                digests.add(digest)
        assert len(digests) == self._count == sum(len(bucket) for bucket in self._buckets) // _SIZE

    def _bucket(self, digest: bytes) -> bytes:
        no: int = _hashed(digest)[0] & self._mask
        return self._buckets[no if no < len(self._buckets) else no & self._mask >> 1]

    def _start_anew(self, now_ms: int) -> None:
        """Let the memory of a larger window go: nothing is remembered now."""
        self._buckets = [b""]
        self._mask = 0
        self._count_to_split = _IDS_A_BUCKET
        self._oldest_ms = now_ms
        self._sweep_no = 0

    def _split(self) -> None:
        """Add one bucket, and move there what belongs to it."""
        no = len(self._buckets)
        if no > self._mask:
            self._mask = self._mask * 2 + 1
        mask = self._mask
        bucket = self._buckets[no & mask >> 1]
        kept: list[bytes] = []
        moved: list[bytes] = []
        at = 0
        for (hashed,) in _all_hashed(bucket):
            (moved if hashed & mask == no else kept).append(bucket[at : at + _SIZE])
            at += _SIZE
        self._buckets[no & mask >> 1] = b"".join(kept)
        self._buckets.append(b"".join(moved))
        self._count_to_split += _IDS_A_BUCKET

    def _without_past(self, bucket: bytes, now_ms: int) -> bytes:
        """Drop the records in front that are past their window."""
        end = _SIZE
        while end < len(bucket) and _seen_at(bucket, end)[0] + self.window_ms <= now_ms:
            end += _SIZE
        self._count -= end // _SIZE
        return bucket[end:]


def _find(bucket: bytes, start: bytes) -> int:
    """Give the offset of the record that starts so, -1 when there is none."""
    at = bucket.find(start)
    while at > 0 and at % _SIZE:  # it stands across two records by chance
        at = bucket.find(start, at + 1)
    return at
