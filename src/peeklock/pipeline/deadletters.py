"""Dead-letter triage: dead letters from the event log or from a dead-letter queue, grouped by reason."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # the name that all of Spark's documentation has

from peeklock.pipeline.lives import Advance, Marks, advance_lives

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NO_REASON = "(none)"


def advance_deadletters(
    events: DataFrame, carried: dict[str, DataFrame] | None, marks: Marks, *, last: bool
) -> Advance:
    """Return the messages that became dead letters, including expired ones."""
    lives = advance_lives(events, carried, marks, last=last)
    dead = (F.col("end_type") == "dead_lettered") | (
        (F.col("end_type") == "expired") & F.col("related_entity").isNotNull()
    )
    rows = lives.rows.where(dead).select(
        "namespace",
        "entity",
        "sequence_number",
        "message_id",
        "session_id",
        F.coalesce("end_reason", F.lit(NO_REASON)).alias("reason"),
        F.lit(None).cast("string").alias("description"),
        F.col("related_entity").alias("dead_letter_queue"),
        "enqueued_at",
        F.col("ended_at").alias("dead_lettered_at"),
        "deliveries",
        "abandons",
        "lock_lapses",
        "size_bytes",
        F.to_date("ended_at").alias("dead_lettered_date"),
    )
    return Advance(rows, lives.carry, lives.held)


def browse_dead_letters(spark: SparkSession, connection_string: str, entities: tuple[str, ...]) -> DataFrame:
    """Return the messages in the dead-letter queues of `entities`, unchanged."""
    return (
        spark.read.format("servicebus")
        .option("connectionString", connection_string)
        .option("entity", json.dumps(entities))
        .option("subQueue", "deadLetter")
        .load()
    )


def as_dead_letters(rows: DataFrame) -> DataFrame:
    """Return messages of dead-letter queues in the columns of this job.

    Service Bus does not give the time of dead-lettering: `enqueued_at` is the time of the first enqueue.
    """
    return rows.select(
        F.col("entity"),
        F.col("sequenceNumber").alias("sequence_number"),
        F.col("messageId").alias("message_id"),
        F.col("sessionId").alias("session_id"),
        F.coalesce("deadLetterReason", F.lit(NO_REASON)).alias("reason"),
        F.col("deadLetterErrorDescription").alias("description"),
        F.col("enqueuedTime").alias("enqueued_at"),
        F.col("deliveryCount").alias("deliveries"),
        F.length("body").cast("bigint").alias("size_bytes"),
        F.to_date("enqueuedTime").alias("enqueued_date"),
    )


def triage(dead_letters: DataFrame) -> DataFrame:
    """Return counts, time range and samples (the first and last) of dead letters by entity and reason."""
    at = F.col("dead_lettered_at") if "dead_lettered_at" in dead_letters.columns else F.col("enqueued_at")
    name = F.coalesce("message_id", F.concat(F.lit("number "), "sequence_number"))
    return (
        dead_letters.groupBy("entity", "reason")
        .agg(
            F.count("*").alias("messages"),
            F.min(at).alias("first_at"),
            F.max(at).alias("last_at"),
            F.sum("size_bytes").alias("bytes"),
            F.array_distinct(F.array(F.min_by(name, at), F.max_by(name, at))).alias("samples"),
        )
        .orderBy(F.desc("messages"), "entity", "reason")
    )
