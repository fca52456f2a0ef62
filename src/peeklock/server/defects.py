"""Log lines about defects of ours that ended a connection and nothing else.

Owns: how many have a line with their traceback, and their count. Must not know: what met the defect. A peer
that has found one can repeat it thousands of times a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from peeklock.server import log

LINES_MAX = 20
"""In `WINDOW_MS`. Our choice, as for one connection: each has a traceback of some kilobytes."""

WINDOW_MS = 60_000


class DefectLog:
    """Tells of defects; what is left out is counted in one line when the window is over."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._window_ends_ms = 0
        self._lines = 0
        self._left_out = 0
        self.count = 0
        """Since the start."""

    def tell(self, defect: Exception, fields: Mapping[str, Any]) -> None:
        """Count a defect, and log it with its traceback and these fields."""
        self.count += 1
        now_ms = self._now_ms()
        self.tick(now_ms)
        if not self._lines:
            self._window_ends_ms = now_ms + WINDOW_MS
        if self._lines >= LINES_MAX:
            self._left_out += 1
            return
        self._lines += 1
        log.error(
            "a defect; the connection that met it is ended",
            {"reason": f"{type(defect).__name__}: {defect}", **fields, "do": "report what this line says"},
            exc_info=defect,
        )

    def tick(self, now_ms: int) -> None:
        """Say how much was left out, once the window is over."""
        if now_ms >= self._window_ends_ms:
            self.finish()

    def finish(self) -> None:
        """Say now how much was left out; the next line begins a new window."""
        if self._left_out:
            log.error("lines about defects left out", {"count": self._left_out})
        self._lines = self._left_out = 0
