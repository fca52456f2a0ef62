"""The event log at the end of a soak: whole, and of one mind with the ledger.

Owns: reading the log file by file. Must not know: how it is written. `python -m tests.audit` judges all of
it, on Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.kill.capture_loop import SEGMENT
from tests.kill.ledger import Broken, Ledger

COLUMNS = ["batch_no", "index", "event_type", "entity", "sequence_number"]


def segments(log: Path) -> Iterator[Path]:
    """Yield the files of a log in their order. Raises: Broken when batches are missing or duplicate."""
    next_no = 1
    for path in sorted(log.glob("event_date=*/event_hour=*/*"), key=lambda path: path.name):
        found = SEGMENT.fullmatch(path.name)
        if found is None or int(found[1]) != next_no:
            raise Broken(f"batch {next_no} should be the first of the segment {path}")
        next_no = int(found[2]) + 1
        yield path


def judge(log: Path, queue: str, ledger: Ledger) -> dict[str, int]:
    """Compare a log with what clients learnt of one queue. Raises: Broken."""
    enqueued: Counter[int] = Counter()
    completed: Counter[int] = Counter()
    rows = files = 0
    for path in segments(log):
        table = pq.ParquetFile(path).read(columns=COLUMNS)
        rows, files = rows + table.num_rows, files + 1
        kinds = table["event_type"]
        if pc.any(pc.equal(kinds, "gap")).as_py():
            raise Broken(f"batches are missing in {path}")
        for kind, counts in (("enqueued", enqueued), ("completed", completed)):
            chosen = pc.and_(pc.equal(kinds, kind), pc.equal(table["entity"], queue))
            counts.update(table.filter(chosen)["sequence_number"].to_pylist())
    for fate in ledger.fates.values():
        if not fate.number:
            continue  # never stored, as far as clients know
        if enqueued.pop(fate.number, 0) != 1:
            raise Broken(f"not one row records that it was enqueued: {fate}")
        ended = completed.pop(fate.number, 0)
        if ended != 1 and (ended or fate.completed):
            raise Broken(f"{ended} rows record that it was completed: {fate}")
    if enqueued or completed:
        raise Broken(f"the log has messages that no client ever saw: {list(enqueued or completed)[:5]}")
    return {"events": rows, "segments": files}
