"""Deferred messages: fetched by number only, in either mode."""

from __future__ import annotations

import pytest

from peeklock.amqp import codec
from peeklock.broker.vocabulary.commands import (
    Address,
    CloseLink,
    Complete,
    Defer,
    Disposition,
    ReceiveDeferred,
    ReceiveMode,
    SequenceNumber,
    SubQueue,
    UpdateDisposition,
)
from peeklock.broker.vocabulary.effects import Done
from peeklock.broker.vocabulary.errors import ArgumentOutOfRange, MessageLockLost, MessageNotFound
from peeklock.broker.vocabulary.message import MessageState, MessageView
from peeklock.broker.vocabulary.quotas import DEFERRED_BYTES_MAX, PREMIUM
from tests.broker.harness import MINUTE_MS, START_MS, Broker, deliveries, numbers, token


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
    command = ReceiveDeferred(
        Address("orders"), list(map(SequenceNumber, wanted)), ReceiveMode.PEEK_LOCK, broker.reply_to()
    )
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
    assert (view.state, view.delivery_count) == (MessageState.DEFERRED, 2)
    broker.release(view)
    broker.receive_deferred(1)
    broker.advance(MINUTE_MS)
    (view,) = broker.receive_deferred(1)
    assert (view.state, view.delivery_count) == (MessageState.DEFERRED, 3)
    broker.defer(view)
    assert numbers(broker.receive(9)) == [2, 4]


def test_each_deferral_counts_as_a_delivery() -> None:
    """Source: wire contract, correction C2. Req: L-08, L-10"""
    broker = Broker()
    broker.create()
    broker.send()
    (delivery,) = broker.receive()
    assert delivery.delivery_count == 0
    broker.defer(delivery)
    assert [view.delivery_count for view in broker.peek()] == [1]
    broker.restart()
    (view,) = broker.receive_deferred(1)
    assert view.delivery_count == 1
    broker.defer(view)
    (view,) = broker.receive_deferred(1)
    assert view.delivery_count == 2
    command = UpdateDisposition(Address("orders"), [token(view)], Disposition.DEFERRED, broker.reply_to())
    broker.one(command, Done)
    (view,) = broker.receive_deferred(1, deletes=True)
    assert view.delivery_count == 3


@pytest.mark.parametrize("attempts_max", [1, 2, 3])
@pytest.mark.parametrize("over", ["link", "management", "transaction"])
def test_the_last_deferral_allowed_dead_letters(attempts_max: int, over: str) -> None:
    """Source: wire contract, correction C2. Req: L-08, L-10, L-14, F-03"""
    broker = Broker()
    broker.create(max_delivery_count=attempts_max)
    broker.send()
    view: MessageView = broker.receive()[0]
    for attempt in range(attempts_max):
        if attempt:
            (view,) = broker.receive_deferred(1)
        assert view.delivery_count == attempt
        defer(broker, view, over)
    assert broker.peek() == []
    assert isinstance(refusal(broker, 1), MessageNotFound)
    (dead,) = broker.receive_dead()
    assert (dead.state, dead.delivery_count) == (MessageState.ACTIVE, attempts_max)
    assert dead.message.overlay is not None
    description = f"Message could not be consumed after {attempts_max} delivery attempts."
    assert codec.decode(dead.message.overlay)[0] == {
        "note": "kept",
        "DeadLetterReason": "MaxDeliveryCountExceeded",
        "DeadLetterErrorDescription": description,
    }
    assert broker.view().active_count == 0
    broker.restart()
    assert numbers(broker.peek_dead()) == [1]


def defer(broker: Broker, view: MessageView, over: str) -> None:
    """Defer a message over its link, by a request, or in a transaction."""
    properties = {"note": "kept"}
    command: Defer | UpdateDisposition = Defer(4, token(view), broker.reply_to(), properties)
    if over == "management":
        where, to = Address("orders"), Disposition.DEFERRED
        command = UpdateDisposition(where, [token(view)], to, broker.reply_to(), properties=properties)
    if over != "transaction":
        broker.do(command)
        return
    link = broker.coordinator()
    for fail in (True, False):  # a roll-back counts nothing
        transaction_id = broker.declare(link)
        broker.enlist(transaction_id, command)
        broker.discharge(link, transaction_id, fail=fail)


def test_a_session_is_rid_of_what_its_last_deferral_dead_letters() -> None:
    """Req: L-08, G-05"""
    broker = Broker()
    broker.create(requires_session=True, max_delivery_count=2)
    for _ in range(2):
        broker.send(session_id="a")
    opened = broker.accept("a")
    first, second = broker.credit(opened.link)
    broker.defer(first)
    (view,) = broker.receive_deferred(1, session_id="a")
    assert view.delivery_count == 1
    broker.defer(view)
    assert numbers(broker.receive_dead()) == [1]
    broker.complete(second)
    broker.do(CloseLink(opened.link))
    sessions = broker.namespace._queues[4].sessions
    assert sessions is not None
    assert sessions.get("a") is None, "nothing is left of the session"


def test_expiry_does_not_decide_about_the_last_deferral() -> None:
    """It would remove what its holder wants to keep: a deferred message does not expire. Req: E-02, E-03"""
    broker = Broker()
    broker.create(max_delivery_count=1)
    broker.send(ttl_ms=1_000)
    (delivery,) = broker.receive()
    broker.advance(2_000)
    broker.defer(delivery)
    assert broker.peek() == []
    (dead,) = broker.peek_dead()
    assert dead.message.overlay is not None
    assert codec.decode(dead.message.overlay)[0]["DeadLetterReason"] == "MaxDeliveryCountExceeded"


def test_the_last_deferral_serves_who_waits_for_dead_letters() -> None:
    """Req: L-08, L-17"""
    broker = Broker()
    broker.create(max_delivery_count=1)
    waiting = broker.receiver(connection=2, sub_queue=SubQueue.DEAD_LETTER)
    broker.credit(waiting)
    broker.send()
    (dead,) = deliveries(broker.defer(broker.receive()[0]))
    assert (dead.link, dead.delivery_count) == (waiting, 1)


def test_the_last_attempt_dead_letters_them_too(broker: Broker) -> None:
    """Req: L-08, L-10"""
    broker.update(max_delivery_count=2)
    (view,) = broker.receive_deferred(1)  # the deferral was the first
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
