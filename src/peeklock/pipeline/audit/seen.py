"""What each segment shows of itself: its digest and batches, counts of its events, and its rare events.

Owns: the first reading of a log, in tasks of Spark; Spark adds up what they return. The events of a file
that is not as it was written, or has other batches than in its name, are not counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's documentation has it

from peeklock.pipeline.audit.packing import Truths
from peeklock.pipeline.audit.segments import Segment, SegmentDamaged, over_segments
from peeklock.pipeline.audit.vocabulary import (
    KINDS,
    KNOWN,
    OF_ENTITIES,
    OF_LOG,
    OF_SESSIONS,
)
from peeklock.pipeline.events import Segment as SegmentFile

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

FILE, CHANGED, DAMAGED, KIND, RARE, LOST = "file", "changed", "damaged", "kind", "rare", "lost"
"""What a row is: the batches of a file; a file that is not as it was written or cannot be read; counts of
events of one epoch, entity and type; a rare event; a connection that broke."""

_KEYS = {
    "what": "string", "path": "string", "namespace": "string", "broker_epoch": "long", "entity": "string",
    "event_type": "string", "related_entity": "string", "batch_no": "long", "index_no": "long",
    "sequence_number": "long", "related_sequence_number": "long", "connection_id": "long", "reason": "string",
}  # fmt: skip
_FIGURES = {
    "events": F.sum, "strange": F.sum, "sessions": F.sum, "transactions": F.sum, "version": F.max,
    "first_batch": F.min, "last_batch": F.max, "last_index": F.max, "first_ms": F.min, "last_ms": F.max,
}  # fmt: skip
_SCHEMA = ", ".join(
    f"`{name}` {kind}" for name, kind in (*_KEYS.items(), *((name, "long") for name in _FIGURES))
)
_ARROW = pa.schema(
    [
        *((name, pa.string() if kind == "string" else pa.int64()) for name, kind in _KEYS.items()),
        *((name, pa.int64()) for name in _FIGURES),
    ]
)
_READ = (
    "namespace", "batch_no", "index", "event_version", "event_time", "event_type", "entity",
    "sequence_number", "session_id", "reason", "transaction_id", "related_entity", "related_sequence_number",
    "connection_id", "broker_epoch",
)  # fmt: skip
_RARE = ("epoch_started", "gap", "clock_stepped", *OF_ENTITIES)


def see(spark: SparkSession, segments: list[SegmentFile], digests: Mapping[str, str]) -> list[Row]:
    """Read segments; return rows of `_KEYS` and `_FIGURES`.

    Args:
        digests: by path; a file without one is not compared.
    """
    ranges = {segment.path: (segment.first_batch, segment.last_batch) for segment in segments}

    def task(path: str, content: pa.Buffer) -> Iterator[pa.RecordBatch]:
        rows = list(_of_file(path, content, digests.get(path), ranges[path]))
        yield pa.RecordBatch.from_pylist(rows, schema=_ARROW)

    seen = over_segments(spark, list(ranges), task, _SCHEMA)
    figures = [add(name).alias(name) for name, add in _FIGURES.items()]
    places = {"place": place_key(), "related": place_key("related_entity")}
    return seen.groupBy(*_KEYS).agg(*figures).withColumns(places).collect()


def place_key(entity: str = "entity") -> Column:
    """Return the number of the place that a column names."""
    return F.xxhash64("namespace", entity).alias("place")


def _of_file(
    path: str, content: pa.Buffer, digest: str | None, named: tuple[int, int]
) -> Iterator[dict[str, Any]]:
    """Return the rows of one file."""
    if digest is not None and hashlib.sha256(content).hexdigest() != digest:
        yield {"what": CHANGED, "path": path}
        return
    try:
        segment = Segment(content, _READ)
    except SegmentDamaged as damage:
        yield {"what": DAMAGED, "path": path, "reason": str(damage)}
        return
    if not segment.count:
        return
    is_named = True
    batch = segment.numbers("batch_no")
    codes, names = segment.names("namespace")
    for code in np.unique(codes).tolist():
        its = batch[codes == code]
        first, last = int(its.min()), int(its.max())
        is_named &= named[0] <= first <= last <= named[1]
        namespace = None if code < 0 else names[code]
        yield {"what": FILE, "path": path, "namespace": namespace, "first_batch": first, "last_batch": last}
    if is_named:
        yield from _kinds(segment)
        yield from _rare(segment)
        yield from _lost(segment)


def _kinds(segment: Segment) -> Iterator[dict[str, Any]]:
    """Return figures of the events by epoch, entity and type."""
    of = ("namespace", "entity", "event_type", "related_entity")
    codes = {name: segment.names(name)[0] for name in of}
    each = pa.table(
        {
            **codes,
            "broker_epoch": segment.array("broker_epoch"),
            "strange": _strange(segment).astype(np.int64),
            "version": segment.array("event_version"),
            "batch": segment.array("batch_no"),
            "index": segment.array("index"),
            "ms": segment.milliseconds("event_time"),
            "session": segment.array("session_id"),
            "transaction": segment.array("transaction_id"),
        }
    )
    figures = {
        "events": ("batch", "count"), "strange": ("strange", "sum"), "sessions": ("session", "count"),
        "transactions": ("transaction", "count"), "version": ("version", "max"),
        "first_batch": ("batch", "min"), "last_batch": ("batch", "max"), "last_index": ("index", "max"),
        "last_ms": ("ms", "max"),
    }  # fmt: skip
    grouped = each.group_by([*of, "broker_epoch"], use_threads=False).aggregate(list(figures.values()))
    for row in grouped.to_pylist():
        texts = {name: None if row[name] < 0 else segment.names(name)[1][row[name]] for name in of}
        counts = {name: row[f"{column}_{how}"] for name, (column, how) in figures.items()}
        yield {"what": KIND, "broker_epoch": row["broker_epoch"], **texts, **counts}


def _strange(segment: Segment) -> Truths:
    """Return which events cannot be judged: of an unknown type, or without what their type needs."""
    of_session = segment.is_any("event_type", *OF_SESSIONS)
    numbered = segment.is_any("event_type", *KINDS, "duplicate_dropped")
    lacks = ~segment.has("entity")
    lacks |= of_session & ~segment.has("session_id")
    lacks |= numbered & ~segment.has("sequence_number")
    return ~segment.is_any("event_type", *KNOWN) | (~segment.is_any("event_type", *OF_LOG) & lacks)


def _rare(segment: Segment) -> Iterator[dict[str, Any]]:
    """Return the events that concern more than one message."""
    where = segment.is_any("event_type", *_RARE)
    kept = (
        "namespace", "entity", "event_type", "batch_no", "sequence_number", "related_sequence_number",
        "reason",
    )  # fmt: skip
    times = segment.milliseconds("event_time")[where].tolist()
    for row, at_ms in zip(segment.rows(where), times, strict=True):
        yield {"what": RARE, **{name: row[name] for name in kept}, "index_no": row["index"], "last_ms": at_ms}


def _lost(segment: Segment) -> Iterator[dict[str, Any]]:
    """Return the connections that broke, and the first time of each."""
    where = segment.is_any("event_type", "connection_lost")
    at_ms: dict[tuple[Any, ...], int] = {}
    for row, ms in zip(segment.rows(where), segment.milliseconds("event_time")[where].tolist(), strict=True):
        key = row["namespace"], row["broker_epoch"], row["connection_id"]
        at_ms[key] = min(ms, at_ms.get(key, ms))
    for (namespace, epoch, connection), ms in at_ms.items():
        yield {
            "what": LOST, "namespace": namespace, "broker_epoch": epoch, "connection_id": connection,
            "first_ms": ms,
        }  # fmt: skip
