"""Until when the lock of a broken connection may be held, as an event log tells it.

Owns: which connections broke, and the grace of each start of the broker. Must not know: lives, how an event
is judged.

A lock is of the connection of its delivery, and from a renewal on of the connection of that. Connections are
numbered anew at each start, so that epoch and number name one.
Source: wire contract C26.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's documentation has it

from peeklock.pipeline.audit.log import Log, milliseconds

LATE_MS = 2_000
"""So much later than its grace a lock may come to its own end and lapse with that: many are released in
slices. Our choice."""

UNTOLD = -1
"""The log does not say how long graces are: an older broker wrote it, or the start is not in it."""


def with_grace_ends(log: Log, rows: DataFrame) -> DataFrame:
    """Add `grace_ms` to rows with `namespace`, `epoch` and `connection`.

    It is UTC ms of the end of the connection's grace, null if that did not break or keeps its locks until
    they lapse, or UNTOLD.
    """
    told = [
        (namespace, batch, -1 if grace_ms is None else grace_ms)
        for namespace, graces in log.graces.items()
        for batch, grace_ms in graces.items()
    ]
    if not told:
        return rows.withColumn("grace_ms", F.lit(UNTOLD).cast("long"))
    spark = log.events.sparkSession
    graces = F.broadcast(spark.createDataFrame(told, "namespace string, epoch long, lasts_ms long"))
    untold = F.when(F.col("lasts_ms").isNull(), F.lit(UNTOLD).cast("long"))
    rows = rows.join(graces, ["namespace", "epoch"], "left")
    if not log.connections_lost:
        return rows.withColumn("grace_ms", untold).drop("lasts_ms")
    breaks = (
        log.events.where(F.col("event_type") == "connection_lost")
        .groupBy(
            "namespace", F.col("broker_epoch").alias("epoch"), F.col("connection_id").alias("connection")
        )
        .agg(F.min(milliseconds("event_time")).alias("lost_ms"))
    )
    ends = F.when(F.col("lasts_ms") >= 0, F.col("lost_ms") + F.col("lasts_ms"))
    return (
        rows.join(breaks, ["namespace", "epoch", "connection"], "left")
        .withColumn("grace_ms", F.coalesce(untold, ends))
        .drop("lasts_ms", "lost_ms")
    )
