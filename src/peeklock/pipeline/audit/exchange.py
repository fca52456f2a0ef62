"""The way of a log's rows: from segments to the tasks that judge them, and what these find.

Owns: the one exchange of an audit. A task reads a segment and packs the rows of each other task (`packing`);
these get them from Spark and judge them (`judging`). What a task finds comes back as one line of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame

from peeklock.pipeline.audit.checks import Verdict
from peeklock.pipeline.audit.facts import gather
from peeklock.pipeline.audit.judging import judge_tables
from peeklock.pipeline.audit.log import Log
from peeklock.pipeline.audit.numbers import Run, add_fault, judge_runs
from peeklock.pipeline.audit.packing import Numbers, join, split
from peeklock.pipeline.audit.seen import place_key
from peeklock.pipeline.audit.segment_rows import READ, Columns, Places, gather_places, left_rows, rows_of
from peeklock.pipeline.audit.segments import Segment, SegmentDamaged, over_segments

EVENTS_A_TASK = 300_000
"""A task needs some 400 bytes an event in Python. Our choice."""

_PACKED = "`to` int, `table` string, packed binary"


@dataclass(slots=True)
class Judged:
    """What all tasks found, besides the violations in the verdict."""

    places: Places
    batches: list[tuple[int, int, int, tuple[int, int, int] | None]] = field(default_factory=list)
    has_duplicates: bool = False
    is_torn: bool = False
    copies: list[tuple[int, int, tuple[int, int, int, int]]] = field(default_factory=list)
    """See `judging.Found`."""


def judge_log(log: Log, verdict: Verdict, horizon: dict[str, int], left: DataFrame | None) -> Judged:
    """Judge lives, sequence numbers and sessions, and look at batches, ids, transactions and copies.

    Args:
        horizon: by namespace, UTC ms: when due changes must have happened.
        left: the messages left at the end (namespace, entity, sequence_number); None = unknown.
    """
    facts, is_known, places = gather(log, horizon), left is not None, gather_places(log)

    def judged(rows: pa.Table) -> pa.Table:
        packed: dict[str, list[pa.Buffer]] = {}
        for table, data in zip(rows["table"], rows["packed"], strict=True):
            packed.setdefault(table.as_py(), []).append(data.as_buffer())
        tables = {table: join(each) for table, each in packed.items()}
        for columns in tables.values():
            if "place" in columns:
                columns["place"] = places.keys_of(columns["place"])
        found = judge_tables(tables, facts, left_is_known=is_known)
        return pa.table({"found": [json.dumps(asdict(found))]})

    tasks = 1 + log.count // EVENTS_A_TASK
    # One group a task: a group is sorted in the task that judges it.
    groups = _packed_rows(log, left, places, tasks).repartition(tasks, "to").groupBy("to")
    result = Judged(places)
    runs: list[Run] = []
    excused = 0
    for row in groups.applyInArrow(judged, "found string").collect():
        found = json.loads(row.found)
        verdict.lives += found["lives"]
        verdict.open_lives += found["open_lives"]
        excused += found["excused"]
        runs += [Run(**run) for run in found["runs"]]
        for fault in found["faults"]:
            add_fault(log, verdict, tuple(fault))
        result.batches += found["batches"]
        result.copies += found["copies"]
        result.has_duplicates |= found["has_duplicates"]
        result.is_torn |= found["is_torn"]
    judge_runs(log, verdict, runs)
    if excused:
        verdict.notes.append(
            f"{excused:,} messages are older than the log or a part of it: the missing events of their lives "
            f"are not checked."
        )
    return result


def _packed_rows(log: Log, left: DataFrame | None, places: Places, tasks: int) -> DataFrame:
    """Return the rows of all segments, and those of the messages left, packed for each task."""

    def of_segment(path: str, content: pa.Buffer) -> Iterator[pa.RecordBatch]:
        try:
            segment = Segment(content, READ)
        except SegmentDamaged as damage:  # in columns that the survey does not read
            raise SegmentDamaged(f"{path} is not a Parquet file that can be read: {damage}") from damage
        for table, columns, to in rows_of(segment, places):
            yield _packed(table, columns, to, tasks)

    def of_left(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys, numbers = (batch[name].to_numpy(zero_copy_only=False) for name in ("place", "number"))
            yield _packed(*left_rows(places, keys, numbers), tasks)

    paths = [segment.path for files in log.folders for segment in files.segments]
    rows = over_segments(log.events.sparkSession, paths, of_segment, _PACKED)
    if left is None:
        return rows
    keys = left.select(place_key(), left.sequence_number.alias("number"))
    return rows.unionByName(keys.mapInArrow(of_left, _PACKED))


def _packed(table: str, columns: Columns, to: Numbers, tasks: int) -> pa.RecordBatch:
    packed = list(split(columns, to % tasks, tasks))
    return pa.record_batch(
        {
            "to": pa.array([place for place, _ in packed], pa.int32()),
            "table": pa.array([table] * len(packed), pa.string()),
            "packed": pa.array([data for _, data in packed], pa.binary()),
        }
    )
