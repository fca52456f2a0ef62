"""The checker on transactions: all or nothing."""

from __future__ import annotations

import pytest

from tests.simulation.history import Lock, Unit
from tests.simulation.records import Violation
from tests.simulation.story import QUEUE, Story, record
from tests.simulation.units import LIMIT_MS

pytestmark = pytest.mark.simulation


def begun() -> tuple[Story, Unit, Lock]:
    """Tell of a transaction that completes uid 1, and sends uids 2 and 3."""
    story = Story()
    story.send(1)
    story.commit(record(1))
    lock = story.deliver(1, 1, b"first")
    story.now_ms += 10
    unit = Unit(1, 1, story.now_ms)
    story.send(2, unit=unit)
    story.send(3, unit=unit)
    story.checker.settling(lock, "complete", "", unit)
    story.checker.send_answered([2], "accepted")
    story.checker.send_answered([3], "accepted")
    story.checker.settle_answered(lock, "complete", story.now_ms, None, unit)
    return story, unit, lock


def test_a_transaction_is_done_in_one_batch() -> None:
    story, unit, lock = begun()
    story.checker.units.discharging(unit, fail=False)
    story.commit(record(2), record(3), ((QUEUE, 1),))
    story.checker.units.discharged(unit, None)
    assert (unit.outcome, lock.settled, story.checker.sent[2].outcome) == (
        "committed",
        "complete",
        "accepted",
    )


def test_nothing_may_be_done_before_the_commit() -> None:
    story, _, _ = begun()
    with pytest.raises(Violation, match="was not committed"):
        story.commit(record(2))


@pytest.mark.parametrize("done", [(2,), (2, 3)])
def test_a_transaction_must_not_be_done_in_part(done: tuple[int, ...]) -> None:
    story, unit, _ = begun()
    story.checker.units.discharging(unit, fail=False)
    with pytest.raises(Violation, match="done in part"):
        story.commit(*(record(uid) for uid in done))


def test_a_settlement_must_not_be_done_without_the_sends() -> None:
    story, unit, _ = begun()
    story.checker.units.discharging(unit, fail=False)
    with pytest.raises(Violation, match="done in part"):
        story.commit(((QUEUE, 1),))


def test_what_is_acknowledged_must_be_durable() -> None:
    story, unit, _ = begun()
    story.checker.units.discharging(unit, fail=False)
    with pytest.raises(Violation, match="not on stable storage"):
        story.checker.units.discharged(unit, None)


def test_what_was_rolled_back_must_not_be_stored_later() -> None:
    story, unit, _ = begun()
    story.checker.units.discharging(unit, fail=True)
    story.checker.units.discharged(unit, None)
    with pytest.raises(Violation, match="refused with rolled back"):
        story.commit(record(2))


def test_what_was_rolled_back_must_not_have_been_done() -> None:
    story, unit, _ = begun()
    story.checker.limited()  # so that it may be refused
    story.checker.units.discharging(unit, fail=False)
    story.commit(record(2), record(3), ((QUEUE, 1),))
    with pytest.raises(Violation, match="yet done in batch"):
        story.checker.units.discharged(unit, "amqp:transaction:rollback")


def test_a_lock_is_as_before_after_a_roll_back() -> None:
    story, unit, lock = begun()
    story.checker.units.discharging(unit, fail=True)
    story.checker.units.discharged(unit, None)
    story.now_ms += 10
    story.checker.settling(lock, "complete")
    with pytest.raises(Violation, match="the lock is live"):
        story.checker.settle_answered(lock, "complete", story.now_ms, "com.microsoft:message-lock-lost")


def test_nobody_else_can_settle_what_is_in_a_transaction() -> None:
    story, _, lock = begun()
    story.checker.settling(lock, "complete")
    story.checker.settle_answered(lock, "complete", story.now_ms, "com.microsoft:message-lock-lost")


def test_a_commit_must_not_be_refused_for_nothing() -> None:
    story, unit, _ = begun()
    story.checker.units.discharging(unit, fail=False)
    with pytest.raises(Violation, match="for nothing"):
        story.checker.units.discharged(unit, "amqp:transaction:rollback")


def test_a_commit_must_not_succeed_after_two_minutes() -> None:
    story = Story()
    unit = Unit(1, 1, story.now_ms)
    story.send(1, unit=unit)
    story.checker.send_answered([1], "accepted")
    story.now_ms += LIMIT_MS + 1
    story.checker.units.discharging(unit, fail=False)
    story.commit(record(1))
    with pytest.raises(Violation, match="after its time"):
        story.checker.units.discharged(unit, None)


def test_a_transaction_whose_link_is_lost_before_the_commit_does_nothing() -> None:
    story, unit, _ = begun()
    story.checker.units.lost(unit)
    with pytest.raises(Violation, match="refused with rolled back"):
        story.commit(record(2))


def test_a_transaction_whose_answer_is_lost_does_all_or_nothing() -> None:
    story, unit, _ = begun()
    story.checker.units.discharging(unit, fail=False)
    story.checker.units.lost(unit)
    story.commit(record(2), record(3), ((QUEUE, 1),))
    assert unit.outcome is None
    assert unit.applied is not None
