"""Replay: rows of a lake table, or of an event log with bodies, sent as messages again.

A row with the whole message (`encoded`) is sent bit for bit; of others all columns that the sink takes are
sent. Message ids are kept: a repeated replay arrives again, unless the target detects duplicates; then it
drops what it has seen within its window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # the name that all of Spark's documentation has

from peeklock.pipeline.events import find_segments, read_events
from peeklock.pipeline.files import Files
from peeklock.pipeline.running import JobError, rows_where

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FROM_TABLE = (
    "body",
    "messageId",
    "sessionId",
    "partitionKey",
    "correlationId",
    "subject",
    "contentType",
    "to",
    "replyTo",
    "applicationProperties",
)
"""Columns of a lake table that can be sent; the broker sets the others."""
FROM_EVENTS = {
    "body": "body",
    "message_id": "messageId",
    "session_id": "sessionId",
    "correlation_id": "correlationId",
    "subject": "subject",
    "content_type": "contentType",
    "application_properties": "applicationProperties",
}


def rows_to_send(
    spark: SparkSession, source: str, file_format: str, where: str | None, limit: int | None
) -> DataFrame:
    """Return the rows of `source` in the columns of the sink.

    Args:
        where: a condition over the columns of `source`.
        limit: maximum of rows, in the order of enqueued time.

    Raises:
        JobError: there is nothing to send.
        LogError: the event log cannot be read.
    """
    if Files(spark, source).find("event_date=*"):
        return _from_events(spark, source, where, limit)
    if not Files(spark, source).exists():
        raise JobError(f"there is no table in {source!r}: give the --to of `peeklock pipeline capture`.")
    rows = spark.read.format(file_format).load(source)
    if "encoded" not in rows.columns and "body" not in rows.columns:
        raise JobError(
            f"the table in {source!r} has no column body or encoded, so there is nothing to send; it has "
            f"{', '.join(rows.columns)}."
        )
    rows = _chosen(rows, where, limit, "enqueuedTime")
    if "encoded" in rows.columns:
        return rows.select("encoded")
    return rows.select(*(name for name in FROM_TABLE if name in rows.columns))


def _from_events(spark: SparkSession, source: str, where: str | None, limit: int | None) -> DataFrame:
    find_segments(spark, source)
    events = read_events(spark, source)
    # Only the first event of a message: the log repeats the body where a message was moved.
    sent = events.where(F.col("event_type").isin("enqueued", "scheduled") & F.col("body").isNotNull())
    first = sent.where(
        (F.col("sequence_number") == F.col("enqueued_sequence_number"))
        & ~F.col("entity").contains("/Subscriptions/")
        & ~F.lower("entity").endswith("$deadletterqueue")
    )
    if first.isEmpty():
        raise JobError(
            f"the event log in {source!r} holds no bodies: run the broker with --capture-bodies for these "
            "entities."
        )
    rows = _chosen(first, where, limit, "event_time")
    return rows.select(*(F.col(name).alias(new) for name, new in FROM_EVENTS.items()))


def _chosen(rows: DataFrame, where: str | None, limit: int | None, time: str) -> DataFrame:
    rows = rows_where(rows, where)
    if limit is not None:
        rows = rows.orderBy(time).limit(limit)
    return rows


def send_rows(spark: SparkSession, rows: DataFrame, connection_string: str, entity: str) -> int:
    """Send the rows; return how many the broker accepted."""
    from pyspark.sql import Observation

    count = Observation()
    (
        rows.observe(count, F.count(F.lit(1)).alias("rows"))
        .write.format("servicebus")
        .option("connectionString", connection_string)
        .option("entity", entity)
        .mode("append")
        .save()
    )
    return int(count.get["rows"])
