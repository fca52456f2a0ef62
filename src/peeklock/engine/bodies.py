"""Bodies in memory: rows not yet durable, and as many others as a budget allows.

Owns: payloads by (row, slot), which rows stay, which are waited for. Must not know: messages, where rows are
kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from peeklock.broker.vocabulary.message import LOST_BODY

BUDGET_BYTES = 128 * 1024 * 1024
"""Payload bytes kept beyond the uncommitted ones. Source: architecture, bodies and back-pressure."""

PAYLOAD_OVERHEAD_BYTES = 58
"""What a payload takes in memory beyond its bytes: 33 of object head, 8 of list entry, and 17 that the
allocator adds and rounds up. Measured: 50 to 63 for payloads of 20 to 4,000 bytes, 73 for some of 600."""


def has_lost(payloads: list[bytes]) -> bool:
    """Whether a row that was read has a payload that is damaged, or cannot be read at all."""
    return not payloads or any(payload is LOST_BODY for payload in payloads)


class BodyCache:
    """A least-recently-used cache of body rows; an uncommitted row is pinned, since it is nowhere else."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        """Start empty. A row larger than `budget_bytes` is kept only until the next one comes."""
        self._budget_bytes = budget_bytes
        self._rows: OrderedDict[int, list[bytes]] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._size_bytes = 0
        self.pinned: dict[int, list[bytes]] = {}
        """Rows that are not yet durable."""
        self._latest = 0
        self.wanted: set[int] = set()
        """Rows that someone waits for; they must not be dropped from the store."""

    @property
    def size_bytes(self) -> int:
        """Bytes of committed rows held."""
        return self._size_bytes

    def get(self, row: int, slot: int) -> bytes | None:
        """Give a payload if it is in memory."""
        payloads = self._rows.get(row)
        if payloads is None:
            payloads = self.pinned.get(row)
            return None if payloads is None else payloads[slot]
        if row != self._latest:  # neighbours come one after the other: touch a row once
            self._latest = row
            self._rows.move_to_end(row)
        return payloads[slot]

    def want(self, row: int) -> None:
        """Announce that `row` is being read; it is not dropped until `put`."""
        self.wanted.add(row)

    def put(self, row: int, payloads: list[bytes]) -> None:
        """Take a row that was read back."""
        self.wanted.discard(row)
        if row not in self.pinned and row not in self._rows:
            self._keep(row, payloads)

    def pin(self, row: int, payloads: list[bytes]) -> None:
        """Take a new row, still growing or on its way to the disk."""
        self.pinned[row] = payloads

    def unpin(self, rows: Iterable[int]) -> None:
        """Let rows that are durable now compete for the budget."""
        for row in rows:
            self._keep(row, self.pinned.pop(row))

    def drop(self, row: int) -> None:
        """Forget a row in which nothing lives."""
        if self._rows.pop(row, None) is not None:
            self._size_bytes -= self._sizes.pop(row)

    def _keep(self, row: int, payloads: list[bytes]) -> None:
        size_bytes = sum(map(len, payloads)) + PAYLOAD_OVERHEAD_BYTES * len(payloads)
        self._rows[row] = payloads
        self._sizes[row] = size_bytes
        self._size_bytes += size_bytes
        self._latest = row
        while self._size_bytes > self._budget_bytes and len(self._rows) > 1:
            oldest, _ = self._rows.popitem(last=False)
            self._size_bytes -= self._sizes.pop(oldest)
