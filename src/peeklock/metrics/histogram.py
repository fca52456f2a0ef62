"""Counts of observations by bucket."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds for a commit and a send: from a memory disk to a failing one."""

BYTES = tuple(float(1 << power) for power in range(8, 25, 2))
"""256 bytes to 16 MiB."""


class Histogram:
    """Observations, none of which is kept."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Begin with none; `bounds` are the buckets' upper bounds, ascending."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        """By bucket, the last one without an upper bound; not cumulative."""
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Add an observation, or as many of the same value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times
