"""What the commits of one namespace take: histograms, which are added to once for each commit."""

from __future__ import annotations

import time
from collections.abc import Callable

from peeklock.metrics.histogram import BYTES, SECONDS, Histogram


class Measures:
    """Times and sizes of commits, and times of the sends in them.

    One batch fills while another is committed. A send has the time from the first command of its batch to the
    end of the commit: a clock read for each send would cost more than all the rest here.
    """

    __slots__ = (
        "_began_s",
        "_clock_s",
        "_committing_s",
        "_filling_s",
        "_received",
        "_sends",
        "_sent",
        "batch_bytes",
        "commit_seconds",
        "send_seconds",
    )

    def __init__(self, received: Callable[[], int], clock_s: Callable[[], float] = time.perf_counter) -> None:
        """Begin with none; `received` returns how many messages clients have sent so far."""
        self._received = received
        self._clock_s = clock_s
        self._filling_s = 0.0
        """When the first command of the open batch came; 0 = there is none."""
        self._began_s = 0.0
        """The same of the batch that is committed."""
        self._committing_s = 0.0
        self._sent = received()
        """Messages until that batch."""
        self._sends = 0
        """Messages in it."""
        self.commit_seconds = Histogram(SECONDS)
        self.send_seconds = Histogram(SECONDS)
        self.batch_bytes = Histogram(BYTES)

    def offered(self) -> None:
        """Note that commands have been offered."""
        if not self._filling_s:
            self._filling_s = self._clock_s()

    def committing(self) -> None:
        """Note that the open batch is closed, and its commit begins."""
        now_s, sent = self._clock_s(), self._received()
        self._began_s, self._filling_s = self._filling_s or now_s, 0.0
        self._committing_s = now_s
        self._sends, self._sent = sent - self._sent, sent

    def committed(self, size_bytes: int) -> None:
        """Note that the commit has ended."""
        now_s = self._clock_s()
        self.commit_seconds.observe(now_s - self._committing_s)
        self.batch_bytes.observe(size_bytes)
        if self._sends:
            self.send_seconds.observe(now_s - self._began_s, self._sends)
