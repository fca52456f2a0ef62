"""The one process that writes the event logs of all namespaces.

pyarrow is loaded by that process alone, whose work costs the event loop nothing.

Theory of operation. The process starts with the first log that is added, and reads requests from its standard
input, see `python -m peeklock.capture`. That is a pipe that we hold: it ends with us, however we end, and the
process then writes what is left and ends too. If it ends before, each log that was added has to be added
again: the process starts with the first of them, after a pause.

Owns: the process, its lines in and out. Must not know: what waits to be exported, what happens when it fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from peeklock.server import log
from peeklock.server.loop.tasks import tell_failure

RETRY_S_MIN = 1.0
RETRY_S_MAX = 30.0
"""Pause before a process that ended is started again; it doubles until one has run for the longest pause."""

END_S_MAX = 2.0
"""How long a stop waits for a process that has nothing left to write. Our choice: it takes milliseconds."""

COMMAND = (sys.executable, "-P", "-m", "peeklock.capture")


class ExportedLog(Protocol):
    """Takes what the process answers about one log."""

    def exported(self, no: int) -> None:
        """Take the number of the last batch in the log."""

    def ended(self, why: str | None) -> None:
        """Learn that the process does no more for this log: `why` it failed, None = all is exported."""


class ExporterProcess:
    """The process, and the logs that were added to it."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        """Start nothing before a log is added."""
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._logs: dict[int, ExportedLog] = {}
        self._unsent: list[bytes] = []  # requests for a process that is not running yet
        self._last_id = 0
        self._starts_s = 0.0  # not before; of the loop's clock
        self._retry_s = RETRY_S_MIN
        self._hurry = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return None if self._process is None else self._process.pid

    def add(self, request: Mapping[str, Any], exported_log: ExportedLog) -> int:
        """Add a log, and start the process if there is none; return the log's id.

        `request` has the fields of `add` besides the id. The id counts until `ended` is called.
        """
        self._last_id += 1
        self._logs[self._last_id] = exported_log
        self._send({"add": {"id": self._last_id, **request}})
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(tell_failure)
        return self._last_id

    def remove(self, log_id: int) -> None:
        """Have all exported that is in the store of a log; `ended` is called then."""
        self._send({"remove": {"id": log_id}})
        self._hurry.set()

    async def stop(self) -> None:
        """End the process, once all logs have ended; one that still writes continues on its own."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        task = self._task
        if task is not None:
            if not self._logs:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(task), END_S_MAX)
            task.cancel()

    def _send(self, request: dict[str, Any]) -> None:
        line = json.dumps(request).encode() + b"\n"
        if self._process is None:
            self._unsent.append(line)
        else:
            _write(self._process, [line])

    async def _run(self) -> None:
        """Run the process to its end, then tell its logs."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), max(0.0, self._starts_s - loop.time()))
        started_s = loop.time()
        why = await self._run_once()
        if loop.time() - started_s > RETRY_S_MAX:
            self._retry_s = RETRY_S_MIN
        logs, self._logs = self._logs, {}
        self._unsent.clear()
        self._hurry.clear()
        self._starts_s = loop.time() + self._retry_s
        self._task = None
        if logs:
            log.warning(
                "the exporter of the event log ended; it is restarted",
                {"reason": why, "logs": len(logs), "again_in_s": self._retry_s},
            )
        self._retry_s = min(2 * self._retry_s, RETRY_S_MAX)
        for exported_log in logs.values():
            exported_log.ended(why)

    async def _run_once(self) -> str:
        """Run the process to its end; return how it ended."""
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C in the terminal is for the broker alone
            )
        except OSError as failure:
            return f"cannot start {self._command[0]}: {failure.strerror}"
        try:
            assert process.stdout is not None
            _write(process, self._unsent)
            self._unsent.clear()
            async for line in process.stdout:
                self._take(line)
            return f"it ended with status {await process.wait()}"
        finally:
            self._process = None

    def _take(self, line: bytes) -> None:
        """Pass on an answer; those of logs that have ended are late."""
        word, number, *rest = line.decode("utf-8", "replace").split(maxsplit=2)
        log_id, text = int(number), "".join(rest).rstrip()
        exported_log = self._logs.get(log_id)
        if exported_log is None:
            return
        if word == "exported":
            exported_log.exported(int(text))
        else:
            del self._logs[log_id]
            exported_log.ended(text if word == "failed" else None)


def _write(process: asyncio.subprocess.Process, lines: list[bytes]) -> None:
    """Write requests, unless the process is ending: its logs are told so, and are added again."""
    assert process.stdin is not None
    if not process.stdin.is_closing():  # uvloop raises RuntimeError on a closed pipe
        process.stdin.writelines(lines)
