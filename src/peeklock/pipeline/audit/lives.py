"""The checks of single lives: each event of a message against the one before.

Owns: the transitions of a message, and how one pass of windows judges them. Must not know: how findings are
shown, sessions, transactions.

Theory of operation. An event says all by itself what state it leaves its message in (`after`). So nearly
all that can go wrong shows between an event and the one before it of the same message: one shuffle by
message, one sort, one window with the row before and a few running values (whether the life has begun and
ended, and with which count). What an event shows alone (delivered when expired) is found before the shuffle
and carried along as a number. All that is small travels in one number, `bits`: the shuffle takes most of the
time.

A move is told by the life that ends; it has to begin another. So each is added as a row of the message that
must begin: an *expectation*, sorted behind all that really happened to it. What is there at the end, if
somebody says, is added as rows in the same way.

A restart ends all locks: a lock counts only within its epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's documentation has it

from peeklock.pipeline.audit.checks import Check, Sample, Verdict
from peeklock.pipeline.audit.clocks import sure_ms, went_back_ms
from peeklock.pipeline.audit.graces import LATE_MS, UNTOLD, with_grace_ends
from peeklock.pipeline.audit.log import (
    BATCH_MAX,
    INDEX_BITS,
    SUB_QUEUE,
    Log,
    marked,
    milliseconds,
    order,
    order_of,
    place_key,
)

OVERDUE_MS = 60_000
"""So much later than it should, what is due by the clock must have happened: sweeps go in slices, behind
clients. Our choice."""

BUCKETS = 4
"""At most so many samples of one check in one entity."""

_EXCUSED = 100
"""Code of an event of a life that may have begun before the log."""

_KINDS = (
    "enqueued", "delivered", "completed", "abandoned", "lock_lapsed", "forwarded", "dead_lettered", "renewed",
    "deferred", "released", "expired", "scheduled", "activated", "claimed", "claim_released", "purged",
    "cancelled", "unmatched", "number_issued",
)  # fmt: skip
"""Events of messages, about by how often they come: they are compared in this order."""

KIND = {name: number for number, name in enumerate(_KINDS, start=1)}
ARRIVES, ARRIVES_OR_IS_KNOWN, LEFT = 20, 21, 22
"""Rows that are no events: a dead letter or an activated message has to arrive; so has a forwarded one,
unless it was dropped as a duplicate of this one; the message is there at the end."""

_BEGINS = ("enqueued", "scheduled")
_GIVES_NUMBER = (*_BEGINS, "number_issued")
_ENDS = (
    "completed", "forwarded", "dead_lettered", "expired", "activated", "purged", "cancelled", "unmatched",
)  # fmt: skip
_COUNTED = ("abandoned", "deferred", "lock_lapsed")
_BY_HOLDER = ("completed", "abandoned", "deferred", "renewed", "released", "lock_lapsed")
_PASSES_OVER_LOCKED = ("expired", "purged", "forwarded", "claimed", "unmatched")

AVAILABLE, DEFERRED, SCHEDULED, LOCKED, CLAIMED, GOING, ENDED, NUMBERED = range(8)
"""States after an event. GOING: handed out to be deleted with that. NUMBERED: only a number, in a
transaction; its message is scheduled with the commit, or never."""

HAS_TOKEN, IN_SESSION, IN_SUB_QUEUE, BY_CURSOR, CURRENT, EXCUSABLE, HAS_REASON, OVERDUE = (
    1 << bit for bit in range(8)
)
"""Flags of an event. OVERDUE: the message must not still be like that at the horizon."""

_AFTER_AT, _FLAGS_AT, _ALONE_AT, _COUNT_AT = 5, 8, 16, 24
"""Where things are in `bits`: kind, state after, flags, what the event shows alone, delivery count."""

_EXPECTED_ORDER, _LEFT_ORDER = order_of(BATCH_MAX - 2), order_of(BATCH_MAX - 1)

_NARROW = ("key", "number", "order", "bits", "token", "at_ms", "limit_ms", "epoch", "grace_ms")


class _Bits:
    """Reads `bits` of a row."""

    def __init__(self, bits: Column) -> None:
        self._bits = bits
        self.kind = bits.bitwiseAND(31)
        self.after = F.shiftright(bits, _AFTER_AT).bitwiseAND(7)
        self.alone = F.shiftright(bits, _ALONE_AT).bitwiseAND(255)
        self.count = F.shiftright(bits, _COUNT_AT)

    def has(self, flag: int) -> Column:
        """Whether a flag is set."""
        return self._bits.bitwiseAND(flag << _FLAGS_AT) != 0

    def is_any(self, names: Iterable[str]) -> Column:
        """Whether it is one of these events."""
        return self.kind.isin([KIND[name] for name in names])

    def is_a(self, name: str) -> Column:
        return self.kind == KIND[name]


def check_lives(log: Log, verdict: Verdict, horizon: dict[str, int], left: DataFrame | None) -> None:
    """Judge all lives.

    Args:
        horizon: by namespace, UTC ms: when what is due must have happened.
        left: the messages that are there at the end (namespace, entity, sequence_number); None = unknown.
    """
    rows = _events(log, horizon).unionByName(_expectations(log, horizon))
    if left is not None:
        rows = rows.unionByName(_left(log, horizon, left))
    window = Window.partitionBy("key", "number").orderBy("order")
    before = window.rowsBetween(Window.unboundedPreceding, -1)
    now = _Bits(F.col("bits"))
    begins = now.is_any(_BEGINS)
    seen = rows.withColumns(
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
            # What is expected says where it came from: its own order is made up.
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
    _tell(log, verdict, found)


def _tell(log: Log, verdict: Verdict, found: list[Any]) -> None:
    excused = 0
    for row in sorted(found, key=lambda row: (row.code, row.sample or (0, 0))):
        verdict.lives += row.lives
        verdict.open_lives += row.open
        if row.code == _EXCUSED:
            excused += row.rows
        elif row.code:
            place = log.place_of(row.key)
            batch = row.sample.batch
            sample = Sample(place.namespace, place.entity, row.sample.number, batch)
            verdict.add(Check(row.code), row.rows, sample)
    if excused:
        verdict.notes.append(
            f"{excused:,} messages were there before the log or a part of it begins: what is missing of "
            f"their lives is not judged."
        )


# Rows


def _events(log: Log, horizon: dict[str, int]) -> DataFrame:
    """Give the events of messages as narrow rows, with what each shows alone."""
    event_type = F.col("event_type")
    rows = log.events.where(event_type.isin(*_KINDS) & F.col("sequence_number").isNotNull()).select(
        "namespace",
        place_key(),
        F.col("sequence_number").alias("number"),
        order(),
        _first_of([(event_type == name, KIND[name]) for name in _KINDS]).alias("kind"),
        F.col("delivery_count").cast("long").alias("count"),
        F.xxhash64("lock_token").alias("token"),
        F.col("lock_token").isNotNull().alias("has_token"),
        sure_ms(log.clocks, milliseconds("event_time")).alias("at_ms"),
        milliseconds("locked_until").alias("until_ms"),
        milliseconds("expires_at").alias("expires_ms"),
        milliseconds("scheduled_time").alias("scheduled_ms"),
        F.col("broker_epoch").alias("epoch"),
        F.col("session_id").isNotNull().alias("in_session"),
        F.col("entity").contains(SUB_QUEUE).alias("in_sub_queue"),
        F.col("reason").alias("reason"),
        F.col("state_before").alias("state"),
        # Of whom a lock is; else null, and nobody looks.
        F.when(event_type.isin("delivered", "renewed"), F.col("connection_id")).alias("connection"),
    )

    def is_a(name: str) -> Column:
        return F.col("kind") == KIND[name]

    def is_any(names: Iterable[str]) -> Column:
        return F.col("kind").isin([KIND[name] for name in names])

    after = (
        F.when(is_a("enqueued"), AVAILABLE)
        .when(is_a("delivered"), F.when(F.col("has_token"), LOCKED).otherwise(GOING))
        .when(is_any(_ENDS), ENDED)
        .when(is_a("renewed"), LOCKED)
        .when(is_a("deferred"), DEFERRED)
        .when(is_a("claimed"), CLAIMED)
        .when(is_a("scheduled"), SCHEDULED)
        .when(is_a("number_issued"), NUMBERED)
        .otherwise(F.when(F.col("state") == "deferred", DEFERRED).otherwise(AVAILABLE))
    )
    limit_ms = F.when(F.col("after") == LOCKED, F.col("until_ms")).when(
        (F.col("after") == AVAILABLE) & ~F.col("in_sub_queue"), F.col("expires_ms")
    )
    # Since the limit, and since the last start: a broker that was down could do nothing.
    late = F.col("limit_ms").isNotNull() & (
        F.greatest("limit_ms", "started_ms") + OVERDUE_MS <= F.col("horizon_ms")
    )
    overdue = late & (
        (F.col("after") == AVAILABLE)
        | ((F.col("after") == LOCKED) & ~F.col("in_session") & (F.col("epoch") == F.col("last_epoch")))
    )
    back_ms = went_back_ms(log.clocks)
    alone = _first_of(
        [
            (is_a("delivered") & (F.col("state") == "scheduled"), Check.WRONG_STATE),
            (
                is_a("delivered")
                & ~F.col("in_sub_queue")
                & (F.col("state") == "active")
                & (F.col("expires_ms") <= F.col("at_ms")),
                Check.DELIVERED_EXPIRED,
            ),
            (is_a("expired") & (F.col("at_ms") + back_ms < F.col("expires_ms")), Check.EXPIRED_EARLY),
            (is_a("activated") & (F.col("at_ms") < F.col("scheduled_ms")), Check.ACTIVATED_EARLY),
        ]
    )
    flags = {
        HAS_TOKEN: F.col("has_token"),
        IN_SESSION: F.col("in_session"),
        IN_SUB_QUEUE: F.col("in_sub_queue"),
        BY_CURSOR: is_a("completed") & (F.col("reason") == "cursor"),
        CURRENT: F.col("current"),
        EXCUSABLE: F.col("excusable"),
        HAS_REASON: F.col("reason").isNotNull(),
        OVERDUE: F.col("overdue"),
    }
    return (
        marked(log, with_grace_ends(log, rows), horizon)
        .withColumn("after", after)
        .withColumn("limit_ms", limit_ms)
        .withColumn("overdue", overdue)
        .withColumn("bits", _packed(F.col("kind"), F.col("after"), flags, alone, F.col("count")))
        .select(*_NARROW)
    )


def _expectations(log: Log, horizon: dict[str, int]) -> DataFrame:
    """Give a row for each move to another entity or under another number: of the message that has to
    begin."""
    kind = F.when(F.col("event_type") == "forwarded", ARRIVES_OR_IS_KNOWN).otherwise(ARRIVES)
    moves = log.events.where(
        F.col("event_type").isin("forwarded", "dead_lettered", "expired", "activated")
        & F.col("related_entity").isNotNull()
    ).select(
        place_key("related_entity"),
        F.col("related_sequence_number").alias("number"),
        order(),
        kind.alias("kind"),
        F.col("delivery_count").cast("long").alias("count"),
        F.col("related_entity").contains(SUB_QUEUE).alias("in_sub_queue"),
    )
    return _made_up(log, horizon, moves, _EXPECTED_ORDER, {IN_SUB_QUEUE: F.col("in_sub_queue")})


def _left(log: Log, horizon: dict[str, int], left: DataFrame) -> DataFrame:
    """Give a row for each message that is there at the end."""
    rows = left.select(
        place_key(),
        F.col("sequence_number").alias("number"),
        F.lit(_LEFT_ORDER).alias("order"),
        F.lit(LEFT).alias("kind"),
        F.lit(0).cast("long").alias("count"),
    )
    return _made_up(log, horizon, rows, _LEFT_ORDER, {})


def _made_up(
    log: Log, horizon: dict[str, int], rows: DataFrame, order: int, flags: dict[int, Column]
) -> DataFrame:
    flags = {**flags, CURRENT: F.col("current"), EXCUSABLE: F.col("excusable")}
    nothing = F.lit(None).cast("long")
    return marked(log, rows, horizon).select(
        "key",
        "number",
        F.lit(order).alias("order"),
        _packed(F.col("kind"), F.lit(AVAILABLE), flags, F.lit(0), F.col("count")).alias("bits"),
        nothing.alias("token"),
        nothing.alias("at_ms"),
        F.col("order").alias("limit_ms"),
        nothing.alias("epoch"),
        nothing.alias("grace_ms"),
    )


def _packed(kind: Column, after: Column, flags: dict[int, Column], alone: Column, count: Column) -> Column:
    bits = kind.cast("long").bitwiseOR(F.shiftleft(after.cast("long"), _AFTER_AT))
    for flag, is_set in flags.items():
        # A condition about what is null is not met.
        bits = bits.bitwiseOR(F.when(is_set, F.lit(flag << _FLAGS_AT)).otherwise(F.lit(0)).cast("long"))
    return bits.bitwiseOR(F.shiftleft(alone.cast("long"), _ALONE_AT)).bitwiseOR(
        F.shiftleft(F.coalesce(count, F.lit(0)).cast("long"), _COUNT_AT)
    )


def _first_of(cases: list[tuple[Column, int]]) -> Column:
    """Give the number of the first condition that is met, 0 if none is."""
    result: Column | None = None
    for condition, number in cases:
        number = int(number)
        result = F.when(condition, number) if result is None else result.when(condition, number)
    assert result is not None
    return result.otherwise(0)


# Judgement


def _is_last() -> Column:
    """Whether nothing that really happened follows."""
    return (_Bits(F.col("bits")).kind < ARRIVES) & (
        F.col("next_bits").isNull() | (_Bits(F.col("next_bits")).kind >= ARRIVES)
    )


def _code(left_is_known: bool) -> Column:
    """Give the number of the first check that an event offends, 0 if none."""
    now, was = _Bits(F.col("bits")), _Bits(F.col("was_bits"))
    made_up = now.kind >= ARRIVES
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
        F.when(made_up & (now.kind == LEFT), F.coalesce(there, F.lit(0)))
        .when(made_up, F.coalesce(expected, F.lit(0)))
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


def _transition(now: _Bits, was: _Bits) -> Column:
    """Judge an event by the state it finds."""
    # Behind a gap the epoch is not known until the next one.
    held = (was.after == LOCKED) & F.col("was_epoch").eqNullSafe(F.col("epoch"))
    other_lock = now.has(HAS_TOKEN) & (F.col("token") != F.col("was_token"))
    # Whose link was closed before its connection broke is not told, so only what was renewed is surely held
    # over the connection itself.
    grace_is_over = (
        was.is_a("renewed") & (F.col("was_grace_ms") >= 0) & (F.col("at_ms") >= F.col("was_grace_ms"))
    )
    over = (F.col("at_ms") >= F.col("was_limit_ms")) | F.coalesce(grace_is_over, F.lit(False))
    too_late = ~now.has(IN_SESSION) & over
    claimed = was.after == CLAIMED
    committed = now.is_a("completed") & now.has(BY_CURSOR)
    return (
        F.when(was.after == GOING, F.when(~now.is_a("completed"), int(Check.DELETION_MISSING)))
        .when(now.is_any(_BEGINS), F.when(~now.has(IN_SUB_QUEUE) & (now.count != 0), int(Check.WRONG_COUNT)))
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


def _lapse(now: _Bits, was: _Bits) -> Column:
    """Judge the lapse of a message's lock: at its own end, or at that of its connection's grace (C26)."""
    at_ms, limit_ms, grace_ms = F.col("at_ms"), F.col("was_limit_ms"), F.col("was_grace_ms")
    untold = F.coalesce(grace_ms == UNTOLD, F.lit(False))
    grace_is_over = F.coalesce((grace_ms >= 0) & (at_ms >= grace_ms), F.lit(False))
    with_grace = now.has(HAS_REASON) & (untold | grace_is_over)
    overdue = now.has(HAS_REASON) & grace_is_over & (at_ms > grace_ms + OVERDUE_MS)
    # Where the broker came late to all of it, the first to lapse need not be the first that was due.
    in_time = at_ms <= limit_ms + LATE_MS
    outlasts = (grace_ms >= 0) & (limit_ms > grace_ms + LATE_MS)
    kept = was.is_a("renewed") & outlasts & in_time & ~now.has(HAS_REASON)
    return F.when(
        at_ms < limit_ms,
        F.when(~with_grace, int(Check.LOCK_CUT_SHORT)).when(overdue, int(Check.LOCK_OVERDUE)),
    ).when(kept, int(Check.LOCK_OVERDUE))


def _at_the_end(now: _Bits, left_is_known: bool) -> Column:
    """Judge the last event of a life by what should have followed."""
    last = _is_last()
    follows = _Bits(F.col("next_bits")).kind
    current = now.has(CURRENT)
    lost = F.lit(False)
    if left_is_known:
        # Where an expectation stands behind the last event, that is looked at instead.
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


def _begun_by_now(now: _Bits) -> Column:
    return F.col("begun").isNotNull() | now.is_any(_BEGINS)
