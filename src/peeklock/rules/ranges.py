"""Things by the range of values that they are for: which are for a given value.

Owns: the sorted bounds. Must not know: what has a range, where values come from.

What has one bound is in a list sorted by it, so that one binary search divides what is for a value from what
is not. Windows, which have two, are sorted by the lower one. The value is not below those at the list's
beginning; of these, each block of `BLOCK` is looked through only if the highest upper bound in it is above
the value. Where windows do not overlap, that is one block. The highest bounds are computed when a value is
looked for first after windows have changed: some 50 us for 1,000 windows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any, Generic, TypeVar

from peeklock.rules.terms import Bound

T = TypeVar("T")

BLOCK = 32
"""Windows. Looking through one takes about as long as passing over as many."""


class Ranges(Generic[T]):
    """Things by range; values and bounds are of one kind, and none is not a number."""

    __slots__ = ("_above", "_below", "_highest", "_windows")

    def __init__(self) -> None:
        """Begin with nothing."""
        self._above: _Sorted[T] = _Sorted()
        self._below: _Sorted[T] = _Sorted()
        self._windows: _Sorted[tuple[Bound, T]] = _Sorted()
        self._highest: list[Bound] = []  # of each block of windows; empty until it is asked for

    def __len__(self) -> int:
        return sum(len(each.bounds) for each in (self._above, self._below, self._windows))

    def add(self, low: Bound | None, high: Bound | None, thing: T) -> None:
        """Add a thing; at least one of its bounds is given."""
        if low is None:
            assert high is not None
            self._below.add(high, thing)
        elif high is None:
            self._above.add(low, thing)
        else:
            self._windows.add(low, (high, thing))
            self._highest = []

    def remove(self, low: Bound | None, high: Bound | None, thing: T) -> None:
        """Remove a thing that was added so; ValueError if it is not there."""
        if low is None:
            assert high is not None
            self._below.remove(high, thing)
        elif high is None:
            self._above.remove(low, thing)
        else:
            self._windows.remove(low, (high, thing))
            self._highest = []

    def all(self) -> list[T]:
        """Return all things."""
        return self._above.things + self._below.things + [thing for _, thing in self._windows.things]

    def around(self, value: Any) -> list[T]:
        """Return what is for a value."""
        at = (value, 0)
        found = self._above.things[: bisect_right(self._above.bounds, at)]
        if self._below.bounds:
            found += self._below.things[bisect_right(self._below.bounds, at) :]
        if self._windows.bounds:
            self._add_windows(at, found)
        return found

    def _add_windows(self, at: Bound, found: list[T]) -> None:
        windows = self._windows.things
        if not self._highest:
            starts = range(0, len(windows), BLOCK)
            self._highest = [max(high for high, _ in windows[start : start + BLOCK]) for start in starts]
        end = bisect_right(self._windows.bounds, at)
        for start, highest in zip(range(0, end, BLOCK), self._highest, strict=False):
            if highest > at:
                block = windows[start : min(start + BLOCK, end)]
                found += [thing for high, thing in block if high > at]


class _Sorted(Generic[T]):
    """Things in the order of their bounds."""

    __slots__ = ("bounds", "things")

    def __init__(self) -> None:
        self.bounds: list[Bound] = []
        self.things: list[T] = []

    def add(self, bound: Bound, thing: T) -> None:
        place = bisect_right(self.bounds, bound)
        self.bounds.insert(place, bound)
        self.things.insert(place, thing)

    def remove(self, bound: Bound, thing: T) -> None:
        place = self.things.index(thing, bisect_left(self.bounds, bound))
        del self.bounds[place], self.things[place]
