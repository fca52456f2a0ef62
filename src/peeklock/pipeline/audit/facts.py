"""What a check of single lives knows about each place: a small record, sent to the workers.

Owns: the settings of entities over time, and where lives cannot be compared. Must not know: Spark.

A setting is unknown before the first event of its entity in the log and after a gap, until the next such
event.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from peeklock.pipeline.audit.clocks import UNSURE_MS
from peeklock.pipeline.audit.log import Log, LoggedSettings, Place, order_of
from peeklock.pipeline.audit.packing import NONE, Numbers

UNLIMITED_MS = int(np.iinfo(np.int64).max) >> 2
"""A default time-to-live without end; added to a time, it does not overflow."""


@dataclass(frozen=True, slots=True)
class Known:
    """Settings of an entity from an instant on; None = unknown."""

    order: int
    at_ms: int
    lock_ms: int | None = None
    count_max: int | None = None
    ttl_ms: int | None = None
    """Default time-to-live: of a subscription, at most its topic's (E-07)."""
    dead_letters_expired: bool | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """One place."""

    namespace: str
    is_sub_queue: bool
    bounds: list[int]
    """Orders at which another stretch begins: another incarnation of the entity, or the log after a gap."""
    late: bool
    """Whether a life may have begun before the log."""
    horizon_ms: int
    last_epoch: int
    started_ms: int
    """The time from which delays count."""
    back_ms: int
    """How far the clock went back: enqueued times may be ahead by that."""
    steps: list[tuple[int, int]] = field(default_factory=list)
    """Steps of the clock: batch, and UTC ms until when times cannot be compared with earlier ones."""
    known: list[Known] = field(default_factory=list)
    updates: list[int] = field(default_factory=list)
    """Orders of the entity's updates."""
    first_order: int = 0
    """Of the log."""
    windows: list[tuple[int, int | None]] = field(default_factory=list)
    """Duplicate detection: from which order on, and within how many ms; None = not detected."""

    def begins(self, stretch: int) -> int:
        """Return the order with which a stretch begins."""
        return self.bounds[stretch - 1] if stretch else self.first_order

    def stretch(self, order: Numbers) -> Numbers:
        """Return the number of the stretch of each event."""
        return np.searchsorted(np.array(self.bounds, np.int64), order, side="right")

    def sure_ms(self, order: Numbers, at_ms: Numbers) -> Numbers:
        """Return the times of events, NONE where they cannot be compared with earlier ones."""
        for batch_no, until_ms in self.steps:
            at_ms = np.where((order >= order_of(batch_no)) & (at_ms <= until_ms), NONE, at_ms)
        return at_ms


def gather(log: Log, horizon: dict[str, int]) -> dict[int, Facts]:
    """Return the facts of each place of a log, by its key."""
    gaps: dict[str, list[int]] = {}
    for gap in log.gaps:
        gaps.setdefault(gap.namespace, []).append(order_of(gap.last + 1))
    named = {(place.namespace, place.entity.lower()): place for place in log.places.values()}
    steps: dict[str, list[tuple[int, int]]] = {}
    for step in log.clocks.steps:
        steps.setdefault(step.namespace, []).append((step.batch_no, step.at_ms + UNSURE_MS))
    facts = {}
    for place in log.places.values():
        namespace = place.namespace
        cuts = gaps.get(namespace, [])
        facts[place.key] = Facts(
            namespace,
            place.is_sub_queue,
            sorted([*place.bounds, *cuts]),
            log.begins_late(namespace),
            horizon[namespace],
            log.last_start(namespace)[0],
            log.last_sure_ms(namespace),
            log.clocks.back_ms.get(namespace, 0),
            steps.get(namespace, []),
            _known(place, named, cuts),
            place.updates,
            order_of(log.first_batch[namespace]),
            [
                (entry.order, entry.window_ms if entry.detects_duplicates else None)
                for entry in place.settings
            ],
        )
    return facts


def _known(place: Place, named: dict[tuple[str, str], Place], cuts: list[int]) -> list[Known]:
    """Return the settings of a place over time."""
    base = named.get((place.namespace, place.base.lower()))
    topic = named.get((place.namespace, place.topic.lower())) if place.topic else None
    own, above = (base.settings if base else []), (topic.settings if topic else [])
    times = {entry.order: entry.at_ms for entry in (*own, *above)}
    marks = sorted({*times, *cuts})
    known = []
    for mark in marks:
        since = max((cut for cut in cuts if cut <= mark), default=0)
        its = _at(own, mark, since)
        topics = _at(above, mark, since)
        if its is None or (topic is not None and topics is None):
            known.append(Known(mark, times.get(mark, 0)))
            continue
        ttls = [UNLIMITED_MS if entry.ttl_ms is None else entry.ttl_ms for entry in (its, topics) if entry]
        if place.is_sub_queue:  # nothing expires there, and nothing is counted
            known.append(Known(mark, times[mark], its.lock_ms))
        else:
            known.append(
                Known(
                    mark,
                    times[mark],
                    its.lock_ms,
                    its.delivery_count_max,
                    min(ttls),
                    its.dead_letters_expired,
                )
            )
    return known


def _at(settings: list[LoggedSettings], order: int, since: int) -> LoggedSettings | None:
    """Return the settings in force at an order; None if they are unknown `since` a gap."""
    found = next((entry for entry in reversed(settings) if entry.order <= order), None)
    return found if found is not None and found.order >= since else None
