"""The checks of single lives: each event of a message against the one before, and against what is known.

Theory of operation. An event alone has the state in which it leaves its message (`after`). So nearly all
violations show between an event and the one before it of the same message. `LifeTable` has the rows of many
lives, sorted; each check is a condition over whole arrays, and the first one that an event violates counts. A
restart ends all locks: a lock counts only within its epoch.

The lock of a broken connection lasts for the connection's grace. A lock belongs to the connection of its
delivery, and from a renewal on to the connection of the renewal. Source: wire contract C26.

Must not know: Spark.
"""

from __future__ import annotations

import numpy as np

from peeklock.pipeline.audit.checks import Check
from peeklock.pipeline.audit.facts import UNLIMITED_MS
from peeklock.pipeline.audit.life_table import (
    ARRIVES,
    ARRIVES_OR_IS_KNOWN,
    AVAILABLE,
    BEGINS,
    CLAIMED,
    ENDED,
    GOING,
    LEFT,
    LOCKED,
    NUMBERED,
    SCHEDULED,
    STATES,
    UNTOLD,
    LifeTable,
)
from peeklock.pipeline.audit.log import INDEX_BITS
from peeklock.pipeline.audit.packing import NONE, Numbers, Truths

OVERDUE_MS = 60_000
"""Maximum delay of a change that is due by the clock: sweeps go in slices, behind clients. Our choice."""

LATE_MS = 2_000
"""Maximum delay of a lapse after its grace: locks are released in slices. Our choice."""

EXCUSED = 100
"""Code of an event whose life may have begun before the log."""

_GIVES_NUMBER = (*BEGINS, "number_issued")
_COUNTED = ("abandoned", "deferred", "lock_lapsed")
_BY_HOLDER = ("completed", "abandoned", "deferred", "renewed", "released", "lock_lapsed")
_PASSES_OVER_LOCKED = ("expired", "purged", "forwarded", "claimed", "unmatched")


class _Codes:
    """The number of the first check that each row violates, 0 if none."""

    def __init__(self, count: int) -> None:
        self.found = np.zeros(count, np.int16)

    def put(self, where: Truths, check: int) -> None:
        """Name the check for the rows that have none yet."""
        self.found[where & (self.found == 0)] = check


def judge(rows: LifeTable, *, left_is_known: bool) -> Numbers:
    """Return for each row the number of the first check that it violates, 0 if none.

    Args:
        left_is_known: whether there are rows for the messages left at the end.
    """
    codes = _Codes(rows.count)
    only_number = ~rows.is_first & (rows.was(rows.after) == NUMBERED)
    missing = rows.is_first | only_number
    _judge_left(rows, codes, missing)
    _judge_expected(rows, codes, left_is_known)
    _judge_ends(rows, codes, missing, only_number)
    rest = rows.is_event & (codes.found == 0)
    _judge_transitions(rows, codes, rest & ~rows.is_first)
    _judge_alone(rows, codes, rest)
    _judge_settings(rows, codes, rest)
    _judge_against_last(rows, codes, rest & ~rows.is_first)
    _judge_last(rows, codes, rest, left_is_known)
    return codes.found.astype(np.int64)


def _judge_left(rows: LifeTable, codes: _Codes, missing: Truths) -> None:
    """Judge messages that are left at the end."""
    left = rows.kind == LEFT
    codes.put(left & rows.has_ended, Check.LEFT_BEHIND)
    codes.put(left & missing & rows.excusable, EXCUSED)
    codes.put(left & missing, Check.NO_BEGINNING)


def _judge_expected(rows: LifeTable, codes: _Codes, left_is_known: bool) -> None:
    """Judge messages that must begin because another one moved."""
    arrives, or_known = rows.kind == ARRIVES, rows.kind == ARRIVES_OR_IS_KNOWN
    begun_in = rows.order[rows.begun_at] >> INDEX_BITS if rows.count else rows.order
    came_in = rows.batch()
    codes.put(or_known & ~rows.has_begun & rows.excusable, EXCUSED)
    codes.put(or_known & (~rows.has_begun | (begun_in > came_in)), Check.FORWARD_LOST)
    lost = arrives & (~rows.has_begun | (begun_in != came_in))
    codes.put(lost & rows.in_sub_queue, Check.DEAD_LETTER_LOST)
    codes.put(lost, Check.FORWARD_LOST)
    if rows.count:
        other_count = rows.attempts[rows.begun_at] != rows.attempts
        codes.put(arrives & rows.in_sub_queue & other_count, Check.WRONG_COUNT)
    if left_is_known:
        gone = rows.current & ~rows.has_ended & ~rows.has_next
        codes.put((arrives | or_known) & gone, Check.LOST)


def _judge_ends(rows: LifeTable, codes: _Codes, missing: Truths, only_number: Truths) -> None:
    """Judge second beginnings, events after an end, and events without a beginning."""
    is_event, ended = rows.is_event, rows.is_event & rows.has_ended
    gives_number = rows.is_any(_GIVES_NUMBER)
    promised = only_number & rows.is_a("scheduled") & rows.has("is_ahead")
    codes.put(is_event & gives_number & ~rows.is_first & ~promised, Check.NUMBER_TWICE)
    delivered = ended & rows.is_a("delivered")
    codes.put(delivered & rows.was_completed, Check.DELIVERED_AFTER_COMPLETION)
    codes.put(delivered, Check.DELIVERED_AFTER_END)
    codes.put(ended & (rows.ends | rows.is_any(_BY_HOLDER)), Check.DOUBLE_SETTLEMENT)
    codes.put(ended, Check.CHANGED_AFTER_END)
    without = is_event & missing & ~gives_number
    codes.put(without & rows.excusable, EXCUSED)
    codes.put(without, Check.NO_BEGINNING)


def _judge_transitions(rows: LifeTable, codes: _Codes, rest: Truths) -> None:
    """Judge events by the state that they find; the first branch that an event takes decides."""
    was_after = rows.was(rows.after)
    # After a gap the epoch is unknown until the next one.
    held = (was_after == LOCKED) & (rows.was(rows.epoch) == rows.epoch)
    claimed, scheduled = was_after == CLAIMED, was_after == SCHEDULED
    committed = rows.is_a("completed") & rows.has("by_cursor")
    left = rest.copy()

    def branch(where: Truths) -> Truths:
        taken: Truths = left & where
        left[taken] = False
        return taken

    codes.put(branch(was_after == GOING) & ~rows.is_a("completed"), Check.DELETION_MISSING)
    branch(rows.begins)
    set_aside = rows.is_a("deferred") & rows.has("has_reason")
    codes.put(branch(rows.is_any(("activated", "cancelled"))) & ~scheduled, Check.WRONG_STATE)
    codes.put(branch(committed | rows.is_a("claim_released")) & ~claimed, Check.CLAIM_BROKEN)
    codes.put(branch(claimed), Check.CLAIM_BROKEN)
    codes.put(branch(scheduled), Check.WRONG_STATE)
    codes.put(branch(rows.is_a("delivered")) & held, Check.OVERLAPPING_LOCKS)
    codes.put(branch(rows.is_any(_PASSES_OVER_LOCKED) | set_aside) & held, Check.TAKEN_UNDER_LOCK)
    branch(set_aside)
    by_holder = branch(rows.is_any(_BY_HOLDER) | (rows.is_a("dead_lettered") & held))
    other_lock = rows.has("has_token") & (rows.token != rows.was(rows.token))
    codes.put(by_holder & (~held | other_lock), Check.NO_LOCK)
    by_holder &= ~rows.is_a("released") & ~rows.has("in_session")
    lapsed = rows.is_a("lock_lapsed")
    _judge_lapses(rows, codes, by_holder & lapsed)
    # The log lacks links closed before their connection broke, so only a renewed lock surely belongs to the
    # connection.
    was_grace_ms, sure = rows.was(rows.grace_ms), rows.sure_ms != NONE
    grace_is_over = _was_renewed(rows) & (was_grace_ms >= 0) & (rows.sure_ms >= was_grace_ms)
    over = sure & ((rows.sure_ms >= rows.was(rows.until_ms)) | grace_is_over)
    codes.put(by_holder & ~lapsed & over, Check.LOCK_ENDED)


def _was_renewed(rows: LifeTable) -> Truths:
    renewed = rows.was(rows.is_a("renewed").astype(np.int64)) == 1
    return np.asarray(renewed)


def _judge_lapses(rows: LifeTable, codes: _Codes, lapsed: Truths) -> None:
    """Judge lapses of messages' locks: at their own end or at the end of their connection's grace (C26)."""
    at_ms, limit_ms, grace_ms = rows.sure_ms, rows.was(rows.until_ms), rows.was(rows.grace_ms)
    sure, reason = lapsed & (at_ms != NONE), rows.has("has_reason")
    grace_is_over = (grace_ms >= 0) & (at_ms >= grace_ms)
    with_grace = reason & ((grace_ms == UNTOLD) | grace_is_over)
    early = sure & (at_ms < limit_ms)
    codes.put(early & ~with_grace, Check.LOCK_CUT_SHORT)
    codes.put(early & reason & grace_is_over & (at_ms > grace_ms + OVERDUE_MS), Check.LOCK_OVERDUE)
    # A broker that is late may release locks in another order than they were due.
    in_time = at_ms <= limit_ms + LATE_MS
    outlasts = (grace_ms >= 0) & (limit_ms > grace_ms + LATE_MS)
    kept = sure & ~early & _was_renewed(rows) & outlasts & in_time & ~reason
    codes.put(kept, Check.LOCK_OVERDUE)


def _judge_alone(rows: LifeTable, codes: _Codes, rest: Truths) -> None:
    """Judge what an event shows whatever came before."""
    active = rows.state == STATES.index("active")
    sure = rest & (rows.sure_ms != NONE)
    delivered, expired = rows.is_a("delivered"), rest & rows.is_a("expired")
    codes.put(rest & rows.begins & ~rows.in_sub_queue & (rows.attempts != 0), Check.WRONG_COUNT)
    codes.put(rest & delivered & (rows.state == STATES.index("scheduled")), Check.WRONG_STATE)
    expires_ms = rows.expires(rows.ttl_ms)
    over = (expires_ms != NONE) & (expires_ms <= rows.sure_ms)
    codes.put(sure & delivered & ~rows.in_sub_queue & active & over, Check.DELIVERED_EXPIRED)
    codes.put(sure & expired & (rows.sure_ms + rows.back_ms < expires_ms), Check.EXPIRED_EARLY)
    codes.put(expired & (rows.expires_ms == NONE) & (rows.ttl_ms == UNLIMITED_MS), Check.EXPIRED_EARLY)
    codes.put(sure & rows.is_a("activated") & (rows.sure_ms < rows.due_ms), Check.ACTIVATED_EARLY)


def _judge_settings(rows: LifeTable, codes: _Codes, rest: Truths) -> None:
    """Judge events by the settings of their entity."""
    limit = rows.count_max
    delivered = rows.is_a("delivered")
    has_limit = rest & (limit != NONE) & ~rows.in_sub_queue
    spent = has_limit & (rows.attempts >= limit)
    codes.put(spent & delivered, Check.DELIVERED_TOO_OFTEN)
    codes.put(has_limit & rows.has("is_exhausted") & (rows.attempts < limit), Check.DEAD_LETTERED_EARLY)
    is_over = rows.current & (rows.at_ms + OVERDUE_MS <= rows.horizon_ms) & (rows.epoch == rows.last_epoch)
    kept = spent & rows.is_any(_COUNTED) & rows.is_last & is_over
    codes.put(kept, Check.DELIVERED_TOO_OFTEN)
    locks = (rest & rows.has("has_token") & ~rows.has("in_session") & (delivered | rows.is_a("renewed"))) & (
        rows.lock_ms != NONE
    )
    codes.put(locks & (rows.until_ms - rows.at_ms > rows.lock_ms), Check.WRONG_LOCK_DURATION)
    sure = rows.sure_ms != NONE
    codes.put(locks & sure & (rows.until_ms - rows.at_ms < rows.lock_ms), Check.WRONG_LOCK_DURATION)
    arrived = rest & rows.is_a("enqueued") & ~rows.passes & (rows.expires_ms != NONE) & (rows.ttl_ms != NONE)
    codes.put(arrived & (rows.expires_ms - rows.enqueued_ms > rows.ttl_ms), Check.TTL_OVER_DEFAULT)
    expired = rest & rows.is_a("expired") & (rows.dead_letters_expired != NONE)
    moved = rows.has("has_related")
    codes.put(expired & (moved != (rows.dead_letters_expired == 1)), Check.WRONG_EXPIRY)


def _judge_against_last(rows: LifeTable, codes: _Codes, rest: Truths) -> None:
    """Judge events by the one before."""
    by_request = rows.is_a("deferred") & rows.has("has_reason")
    counted = rows.is_any(_COUNTED) & ~rows.in_sub_queue & ~by_request
    codes.put(rest & (rows.attempts != rows.was(rows.attempts) + counted), Check.WRONG_COUNT)
    state_after = np.where(rows.state < len(STATES), rows.state, 0)
    for name, state in (("enqueued", 0), ("deferred", 1), ("scheduled", 2)):
        state_after[rows.is_a(name)] = state
    was_numbered = rows.was(rows.after) == NUMBERED
    told = rest & (rows.state < len(STATES)) & ~was_numbered
    codes.put(told & (rows.state != rows.was(state_after)), Check.WRONG_STATE_BEFORE)
    same_epoch = rest & (rows.epoch != NONE) & (rows.was(rows.epoch) == rows.epoch)
    codes.put(same_epoch & (rows.at_ms < rows.was(rows.at_ms)), Check.TIME_BACK)
    delivered = rest & rows.is_a("delivered") & rows.has("has_token")
    codes.put(delivered & (rows.token == rows.was(rows.token)), Check.TOKEN_REUSED)
    compared = rest & ~was_numbered & ~(rows.was(rows.passes.astype(np.int64)) == 1)
    for values in (rows.same, rows.enqueued_ms, rows.expires_ms):
        codes.put(compared & (values != rows.was(values)), Check.IDENTITY_CHANGED)


def _judge_last(rows: LifeTable, codes: _Codes, rest: Truths, left_is_known: bool) -> None:
    """Judge the last event of each life by the events that should follow."""
    last = rest & rows.is_last
    codes.put(last & (rows.after == GOING), Check.DELETION_MISSING)
    begun = rows.has_begun | rows.begins
    follows = np.append(rows.kind[1:], 0)[: rows.count]
    unexplained = ~rows.has_next | (follows == LEFT)
    codes.put(last & rows.in_sub_queue & begun & unexplained, Check.DEAD_LETTER_UNEXPLAINED)
    current = last & rows.current
    if left_is_known:
        # An expectation after the last event is judged instead.
        lost = current & (rows.after != ENDED) & ~rows.has_next & (rows.after != NUMBERED)
        codes.put(lost, Check.LOST)
    available = (rows.after == AVAILABLE) & ~rows.in_sub_queue
    expires_ms = rows.expires(rows.last_ttl_ms)
    # Since the limit and since the last start: a broker that was down could do nothing.
    since_ms = np.maximum(rows.started_ms, np.where(rows.expires_ms == NONE, rows.settled_ms, NONE))
    late = (expires_ms != NONE) & (np.maximum(expires_ms, since_ms) + OVERDUE_MS <= rows.horizon_ms)
    codes.put(current & available & late, Check.EXPIRY_OVERDUE)
    locked = (rows.after == LOCKED) & ~rows.has("in_session") & (rows.epoch == rows.last_epoch)
    ends_ms = rows.until_ms
    late = (ends_ms != NONE) & (np.maximum(ends_ms, rows.started_ms) + OVERDUE_MS <= rows.horizon_ms)
    codes.put(current & locked & late, Check.LOCK_OVERDUE)
