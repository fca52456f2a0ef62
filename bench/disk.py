"""What the disk itself can do, for figures that are limited by it."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path


def fsync_us(folder: Path, samples: int = 200) -> float:
    """Median microseconds of appending 4 KiB to a file in `folder` and forcing it to stable storage."""
    path = folder / "fsync-probe"
    page = bytes(4096)
    times: list[float] = []
    with path.open("wb", buffering=0) as file:
        for _ in range(samples):
            started = time.perf_counter()
            file.write(page)
            os.fsync(file.fileno())
            times.append((time.perf_counter() - started) * 1e6)
    path.unlink()
    return statistics.median(times)
