"""Deferred messages: fetched by number only, in either mode."""

from __future__ import annotations

import pytest

from peeklock.broker.commands import Address, Complete, ReceiveDeferred, ReceiveMode
from peeklock.broker.errors import ArgumentOutOfRange, MessageLockLost, MessageNotFound
from peeklock.broker.message import MessageState
from peeklock.broker.quotas import DEFERRED_BYTES_MAX, PREMIUM
from tests.broker.playbook import MINUTE_MS, START_MS, Broker, numbers, token


@pytest.fixture
def broker() -> Broker:
    """Four messages; 1 and 3 are deferred."""
    made = Broker()
    made.create()
    for _ in range(4):
        made.send()
    found = made.receive(3)
    made.defer(found[2])
    made.defer(found[0])
    made.release(found[1])
    return made


def refusal(broker: Broker, *wanted: int) -> Exception:
    command = ReceiveDeferred(Address("orders"), list(wanted), ReceiveMode.PEEK_LOCK, broker.reply_to())
    return broker.refused(command)


def test_they_are_invisible_to_receivers_and_found_by_number(broker: Broker) -> None:
    """Req: L-10"""
    assert numbers(broker.receive(5)) == [2, 4]
    third, first = broker.receive_deferred(3, 1)
    assert numbers([third, first]) == [3, 1]
    assert third.state is MessageState.DEFERRED
    assert third.locked_until_ms == START_MS + MINUTE_MS
    assert token(third) != token(first)
    broker.complete(third)
    broker.complete(first)
    assert numbers(broker.peek()) == [2, 4]


def test_they_can_be_deleted_on_receipt(broker: Broker) -> None:
    """Req: L-10, L-01"""
    (view,) = broker.receive_deferred(3, deletes=True)
    assert (view.lock_token, view.locked_until_ms, view.state) == (None, 0, MessageState.DEFERRED)
    assert numbers(broker.peek()) == [1, 2, 4]


def test_all_or_none_of_the_numbers_are_given(broker: Broker) -> None:
    """Req: L-10"""
    for missing in (2, 99, -1):
        error = refusal(broker, 1, missing)
        assert isinstance(error, MessageNotFound)
        assert f"sequence number {missing} " in str(error)
    assert numbers(broker.receive_deferred(1, 3)) == [1, 3]


def test_a_number_asked_for_twice_is_given_once(broker: Broker) -> None:
    """Req: L-10"""
    assert numbers(broker.receive_deferred(1, 1)) == [1]


def test_one_request_is_given_so_many_bytes_at_most_or_one_message() -> None:
    """Its answer is one message, made in memory. Req: L-10, R-05, T-08"""
    broker = Broker(PREMIUM)
    broker.create(max_message_size_kb=100 * 1024)
    for size in (DEFERRED_BYTES_MAX, 1, DEFERRED_BYTES_MAX + 1):
        broker.send(size=size)
    for view in broker.receive(3):
        broker.defer(view)
    assert isinstance(refusal(broker, 1, 2), ArgumentOutOfRange)
    assert numbers(broker.receive_deferred(1)) == [1]
    assert numbers(broker.receive_deferred(3)) == [3]


def test_a_locked_one_is_not_found(broker: Broker) -> None:
    """Req: L-10, L-02"""
    broker.receive_deferred(1)
    assert isinstance(refusal(broker, 1), MessageNotFound)


def test_they_stay_deferred_when_the_lock_ends(broker: Broker) -> None:
    """Req: L-10, L-08"""
    (view,) = broker.receive_deferred(1)
    broker.abandon(view)
    (view,) = broker.receive_deferred(1)
    assert (view.state, view.delivery_count) == (MessageState.DEFERRED, 1)
    broker.release(view)
    broker.receive_deferred(1)
    broker.advance(MINUTE_MS)
    (view,) = broker.receive_deferred(1)
    assert (view.state, view.delivery_count) == (MessageState.DEFERRED, 2)
    broker.defer(view)
    assert numbers(broker.receive(9)) == [2, 4]


def test_the_last_attempt_dead_letters_them_too(broker: Broker) -> None:
    """Req: L-08, L-10"""
    broker.update(max_delivery_count=1)
    (view,) = broker.receive_deferred(1)
    broker.abandon(view)
    assert isinstance(refusal(broker, 1), MessageNotFound)
    assert numbers(broker.peek_dead()) == [1]


def test_their_locks_lapse_and_renew_like_any(broker: Broker) -> None:
    """Req: L-10, L-11, L-03"""
    (view,) = broker.receive_deferred(1)
    broker.advance(MINUTE_MS - 1)
    broker.renew(view)
    broker.advance(MINUTE_MS - 1)
    broker.jump(1)
    assert isinstance(broker.refused(Complete(4, token(view), broker.reply_to())), MessageLockLost)


def test_they_survive_a_restart(broker: Broker) -> None:
    """Req: L-10, R-02"""
    broker.restart()
    assert [view.state for view in broker.peek()] == [
        MessageState.DEFERRED, MessageState.ACTIVE, MessageState.DEFERRED, MessageState.ACTIVE
    ]  # fmt: skip
    assert numbers(broker.receive(9)) == [2, 4]
    assert numbers(broker.receive_deferred(1, 3)) == [1, 3]
