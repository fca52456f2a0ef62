"""Events of messages as sorted arrays: the rows of one task, with each life together and in order.

Owns: the columns, their packing, and what a row shows of itself, of the row before and of its life. Must not
know: Spark, and what is right.

A move is an event of the life that ends, and another life must begin. So each move adds a row for the message
that must begin, an *expectation*, sorted after all its events. The messages left at the end, if they are
known, are added as rows in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from peeklock.pipeline.audit.facts import UNLIMITED_MS, Facts
from peeklock.pipeline.audit.log import INDEX_BITS
from peeklock.pipeline.audit.packing import NONE, Numbers, Truths
from peeklock.pipeline.audit.vocabulary import KINDS

KIND = {name: number for number, name in enumerate(KINDS, start=1)}
ARRIVES, ARRIVES_OR_IS_KNOWN, LEFT = 20, 21, 22
"""Rows that are not events: a dead letter or an activated message must arrive; a forwarded one must arrive
unless it was dropped as a duplicate; the message is left at the end."""

BEGINS = ("enqueued", "scheduled")
ENDS = (
    "completed", "forwarded", "dead_lettered", "expired", "activated", "purged", "cancelled", "unmatched",
)  # fmt: skip
PASSES_ON = ("forwarded", "dead_lettered", "unmatched")
AVAILABLE, DEFERRED, SCHEDULED, LOCKED, CLAIMED, GOING, ENDED, NUMBERED = range(8)
"""Where an event leaves its message. GOING: delivered in mode receive-and-delete. NUMBERED: only a number,
issued in a transaction; its message is scheduled with the commit, or never."""

STATES = ("active", "deferred", "scheduled")
"""The column `state_before`; the next number stands for none."""

FLAGS = (
    "has_token", "in_session", "by_cursor", "has_reason", "is_ahead", "is_exhausted", "has_partition",
    "has_related",
)  # fmt: skip
"""Facts of an event, a bit each. `is_exhausted`: its reason is MaxDeliveryCountExceeded. `is_ahead`: it is
stored under a number that was issued before."""

STATE_AT, FLAGS_AT, COUNT_AT = 5, 8, 16
"""Positions in `bits`: kind, state before, flags, delivery count."""

COLUMNS = (
    "place", "number", "order", "bits", "token", "at_ms", "until_ms", "expires_ms", "due_ms", "enqueued_ms",
    "epoch", "grace_ms", "same",
)  # fmt: skip
"""`same` is a digest of what never changes in a life but its times."""

UNTOLD = -1
"""In `grace_ms`: the log does not have the grace; an older broker wrote it, or the start is not in it."""

LAST = 1 << 62
"""Place in the order of a row that is not an event."""


class LifeTable:
    """Rows of lives, sorted by place, stretch, number and order."""

    def __init__(self, rows: Mapping[str, Numbers], facts: Mapping[int, Facts]) -> None:
        """Sort rows with `COLUMNS`."""
        self._load(rows)
        keys, place = np.unique(self.place, return_inverse=True)
        self.keys = keys
        self.facts = [facts[int(key)] for key in keys]
        stretch = np.zeros(self.count, np.int64)
        for at, fact in enumerate(self.facts):
            if fact.bounds:
                here = place == at
                stretch[here] = fact.stretch(self.order[here])
        kind = self.bits & 31
        rank = np.where(kind < ARRIVES, self.order, LAST + kind)
        sorting = np.lexsort((rank, self.number, stretch, place))
        for name in COLUMNS:
            setattr(self, name, getattr(self, name)[sorting])
        self.at, self.stretch = place[sorting], stretch[sorting]
        self._unpack()
        self._link()
        self._add_facts()

    def _load(self, rows: Mapping[str, Numbers]) -> None:
        self.count = len(rows["place"])
        self.place, self.number, self.order = rows["place"], rows["number"], rows["order"]
        self.bits, self.token, self.at_ms = rows["bits"], rows["token"], rows["at_ms"]
        self.until_ms, self.expires_ms, self.due_ms = rows["until_ms"], rows["expires_ms"], rows["due_ms"]
        self.enqueued_ms, self.epoch = rows["enqueued_ms"], rows["epoch"]
        self.grace_ms, self.same = rows["grace_ms"], rows["same"]

    def _unpack(self) -> None:
        self.kind = (self.bits & 31).astype(np.int8)
        self.state = (self.bits >> STATE_AT & 7).astype(np.int8)
        self.attempts = self.bits >> COUNT_AT
        """The delivery count after the event."""
        self.is_event: Truths = self.kind < ARRIVES
        self.begins = self.is_any(BEGINS)
        self.ends = self.is_any(ENDS)
        self.after = self._after()

    def _after(self) -> Numbers:
        """Return where each event leaves its message."""
        after = np.where(self.state == STATES.index("deferred"), DEFERRED, AVAILABLE)
        after[self.ends] = ENDED
        for name, left in (
            ("enqueued", AVAILABLE),
            ("renewed", LOCKED),
            ("deferred", DEFERRED),
            ("claimed", CLAIMED),
            ("scheduled", SCHEDULED),
            ("number_issued", NUMBERED),
        ):
            after[self.is_a(name)] = left
        delivered = self.is_a("delivered")
        after[delivered] = np.where(self.has("has_token")[delivered], LOCKED, GOING)
        return after

    def _link(self) -> None:
        """Find lives, and what came before each row in its life."""
        count = self.count
        new = np.ones(count, bool)
        new[1:] = (
            (self.number[1:] != self.number[:-1])
            | (self.at[1:] != self.at[:-1])
            | (self.stretch[1:] != self.stretch[:-1])
        )
        self.is_first: Truths = new
        self.has_next: Truths = np.append(~new[1:], False)[:count]
        rows = np.arange(count)
        starts = np.flatnonzero(new)
        life = np.cumsum(new) - 1

        def first(where: Truths) -> Numbers:
            """Return the first of some rows of the same life, `count` if there is none."""
            if not count:
                return rows
            return np.asarray(np.minimum.reduceat(np.where(where, rows, count), starts)[life])

        begun, ended = first(self.begins), first(self.ends & self.is_event)
        self.has_begun: Truths = begun < rows
        self.begun_at = np.minimum(begun, max(count - 1, 0))
        """The row of the beginning, where `has_begun`."""
        self.has_ended: Truths = ended < rows
        self.was_completed: Truths = first(self.is_a("completed")) < rows
        moves = np.append(self.is_any(PASSES_ON)[1:], False)[:count]
        waits = (self.expires_ms == NONE) & np.append(self.is_a("expired")[1:], False)[:count]
        passes: Truths = self.is_a("enqueued") & self.has_next & (moves | waits)
        self.passes = passes
        """It arrived and moved on, maybe some commits later, or expired before that: its times are not
        of this place."""
        self.is_last: Truths = self.is_event & ~(self.has_next & np.append(self.is_event[1:], False)[:count])

    def _add_facts(self) -> None:
        """Add what is known of the places of the rows."""
        at, facts = self.at, self.facts

        def each(values: Iterable[int]) -> Numbers:
            return np.fromiter(values, np.int64, len(facts))[at]

        self.in_sub_queue: Truths = each(fact.is_sub_queue for fact in facts) > 0
        self.current: Truths = self.stretch == each(len(fact.bounds) for fact in facts)
        self.excusable: Truths = (each(fact.late for fact in facts) > 0) | (self.stretch > 0)
        self.horizon_ms = each(fact.horizon_ms for fact in facts)
        self.last_epoch = each(fact.last_epoch for fact in facts)
        self.started_ms = each(fact.started_ms for fact in facts)
        self.back_ms = each(fact.back_ms for fact in facts)
        self.sure_ms = self.at_ms.copy()
        self.lock_ms, self.count_max = np.full(self.count, NONE), np.full(self.count, NONE)
        self.ttl_ms, self.dead_letters_expired = np.full(self.count, NONE), np.full(self.count, NONE)
        self.last_ttl_ms, self.settled_ms = np.full(self.count, NONE), np.full(self.count, NONE)
        """The default time-to-live at the end, and since when."""
        edges = np.searchsorted(at, np.arange(len(facts) + 1))
        for here, fact in enumerate(facts):
            rows = slice(int(edges[here]), int(edges[here + 1]))
            self.sure_ms[rows] = fact.sure_ms(self.order[rows], self.at_ms[rows])
            if fact.known:
                self._add_settings(rows, fact)

    def _add_settings(self, rows: slice, fact: Facts) -> None:
        known = fact.known
        marks = np.array([entry.order for entry in known])
        of = np.searchsorted(marks, self.order[rows], side="right")

        def each(values: Iterable[int | None]) -> Numbers:
            told = (NONE if value is None else int(value) for value in values)
            return np.fromiter((NONE, *told), np.int64, len(known) + 1)[of]

        self.lock_ms[rows] = each(entry.lock_ms for entry in known)
        self.count_max[rows] = each(entry.count_max for entry in known)
        self.ttl_ms[rows] = each(entry.ttl_ms for entry in known)
        self.dead_letters_expired[rows] = each(entry.dead_letters_expired for entry in known)
        last = known[-1]
        if last.ttl_ms is not None:
            self.last_ttl_ms[rows], self.settled_ms[rows] = last.ttl_ms, last.at_ms

    def has(self, flag: str) -> Truths:
        """Return whether a flag is set."""
        is_set: Truths = (self.bits & (1 << FLAGS_AT + FLAGS.index(flag))) != 0
        return is_set

    def is_any(self, names: Iterable[str]) -> Truths:
        """Return whether it is one of these events."""
        return np.isin(self.kind, [KIND[name] for name in names])

    def is_a(self, name: str) -> Truths:
        is_it: Truths = self.kind == KIND[name]
        return is_it

    def was(self, values: Numbers) -> Numbers:
        """Return the values of the rows before, NONE in the first row of a life."""
        before = np.full(self.count, NONE)
        before[1:] = values[:-1]
        before[self.is_first] = NONE
        return before

    def expires(self, ttl_ms: Numbers) -> Numbers:
        """Return when messages expire, by their own time-to-live or a default; NONE = unknown or never."""
        has_default = (ttl_ms != NONE) & (ttl_ms < UNLIMITED_MS) & (self.enqueued_ms != NONE)
        default_ms = np.where(has_default, self.enqueued_ms + np.where(has_default, ttl_ms, 0), NONE)
        return np.where(self.expires_ms != NONE, self.expires_ms, default_ms)

    def batch(self) -> Numbers:
        """Return the batch of each event, or of the move that a row expects."""
        return self.order >> INDEX_BITS
