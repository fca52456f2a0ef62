"""Runs `peeklock serve` as a child process, kills it, and restarts it on the same folder and ports."""

from __future__ import annotations

import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

READY = re.compile(
    r"^peeklock ready in [\d.]+ s: (Endpoint=sb://[^:;]+:(\d+);\S*) \(administration: port (\d+)\)$"
)

READY_S_MAX = 30.0
"""Longest start. Our choice: some fifty times that of a small machine."""

STOP_S_MAX = 15.0
"""Longest clean stop: the broker's own 10 s for its clients, and a margin."""


class BrokerFailed(Exception):
    """The broker did not start or stop; the text ends with its last log lines."""


class BrokerProcess:
    """One broker on one folder; the system chooses the ports at the first start, restarts keep them."""

    def __init__(self, folder: Path, arguments: Sequence[str] = ()) -> None:
        """`folder` gets the data (`data/`) and the log (`broker.log`); `arguments` go to `peeklock serve`."""
        self.data = folder / "data"
        self.log = folder / "broker.log"
        self.executable: Path | None = None
        """The `peeklock` of another installation, for the next start; None = of this one."""
        self.connection_string = ""
        self.amqp_port = 0
        self.http_port = 0
        self._arguments = tuple(arguments)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> BrokerProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return None if self._process is None else self._process.pid

    def authority(self) -> Path:
        """Return the file that clients must trust for TLS; it exists once the broker is ready."""
        return self.data / "tls" / "ca.pem"

    def start(self) -> float:
        """Start it and wait until it is ready; return the seconds that took. Raises: BrokerFailed."""
        assert self._process is None
        command = [
            str(self.executable or program()),
            "serve",
            f"--data={self.data}",
            f"--amqp-port={self.amqp_port}",
            f"--http-port={self.http_port}",
            *self._arguments,
        ]
        started = time.monotonic()
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        # The broker writes the line at once, so it is read whole.
        ready, _, _ = select.select([self._process.stdout], [], [], READY_S_MAX)
        line = self._process.stdout.readline().rstrip() if ready else ""
        took_s = time.monotonic() - started
        found = READY.match(line)
        if found is None:
            self.kill()
            raise BrokerFailed(f"the broker did not become ready; its output: {line!r}; {self._last_lines()}")
        self.connection_string = found[1]
        self.amqp_port, self.http_port = int(found[2]), int(found[3])
        return took_s

    def check(self) -> None:
        """Check that it still runs. Raises: BrokerFailed."""
        if self._process is not None and (status := self._process.poll()) is not None:
            raise BrokerFailed(f"the broker ended by itself with status {status}; {self._last_lines()}")

    def kill(self) -> None:
        """Kill it (SIGKILL), if it runs."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._forget()

    def stop(self) -> int:
        """Stop it as a process manager does (SIGTERM); return its exit status.

        Raises: BrokerFailed, if it does not end in time.
        """
        assert self._process is not None
        self._process.terminate()
        try:
            return self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            raise BrokerFailed(
                f"the broker did not stop within {STOP_S_MAX:.0f} s; {self._last_lines()}"
            ) from None
        finally:
            self.kill()

    def _forget(self) -> None:
        assert self._process is not None
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def _last_lines(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-8:]
        return "its log ends with: " + (" | ".join(lines) or "nothing")


def program() -> str:
    """Return the path of the program `peeklock`. Raises: BrokerFailed."""
    # Beside the running interpreter, of the same installation; PATH may name another one.
    beside = Path(sys.executable).with_name("peeklock")
    found = str(beside) if beside.exists() else shutil.which("peeklock")
    if found is None:
        raise BrokerFailed("the program `peeklock` is missing: install the package (pip install peeklock)")
    return found
