"""What Spark does with a stream's reader, call for call.

Owns: a checkpoint that can be seen, a sink that is idempotent, and the end of a driver between any two calls.
The order is that of Spark 4.3 as traced: initialOffset (first start only), latestOffset, offset log, commit
of the batch before, partitions, read, sink, commit log. A batch in the offset log that is not in the commit
log is planned and read again, between the same offsets.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from peeklock.spark.versions import OlderStreamReader, ReadAllAvailable, SupportsTriggerAvailableNow

SCHEMA = (
    StructType()
    .add("body", BinaryType())
    .add("entity", StringType())
    .add("sequenceNumber", LongType())
    .add("sessionId", StringType())
)


class Stopped(Exception):
    """The test ended the driver here."""


@dataclass
class Checkpoint:
    """What outlives a crash: the logs, and what the sink has by batch."""

    offsets: list[str] = field(default_factory=list)
    commits: int = 0
    sink: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Checkpoint:
        """Read the checkpoint of a query with one source, as Spark wrote it."""
        offsets = [
            (folder / "offsets" / str(batch)).read_text().splitlines()[2]
            for batch in range(len(list((folder / "offsets").glob("[0-9]*"))))
        ]
        return cls(offsets, len(list((folder / "commits").glob("[0-9]*"))))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All that arrived, in the order of batches."""
        return [row for _, rows in sorted(self.sink.items()) for row in rows]

    @property
    def bodies(self) -> list[str]:
        return [row["body"].decode() for row in self.rows]


class Query:
    """One start of a query over a checkpoint."""

    def __init__(
        self,
        make_reader: Callable[[], Any],
        checkpoint: Checkpoint,
        *,
        available_now: bool = False,
        unlimited: bool = False,
        older: bool = False,
        stop_at: str | None = None,
        stop_in_batch: int = 0,
    ) -> None:
        """Start, and do again what was not done.

        `older`: as Spark 4.0 and 4.1 call a reader. `stop_at`: before which call the driver dies, once batch
        `stop_in_batch` has come.
        """
        self.reader = pickle.loads(pickle.dumps(make_reader()))
        self.worker = pickle.loads(pickle.dumps(make_reader()))
        self._older = older
        self._checkpoint = checkpoint
        self._limit = ReadAllAvailable() if unlimited else self.reader.getDefaultReadLimit()
        if older:
            self.reader, self.worker = OlderStreamReader(self.reader), OlderStreamReader(self.worker)
        self._stop_at = stop_at
        self._stop_in_batch = stop_in_batch
        self._calls = 0
        self.on_call: Callable[[int], object] = lambda number: None
        """Called with a number before each call of the reader after the start."""
        if available_now:
            assert isinstance(self.reader, SupportsTriggerAvailableNow)
            self.reader.prepareForTriggerAvailableNow()
        if len(checkpoint.offsets) > checkpoint.commits:
            self._run(len(checkpoint.offsets) - 1)

    def trigger(self) -> bool:
        """Do one micro-batch; say whether there was something new."""
        checkpoint = self._checkpoint
        batch = len(checkpoint.offsets)
        start = self._offset(batch - 1)
        self._point("latest", batch)
        arguments = () if self._older else (start, self._limit)
        end = json.dumps(self.reader.latestOffset(*arguments))
        if end == json.dumps(start):
            return False
        self._point("log", batch)
        checkpoint.offsets.append(end)
        self._point("commit", batch)
        if batch > 0:
            self.reader.commit(self._offset(batch - 1))
        self._run(batch)
        return True

    def first(self) -> None:
        """Do the first micro-batch, which Spark does even if there is nothing."""
        batch = len(self._checkpoint.offsets)
        assert batch == 0
        if not self.trigger():
            self._checkpoint.offsets.append(json.dumps(self._offset(-1)))
            self._run(0)

    def run(self) -> None:
        """Do micro-batches until nothing is new, as with AvailableNow."""
        while self.trigger():
            pass

    def _run(self, batch: int) -> None:
        checkpoint = self._checkpoint
        self._point("partitions", batch)
        partitions = self.reader.partitions(self._offset(batch - 1), self._offset(batch))
        self._point("read", batch)
        rows: list[dict[str, Any]] = []
        for partition in partitions:
            again = pickle.loads(pickle.dumps(partition))
            found = [row for part in self.worker.read(again) for row in part.to_pylist()]
            assert found == [row for part in self.worker.read(partition) for row in part.to_pylist()]
            rows += found
        self._point("sink", batch)
        if batch in checkpoint.sink:
            assert rows == checkpoint.sink[batch]
        checkpoint.sink[batch] = rows
        self._point("done", batch)
        checkpoint.commits = batch + 1

    def _offset(self, batch: int) -> Any:
        if batch >= 0:
            return json.loads(self._checkpoint.offsets[batch])
        return json.loads(json.dumps(self.reader.initialOffset()))

    def _point(self, name: str, batch: int) -> None:
        if name in ("latest", "commit", "partitions", "read"):
            self.on_call(self._calls)
            self._calls += 1
        if name == self._stop_at and batch >= self._stop_in_batch:
            raise Stopped(f"{name} of batch {batch}")
