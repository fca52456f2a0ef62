"""Runs a job over the event log into a table: whole, or as a stream with exactly-once output.

A stream runs the job in `foreachBatch`. Spark repeats a batch that it did not commit, with the same number
and the same segments. So each batch writes its own partition `batch=<number>`, replaces the output of an
earlier attempt, and reads what the batch before it carried:

    CHECKPOINT/job.json                  the job, its source and its table
    CHECKPOINT/carried/<batch>/<name>    rows that the job gets back with the next batch
    CHECKPOINT/{commits,offsets,sources} of Spark
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
from peeklock.spark.session import is_remote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

KEPT_BATCHES = 2
"""Carried rows that are kept: of the last batch, and of the one before, which a repeated batch reads."""


class JobError(Exception):
    """A job cannot run; the text says why and what to do."""


def rows_where(rows: DataFrame, where: str | None) -> DataFrame:
    """Return the rows for which the option --where holds, all without it. Raises: JobError."""
    if where is None:
        return rows
    try:
        chosen = rows.where(where)
        chosen.schema  # noqa: B018  # a Spark Connect server checks the condition when it is asked
        return chosen
    except AnalysisException as failure:  # also a syntax error
        text = re.split(r"\s*SQLSTATE|\n", str(failure).strip())[0]
        text = re.sub(r"^\[[A-Z0-9_.]+\] ", "", text)
        raise JobError(f"--where {where!r}: {text}") from None


class LogJob(Protocol):
    """Computes rows from events; see `lives.advance_lives`."""

    def __call__(
        self, events: DataFrame, carried: dict[str, DataFrame] | None, marks: Marks, *, last: bool
    ) -> Advance: ...


@dataclass(frozen=True, slots=True)
class Table:
    """Target of a job: a folder, or another path that the format takes."""

    path: str
    file_format: str = "parquet"

    def read_if_there(self, spark: SparkSession) -> DataFrame | None:
        """Return its rows; None if no job has written any."""
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
        tell(f"batches {first} to {last} are missing: no segment has them; see the audit.")
    marks = find_marks(events)
    for first, last, reason in marks.gaps:
        tell(f"batches {first} to {last} were not captured: {reason}")
    advance = job(_of(events, entities), None, marks, last=True)
    try:
        write_whole(spark, advance.rows, table, date=date, overwrite=overwrite)
    finally:
        advance.release()


def write_whole(spark: SparkSession, rows: DataFrame, table: Table, *, date: str, overwrite: bool) -> None:
    """Write a table, partitioned by the column `date`. Raises: JobError."""
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
    """Follow the log until stopped; with `once` until its end of now."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    find_segments(spark, source)
    _refuse_nested(source, table.path)
    _check_entities(read_events(spark, source), entities)
    claim_checkpoint(
        Files(spark, checkpoint), Files(spark, table.path), job_name, source, table.path, entities
    )

    caught: list[Exception] = []
    remote = is_remote(spark)  # then `each` runs in a process of the server

    def each(events: DataFrame, batch: int) -> None:
        spark = events.sparkSession
        keeper = Files(spark, checkpoint)
        try:
            find_segments(spark, source)  # Spark reads an empty file as one without rows
            carried = _carried(spark, keeper, batch)
            marks = find_marks(events)
            advance = job(_of(events, entities), carried, marks, last=False)
            try:
                _write_batch(advance, keeper, table, date, batch)
            finally:
                advance.release()
            keeper.delete(f"carried/{batch - KEPT_BATCHES}")
            if not remote:
                tell(f"batch {batch} written")
        except Exception as failure:
            caught.append(failure)  # Spark raises it as text in an error of its own
            raise

    writer = stream_events(spark, source).writeStream.foreachBatch(each)
    writer = writer.option("checkpointLocation", checkpoint)
    query = (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="1 second")).start()
    try:
        await_end(query, stop)
    except StreamingQueryException as failure:
        raise (caught[0] if caught else failure) from None


def await_end(query: StreamingQuery, stop: threading.Event | None) -> None:
    """Wait until a query ends; end it when `stop` is set."""
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
    # Replaces only the partitions that these rows have: those of an earlier attempt.
    writer = writer.partitionBy(date, "batch").option("partitionOverwriteMode", "dynamic")
    writer.mode("overwrite").save(table.path)


def _of(events: DataFrame, entities: tuple[str, ...]) -> DataFrame:
    """Return the events of entities with their sub-queues and subscriptions; all without entities."""
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
            raise JobError(f"the event log has no entity {name!r}; it has {', '.join(sorted(known)[:20])}.")


def _refuse_filled(spark: SparkSession, table: Table, overwrite: bool) -> None:
    if not overwrite and Files(spark, table.path).names():
        raise JobError(f"{table.path!r} is not empty: give another --to, or --overwrite to replace it.")


def _refuse_nested(source: str, target: str) -> None:
    to, log = target.rstrip("/") + "/", source.rstrip("/") + "/"
    if to.startswith(log) or log.startswith(to):
        raise JobError(f"--to {target!r} and the event log {source!r} are nested: give another --to.")


def claim_checkpoint(
    keeper: Files, table: Files, job_name: str, source: str, target: str, entities: tuple[str, ...]
) -> None:
    """Write the run to its checkpoint, or refuse the checkpoint of another run."""
    wanted = {"job": job_name, "from": source.rstrip("/"), "to": target.rstrip("/"), "entities": [*entities]}
    noted = keeper.read("job.json")
    if noted is None:
        if [name for name in table.names() if not name.startswith("_")]:
            raise JobError(
                f"{target!r} is not empty, and {keeper.path!r} has no checkpoint for it: give another --to, "
                "or the --checkpoint that it was written with."
            )
        keeper.write("job.json", json.dumps(wanted))
        return
    before = json.loads(noted)
    for key, value in wanted.items():
        if before[key] != value:
            raise JobError(
                f"the checkpoint in {keeper.path!r} belongs to another run: {key} was {before[key]!r} and is "
                f"{value!r} now. Give another --checkpoint, or the old value."
            )


def _carried(spark: SparkSession, keeper: Files, batch: int) -> dict[str, DataFrame] | None:
    if batch == 0:
        return None
    names = keeper.read(f"carried/{batch - 1}/_names.json")
    if names is None:
        raise JobError(
            f"the checkpoint in {keeper.path!r} is damaged: the carried rows of batch {batch - 1} are "
            "missing. Start again with another --checkpoint and another --to."
        )
    return {
        name: spark.read.parquet(keeper.join("carried", str(batch - 1), name)) for name in json.loads(names)
    }
