"""Room that is kept for a full disk: a file that is given up when a write finds none.

Owns: the file `peeklock.ballast`. Must not know: what is written, when a disk counts as full.

Sends are refused long before, but other programs fill disks too. Settling, stopping and starting need a few
pages, to free many: with the ballast gone there is room for them. It is made again once there is plenty.
"""

from __future__ import annotations

import os
from pathlib import Path

BALLAST_NAME = "peeklock.ballast"

BALLAST_BYTES_MAX = 8 * 1024 * 1024
BALLAST_SHARE = 1 / 16
"""Of the volume: 4 MB of one of 64 MB. Our choice: some thousand commits of settlements."""

PLENTY = 3
"""It is made where so many times its size is free."""


class Ballast:
    """Called by the thread that writes."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; nothing is touched before `take`."""
        self._path = folder / BALLAST_NAME

    def take(self, *, at_end: bool = False) -> None:
        """Make the file if it is not there and there is room for it; a failure leaves all as it was.

        `at_end`: the store was closed and needs no more itself: of a smaller rest, take all.
        """
        try:
            if self._path.exists():
                return
            volume = os.statvfs(self._path.parent)
            size_bytes = min(BALLAST_BYTES_MAX, int(volume.f_blocks * volume.f_frsize * BALLAST_SHARE))
            free_bytes = volume.f_bavail * volume.f_frsize
            if at_end:
                size_bytes = min(size_bytes, free_bytes * 3 // 4)
            elif free_bytes < PLENTY * size_bytes:
                return
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(fd, 0, size_bytes)
            finally:
                os.close(fd)
        except OSError:
            self._path.unlink(missing_ok=True)

    def release(self) -> bool:
        """Free the room; return False where there was none."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True
