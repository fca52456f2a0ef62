"""The process that writes the event log, and what happens when it cannot keep up.

pyarrow is loaded by that process alone, whose work costs the event loop nothing.

Theory of operation. Each batch has an event row in the store. The exporter reads them there, and prints how
far all is written (`exported N`); later batches drop the rows up to there. Its standard input is a pipe that
we hold: it ends with us, however we end, and the exporter then writes what is left and exits too.

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
"""Pause before a process that died is restarted; it doubles until something has been exported."""

FINISH_S_MAX = 10.0
"""How long a stop waits for the exporter. Our choice: as for clients; a million events take a moment."""

OPEN_AGAIN = 0.5
"""Sends are accepted again below this share of the limit."""


class Capture:
    """The event log of one shard."""

    def __init__(
        self, settings: CaptureSettings, data: Path, namespace: str, shard: Shard, now_ms: Callable[[], int]
    ) -> None:
        """Run nothing before `start`; until then events wait in the store."""
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
        """Wait for the exporter to write what is left, once the last batch is committed."""
        self._stopping.set()
        if self._task is None:
            return
        try:
            await asyncio.wait_for(asyncio.shield(self._task), FINISH_S_MAX)
        except TimeoutError:
            self._task.cancel()
            log.warning(
                "the event log is not complete yet; the exporter continues on its own",
                {"exported_to": self._exported_to, "waited_s": FINISH_S_MAX, **self._waiting()},
            )

    # The limit

    def is_full(self) -> bool:
        """Apply the policy to the backlog; return whether sends must be refused. Call from time to time."""
        self._take_mark()
        waiting, limit = self._shard.event_backlog.size_bytes, self._settings.backlog_bytes
        if self._settings.policy == "drop-and-say":
            if waiting > limit:
                self._drop_oldest(waiting - limit)
            return False
        self._full = waiting > (limit * OPEN_AGAIN if self._full else limit)
        return self._full

    def _drop_oldest(self, excess_bytes: int) -> None:
        """Drop about so many bytes of the oldest rows. The exporter records the gap in the event log."""
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
                "events were given up: the event log backlog is full (--capture-policy drop-and-say)",
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

    @property
    def backlog_bytes(self) -> int:
        """Bytes that wait to be written."""
        return self._shard.event_backlog.size_bytes

    def health(self) -> dict[str, Any]:
        """Return figures for `GET /health`."""
        self._take_mark()
        lags = self._mark_no > self._exported_to
        return {
            "state": self._state,
            "reason": self._why,
            "pid": None if self._process is None else self._process.pid,
            "folder": str(self._settings.folder),
            "exported_to": self._exported_to,
            "backlog_bytes": self.backlog_bytes,
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
                continue  # it died before the stop: once more, to complete the log
            log.warning(
                "the exporter of the event log ended; it is restarted",
                {"reason": self._why, "status": status, "again_in_s": self._retry_s},
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._retry_s)
            self._retry_s = min(2 * self._retry_s, RETRY_S_MAX)
        if status == 0:
            self._state = "stopped"

    async def _run_once(self) -> int | None:
        """Run the exporter to its end; return its exit status, None if it could not be started."""
        why = None
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C in the terminal is for the broker alone
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
