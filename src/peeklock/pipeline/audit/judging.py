"""Judges the rows that came together in one task: lives, numbers, sessions, batches, ids, transactions.

Theory of operation. Each table has whole groups: all events of a life, a session or a batch. What is found
is small. Where digests of ids or transactions show that something may be wrong, a second, slower query finds
the rows (`passes`).

Must not know: Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from peeklock.pipeline.audit.checks import Check
from peeklock.pipeline.audit.facts import Facts
from peeklock.pipeline.audit.life_table import ARRIVES, ENDED, NUMBERED, LifeTable
from peeklock.pipeline.audit.lives import EXCUSED, judge
from peeklock.pipeline.audit.numbers import Fault, Run, read_runs
from peeklock.pipeline.audit.packing import NONE, Numbers, Truths
from peeklock.pipeline.audit.segment_rows import (
    BATCHES,
    COPIES,
    IDS,
    LIVES,
    SESSIONS,
    TRANSACTIONS,
    Columns,
    groups,
    summed_copies,
)
from peeklock.pipeline.audit.sessions import judge_sessions
from peeklock.pipeline.audit.vocabulary import KINDS

SAMPLES = 4
"""Maximum samples of one check in one entity from one task."""


@dataclass(slots=True)
class Found:
    """What a task finds."""

    lives: int = 0
    open_lives: int = 0
    excused: int = 0
    faults: list[Fault] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    batches: list[tuple[int, int, int, tuple[int, int, int] | None]] = field(default_factory=list)
    """By namespace: its number, batches, damaged ones, the first of these (number, events, last index)."""
    has_duplicates: bool = False
    """Whether two messages may have the same id within the window."""
    is_torn: bool = False
    """Whether a transaction may be in two batches."""
    copies: list[tuple[int, int, tuple[int, int, int, int]]] = field(default_factory=list)
    """By topic: its number, wrong messages, the first of these (batch, origin, made, difference)."""


def judge_tables(tables: Mapping[str, Columns], facts: Mapping[int, Facts], *, left_is_known: bool) -> Found:
    """Judge tables with the rows of one task; `left_is_known`: whether the messages left at the end are."""
    found = judge_rows(tables[LIVES], facts, left_is_known=left_is_known) if LIVES in tables else Found()
    if SESSIONS in tables:
        found.faults += judge_sessions(tables[SESSIONS], facts)
    if BATCHES in tables:
        found.batches = _batches(tables[BATCHES])
    if IDS in tables:
        found.has_duplicates = _has_duplicates(tables[IDS], facts)
    if TRANSACTIONS in tables:
        found.is_torn = _is_torn(tables[TRANSACTIONS])
    if COPIES in tables:
        found.copies = _copies(tables[COPIES])
    return found


def judge_rows(columns: Columns, facts: Mapping[int, Facts], *, left_is_known: bool) -> Found:
    """Judge rows of lives; each life is whole."""
    rows = LifeTable(columns, facts)
    codes = judge(rows, left_is_known=left_is_known)
    runs, faults = read_runs(rows)
    open_lives = rows.is_last & rows.current & ~rows.has_ended & ~np.isin(rows.after, (ENDED, NUMBERED))
    return Found(
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
    faults: list[Fault] = []
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


def _batches(rows: Columns) -> list[tuple[int, int, int, tuple[int, int, int] | None]]:
    """Count batches, and those that do not have the events from 0 on once each."""
    at, starts = groups(rows["namespace"], rows["batch"], rows["shard"])
    events = np.add.reduceat(rows["events"][at], starts)
    first = np.minimum.reduceat(rows["first"][at], starts)
    last = np.maximum.reduceat(rows["last"][at], starts)
    bad = (events != last + 1) | (first != 0)
    namespace, batch = rows["namespace"][at][starts], rows["batch"][at][starts]
    found = []
    for number in np.unique(namespace).tolist():
        here = namespace == number
        worst = np.flatnonzero(here & bad)
        sample = (int(batch[worst[0]]), int(events[worst[0]]), int(last[worst[0]])) if len(worst) else None
        found.append((number, int(np.count_nonzero(here)), len(worst), sample))
    return found


def _has_duplicates(rows: Columns, facts: Mapping[int, Facts]) -> bool:
    """Return whether an entity that detects duplicates may have taken an id twice within its window."""
    count = len(rows["place"])
    stretch, window_ms, back_ms = np.zeros(count, np.int64), np.full(count, NONE), np.zeros(count, np.int64)
    at_ms = rows["at_ms"].copy()
    for key in np.unique(rows["place"]).tolist():
        here, fact = rows["place"] == key, facts[key]
        order = rows["order"][here]
        stretch[here], back_ms[here] = fact.stretch(order), fact.back_ms
        at_ms[here] = fact.sure_ms(order, at_ms[here])
        marks = np.array([mark for mark, _ in fact.windows], np.int64)
        told = np.array([NONE, *(NONE if window is None else window for _, window in fact.windows)])
        window_ms[here] = told[np.searchsorted(marks, order, side="right")]
    detected = np.flatnonzero(window_ms != NONE)
    keys = rows["place"][detected], stretch[detected], rows["id"][detected]
    sorting = np.lexsort((rows["order"][detected], *keys[::-1]))
    same: Truths = np.ones(max(len(sorting) - 1, 0), bool)
    for values in keys:
        ordered = values[sorting]
        same &= ordered[1:] == ordered[:-1]
    earlier, later = detected[sorting[:-1]][same], detected[sorting[1:]][same]
    sure = (at_ms[earlier] != NONE) & (at_ms[later] != NONE)
    earlier, later = earlier[sure], later[sure]
    return bool(np.any(at_ms[earlier] + window_ms[later] > at_ms[later] + back_ms[later]))


def _is_torn(rows: Columns) -> bool:
    at, starts = groups(rows["transaction"])
    first, last = (
        np.minimum.reduceat(rows["first"][at], starts),
        np.maximum.reduceat(rows["last"][at], starts),
    )
    return bool(np.any(first != last))


def _copies(rows: Columns) -> list[tuple[int, int, tuple[int, int, int, int]]]:
    """Return the messages of topics of which more or fewer copies arrived than were made."""
    wrong = summed_copies(rows)
    found = []
    for topic in np.unique(wrong["topic"]).tolist():
        here = np.flatnonzero(wrong["topic"] == topic)
        batch, origin, made, difference = (
            int(wrong[name][here[0]]) for name in ("batch", "origin", "made", "copies")
        )
        found.append((topic, len(here), (batch, origin, made, difference)))
    return found
