"""Bodies in memory, by row and slot: uncommitted rows, and as many others as a budget allows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from peeklock.broker.vocabulary.message import LOST_BODY

BUDGET_BYTES: Final = 128 * 1024 * 1024
"""Payload bytes kept beyond the uncommitted ones. Source: architecture, bodies and back-pressure."""

PAYLOAD_OVERHEAD_BYTES: Final = 58
"""Memory of a payload beyond its bytes: 33 of object header, 8 of list entry, 17 of the allocator. Measured:
50 to 63 for payloads of 20 to 4,000 bytes, 73 for some of 600."""


def has_lost(payloads: Sequence[bytes]) -> bool:
    """Whether a row that was read is unreadable or has a damaged payload."""
    return not payloads or any(payload is LOST_BODY for payload in payloads)


class BodyCache:
    """A least-recently-used cache of body rows; uncommitted rows are pinned, since the store lacks them."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        """Start empty. A row above `budget_bytes` is kept until the next one comes."""
        self._budget_bytes = budget_bytes
        self._rows: OrderedDict[int, Sequence[bytes]] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._size_bytes = 0
        self.pinned: dict[int, Sequence[bytes]] = {}
        """Rows that are not yet durable."""
        self._latest = 0
        self.wanted: set[int] = set()
        """Rows being read for a connection; they must not be dropped from the store."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the committed rows in memory."""
        return self._size_bytes

    def get(self, row: int, slot: int) -> bytes | None:
        """Return a payload if it is in memory."""
        payloads = self._rows.get(row)
        if payloads is None:
            payloads = self.pinned.get(row)
            return None if payloads is None else payloads[slot]
        if row != self._latest:  # neighbours are read in sequence: touch a row once
            self._latest = row
            self._rows.move_to_end(row)
        return payloads[slot]

    def want(self, row: int) -> None:
        """Keep `row` in the store until `put`: it is being read."""
        self.wanted.add(row)

    def put(self, row: int, payloads: Sequence[bytes]) -> None:
        """Add a row that was read back."""
        self.wanted.discard(row)
        if row not in self.pinned and row not in self._rows:
            self._keep(row, payloads)

    def pin(self, row: int, payloads: Sequence[bytes]) -> None:
        """Add a new row, open or in flight."""
        self.pinned[row] = payloads

    def unpin(self, rows: Iterable[int]) -> None:
        """Move rows that are durable now into the budget."""
        for row in rows:
            self._keep(row, self.pinned.pop(row))

    def drop(self, row: int) -> None:
        """Remove a dead row."""
        if self._rows.pop(row, None) is not None:
            self._size_bytes -= self._sizes.pop(row)

    def _keep(self, row: int, payloads: Sequence[bytes]) -> None:
        size_bytes = sum(map(len, payloads)) + PAYLOAD_OVERHEAD_BYTES * len(payloads)
        self._rows[row] = payloads
        self._sizes[row] = size_bytes
        self._size_bytes += size_bytes
        self._latest = row
        while self._size_bytes > self._budget_bytes and len(self._rows) > 1:
            oldest, _ = self._rows.popitem(last=False)
            self._size_bytes -= self._sizes.pop(oldest)
