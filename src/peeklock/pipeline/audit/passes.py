"""The checks across messages: files, batches, events, duplicates, transactions, copies.

Theory of operation. The tasks that judge lives also look at the ids and the transactions of their rows, by
digests. Where those show that something may be wrong, a second, slower query finds the rows.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's documentation has it

from peeklock.capture.schema import EVENT_VERSION
from peeklock.pipeline.audit.checks import Check, Verdict
from peeklock.pipeline.audit.clocks import sure_ms, went_back_ms
from peeklock.pipeline.audit.exchange import Judged
from peeklock.pipeline.audit.log import (
    Log,
    Place,
    batch_of,
    marked,
    milliseconds,
    order,
)
from peeklock.pipeline.audit.packing import NONE
from peeklock.pipeline.audit.seen import place_key

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


def check_batches(judged: Judged, verdict: Verdict) -> None:
    """Check that each batch has its events, once each."""
    damaged: dict[str, tuple[int, tuple[int, int, int]]] = {}
    for number, batches, bad, sample in judged.batches:
        verdict.batches += batches
        if sample is not None:
            namespace = judged.places.namespaces[number]
            count, first = damaged.get(namespace, (0, sample))
            damaged[namespace] = count + bad, min(first, sample)
    for namespace, (bad, (batch, events, last)) in sorted(damaged.items()):
        what = f"{events} events, the last is number {last}"
        verdict.add(Check.BATCH_DAMAGED, bad, namespace, batch=batch, detail=what)


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


def check_duplicates(log: Log, judged: Judged, verdict: Verdict, horizon: dict[str, int]) -> None:
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
    if not judged.has_duplicates:
        return
    rows = marked(log, _taken_ids(log), horizon).join(F.broadcast(settled), "place")
    rows = rows.where((F.col("order") >= F.col("from_order")) & (F.col("order") < F.col("before_order")))
    rows = rows.where("detects")
    key = F.when(F.col("partitioned"), F.col("session"))
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


def check_transactions(log: Log, judged: Judged, verdict: Verdict) -> None:
    """Check that each transaction is in one batch, except for numbers issued before."""
    if not judged.is_torn:
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


def check_copies(judged: Judged, verdict: Verdict) -> None:
    """Compare the copies that topics made with those that arrived in subscriptions."""
    wrong: dict[int, tuple[int, tuple[int, ...]]] = {}
    for topic, rows, sample in judged.copies:
        count, first = wrong.get(topic, (0, sample))
        wrong[topic] = count + rows, min(first, sample)
    for topic, (rows, (batch, origin, made, difference)) in sorted(wrong.items()):
        namespace, entity = judged.places.topic_names[topic]
        what = f"{made} copies made, {made - difference} arrived"
        number = None if origin == NONE else origin
        verdict.add(Check.COPIES_WRONG, rows, namespace, entity, number, batch, what)


def _settled(log: Log, chosen: Callable[[Place], bool]) -> DataFrame | None:
    """Return the settings over time of the chosen places; None without any."""
    keys = {place.key for place in log.places.values() if chosen(place)}
    rows = [row for row in log.settled() if row[0] in keys]
    if not rows:
        return None
    kinds = "place long, from_order long, before_order long, detects boolean, window_ms long"
    return log.events.sparkSession.createDataFrame(rows, kinds)
