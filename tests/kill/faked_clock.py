"""A wall clock that can be set under processes, with `faketime`; monotonic clocks are left alone.

Owns: the environment of these processes. Must not know: what runs in them.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Final

LIBRARY: Final = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
"""None where faketime is not installed."""

READ_S: Final = 1
"""How often a process checks its clock's offset."""


class FakedClock:
    """Processes that are started while this is entered have a wall clock that can be set."""

    def __init__(self, folder: Path) -> None:
        """Begin at the machine's time; `folder` gets the file with the offset of the clock."""
        self._file = folder / "offset"
        self._before: dict[str, str | None] = {}
        self.set(0)

    def set(self, seconds: int) -> None:
        """Set the clock so far ahead of the machine's; processes follow within a second."""
        written = self._file.with_suffix(".new")
        written.write_text(f"{seconds:+d}s")
        written.replace(self._file)

    def __enter__(self) -> FakedClock:
        assert LIBRARY is not None, "faketime is not installed"
        wanted = {
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": str(READ_S),
            "DONT_FAKE_MONOTONIC": "1",
            # Its default is for an old C library: with others a thread that waits for the interpreter for
            # half a millisecond does not wait at all. It spins, and the event loop has lags of seconds.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "LD_PRELOAD": str(LIBRARY),
        }
        self._before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, value in self._before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
