"""Small files that several processes may change: a lock on their folder, and replacement as a whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock on a folder, which is made if missing; flush its names at the end. Raises: OSError."""
    if not folder.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _give_to_owner_of(folder.parent, folder)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(file: Path, data: bytes, mode: int) -> None:
    """Replace a file: readers see the old or the new one. Raises: OSError."""
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    # Readable for its owner alone from the first instant, whatever the umask is.
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        os.fchmod(descriptor, mode)
        _give_to_owner_of(file.parent, descriptor)
        opened.write(data)
        opened.flush()
        os.fsync(descriptor)
    new.replace(file)


def _give_to_owner_of(folder: Path, made: Path | int) -> None:
    """Make the owner of the folder the owner of what root has made: the broker must be able to read it."""
    if os.geteuid() == 0:
        owner = folder.stat()
        os.chown(made, owner.st_uid, owner.st_gid)
