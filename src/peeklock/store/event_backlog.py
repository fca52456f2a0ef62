"""The numbers and sizes of the event rows that wait to be exported.

A dead exporter may leave millions of rows, so neighbours are kept as one group: 1 GiB of rows is 13 MB here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

EMPTY_ROW_BYTES = 17
"""A row of a batch without events: the head alone, see `event_rows`."""

GROUP_BYTES_MAX = 16_384
"""A group ends before it is larger than this, but has one row at least. Our choice: `size_bytes` is wrong by
no more than that, a quarter of the smallest `--capture-backlog`."""


@dataclass(slots=True)
class _Group:
    """Rows with consecutive numbers."""

    first_no: int
    last_no: int
    size_bytes: int
    last_full_no: int
    """Number of the newest row with events, 0 if there is none."""


class EventBacklog:
    """The event rows of a store, oldest first. One thread adds and drops rows; others may read figures."""

    def __init__(self, rows: Iterable[tuple[int, int]]) -> None:
        """Args: rows: (number, bytes), by number."""
        self._groups: deque[_Group] = deque()
        self._count = 0
        self.size_bytes = 0
        """Of all rows. After a part of a group is dropped, its rows count as equally large, except the empty
        ones at its end: once all events are exported the size is exact."""
        self.last_full_no = 0
        """Number of the newest row with events, also after it was dropped; 0 if there was none."""
        for no, size_bytes in rows:
            self.add(no, size_bytes)

    @property
    def first_no(self) -> int | None:
        """Number of the oldest row, None if there is none."""
        try:
            return self._groups[0].first_no
        except IndexError:
            return None

    @property
    def last_no(self) -> int | None:
        """Number of the newest row, None if there is none."""
        try:
            return self._groups[-1].last_no
        except IndexError:
            return None

    def __len__(self) -> int:
        return self._count

    def add(self, no: int, size_bytes: int) -> None:
        """Count a row that was written."""
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
        """Stop counting the rows up to this number."""
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
