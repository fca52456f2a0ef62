"""Verifies a store in a database, for `peeklock check`: reads everything, changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from peeklock.store.base import Blob, Entry
from peeklock.store.postgres.reader import PostgresReader

PIECE_BYTES = 4 * 1024 * 1024


class PostgresRows:
    """See `store.check.Rows`."""

    def __init__(self, reader: PostgresReader) -> None:
        """`reader` is at one instant meanwhile."""
        self._reader = reader

    def entries(self) -> Iterable[Entry]:
        return self._reader.entries()

    def journal(self) -> Iterable[Blob]:
        return _all(self._reader.frames)

    def bodies(self) -> Iterable[Blob]:
        return _all(self._reader.body_rows)

    def events(self) -> Iterable[Blob]:
        return _all(self._reader.event_rows)


def _all(read: Callable[[int, int], list[Blob]]) -> Iterator[Blob]:
    after = 0
    while found := read(after, PIECE_BYTES):
        yield from found
        after = found[-1][0]
