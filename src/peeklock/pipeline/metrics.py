"""Figures per entity and minute: rates, waiting times, depth.

Counts belong to the minute of their event. A message's time in queue (from its beginning to the first
delivery) belongs to the minute of that delivery, its time under lock (of all deliveries) to the minute of its
end. A redelivery is a delivery that is not the first of its life; the delivery count of an event is no
substitute, since a message takes it along into a dead-letter queue. This needs only numbers of a life:
`_spans` groups times by life with fixed-width figures, which Spark keeps in a hash map without a sort.

A stream writes a minute once, when the log has passed it. It carries the counts that are not written yet, the
spans of open lives, and the depth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  # the name that all of Spark's documentation has

from peeklock.pipeline.lives import BEGINS, ENDS, GIVEN_BACK, KEY, Advance, Marks, with_generation

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ENTITY = ("namespace", "entity")
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
ACCURACY = 1_000
"""Of `percentile_approx`: the rank is off by at most one in a thousand."""
COUNTED = (
    "sent",
    "delivered",
    "completed",
    "dead_lettered",
    "expired",
    "forwarded",
    "abandoned",
    "deferred",
    "redelivered",
    "locks_lost",
    "duplicates_dropped",
    "bytes_sent",
    "bytes_delivered",
)


def advance_metrics(
    events: DataFrame, carried: dict[str, DataFrame] | None, marks: Marks, *, last: bool
) -> Advance:
    """Return the minutes that are over; with `last` all minutes."""
    events = with_generation(events, marks).where(F.col("entity").isNotNull())
    counts, spans = _counts(events), _spans(events)
    told_ms, until_ms = 0, 1 << 62
    depths = None
    if carried is not None:
        counts = _summed(carried["counts"].unionByName(counts))
        spans = _joined(carried["spans"].unionByName(spans))
        depths = carried["depths"]
        told_ms = carried["told"].collect()[0].until_ms
    counts, spans = counts.persist(), spans.persist()
    if not last:
        latest = counts.agg(F.max(F.unix_millis("minute"))).collect()[0][0]
        until_ms = max(told_ms, latest or 0)
    minute_ms = F.unix_millis("minute")
    deep = _with_depth(counts.where(minute_ms < until_ms), depths).persist()
    rows = _rows(deep, spans, told_ms, until_ms)
    held = [counts, spans, deep]
    if last:
        return Advance(rows, {}, held)
    newest = F.col("generation") == F.max("generation").over(Window.partitionBy(*ENTITY))
    first, ended = F.col("first_ms"), F.col("ended_ms")
    untold = ended.isNull() | (ended >= until_ms) | (first >= until_ms)
    marked = counts.withColumn("newest", newest)
    place = [*ENTITY, "generation"]
    living = marked.where("newest").select(*place).distinct()
    # Spans of a deleted entity are dropped: its name may be used again, with the same numbers.
    gone = spans.join(living, place, "left_anti").where(first >= until_ms)
    carry = {
        "counts": marked.where(minute_ms >= until_ms)
        # Events before a deletion count for their minute, but not for the depth.
        .withColumn("begun", F.when(F.col("newest"), F.col("begun")).otherwise(0))
        .withColumn("ended", F.when(F.col("newest"), F.col("ended")).otherwise(0))
        .drop("newest")
        .join(_firsts(gone, "generation"), [*place, "minute"], "left")
        .withColumn("redelivered", F.col("redelivered") - F.coalesce("firsts", F.lit(0)))
        .withColumn("generation", F.lit(0))
        .transform(_summed),
        "spans": spans.join(living, place).where(untold).withColumn("generation", F.lit(0)),
        "depths": _depths(deep, depths, marked),
        "told": events.sparkSession.createDataFrame([(until_ms,)], "until_ms bigint"),
    }
    return Advance(rows, carry, held)


def summarise_flow(minutes: DataFrame) -> DataFrame:
    """Return totals per entity, the busiest first."""
    sums = ("sent", "delivered", "completed", "dead_lettered", "expired", "redelivered")
    return (
        minutes.groupBy("entity")
        .agg(*(F.sum(name).alias(name) for name in sums), F.max_by("depth", "minute").alias("left"))
        .orderBy(F.desc("sent"), "entity")
    )


def summarise_peaks(minutes: DataFrame) -> DataFrame:
    """Return per entity the maximum of each figure."""
    return (
        minutes.groupBy("entity")
        .agg(
            F.max("sent").alias("sent"),
            F.round(F.max("bytes_sent") / 1_000_000, 1).alias("MB_sent"),
            F.max("time_in_queue_ms_p50").alias("queue_p50"),
            F.max("time_in_queue_ms_p99").alias("queue_p99"),
            F.max("time_under_lock_ms_p99").alias("lock_p99"),
            F.max("locks_lost").alias("lapses"),
            F.max("depth").alias("depth"),
        )
        .orderBy(F.desc("sent"), "entity")
    )


def _counts(events: DataFrame) -> DataFrame:
    kind, size = F.col("event_type"), F.col("size_bytes")
    begins, activated = kind.isin(*BEGINS), kind == "activated"

    def number(condition: Column) -> Column:
        return F.sum(F.when(condition, 1).otherwise(0))

    same = ("delivered", "completed", "dead_lettered", "expired", "forwarded", "abandoned", "deferred")
    counted = {
        **{name: kind == name for name in same},
        "redelivered": kind == "delivered",  # minus the first of each life, see `_rows`
        "locks_lost": kind == "lock_lapsed",
        "duplicates_dropped": kind == "duplicate_dropped",
        "begun": begins,
        "ended": kind.isin(*ENDS),
    }
    return events.groupBy(*ENTITY, "generation", F.date_trunc("minute", "event_time").alias("minute")).agg(
        (number(begins) - number(activated)).alias("sent"),  # an activated message begins a second time
        *(number(condition).alias(name) for name, condition in counted.items()),
        F.sum(F.when(begins, size).when(activated, -size).otherwise(0)).alias("bytes_sent"),
        F.sum(F.when(kind == "delivered", size).otherwise(0)).alias("bytes_delivered"),
    )


def _summed(counts: DataFrame) -> DataFrame:
    sums = (F.sum(name).alias(name) for name in (*COUNTED, "begun", "ended"))
    return counts.groupBy(*ENTITY, "generation", "minute").agg(*sums)


def _spans(events: DataFrame) -> DataFrame:
    kind, ms = F.col("event_type"), F.unix_millis("event_time")
    begins, delivered, ends = kind.isin(*BEGINS), kind == "delivered", kind.isin(*ENDS)
    token = F.col("lock_token").isNotNull()
    locked = delivered & token
    freed = kind.isin(*GIVEN_BACK) | (ends & token)
    return (
        events.where(kind.isin(*BEGINS, *ENDS, *GIVEN_BACK, "delivered"))
        .groupBy(*KEY)
        .agg(
            F.min(F.when(begins, ms)).alias("begun_ms"),
            F.min(F.when(delivered, ms)).alias("first_ms"),
            F.min(F.when(ends, ms)).alias("ended_ms"),
            F.sum(F.when(locked, 1).otherwise(0)).alias("locks"),
            F.sum(F.when(freed, 1).otherwise(0)).alias("frees"),
            F.sum(F.when(freed, ms).when(locked, -ms).otherwise(0)).alias("held_ms"),
        )
    )


def _joined(spans: DataFrame) -> DataFrame:
    return spans.groupBy(*KEY).agg(
        *(F.min(name).alias(name) for name in ("begun_ms", "first_ms", "ended_ms")),
        *(F.sum(name).alias(name) for name in ("locks", "frees", "held_ms")),
    )


def _with_depth(counts: DataFrame, depths: DataFrame | None) -> DataFrame:
    """Add the depth at the end of each minute.

    A log that begins late lacks the beginnings of earlier messages, so the sum falls below 0: its lowest
    value so far is the estimate of their number.
    """
    if depths is None:
        counts = counts.withColumn("depth_before", F.lit(0)).withColumn("lowest_before", F.lit(0))
    else:
        counts = counts.join(F.broadcast(depths), [*ENTITY, "generation"], "left")
    passed = (
        Window.partitionBy(*ENTITY, "generation").orderBy("minute").rowsBetween(Window.unboundedPreceding, 0)
    )
    before = F.coalesce("depth_before", F.lit(0))
    return (
        counts.withColumn("sum", before + F.sum(F.col("begun") - F.col("ended")).over(passed))
        .withColumn("lowest", F.least(F.coalesce("lowest_before", F.lit(0)), F.min("sum").over(passed)))
        .drop("depth_before", "lowest_before")
    )


def _depths(deep: DataFrame, depths: DataFrame | None, marked: DataFrame) -> DataFrame:
    """Return the depth of each entity after the written minutes."""
    place = [*ENTITY, "generation"]
    newest = marked.where("newest").select(*place).distinct()
    after = (
        deep.groupBy(*place)
        .agg(F.max_by("sum", "minute").alias("depth_before"), F.min("lowest").alias("lowest_before"))
        .join(newest, place)
        .withColumn("generation", F.lit(0))
    )
    if depths is None:
        return after
    silent = depths.join(deep.select(*place), place, "left_anti")
    gone = newest.where("generation > 0").select(*ENTITY)
    return after.unionByName(silent.join(gone, [*ENTITY], "left_anti"))


def _rows(deep: DataFrame, spans: DataFrame, told_ms: int, until_ms: int) -> DataFrame:
    """Return a row of figures for each entity and minute."""
    on = [*ENTITY, "minute"]
    minutes = deep.groupBy(*on).agg(
        *(F.sum(name).alias(name) for name in COUNTED),
        F.max_by(F.col("sum") - F.col("lowest"), "generation").alias("depth"),
    )
    first, ended = F.col("first_ms"), F.col("ended_ms")
    waits = spans.where((first >= told_ms) & (first < until_ms))
    known = (F.col("locks") > 0) & (F.col("locks") == F.col("frees"))
    holds = spans.where((ended >= told_ms) & (ended < until_ms) & known)
    again = F.col("redelivered") - F.coalesce("firsts", F.lit(0))
    return (
        minutes.join(_shares(waits, first, first - F.col("begun_ms"), "time_in_queue_ms"), on, "left")
        .join(_firsts(waits), on, "left")
        .join(_shares(holds, ended, F.col("held_ms"), "time_under_lock_ms"), on, "left")
        .withColumn("redelivered", again)
        .drop("firsts")
        .withColumn("minute_date", F.to_date("minute"))
    )


def _firsts(spans: DataFrame, *more: str) -> DataFrame:
    """Return the first deliveries of each minute, which are not redeliveries."""
    minute = F.date_trunc("minute", F.timestamp_millis("first_ms")).alias("minute")
    return spans.groupBy(*ENTITY, *more, minute).agg(F.count("*").alias("firsts"))


def _shares(spans: DataFrame, at_ms: Column, value: Column, name: str) -> DataFrame:
    minute = F.date_trunc("minute", F.timestamp_millis(at_ms)).alias("minute")
    shares = spans.groupBy(*ENTITY, minute).agg(
        F.percentile_approx(value, [*SHARES.values()], ACCURACY).alias("shares")
    )
    return shares.select(
        *ENTITY,
        "minute",
        *(F.col("shares")[place].alias(f"{name}_{share}") for place, share in enumerate(SHARES)),
    )
