"""Bronze: every event as it was written, each once. Silver: a row for the life of each message."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that all of Spark's documentation has

from peeklock.pipeline.events import stream_events
from peeklock.pipeline.lives import BEGINS, ENDS, HAPPENS

spark = SparkSession.active()


@dp.table(comment="Bronze: the event log; a refresh adds the segments that are new.")
def events() -> DataFrame:
    """Return the log as a stream; a segment has its name only when it is complete."""
    folder = spark.conf.get("spark.peeklock.events")
    assert folder is not None, "spark-pipeline.yml sets it"
    return stream_events(spark, folder)


@dp.materialized_view(comment="Silver: one row a message and queue.")
def lives() -> DataFrame:
    """Return events grouped by message; `peeklock pipeline lives` does more, for example follows moves."""
    kind, time = F.col("event_type"), F.col("event_time")
    ends = kind.isin(*ENDS)
    return (
        spark.read.table("events")
        .where(kind.isin(*HAPPENS) & F.col("sequence_number").isNotNull())
        .groupBy("namespace", "entity", "sequence_number")
        .agg(
            F.max("message_id").alias("message_id"),
            F.min(F.when(kind.isin(*BEGINS), time)).alias("enqueued_at"),
            F.min(F.when(kind == "delivered", time)).alias("first_delivered_at"),
            F.min(F.when(ends, time)).alias("ended_at"),
            F.min_by("event_type", F.when(ends, time)).alias("end_type"),
            F.max(F.when(ends, F.col("reason"))).alias("end_reason"),
            F.sum(F.when(kind == "delivered", 1).otherwise(0)).alias("deliveries"),
        )
    )
