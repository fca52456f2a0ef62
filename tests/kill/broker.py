"""The broker as a process: start, ready line, logs, and its several ends.

Owns: one `peeklock serve` process at a time over one folder. Must not know: what it is used for.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import signal
import sys
from pathlib import Path

START_S_MAX = 30
READY = re.compile(r"peeklock ready in [\d.]+ s: Endpoint=sb://([^:;]+):(\d+);.*administration: port (\d+)\)")


class BrokerFailed(AssertionError):
    """The process did not do what it should; the message holds its log."""


class BrokerProcess:
    """`peeklock serve` on ephemeral ports."""

    def __init__(
        self,
        folder: Path,
        *,
        queues: dict[str, dict[str, object]],
        options: tuple[str, ...] = (),
        file_bytes_max: int | None = None,
    ) -> None:
        """Describe it.

        Args:
            folder: the data folder is `folder/data`.
            queues: name -> properties, as in the emulator's Config.json.
            options: further options of `serve`.
            file_bytes_max: no file of the process may grow beyond this: stands for a full disk.
        """
        self._folder = folder
        self._options = options
        self._file_bytes_max = file_bytes_max
        self._process: asyncio.subprocess.Process | None = None
        self._log_path = folder / "broker.log"
        self._config = folder / "Config.json"
        self._config.write_text(json.dumps(_config(queues)))
        self.port = 0
        self.http_port = 0

    @property
    def data(self) -> Path:
        return self._folder / "data"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        """Everything that all processes so far have logged."""
        return self._log_path.read_text() if self._log_path.exists() else ""

    async def start(self) -> None:
        """Start it and wait until it is ready. Raises: BrokerFailed."""
        process = await self._spawn()
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), START_S_MAX)
        except TimeoutError:
            process.kill()
            raise BrokerFailed(f"not ready after {START_S_MAX} s:\n{self.log()}") from None
        found = READY.match(line.decode())
        if found is None:
            status = await process.wait()
            raise BrokerFailed(f"instead of a ready line: {line!r}, exit status {status}\n{self.log()}")
        self.port = int(found[2])
        self.http_port = int(found[3])

    async def refuse_to_start(self) -> tuple[int, str]:
        """Start it where it cannot run; give the exit status and what it said on standard error."""
        before = len(self.log())
        process = await self._spawn()
        status = await asyncio.wait_for(process.wait(), START_S_MAX)
        self._process = None
        return status, self.log()[before:]

    async def _spawn(self) -> asyncio.subprocess.Process:
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                "from peeklock.cli import main; main()",
                "serve",
                "--data",
                str(self.data),
                "--config",
                str(self._config),
                "--amqp-port",
                "0",
                "--http-port",
                "0",
                *self._options,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                preexec_fn=None if self._file_bytes_max is None else self._limit_files,
            )
        return self._process

    def _limit_files(self) -> None:
        assert self._file_bytes_max is not None
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._file_bytes_max, self._file_bytes_max))

    async def kill(self) -> None:
        """End it at once, as the out-of-memory killer does."""
        process = self._taken()
        process.kill()
        await process.wait()

    async def terminate(self) -> int:
        """Ask it to stop; give its exit status."""
        process = self._taken()
        process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(process.wait(), START_S_MAX)
        except TimeoutError:
            process.kill()
            raise BrokerFailed(
                f"did not stop within {START_S_MAX} s of SIGTERM:\n{self.log()[-4000:]}"
            ) from None

    async def wait(self) -> int:
        """Wait until it ends by itself; give its exit status."""
        return await asyncio.wait_for(self._taken().wait(), START_S_MAX)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def _taken(self) -> asyncio.subprocess.Process:
        process, self._process = self._process, None
        assert process is not None
        return process

    async def clean_up(self) -> None:
        """End it if it still runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def _config(queues: dict[str, dict[str, object]]) -> dict[str, object]:
    return {
        "UserConfig": {
            "Namespaces": [
                {
                    "Name": "sbemulatorns",
                    "Queues": [
                        {"Name": name, "Properties": properties} for name, properties in queues.items()
                    ],
                }
            ],
            "Logging": {"Type": "Console"},
        }
    }
