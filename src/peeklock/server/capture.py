"""The event log of one namespace: what waits for the exporter, and what happens when that cannot keep up.

Theory of operation. Each batch has an event row in the store. The exporter, one process for all namespaces
(`exporter_process`), reads them there and reports how far all is written; later batches drop the rows up to
there.

    starting -> running -> failed -> running ... -> stopped
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from peeklock.server import log
from peeklock.server.exporter_process import RETRY_S_MAX, RETRY_S_MIN, ExporterProcess
from peeklock.server.loop.tasks import tell_failure
from peeklock.server.settings import CaptureSettings
from peeklock.server.shard.shard import Shard

FINISH_S_MAX = 10.0
"""How long a stop waits for the exporter. Our choice: as for clients; a million events take a moment."""

OPEN_AGAIN = 0.5
"""Sends are accepted again below this share of the limit."""

NAMESPACES_FOLDER = "_namespaces"
"""In the default namespace's log. Readers of a Parquet folder skip what begins with an underscore; Spark
refuses a folder that has others beside its partitions."""


def folder_of(settings: CaptureSettings, name: str, *, is_default: bool) -> Path:
    """Return the folder of a namespace's event log."""
    return settings.folder if is_default else settings.folder / NAMESPACES_FOLDER / name


class Capture:
    """The event log of one shard."""

    def __init__(
        self,
        settings: CaptureSettings,
        folder: Path,
        source: Mapping[str, str | int],
        namespace: str,
        shard: Shard,
        now_ms: Callable[[], int],
        exporter: ExporterProcess,
    ) -> None:
        """Have nothing exported before `start`; until then events wait in the store.

        Args:
            settings: for all logs of the broker.
            folder: of this log, see `folder_of`.
            source: the store, as a request of the exporter names it.
            namespace: its name.
            shard: has the backlog of events, and forgets what is exported.
            now_ms: the broker's time.
            exporter: writes the log.
        """
        self._settings = settings
        self._folder = folder
        self._request = {
            "source": source,
            "to": os.path.abspath(folder),
            "namespace": namespace,
            "interval_s": settings.interval_s,
            "keep_days": settings.keep_days,
            "keep_bytes": settings.keep_bytes,
        }
        self._shard = shard
        self._now_ms = now_ms
        self._exporter = exporter
        self._state = "starting"
        self._why: str | None = None
        self._ended = asyncio.Event()
        self._stopping = asyncio.Event()
        self._has_store = True
        self._task: asyncio.Task[None] | None = None
        self._retry_s = RETRY_S_MIN
        self._full = False
        self._exported_to = 0
        self._dropped_to = 0
        self._dropped_batches = 0
        self._mark_no = 0  # was the newest batch with events at `_mark_at_ms`
        self._mark_at_ms = 0

    def start(self) -> None:
        """Have the log exported from now on, again and again if that fails."""
        self._task = asyncio.get_running_loop().create_task(self._keep_exporting())
        self._task.add_done_callback(tell_failure)

    def leave_store(self) -> None:
        """Change nothing in the store any more: another node takes it."""
        self._has_store = False

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
                {
                    "folder": str(self._folder),
                    "exported_to": self._exported_to,
                    "waited_s": FINISH_S_MAX,
                    **self._waiting(),
                },
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
                {
                    "folder": str(self._folder),
                    "first": above + 1,
                    "last": to,
                    "since_start": self._dropped_batches,
                    **self._waiting(),
                },
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
            "pid": self._exporter.pid,
            "folder": str(self._folder),
            "exported_to": self._exported_to,
            "backlog_bytes": self.backlog_bytes,
            "lag_s": max(0, self._now_ms() - self._mark_at_ms) / 1000 if lags else 0.0,
            "policy": self._settings.policy,
            "dropped_batches": self._dropped_batches,
        }

    # The exporter

    async def _keep_exporting(self) -> None:
        while True:
            last_try = self._stopping.is_set()
            await self._export_once()
            if last_try or self._state == "stopped":
                return
            if self._stopping.is_set():
                continue  # it failed before all was written: once more, to complete the log
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._retry_s)
            self._retry_s = min(2 * self._retry_s, RETRY_S_MAX)

    async def _export_once(self) -> None:
        """Have the log exported until that fails, or a stop is asked for and all is exported."""
        self._ended.clear()
        log_id = self._exporter.add(self._request, self)
        removing = asyncio.create_task(self._remove_when_stopping(log_id))
        try:
            await self._ended.wait()
        finally:
            removing.cancel()

    async def _remove_when_stopping(self, log_id: int) -> None:
        await self._stopping.wait()
        self._exporter.remove(log_id)

    def exported(self, no: int) -> None:
        """Forget the events of the batches up to this one: they are in the log."""
        self._state, self._why = "running", None
        if no > self._exported_to:
            if self._exported_to:
                self._retry_s = RETRY_S_MIN
            self._exported_to = no
            if self._has_store:
                self._shard.forget_events(no)

    def ended(self, why: str | None) -> None:
        """Take that the exporter does no more for this log: why it failed, None = all is exported."""
        self._state, self._why = ("stopped", None) if why is None else ("failed", why)
        self._ended.set()
