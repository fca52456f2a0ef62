"""Bodies of HTTP requests while they arrive.

Owns: how large a body may be, in how many chunks it may come, what all messages that are not whole yet may
take together. Must not know: connections, answers, what a body says.
"""

from __future__ import annotations

from enum import Enum

CHUNKS_MAX = 1000
"""Of one body, and one more for each KiB above 1 MiB. Our choice: each costs as much as a small request, and
1 MiB would have room for 170,000."""

UNKNOWN_BODY_BYTES_MAX = 16 * 1024
"""Of a body before its request's token is looked at. Our choice: most descriptions are smaller, and four
thousand connections of whoever it may be hold 64 MiB by such bodies, not 4 GiB."""

MIB = 1024 * 1024


class Excess(Enum):
    """Why no more of a body is read."""

    SIZE = 0
    CHUNKS = 1
    ROOM = 2
    """All bodies together take what they may."""


class BodyBudget:
    """Bytes that the bodies of requests for messages may take, of all connections together."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, size: int) -> bool:
        """Count bytes; False = there is no room for them, and none was counted."""
        if self.used + size > self.limit:
            return False
        self.used += size
        return True


class Body:
    """The body of one request after the other."""

    __slots__ = ("_budget", "_bytes", "_chunks", "_taken", "bytes_max", "is_message", "token_checked")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._taken = 0
        self._bytes = bytearray()
        self.begin(0, is_message=False)

    def begin(self, bytes_max: int, *, is_message: bool) -> None:
        """Expect another body of up to so many bytes."""
        self.forget()
        self.bytes_max = bytes_max
        self._chunks = 0
        self.is_message = is_message
        """Only those of messages are counted in the budget."""
        self.token_checked = False
        """The token of the request has been looked at, because its body is large."""

    def __len__(self) -> int:
        return len(self._bytes)

    def whole(self) -> bytes:
        return bytes(self._bytes)

    def add(self, data: bytes, *, begins_chunk: bool) -> Excess | None:
        """Take what came; None = there may be more."""
        self._bytes += data
        self._chunks += begins_chunk
        if len(self._bytes) > self.bytes_max:
            return Excess.SIZE
        if self._chunks > CHUNKS_MAX + max(0, len(self._bytes) - MIB) // 1024:
            return Excess.CHUNKS
        if self.is_message:
            if not self._budget.take(len(data)):
                return Excess.ROOM
            self._taken += len(data)
        return None

    def forget(self) -> None:
        """Drop what came and give its room back."""
        self._bytes.clear()
        self._budget.used -= self._taken
        self._taken = 0
