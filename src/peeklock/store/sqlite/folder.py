"""The data folder: the lock that keeps other processes out, and the names of its files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path

from peeklock.store.base import StoreFailed, StoreInUse, StoreUnfinished

UNFINISHED_NAME = "restore-unfinished"
"""Is in a folder from the beginning of a restore to its end."""

LOCK_NAME = "peeklock.lock"
DATABASE_NAME = "peeklock.db"


def make_folder(folder: Path) -> None:
    """Create a folder with those above it, if it is missing. Raises: StoreFailed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        above = next(parent for parent in folder.absolute().parents if parent.exists())
        raise StoreFailed(
            f"cannot create the folder {folder}: {error.strerror}; {_remedy(error, above)}"
        ) from error


def _remedy(error: OSError, folder: Path) -> str:
    """Return what to do about a folder in which nothing can be made."""
    if error.errno == errno.EROFS:
        return "the volume is read-only: mount it for writing"
    if error.errno in (errno.EACCES, errno.EPERM):
        with contextlib.suppress(OSError):
            owner, ours = folder.stat().st_uid, os.geteuid()
            if owner != ours:
                return (
                    f"the folder is of user {owner}, and this process runs as user {ours}: run "
                    f"`chown -R {ours} {folder}` where the folder is, or run the broker as user {owner}"
                )
    return "check the folder's owner and mode"


def require_finished(folder: Path) -> None:
    """Raise StoreUnfinished if a restore into a folder has not ended."""
    if (folder / UNFINISHED_NAME).exists():
        raise StoreUnfinished(
            f"{folder} is not whole: a restore into it runs, or was interrupted. Delete what is in the data "
            "folder, and restore again"
        )


HANDED_DOWN_S_MAX = 5.0
"""How long the lock of a process that was killed may outlive it: a child that it was just starting has it
until it begins its own program. Our choice: long enough for a machine that has no time for that child."""
HANDED_DOWN_LOOK_S = 0.01


class FolderLock:
    """An advisory lock on a folder; the kernel releases it when the process ends."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK_NAME
        self._fd: int | None = None

    def take(self) -> None:
        """Take the folder. Raises: StoreInUse, naming the holder; StoreFailed."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreFailed(
                f"cannot open {self._path}: {error.strerror}; {_remedy(error, self._path.parent)}"
            ) from error
        try:
            self._lock(fd)
        except BlockingIOError:
            os.close(fd)
            raise StoreInUse(
                f"{self._path.parent} is in use by {holder(self._path.parent)}; stop it or use another folder"
            ) from None
        except OSError as error:
            os.close(fd)
            raise StoreFailed(f"cannot lock {self._path}: {error.strerror}") from error
        started = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")
        os.ftruncate(fd, 0)
        with contextlib.suppress(OSError):  # on a full disk the holder stays unnamed
            os.pwrite(fd, f"process {os.getpid()}, started {started}\n".encode(), 0)
        self._fd = fd

    def _lock(self, fd: int) -> None:
        """Lock the file. Raises: BlockingIOError, OSError."""
        until_s = time.monotonic() + HANDED_DOWN_S_MAX
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if _runs(holder(self._path.parent)) or time.monotonic() >= until_s:
                    raise
            time.sleep(HANDED_DOWN_LOOK_S)

    def release(self) -> None:
        """Release the folder. The file stays, empty: unlinking it would race with the next process."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def holder(folder: Path) -> str:
    """Return who holds a folder, as that process wrote into the lock file."""
    try:
        said = (folder / LOCK_NAME).read_text(errors="replace").strip()
    except OSError:
        said = ""
    return said or "another process"


def _runs(named: str) -> bool:
    """Return whether the process that is named in a lock file runs, as far as this process can see."""
    found = re.match(r"process (\d+),", named)
    if found is None:
        return True
    try:
        os.kill(int(found[1]), 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True


def is_held(folder: Path) -> bool:
    """Return whether a process holds the folder."""
    try:
        fd = os.open(folder / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
