"""What the broker writes to a worker: the work, then orders, one JSON object a line."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

Work = Mapping[str, Any]


class Orders:
    """The standard input of a worker. A thread reads it; the process ends with it."""

    def __init__(self, lines: BinaryIO) -> None:
        """Read the work, and go on reading."""
        self._lines = lines
        self.work: Work = json.loads(lines.readline())
        self.on_stop: Callable[[], None] = lambda: None
        """Is called, in the thread, when the work is to end in order."""
        self.is_stopped = False
        self._saved = threading.Semaphore(0)
        threading.Thread(target=self._read, name="orders", daemon=True).start()

    def wait_until_saved(self) -> None:
        """Wait until the broker says that the last checkpoint is durable."""
        self._saved.acquire()

    def _read(self) -> None:
        for line in self._lines:
            order = json.loads(line)
            if "stop" in order:
                self.is_stopped = True
                self.on_stop()
            elif "saved" in order:
                self._saved.release()
        os._exit(1)  # nobody wants the rest; an exit in order would wait for the broker
