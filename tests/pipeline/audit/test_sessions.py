"""The checks of sessions over a few rows, without Spark."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from peeklock.pipeline.audit.checks import Check
from peeklock.pipeline.audit.facts import Facts, Known
from peeklock.pipeline.audit.log import order_of
from peeklock.pipeline.audit.packing import NONE
from peeklock.pipeline.audit.sessions import ACTIVE, BY_LINK, BY_REQUEST, LOCKED, SESSION_KIND, judge_sessions

CARTS = 7
"""The key of the place `carts`."""

Event = dict[str, int]


def facts(*bounds: int, late: bool = False, known: list[Known] | None = None) -> dict[int, Facts]:
    return {CARTS: Facts("test", False, list(bounds), late, 1_000_000, 1, 0, 0, [], known or [])}


def event(batch: int, kind: str, number: int = NONE, **given: int) -> Event:
    """Return an event at the second of its batch."""
    flags = BY_LINK | (ACTIVE | LOCKED if kind == "delivered" else 0)
    return {
        "place": CARTS, "session": 1, "number": number, "order": order_of(batch), "kind": SESSION_KIND[kind],
        "flags": flags, "epoch": 1, "holder": 5, "at_ms": batch * 1000,
        "until_ms": batch * 1000 + 30_000 if kind in ("session_locked", "session_renewed") else NONE, **given,
    }  # fmt: skip


def found(rows: list[Event], known: dict[int, Facts]) -> list[tuple[Check, int | None, int]]:
    """Judge rows; return checks, numbers and batches."""
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    faults = judge_sessions(columns, known)
    return [(Check(check), number, batch) for check, _, _, number, batch, _ in faults]


HELD = [
    event(1, "enqueued", 1),
    event(1, "enqueued", 2, order=order_of(1, 1)),
    event(2, "session_locked"),
    event(3, "delivered", 1),
    event(4, "delivered", 2),
    event(5, "session_released"),
]


def test_a_session_with_one_holder_is_right_in_any_order_of_rows() -> None:
    assert found(HELD, facts()) == []
    assert found(HELD[::-1], facts()) == []


def test_only_the_holder_gets_messages_until_its_lock_ends() -> None:
    shared = [(Check.SESSION_SHARED, 2, 4)]
    assert found([*HELD[:4], event(4, "delivered", 2, holder=6)], facts()) == shared
    assert found([*HELD[:4], event(4, "delivered", 2, at_ms=32_000)], facts()) == shared
    assert found([*HELD[:4], event(4, "delivered", 2, epoch=4)], facts()) == shared
    assert found([*HELD, event(6, "delivered", 2)], facts()) == [(Check.SESSION_SHARED, 2, 6)]
    assert found([*HELD[:4], event(4, "session_locked")], facts()) == [(Check.SESSION_SHARED, None, 4)]
    other = [{**row, "session": 2} for row in HELD]
    assert found([*HELD, *other], facts()) == []


def test_an_older_message_is_not_delivered_after_a_later_one() -> None:
    overtaken = [*HELD[:3], event(3, "delivered", 2), event(4, "delivered", 1)]
    assert found(overtaken, facts()) == [(Check.SESSION_ORDER, 1, 4)]
    again = [*HELD[:4], event(4, "delivered", 2), event(5, "released", 1), event(6, "delivered", 1)]
    assert found(again, facts()) == []


def test_a_lock_lasts_for_the_duration_of_the_entity() -> None:
    known = [Known(order_of(1), 0, 30_000)]
    assert found(HELD, facts(known=known)) == []
    known = [Known(order_of(1), 0, 20_000)]
    assert found(HELD, facts(known=known)) == [(Check.WRONG_LOCK_DURATION, None, 2)]
    assert found(HELD, facts(known=[Known(order_of(3), 0, 20_000)])) == []


def test_the_holder_before_the_log_is_unknown() -> None:
    late = facts(late=True)
    late[CARTS] = replace(late[CARTS], first_order=order_of(3))
    assert found(HELD[3:], late) == []
    restarted = [{**row, "epoch": 3} for row in HELD[3:]]
    assert [check for check, *_ in found(restarted, late)] == [Check.SESSION_SHARED]
    assert [check for check, *_ in found(HELD[3:], facts())] == [Check.SESSION_SHARED]


def test_a_state_is_set_by_request_where_nobody_holds_the_session() -> None:
    edited = event(6, "session_state_set", flags=BY_REQUEST)
    assert found([*HELD, edited], facts()) == []
    assert found([edited], facts()) == []
    assert found([*HELD[:3], event(3, "session_state_set", flags=BY_REQUEST)], facts()) == [
        (Check.SESSION_SHARED, None, 3)
    ]
    assert found([*HELD, event(6, "session_state_set")], facts()) == [(Check.SESSION_SHARED, None, 6)]
