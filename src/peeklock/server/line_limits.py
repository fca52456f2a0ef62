"""Limits on log lines that a peer can cause: the rest of a minute's lines is counted in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from peeklock.server import log

WINDOW_MS = 60_000

DEFECT_LINES_MAX = 20
"""In a window. Our choice, as for one connection: each has a traceback of some kilobytes."""

CONNECTION_LINES_MAX = 20
"""About refusals of one HTTP connection in a window. Our choice, as for AMQP connections."""

REFUSAL_LINES_MAX = 200
"""About refusals of all connections. Our choice: ten clients that each use up theirs; a flood of connections
with one mistake each must not fill the log."""

Note = Callable[[str, Mapping[str, Any]], None]
"""Logs a line, event and fields, that a peer can cause; the lines are limited."""


class LineLimit:
    """Admits so many lines in a window, which begins with its first line."""

    def __init__(self, lines_max: int, left_out: str, tell: Callable[[str, Mapping[str, Any]], None]) -> None:
        """Admit `lines_max` lines; `tell` then logs the event `left_out` with the count of the others."""
        self._lines_max = lines_max
        self._event = left_out
        self._tell = tell
        self._ends_ms = 0
        self._lines = 0
        self._left_out = 0
        self.window = 0
        """Changes with each window."""

    def admits(self, now_ms: int) -> bool:
        """Count a line; return whether it may be logged."""
        self.roll(now_ms)
        if self._lines >= self._lines_max:
            self.leave_out()
            return False
        self._lines += 1
        return True

    def leave_out(self) -> None:
        """Count a line that another limit has left out."""
        self._left_out += 1

    def roll(self, now_ms: int) -> None:
        """Begin a new window if the last one is over."""
        if now_ms >= self._ends_ms:
            self.finish()
            self._ends_ms = now_ms + WINDOW_MS
            self.window += 1

    def tick(self, now_ms: int) -> None:
        """Log how many lines were left out, once the window is over."""
        if now_ms >= self._ends_ms:
            self.finish()

    def finish(self) -> None:
        """Log now how many lines were left out."""
        if self._left_out:
            self._tell(self._event, {"count": self._left_out})
        self._lines = self._left_out = 0


class DefectLog(LineLimit):
    """Logs defects of ours that closed a connection; a peer that found one can repeat it at will."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(DEFECT_LINES_MAX, "lines about defects left out", log.error)
        self._now_ms = now_ms
        self.count = 0
        """Since the start."""

    def add(self, defect: Exception, fields: Mapping[str, Any]) -> None:
        """Count a defect, and log it with its traceback and these fields."""
        self.count += 1
        if self.admits(self._now_ms()):
            reason = f"{type(defect).__name__}: {defect}"
            fields = {"reason": reason, **fields, "do": "report what this line says"}
            log.error("a defect; the connection that met it is closed", fields, exc_info=defect)


class RefusalLog(LineLimit):
    """Logs what was refused to connections; AMQP connections limit their lines in `gateway.errors`."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(REFUSAL_LINES_MAX, "lines about refused requests left out", log.info)
        self._now_ms = now_ms

    def of_connection(self) -> Note:
        """Return the log of one connection, which has a lower limit than all together."""
        window = lines = 0

        def note(event: str, fields: Mapping[str, Any]) -> None:
            nonlocal window, lines
            now_ms = self._now_ms()
            self.roll(now_ms)
            if window != self.window:
                window, lines = self.window, 0
            lines += 1
            if lines > CONNECTION_LINES_MAX:
                self.leave_out()
            elif self.admits(now_ms):
                log.info(event, fields)

        return note
