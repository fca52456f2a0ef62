"""Capture: the messages of queues and subscriptions as rows of a lake table.

The stream claims messages with a cursor and commits a claim when its rows are in the table: each message is
there once, whatever process is killed. The optional column `encoded` is the whole message, which a replay
sends bit for bit.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # the name that all of Spark's documentation has

from peeklock.pipeline.files import Files
from peeklock.pipeline.running import Table, await_end, claim_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DATE = "enqueued_date"


@dataclass(frozen=True, slots=True)
class Capture:
    """Options of a capture."""

    connection_string: str
    entities: tuple[str, ...]
    sub_queue: str | None
    mode: str
    consumer: str | None
    """Name of the cursor; None = one that the job makes, which its checkpoint keeps."""
    encoded: bool
    messages_max: int
    """Maximum in one micro-batch."""


def run_capture(
    spark: SparkSession,
    wanted: Capture,
    table: Table,
    *,
    checkpoint: str,
    once: bool,
    tell: Callable[[str], None],
    stop: threading.Event | None = None,
) -> None:
    """Fill the table until stopped; with `once` until the messages of now are in it.

    Raises:
        JobError: the checkpoint belongs to another run.
        OptionError, ServiceBusError: refused.
    """
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    source = ",".join(wanted.entities) + (f"/{wanted.sub_queue}" if wanted.sub_queue else "")
    claim_checkpoint(
        Files(spark, checkpoint), Files(spark, table.path), "capture", source, table.path, (wanted.mode,)
    )
    reader = (
        spark.readStream.format("servicebus")
        .option("connectionString", wanted.connection_string)
        .option("entity", json.dumps(wanted.entities))
        .option("mode", wanted.mode)
        .option("includeEncoded", str(wanted.encoded).lower())
        .option("maxMessagesPerTrigger", wanted.messages_max)
    )
    if wanted.sub_queue is not None:
        reader = reader.option("subQueue", wanted.sub_queue)
    if wanted.mode == "cursor" and wanted.consumer is not None:
        reader = reader.option("consumerName", wanted.consumer)
    rows = reader.load().withColumn(DATE, F.to_date("enqueuedTime"))
    writer = rows.writeStream.format(table.file_format).partitionBy(DATE)
    writer = writer.option("path", table.path).option("checkpointLocation", checkpoint)
    commits = Files(spark, checkpoint + "/commits")
    before = _last_number(commits)
    query = (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="1 second")).start()
    await_end(query, stop)
    last = _last_number(commits)
    tell("nothing new" if last == before else f"captured up to batch {last}")


def _last_number(commits: Files) -> int | None:
    """Return the last micro-batch that Spark committed."""
    return max((int(name) for name in commits.names() if name.isdecimal()), default=None)


def summarise_capture(rows: DataFrame) -> DataFrame:
    """Return the totals of the table per entity and date."""
    return (
        rows.groupBy("entity", DATE)
        .agg(
            F.count("*").alias("messages"),
            F.sum(F.length("body")).alias("body_bytes"),
            F.min("enqueuedTime").alias("first"),
            F.max("enqueuedTime").alias("last"),
        )
        .orderBy("entity", DATE)
    )
