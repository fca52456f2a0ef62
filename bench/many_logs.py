"""`python -m bench.many_logs`: what the exporter takes for many event logs, idle and all at once.

The stores are in this process, open as in a broker; the exporter is the real one. Data are on a real disk
(`--data`), with fsync.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.systems import cpu_s
from peeklock.broker.vocabulary.events import Event, EventType
from peeklock.server.exporter_process import ExporterProcess
from peeklock.store.base import Batch
from peeklock.store.encoding.event_rows import INTEGERS
from peeklock.store.sqlite.store import SqliteStore
from peeklock.store.sqlite.threads import StoreThreads

INTERVAL_S = 10.0
SETTLE_S = 15.0
"""Until the pauses between the looks of an idle log have grown."""

BLANK = Event._make(0 if name in INTEGERS else None for name in Event._fields)


class Log:
    """One store, and how far its log goes."""

    def __init__(self, folder: Path, threads: StoreThreads, told: asyncio.Event) -> None:
        """Name the folders; `told` is set with each answer of the exporter."""
        self._told = told
        self.data, self.to = folder / "data", folder / "log"
        self.store = SqliteStore(self.data, threads=threads)
        self.no = 0
        self.exported_to = 0
        self.committed_s = 0.0
        self.exported_s = 0.0
        self.has_ended = False

    async def commit(self, kind: EventType, events: int) -> None:
        """Commit a batch of events."""
        now_ms = round(time.time() * 1000)
        event = BLANK._replace(
            type=kind, at_ms=now_ms, queue_id=4, queue_name="orders", size_bytes=100, enqueued_at_ms=now_ms
        )
        self.no += 1
        batch: list[tuple[Any, ...]] = [
            event._replace(sequence_number=self.no * 1000 + number) for number in range(events)
        ]
        self.committed_s = time.monotonic()
        await self.store.commit(Batch(self.no, [], events=batch, events_exported_to=self.exported_to))

    def exported(self, no: int) -> None:
        """Take how far the log goes."""
        self.exported_to = no
        self.exported_s = time.monotonic()
        self._told.set()

    def ended(self, why: str | None) -> None:
        """Take that all is exported."""
        assert why is None, f"a log failed: {why}"
        self.has_ended = True
        self._told.set()


async def until_all(logs: list[Log], told: asyncio.Event, is_so: Callable[[Log], bool]) -> None:
    """Wait until something is so for each log."""
    while not all(map(is_so, logs)):
        told.clear()
        await told.wait()


def is_exported(log: Log) -> bool:
    """Return whether a log has all batches."""
    return log.exported_to >= log.no


async def measure(folder: Path, options: argparse.Namespace) -> None:
    """Print the figures."""
    threads = StoreThreads()
    told = asyncio.Event()
    logs = [Log(folder / str(number), threads, told) for number in range(options.logs)]
    for log in logs:
        await log.store.open()
        await log.commit(EventType.EPOCH_STARTED, 1)
    exporter = ExporterProcess()
    ids = [
        exporter.add(
            {"data": str(log.data), "to": str(log.to), "namespace": "bench", "interval_s": INTERVAL_S}, log
        )
        for log in logs
    ]
    await until_all(logs, told, is_exported)
    assert exporter.pid is not None
    await asyncio.sleep(SETTLE_S)
    for _ in range(options.rounds):
        before_cpu_s = cpu_s(exporter.pid)
        await asyncio.sleep(options.idle_s)
        share = (cpu_s(exporter.pid) - before_cpu_s) / options.idle_s
        print(f"{len(logs)} idle logs: {share:.1%} of a core", flush=True)
    for _ in range(options.rounds):
        before_cpu_s = cpu_s(exporter.pid)
        await asyncio.gather(*(log.commit(EventType.ENQUEUED, options.events) for log in logs))
        await until_all(logs, told, is_exported)
        waits_s = [log.exported_s - log.committed_s for log in logs]
        ends_s = [log.exported_s for log in logs]
        print(
            f"{len(logs)} logs with {options.events} events each: to the log in "
            f"{statistics.median(waits_s):.1f} s, at most {max(waits_s):.1f} s; first to last segment "
            f"{max(ends_s) - min(ends_s):.1f} s, exporter {cpu_s(exporter.pid) - before_cpu_s:.1f} "
            "s of CPU",
            flush=True,
        )
    for log_id in ids:
        exporter.remove(log_id)
    await until_all(logs, told, lambda log: log.has_ended)
    await exporter.stop()
    for log in logs:
        await log.store.close()
    threads.close()


def main() -> None:
    """Measure in a temporary folder."""
    parser = argparse.ArgumentParser(prog="python -m bench.many_logs", description="Measure many event logs.")
    parser.add_argument("--data", default=os.curdir, help="a folder on the disk to measure")
    parser.add_argument("--logs", type=int, default=500)
    parser.add_argument("--events", type=int, default=10, help="of a log in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle-s", type=float, default=20.0, help="how long idle logs are measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.data, prefix="many-logs-") as folder:
        asyncio.run(measure(Path(folder), options))


if __name__ == "__main__":
    main()
