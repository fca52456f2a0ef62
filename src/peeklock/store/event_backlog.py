"""How much of what happened has not been exported yet.

Owns: numbers and sizes of the event rows that a store has. Must not know: the rows themselves, who exports.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

EMPTY_ROW_BYTES = 17
"""A row of a batch in which nothing happened: the head alone, see `event_rows`."""


class EventBacklog:
    """The event rows of a store, oldest first. Rows are added and dropped by the thread that writes; the
    figures may be read by another."""

    def __init__(self, rows: Iterable[tuple[int, int]]) -> None:
        """Args: rows: (number, bytes), by number."""
        self._rows = deque(rows)
        self.size_bytes = sum(size for _, size in self._rows)
        self.last_full_no = max((no for no, size in self._rows if size > EMPTY_ROW_BYTES), default=0)
        """Number of the newest row that holds events, also when it is gone; 0 when there was none."""

    @property
    def first_no(self) -> int | None:
        """Number of the oldest row, None when there is none."""
        try:
            return self._rows[0][0]
        except IndexError:
            return None

    @property
    def last_no(self) -> int | None:
        """Number of the newest row, None when there is none."""
        try:
            return self._rows[-1][0]
        except IndexError:
            return None

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, no: int, size_bytes: int) -> None:
        """A row was written."""
        self._rows.append((no, size_bytes))
        self.size_bytes += size_bytes
        if size_bytes > EMPTY_ROW_BYTES:
            self.last_full_no = no

    def drop_to(self, no: int) -> None:
        """The rows up to this number are gone."""
        rows = self._rows
        while rows and rows[0][0] <= no:
            self.size_bytes -= rows.popleft()[1]
