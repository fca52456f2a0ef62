"""Decides which commits the event loop does itself and which the writing thread does.

Pure: the duration of a commit and the time are arguments. A commit in the thread costs some 40 us of CPU for
the way there and back, and twice that until a client has its answer. The loop blocks while it commits, so it
only does short commits: little to write, on a disk that is usually quick. Commits in the thread are timed
too, so that a disk that becomes quick again is noticed.

While more than one store commits, the threads do all commits, so that no store waits for the disk of another.
"""

from __future__ import annotations

import math

QUICK_S = 0.000_5
"""If commits usually take longer, the thread does them. Our choice: half of what purge or expiry may take of
a turn. So the loop waits for a disk that syncs in 100 to 300 us, not for one that needs a millisecond."""

WEIGHT = 1 / 8
"""Of the last commit in the average."""

SLOW_S = 4 * QUICK_S
"""A longer commit counts as this: quick disks take a few milliseconds now and then. One such commit changes
nothing if they usually take less than 0.28 ms. Our choice."""

CHANGES_MAX = 40
WRITTEN_BYTES_MAX = 64 * 1024
"""Of a small batch: 16 pages, written in some 50 us. Eight clients that wait for each answer send far less; a
larger batch is worth a thread that writes while the loop reads on. Our choice."""

DROPPED_ROWS_MAX = 16
DROPPED_BYTES_MAX = 64 * 1024
"""A page that is freed costs about as much as one that is written."""

ALONE_S = 1.0
"""A store is alone once no other has committed for so long. A store whose clients wait for their answers
commits far more often, so it never waits while the loop commits for another; one that commits more rarely may
wait for a single fsync. And a burst of a neighbour costs the store the loop for one second only."""


def is_small(changes: int, written_bytes: int, dropped_rows: int, dropped_bytes: int) -> bool:
    """Return whether the time of such a commit is that of the disk's sync."""
    return (
        changes <= CHANGES_MAX
        and written_bytes <= WRITTEN_BYTES_MAX
        and dropped_rows <= DROPPED_ROWS_MAX
        and dropped_bytes <= DROPPED_BYTES_MAX
    )


class Pace:
    """The average duration of small commits."""

    __slots__ = ("_quick_s", "_usual_s", "is_quick")

    def __init__(self, quick_s: float = QUICK_S) -> None:
        """Begin with the thread. `quick_s`: commits up to this are quick; infinity = all, 0 = none."""
        self._quick_s = quick_s
        self._usual_s = 2 * QUICK_S
        self.is_quick = self._usual_s <= quick_s
        """Whether the loop may wait for a small commit."""

    def took(self, seconds: float) -> None:
        """Record the duration of a small commit, of the loop or of the thread."""
        self._usual_s += (min(seconds, SLOW_S) - self._usual_s) * WEIGHT
        self.is_quick = self._usual_s <= self._quick_s


class Committers:
    """The stores of an event loop: which one has committed last, and when another has."""

    __slots__ = ("_last", "_last_s", "_others_s")

    def __init__(self) -> None:
        self._last: object = None
        self._last_s = -math.inf
        self._others_s = -math.inf
        """When a store other than `_last` has committed."""

    def note(self, store: object, now_s: float) -> bool:
        """Note a commit of a store; return whether it is alone."""
        if store is not self._last:
            self._last, self._others_s = store, self._last_s
        self._last_s = now_s
        return now_s - self._others_s >= ALONE_S
