"""The event log, seen from the broker: the process that writes it, and what happens when it cannot keep up.

Owns: start and restart of the exporter, the limit of what may wait for it, what health says of it. Must not
know: what is in the log, how it is written. pyarrow is loaded by that process alone, and its work is not done
at the cost of the event loop.

Theory of operation. Each batch has an event row in the store. The exporter reads them there, and says on its
standard output how far all is written (`exported N`); the rows up to there are then dropped by the batches to
come. Its standard input is a pipe that we hold: it ends with us, however we end, and the exporter then writes
what is left and ends too.

    starting -> running -> failed -> starting ... -> stopped
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peeklock.server import log
from peeklock.server.loop.tasks import tell_failure
from peeklock.server.settings import CaptureSettings
from peeklock.server.shard.shard import Shard

RETRY_S_MIN = 1.0
RETRY_S_MAX = 30.0
"""A process that died is started again after so long, each time twice as long until it has exported
something."""

FINISH_S_MAX = 10.0
"""How long a stop waits for the exporter. Our choice: as long as for clients. It needs a moment for each
million events that wait."""

OPEN_AGAIN = 0.5
"""Sends that were refused are taken again below this share of the limit."""


class Capture:
    """The event log of one shard."""

    def __init__(
        self, settings: CaptureSettings, data: Path, namespace: str, shard: Shard, now_ms: Callable[[], int]
    ) -> None:
        """Nothing runs before `start`; until then what happens waits in the store."""
        self._settings = settings
        self._command = _command(settings, data, namespace)
        self._shard = shard
        self._now_ms = now_ms
        self._state = "starting"
        self._why: str | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._retry_s = RETRY_S_MIN
        self._full = False
        self._exported_to = 0
        self._dropped_to = 0
        self._dropped_batches = 0
        self._mark_no = 0  # was the newest batch with events at `_mark_at_ms`
        self._mark_at_ms = 0

    def start(self) -> None:
        """Start the exporter and keep it running."""
        self._task = asyncio.get_running_loop().create_task(self._keep_running())
        self._task.add_done_callback(tell_failure)

    async def stop(self) -> None:
        """Let the exporter write what is there, once the last batch is committed."""
        self._stopping.set()
        if self._task is None:
            return
        try:
            await asyncio.wait_for(asyncio.shield(self._task), FINISH_S_MAX)
        except TimeoutError:
            self._task.cancel()
            log.warning(
                "the event log is not complete yet; the exporter goes on by itself",
                {"exported_to": self._exported_to, "waited_s": FINISH_S_MAX, **self._waiting()},
            )

    # The limit

    def look(self) -> bool:
        """Hold the backlog to its limit; answer whether sends have to be refused. To be called from time to
        time."""
        self._take_mark()
        waiting, limit = self._shard.event_backlog.size_bytes, self._settings.backlog_bytes
        if self._settings.policy == "drop-and-say":
            if waiting > limit:
                self._give_up(waiting - limit)
            return False
        self._full = waiting > (limit * OPEN_AGAIN if self._full else limit)
        return self._full

    def _give_up(self, excess_bytes: int) -> None:
        """Drop the oldest rows, about so many bytes of them. The exporter finds that they are missing, and
        says so in the log."""
        backlog = self._shard.event_backlog
        first, count = backlog.first_no, len(backlog)
        if first is None or not count or not backlog.size_bytes:
            return
        to = first + min(count, excess_bytes * count // backlog.size_bytes + 1) - 1
        above = max(self._dropped_to, self._exported_to, first - 1)
        if to > above:
            self._dropped_batches += to - above
            self._dropped_to = to
            log.warning(
                "events were given up: more wait for the event log than may",
                {"first": above + 1, "last": to, "since_start": self._dropped_batches, **self._waiting()},
            )
            self._shard.forget_events(to)

    def _waiting(self) -> dict[str, int]:
        return {"backlog_bytes": self._shard.event_backlog.size_bytes}

    # Figures

    def _take_mark(self) -> None:
        if self._exported_to >= self._mark_no:
            self._mark_no = self._shard.event_backlog.last_full_no
            self._mark_at_ms = self._now_ms()

    def health(self) -> dict[str, Any]:
        """Give figures for `GET /health`."""
        self._take_mark()
        lags = self._mark_no > self._exported_to
        return {
            "state": self._state,
            "reason": self._why,
            "pid": None if self._process is None else self._process.pid,
            "folder": str(self._settings.folder),
            "exported_to": self._exported_to,
            "backlog_bytes": self._shard.event_backlog.size_bytes,
            "lag_s": max(0, self._now_ms() - self._mark_at_ms) / 1000 if lags else 0.0,
            "policy": self._settings.policy,
            "dropped_batches": self._dropped_batches,
        }

    # The process

    async def _keep_running(self) -> None:
        while True:
            last_try = self._stopping.is_set()
            status = await self._run_once()
            if last_try or (self._stopping.is_set() and status == 0):
                break
            if self._stopping.is_set():
                continue  # it died as we were about to stop: once more, so that the log is complete
            log.warning(
                "the exporter of the event log ended; it is started again",
                {"reason": self._why, "status": status, "again_in_s": self._retry_s},
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._retry_s)
            self._retry_s = min(2 * self._retry_s, RETRY_S_MAX)
        if status == 0:
            self._state = "stopped"

    async def _run_once(self) -> int | None:
        """Run the exporter to its end; answer its exit status, None when it could not be started."""
        why = None
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C in the terminal is for the broker, whose end it waits for
            )
        except OSError as failure:
            self._state, self._why = "failed", f"cannot start {self._command[0]}: {failure.strerror}"
            return None
        try:
            ending = asyncio.create_task(self._end_when_stopping(process))
            assert process.stdout is not None
            async for line in process.stdout:
                word, _, rest = line.decode("utf-8", "replace").strip().partition(" ")
                if word == "exported":
                    self._exported(int(rest))
                elif word == "failed":
                    why = rest
            status = await process.wait()
            ending.cancel()
        finally:
            self._process = None
        if status:
            self._state, self._why = "failed", why or f"it ended with status {status}"
        return status

    async def _end_when_stopping(self, process: asyncio.subprocess.Process) -> None:
        await self._stopping.wait()
        assert process.stdin is not None
        process.stdin.close()

    def _exported(self, no: int) -> None:
        self._state, self._why = "running", None
        if no > self._exported_to:
            if self._exported_to:
                self._retry_s = RETRY_S_MIN
            self._exported_to = no
            self._shard.forget_events(no)


def _command(settings: CaptureSettings, data: Path, namespace: str) -> list[str]:
    command = [sys.executable, "-P", "-m", "peeklock.capture", "--data", os.path.abspath(data)]
    command += ["--to", os.path.abspath(settings.folder), "--namespace", namespace]
    command += ["--interval", str(settings.interval_s)]
    if settings.keep_days is not None:
        command += ["--keep-days", str(settings.keep_days)]
    if settings.keep_bytes is not None:
        command += ["--keep-bytes", str(settings.keep_bytes)]
    return command
