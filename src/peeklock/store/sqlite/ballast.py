"""The file `peeklock.ballast`: space reserved for a full disk.

Sends are refused long before, but other programs fill disks too. Settling, stopping and starting need a few
pages to free many: removing the file gives them. It is written again once there is plenty of space.
"""

from __future__ import annotations

import os
from pathlib import Path

BALLAST_NAME = "peeklock.ballast"

BALLAST_BYTES_MAX = 8 * 1024 * 1024
BALLAST_SHARE = 1 / 16
"""Of the volume: 4 MB of 64 MB. Our choice: some thousand commits of settlements."""

PLENTY = 3
"""The file is written if so many times its size is free."""


class Ballast:
    """The reserve; called by the writing thread."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; nothing is touched before `take`."""
        self._path = folder / BALLAST_NAME

    def take(self, *, at_end: bool = False) -> None:
        """Write the file if it is missing and there is space for it; a failure leaves nothing behind.

        `at_end`: the store was closed and needs no more itself: take most of a smaller rest.
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
        """Remove the file; return whether that freed space."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True
