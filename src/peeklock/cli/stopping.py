"""Ctrl-C in a command that has work to end in order."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

INTERRUPTED: Final = 130
"""Exit status after Ctrl-C; as in a shell: 128 + SIGINT."""

PIPE_CLOSED: Final = 141
"""Exit status after the reader of standard output has gone; as in a shell: 128 + SIGPIPE."""


class Stop:
    """Whether Ctrl-C has been pressed: it ends a wait at once, and work in order. Twice, it ends all."""

    def __init__(self) -> None:
        self.is_asked = False
        self._is_waiting = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Run a wait, in which Ctrl-C raises KeyboardInterrupt."""
        try:
            self._is_waiting = True
            yield
        finally:
            self._is_waiting = False

    def on_signal(self, *_: object) -> None:
        """Handle Ctrl-C."""
        if self.is_asked:
            os._exit(INTERRUPTED)  # an exit in order would flush standard output, which may block
        self.is_asked = True
        if self._is_waiting:
            raise KeyboardInterrupt


@contextmanager
def stopping() -> Iterator[Stop]:
    """Yield a `Stop` that Ctrl-C asks."""
    stop = Stop()
    before = signal.signal(signal.SIGINT, stop.on_signal)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
