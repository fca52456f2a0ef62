"""The checks of single lives: each event of a message against the one before.

Theory of operation. An event alone has the state in which it leaves its message (`after`). So nearly all
violations show between an event and the one before it of the same message: one shuffle by message, one sort,
one window with the row before and a few running values (whether the life has begun and ended, and with which
count). What an event shows alone (delivered when expired) is found before the shuffle and carried as a
number; see `life_rows`. A restart ends all locks: a lock counts only within its epoch.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's documentation has it

from peeklock.pipeline.audit.checks import Check, Verdict
from peeklock.pipeline.audit.life_rows import (
    ARRIVES,
    ARRIVES_OR_IS_KNOWN,
    BEGINS,
    BY_CURSOR,
    CLAIMED,
    CURRENT,
    ENDED,
    EXCUSABLE,
    GOING,
    HAS_REASON,
    HAS_TOKEN,
    IN_SESSION,
    IN_SUB_QUEUE,
    LATE_MS,
    LEFT,
    LOCKED,
    NUMBERED,
    OVERDUE,
    OVERDUE_MS,
    SCHEDULED,
    UNTOLD,
    Bits,
    life_rows,
)
from peeklock.pipeline.audit.log import INDEX_BITS, Log

BUCKETS = 4
"""Maximum samples of one check in one entity."""

_EXCUSED = 100
"""Code of an event whose life may have begun before the log."""

_GIVES_NUMBER = (*BEGINS, "number_issued")
_COUNTED = ("abandoned", "deferred", "lock_lapsed")
_BY_HOLDER = ("completed", "abandoned", "deferred", "renewed", "released", "lock_lapsed")
_PASSES_OVER_LOCKED = ("expired", "purged", "forwarded", "claimed", "unmatched")


def check_lives(log: Log, verdict: Verdict, horizon: dict[str, int], left: DataFrame | None) -> None:
    """Judge all lives.

    Args:
        horizon: by namespace, UTC ms: when due changes must have happened.
        left: the messages left at the end (namespace, entity, sequence_number); None = unknown.
    """
    window = Window.partitionBy("key", "number").orderBy("order")
    before = window.rowsBetween(Window.unboundedPreceding, -1)
    now = Bits(F.col("bits"))
    begins = now.is_any(BEGINS)
    seen = life_rows(log, horizon, left).withColumns(
        {
            **{
                f"was_{name}": F.lag(name).over(window)
                for name in ("bits", "token", "limit_ms", "epoch", "grace_ms")
            },
            "next_bits": F.lead("bits").over(window),
            "begun": F.min(F.when(begins, F.col("order"))).over(before),
            "begun_count": F.min(F.when(begins, now.count)).over(before),
            "ended": F.max(
                F.when(now.is_a("completed"), 2).when((now.after == ENDED) & (now.kind < ARRIVES), 1)
            ).over(before),
        }
    )
    judged = seen.withColumns(
        {
            "code": _code(left is not None),
            "begins": begins & F.col("begun").isNull(),
            "open": _is_last()
            & now.has(CURRENT)
            & F.col("ended").isNull()
            & ~now.after.isin(ENDED, NUMBERED),
            # An expectation has the order of its move in limit_ms.
            "batch": F.shiftright(
                F.when(now.kind < ARRIVES, F.col("order")).otherwise(F.col("limit_ms")), INDEX_BITS
            ),
        }
    )
    bad = F.col("code") > 0
    found = (
        judged.groupBy(
            "code",
            F.when(bad, F.col("key")).alias("key"),
            F.when(bad, F.pmod("number", F.lit(BUCKETS))).alias("bucket"),
        )
        .agg(
            F.count("*").alias("rows"),
            F.count_if("begins").alias("lives"),
            F.count_if("open").alias("open"),
            F.min(F.when(bad, F.struct("batch", "number"))).alias("sample"),
        )
        .collect()
    )
    _report(log, verdict, found)


def _report(log: Log, verdict: Verdict, found: list[Any]) -> None:
    excused = 0
    for row in sorted(found, key=lambda row: (row.code, row.sample or (0, 0))):
        verdict.lives += row.lives
        verdict.open_lives += row.open
        if row.code == _EXCUSED:
            excused += row.rows
        elif row.code:
            place = log.place_of(row.key)
            number, batch = row.sample.number, row.sample.batch
            verdict.add(Check(row.code), row.rows, place.namespace, place.entity, number, batch)
    if excused:
        verdict.notes.append(
            f"{excused:,} messages are older than the log or a part of it: the missing events of their lives "
            f"are not checked."
        )


def _is_last() -> Column:
    """Return whether no event follows."""
    return (Bits(F.col("bits")).kind < ARRIVES) & (
        F.col("next_bits").isNull() | (Bits(F.col("next_bits")).kind >= ARRIVES)
    )


def _code(left_is_known: bool) -> Column:
    """Return the number of the first check that an event violates, 0 if none."""
    now, was = Bits(F.col("bits")), Bits(F.col("was_bits"))
    is_no_event = now.kind >= ARRIVES
    alive = F.col("begun").isNotNull()
    ended = F.col("ended").isNotNull()
    nothing_before = F.col("was_bits").isNull()
    no_beginning = F.when(now.has(EXCUSABLE), _EXCUSED).otherwise(int(Check.NO_BEGINNING))

    begun_in, came_in = F.shiftright("begun", INDEX_BITS), F.shiftright("limit_ms", INDEX_BITS)
    missing = F.when(now.has(IN_SUB_QUEUE), int(Check.DEAD_LETTER_LOST)).otherwise(int(Check.FORWARD_LOST))
    expected = (
        F.when(
            (now.kind == ARRIVES_OR_IS_KNOWN) & ~alive,
            F.when(now.has(EXCUSABLE), _EXCUSED).otherwise(int(Check.FORWARD_LOST)),
        )
        .when(now.kind == ARRIVES_OR_IS_KNOWN, F.when(begun_in > came_in, int(Check.FORWARD_LOST)))
        .when(~alive | (begun_in != came_in), missing)
        .when(now.has(IN_SUB_QUEUE) & (F.col("begun_count") != now.count), int(Check.WRONG_COUNT))
    )
    if left_is_known:
        gone = now.has(CURRENT) & ~ended & F.col("next_bits").isNull()
        expected = F.coalesce(expected, F.when(gone, int(Check.LOST)))
    only_number = F.coalesce(was.after == NUMBERED, F.lit(False))
    promised = only_number & now.is_a("scheduled") & now.has(HAS_REASON)
    there = F.when(ended, int(Check.LEFT_BEHIND)).when(nothing_before | only_number, no_beginning)
    afterwards = (
        F.when(
            now.is_a("delivered"),
            F.when(F.col("ended") == 2, int(Check.DELIVERED_AFTER_COMPLETION)).otherwise(
                int(Check.DELIVERED_AFTER_END)
            ),
        )
        .when((now.after == ENDED) | now.is_any(_BY_HOLDER), int(Check.DOUBLE_SETTLEMENT))
        .otherwise(int(Check.CHANGED_AFTER_END))
    )
    attempt = now.is_any(_COUNTED) & ~now.has(IN_SUB_QUEUE)
    wrong_count = now.count != was.count + F.when(attempt, 1).otherwise(0)
    return (
        F.when(is_no_event & (now.kind == LEFT), F.coalesce(there, F.lit(0)))
        .when(is_no_event, F.coalesce(expected, F.lit(0)))
        .when(now.is_any(_GIVES_NUMBER) & ~nothing_before & ~promised, int(Check.NUMBER_TWICE))
        .when(ended, afterwards)
        .when((nothing_before | only_number) & ~now.is_any(_GIVES_NUMBER), no_beginning)
        .otherwise(
            F.coalesce(
                _transition(now, was),
                F.when(now.alone > 0, now.alone),
                F.when(wrong_count, int(Check.WRONG_COUNT)),
                _at_the_end(now, left_is_known),
                F.lit(0),
            )
        )
    )


def _transition(now: Bits, was: Bits) -> Column:
    """Judge an event by the state that it finds."""
    # After a gap the epoch is unknown until the next one.
    held = (was.after == LOCKED) & F.col("was_epoch").eqNullSafe(F.col("epoch"))
    other_lock = now.has(HAS_TOKEN) & (F.col("token") != F.col("was_token"))
    # The log lacks links closed before their connection broke, so only a renewed lock surely belongs to the
    # connection.
    grace_is_over = (
        was.is_a("renewed") & (F.col("was_grace_ms") >= 0) & (F.col("at_ms") >= F.col("was_grace_ms"))
    )
    over = (F.col("at_ms") >= F.col("was_limit_ms")) | F.coalesce(grace_is_over, F.lit(False))
    too_late = ~now.has(IN_SESSION) & over
    claimed = was.after == CLAIMED
    committed = now.is_a("completed") & now.has(BY_CURSOR)
    return (
        F.when(was.after == GOING, F.when(~now.is_a("completed"), int(Check.DELETION_MISSING)))
        .when(now.is_any(BEGINS), F.when(~now.has(IN_SUB_QUEUE) & (now.count != 0), int(Check.WRONG_COUNT)))
        .when(now.is_any(("activated", "cancelled")), F.when(was.after != SCHEDULED, int(Check.WRONG_STATE)))
        .when(committed | now.is_a("claim_released"), F.when(~claimed, int(Check.CLAIM_BROKEN)))
        .when(claimed, int(Check.CLAIM_BROKEN))
        .when(was.after == SCHEDULED, int(Check.WRONG_STATE))
        .when(now.is_a("delivered"), F.when(held, int(Check.OVERLAPPING_LOCKS)))
        .when(now.is_any(_PASSES_OVER_LOCKED), F.when(held, int(Check.TAKEN_UNDER_LOCK)))
        .when(
            now.is_any(_BY_HOLDER) | (now.is_a("dead_lettered") & held),
            F.when(~held | other_lock, int(Check.NO_LOCK))
            .when(now.is_a("released"), None)
            .when(now.is_a("lock_lapsed"), F.when(~now.has(IN_SESSION), _lapse(now, was)))
            .when(too_late, int(Check.LOCK_ENDED)),
        )
    )


def _lapse(now: Bits, was: Bits) -> Column:
    """Judge the lapse of a message's lock: at its own end or at the end of its connection's grace (C26)."""
    at_ms, limit_ms, grace_ms = F.col("at_ms"), F.col("was_limit_ms"), F.col("was_grace_ms")
    untold = F.coalesce(grace_ms == UNTOLD, F.lit(False))
    grace_is_over = F.coalesce((grace_ms >= 0) & (at_ms >= grace_ms), F.lit(False))
    with_grace = now.has(HAS_REASON) & (untold | grace_is_over)
    overdue = now.has(HAS_REASON) & grace_is_over & (at_ms > grace_ms + OVERDUE_MS)
    # A broker that is late may release locks in another order than they were due.
    in_time = at_ms <= limit_ms + LATE_MS
    outlasts = (grace_ms >= 0) & (limit_ms > grace_ms + LATE_MS)
    kept = was.is_a("renewed") & outlasts & in_time & ~now.has(HAS_REASON)
    return F.when(
        at_ms < limit_ms,
        F.when(~with_grace, int(Check.LOCK_CUT_SHORT)).when(overdue, int(Check.LOCK_OVERDUE)),
    ).when(kept, int(Check.LOCK_OVERDUE))


def _at_the_end(now: Bits, left_is_known: bool) -> Column:
    """Judge the last event of a life by the events that should follow."""
    last = _is_last()
    follows = Bits(F.col("next_bits")).kind
    current = now.has(CURRENT)
    lost = F.lit(False)
    if left_is_known:
        # An expectation after the last event is judged instead.
        lost = current & (now.after != ENDED) & F.col("next_bits").isNull()
    return (
        F.when(last & (now.after == GOING), int(Check.DELETION_MISSING))
        .when(
            last & now.has(IN_SUB_QUEUE) & _begun_by_now(now) & (follows.isNull() | (follows == LEFT)),
            int(Check.DEAD_LETTER_UNEXPLAINED),
        )
        .when(last & lost & (now.after != NUMBERED), int(Check.LOST))
        .when(last & current & now.has(OVERDUE) & (now.after == LOCKED), int(Check.LOCK_OVERDUE))
        .when(last & current & now.has(OVERDUE), int(Check.EXPIRY_OVERDUE))
    )


def _begun_by_now(now: Bits) -> Column:
    return F.col("begun").isNotNull() | now.is_any(BEGINS)
