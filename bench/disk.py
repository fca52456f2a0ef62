"""The disk's own speed, for figures that it limits."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

PACE_S = 0.001
"""Pause between two, for a load of 1,000 messages a second."""


def fsync_us(folder: Path, samples: int = 1000, pace_s: float = PACE_S) -> float:
    """Return the median microseconds of appending 4 KiB to a file in `folder` and forcing it to stable
    storage.

    As often as the load that it is compared with: a device that is kept busy answers sooner.
    """
    path = folder / "fsync-probe"
    page = bytes(4096)
    times: list[float] = []
    with path.open("wb", buffering=0) as file:
        for _ in range(samples):
            started = time.perf_counter()
            file.write(page)
            os.fsync(file.fileno())
            took = time.perf_counter() - started
            times.append(took * 1e6)
            time.sleep(max(0.0, pace_s - took))
    path.unlink()
    return statistics.median(times)
