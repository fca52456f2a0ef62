"""Which message ids were seen lately.

Owns: the window of one queue. Must not know: what happens to a duplicate. An id outlives its message, and a
restart.
Source: semantics D-01, S-01; wire contract 10.3.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import islice

from peeklock.broker.changes import MessageIdSeen

DIGEST_BYTES = 16
"""64 bits of collision resistance against whoever does not know the key."""

PURGE_EVERY_MS = 1_000
"""An id is looked up by its exact time; forgetting it only frees memory, and need not wake anybody per id."""

_NUMBER_BITS = 63
_NUMBER_MAX = (1 << _NUMBER_BITS) - 1


class Duplicates:
    """Message ids by keyed digest, in the order first seen.

    The value is one int, seen_at_ms << 63 | sequence_number: 40 bytes instead of 136 for a tuple of two.
    """

    __slots__ = ("_key", "_seen", "queue_id", "window_ms")

    def __init__(self, queue_id: int, key: bytes, window_ms: int) -> None:
        self.queue_id = queue_id
        self.window_ms = window_ms
        self._key = key
        self._seen: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def digest(self, message_id: bytes) -> bytes:
        """Name an encoded message id by 16 bytes."""
        return blake2b(message_id, digest_size=DIGEST_BYTES, key=self._key).digest()

    def first_number(self, digest: bytes, now_ms: int) -> int | None:
        """Give the sequence number of the message that had this id first, None when none had within the
        window."""
        seen = self._seen.get(digest)
        if seen is None or (seen >> _NUMBER_BITS) + self.window_ms <= now_ms:
            return None
        return seen & _NUMBER_MAX

    def note(self, digest: bytes, sequence_number: int, now_ms: int) -> MessageIdSeen:
        """Remember an id that was not within the window."""
        self._seen.pop(digest, None)  # one past its window goes to the end of the order
        self._seen[digest] = now_ms << _NUMBER_BITS | sequence_number
        return MessageIdSeen(self.queue_id, digest, now_ms, sequence_number)

    def next_ms(self) -> int | None:
        """When there is something to forget."""
        for seen in self._seen.values():
            return (seen >> _NUMBER_BITS) + self.window_ms + PURGE_EVERY_MS
        return None

    def purge(self, now_ms: int, count_max: int) -> int:
        """Forget ids past their window, at most so many; answer how many."""
        limit = now_ms - self.window_ms + 1 << _NUMBER_BITS
        gone = [digest for digest, seen in islice(self._seen.items(), count_max) if seen < limit]
        for digest in gone:
            del self._seen[digest]
        return len(gone)

    def still_holds(self, change: MessageIdSeen, now_ms: int) -> bool:
        """Whether a fact about an id is still the latest and within the window."""
        seen = self._seen.get(change.digest)
        return seen == change.seen_at_ms << _NUMBER_BITS | change.sequence_number and (
            change.seen_at_ms + self.window_ms > now_ms
        )

    def restore(self, changes: list[MessageIdSeen], now_ms: int) -> None:
        """Load what the journal said, in any order, and is still within the window."""
        within = [change for change in changes if change.seen_at_ms + self.window_ms > now_ms]
        for change in sorted(within, key=lambda change: change.seen_at_ms):
            self._seen.pop(change.digest, None)
            self._seen[change.digest] = change.seen_at_ms << _NUMBER_BITS | change.sequence_number
