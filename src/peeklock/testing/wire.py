"""A connection in memory between two ends, with the delays and breaks of a bad network, in virtual time.

The caller asks `next_ms` when bytes arrive at an end, and reads them then. There are two one-way pipes, each
a queue of (arrival time, bytes). Writes are split into pieces of random size with random delays, in order;
reads join what has arrived. A connection ends in one of the three ways of TCP:

    close(end)  orderly: the other end reads what was written before, then the end of stream.
    cut()       broken: some of the bytes under way are lost, both ends then read the end of stream.
    drop()      half open: bytes vanish in both directions without an error; only idle time-outs notice.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from random import Random

CLIENT = 0
BROKER = 1


class WireState(Enum):
    OPEN = "open"
    CUT = "cut"
    DROPPED = "dropped"


class MemoryWire:
    """Carries bytes between `CLIENT` and `BROKER`; deterministic for a given `Random`."""

    __slots__ = ("_delay_ms_max", "_ended", "_pipes", "_random", "_split", "state")

    def __init__(self, random: Random, *, delay_ms_max: int = 0, split: bool = False) -> None:
        """Connect the two ends.

        Args:
            random: decides sizes, delays and losses.
            delay_ms_max: each piece takes 0 to this many ms, and does not overtake.
            split: cut each write into up to 3 pieces at random places; else it is one piece.
        """
        self._random = random
        self._delay_ms_max = delay_ms_max
        self._split = split
        self._pipes: tuple[_Pipe, _Pipe] = (_Pipe(), _Pipe())  # by the end that reads
        self._ended = [False, False]  # by the end that closed
        self.state = WireState.OPEN

    def write(self, end: int, data: bytes, now_ms: int) -> None:
        """Send bytes from an end; after `close`, `cut` or `drop` they are lost, as with TCP."""
        if not data or self.state is not WireState.OPEN or self._ended[end]:
            return
        pipe = self._pipes[1 - end]
        start = 0
        if self._split and len(data) > 1:
            for _ in range(self._random.randrange(3)):
                stop = self._random.randrange(start, len(data))
                if stop > start:
                    pipe.put(now_ms + self._delay(), data[start:stop])
                    start = stop
        pipe.put(now_ms + self._delay(), data[start:])

    def read(self, end: int, now_ms: int) -> bytes:
        """Return all bytes that have arrived at an end."""
        return self._pipes[end].take(now_ms)

    def at_end(self, end: int, now_ms: int) -> bool:
        """Return whether an end has read everything and the stream has ended."""
        return self._pipes[end].over(now_ms)

    def next_ms(self, end: int) -> int | None:
        """Return when the next bytes, or the end of stream, arrive at an end; None = nothing is under way."""
        return self._pipes[end].next_ms()

    def close(self, end: int, now_ms: int) -> None:
        """End the stream from one end, in order: earlier writes still arrive."""
        if not self._ended[end]:
            self._ended[end] = True
            if self.state is WireState.OPEN:
                self._pipes[1 - end].end(now_ms + self._delay())

    def cut(self, now_ms: int) -> None:
        """Break the connection: each end reads a random part of what is under way, then the end of stream."""
        if self.state is WireState.OPEN:
            self.state = WireState.CUT
            for pipe in self._pipes:
                pipe.lose(self._random)
                pipe.end(now_ms + self._delay())

    def drop(self) -> None:
        """Lose everything from now on, in both directions, without an error."""
        if self.state is WireState.OPEN:
            self.state = WireState.DROPPED
            for pipe in self._pipes:
                pipe.clear()

    def _delay(self) -> int:
        return self._random.randint(0, self._delay_ms_max) if self._delay_ms_max else 0


class _Pipe:
    """One direction: pieces in order of arrival, then maybe the end of stream."""

    __slots__ = ("_end_ms", "_last_ms", "_pieces")

    def __init__(self) -> None:
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._last_ms = 0
        self._end_ms: int | None = None

    def put(self, due_ms: int, data: bytes) -> None:
        self._last_ms = max(self._last_ms, due_ms)
        self._pieces.append((self._last_ms, data))

    def end(self, due_ms: int) -> None:
        if self._end_ms is None:
            self._end_ms = max(self._last_ms, due_ms)

    def lose(self, random: Random) -> None:
        """Keep a random number of pieces, and a random part of the next one."""
        keep = random.randint(0, len(self._pieces))
        lost = list(self._pieces)[keep:]
        for _ in lost:
            self._pieces.pop()
        if lost:
            due_ms, data = lost[0]
            part = data[: random.randrange(len(data))]
            if part:
                self._pieces.append((due_ms, part))

    def clear(self) -> None:
        self._pieces.clear()
        self._end_ms = None

    def take(self, now_ms: int) -> bytes:
        pieces = self._pieces
        if not pieces or pieces[0][0] > now_ms:
            return b""
        taken: list[bytes] = []
        while pieces and pieces[0][0] <= now_ms:
            taken.append(pieces.popleft()[1])
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def over(self, now_ms: int) -> bool:
        return self._end_ms is not None and not self._pieces and self._end_ms <= now_ms

    def next_ms(self) -> int | None:
        return self._pieces[0][0] if self._pieces else self._end_ms
