"""Rows of message events for the checks of lives: narrow, with all small values in one number.

Each row is an event of a message. `bits` packs its kind, the state after it, flags, what the event shows
alone and the delivery count: the shuffle by message takes most of the time, so rows are narrow.

A move is an event of the life that ends, and another life must begin. So each move adds a row for the
message that must begin, an *expectation*, sorted after all its events. The messages left at the end, if they
are known, are added as rows in the same way.

The lock of a broken connection lasts for the connection's grace. A lock belongs to the connection of its
delivery, and from a renewal on to the connection of the renewal. Connections are numbered from 1 at each
start, so epoch and number identify one. Source: wire contract C26.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's documentation has it

from peeklock.pipeline.audit.checks import Check
from peeklock.pipeline.audit.clocks import sure_ms, went_back_ms
from peeklock.pipeline.audit.log import (
    BATCH_MAX,
    SUB_QUEUE,
    Log,
    marked,
    milliseconds,
    order,
    order_of,
    place_key,
)

OVERDUE_MS = 60_000
"""Maximum delay of a change that is due by the clock: sweeps go in slices, behind clients. Our choice."""

LATE_MS = 2_000
"""Maximum delay of a lapse after its grace: locks are released in slices. Our choice."""

UNTOLD = -1
"""The log does not have the grace: an older broker wrote it, or the start is not in it."""

_KINDS = (
    "enqueued", "delivered", "completed", "abandoned", "lock_lapsed", "forwarded", "dead_lettered", "renewed",
    "deferred", "released", "expired", "scheduled", "activated", "claimed", "claim_released", "purged",
    "cancelled", "unmatched", "number_issued",
)  # fmt: skip
"""Events of messages in about the order of their frequency: they are compared in this order."""

KIND = {name: number for number, name in enumerate(_KINDS, start=1)}
ARRIVES, ARRIVES_OR_IS_KNOWN, LEFT = 20, 21, 22
"""Rows that are not events: a dead letter or an activated message must arrive; a forwarded one must arrive
unless it was dropped as a duplicate; the message is left at the end."""

BEGINS = ("enqueued", "scheduled")
_ENDS = (
    "completed", "forwarded", "dead_lettered", "expired", "activated", "purged", "cancelled", "unmatched",
)  # fmt: skip
AVAILABLE, DEFERRED, SCHEDULED, LOCKED, CLAIMED, GOING, ENDED, NUMBERED = range(8)
"""States after an event. GOING: delivered in mode receive-and-delete. NUMBERED: only a number, issued in a
transaction; its message is scheduled with the commit, or never."""

HAS_TOKEN, IN_SESSION, IN_SUB_QUEUE, BY_CURSOR, CURRENT, EXCUSABLE, HAS_REASON, OVERDUE = (
    1 << bit for bit in range(8)
)
"""Flags of an event. OVERDUE: the message must have left this state at the horizon."""

_AFTER_AT, _FLAGS_AT, _ALONE_AT, _COUNT_AT = 5, 8, 16, 24
"""Positions in `bits`: kind, state after, flags, what the event shows alone, delivery count."""

_EXPECTED_ORDER, _LEFT_ORDER = order_of(BATCH_MAX - 2), order_of(BATCH_MAX - 1)

_NARROW = ("key", "number", "order", "bits", "token", "at_ms", "limit_ms", "epoch", "grace_ms")


class Bits:
    """The parts of `bits` of a row."""

    def __init__(self, bits: Column) -> None:
        self._bits = bits
        self.kind = bits.bitwiseAND(31)
        self.after = F.shiftright(bits, _AFTER_AT).bitwiseAND(7)
        self.alone = F.shiftright(bits, _ALONE_AT).bitwiseAND(255)
        self.count = F.shiftright(bits, _COUNT_AT)

    def has(self, flag: int) -> Column:
        """Return whether a flag is set."""
        return self._bits.bitwiseAND(flag << _FLAGS_AT) != 0

    def is_any(self, names: Iterable[str]) -> Column:
        """Return whether it is one of these events."""
        return self.kind.isin([KIND[name] for name in names])

    def is_a(self, name: str) -> Column:
        return self.kind == KIND[name]


def life_rows(log: Log, horizon: dict[str, int], left: DataFrame | None) -> DataFrame:
    """Return events, expectations and left messages as narrow rows (`_NARROW`); see `lives.check_lives`."""
    rows = _events(log, horizon).unionByName(_expectations(log, horizon))
    return rows if left is None else rows.unionByName(_left(log, horizon, left))


def _events(log: Log, horizon: dict[str, int]) -> DataFrame:
    """Return the events of messages as narrow rows, with what each shows alone."""
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
        # The owner of a lock; null for other events.
        F.when(event_type.isin("delivered", "renewed"), F.col("connection_id")).alias("connection"),
    )
    limit_ms = F.when(F.col("after") == LOCKED, F.col("until_ms")).when(
        (F.col("after") == AVAILABLE) & ~F.col("in_sub_queue"), F.col("expires_ms")
    )
    flags = {
        HAS_TOKEN: F.col("has_token"),
        IN_SESSION: F.col("in_session"),
        IN_SUB_QUEUE: F.col("in_sub_queue"),
        BY_CURSOR: _is_a("completed") & (F.col("reason") == "cursor"),
        CURRENT: F.col("current"),
        EXCUSABLE: F.col("excusable"),
        HAS_REASON: F.col("reason").isNotNull(),
        OVERDUE: F.col("overdue"),
    }
    bits = _packed(F.col("kind"), F.col("after"), flags, _shown_alone(log), F.col("count"))
    return (
        marked(log, _with_grace_ends(log, rows), horizon)
        .withColumn("after", _state_after())
        .withColumn("limit_ms", limit_ms)
        .withColumn("overdue", _overdue())
        .withColumn("bits", bits)
        .select(*_NARROW)
    )


def _is_a(name: str) -> Column:
    return F.col("kind") == KIND[name]


def _state_after() -> Column:
    return (
        F.when(_is_a("enqueued"), AVAILABLE)
        .when(_is_a("delivered"), F.when(F.col("has_token"), LOCKED).otherwise(GOING))
        .when(F.col("kind").isin([KIND[name] for name in _ENDS]), ENDED)
        .when(_is_a("renewed"), LOCKED)
        .when(_is_a("deferred"), DEFERRED)
        .when(_is_a("claimed"), CLAIMED)
        .when(_is_a("scheduled"), SCHEDULED)
        .when(_is_a("number_issued"), NUMBERED)
        .otherwise(F.when(F.col("state") == "deferred", DEFERRED).otherwise(AVAILABLE))
    )


def _overdue() -> Column:
    # Since the limit and since the last start: a broker that was down could do nothing.
    late = F.col("limit_ms").isNotNull() & (
        F.greatest("limit_ms", "started_ms") + OVERDUE_MS <= F.col("horizon_ms")
    )
    return late & (
        (F.col("after") == AVAILABLE)
        | ((F.col("after") == LOCKED) & ~F.col("in_session") & (F.col("epoch") == F.col("last_epoch")))
    )


def _shown_alone(log: Log) -> Column:
    """Return the number of the check that an event violates whatever came before, 0 if none."""
    back_ms = went_back_ms(log.clocks)
    expired = (
        _is_a("delivered")
        & ~F.col("in_sub_queue")
        & (F.col("state") == "active")
        & (F.col("expires_ms") <= F.col("at_ms"))
    )
    return _first_of(
        [
            (_is_a("delivered") & (F.col("state") == "scheduled"), Check.WRONG_STATE),
            (expired, Check.DELIVERED_EXPIRED),
            (_is_a("expired") & (F.col("at_ms") + back_ms < F.col("expires_ms")), Check.EXPIRED_EARLY),
            (_is_a("activated") & (F.col("at_ms") < F.col("scheduled_ms")), Check.ACTIVATED_EARLY),
        ]
    )


def _expectations(log: Log, horizon: dict[str, int]) -> DataFrame:
    """Return a row for each move to another entity or number: of the message that must begin."""
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
    return _without_events(log, horizon, moves, _EXPECTED_ORDER, {IN_SUB_QUEUE: F.col("in_sub_queue")})


def _left(log: Log, horizon: dict[str, int], left: DataFrame) -> DataFrame:
    """Return a row for each message left at the end."""
    rows = left.select(
        place_key(),
        F.col("sequence_number").alias("number"),
        F.lit(_LEFT_ORDER).alias("order"),
        F.lit(LEFT).alias("kind"),
        F.lit(0).cast("long").alias("count"),
    )
    return _without_events(log, horizon, rows, _LEFT_ORDER, {})


def _without_events(
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
        # A condition on null is not met.
        bits = bits.bitwiseOR(F.when(is_set, F.lit(flag << _FLAGS_AT)).otherwise(F.lit(0)).cast("long"))
    return bits.bitwiseOR(F.shiftleft(alone.cast("long"), _ALONE_AT)).bitwiseOR(
        F.shiftleft(F.coalesce(count, F.lit(0)).cast("long"), _COUNT_AT)
    )


def _first_of(cases: list[tuple[Column, int]]) -> Column:
    """Return the number of the first condition that is met, 0 if none is."""
    (condition, number), *others = cases
    result = F.when(condition, int(number))
    for condition, number in others:
        result = result.when(condition, int(number))
    return result.otherwise(0)


def _with_grace_ends(log: Log, rows: DataFrame) -> DataFrame:
    """Add `grace_ms` to rows with `namespace`, `epoch` and `connection`.

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
