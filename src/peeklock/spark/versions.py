"""What Spark 4.0 and 4.1 lack of what the data source uses, in the shape that 4.2 and later have.

Read limits, the trigger AvailableNow and the start of a batch came to Python data sources with 4.2; Arrow
batches for the writer of a stream with 4.1. An older Spark asks `latestOffset()` without saying where the
stream is, so `OlderStreamReader` remembers it. All else imports these names from here, and from nowhere else.
Another Spark is refused: the order of its calls, on which the promises rest, is not tested.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
    from pyspark.sql.types import StructType

    HANDS_START_IN = True
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxBytes,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )

        HANDS_START_IN = True
    except ImportError:
        HANDS_START_IN = False

        class ReadLimit:
            """How much of a stream a batch takes."""

        class ReadAllAvailable(ReadLimit):
            """All that is there."""

        @dataclass
        class ReadMaxRows(ReadLimit):
            """So many rows."""

            max_rows: int

        @dataclass
        class ReadMaxBytes(ReadLimit):
            """So many bytes."""

            max_bytes: int

        class SupportsTriggerAvailableNow:
            """Nobody asks these Sparks for it: with AvailableNow they take one batch."""

    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:
        from pyspark.sql.datasource import DataSourceStreamWriter as DataSourceStreamArrowWriter

__all__ = [
    "HANDS_START_IN",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "UnsupportedSpark",
    "arrow_batches",
    "require_supported",
    "stream_reader",
]

OLDEST, NEWEST = (4, 0), (4, 3)
"""The range of the extra `spark-any`, for which the matrix of versions is run."""

_BATCH_ROWS = 1000
"""Rows that become an Arrow batch at a time, where Spark hands rows in. Our choice."""

Json = dict[str, Any]


class UnsupportedSpark(Exception):
    """The data source does not run on this Spark; the text says on which it does."""


def require_supported(version: str) -> None:
    """Require a Spark of the range. Raises: UnsupportedSpark."""
    major, minor, *_ = (int(part) for part in re.findall(r"\d+", version))
    if not OLDEST <= (major, minor) <= NEWEST:
        oldest, newest = (".".join(map(str, end)) for end in (OLDEST, NEWEST))
        raise UnsupportedSpark(
            f"the data source servicebus runs on Spark {oldest} to {newest}, not on {version}: "
            f"run pip install 'peeklock[spark-any]' 'pyspark=={newest}.*', or install a release of peeklock "
            "that supports this Spark"
        )


class Reader(Protocol):
    """A stream reader for Sparks that hand in the start of a batch, which can do without after a restart."""

    def getDefaultReadLimit(self) -> ReadLimit: ...  # noqa: N802  # Spark's name

    def initialOffset(self) -> Json: ...  # noqa: N802  # Spark's name

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json: ...  # noqa: N802  # Spark's name

    def resumed_offset(self) -> Json:
        """Return the end of a batch whose start is in the checkpoint alone: not before it, and another."""

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]: ...

    def commit(self, end: Json) -> None: ...

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]: ...


class OlderStreamReader(DataSourceStreamReader):
    """A stream reader for Spark 4.0 and 4.1. It knows the end of the last batch, which begins the next one.

    With the trigger AvailableNow these Sparks ask for the end before the beginning, and once.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._start: Json | None = None

    def initialOffset(self) -> Json:  # noqa: N802  # Spark's name
        """Return where a new query begins."""
        initial = self._reader.initialOffset()
        self._start = self._start or initial
        return initial

    def latestOffset(self) -> Json:  # type: ignore[override]  # noqa: N802  # of these Sparks
        """Return the end of the next batch."""
        if self._start is None:
            self._start = self._reader.resumed_offset()
        else:
            self._start = self._reader.latestOffset(self._start, self._reader.getDefaultReadLimit())
        return self._start

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Divide a batch among tasks; after a restart it may be the last one again."""
        self._start = end
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a task."""
        return self._reader.read(partition)

    def commit(self, end: Json) -> None:
        """Take that a batch is done."""
        self._reader.commit(end)


def stream_reader(reader: Any) -> DataSourceStreamReader:
    """Return a reader for the Spark that runs."""
    return reader if HANDS_START_IN else OlderStreamReader(reader)


def arrow_batches(rows: Iterator[Any], schema: StructType) -> Iterator[pyarrow.RecordBatch]:
    """Yield what the writer of a stream gets as Arrow batches; Spark 4.0 hands in rows."""
    if DataSourceStreamArrowWriter.__name__ == "DataSourceStreamArrowWriter":
        yield from rows
        return
    from pyspark.sql.conversion import LocalDataToArrowConversion

    while part := [*islice(rows, _BATCH_ROWS)]:
        yield from LocalDataToArrowConversion.convert(part, schema, use_large_var_types=False).to_batches()
