"""Which commits the event loop does itself, and which are left to the thread that writes.

Owns: what counts as a small batch, how long commits of those have taken of late, what follows from the two.
Must not know: threads, clocks, SQLite. Pure: how long a commit took is an argument.

A commit in the thread costs the way there and back, some 40 us of CPU and twice that until a client has its
answer. While the loop commits it stands still, so it does that only where the commit is short: little to
write, and a disk that is usually quick. Commits in the thread are timed too, so a disk that is quick again is
noticed.
"""

from __future__ import annotations

QUICK_S = 0.000_5
"""Commits that usually take longer are the thread's. Our choice: half of what purge or expiry may take of a
turn at a time. So a disk that syncs in 100 to 300 us is waited for, one that needs a millisecond is not."""

WEIGHT = 1 / 8
"""Of the last commit in what is usual."""

SLOW_S = 4 * QUICK_S
"""A commit that takes longer counts as this: disks that are quick take a few milliseconds now and then. One
such commit is passed over where they usually take less than 0.28 ms. Our choice."""

CHANGES_MAX = 40
WRITTEN_BYTES_MAX = 64 * 1024
"""Of a small batch: 16 pages, written in some 50 us. What comes from eight clients that wait for each answer
is far less; more is worth a thread that writes while the loop reads on. Our choice."""

DROPPED_ROWS_MAX = 16
DROPPED_BYTES_MAX = 64 * 1024
"""A page that is freed costs about as much as one that is written."""


def is_small(changes: int, written_bytes: int, dropped_rows: int, dropped_bytes: int) -> bool:
    """Return whether a commit of so much takes no time worth mentioning, apart from the disk's sync."""
    return (
        changes <= CHANGES_MAX
        and written_bytes <= WRITTEN_BYTES_MAX
        and dropped_rows <= DROPPED_ROWS_MAX
        and dropped_bytes <= DROPPED_BYTES_MAX
    )


class Pace:
    """How long small commits usually take."""

    __slots__ = ("_quick_s", "_usual_s", "is_quick")

    def __init__(self, quick_s: float = QUICK_S) -> None:
        """Know nothing yet of the disk: the first commits are the thread's.

        `quick_s`: what is quick; infinity = each disk is, 0 = none.
        """
        self._quick_s = quick_s
        self._usual_s = 2 * QUICK_S
        self.is_quick = self._usual_s <= quick_s
        """Whether the loop may wait for a small commit."""

    def took(self, seconds: float) -> None:
        """Note how long a small commit took, whoever did it."""
        self._usual_s += (min(seconds, SLOW_S) - self._usual_s) * WEIGHT
        self.is_quick = self._usual_s <= self._quick_s
