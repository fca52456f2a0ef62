"""An ordered map from position to message, at about 8 bytes an entry.

Theory of operation. Positions are consecutive, so 256 neighbours share a chunk. A chunk with few messages is
a small dict by position; a fuller one is a list of 256 places. Chunk ids are kept sorted, so iteration can
start anywhere in O(log n). A dict or heap entry per message would take 42 to 110 bytes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Final, final

from peeklock.broker.vocabulary.message import Message

CHUNK_BITS: Final = 8
CHUNK_SIZE: Final = 1 << CHUNK_BITS
_PLACE: Final = CHUNK_SIZE - 1

SPARSE_MAX: Final = 40
"""Entries of a dict chunk: with one more, its table (2272 bytes) exceeds a list of 256 places (2104)."""
DENSE_MIN: Final = 12
"""Entries of a list chunk; far below SPARSE_MAX, so that a chunk does not change back and forth."""


@final
class _Dense:
    """256 places, and the number of those taken."""

    __slots__ = ("places", "taken")

    def __init__(self, sparse: dict[int, Message]) -> None:
        self.places: list[Message | None] = [None] * CHUNK_SIZE
        for position, message in sparse.items():
            self.places[position & _PLACE] = message
        self.taken = len(sparse)


class MessageTable:
    """Messages by ascending position. It must not change during an iteration."""

    __slots__ = ("_chunk_ids", "_chunks", "_count")

    def __init__(self) -> None:
        self._chunks: dict[int, _Dense | dict[int, Message]] = {}
        self._chunk_ids: list[int] = []  # sorted
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Message]:
        return self.iterate(0)

    def get(self, position: int) -> Message | None:
        """Return the message at a position, or None."""
        chunk = self._chunks.get(position >> CHUNK_BITS)
        if chunk is None:
            return None
        if type(chunk) is _Dense:
            return chunk.places[position & _PLACE]
        return chunk.get(position)

    def put(self, position: int, message: Message) -> None:
        """Add a message at a free position."""
        chunk_id = position >> CHUNK_BITS
        chunk = self._chunks.get(chunk_id)
        self._count += 1
        if chunk is None:
            self._chunks[chunk_id] = {position: message}
            ids = self._chunk_ids
            if not ids or chunk_id > ids[-1]:
                ids.append(chunk_id)
            else:
                insort(ids, chunk_id)
        elif type(chunk) is _Dense:
            chunk.places[position & _PLACE] = message
            chunk.taken += 1
        else:
            chunk[position] = message
            if len(chunk) > SPARSE_MAX:
                self._chunks[chunk_id] = _Dense(chunk)

    def remove(self, position: int) -> Message | None:
        """Remove and return the message at a position; None if there is none."""
        chunk_id = position >> CHUNK_BITS
        chunk = self._chunks.get(chunk_id)
        if chunk is None:
            return None
        if type(chunk) is _Dense:
            places = chunk.places
            message = places[position & _PLACE]
            if message is None:
                return None
            places[position & _PLACE] = None
            chunk.taken -= 1
            if chunk.taken < DENSE_MIN:
                base = chunk_id << CHUNK_BITS
                self._chunks[chunk_id] = {
                    base + place: kept for place, kept in enumerate(places) if kept is not None
                }
        else:
            message = chunk.pop(position, None)
            if message is None:
                return None
            if not chunk:
                self._forget(chunk_id)
        self._count -= 1
        return message

    def first_from(self, position: int) -> Message | None:
        """Return the message with the lowest position from the given one on."""
        found = self.get(position)
        if found is not None:
            return found
        return next(self.iterate(position), None)

    def iterate(self, position: int) -> Iterator[Message]:
        """Yield the messages from a position on."""
        ids = self._chunk_ids
        first_id = position >> CHUNK_BITS
        for index in range(bisect_left(ids, first_id), len(ids)):
            chunk = self._chunks[ids[index]]
            if isinstance(chunk, dict):
                for found in sorted(chunk):
                    if found >= position:
                        yield chunk[found]
            else:
                first = position & _PLACE if ids[index] == first_id else 0
                for message in chunk.places[first:]:
                    if message is not None:
                        yield message

    @property
    def chunk_ids(self) -> list[int]:
        """Ids of the chunks with messages, sorted."""
        return self._chunk_ids

    def chunk(self, chunk_id: int) -> list[Message]:
        """Return the messages of one chunk in order."""
        chunk = self._chunks.get(chunk_id)
        if chunk is None:
            return []
        if isinstance(chunk, dict):
            return [chunk[position] for position in sorted(chunk)]
        return [message for message in chunk.places if message is not None]

    def has_chunk(self, chunk_id: int) -> bool:
        return chunk_id in self._chunks

    @property
    def chunk_count(self) -> int:
        return len(self._chunks)

    def fill(self, entries: Iterable[tuple[int, Message]]) -> None:
        """Fill an empty table with pairs by ascending position, faster than one by one."""
        assert not self._count
        chunk_id = -1
        sparse: dict[int, Message] = {}
        for position, message in entries:
            if position >> CHUNK_BITS != chunk_id:
                self._close_chunk(chunk_id, sparse)
                chunk_id = position >> CHUNK_BITS
                sparse = {}
            sparse[position] = message
        self._close_chunk(chunk_id, sparse)

    def check(self) -> None:
        """Assert that the indexes agree."""
        assert self._chunk_ids == sorted(self._chunks)
        count = 0
        for chunk_id, chunk in self._chunks.items():
            if isinstance(chunk, dict):
                assert 0 < len(chunk) <= SPARSE_MAX
                assert all(position >> CHUNK_BITS == chunk_id for position in chunk)
                count += len(chunk)
            else:
                assert len(chunk.places) == CHUNK_SIZE
                assert chunk.taken == sum(message is not None for message in chunk.places) >= DENSE_MIN
                count += chunk.taken
        assert count == self._count

    def _close_chunk(self, chunk_id: int, sparse: dict[int, Message]) -> None:
        if sparse:
            self._chunks[chunk_id] = _Dense(sparse) if len(sparse) > SPARSE_MAX else sparse
            self._chunk_ids.append(chunk_id)
            self._count += len(sparse)

    def _forget(self, chunk_id: int) -> None:
        del self._chunks[chunk_id]
        ids = self._chunk_ids
        if ids[-1] == chunk_id:
            ids.pop()
        else:
            del ids[bisect_left(ids, chunk_id)]
