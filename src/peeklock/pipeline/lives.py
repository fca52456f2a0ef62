"""The life of each message as one row.

Events become rows of partial figures that can be merged (sums, firsts, lasts). The same code serves a batch,
which merges once, and a stream, which merges carried rows with new ones. Everything is column expressions: no
row passes through Python.

A life is closed by its end or by the deletion of its entity. An entity created again under the same name
counts from 1: events after a deletion belong to the next `generation`, a number that holds within one merge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812  # the name that all of Spark's documentation has

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY = ("namespace", "entity", "generation", "sequence_number")
BEGINS = ("enqueued", "scheduled")
ENDS = ("activated", "completed", "dead_lettered", "expired", "forwarded", "cancelled", "purged", "unmatched")
GIVEN_BACK = ("abandoned", "released", "lock_lapsed", "deferred")
"""The lock ends and the message stays."""
HAPPENS = (*BEGINS, *ENDS, *GIVEN_BACK, "delivered", "renewed", "claimed", "claim_released")
"""Events of lives; all others are of sessions, entities or the log."""
PLACE = ("namespace", "entity", "sequence_number", "begun_batch")
"""Identifies a life across deletions of entities."""
PASSES = 4
"""Number of times that chains of moves are halved: 16 hops; Service Bus allows 4 forwards."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Events that concern more than one message."""

    epoch: int
    """The last epoch that started, 0 if none did."""
    deletions: list[tuple[Any, ...]]
    """namespace, entity, batch_no, index, event_time of each deletion, in order."""
    gaps: list[tuple[int, int, str]]
    """First and last batch that the exporter left out, and why."""


@dataclass(frozen=True, slots=True)
class Advance:
    """Result of a job for some events."""

    rows: DataFrame
    """Rows to write now."""
    carry: dict[str, DataFrame]
    """Rows that the job gets back with the next events."""
    held: list[DataFrame]
    """Persisted frames of both."""

    def release(self) -> None:
        for kept in self.held:
            kept.unpersist()


def advance_lives(
    events: DataFrame, carried: dict[str, DataFrame] | None, marks: Marks, *, last: bool
) -> Advance:
    """Return the lives that ended; with `last` also the open ones."""
    lives, held = _merged(events, None if carried is None else carried["open"], marks)
    ended = F.col("end").isNotNull()
    if last:
        return Advance(show_lives(lives, marks), {}, held)
    carry = {"open": lives.where(~ended).withColumn("generation", F.lit(0))}
    return Advance(show_lives(lives.where(ended), marks), carry, held)


def find_marks(events: DataFrame) -> Marks:
    """Return epochs, deletions and gaps of `events`."""
    rows = (
        events.where(F.col("event_type").isin("epoch_started", "entity_deleted", "gap"))
        .select(
            "event_type",
            "namespace",
            "entity",
            "batch_no",
            "index",
            "event_time",
            "sequence_number",
            "related_sequence_number",
            "reason",
        )
        .orderBy("batch_no", "index")
        .collect()
    )
    return Marks(
        max((row.batch_no for row in rows if row.event_type == "epoch_started"), default=0),
        [tuple(row)[1:6] for row in rows if row.event_type == "entity_deleted"],
        [tuple(row)[6:] for row in rows if row.event_type == "gap"],
    )


def _merged(events: DataFrame, carried: DataFrame | None, marks: Marks) -> tuple[DataFrame, list[DataFrame]]:
    rows = _partial(with_generation(events, marks))
    if carried is not None:
        rows = carried.unionByName(rows)
    merged = rows.groupBy(*KEY).agg(*(merge(name).alias(name) for name, (merge, _) in _figures().items()))
    lives = _closed_by_deletion(merged, marks).persist()
    links = _links(lives).persist()
    held, left = [lives, links], None
    for _ in range(PASSES):
        nameless = links.where(F.col("found_id").isNull()).count()
        if nameless in (0, left):  # with `left` the rest came before the log
            break
        links, left = _shortened(links).persist(), nameless
        held.append(links)
    return _with_origins(lives, links), held


def show_lives(lives: DataFrame, marks: Marks) -> DataFrame:
    """Return merged lives in the columns of the table; docs/reference/pipeline.md describes them."""
    known = (F.col("locks") == F.col("frees")) & (F.col("locks") > 0)
    begun = F.coalesce(F.col("begun_at"), F.col("enqueued_time"))
    return lives.select(
        "namespace",
        "entity",
        "sequence_number",
        "partition_id",
        "message_id",
        "session_id",
        "size_bytes",
        "origin_entity",
        "origin_sequence_number",
        F.col("begun_at").isNotNull().alias("begins_in_log"),
        begun.alias("enqueued_at"),
        F.col("scheduled_time").alias("scheduled_at"),
        "expires_at",
        "first_delivered_at",
        "last_delivered_at",
        F.col("end.event_time").alias("ended_at"),
        F.col("end.event_type").alias("end_type"),
        F.col("end.reason").alias("end_reason"),
        F.col("end.related_entity").alias("related_entity"),
        F.col("end.related_number").alias("related_sequence_number"),
        _state(marks).alias("state"),
        "deliveries",
        "abandons",
        "lock_lapses",
        "releases",
        "deferrals",
        "renewals",
        (F.unix_millis("first_delivered_at") - F.unix_millis(begun)).alias("time_in_queue_ms"),
        F.when(known, F.col("freed_ms") - F.col("locked_ms")).alias("time_under_lock_ms"),
        F.to_date(F.coalesce(begun, "last.event_time")).alias("enqueued_date"),
    )


def summarise_ends(lives: DataFrame) -> DataFrame:
    """Return the ends of lives per entity, the busiest first."""

    def number(condition: Column) -> Column:
        return F.sum(F.when(condition, 1).otherwise(0))

    end = F.col("end_type")
    told = ("completed", "dead_lettered", "expired")
    return (
        lives.groupBy("entity")
        .agg(
            F.count("*").alias("lives"),
            *(number(end == kind).alias(kind) for kind in told),
            number(end.isNotNull() & ~end.isin(*told)).alias("otherwise"),
            number(end.isNull()).alias("open"),
        )
        .orderBy(F.desc("lives"), "entity")
    )


def summarise_times(lives: DataFrame) -> DataFrame:
    """Return per entity how long messages waited and were locked, and the redeliveries."""
    waits = F.percentile_approx("time_in_queue_ms", [0.5, 0.95, 0.99], 1_000)
    holds = F.percentile_approx("time_under_lock_ms", [0.5, 0.99], 1_000)
    return (
        lives.groupBy("entity")
        .agg(
            waits.alias("waits"),
            holds.alias("holds"),
            F.sum(F.greatest(F.col("deliveries") - 1, F.lit(0))).alias("again"),
            F.sum("lock_lapses").alias("lapses"),
            F.count("*").alias("lives"),
        )
        .where(F.col("waits").isNotNull())
        .orderBy(F.desc("lives"), "entity")
        .select(
            "entity",
            F.col("waits")[0].alias("queue_p50"),
            F.col("waits")[1].alias("queue_p95"),
            F.col("waits")[2].alias("queue_p99"),
            F.col("holds")[0].alias("lock_p50"),
            F.col("holds")[1].alias("lock_p99"),
            "again",
            "lapses",
        )
    )


_Figure = tuple["Callable[[str], Column]", "Column"]
"""A merge function, and the value for one event."""


def _figures() -> dict[str, _Figure]:
    """Return all partial figures by name."""
    kind, time = F.col("event_type"), F.col("event_time")
    ms = F.unix_millis("event_time")
    ends, begins = kind.isin(*ENDS), kind.isin(*BEGINS)
    token = F.col("lock_token").isNotNull()
    delivered = kind == "delivered"
    locked, freed = delivered & token, kind.isin(*GIVEN_BACK) | (ends & token)

    def number(condition: Column) -> Column:
        return F.when(condition, 1).otherwise(0).cast("bigint")

    return {
        "partition_id": (F.max, F.col("partition_id")),
        "enqueued_number": (F.max, F.col("enqueued_sequence_number")),
        "message_id": (F.max, F.col("message_id")),
        "session_id": (F.max, F.col("session_id")),
        "size_bytes": (F.max, F.col("size_bytes")),
        "enqueued_time": (F.min, F.col("enqueued_time")),
        "scheduled_time": (F.max, F.col("scheduled_time")),
        "expires_at": (F.max, F.col("expires_at")),
        "begun_at": (F.min, F.when(begins, time)),
        "begun_batch": (F.min, F.when(begins, F.col("batch_no"))),
        "first_delivered_at": (F.min, F.when(delivered, time)),
        "last_delivered_at": (F.max, F.when(delivered, time)),
        "deliveries": (F.sum, number(delivered)),
        "abandons": (F.sum, number(kind == "abandoned")),
        "lock_lapses": (F.sum, number(kind == "lock_lapsed")),
        "releases": (F.sum, number(kind == "released")),
        "deferrals": (F.sum, number(kind == "deferred")),
        "renewals": (F.sum, number(kind == "renewed")),
        "locks": (F.sum, number(locked)),
        "frees": (F.sum, number(freed)),
        "locked_ms": (F.sum, F.when(locked, ms).otherwise(0)),
        "freed_ms": (F.sum, F.when(freed, ms).otherwise(0)),
        "last": (
            F.max,
            F.struct("batch_no", "index", "event_type", "event_time", "state_before", "broker_epoch"),
        ),
        "end": (
            F.min,  # of two ends, which the audit reports, the first counts
            F.when(
                ends,
                F.struct(
                    "batch_no",
                    "index",
                    "event_type",
                    "event_time",
                    "reason",
                    "related_entity",
                    F.col("related_sequence_number").alias("related_number"),
                ),
            ),
        ),
        "origin_entity": (F.max, F.lit(None).cast("string")),
        "origin_sequence_number": (F.max, F.lit(None).cast("bigint")),
    }


def _partial(events: DataFrame) -> DataFrame:
    of_lives = events.where(F.col("event_type").isin(*HAPPENS) & F.col("sequence_number").isNotNull())
    return of_lives.select(*KEY, *(value.alias(name) for name, (_, value) in _figures().items()))


def _state(marks: Marks) -> Column:
    """Return the state after the last event of a life."""
    last = F.col("last.event_type")
    held = last.isin("delivered", "renewed") & (F.col("last.broker_epoch") >= marks.epoch)
    return (
        F.when(F.col("end").isNotNull(), "ended")
        .when(held, "locked")
        .when(last.isin("scheduled", "deferred", "claimed"), last)
        .otherwise(F.coalesce(F.col("last.state_before"), F.lit("active")))
    )


def _deletions(lives: DataFrame, marks: Marks) -> DataFrame:
    """Return (namespace, entity, deletions) of each deleted entity and its sub-queues."""
    spark = lives.sparkSession
    schema = "namespace string, deleted string, batch_no bigint, index int, event_time timestamp"
    deleted = spark.createDataFrame(marks.deletions, schema)
    entities = lives.select("namespace", "entity").distinct()
    concerns = (F.col("entity") == F.col("deleted")) | F.col("entity").startswith(
        F.concat(F.col("deleted"), F.lit("/"))
    )
    return (
        entities.join(F.broadcast(deleted), "namespace")
        .where(concerns)
        .groupBy("namespace", "entity")
        .agg(F.sort_array(F.collect_list(F.struct("batch_no", "index", "event_time"))).alias("deletions"))
    )


def with_generation(events: DataFrame, marks: Marks) -> DataFrame:
    """Add the number of deletions of an event's entity up to the event."""
    if not marks.deletions:
        return events.withColumn("generation", F.lit(0))
    place = F.struct("batch_no", "index")
    before = F.filter("deletions", lambda one: F.struct(one["batch_no"], one["index"]) <= place)
    return (
        events.join(F.broadcast(_deletions(events, marks)), ["namespace", "entity"], "left")
        .withColumn(
            "generation", F.coalesce(F.when(F.col("deletions").isNotNull(), F.size(before)), F.lit(0))
        )
        .drop("deletions")
    )


def _closed_by_deletion(lives: DataFrame, marks: Marks) -> DataFrame:
    if not marks.deletions:
        return lives
    deletion = F.get(F.col("deletions"), F.col("generation"))
    end = F.struct(
        deletion["batch_no"].alias("batch_no"),
        deletion["index"].alias("index"),
        F.lit("entity_deleted").alias("event_type"),
        deletion["event_time"].alias("event_time"),
        F.lit(None).cast("string").alias("reason"),
        F.lit(None).cast("string").alias("related_entity"),
        F.lit(None).cast("bigint").alias("related_number"),
    )
    return (
        lives.join(F.broadcast(_deletions(lives, marks)), ["namespace", "entity"], "left")
        .withColumn("end", F.coalesce("end", F.when(deletion.isNotNull(), end)))
        .drop("deletions")
    )


def _with_origins(lives: DataFrame, links: DataFrame) -> DataFrame:
    """Add its origin, and the message id from there, to each life that began with a move."""
    found = links.select("*", "child.*").select(
        *PLACE,
        F.col("origin.entity").alias("from_entity"),
        F.col("origin.sequence_number").alias("from_number"),
        "found_id",
    )
    return (
        lives.join(found, [*PLACE], "left")
        .withColumn("message_id", F.coalesce("message_id", "found_id"))
        .withColumn("origin_entity", F.coalesce("origin_entity", "from_entity"))
        .withColumn("origin_sequence_number", F.coalesce("origin_sequence_number", "from_number"))
        .drop("found_id", "from_entity", "from_number")
    )


def _links(lives: DataFrame) -> DataFrame:
    """Return (child, parent, found_id, origin) of each move among `lives`: places, and the parent's id.

    A move is one commit; its number tells apart lives of entities with the same name.
    """
    ended = F.col("end.batch_no")
    here = F.struct(*PLACE)
    parents = lives.select(
        "namespace",
        "sequence_number",
        "entity",
        "end",
        here.alias("parent"),
        F.col("message_id").alias("found_id"),
    )
    moves = parents.where(F.col("end.related_entity").isNotNull()).select(
        F.struct(
            "namespace",
            F.col("end.related_entity").alias("entity"),
            F.col("end.related_number").alias("sequence_number"),
            ended.alias("begun_batch"),
        ).alias("child"),
        "parent",
        "found_id",
    )
    fan_outs = parents.where((F.col("end.event_type") == "forwarded") & F.col("end.related_entity").isNull())
    copies = lives.where(F.col("entity").contains("/Subscriptions/") & F.col("message_id").isNull()).select(
        here.alias("child"),
        F.substring_index("entity", "/Subscriptions/", 1).alias("topic"),
        "enqueued_number",
    )
    copied = copies.join(
        fan_outs,
        (F.col("child.namespace") == F.col("namespace"))
        & (F.col("topic") == F.col("entity"))
        & (F.col("enqueued_number") == F.col("sequence_number"))
        & (F.col("child.begun_batch") == ended),
    ).select("child", "parent", "found_id")
    return moves.unionByName(copied).withColumn("origin", F.col("parent"))


def _shortened(links: DataFrame) -> DataFrame:
    """Return the links with each parent without an id replaced by the parent's origin."""
    above = links.select(
        F.col("child").alias("parent"),
        F.col("parent").alias("grandparent"),
        F.col("found_id").alias("above_id"),
    )
    there = F.col("found_id").isNotNull()
    longer = links.where(~there).join(above, "parent", "left")
    return links.where(there).unionByName(
        longer.select(
            "child",
            F.coalesce("grandparent", "parent").alias("parent"),
            F.col("above_id").alias("found_id"),
            "origin",
        )
    )
