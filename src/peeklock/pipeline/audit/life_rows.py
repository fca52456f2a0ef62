"""The events of messages, handed to the checks of single lives: each life is in one task.

Owns: narrow rows of `life_table.COLUMNS` and their way to the workers and back. Spark reads, packs and
exchanges the rows; a task then gets them as Arrow batches, and judges them as arrays: windows over the same
rows take Spark several times as long (ARCHITECTURE.md). What a task finds comes back as one line of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's documentation has it

from peeklock.pipeline.audit.checks import Check, Verdict
from peeklock.pipeline.audit.facts import Facts, Numbers, gather
from peeklock.pipeline.audit.life_table import (
    ARRIVES,
    ARRIVES_OR_IS_KNOWN,
    COLUMNS,
    COUNT_AT,
    ENDED,
    FLAGS,
    FLAGS_AT,
    KIND,
    LAST,
    LEFT,
    NUMBERED,
    STATE_AT,
    STATES,
    UNTOLD,
    LifeTable,
)
from peeklock.pipeline.audit.lives import EXCUSED, judge
from peeklock.pipeline.audit.log import KINDS, NUMBERED_AHEAD, SUB_QUEUE, Log, milliseconds, order, place_key
from peeklock.pipeline.audit.numbers import RUN_BITS, Fault, Run, add_fault, judge_runs, read_runs

EVENTS_A_TASK = 300_000
"""A task needs some 400 bytes an event in Python. Our choice."""

SAMPLES = 4
"""Maximum samples of one check in one entity from one task."""

_ARROW = pa.schema([(name, pa.int64()) for name in COLUMNS])

EXHAUSTED = "MaxDeliveryCountExceeded"


@dataclass(slots=True)
class _Found:
    """What a task finds."""

    lives: int = 0
    open_lives: int = 0
    excused: int = 0
    faults: list[Fault] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)


def check_lives(log: Log, verdict: Verdict, horizon: dict[str, int], left: DataFrame | None) -> None:
    """Judge all lives, and all sequence numbers.

    Args:
        horizon: by namespace, UTC ms: when due changes must have happened.
        left: the messages left at the end (namespace, entity, sequence_number); None = unknown.
    """
    facts, is_known = gather(log, horizon), left is not None

    def judged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_batches((batch.cast(_ARROW) for batch in batches), schema=_ARROW)
        found = judge_rows(table, facts, left_is_known=is_known) if len(table) else _Found()
        yield pa.record_batch({"found": [json.dumps(asdict(found))]})

    tasks = 1 + log.count // EVENTS_A_TASK
    rows = life_rows(log, left).repartition(tasks, "place", F.shiftright("number", RUN_BITS))
    runs: list[Run] = []
    excused = 0
    for row in rows.mapInArrow(judged, "found string").collect():
        found = json.loads(row.found)
        verdict.lives += found["lives"]
        verdict.open_lives += found["open_lives"]
        excused += found["excused"]
        runs += [Run(**run) for run in found["runs"]]
        for fault in found["faults"]:
            add_fault(log, verdict, tuple(fault))
    judge_runs(log, verdict, runs)
    if excused:
        verdict.notes.append(
            f"{excused:,} messages are older than the log or a part of it: the missing events of their lives "
            f"are not checked."
        )


def judge_rows(table: pa.Table, facts: dict[int, Facts], *, left_is_known: bool) -> _Found:
    """Judge rows with `COLUMNS`; each life is whole."""
    rows = LifeTable(table, facts)
    codes = judge(rows, left_is_known=left_is_known)
    runs, faults = read_runs(rows)
    open_lives = rows.is_last & rows.current & ~rows.has_ended & ~np.isin(rows.after, (ENDED, NUMBERED))
    return _Found(
        int(np.count_nonzero(rows.begins & rows.is_event & ~rows.has_begun)),
        int(np.count_nonzero(open_lives)),
        int(np.count_nonzero(codes == EXCUSED)),
        [*faults, *_faults(rows, codes)],
        runs,
    )


def _faults(rows: LifeTable, codes: Numbers) -> list[Fault]:
    """Return the violations: a few of each check and place for themselves, the others with the last one."""
    picked = np.flatnonzero((codes > 0) & (codes != EXCUSED))
    batch = rows.batch()
    groups: dict[tuple[int, int], list[int]] = {}
    for row in picked[np.argsort(batch[picked], kind="stable")].tolist():
        groups.setdefault((int(codes[row]), int(rows.keys[rows.at[row]])), []).append(row)
    faults = []
    for (check, place), found in sorted(groups.items()):
        samples = found[:SAMPLES]
        counts = [1] * (len(samples) - 1) + [len(found) - len(samples) + 1]
        for row, count in zip(samples, counts, strict=True):
            what = _shown(rows, row, check)
            faults.append((check, place, count, int(rows.number[row]), int(batch[row]), what))
    return faults


def _shown(rows: LifeTable, row: int, check: int) -> str:
    """Return the event of a sample, and what the check compared."""
    kind = int(rows.kind[row])
    if kind >= ARRIVES:
        return ""
    name = KINDS[kind - 1]
    if check == Check.DELIVERED_TOO_OFTEN or check == Check.DEAD_LETTERED_EARLY:
        return f"{name} with count {rows.attempts[row]}, MaxDeliveryCount {rows.count_max[row]}"
    if check == Check.WRONG_LOCK_DURATION:
        return f"{name} for {rows.until_ms[row] - rows.at_ms[row]} ms, LockDuration {rows.lock_ms[row]} ms"
    if check == Check.TIME_BACK:
        return f"{name} {rows.at_ms[row - 1] - rows.at_ms[row]} ms before the event before it"
    return name


def life_rows(log: Log, left: DataFrame | None) -> DataFrame:
    """Return events, expectations and left messages as rows of `COLUMNS`."""
    rows = _events(log).unionByName(_expectations(log))
    return rows if left is None else rows.unionByName(_left(left))


def _events(log: Log) -> DataFrame:
    """Return the events of messages."""
    event_type, reason = F.col("event_type"), F.col("reason")
    kind = _first_of([(event_type == name, KIND[name]) for name in KINDS])
    state = _first_of([(F.col("state_before") == name, at) for at, name in enumerate(STATES)], len(STATES))
    flags = {
        "has_token": F.col("lock_token").isNotNull(),
        "in_session": F.col("session_id").isNotNull(),
        "by_cursor": reason == "cursor",
        "has_reason": reason.isNotNull(),
        "is_ahead": reason == NUMBERED_AHEAD,
        "is_exhausted": reason == EXHAUSTED,
        "has_partition": F.col("partition_id").isNotNull(),
        "has_related": F.col("related_entity").isNotNull(),
    }
    # The owner of a lock; null for other events.
    owner = F.when(event_type.isin("delivered", "renewed"), F.col("connection_id"))
    events = log.events.where(event_type.isin(*KINDS) & F.col("sequence_number").isNotNull())
    return _with_grace_ends(log, events.withColumn("owner", owner)).select(
        place_key(),
        F.col("sequence_number").alias("number"),
        order(),
        _packed(kind, F.col("delivery_count"), state, flags).alias("bits"),
        F.xxhash64("lock_token").alias("token"),
        milliseconds("event_time").alias("at_ms"),
        milliseconds("locked_until").alias("until_ms"),
        milliseconds("expires_at").alias("expires_ms"),
        milliseconds("scheduled_time").alias("due_ms"),
        milliseconds("enqueued_time").alias("enqueued_ms"),
        F.col("broker_epoch").alias("epoch"),
        "grace_ms",
        # A sub-queue has no sessions.
        F.xxhash64(
            F.when(~F.col("entity").contains(SUB_QUEUE), F.col("session_id")),
            "size_bytes",
            "enqueued_sequence_number",
        ).alias("same"),
    )


def _expectations(log: Log) -> DataFrame:
    """Return a row for each move to another entity or number: of the message that must begin."""
    kind = F.when(F.col("event_type") == "forwarded", ARRIVES_OR_IS_KNOWN).otherwise(ARRIVES)
    moves = log.events.where(
        F.col("event_type").isin("forwarded", "dead_lettered", "expired", "activated")
        & F.col("related_entity").isNotNull()
    )
    return _without_events(
        moves.select(
            place_key("related_entity"),
            F.col("related_sequence_number").alias("number"),
            order(),
            _packed(kind, F.col("delivery_count")).alias("bits"),
        )
    )


def _left(left: DataFrame) -> DataFrame:
    """Return a row for each message left at the end."""
    return _without_events(
        left.select(
            place_key(),
            F.col("sequence_number").alias("number"),
            F.lit(LAST).alias("order"),
            F.lit(LEFT).cast("long").alias("bits"),
        )
    )


def _without_events(rows: DataFrame) -> DataFrame:
    nothing = F.lit(None).cast("long")
    return rows.select(*(F.col(name) if name in rows.columns else nothing.alias(name) for name in COLUMNS))


def _packed(
    kind: Column, count: Column, state: Column | None = None, flags: dict[str, Column] | None = None
) -> Column:
    bits = kind.cast("long").bitwiseOR(F.shiftleft(F.coalesce(count.cast("long"), F.lit(0)), COUNT_AT))
    if state is not None:
        bits = bits.bitwiseOR(F.shiftleft(state.cast("long"), STATE_AT))
    for flag, is_set in (flags or {}).items():
        # A condition on null is not met.
        bit = 1 << FLAGS_AT + FLAGS.index(flag)
        bits = bits.bitwiseOR(F.when(is_set, F.lit(bit)).otherwise(F.lit(0)).cast("long"))
    return bits


def _first_of(cases: Iterable[tuple[Column, int]], otherwise: int = 0) -> Column:
    """Return the number of the first condition that is met."""
    (condition, number), *others = cases
    result = F.when(condition, int(number))
    for condition, number in others:
        result = result.when(condition, int(number))
    return result.otherwise(otherwise)


def _with_grace_ends(log: Log, rows: DataFrame) -> DataFrame:
    """Add `grace_ms` to events with their `owner`.

    It is the end of the connection's grace, UTC ms; null if the connection did not break or its locks are
    kept until they lapse; or UNTOLD.
    """
    told = [
        (namespace, batch, -1 if grace_ms is None else grace_ms)
        for namespace, graces in log.graces.items()
        for batch, grace_ms in graces.items()
    ]
    if not told:
        return rows.withColumn("grace_ms", F.lit(UNTOLD).cast("long"))
    spark = log.events.sparkSession
    graces = F.broadcast(spark.createDataFrame(told, "namespace string, broker_epoch long, lasts_ms long"))
    untold = F.when(F.col("lasts_ms").isNull(), F.lit(UNTOLD).cast("long"))
    rows = rows.join(graces, ["namespace", "broker_epoch"], "left")
    if not log.connections_lost:
        return rows.withColumn("grace_ms", untold)
    breaks = (
        log.events.where(F.col("event_type") == "connection_lost")
        .groupBy("namespace", "broker_epoch", F.col("connection_id").alias("owner"))
        .agg(F.min(milliseconds("event_time")).alias("lost_ms"))
    )
    ends = F.when(F.col("lasts_ms") >= 0, F.col("lost_ms") + F.col("lasts_ms"))
    return rows.join(breaks, ["namespace", "broker_epoch", "owner"], "left").withColumn(
        "grace_ms", F.coalesce(untold, ends)
    )
