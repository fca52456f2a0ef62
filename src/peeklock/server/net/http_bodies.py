"""Bodies of HTTP requests while they arrive, and their limits; bodies of answers in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

CHUNKS_MAX = 1000
"""Of one body, and one more for each KiB above 1 MiB. Our choice: each costs as much as a small request, and
170,000 fit into 1 MiB."""

UNKNOWN_BODY_BYTES_MAX = 16 * 1024
"""Of a body before its request's token is checked. Our choice: most descriptions are smaller, and 4,000
unauthenticated connections hold 64 MiB of such bodies, not 4 GiB."""

MIB = 1024 * 1024

PIECE_BYTES = 256 * 1024
"""Of an answer, written at once. Our choice: within TLS it takes 0.3 ms."""


class Excess(Enum):
    """Why no more of a body is read."""

    SIZE = 0
    CHUNKS = 1
    BUDGET = 2
    """The budget of all bodies is used up."""


class BodyBudget:
    """The bytes that bodies of messages may take, over all connections."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, size: int) -> bool:
        """Count bytes; return False, and count none, if they do not fit."""
        if self.used + size > self.limit:
            return False
        self.used += size
        return True


class Body:
    """The body of a connection's current request."""

    __slots__ = ("_budget", "_bytes", "_chunks", "_taken", "bytes_max", "is_message", "token_checked")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._taken = 0
        self._bytes = bytearray()
        self.begin(0, is_message=False)

    def begin(self, bytes_max: int, *, is_message: bool) -> None:
        """Expect a body of up to so many bytes."""
        self.forget()
        self.bytes_max = bytes_max
        self._chunks = 0
        self.is_message = is_message
        """Only bodies of messages count in the budget."""
        self.token_checked = False
        """The token of the request has been checked, because its body is large."""

    def __len__(self) -> int:
        return len(self._bytes)

    def whole(self) -> bytes:
        return bytes(self._bytes)

    def add(self, data: bytes, *, begins_chunk: bool) -> Excess | None:
        """Add bytes; return why no more are accepted, or None."""
        self._bytes += data
        self._chunks += begins_chunk
        if len(self._bytes) > self.bytes_max:
            return Excess.SIZE
        if self._chunks > CHUNKS_MAX + max(0, len(self._bytes) - MIB) // 1024:
            return Excess.CHUNKS
        if self.is_message:
            if not self._budget.take(len(data)):
                return Excess.BUDGET
            self._taken += len(data)
        return None

    def forget(self) -> None:
        """Drop the bytes, and return them to the budget."""
        self._bytes.clear()
        self._budget.used -= self._taken
        self._taken = 0


def pieces(*parts: bytes) -> Iterator[bytes]:
    """Yield the body of an answer in pieces of a bounded size."""
    for part in parts:
        for first in range(0, len(part), PIECE_BYTES):
            yield part[first : first + PIECE_BYTES]
