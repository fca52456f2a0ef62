"""The event log as the audit reads it: a survey in one cheap pass, and columns for its events.

Theory of operation. Big data stays in Spark. Small data is collected: entities, segments, and the rare events
that concern more than one message (epochs, gaps, entities created, updated and deleted). The order of events
within a namespace is one number, `order`, made of batch and index. An entity's path is one number too,
`place`, so that shuffled rows are narrow.

An entity that is deleted and created again begins its sequence numbers again. So a life is named by place,
incarnation and number; the incarnation counts deletions and creations before the event.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's documentation has it

from peeklock.pipeline.audit.checks import AuditInput
from peeklock.pipeline.audit.clocks import UNSURE_MS, ClockSteps
from peeklock.pipeline.audit.files import LogFiles
from peeklock.pipeline.audit.seen import KIND, LOST, RARE
from peeklock.pipeline.audit.vocabulary import INCARNATIONS, KNOWN, OF_ENTITIES

INDEX_BITS = 24
"""16 million events in one batch, and 2^39 batches."""
INDEX_MAX = 1 << INDEX_BITS
BATCH_MAX = 1 << 63 - INDEX_BITS

SUB_QUEUE = "/$"
"""Prefix of a sub-queue in a path; no entity's name has a `$`."""
SUBSCRIPTIONS = "/subscriptions/"
NUMBERED_AHEAD = "numbered ahead"
"""`reason` of `scheduled` after `number_issued`."""

FILE_MISSING = "no file has them"
FILE_LEFT_OUT = "their file is gone or not as it was written"
_UNLIMITED_MS = 922_337_203_685_477
"""A time-to-live without end. Source: wire contract 10.1, the largest time span."""


@dataclass(frozen=True, slots=True)
class LoggedSettings:
    """Settings of an entity that the audit needs, from an instant on."""

    order: int
    at_ms: int
    detects_duplicates: bool
    window_ms: int
    ttl_ms: int | None
    """Default time-to-live; None = unlimited."""
    has_partitions: bool
    lock_ms: int | None
    delivery_count_max: int | None
    dead_letters_expired: bool | None


@dataclass(slots=True)
class Place:
    """One entity or sub-queue."""

    key: int
    namespace: str
    entity: str
    events: dict[str, int] = field(default_factory=dict)
    """Counts by type."""
    first_order: int = 0
    """Order of the first event of a message."""
    sessions: int = 0
    bounds: list[int] = field(default_factory=list)
    """Orders at which another incarnation begins."""
    updates: list[int] = field(default_factory=list)
    settings: list[LoggedSettings] = field(default_factory=list)

    @property
    def base(self) -> str:
        """Path of the entity that a sub-queue belongs to."""
        return self.entity.split(SUB_QUEUE)[0]

    @property
    def topic(self) -> str | None:
        """Path of the topic of a subscription."""
        at = self.entity.lower().find(SUBSCRIPTIONS)
        return None if at < 0 or self.is_sub_queue else self.entity[:at]

    @property
    def is_sub_queue(self) -> bool:
        return SUB_QUEUE in self.entity


@dataclass(frozen=True, slots=True)
class Gap:
    """Batches that are not in the log: the exporter reported it, or a file is missing."""

    namespace: str
    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True)
class Strange:
    """Events that cannot be judged: of an unknown type, or without what their type needs."""

    namespace: str
    entity: str | None
    kind: str
    is_known: bool
    count: int
    batch: int
    version: int


@dataclass(slots=True)
class Log:
    """Event logs after a survey."""

    events: DataFrame
    places: dict[int, Place]
    folders: list[LogFiles]
    gaps: list[Gap]
    epochs: dict[str, list[tuple[int, int]]]
    """By namespace: (batch, UTC ms) of each start of the broker that is in the log, in order."""
    last_ms: dict[str, int]
    """By namespace: time of the last event since the last start."""
    first_batch: dict[str, int]
    graces: dict[str, dict[int, int | None]] = field(default_factory=dict)
    """By namespace and batch of a start: the grace of broken connections; None = until locks lapse."""
    count: int = 0
    transactions: int = 0
    lost_ms: dict[tuple[str, int | None], dict[int | None, int]] = field(default_factory=dict)
    """By namespace and batch of a start: when connections broke, UTC ms."""
    clocks: ClockSteps = field(default_factory=ClockSteps)
    strange: list[Strange] = field(default_factory=list)

    def begins_late(self, namespace: str) -> bool:
        """Return whether batches before the first one in the log existed."""
        return self.first_batch[namespace] > 1

    def starts_with(self, gap: Gap) -> bool:
        """Return whether the log begins with a gap: capture began later than the broker."""
        return gap.first == self.first_batch[gap.namespace]

    def last_start(self, namespace: str) -> tuple[int, int]:
        """Return batch and UTC ms of the broker's last start; (-1, 0) if the log has none."""
        return self.epochs[namespace][-1] if namespace in self.epochs else (-1, 0)

    def last_sure_ms(self, namespace: str) -> int:
        """Return the time from which delays count: the last start, or a while after a clock step."""
        return max(self.last_start(namespace)[1], self.clocks.last_ms(namespace) + UNSURE_MS)

    def place_of(self, key: int) -> Place:
        """Return the place of a `key` (see `marked`). Raises: AuditInput."""
        for incarnation in range(self._incarnations_max() + 1):
            place = self.places.get(key ^ incarnation)
            if place is not None:
                return place
        raise AuditInput("the messages left (--left) name an entity that is not in the log")

    def _incarnations_max(self) -> int:
        return len(self.gaps) + max((len(place.bounds) for place in self.places.values()), default=0)

    def settled(self) -> list[tuple[int, int, int, bool, int]]:
        """Return rows: place, from order, before order, whether and how long duplicates are detected."""
        rows = []
        for place in self.places.values():
            for at, entry in enumerate(place.settings):
                follows = place.settings[at + 1 : at + 2]
                ends = follows[0].order if follows else (1 << 63) - 1
                rows.append((place.key, entry.order, ends, entry.detects_duplicates, entry.window_ms))
        return rows


def order_of(batch_no: int, index: int = 0) -> int:
    """Return the order of an event."""
    return batch_no << INDEX_BITS | index


def batch_of(order: int) -> int:
    """Return the batch of an order."""
    return order >> INDEX_BITS


def order() -> Column:
    """Return the order of the event in a row of the log."""
    return F.shiftleft(F.col("batch_no"), INDEX_BITS).bitwiseOR(F.col("index").cast("long")).alias("order")


def milliseconds(column: str) -> Column:
    """Return a time as UTC ms."""
    return F.unix_millis(F.col(column))


def survey(events: DataFrame, folders: list[LogFiles], seen: list[Row]) -> Log:
    """Survey the events of some logs.

    Args:
        seen: what their segments show of themselves.

    Raises: AuditInput.
    """
    log = Log(events, {}, folders, [], {}, {}, {})
    ends_ms: dict[str, dict[int, int]] = {}  # by namespace and epoch
    for row in (row for row in seen if row.what == KIND):
        if row.last_index >= INDEX_MAX or row.last_batch >= BATCH_MAX:
            raise AuditInput(
                f"batch {row.last_batch} of '{row.namespace}' or an earlier one has more events than an "
                f"audit can order ({INDEX_MAX}), or its number is too high ({BATCH_MAX})"
            )
        log.count += row.events
        log.transactions += row.transactions
        ends = ends_ms.setdefault(row.namespace, {})
        ends[row.broker_epoch or 0] = max(row.last_ms, ends.get(row.broker_epoch or 0, 0))
        log.first_batch[row.namespace] = min(
            row.first_batch, log.first_batch.get(row.namespace, row.first_batch)
        )
        _add_kind(log, row)
    if not log.count:
        raise AuditInput("the log has no events: was the broker started with --capture and this folder?")
    for folder in folders:
        log.first_batch[folder.namespace] = folder.named[0].first_batch
    log.last_ms = {namespace: ends[max(ends)] for namespace, ends in ends_ms.items()}
    _read_rare(log, [row for row in seen if row.what == RARE], ends_ms)
    for row in (row for row in seen if row.what == LOST):
        log.lost_ms.setdefault((row.namespace, row.broker_epoch), {})[row.connection_id] = row.first_ms
    for folder in log.folders:
        log.gaps += [
            Gap(folder.namespace, last + 1, first - 1, FILE_MISSING)
            for last, first in folder.breaks()
            if first > last + 1
        ]
        log.gaps += [
            Gap(folder.namespace, segment.first_batch, segment.last_batch, FILE_LEFT_OUT)
            for segment in folder.lacking
        ]
    return log


def _add_kind(log: Log, row: Row) -> None:
    """Add counts of events to the log. Raises: AuditInput."""
    if row.strange:
        log.strange.append(
            Strange(
                row.namespace, row.entity, row.event_type, row.event_type in KNOWN, row.strange,
                row.first_batch, row.version or 0,
            )
        )  # fmt: skip
    if row.related_entity is not None:
        _place(log, row.related, row.namespace, row.related_entity)
    if row.entity is None:
        return
    place = _place(log, row.place, row.namespace, row.entity)
    place.events[row.event_type] = place.events.get(row.event_type, 0) + row.events
    place.sessions += row.sessions
    if row.event_type not in OF_ENTITIES:
        first = order_of(row.first_batch)
        place.first_order = min(first, place.first_order or first)


def _place(log: Log, key: int, namespace: str, entity: str) -> Place:
    """Return a place of the log, which may be new. Raises: AuditInput."""
    place = log.places.setdefault(key, Place(key, namespace, entity))
    if (place.namespace, place.entity) != (namespace, entity):
        raise AuditInput(f"'{place.entity}' and '{entity}' have the same digest: audit them separately")
    return place


def _read_rare(log: Log, rare: list[Row], ends_ms: Mapping[str, Mapping[int, int]]) -> None:
    """Read events that concern more than one message; `ends_ms`: time of the last event of each epoch."""
    by_base: dict[tuple[str, str], list[Place]] = {}
    named = {(place.namespace, place.entity): place for place in log.places.values()}
    for place in log.places.values():
        by_base.setdefault((place.namespace, place.base), []).append(place)
    for row in sorted(rare, key=lambda row: (row.namespace, row.batch_no, row.index_no)):
        if row.event_type == "epoch_started":
            log.epochs.setdefault(row.namespace, []).append((row.batch_no, row.last_ms))
            before = [ms for epoch, ms in ends_ms[row.namespace].items() if epoch < row.batch_no]
            log.clocks.started(row.namespace, row.last_ms, max(before, default=0))
            settings = json.loads(row.reason) if row.reason else {}
            if "lock_grace_ms" in settings:
                log.graces.setdefault(row.namespace, {})[row.batch_no] = settings["lock_grace_ms"]
        elif row.event_type == "clock_stepped":
            log.clocks.stepped(row.namespace, row.batch_no, row.last_ms, row.reason)
        elif row.event_type == "gap":
            log.gaps.append(
                Gap(row.namespace, row.sequence_number, row.related_sequence_number, row.reason or "")
            )
        else:
            _note(row, by_base, named[row.namespace, row.entity])


def _note(row: Row, by_base: dict[tuple[str, str], list[Place]], place: Place) -> None:
    """Add an event of an entity to its places."""
    kind, order = row.event_type, order_of(row.batch_no, row.index_no)
    behind = by_base[place.namespace, place.base]
    if kind in INCARNATIONS:
        for each in behind:
            if each.first_order and order > each.first_order:
                each.bounds.append(order)
    elif kind == "entity_updated":
        for each in behind:
            each.updates.append(order)
    settings = _read_settings(row)
    if settings is not None:
        place.settings.append(settings)


def _read_settings(row: Row) -> LoggedSettings | None:
    """Return the settings in an event of an entity: JSON by their names in the broker."""
    if not row.reason:
        return None
    told = json.loads(row.reason)
    ttl_ms = told.get("default_ttl_ms", _UNLIMITED_MS)
    return LoggedSettings(
        order_of(row.batch_no, row.index_no),
        row.last_ms,
        bool(told.get("requires_duplicate_detection")),
        told.get("duplicate_window_ms", 0),
        None if ttl_ms >= _UNLIMITED_MS else ttl_ms,
        bool(told.get("enable_partitioning")),
        told.get("lock_duration_ms"),
        told.get("max_delivery_count"),
        told.get("dead_lettering_on_expiration"),
    )


def marked(log: Log, rows: DataFrame, horizon: dict[str, int]) -> DataFrame:
    """Add columns about the place of rows with `place` and `order`.

    key         the entity's incarnation and the stretch between two gaps of the log: no conclusion is drawn
                from one to another
    current     no other incarnation and no gap follows
    excusable   a life may have begun before this stretch of the log
    changed     order of the entity's last update before, or 0
    horizon_ms, last_epoch, started_ms
                of the namespace: when due changes must have happened; batch of the last start; the time from
                which delays count

    Args:
        horizon: by namespace, UTC ms.
    """
    table = _marks(log, horizon)
    if len(log.last_ms) == 1 and not any(row[1] or row[2] for row in table):
        late, horizon_ms, last_epoch, started_ms = table[0][3:] if table else (False, 0, -1, 0)
        return rows.withColumns(
            {
                "key": F.col("place"),
                "current": F.lit(True),
                "excusable": F.lit(late),
                "changed": F.lit(0).cast("long"),
                "horizon_ms": F.lit(horizon_ms).cast("long"),
                "last_epoch": F.lit(last_epoch).cast("long"),
                "started_ms": F.lit(started_ms).cast("long"),
            }
        )
    known = F.broadcast(log.events.sparkSession.createDataFrame(table, _MARKS))
    past = F.size(F.filter("bounds", lambda mark: mark <= F.col("order")))
    updates = F.filter("updates", lambda mark: mark <= F.col("order"))
    return (
        rows.join(known, "place", "left")
        .withColumns(
            {
                "key": F.col("place").bitwiseXOR(F.coalesce(past, F.lit(0)).cast("long")),
                "current": F.coalesce(past == F.size("bounds"), F.lit(True)),
                "excusable": F.coalesce(F.col("late") | (past > 0), F.lit(False)),
                "changed": F.coalesce(F.array_max(updates), F.lit(0)),
            }
        )
        .drop("bounds", "updates", "late")
    )


_MARKS = (
    "place long, bounds array<long>, updates array<long>, late boolean, horizon_ms long, last_epoch long, "
    "started_ms long"
)


def _marks(log: Log, horizon: dict[str, int]) -> list[tuple[int, list[int], list[int], bool, int, int, int]]:
    """Return a row of `_MARKS` for each place."""
    gaps: dict[str, list[int]] = {}
    for gap in log.gaps:
        gaps.setdefault(gap.namespace, []).append(order_of(gap.last + 1))
    return [
        (
            place.key,
            sorted([*place.bounds, *gaps.get(place.namespace, [])]),
            place.updates,
            log.begins_late(place.namespace),
            horizon[place.namespace],
            log.last_start(place.namespace)[0],
            log.last_sure_ms(place.namespace),
        )
        for place in log.places.values()
    ]
