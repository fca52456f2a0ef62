"""The checks of sequence numbers: no gap, in the order of arrival, and enqueued times that never go back.

Theory of operation. The numbers of an entity, or of a partition of it, are judged in runs of neighbours, each
in one task; the edges of the runs are few and are joined at the end. Numbers begin again after the last one:
then the highest may be the oldest (semantics S-03).

Must not know: Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from peeklock.pipeline.audit.checks import Check, Verdict
from peeklock.pipeline.audit.life_table import LifeTable
from peeklock.pipeline.audit.log import Log, batch_of
from peeklock.pipeline.audit.packing import NONE, Numbers, Truths

RUN_BITS = 12
"""A run has 4,096 numbers: so many lives are in one task."""
PARTITION_SHIFT = 48
"""The partition's id is above these bits of a sequence number. Source: semantics S-02."""
_NUMBERS = 1 << 63
"""Count of sequence numbers before they begin again. Source: semantics S-03."""

Fault = tuple[int, int, int, int | None, int, str]
"""Check, key of the place, rows, number (None = not of a message), batch, detail."""


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring numbers of one place, stretch and partition (-1 = has none)."""

    place: int
    stretch: int
    partition: int
    first: int
    last: int
    first_order: int
    last_order: int
    first_ms: int
    """Enqueued time of the first enqueued message; NONE without any."""
    last_ms: int


def read_runs(rows: LifeTable) -> tuple[list[Run], list[Fault]]:
    """Return the runs of the numbers that were given in the log, and the faults within them."""
    gives = (rows.begins | rows.is_a("number_issued")) & ~rows.has("is_ahead") & ~rows.in_sub_queue
    gives &= rows.is_event & rows.is_first
    picked = np.flatnonzero(gives)
    if not len(picked):
        return [], []
    at, stretch, number = rows.at[picked], rows.stretch[picked], rows.number[picked]
    partition = np.where(rows.has("has_partition")[picked], number >> PARTITION_SHIFT, -1)
    order = rows.order[picked]
    enqueued_ms = np.where((rows.is_a("enqueued") & ~rows.passes)[picked], rows.enqueued_ms[picked], NONE)
    cut = np.zeros(len(picked), bool)
    cut[0] = True
    for values in (at, stretch, partition, number >> RUN_BITS):
        cut[1:] |= values[1:] != values[:-1]
    keys = rows.keys[at]
    faults = _inside(keys, number, order, enqueued_ms, cut)
    starts = np.flatnonzero(cut)
    ends = np.append(starts[1:], len(picked)) - 1
    lowest = np.minimum.reduceat(np.where(enqueued_ms == NONE, np.iinfo(np.int64).max, enqueued_ms), starts)
    highest = np.maximum.reduceat(enqueued_ms, starts)
    lowest = np.where(highest == NONE, NONE, lowest)
    columns = (
        keys[starts], stretch[starts], partition[starts], number[starts], number[ends], order[starts],
        order[ends], lowest, highest,
    )  # fmt: skip
    return [Run(*values) for values in zip(*(column.tolist() for column in columns), strict=True)], faults


def _inside(keys: Numbers, number: Numbers, order: Numbers, enqueued_ms: Numbers, cut: Truths) -> list[Fault]:
    """Return the faults between neighbours of a run."""
    faults: list[Fault] = []
    joined = np.flatnonzero(~cut)
    missing = number[joined] - number[joined - 1] - 1
    for at, count in zip(joined[missing > 0].tolist(), missing[missing > 0].tolist(), strict=True):
        faults.append(_gap(int(keys[at]), int(number[at - 1]), count, int(order[at])))
    back = joined[(missing >= 0) & (order[joined] < order[joined - 1])]
    faults += [
        (int(Check.NUMBER_ORDER), int(keys[at]), 1, int(number[at]), batch_of(int(order[at])), "")
        for at in back.tolist()
    ]
    # Of the enqueued messages only: a scheduled one has no enqueued time of its own.
    enqueued = np.flatnonzero(enqueued_ms != NONE)
    run = np.cumsum(cut)[enqueued]
    times = enqueued_ms[enqueued]
    earlier = np.flatnonzero((run[1:] == run[:-1]) & (times[1:] < times[:-1])) + 1
    for at in enqueued[earlier].tolist():
        faults.append(_earlier(int(keys[at]), int(number[at]), int(order[at])))
    return faults


def _gap(place: int, after: int, missing: int, order: int) -> Fault:
    what = f"{missing} missing after {after}"
    return int(Check.NUMBER_GAP), place, missing, after + 1, batch_of(order), what


def _earlier(place: int, number: int, order: int) -> Fault:
    return int(Check.ENQUEUED_BACK), place, 1, number, batch_of(order), ""


def judge_runs(log: Log, verdict: Verdict, runs: Iterable[Run]) -> None:
    """Judge the edges of all runs."""
    groups: dict[tuple[int, int, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.place, run.stretch, run.partition), []).append(run)
    for (place, _, partition), group in sorted(groups.items()):
        count = _NUMBERS if partition < 0 else 1 << PARTITION_SHIFT
        low, high = min(run.first for run in group), max(run.last for run in group)
        # The highest ones may be the oldest.
        oldest = low + count // 2 if high - low >= count // 2 else high + 1
        placed = sorted(
            (run.first - count * (run.first >= oldest), run.last - count * (run.first >= oldest), run)
            for run in group
        )
        for (_, last, before), (first, _, after) in pairwise(placed):
            if first > last + 1:
                add_fault(log, verdict, _gap(place, before.last, first - last - 1, after.first_order))
            if after.first_order < before.last_order:
                batch = batch_of(after.first_order)
                add_fault(log, verdict, (Check.NUMBER_ORDER, place, 1, after.first, batch, ""))
            if NONE not in (before.last_ms, after.first_ms) and after.first_ms < before.last_ms:
                add_fault(log, verdict, _earlier(place, after.first, after.first_order))


def add_fault(log: Log, verdict: Verdict, fault: Fault) -> None:
    """Add a fault of a place to the verdict."""
    check, key, count, number, batch, what = fault
    place = log.places[key]
    verdict.add(Check(check), count, place.namespace, place.entity, number, batch, what)
