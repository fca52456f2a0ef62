"""What a program that starts a broker may ask of it: a file that says it is ready, and that it ends, too."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from peeklock.server import files
from peeklock.server.settings import StartFailed

LOOK_S = 0.5
"""Between two looks for the parent. Our choice: a test waits longer for nothing."""

PARENT_AT_START = os.getppid()


class ReadyFile:
    """A file that is there while the broker is ready."""

    def __init__(self, path: Path) -> None:
        """Remove a file that a killed broker left. Raises: StartFailed."""
        self._path = path
        try:
            path.unlink(missing_ok=True)
            if not os.access(path.parent, os.W_OK | os.X_OK):
                raise PermissionError(0, "its folder is missing, or this process may not write there")
        except OSError as failure:
            raise StartFailed(f"--ready-file {path}: {failure.strerror}") from failure

    @contextlib.contextmanager
    def shown(self, value: dict[str, Any]) -> Iterator[None]:
        """Write the file as a whole, and remove it at the end. Raises: StartFailed."""
        try:
            files.replace(self._path, json.dumps(value).encode() + b"\n", 0o600)
        except OSError as failure:
            raise StartFailed(f"--ready-file {self._path}: {failure.strerror}") from failure
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                self._path.unlink()


async def end_with_parent(stop: Callable[[], None]) -> None:
    """Call `stop` when the process that started this one has ended.

    It is looked for: a signal of the kernel would come when the thread ends that has started this process.
    """
    while True:
        if os.getppid() != PARENT_AT_START:
            stop()
            return
        await asyncio.sleep(LOOK_S)
