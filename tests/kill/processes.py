"""A process of Spark and all that it starts: Java, and Python workers. Linux only: they are found in /proc.

Owns: starting them and killing them, as a whole or one by one. Must not know: what they do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.kill.ledger import Broken

ROOT = Path(__file__).parents[2]


class ProcessTree:
    """A process in a process session of its own, which identifies all that it starts."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        errors: Path,
        environment: Mapping[str, str] = {},  # added to this process's
    ) -> None:
        self._log = log
        self._errors = errors
        self._from = log.stat().st_size if log.exists() else 0
        with log.open("ab") as out, errors.open("ab") as other:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=other,
                start_new_session=True,
                env={**os.environ, **environment},
            )

    def said(self) -> list[str]:
        """Return its lines so far."""
        with self._log.open() as lines:
            lines.seek(self._from)
            return lines.read().splitlines()

    def last_words(self) -> str:
        """Return its last lines, and the end of its standard error."""
        return f"{self.said()[-3:]}, {self._errors.read_text(errors='replace')[-3000:]}"

    def status(self) -> int | None:
        """Return the exit status, None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int:
        """Return the exit status when it ends by itself. Raises: Broken."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise Broken(f"it did not end within {timeout_s:.0f} s: {self.last_words()}") from None

    def workers(self) -> list[int]:
        """Return the ids of the Python processes that Spark started: tasks, readers of streams, parents."""
        return [pid for pid in self._all() if pid != self._process.pid and _is_python(pid)]

    def kill(self) -> None:
        """End process and Java by SIGKILL; workers find out by themselves, as they would on a cluster."""
        for pid in self._all():
            if pid == self._process.pid or not _is_python(pid):
                kill(pid)
        self._process.wait()

    def kill_all(self) -> None:
        """End all processes."""
        while left := self._all():
            for pid in left:
                kill(pid)
            self._process.poll()
            time.sleep(0.02)

    def _all(self) -> list[int]:
        return [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and _session_of(entry) == self._process.pid
        ]


def kill(pid: int) -> None:
    """End a process by SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _session_of(entry: Path) -> int | None:
    """Return the session of a live process, by its folder in /proc."""
    with contextlib.suppress(OSError):
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else int(fields[3])
    return None


def _is_python(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"python" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    return False
