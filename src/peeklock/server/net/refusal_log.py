"""Log lines about what was refused over HTTP, which anybody can cause.

Owns: how many there are, of a connection and in all. Must not know: what was refused. AMQP connections limit
their own lines (`gateway.errors.Reporter`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from peeklock.server import log

CONNECTION_LINES_MAX = 20
"""Of one connection in `WINDOW_MS`. Our choice, as for AMQP connections."""

LINES_MAX = 200
"""Of all connections in `WINDOW_MS`. Our choice: ten clients that each use up theirs; a flood of connections
that make one mistake each must not bury the log."""

WINDOW_MS = 60_000

Note = Callable[[str, Mapping[str, Any]], None]


class RefusalLog:
    """Tells of refusals; what is left out is counted in one line when the window is over."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._window = 0
        """Number of the window, so that connections notice that theirs is over."""
        self._window_ends_ms = 0
        self._lines = 0
        self._left_out = 0

    def of_connection(self) -> Note:
        """Give what one connection says its lines to: event and fields."""
        window = lines = 0

        def note(event: str, fields: Mapping[str, Any]) -> None:
            nonlocal window, lines
            self.tick(self._now_ms())
            if window != self._window:
                window, lines = self._window, 0
            lines += 1
            if lines > CONNECTION_LINES_MAX or self._lines >= LINES_MAX:
                self._left_out += 1
            else:
                self._lines += 1
                log.info(event, fields)

        return note

    def tick(self, now_ms: int) -> None:
        """Let time pass: say how much was left out, once the window is over."""
        if now_ms >= self._window_ends_ms:
            self.finish()
            self._window += 1
            self._window_ends_ms = now_ms + WINDOW_MS

    def finish(self) -> None:
        """Say now how much was left out."""
        if self._left_out:
            log.info("lines about refused requests left out", {"count": self._left_out})
        self._lines = self._left_out = 0
