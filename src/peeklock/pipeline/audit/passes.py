"""The checks across messages: files, batches, events, sessions, duplicates, transactions, copies.

Theory of operation. Each check is a small aggregation over the rows that it concerns, run only where the log
has such rows. Where a count shows a violation, a second, slower query finds the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import zip_longest

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's documentation has it

from peeklock.capture.schema import EVENT_VERSION
from peeklock.pipeline.audit.checks import Check, Verdict
from peeklock.pipeline.audit.clocks import sure_ms, went_back_ms
from peeklock.pipeline.audit.facts import gather
from peeklock.pipeline.audit.log import (
    INDEX_BITS,
    SUB_QUEUE,
    Log,
    Place,
    batch_of,
    marked,
    milliseconds,
    order,
    place_key,
)

_BEGINS = ("enqueued", "scheduled")


def check_segments(log: Log, verdict: Verdict) -> None:
    """Report files that are not as they were written or do not join; report gaps and late beginnings."""
    for folder in log.folders:
        for entry in folder.bad:
            batch = entry.segment.first_batch if entry.segment else None
            verdict.add(entry.check, 1, folder.namespace, batch=batch, detail=entry.what)
        for last, first in folder.breaks():
            what = f"after batch {last} comes {first}, in {folder.folder}"
            verdict.add(Check.SEGMENT_GAP, 1, folder.namespace, batch=first, detail=what)
        if folder.unlisted > 1:
            verdict.not_proven.append(
                f"The manifest of {folder.folder} does not list the last {folder.unlisted} files: it is an "
                f"older copy, so these files were not compared with it."
            )
    without = [folder.folder for folder in log.folders if not folder.has_manifest]
    if without:
        more = f" and {len(without) - 1} more" if len(without) > 1 else ""
        verdict.notes.append(
            f"{without[0]}{more} has no manifest that can be used: a file that was replaced by an older "
            f"version is not told from a fault of the broker."
        )
    for gap in log.gaps:
        if log.starts_with(gap):
            verdict.notes.append(
                f"The log of '{gap.namespace}' begins after batch {gap.last}; earlier events are not checked."
            )
            continue
        verdict.not_proven.append(
            f"Batches {gap.first} to {gap.last} of '{gap.namespace}' are not in the log "
            f"({gap.reason or 'no reason'}): events in this gap or on both sides of it are not checked."
        )
    for namespace, first in log.first_batch.items():
        if log.begins_late(namespace):
            verdict.notes.append(
                f"The log of '{namespace}' begins at batch {first}; earlier events are not checked."
            )


def check_batches(log: Log, verdict: Verdict) -> None:
    """Check that each batch has its events, once each."""
    batches = log.events.groupBy("namespace", "shard", "batch_no").agg(
        F.count("*").alias("events"), F.max("index").alias("last"), F.min("index").alias("first")
    )
    bad = (F.col("events") != F.col("last") + 1) | (F.col("first") != 0)
    found = (
        batches.groupBy("namespace")
        .agg(
            F.count("*").alias("batches"),
            F.count_if(bad).alias("bad"),
            F.min_by(F.struct("batch_no", "events", "last"), F.when(bad, F.col("batch_no"))).alias("sample"),
        )
        .collect()
    )
    for row in found:
        verdict.batches += row.batches
        if row.bad:
            what = f"{row.sample.events} events, the last is number {row.sample.last}"
            batch = row.sample.batch_no
            verdict.add(Check.BATCH_DAMAGED, row.bad, row.namespace, batch=batch, detail=what)


def check_events(log: Log, verdict: Verdict) -> None:
    """Check that each event can be judged: its type is known, and it has what its type needs."""
    for event in log.strange:
        if event.version > EVENT_VERSION:
            verdict.not_proven.append(
                f"{event.count:,} events of type '{event.kind}' of '{event.namespace}' were written by a "
                f"newer release (event_version {event.version}): update peeklock to check them."
            )
            continue
        known = "without entity or number" if event.is_known else "unknown"
        what = f"type '{event.kind}' {known}"
        namespace, entity = event.namespace, event.entity
        verdict.add(Check.UNKNOWN_EVENT, event.count, namespace, entity, None, event.batch, what)


def check_sessions(log: Log, verdict: Verdict, horizon: dict[str, int]) -> None:
    """Judge who holds sessions and until when, and the order in which their messages are delivered.

    Sessions are distinguished by their keys, which the rows of older releases lack.

    A session has no holder from the end of its lock on; the log may report it as free a little later, and the
    actions of a holder are wrong from that end on.
    A delivered message was available since the event before it, since the broker's start, or since the last
    change of its entity. A later message that was delivered since then overtook it.
    """
    if not any(place.sessions for place in log.places.values()):
        return
    found = (
        _with_session_state(_session_events(log, horizon))
        .withColumn("code", _session_code())
        .where(F.col("code").isNotNull())
        .groupBy("code", "key")
        .agg(F.count("*").alias("rows"), F.min_by(F.struct("number", "order"), "order").alias("sample"))
        .orderBy("code", "key")
        .collect()
    )
    for row in found:
        place, sample = log.place_of(row.key), row.sample
        batch = batch_of(sample.order)
        verdict.add(Check(row.code), row.rows, place.namespace, place.entity, sample.number, batch)


def _session_events(log: Log, horizon: dict[str, int]) -> DataFrame:
    kinds = (
        "enqueued", "delivered", "completed", "abandoned", "deferred", "released", "lock_lapsed", "claimed",
        "claim_released", "session_locked", "session_renewed", "session_state_set", "session_released",
    )  # fmt: skip
    event_type = F.col("event_type")
    rows = log.events.where(
        F.col("session_id").isNotNull() & event_type.isin(*kinds) & ~F.col("entity").contains(SUB_QUEUE)
    ).select(
        place_key(),
        F.xxhash64(F.coalesce("session_key", "session_id")).alias("session"),
        F.col("sequence_number").alias("number"),
        order(),
        event_type.alias("event_type"),
        F.col("broker_epoch").alias("epoch"),
        F.xxhash64("connection_id", F.coalesce("link_name", F.lit(""))).alias("holder"),
        F.col("link_name").isNotNull().alias("by_link"),
        (F.col("state_before") == "active").alias("active"),
        F.col("lock_token").isNotNull().alias("locked"),
        sure_ms(log.clocks, milliseconds("event_time")).alias("at_ms"),
        milliseconds("locked_until").alias("until_ms"),
    )
    return _with_lock_durations(log, marked(log, rows, horizon), horizon).repartition("key", "session")


def _with_lock_durations(log: Log, rows: DataFrame, horizon: dict[str, int]) -> DataFrame:
    """Add `lock_ms`, the LockDuration of the entity, to locks of sessions; null where it is unknown."""
    durations = [
        (key, entry.order, follows.order if follows else (1 << 63) - 1, entry.lock_ms)
        for key, fact in gather(log, horizon).items()
        for entry, follows in zip_longest(fact.known, fact.known[1:])
        if entry.lock_ms is not None and log.places[key].sessions
    ]
    if not durations:
        return rows.withColumn("lock_ms", F.lit(None).cast("long"))
    kinds = "place long, from_order long, before_order long, lock_ms long"
    known = F.broadcast(log.events.sparkSession.createDataFrame(durations, kinds)).alias("known")
    here = (
        (F.col("rows.place") == F.col("known.place"))
        & (F.col("order") >= F.col("from_order"))
        & (F.col("order") < F.col("before_order"))
        & F.col("event_type").isin("session_locked", "session_renewed")
    )
    return rows.alias("rows").join(known, here, "left").select("rows.*", "lock_ms")


def _delivered() -> Column:
    return (F.col("event_type") == "delivered") & F.col("active")


def _with_session_state(rows: DataFrame) -> DataFrame:
    """Add the lock of the session before each event, and the last and highest delivery of its messages."""
    is_held = F.col("event_type").isin("session_locked", "session_renewed")
    is_free = F.col("event_type") == "session_released"
    of_message = Window.partitionBy("key", "session", "number").orderBy("order")
    of_session = Window.partitionBy("key", "session").orderBy("order")
    before = of_session.rowsBetween(Window.unboundedPreceding, -1)
    at = F.struct("number", "order")
    lock = F.struct(is_held.alias("held"), "epoch", "holder", "until_ms")
    return rows.withColumn("since", F.lag("order").over(of_message)).withColumns(
        {
            "last": F.last(F.when(_delivered(), at), ignorenulls=True).over(before),
            "highest": F.max(F.when(_delivered(), at)).over(before),
            "lock": F.last(F.when(is_held | is_free, lock), ignorenulls=True).over(before),
        }
    )


def _session_code() -> Column:
    """Return the number of the check that an event of a session violates."""
    event_type = F.col("event_type")
    is_lock = event_type == "session_locked"
    by_holder = event_type.isin("delivered", "session_renewed", "session_state_set")
    settled = event_type.isin("completed", "abandoned", "deferred") & F.col("locked")
    since = F.greatest("since", "changed", F.shiftleft(F.col("epoch"), INDEX_BITS))
    held = F.col("lock.held") & F.col("lock.epoch").eqNullSafe(F.col("epoch"))
    # The holder before the log or a part of it is unknown.
    stranger = F.coalesce(~held, ~F.col("excusable")) | (
        held & F.col("by_link") & (F.col("lock.holder") != F.col("holder"))
    )
    over = F.coalesce(held & (F.col("at_ms") >= F.col("lock.until_ms")), F.lit(False))
    overtaken = reduce(
        Column.__or__,
        [
            (F.col(f"{which}.number") > F.col("number")) & (F.col(f"{which}.order") > since)
            for which in ("last", "highest")
        ],
    )
    return (
        F.when(is_lock & held, int(Check.SESSION_SHARED))
        .when(by_holder & (stranger | over), int(Check.SESSION_SHARED))
        .when(settled & over, int(Check.LOCK_ENDED))
        .when(_delivered() & overtaken, int(Check.SESSION_ORDER))
        .when(F.col("until_ms") - F.col("at_ms") != F.col("lock_ms"), int(Check.WRONG_LOCK_DURATION))
    )


def check_duplicates(log: Log, verdict: Verdict, horizon: dict[str, int]) -> None:
    """Check that an entity with duplicate detection takes a message id once within its window.

    The id of a cancelled scheduled message is free again.
    """
    settled = _settled(log, lambda place: any(entry.detects_duplicates for entry in place.settings))
    if settled is None:
        return
    for place in log.places.values():
        if any(entry.detects_duplicates and entry.has_partitions for entry in place.settings):
            verdict.notes.append(
                f"'{place.entity}' of '{place.namespace}' is partitioned: duplicates are checked in sessions "
                f"only, since the log has no partition keys."
            )
    rows = marked(log, _taken_ids(log), horizon).join(F.broadcast(settled), "place")
    rows = rows.where((F.col("order") >= F.col("from_order")) & (F.col("order") < F.col("before_order")))
    rows = rows.where("detects")
    key = F.when(F.col("partitioned"), F.col("session"))
    # Nearly all ids are taken once, and to count is cheaper than to sort: equal digests are judged below.
    counts = rows.groupBy("key", F.xxhash64("message_id", key).alias("id")).count()
    if counts.where(F.col("count") > 1).isEmpty():
        return
    rows = rows.join(_cancelled(log, horizon), ["key", "number"], "left")
    window = Window.partitionBy("key", "message_id", key).orderBy("order")
    was_free = F.coalesce(F.lag("cancelled").over(window) < F.col("order"), F.lit(False))
    back_ms = went_back_ms(log.clocks)
    found = (
        rows.withColumns({"was_ms": F.lag("at_ms").over(window), "was_free": was_free})
        .where(F.col("was_ms") + F.col("window_ms") > F.col("at_ms") + back_ms)
        .where(~F.col("was_free"))
        .groupBy("key")
        .agg(F.count("*").alias("rows"), F.min(F.struct("order", "number", "message_id")).alias("sample"))
        .orderBy("key")
        .collect()
    )
    for row in found:
        place, sample = log.place_of(row.key), row.sample
        batch, what = batch_of(sample.order), f"message id '{sample.message_id}'"
        verdict.add(Check.DUPLICATE, row.rows, place.namespace, place.entity, sample.number, batch, what)


def _taken_ids(log: Log) -> DataFrame:
    """Return the message ids that entities took."""
    partitioned = F.col("partition_id").isNotNull()
    # A message sent via a queue only passes it: duplicate detection of that queue does not see it.
    rows = log.events.where(
        F.col("event_type").isin(*_BEGINS)
        & F.col("message_id").isNotNull()
        & ~F.col("reason").eqNullSafe("sent via")
    ).select(
        "namespace",
        place_key(),
        "message_id",
        F.col("sequence_number").alias("number"),
        order(),
        sure_ms(log.clocks, milliseconds("event_time")).alias("at_ms"),
        partitioned.alias("partitioned"),
        F.col("session_id").alias("session"),
    )
    # In a partitioned entity an id counts together with the partition key, which is not logged; in a session
    # the key is the session id.
    return rows.where(~F.col("partitioned") | F.col("session").isNotNull())


def _cancelled(log: Log, horizon: dict[str, int]) -> DataFrame:
    """Return the order of the cancellation of each cancelled message."""
    rows = log.events.where(F.col("event_type") == "cancelled").select(
        place_key(), F.col("sequence_number").alias("number"), order()
    )
    return marked(log, rows, horizon).select("key", "number", F.col("order").alias("cancelled"))


def check_transactions(log: Log, verdict: Verdict) -> None:
    """Check that each transaction is in one batch, except for numbers issued before."""
    if not log.transactions:
        return
    torn = (
        log.events.where(F.col("transaction_id").isNotNull() & (F.col("event_type") != "number_issued"))
        .groupBy("namespace", "transaction_id")
        .agg(
            F.min("batch_no").alias("first"),
            F.max("batch_no").alias("last"),
            F.max(F.struct("batch_no", "index", "entity", "sequence_number")).alias("sample"),
        )
        .where(F.col("first") != F.col("last"))
    )
    found = (
        torn.groupBy("namespace")
        .agg(
            F.count("*").alias("torn"),
            F.min(F.struct("last", "transaction_id", "first", "sample")).alias("one"),
        )
        .orderBy("namespace")
        .collect()
    )
    for row in found:
        entity, number, batch = row.one.sample.entity, row.one.sample.sequence_number, row.one.last
        what = f"transaction {row.one.transaction_id} began in batch {row.one.first}"
        verdict.add(Check.TRANSACTION_TORN, row.torn, row.namespace, entity, number, batch, what)


def check_copies(log: Log, verdict: Verdict) -> None:
    """Compare the copies that topics made with those that arrived in subscriptions."""
    subscriptions = [(place.key, place.topic) for place in log.places.values() if place.topic is not None]
    if not subscriptions:
        return
    spark = log.events.sparkSession
    known = F.broadcast(spark.createDataFrame(subscriptions, "place long, topic string"))
    origin = F.col("enqueued_sequence_number").alias("origin")
    made = log.events.where(
        (F.col("event_type") == "forwarded")
        & F.col("related_entity").isNull()
        & F.col("related_sequence_number").isNotNull()
    ).select(
        "namespace",
        F.col("entity").alias("topic"),
        "batch_no",
        origin,
        F.col("related_sequence_number").alias("copies"),
    )
    arrived = (
        log.events.where(F.col("event_type") == "enqueued")
        .withColumn("place", place_key())
        .join(known, "place")
        .select("namespace", "topic", "batch_no", origin, F.lit(-1).cast("long").alias("copies"))
    )
    wrong = (
        made.unionByName(arrived)
        .groupBy("namespace", "topic", "batch_no", "origin")
        .agg(
            F.sum("copies").alias("difference"),
            F.sum(F.when(F.col("copies") > 0, F.col("copies")).otherwise(0)).alias("made"),
        )
        .where(F.col("difference") != 0)
    )
    found = (
        wrong.groupBy("namespace", "topic")
        .agg(
            F.count("*").alias("rows"),
            F.min(F.struct("batch_no", "origin", "made", "difference")).alias("sample"),
        )
        .collect()
    )
    for row in found:
        number, batch = row.sample.origin, row.sample.batch_no
        what = f"{row.sample.made} copies made, {row.sample.made - row.sample.difference} arrived"
        verdict.add(Check.COPIES_WRONG, row.rows, row.namespace, row.topic, number, batch, what)


def _settled(log: Log, chosen: Callable[[Place], bool]) -> DataFrame | None:
    """Return the settings over time of the chosen places; None without any."""
    keys = {place.key for place in log.places.values() if chosen(place)}
    rows = [row for row in log.settled() if row[0] in keys]
    if not rows:
        return None
    kinds = "place long, from_order long, before_order long, detects boolean, window_ms long"
    return log.events.sparkSession.createDataFrame(rows, kinds)
