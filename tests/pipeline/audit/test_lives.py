"""The checks of lives and numbers over a few rows, without Spark."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from peeklock.broker.vocabulary.events import EventType
from peeklock.pipeline.audit.checks import Check, Verdict
from peeklock.pipeline.audit.facts import UNLIMITED_MS, Facts, Known, gather
from peeklock.pipeline.audit.judging import judge_rows
from peeklock.pipeline.audit.life_table import COLUMNS, COUNT_AT, FLAGS, FLAGS_AT, KIND, STATE_AT
from peeklock.pipeline.audit.log import Gap, Log, LoggedSettings, Place, order_of
from peeklock.pipeline.audit.numbers import Run, judge_runs
from peeklock.pipeline.audit.packing import NONE
from peeklock.pipeline.audit.vocabulary import KNOWN

ORDERS = 7
"""The key of the place `orders`."""


def facts(*bounds: int, known: list[Known] | None = None) -> dict[int, Facts]:
    return {ORDERS: Facts("test", False, list(bounds), False, 1_000_000, 1, 0, 0, [], known or [])}


def row(batch: int, kind: str, number: int = 1, *flags: str, count: int = 0, **given: int) -> dict[str, int]:
    """Return an event at the second of its batch."""
    bits = KIND[kind] | 0 << STATE_AT | count << COUNT_AT
    for flag in flags:
        bits |= 1 << FLAGS_AT + FLAGS.index(flag)
    at = {"place": ORDERS, "number": number, "order": order_of(batch), "bits": bits, "at_ms": batch * 1000}
    token = 1 if "has_token" in flags else 0
    return {
        "token": token,
        "epoch": 1,
        "grace_ms": -1,
        "same": 1,
        "enqueued_ms": 1000 * number,
        **at,
        **given,
    }


def found(rows: list[dict[str, int]], known: dict[int, Facts]) -> list[tuple[Check, int]]:
    """Judge rows; return checks and numbers."""
    columns = {name: np.array([each.get(name, NONE) for each in rows]) for name in COLUMNS}
    faults = judge_rows(columns, known, left_is_known=False).faults
    return sorted((Check(check), number or 0) for check, _, _, number, _, _ in faults)


LIFE = [
    row(1, "enqueued"),
    row(2, "delivered", 1, "has_token", until_ms=62_000),
    row(3, "completed", 1, "has_token"),
]


class TestByRequest:
    """Messages that an operator settles by their numbers."""

    def test_nobody_holds_what_is_deferred_by_request_and_it_is_not_counted(self) -> None:
        rows = [row(1, "enqueued"), row(2, "deferred", 1, "has_reason"), row(3, "purged")]
        rows[2]["bits"] |= 1 << STATE_AT
        assert found(rows, facts()) == []
        counted = [row(1, "enqueued"), row(2, "deferred", 1, "has_reason", count=1)]
        assert found(counted, facts()) == [(Check.WRONG_COUNT, 1)]

    def test_what_a_receiver_holds_is_not_taken(self) -> None:
        rows = [*LIFE[:2], row(3, "deferred", 1, "has_reason")]
        assert found(rows, facts()) == [(Check.TAKEN_UNDER_LOCK, 1)]

    def test_a_receiver_needs_its_lock(self) -> None:
        rows = [row(1, "enqueued"), row(2, "deferred", 1, "has_token", count=1)]
        assert found(rows, facts()) == [(Check.NO_LOCK, 1)]


class TestSettings:
    def test_a_setting_counts_from_its_event_on_and_not_before(self) -> None:
        known = [Known(order_of(1), 0, 60_000, 10, UNLIMITED_MS), Known(order_of(3), 0, 30_000, 10)]
        assert found(LIFE, facts(known=known)) == []
        known = [Known(order_of(1), 0, 60_000, 10, UNLIMITED_MS), Known(order_of(2), 0, 30_000, 10)]
        assert found(LIFE, facts(known=known)) == [(Check.WRONG_LOCK_DURATION, 1)]
        assert found(LIFE, facts()) == []

    def test_settings_are_unknown_after_a_gap_until_the_next_event_of_the_entity(self) -> None:
        log = made_log()
        place = log.places[ORDERS]
        place.settings = [settings(1, lock_ms=60_000), settings(9, lock_ms=30_000)]
        log.gaps = [Gap("test", 4, 6, "given up")]
        known = gather(log, {"test": 0})[ORDERS].known
        assert [(entry.order, entry.lock_ms) for entry in known] == [
            (order_of(1), 60_000),
            (order_of(7), None),
            (order_of(9), 30_000),
        ]

    def test_a_subscription_has_the_shorter_time_to_live_of_its_topic(self) -> None:
        log = made_log()
        log.places = {
            1: Place(1, "test", "news", settings=[settings(1, ttl_ms=5_000)]),
            2: Place(2, "test", "news/Subscriptions/all", settings=[settings(1), settings(4, ttl_ms=1_000)]),
            3: Place(3, "test", "news/Subscriptions/all/$deadletterqueue"),
        }
        known = gather(log, {"test": 0})
        assert [entry.ttl_ms for entry in known[2].known] == [5_000, 1_000]
        assert [entry.ttl_ms for entry in known[3].known] == [None, None]


class TestStretches:
    def test_nothing_is_concluded_from_one_stretch_to_another(self) -> None:
        rows = [*LIFE, row(5, "delivered", 1, "has_token", until_ms=65_000)]
        assert found(rows, facts()) == [(Check.DELIVERED_AFTER_COMPLETION, 1)]
        assert found(rows, facts(order_of(4))) == []

    def test_a_rare_number_has_no_neighbours_in_another_stretch(self) -> None:
        rows = [row(1, "enqueued", 1), row(2, "enqueued", 2), row(5, "enqueued", 9)]
        assert found(rows, facts()) == [(Check.NUMBER_GAP, 3)]
        assert found(rows, facts(order_of(4))) == []


def test_a_message_that_only_passes_may_have_other_times() -> None:
    """It is stamped where it is kept, and may be forwarded some commits after it arrived."""
    passed = row(3, "forwarded", expires_ms=9_000, enqueued_ms=1_004)
    assert found([row(1, "enqueued"), passed], facts()) == []
    expired = row(3, "expired", expires_ms=2_000, enqueued_ms=1_004)
    assert found([row(1, "enqueued"), expired], facts()) == []
    assert found([row(1, "enqueued", expires_ms=1_500), expired], facts()) == [(Check.IDENTITY_CHANGED, 1)]
    changed = row(3, "purged", expires_ms=9_000)
    assert found([row(1, "enqueued"), changed], facts()) == [(Check.IDENTITY_CHANGED, 1)]


class TestNumbers:
    @pytest.mark.parametrize(
        ("runs", "checks"),
        [
            ([(1, 9, 1, 9), (10, 20, 10, 20)], []),
            ([(1, 9, 1, 9), (11, 20, 10, 20)], [Check.NUMBER_GAP]),
            ([(1, 9, 12, 19), (10, 20, 10, 20)], [Check.NUMBER_ORDER]),
            ([((1 << 63) - 5, (1 << 63) - 1, 1, 5), (0, 20, 6, 20)], []),
            ([((1 << 63) - 5, (1 << 63) - 2, 1, 5), (0, 20, 6, 20)], [Check.NUMBER_GAP]),
        ],
        ids=["joined", "apart", "overtaken", "rolled over", "apart at the roll-over"],
    )
    def test_runs_join_also_where_numbers_begin_again(
        self, runs: list[tuple[int, int, int, int]], checks: list[Check]
    ) -> None:
        """Req: S-03"""
        verdict = Verdict(())
        given = [
            Run(ORDERS, 0, -1, first, last, order_of(begins), order_of(ends), NONE, NONE)
            for first, last, begins, ends in runs
        ]
        judge_runs(made_log(), verdict, given)
        assert list(verdict.findings) == checks

    def test_an_enqueued_time_that_goes_back_from_one_run_to_the_next_is_found(self) -> None:
        verdict = Verdict(())
        before = Run(ORDERS, 0, -1, 1, 9, order_of(1), order_of(9), 1_000, 9_000)
        after = Run(ORDERS, 0, -1, 10, 19, order_of(10), order_of(19), 8_999, 19_000)
        judge_runs(made_log(), verdict, [after, before])
        assert list(verdict.findings) == [Check.ENQUEUED_BACK]


def test_all_types_of_events_are_known() -> None:
    assert set(KNOWN) == {kind.name.lower() for kind in EventType}


def made_log() -> Log:
    """Return a log with one place and no events."""
    place = Place(ORDERS, "test", "orders")
    return Log(cast(Any, None), {ORDERS: place}, [], [], {}, {"test": 0}, {"test": 1})


def settings(batch: int, *, lock_ms: int = 60_000, ttl_ms: int | None = None) -> LoggedSettings:
    return LoggedSettings(order_of(batch), batch * 1000, False, 0, ttl_ms, False, lock_ms, 10, False)
