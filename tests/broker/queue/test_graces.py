"""Locks over a broken connection: how long they outlive it, and who may use them meanwhile (C26)."""

from __future__ import annotations

import json

import pytest

from peeklock.broker.namespace import SLICE
from peeklock.broker.vocabulary.commands import (
    Address,
    Complete,
    DeleteEntity,
    Discharge,
    Disposition,
    DropConnection,
    UpdateDisposition,
)
from peeklock.broker.vocabulary.effects import Deliver, Done
from peeklock.broker.vocabulary.errors import MessageLockLost, TransactionRolledBack
from peeklock.broker.vocabulary.events import EventType
from peeklock.broker.vocabulary.message import MessageState
from tests.broker.harness import LOTS, MINUTE_MS, Broker, deliveries, numbers, token

GRACE_MS = 5_000


@pytest.fixture
def broker() -> Broker:
    made = Broker(lock_grace_ms=GRACE_MS)
    made.create()
    return made


def taken(broker: Broker, count: int = 1, connection: int = 7) -> list[Deliver]:
    """Send messages, and have a connection lock them."""
    for _ in range(count):
        broker.send()
    found = broker.credit(broker.receiver(connection=connection), count)
    assert len(found) == count
    return found


def settling(broker: Broker, held: Deliver, connection: int = 2) -> UpdateDisposition:
    """Make the request by which another connection settles a lock."""
    reply_to = broker.reply_to(connection)
    return UpdateDisposition(Address("orders"), [token(held)], Disposition.COMPLETED, reply_to)


def told(broker: Broker) -> list[tuple[str, int, int]]:
    """Name the events with their connection and whether a lock ended because it broke."""
    return [(EventType(e.type).name, e.connection_id, e.connection_lost) for e in broker.events]


# 1. The earlier of its own end and of the grace, counted


def test_a_lock_ends_with_the_grace_of_its_connection_and_counts(broker: Broker) -> None:
    """Req: C26, L-13, L-08"""
    taken(broker)
    waiting = broker.receiver(connection=8)
    broker.credit(waiting)
    assert broker.drop(7) == []
    assert broker.advance(GRACE_MS - 1) == []
    (again,) = deliveries(broker.advance(1))
    assert (again.link, again.delivery_count) == (waiting, 1)


def test_a_lock_that_ends_before_the_grace_does_so_as_any_other(broker: Broker) -> None:
    """Req: C26, L-08"""
    taken(broker)
    broker.advance(MINUTE_MS - 1_000)
    broker.drop(7)
    broker.advance(999)
    assert broker.receive() == []
    broker.advance(1)
    (again,) = broker.receive()
    assert again.delivery_count == 1
    broker.advance(GRACE_MS)  # whose lock is not that of the broken connection
    broker.complete(again)


def test_the_end_of_the_grace_can_be_the_last_attempt(broker: Broker) -> None:
    """Req: C26, L-08"""
    broker.update(max_delivery_count=1)
    taken(broker)
    broker.drop(7)
    broker.advance(GRACE_MS)
    assert broker.view().dead_letter_count == 1


def test_at_the_end_of_the_grace_a_lock_is_lost_even_if_nobody_has_taken_it_yet(broker: Broker) -> None:
    """A timer may be late. Req: C26, L-11"""
    (held,) = taken(broker)
    broker.drop(7)
    broker.jump(GRACE_MS)
    assert type(broker.refused(settling(broker, held))) is MessageLockLost
    assert type(broker.refused(Complete(4, token(held), broker.reply_to()))) is MessageLockLost
    with pytest.raises(AssertionError, match="MessageLockLost"):
        broker.renew(held)
    broker.advance(0)
    assert broker.receive()[0].delivery_count == 1


def test_a_grace_that_ends_while_a_settlement_is_under_way_is_told_of_one_of_both(broker: Broker) -> None:
    """What is settled in the last millisecond is settled. Req: C26, L-11"""
    settled, lost = taken(broker, 2)
    broker.drop(7)
    broker.advance(GRACE_MS - 1)
    command = settling(broker, settled)
    assert broker.do(command) == [Done(command.reply_to)]
    broker.advance(1)
    assert type(broker.refused(settling(broker, lost))) is MessageLockLost
    assert numbers(broker.receive(2)) == [2]


def test_in_the_grace_a_lock_is_settled_by_its_token_over_another_connection(broker: Broker) -> None:
    """Req: C26, L-13, L-14"""
    (held,) = taken(broker)
    broker.drop(7)
    command = settling(broker, held)
    assert broker.do(command) == [Done(command.reply_to)]
    broker.advance(GRACE_MS)
    assert broker.peek() == []


def test_a_peek_shows_until_when_a_lock_in_its_grace_is_held(broker: Broker) -> None:
    """Req: C26, S-11"""
    taken(broker)
    broker.drop(7)
    assert broker.peek()[0].locked_until_ms == broker.now_ms + GRACE_MS


def test_each_broken_connection_has_its_own_grace(broker: Broker) -> None:
    """Req: C26"""
    taken(broker, connection=7)
    taken(broker, connection=8)
    broker.drop(7)
    broker.advance(1_000)
    broker.drop(8)
    broker.advance(GRACE_MS - 1_000)
    assert numbers(broker.receive(2)) == [1]
    broker.advance(1_000)
    assert numbers(broker.receive(2)) == [2]


def test_a_lock_outlives_its_connection_until_it_lapses_if_the_broker_is_asked_for_that() -> None:
    """Req: C26"""
    broker = Broker(lock_grace_ms=None)
    broker.create()
    kept, lapsed = taken(broker, 2)
    broker.drop(7)
    broker.advance(MINUTE_MS - 1)
    command = settling(broker, kept)
    assert broker.do(command) == [Done(command.reply_to)]
    broker.advance(1)
    assert type(broker.refused(settling(broker, lapsed))) is MessageLockLost
    assert broker.receive()[0].delivery_count == 1


# 2. A renewal moves a lock to its connection


def test_a_renewed_lock_is_of_the_connection_that_renewed_it(broker: Broker) -> None:
    """So a client that is back before its break is noticed keeps its locks. Req: C26, L-13"""
    (held,) = taken(broker)
    broker.renew(held, connection=9)
    broker.drop(7)
    broker.advance(2 * GRACE_MS)
    assert broker.receive() == []
    broker.drop(9)
    broker.advance(GRACE_MS)
    assert broker.receive()[0].delivery_count == 1


def test_a_lock_that_is_renewed_in_the_grace_lasts_as_long_as_any(broker: Broker) -> None:
    """Req: C26, L-04"""
    (held,) = taken(broker)
    broker.drop(7)
    broker.advance(GRACE_MS - 1)
    assert broker.renew(held, connection=9) == [broker.now_ms + MINUTE_MS]
    broker.advance(MINUTE_MS - 1)
    assert broker.receive() == []
    broker.advance(1)
    assert broker.receive()[0].delivery_count == 1


def test_the_connection_that_renewed_may_break_too(broker: Broker) -> None:
    """A lock has the grace of the last connection that it was of, and is counted once. Req: C26, L-08"""
    (held,) = taken(broker)
    broker.drop(7)
    broker.advance(1_000)
    broker.renew(held, connection=9)
    broker.advance(1_000)
    broker.drop(9)
    broker.advance(GRACE_MS - 1_000)  # the first grace is over
    assert broker.receive() == []
    broker.renew(held, connection=10)
    broker.advance(2 * GRACE_MS)
    broker.drop(10)
    broker.advance(GRACE_MS)
    assert broker.receive()[0].delivery_count == 1


def test_a_renewal_over_the_same_connection_moves_nothing(broker: Broker) -> None:
    """Req: C26"""
    (held,) = taken(broker)
    broker.renew(held, connection=7)
    broker.drop(7)
    broker.advance(GRACE_MS)
    assert broker.receive()[0].delivery_count == 1


def test_a_connection_that_renews_and_closes_properly_leaves_the_lock_to_lapse(broker: Broker) -> None:
    """Req: C26, L-13"""
    (held,) = taken(broker)
    broker.renew(held, connection=9)
    broker.drop(9, broken=False)
    broker.drop(7)
    broker.advance(MINUTE_MS - 1)
    assert broker.receive() == []
    broker.advance(1)
    assert broker.receive()[0].delivery_count == 1


# 3. What was not sent goes back at once, uncounted


@pytest.mark.parametrize("broken", [True, False])
def test_what_was_never_sent_is_available_at_the_break_and_not_counted(broker: Broker, broken: bool) -> None:
    """Req: C26, L-16, L-08"""
    _, never_sent = taken(broker, 2)
    waiting = broker.receiver(connection=8)
    broker.credit(waiting)
    (again,) = deliveries(broker.drop(7, broken=broken, undelivered=[never_sent]))
    assert (numbers([again]), again.link, again.delivery_count) == ([2], waiting, 0)


def test_what_was_settled_by_others_before_it_was_sent_is_not_given_back(broker: Broker) -> None:
    """Req: C26, L-16"""
    (held,) = taken(broker)
    broker.do(settling(broker, held))
    assert broker.drop(7, undelivered=[held]) == []
    assert broker.peek() == []


def test_what_a_session_was_never_sent_is_not_counted(broker: Broker) -> None:
    """Req: C26, L-16, L-08"""
    queue_id = broker.create("steps", requires_session=True)
    for _ in range(2):
        broker.send(queue_id, session_id="s")
    _, never_sent = broker.credit(broker.accept("s", "steps", connection=7).link, 2)
    broker.drop(7, undelivered=[never_sent], queue_id=queue_id)
    again = broker.credit(broker.accept("s", "steps").link, 2)
    assert [(number, view.delivery_count) for number, view in zip(numbers(again), again, strict=True)] == [
        (1, 1),
        (2, 0),
    ]


# 4. Sessions have no grace


def test_a_session_ends_with_its_link_and_what_was_received_by_number_with_it() -> None:
    """Req: C26, L-13, L-08, G-02"""
    broker = Broker(lock_grace_ms=GRACE_MS)
    broker.create(requires_session=True)
    for _ in range(2):
        broker.send(session_id="s")
    first, _ = broker.credit(broker.accept("s", connection=7).link, 2)
    broker.defer(first)
    broker.receive_deferred(1, connection=7, session_id="s")
    broker.drop(7)
    assert [view.delivery_count for view in broker.credit(broker.accept("s").link, 2)] == [1]
    assert broker.peek()[0].delivery_count == 2
    assert "CONNECTION_LOST" not in [name for name, _, _ in told(broker)]


# 5. Transactions


def test_the_transactions_of_a_broken_connection_are_rolled_back_and_their_locks_have_the_grace(
    broker: Broker,
) -> None:
    """Req: C26, F-03"""
    (held,) = taken(broker)
    link = broker.coordinator(connection=7)
    broker.enlist(broker.declare(link), Complete(4, token(held), broker.reply_to(7)), connection=7)
    broker.drop(7)
    command = settling(broker, held)  # it is in no transaction any more
    assert broker.do(command) == [Done(command.reply_to)]


def test_a_lock_whose_grace_ends_rolls_the_transaction_of_another_back(broker: Broker) -> None:
    """Req: C26, F-03"""
    (held,) = taken(broker)
    link = broker.coordinator()
    transaction = broker.declare(link)
    broker.enlist(transaction, settling(broker, held, connection=1))
    broker.drop(7)
    broker.advance(GRACE_MS)
    error = broker.refused(Discharge(link, transaction, False, broker.reply_to()))
    assert type(error) is TransactionRolledBack
    assert broker.receive()[0].delivery_count == 1


def test_within_the_grace_another_commits_the_settlement_of_a_lock(broker: Broker) -> None:
    """Req: C26, F-03"""
    (held,) = taken(broker)
    link = broker.coordinator()
    transaction = broker.declare(link)
    broker.drop(7)
    broker.enlist(transaction, settling(broker, held, connection=1))
    broker.advance(GRACE_MS - 1)
    broker.discharge(link, transaction)
    broker.advance(GRACE_MS)
    assert broker.peek() == []


# 6. What ends all locks ends these, uncounted


def test_a_restart_in_the_grace_frees_all_uncounted(broker: Broker) -> None:
    """Req: C26, L-12, L-08"""
    (held,) = taken(broker)
    broker.drop(7)
    broker.restart()
    (again,) = broker.receive()
    assert again.delivery_count == 0
    assert type(broker.refused(settling(broker, held))) is MessageLockLost
    broker.advance(GRACE_MS)
    broker.complete(again)


def test_a_change_of_the_queue_in_the_grace_frees_all_uncounted(broker: Broker) -> None:
    """Req: C26, L-12, L-08"""
    taken(broker)
    broker.drop(7)
    broker.update(max_delivery_count=9)
    (again,) = broker.receive()
    assert again.delivery_count == 0
    broker.advance(GRACE_MS)
    broker.complete(again)


def test_a_queue_that_goes_in_the_grace_takes_its_locks_along(broker: Broker) -> None:
    """Req: C26, A-03"""
    taken(broker)
    broker.drop(7)
    broker.do(DeleteEntity("orders", broker.reply_to()))
    queue_id = broker.create()
    broker.send(queue_id)
    (held,) = broker.receive()
    broker.advance(GRACE_MS)
    broker.complete(held, queue_id)


# 7. What is no break (what is one, the gateway knows)


def test_an_orderly_end_gives_no_grace(broker: Broker) -> None:
    """Req: C26, L-13"""
    taken(broker)
    broker.drop(7, broken=False)
    assert broker.namespace.timers.next_ms is not None
    broker.advance(MINUTE_MS - 1)
    assert broker.receive() == []
    assert "CONNECTION_LOST" not in [name for name, _, _ in told(broker)]


# 8. With 0 all comes back at the break: see test_locks


def test_a_deferred_message_is_deferred_again(broker: Broker) -> None:
    """Req: C26, L-10, L-13"""
    (held,) = taken(broker, connection=1)
    broker.defer(held)
    broker.receive_deferred(1, connection=7)
    broker.drop(7)
    broker.advance(GRACE_MS)
    (view,) = broker.peek()
    assert (view.state, view.delivery_count) == (MessageState.DEFERRED, 2)


# What it costs


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_many_locks_are_released_in_slices(broker: Broker, count: int) -> None:
    """The break itself looks at none of them. Req: C26, R-06"""
    broker.checks = False
    queue = broker.namespace._queues[4]
    for _ in range(count):
        broker.send()
    held = broker.credit(broker.receiver(connection=7))
    assert len(held) == count
    assert broker.do(DropConnection(7, True)) == []
    assert len(queue.locks) == count
    broker.jump(GRACE_MS)
    slices = 0
    while queue.locks:
        left = len(queue.locks)
        changes, _ = broker.namespace.advance(broker.now_ms)
        broker._keep(changes)
        slices += 1
        assert left - SLICE <= len(queue.locks) < left
        # Those that have not had their turn are lost too.
        for delivery in (held[0], held[-1]):
            assert type(broker.refused(settling(broker, delivery))) is MessageLockLost
    assert slices >= count // SLICE
    broker.checks = True
    broker.advance(0)
    assert numbers(broker.receive(LOTS)) == numbers(held)  # in their old order


def test_a_change_between_two_slices_is_not_undone(broker: Broker) -> None:
    """Req: C26, L-12"""
    broker.checks = False
    taken(broker, 2 * SLICE)
    broker.do(DropConnection(7, True))
    broker.jump(GRACE_MS)
    broker._keep(broker.namespace.advance(broker.now_ms)[0])
    broker.update(max_delivery_count=9)
    again = broker.receive(2 * SLICE)
    assert {view.delivery_count for view in again} == {0, 1}
    broker.advance(0)
    broker.checks = True
    for view in again[:: SLICE // 4]:
        broker.complete(view)


# What is told of it


def test_the_log_tells_of_the_break_and_of_each_lock_that_ends_with_its_grace() -> None:
    """Req: C26, X-03"""
    broker = Broker(lock_grace_ms=GRACE_MS)
    broker.create()
    held, _ = taken(broker, 2)
    broker.events.clear()
    broker.drop(7)
    assert told(broker) == [("CONNECTION_LOST", 7, 0)]
    broker.renew(held, connection=9)
    broker.advance(GRACE_MS)
    assert told(broker)[1:] == [("RENEWED", 9, 0), ("LOCK_LAPSED", 7, 1)]
    broker.advance(MINUTE_MS)
    assert told(broker)[3:] == [("LOCK_LAPSED", 0, 0)]


def test_a_connection_that_held_no_lock_is_not_told_of(broker: Broker) -> None:
    """Req: C26, X-03"""
    broker.credit(broker.receiver(connection=7), 1)
    broker.drop(7)
    assert "CONNECTION_LOST" not in [name for name, _, _ in told(broker)]


@pytest.mark.parametrize("grace_ms", [0, GRACE_MS, None])
def test_the_log_tells_of_the_grace_at_each_start(grace_ms: int | None) -> None:
    """Req: C26, X-03"""
    broker = Broker(lock_grace_ms=grace_ms)
    broker.restart()
    assert json.loads(broker.events[-1].reason or "") == {"lock_grace_ms": grace_ms}
