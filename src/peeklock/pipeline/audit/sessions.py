"""The checks of sessions: who holds one and until when, and the order in which its messages are delivered.

Theory of operation. The events of a session are in one task, sorted. Its lock is that of the last event
before that took, renewed or released it. Sessions are distinguished by their keys, which the rows of older
releases lack.

A session has no holder from the end of its lock on; the log may report it as free a little later, and the
actions of a holder are wrong from that end on. A delivered message was available since the event before it,
since the broker's start, or since the last change of its entity. A later message that was delivered since
then overtook it.

Must not know: Spark.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from peeklock.pipeline.audit.checks import Check
from peeklock.pipeline.audit.facts import Facts
from peeklock.pipeline.audit.log import INDEX_BITS, batch_of
from peeklock.pipeline.audit.numbers import Fault
from peeklock.pipeline.audit.packing import NONE, Numbers, Truths

HOLDS, FREES = ("session_locked", "session_renewed"), "session_released"
_BY_HOLDER = ("delivered", "session_renewed", "session_state_set")
_SETTLES = ("completed", "abandoned", "deferred")
_KINDS = (
    "enqueued", "released", "lock_lapsed", "claimed", "claim_released", "session_locked", FREES, *_BY_HOLDER,
    *_SETTLES,
)  # fmt: skip
SESSION_KIND = {name: number for number, name in enumerate(_KINDS, start=1)}
BY_LINK, ACTIVE, LOCKED, BY_REQUEST = 1, 2, 4, 8
"""Flags: it has a link; its message was active; it has a lock token; nobody held the session."""


def judge_sessions(columns: Mapping[str, Numbers], facts: Mapping[int, Facts]) -> list[Fault]:
    """Return the faults in rows of whole sessions."""
    rows = _Sessions(columns, facts)
    codes = _codes(rows)
    faults: list[Fault] = []
    picked = np.flatnonzero(codes)
    picked = picked[np.argsort(rows.order[picked], kind="stable")]
    groups: dict[tuple[int, int, int], list[int]] = {}
    for row in picked.tolist():
        groups.setdefault((int(codes[row]), int(rows.place[row]), int(rows.stretch[row])), []).append(row)
    for (check, place, _), found in sorted(groups.items()):
        number = int(rows.number[found[0]])
        batch = batch_of(int(rows.order[found[0]]))
        faults.append((check, place, len(found), None if number == NONE else number, batch, ""))
    return faults


class _Sessions:
    """Rows sorted by session and order, with what is known of their places."""

    def __init__(self, columns: Mapping[str, Numbers], facts: Mapping[int, Facts]) -> None:
        stretch = np.zeros(len(columns["place"]), np.int64)
        for key in np.unique(columns["place"]).tolist():
            here = columns["place"] == key
            stretch[here] = facts[key].stretch(columns["order"][here])
        sorting = np.lexsort((columns["order"], columns["session"], stretch, columns["place"]))
        sort = {name: values[sorting] for name, values in columns.items()}
        self.place, self.session, self.number, self.order = (
            sort[name] for name in ("place", "session", "number", "order")
        )
        self.kind, self.flags, self.epoch = sort["kind"], sort["flags"], sort["epoch"]
        self.holder, self.at_ms, self.until_ms = sort["holder"], sort["at_ms"], sort["until_ms"]
        self.stretch = stretch[sorting]
        count = self.count = len(sorting)
        new = np.ones(count, bool)
        new[1:] = False
        for values in (self.place, self.stretch, self.session):
            new[1:] |= values[1:] != values[:-1]
        self.start: Numbers = np.maximum.accumulate(np.where(new, np.arange(count), 0))
        """The first row of the session of each row."""
        # Whether a lock may have been taken before this stretch of the log:
        self.excusable, self.changed = np.zeros(count, bool), np.zeros(count, np.int64)
        self.lock_ms = np.full(count, NONE)
        edges = np.append(np.flatnonzero(np.diff(self.place, prepend=self.place[:1] ^ 1)), count)
        for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            self._add_facts(slice(begin, end), facts[int(self.place[begin])])

    def _add_facts(self, rows: slice, fact: Facts) -> None:
        order = self.order[rows]
        stretch, epoch = self.stretch[rows], self.epoch[rows]
        begins = np.array([fact.begins(number) for number in range(int(stretch.max()) + 1)])[stretch]
        # A start of the broker ends all locks.
        started_here = (epoch != NONE) & (epoch << INDEX_BITS >= begins)
        self.excusable[rows] = (fact.late | (stretch > 0)) & ~started_here
        self.at_ms[rows] = fact.sure_ms(order, self.at_ms[rows])
        if fact.updates:
            updates = np.sort(np.array([0, *fact.updates]))
            self.changed[rows] = updates[np.searchsorted(updates, order, side="right") - 1]
        if fact.known:
            marks = np.array([entry.order for entry in fact.known])
            told = [NONE, *(NONE if entry.lock_ms is None else entry.lock_ms for entry in fact.known)]
            self.lock_ms[rows] = np.array(told)[np.searchsorted(marks, order, side="right")]

    def is_any(self, *names: str) -> Truths:
        return np.isin(self.kind, [SESSION_KIND[name] for name in names])

    def has(self, flag: int) -> Truths:
        is_set: Truths = (self.flags & flag) != 0
        return is_set

    def last(self, where: Truths) -> Numbers:
        """Return the last of some rows before each row in its session, -1 if there is none."""
        rows = np.arange(self.count)
        until = np.maximum.accumulate(np.where(where, rows, -1))
        before = np.append(-1, until[:-1])[: self.count]
        return np.where(before >= self.start, before, -1)

    def highest(self, where: Truths, by_number: Numbers) -> Numbers:
        """Return, of some rows before each row in its session, the one with the highest number.

        Args:
            by_number: the rows sorted by session, number and order.
        """
        rank = np.empty(self.count, np.int64)
        rank[by_number] = np.arange(self.count)
        until = np.maximum.accumulate(np.where(where, rank, -1))
        before = np.append(-1, until[:-1])[: self.count]
        # Sessions are sorted alike in both orders: what is from another session is from one before.
        return np.where(before >= self.start, by_number[before], -1)

    def since(self, by_number: Numbers) -> Numbers:
        """Return the order of the event before each one of the same message, NONE if there is none."""
        before = np.full(self.count, NONE)
        earlier, later = by_number[:-1], by_number[1:]
        same = (self.number[earlier] == self.number[later]) & (self.start[earlier] == self.start[later])
        before[later[same]] = self.order[earlier[same]]
        return before


def _codes(rows: _Sessions) -> Numbers:
    """Return for each row the number of the check that it violates, 0 if none."""
    codes = np.zeros(rows.count, np.int64)

    def put(where: Truths, check: int) -> None:
        codes[where & (codes == 0)] = check

    lock = rows.last(rows.is_any(*HOLDS, FREES))
    has_lock = lock >= 0
    held = has_lock & np.isin(rows.kind[lock], [SESSION_KIND[name] for name in HOLDS])
    held &= rows.epoch[lock] == rows.epoch
    put(rows.is_any("session_locked") & held, Check.SESSION_SHARED)
    # The holder before the log or a part of it is unknown.
    stranger = ~held & (has_lock | ~rows.excusable)
    stranger |= held & rows.has(BY_LINK) & (rows.holder[lock] != rows.holder)
    over = held & (rows.until_ms[lock] != NONE) & (rows.at_ms != NONE) & (rows.at_ms >= rows.until_ms[lock])
    by_request = rows.is_any("session_state_set") & rows.has(BY_REQUEST)
    put(by_request & held, Check.SESSION_SHARED)
    put(rows.is_any(*_BY_HOLDER) & (stranger | over) & ~by_request, Check.SESSION_SHARED)
    put(rows.is_any(*_SETTLES) & rows.has(LOCKED) & over, Check.LOCK_ENDED)
    delivered = rows.is_any("delivered") & rows.has(ACTIVE)
    put(delivered & _overtaken(rows, delivered), Check.SESSION_ORDER)
    told = rows.is_any(*HOLDS) & (rows.lock_ms != NONE) & (rows.at_ms != NONE) & (rows.until_ms != NONE)
    put(told & (rows.until_ms - rows.at_ms != rows.lock_ms), Check.WRONG_LOCK_DURATION)
    return codes


def _overtaken(rows: _Sessions, delivered: Truths) -> Truths:
    """Return where a later message was delivered since the message of a row was available."""
    by_number = np.lexsort((rows.order, rows.number, rows.start))
    epoch = np.where(rows.epoch == NONE, NONE, rows.epoch << INDEX_BITS)
    since = np.maximum(np.maximum(rows.since(by_number), rows.changed), epoch)
    overtaken = np.zeros(rows.count, bool)
    for other in (rows.last(delivered), rows.highest(delivered, by_number)):
        overtaken |= (other >= 0) & (rows.number[other] > rows.number) & (rows.order[other] > since)
    return overtaken
