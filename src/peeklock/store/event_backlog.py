"""How much of what happened has not been exported yet.

Owns: numbers and sizes of the event rows that a store has. Must not know: the rows themselves, who exports.

A dead exporter may leave millions of rows, so neighbours are kept as one group: 1 GiB of rows is 13 MB here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

EMPTY_ROW_BYTES = 17
"""A row of a batch in which nothing happened: the head alone, see `event_rows`."""

GROUP_BYTES_MAX = 16_384
"""A group ends before it is larger than this, but has one row at least. Our choice: no more than that can
`size_bytes` be wrong, a quarter of the smallest backlog that `--capture-backlog` allows."""


@dataclass(slots=True)
class _Group:
    """Rows with consecutive numbers."""

    first_no: int
    last_no: int
    size_bytes: int
    last_full_no: int
    """Number of the newest that holds events, 0 when none does."""


class EventBacklog:
    """The event rows of a store, oldest first. Rows are added and dropped by whoever writes; the
    figures may be read by another."""

    def __init__(self, rows: Iterable[tuple[int, int]]) -> None:
        """Args: rows: (number, bytes), by number."""
        self._groups: deque[_Group] = deque()
        self._count = 0
        self.size_bytes = 0
        """Of the rows together. When a part of a group was dropped, its rows count as equally large, but for
        the empty ones at its end: once all events are exported it is exact."""
        self.last_full_no = 0
        """Number of the newest row that holds events, also when it is gone; 0 when there was none."""
        for no, size_bytes in rows:
            self.add(no, size_bytes)

    @property
    def first_no(self) -> int | None:
        """Number of the oldest row, None when there is none."""
        try:
            return self._groups[0].first_no
        except IndexError:
            return None

    @property
    def last_no(self) -> int | None:
        """Number of the newest row, None when there is none."""
        try:
            return self._groups[-1].last_no
        except IndexError:
            return None

    def __len__(self) -> int:
        return self._count

    def add(self, no: int, size_bytes: int) -> None:
        """A row was written."""
        full_no = no if size_bytes > EMPTY_ROW_BYTES else 0
        newest = self._groups[-1] if self._groups else None
        if (
            newest is not None
            and no == newest.last_no + 1
            and newest.size_bytes + size_bytes <= GROUP_BYTES_MAX
        ):
            newest.last_no = no
            newest.size_bytes += size_bytes
            newest.last_full_no = full_no or newest.last_full_no
        else:
            self._groups.append(_Group(no, no, size_bytes, full_no))
        self._count += 1
        self.size_bytes += size_bytes
        self.last_full_no = full_no or self.last_full_no

    def drop_to(self, no: int) -> None:
        """The rows up to this number are gone."""
        groups = self._groups
        while groups and groups[0].last_no <= no:
            gone = groups.popleft()
            self._count -= gone.last_no - gone.first_no + 1
            self.size_bytes -= gone.size_bytes
        if groups and groups[0].first_no <= no:
            oldest = groups[0]
            gone_count, left_count = no - oldest.first_no + 1, oldest.last_no - no
            if no >= oldest.last_full_no:
                left_bytes = left_count * EMPTY_ROW_BYTES
            else:
                left_bytes = oldest.size_bytes * left_count // (gone_count + left_count)
            self._count -= gone_count
            self.size_bytes -= oldest.size_bytes - left_bytes
            oldest.first_no = no + 1
            oldest.size_bytes = left_bytes
