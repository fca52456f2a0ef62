"""Whether a database can be reached, as the jobs of a process see it; told once when that changes.

One job that fails may have lost its connection alone. So the database is gone only when nothing has reached
it between two failures that are `GONE_S` apart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

GONE_S = 1.0
"""Our choice: a client that keeps trying does so at least each 1.25 s, and a lease lasts 5 s."""


class Reach:
    """One database; call it from any thread."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Begin with a database that can be reached."""
        self.tell: Callable[[str | None, float], None] = lambda reason, seconds: None
        """Called with the reason once the database is gone, with None once it is back; and with how long it
        has been gone."""
        self._clock_s = clock_s
        self._changing = threading.Lock()
        self._since_s: float | None = None
        self._is_gone = False

    def missed(self, reason: str) -> None:
        """Note a job that could not reach it."""
        with self._changing:
            now_s = self._clock_s()
            if self._since_s is None:
                self._since_s = now_s
            if not self._is_gone and now_s >= self._since_s + GONE_S:
                self._is_gone = True
                self.tell(reason, now_s - self._since_s)

    def met(self) -> None:
        """Note a job that reached it."""
        if self._since_s is None:
            return
        with self._changing:
            since_s, was_gone = self._since_s, self._is_gone
            self._since_s, self._is_gone = None, False
            if was_gone and since_s is not None:
                self.tell(None, self._clock_s() - since_s)

    def gone_s(self) -> float | None:
        """Return for how long it has been gone, None = it is not."""
        with self._changing:
            if not self._is_gone or self._since_s is None:
                return None
            return self._clock_s() - self._since_s
