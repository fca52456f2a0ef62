"""The event log as a table: read whole or followed. `capture/schema.py` describes the columns.

A segment is `events-<first batch>-<last batch>.parquet`; other files, such as an exporter's temporary ones,
are ignored. No segment is skipped silently: an unreadable one ends the job with its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from peeklock.capture.schema import EVENTS
from peeklock.pipeline.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEGMENT = re.compile(r"events-(\d{20})-(\d{20})\.parquet$")
SEGMENT_PATH = re.compile(r"[^\s'\"]*events-\d{20}-\d{20}\.parquet")
SMALLEST_SEGMENT = 12
"""Magic, length of the footer, magic: Spark reads a shorter file as one without rows."""
UNREADABLE = ("FAILED_READ_FILE", "CANNOT_READ_FILE_FOOTER", "is not a Parquet file", "Parquet")


class LogError(Exception):
    """The event log cannot be read; the text says which part and what to do."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of the log and its batches."""

    path: str
    first_batch: int
    last_batch: int
    size_bytes: int = 0

    @property
    def name(self) -> str:
        """The path within the folder of the log."""
        return "/".join(self.path.split("/")[-3:])


def read_events(spark: SparkSession, *folders: str) -> DataFrame:
    """Return all events of the logs in `folders`, unordered. A column that an older segment lacks is null.

    With several folders the columns that come from folder names are null.
    """
    reader = spark.read.schema(_schema()).options(**_options())
    if len(folders) > 1:  # else Spark refuses them as one table with inconsistent folders
        reader = reader.option("recursiveFileLookup", True)
    return reader.parquet(*folders)


def read_segments(spark: SparkSession, segments: list[Segment]) -> DataFrame:
    """Return the events of some segments, unordered; the columns that come from folder names are null."""
    return spark.read.schema(_schema()).options(**_options()).parquet(*(entry.path for entry in segments))


def stream_events(spark: SparkSession, folder: str, *, segments_per_trigger: int = 100) -> DataFrame:
    """Return the log in `folder` as a stream of segments in the order of writing."""
    reader = spark.readStream.schema(_schema()).options(**_options())
    return reader.option("maxFilesPerTrigger", segments_per_trigger).parquet(folder)


def find_segments(spark: SparkSession, folder: str, *, whole: bool = True) -> list[Segment]:
    """Return the segments of the log in `folder`, in order.

    Args:
        whole: refuse a file that is too short to be one.

    Raises: LogError.
    """
    files = Files(spark, folder)
    if not files.exists():
        raise LogError(
            f"there is no folder {folder!r}: give the folder that `peeklock serve --capture` writes to."
        )
    found = []
    for path, length in files.find("event_date=*/event_hour=*/events-*.parquet"):
        name = SEGMENT.search(path)
        if name is None:
            continue
        found.append(Segment(local_path(path), int(name[1]), int(name[2]), length))
    if not found:
        raise LogError(
            f"the event log in {folder!r} is empty: no events-*.parquet is there. The broker writes the "
            "first segment some seconds after the first message; see `capture` in its health report."
        )
    if whole:
        refuse_short(found)
    return sorted(found, key=lambda segment: segment.first_batch)


def refuse_short(segments: list[Segment]) -> None:
    """Raise LogError for a file that is too short to be a segment."""
    for segment in segments:
        if segment.size_bytes < SMALLEST_SEGMENT:
            raise LogError(damaged(segment.path, f"it has {segment.size_bytes} bytes"))


def holes(segments: list[Segment]) -> list[tuple[int, int]]:
    """Return the first and last batch of each hole between segments."""
    return [
        (before.last_batch + 1, after.first_batch - 1)
        for before, after in pairwise(segments)
        if after.first_batch > before.last_batch + 1
    ]


def damage(failure: Exception) -> str | None:
    """Return the text for a Spark error that comes from a segment; None for others."""
    text = str(failure)
    path = SEGMENT_PATH.search(text)
    if path is None or not any(sign in text for sign in UNREADABLE):
        return None
    return damaged(path[0], "it cannot be read")


def damaged(path: str, how: str) -> str:
    """Return the text for a segment that cannot be used."""
    return (
        f"segment {local_path(path)} is damaged: {how}. Restore it from a copy; or move it away, and the "
        "audit reports what is missing."
    )


def local_path(path: str) -> str:
    """Return a path of Spark's listing of files without its scheme."""
    return re.sub("^file:/*", "/", path)


def _options() -> dict[str, str]:
    return {
        "pathGlobFilter": "events-*.parquet",
        "ignoreCorruptFiles": "false",
        "ignoreMissingFiles": "false",
        "mergeSchema": "false",
        "parquet.page.verify-checksum.enabled": "true",
    }


def _schema() -> str:
    """Return the columns as Spark's DDL: those of `capture/schema.py`, then those from folder names."""
    columns = [f"`{column.name}` {_type(column.type)}" for column in EVENTS]
    return ", ".join([*columns, "event_date date", "event_hour int"])


def _type(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return _type(kind.value_type)
    if pa.types.is_map(kind):
        return f"map<{_type(kind.key_type)},{_type(kind.item_type)}>"
    return {
        pa.int32(): "int",
        pa.int64(): "bigint",
        pa.string(): "string",
        pa.binary(): "binary",
        pa.bool_(): "boolean",
        pa.timestamp("us", tz="UTC"): "timestamp",
    }[kind]
