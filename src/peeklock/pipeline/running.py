"""Runs a job over the event log: whole, or micro-batch after micro-batch, into a table.

Owns: how tables are written and read back, what a stream keeps in its checkpoint, exactly once. Must not
know: what a job computes, the command line.

A stream runs the job in `foreachBatch`. Spark asks again for a batch whose end it did not note, with the same
number and the same segments; so each batch writes its own partition `batch=<number>`, replacing what an
earlier attempt left there, and reads what the batch before it carried:

    CHECKPOINT/job.json                  which job, from where, to where
    CHECKPOINT/carried/<batch>/<name>    what the job wants back with the next batch
    CHECKPOINT/{commits,offsets,sources} Spark's own
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812  # the name that all of Spark's documentation has

from peeklock.pipeline.display import counted
from peeklock.pipeline.events import find_segments, holes, read_events, stream_events
from peeklock.pipeline.files import Files
from peeklock.pipeline.lives import Advance, Marks, find_marks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

KEPT_BATCHES = 2
"""Of what was carried: that of the last batch, and of the one before, which a repeated batch wants."""


class JobError(Exception):
    """A job cannot run as asked; the text says why and what to do."""


def rows_where(rows: DataFrame, where: str | None) -> DataFrame:
    """Return the rows for which the option --where holds; without it all.

    Raises:
        JobError: Spark does not take the condition.
    """
    if where is None:
        return rows
    try:
        return rows.where(where)
    except AnalysisException as failure:  # of which a wrong syntax is one
        said = re.split(r"\s*SQLSTATE|\n", str(failure).strip())[0]
        said = re.sub(r"^\[[A-Z0-9_.]+\] ", "", said)
        raise JobError(f"--where {where!r}: {said}") from None


class LogJob(Protocol):
    """Computes rows from events; see `lives.advance_lives`."""

    def __call__(
        self, events: DataFrame, carried: dict[str, DataFrame] | None, marks: Marks, *, last: bool
    ) -> Advance: ...


@dataclass(frozen=True, slots=True)
class Table:
    """Where rows go: a folder, or whatever the format takes for a path."""

    path: str
    file_format: str = "parquet"

    def read_if_there(self, spark: SparkSession) -> DataFrame | None:
        """Return its rows; None while no job has written any."""
        if not any(not name.startswith("_") for name in Files(spark, self.path).names()):
            return None
        return spark.read.format(self.file_format).load(self.path)


def run_batch(
    spark: SparkSession,
    job: LogJob,
    source: str,
    table: Table,
    *,
    date: str,
    overwrite: bool,
    entities: tuple[str, ...],
    tell: Callable[[str], None],
) -> None:
    """Run a job over the whole log and write its table, partitioned by the column `date`."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    segments = find_segments(spark, source)
    _refuse_nested(source, table.path)
    _refuse_filled(spark, table, overwrite)
    events = read_events(spark, source)
    _check_entities(events, entities)
    tell(
        f"{counted(len(segments), 'segment')}, batches {segments[0].first_batch} to {segments[-1].last_batch}"
    )
    for first, last in holes(segments):
        tell(f"batches {first} to {last} are missing: no segment holds them; see the audit.")
    marks = find_marks(events)
    for first, last, reason in marks.gaps:
        tell(f"batches {first} to {last} were not captured: {reason}")
    advance = job(_of(events, entities), None, marks, last=True)
    try:
        write_whole(spark, advance.rows, table, date=date, overwrite=overwrite)
    finally:
        advance.release()


def write_whole(spark: SparkSession, rows: DataFrame, table: Table, *, date: str, overwrite: bool) -> None:
    """Write a table in one go, partitioned by the column `date`.

    Raises:
        JobError: there is something already, and `overwrite` is not set.
    """
    _refuse_filled(spark, table, overwrite)
    rows.write.format(table.file_format).partitionBy(date).mode("overwrite").save(table.path)


def run_stream(
    spark: SparkSession,
    job: LogJob,
    job_name: str,
    source: str,
    table: Table,
    *,
    date: str,
    checkpoint: str,
    once: bool,
    entities: tuple[str, ...],
    tell: Callable[[str], None],
    stop: threading.Event | None = None,
) -> None:
    """Follow the log until stopped; with `once` up to what is there now."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    find_segments(spark, source)
    _refuse_nested(source, table.path)
    _check_entities(read_events(spark, source), entities)
    keeper = Files(spark, checkpoint)
    claim_checkpoint(keeper, Files(spark, table.path), job_name, source, table.path, entities)

    caught: list[Exception] = []

    def each(events: DataFrame, batch: int) -> None:
        try:
            find_segments(spark, source)  # Spark would take an empty file for one without rows
            carried = _carried(events.sparkSession, keeper, batch)
            marks = find_marks(events)
            advance = job(_of(events, entities), carried, marks, last=False)
            try:
                _write_batch(advance, keeper, table, date, batch)
            finally:
                advance.release()
            keeper.delete(f"carried/{batch - KEPT_BATCHES}")
            tell(f"batch {batch} written")
        except Exception as failure:
            caught.append(failure)  # Spark would tell of it in a text of its own
            raise

    writer = stream_events(spark, source).writeStream.foreachBatch(each)
    writer = writer.option("checkpointLocation", checkpoint)
    query = (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="1 second")).start()
    try:
        await_end(query, stop)
    except StreamingQueryException as failure:
        raise (caught[0] if caught else failure) from None


def await_end(query: StreamingQuery, stop: threading.Event | None) -> None:
    """Wait until a query ends, or end it when `stop` is set."""
    try:
        while not query.awaitTermination(1) and not (stop is not None and stop.is_set()):
            pass
    finally:
        query.stop()


def _write_batch(advance: Advance, keeper: Files, table: Table, date: str, batch: int) -> None:
    for name, rows in advance.carry.items():
        rows.write.mode("overwrite").parquet(keeper.join("carried", str(batch), name))
    keeper.write(f"carried/{batch}/_names.json", json.dumps(sorted(advance.carry)))
    writer = advance.rows.withColumn("batch", F.lit(batch)).write.format(table.file_format)
    # Only the partitions that these rows have are replaced: those of an earlier attempt.
    writer = writer.partitionBy(date, "batch").option("partitionOverwriteMode", "dynamic")
    writer.mode("overwrite").save(table.path)


def _of(events: DataFrame, entities: tuple[str, ...]) -> DataFrame:
    """Return the events of some entities and their sub-queues and subscriptions."""
    if not entities:
        return events
    entity = F.col("entity")
    wanted = F.lit(False)
    for name in entities:
        wanted = wanted | (entity == name) | entity.startswith(name + "/")
    return events.where(wanted)


def _check_entities(events: DataFrame, entities: tuple[str, ...]) -> None:
    if not entities:
        return
    known = {row.entity for row in events.select("entity").distinct().collect() if row.entity is not None}
    for name in entities:
        if not any(entity == name or entity.startswith(name + "/") for entity in known):
            there = ", ".join(sorted(known)[:20])
            raise JobError(f"the event log knows no entity {name!r}; it has {there}.")


def _refuse_filled(spark: SparkSession, table: Table, overwrite: bool) -> None:
    if not overwrite and Files(spark, table.path).names():
        raise JobError(
            f"there is something in {table.path!r}: give another --to, or --overwrite to replace it."
        )


def _refuse_nested(source: str, target: str) -> None:
    to, log = target.rstrip("/") + "/", source.rstrip("/") + "/"
    if to.startswith(log) or log.startswith(to):
        raise JobError(f"--to {target!r} and the event log {source!r} hold each other: give another --to.")


def claim_checkpoint(
    keeper: Files, table: Files, job_name: str, source: str, target: str, entities: tuple[str, ...]
) -> None:
    """Note whose checkpoint it is, or refuse that of another run."""
    wanted = {"job": job_name, "from": source.rstrip("/"), "to": target.rstrip("/"), "entities": [*entities]}
    noted = keeper.read("job.json")
    if noted is None:
        if [name for name in table.names() if not name.startswith("_")]:
            raise JobError(
                f"there is something in {target!r}, and no checkpoint in {keeper.path!r} that goes on from "
                "it: give another --to, or the --checkpoint that it was written with."
            )
        keeper.write("job.json", json.dumps(wanted))
        return
    before = json.loads(noted)
    for key, value in wanted.items():
        if before[key] != value:
            raise JobError(
                f"the checkpoint in {keeper.path!r} belongs to another run: {key} was {before[key]!r} and is "
                f"{value!r} now. Give another --checkpoint, or go on with what it was."
            )


def _carried(spark: SparkSession, keeper: Files, batch: int) -> dict[str, DataFrame] | None:
    if batch == 0:
        return None
    names = keeper.read(f"carried/{batch - 1}/_names.json")
    if names is None:
        raise JobError(
            f"the checkpoint in {keeper.path!r} is damaged: what batch {batch - 1} carried is gone. Begin "
            "anew with another --checkpoint and another --to."
        )
    return {
        name: spark.read.parquet(keeper.join("carried", str(batch - 1), name)) for name in json.loads(names)
    }
