"""Rounds as in `loop`, with an event log: its exporter is killed too, and the log is compared with the
ledger.

Owns: when the exporter dies, what the log must contain. Must not know: how clients work, how the log is
written.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.kill.ledger import Broken, Ledger
from tests.kill.loop import QUEUE, MessageLoop

SEGMENT = re.compile(r"events-(\d{20})-(\d{20})\.parquet")
"""File name of a segment: its first and its last batch."""
_COLUMNS = ["batch_no", "index", "event_type", "entity", "sequence_number"]


class CaptureLoop(MessageLoop):
    """Messages of one queue, and the log of their events."""

    def __init__(self, folder: Path, seed: int, *, options: Sequence[str] = ()) -> None:
        self.log = folder / "log"
        # Segments are short, so that deaths hit each step of writing one.
        capture = (f"--capture={self.log}", "--capture-interval=0.1")
        super().__init__(folder, seed, options=(*capture, *options))

    async def round(self, *, polite: bool) -> None:
        """Work for a random time, long enough for an exporter to begin; it dies now and then."""
        senders, receivers = await self.connect(senders=2, receivers=2)
        killing = asyncio.create_task(self._kill_exporters())
        await asyncio.sleep(self.random.uniform(0.1, 3.0))
        killing.cancel()
        await (self.stop if polite else self.kill)([*senders, *receivers])

    async def _kill_exporters(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.0, 2.0))
            if self.random.random() < 0.5:
                while not any(self.log.glob(".events-*.tmp")):  # noqa: ASYNC110  # another process makes it
                    await asyncio.sleep(0.001)
                await asyncio.sleep(self.random.uniform(0.0, 0.02))
            for pid in _children(self.broker.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def verdict(self) -> dict[str, int]:
        """Check the ledger, then compare the log with it."""
        figures = self.ledger.finish()
        rows, segments = read_log(self.log)
        judge(rows, self.ledger)
        return figures | {"events": len(rows), "segments": segments}


def read_log(log: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of a log and its number of segments. Raises: Broken when batches are missing or
    duplicate."""
    rows: list[dict[str, Any]] = []
    paths = sorted(log.glob("event_date=*/event_hour=*/*"), key=lambda path: path.name)
    next_no = 1
    for path in paths:
        found = SEGMENT.fullmatch(path.name)
        if found is None or int(found[1]) != next_no:
            raise Broken(f"batch {next_no} should be the first of the segment {path}")
        rows += pq.ParquetFile(path).read(columns=_COLUMNS).to_pylist()
        next_no = int(found[2]) + 1
    return rows, len(paths)


def judge(rows: Iterable[dict[str, Any]], ledger: Ledger) -> None:
    """Compare the log with what clients learnt. Raises: Broken."""
    places = Counter((row["batch_no"], row["index"]) for row in rows)
    twice = [place for place, count in places.items() if count > 1]
    if twice:
        raise Broken(f"rows occur twice: {twice[:5]}")
    gaps = [row for row in rows if row["event_type"] == "gap"]
    if gaps:
        raise Broken(f"batches are missing: {gaps[:5]}")
    seen = Counter((row["event_type"], row["sequence_number"]) for row in rows if row["entity"] == QUEUE)
    for fate in ledger.fates.values():
        if not fate.number:
            continue  # never stored, as far as clients know
        enqueued, completed = (seen.pop((kind, fate.number), 0) for kind in ("enqueued", "completed"))
        if enqueued != 1:
            raise Broken(f"{enqueued} rows record that it was enqueued: {fate}")
        if completed != 1 and (completed or fate.completed):
            raise Broken(f"{completed} rows record that it was completed: {fate}")
    unknown = [key for key in seen if key[0] in ("enqueued", "completed")]
    if unknown:
        raise Broken(f"the log has messages that no client ever saw: {unknown[:5]}")


def _children(pid: int | None) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
