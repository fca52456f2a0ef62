"""The checker on transactions: all or nothing."""

from __future__ import annotations

import pytest

from peeklock.broker.vocabulary.message import MessageState
from tests.simulation.oracle.history import DISABLED, Lock, Unit
from tests.simulation.oracle.records import Violation
from tests.simulation.oracle.story import QUEUE, STATES, Story, record
from tests.simulation.oracle.units import LIMIT_MS

pytestmark = pytest.mark.simulation


def begun() -> tuple[Story, Unit, Lock]:
    """Return a history of a transaction that completes uid 1, and sends uids 2 and 3."""
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


def test_a_transaction_that_was_refused_a_settlement_has_not_done_it() -> None:
    """The outcome of the first one is not known; the second one settles what the first one was refused."""
    story, unit, _ = begun()
    story.send(4)
    story.commit(record(2, slot=3))
    lock = story.deliver(4, 2, b"other")
    story.checker.settling(lock, "complete", "", unit)
    story.checker.history.was_disabled = True
    story.checker.settle_answered(lock, "complete", story.now_ms, DISABLED, unit)
    story.checker.units.discharging(unit, fail=False)
    second = Unit(2, 1, story.now_ms)
    story.checker.settling(lock, "complete", "", second)
    story.checker.settle_answered(lock, "complete", story.now_ms, None, second)
    story.checker.units.discharging(second, fail=False)
    story.commit(((QUEUE, 2),))
    assert (unit.applied, second.applied is None) == (None, False)


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


def test_what_a_transaction_settles_no_other_client_can_settle() -> None:
    story, _, lock = begun()
    story.checker.settling(lock, "complete")
    story.checker.settle_answered(lock, "complete", story.now_ms, "com.microsoft:message-lock-lost")


def test_a_commit_must_not_be_refused_for_nothing() -> None:
    story, unit, _ = begun()
    story.checker.units.discharging(unit, fail=False)
    with pytest.raises(Violation, match="without a reason"):
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


# States and cancellations


def state(position: int, uid: int) -> object:
    return record(position, queue_id=STATES, slot=uid - 1, session_id="red")


def setting(*uids: int) -> tuple[Story, Unit]:
    """Return a history of a transaction that sets the states of these uids, one after the other."""
    story = Story({"requires_session": True})
    story.send(8, session_id="red")
    story.commit(record(1, slot=7, session_id="red"))
    hold = story.accept("red")
    story.now_ms += 10
    unit = Unit(1, 1, story.now_ms)
    for uid in uids:
        write = story.checker.states.setting((1, "red"), uid, unit)
        unit.states.append((hold, write))
        write.enlisted = True
    story.now_ms += 10
    return story, unit


def test_a_state_must_not_be_set_before_the_commit_or_after_a_rollback() -> None:
    """Req: C30"""
    for rolled_back in (False, True):
        story, unit = setting(1)
        if rolled_back:
            story.checker.units.discharging(unit, fail=True)
        with pytest.raises(Violation, match="was not committed"):
            story.commit(state(1, 1))


def test_the_last_state_of_a_transaction_is_there_from_its_commit_on() -> None:
    """Req: C30"""
    story, unit = setting(1, 2)
    states, session = story.checker.states, (1, "red")
    with pytest.raises(Violation, match="reads uid 2"):
        states.read(session, story.now_ms, 2)
    story.checker.units.discharging(unit, fail=False)
    story.commit(state(1, 2))
    story.checker.units.discharged(unit, None)
    story.now_ms += 10
    states.read(session, story.now_ms, 2)
    for uid in (None, 1):
        with pytest.raises(Violation, match="reads uid"):
            states.read(session, story.now_ms, uid)


def test_a_committed_state_must_be_durable() -> None:
    """Req: C30"""
    story, unit = setting(1)
    story.checker.units.discharging(unit, fail=False)
    story.now_ms += 10
    with pytest.raises(Violation, match="reads uid None"):
        story.checker.units.discharged(unit, None)


def cancelling() -> tuple[Story, Unit]:
    """Return a history of a transaction that cancels the scheduled message with number 1."""
    story = Story()
    story.send(1)
    story.checker.sent[1].scheduled_broker_ms = 50_000
    story.commit(record(1, state=MessageState.SCHEDULED))
    unit = Unit(1, 1, story.now_ms)
    unit.cancels.append(("orders", 1))
    unit.cancelled.append(("orders", 1))
    return story, unit


def test_a_cancellation_must_not_act_before_the_commit() -> None:
    """Req: C30"""
    story, unit = cancelling()
    with pytest.raises(Violation, match="gone without a request"):
        story.commit(((QUEUE, 1),))
    story, unit = cancelling()
    story.checker.units.discharging(unit, fail=False)
    story.commit(((QUEUE, 1),))
    story.checker.units.discharged(unit, None)


def test_a_committed_cancellation_must_be_done() -> None:
    """Req: C30"""
    story, unit = cancelling()
    story.checker.units.discharging(unit, fail=False)
    with pytest.raises(Violation, match="without the cancellation"):
        story.checker.units.discharged(unit, None)
