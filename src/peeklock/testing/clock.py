"""A clock that only the test moves."""

from __future__ import annotations

START_MS = 1_700_000_000_000
"""2023-11-14T22:13:20Z. Our choice: a whole number of seconds, so that times are easy to read in tests."""


class ManualClock:
    """UTC time in ms. Call it, or read `now_ms`."""

    __slots__ = ("now_ms",)

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        """Return the time."""
        return self.now_ms

    def advance(self, ms: int) -> int:
        """Move the clock forward and return the new time."""
        if ms < 0:
            raise ValueError(f"a clock cannot go back ({ms} ms)")
        self.now_ms += ms
        return self.now_ms
