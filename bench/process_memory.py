"""The peak memory of a process and its children, by looking: those of Spark come and go."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from types import TracebackType

from bench.systems import rss_bytes

LOOK_S = 0.25


class PeakMemory:
    """The highest sum of the resident memory of this process and all below it, inside a `with`."""

    def __init__(self) -> None:
        self.bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            self.bytes = max(self.bytes, sum(map(_resident_bytes, _tree(os.getpid()))))


def _tree(root: int) -> set[int]:
    """Return a process and all below it."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
    found, before = {root}, 0
    while len(found) > before:
        before = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found


def _resident_bytes(pid: int) -> int:
    with contextlib.suppress(OSError, AssertionError):  # it has ended
        return rss_bytes(pid)
    return 0
