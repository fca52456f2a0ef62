"""Message locks: how long they last, what ends them, who may use them."""

from __future__ import annotations

import pytest

from peeklock.broker.vocabulary.commands import (
    Address,
    CloseLink,
    Complete,
    Disposition,
    LockToken,
    RenewLocks,
    SubQueue,
    UpdateDisposition,
)
from peeklock.broker.vocabulary.descriptions import EntityStatus
from peeklock.broker.vocabulary.effects import DetachLink, Done
from peeklock.broker.vocabulary.errors import EntityDisabled, InvalidOperation, MessageLockLost
from peeklock.broker.vocabulary.message import MessageState
from tests.broker.harness import MINUTE_MS, START_MS, Broker, deliveries, numbers, token

HOUR_MS = 60 * MINUTE_MS


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create()
    return made


def disposition(
    broker: Broker, *tokens: LockToken, to: Disposition = Disposition.COMPLETED, dead: bool = False
) -> UpdateDisposition:
    sub_queue = SubQueue.DEAD_LETTER if dead else SubQueue.MAIN
    return UpdateDisposition(Address("orders", sub_queue), list(tokens), to, broker.reply_to(2), reason="why")


def test_a_lock_lasts_a_minute_unless_the_queue_says_otherwise(broker: Broker) -> None:
    """Req: L-03"""
    broker.send()
    assert broker.receive()[0].locked_until_ms == START_MS + MINUTE_MS
    broker.create("slow", lock_duration_ms=5 * MINUTE_MS)
    broker.send(8)
    assert broker.receive(name="slow")[0].locked_until_ms == START_MS + 5 * MINUTE_MS


def test_a_lock_holds_to_its_last_millisecond_and_is_lost_at_its_end(broker: Broker) -> None:
    """Req: L-11"""
    broker.send()
    broker.send()
    first, second = broker.receive(2)
    broker.jump(MINUTE_MS - 1)
    broker.complete(first)
    broker.jump(1)
    error = broker.refused(Complete(4, token(second), broker.reply_to()))
    assert isinstance(error, MessageLockLost)
    assert "sequence number 2 of 'orders' expired at 1700000060000 ms, now 1700000060000 ms" in str(error)


def test_a_lapse_counts_and_hands_the_message_to_who_waits(broker: Broker) -> None:
    """Req: L-07, L-08"""
    broker.send()
    (first,) = broker.receive()
    waiting = broker.receiver()
    broker.credit(waiting, 1)
    assert deliveries(broker.advance(MINUTE_MS - 1)) == []
    (second,) = deliveries(broker.advance(1))
    assert second.link == waiting
    assert second.delivery_count == 1
    assert isinstance(broker.refused(Complete(4, token(first), broker.reply_to())), MessageLockLost)
    broker.complete(second)


def test_renewal_extends_for_hours_any_number_of_times(broker: Broker) -> None:
    """Req: L-03, L-18"""
    broker.send()
    (delivery,) = broker.receive()
    for _ in range(6 * 60):
        broker.advance(MINUTE_MS - 1)
        assert broker.renew(delivery) == [broker.now_ms + MINUTE_MS]
    assert broker.now_ms > START_MS + 5 * HOUR_MS
    broker.advance(MINUTE_MS)
    assert isinstance(broker.refused(Complete(4, token(delivery), broker.reply_to())), MessageLockLost)
    assert broker.receive()[0].delivery_count == 1


def test_renewal_of_several_locks_is_all_or_none(broker: Broker) -> None:
    """Req: L-03, L-11"""
    broker.send()
    broker.send()
    first, second = broker.receive(2)
    broker.jump(30_000)
    command = RenewLocks(Address("orders"), [token(first), LockToken(bytes(16))], broker.reply_to())
    assert isinstance(broker.refused(command), MessageLockLost)
    assert broker.renew(second, first) == [START_MS + 90_000] * 2
    broker.advance(30_000)
    broker.complete(first)


def test_a_renewed_lock_lapses_after_one_taken_meanwhile(broker: Broker) -> None:
    """Req: L-03"""
    broker.send()
    broker.send()
    (first,) = broker.receive()
    broker.advance(10_000)
    broker.receive()
    broker.advance(10_000)
    broker.renew(first)
    waiting = broker.receiver()
    broker.credit(waiting)
    assert numbers(deliveries(broker.advance(50_000))) == [2]
    assert numbers(deliveries(broker.advance(10_000))) == [1]


def test_renewal_of_a_lapsed_lock_fails(broker: Broker) -> None:
    """Req: L-11"""
    broker.send()
    (delivery,) = broker.receive()
    broker.jump(MINUTE_MS)
    command = RenewLocks(Address("orders"), [token(delivery)], broker.reply_to())
    assert isinstance(broker.refused(command), MessageLockLost)
    broker.settle_time()
    assert isinstance(broker.refused(command), MessageLockLost)


def test_a_restart_drops_locks_and_counts_nothing(broker: Broker) -> None:
    """Req: L-12, L-08, L-11"""
    broker.send()
    (delivery,) = broker.receive()
    broker.restart()
    assert isinstance(broker.refused(Complete(4, token(delivery), broker.reply_to())), MessageLockLost)
    (again,) = broker.receive()
    assert again.delivery_count == 0


def test_a_change_of_properties_drops_locks_and_counts_nothing(broker: Broker) -> None:
    """Req: L-12, L-08, A-07"""
    broker.send()
    (delivery,) = broker.receive()
    broker.update(lock_duration_ms=30_000)
    assert isinstance(broker.refused(Complete(4, token(delivery), broker.reply_to())), MessageLockLost)
    (again,) = broker.receive()
    assert (again.delivery_count, again.locked_until_ms) == (0, START_MS + 30_000)


def test_a_change_drops_the_locks_of_the_dead_letter_queue_and_of_deferred_messages(broker: Broker) -> None:
    """Req: L-12"""
    broker.send()
    broker.send()
    first, second = broker.receive(2)
    broker.dead_letter(first)
    broker.defer(second)
    (dead,) = broker.receive_dead()
    (deferred,) = broker.receive_deferred(2)
    broker.update(max_delivery_count=9)
    assert isinstance(broker.refused(Complete(5, token(dead), broker.reply_to())), MessageLockLost)
    assert isinstance(broker.refused(Complete(4, token(deferred), broker.reply_to())), MessageLockLost)
    assert broker.receive_dead()[0].delivery_count == 0
    (again,) = broker.receive_deferred(2)
    assert (again.state, again.delivery_count) == (MessageState.DEFERRED, 1)


@pytest.mark.parametrize(
    "settings",
    [{}, {"user_metadata": "a note"}, {"forward_dead_lettered_to_given": "sb://localhost/graveyard"}],
)
def test_an_update_that_matters_to_nobody_leaves_locks_alone(
    broker: Broker, settings: dict[str, str]
) -> None:
    """Req: L-12"""
    broker.create("graveyard")
    broker.update(forward_dead_lettered_to="graveyard")
    broker.send()
    (delivery,) = broker.receive()
    broker.update(**settings)
    broker.complete(delivery)


def test_a_change_hands_dropped_messages_to_who_waits(broker: Broker) -> None:
    """Req: L-12, A-07"""
    broker.send()
    broker.receive()
    waiting = broker.receiver()
    broker.credit(waiting)
    effects = broker.update(max_delivery_count=9)
    assert [delivery.link for delivery in deliveries(effects)] == [waiting]


def test_a_broken_connection_drops_its_locks_at_once_and_counts(broker: Broker) -> None:
    """Req: L-13, L-08"""
    for _ in range(3):
        broker.send()
    link = broker.receiver(connection=7)
    found = broker.credit(link, 2)
    waiting = broker.receiver(connection=8)
    broker.credit(waiting)
    again = deliveries(broker.drop(7))
    assert numbers(again) == [1, 2]
    assert [delivery.delivery_count for delivery in again] == [1, 1]
    assert {delivery.link for delivery in again} == {waiting}
    for delivery in found:
        assert isinstance(broker.refused(Complete(4, token(delivery), broker.reply_to())), MessageLockLost)


def test_a_broken_connection_can_be_the_last_attempt(broker: Broker) -> None:
    """Req: L-13, L-08"""
    broker.update(max_delivery_count=1)
    broker.send()
    broker.credit(broker.receiver(connection=7), 1)
    broker.drop(7)
    assert broker.view().dead_letter_count == 1


def test_a_connection_closed_properly_leaves_its_locks(broker: Broker) -> None:
    """Req: L-13"""
    broker.send()
    (delivery,) = broker.credit(broker.receiver(connection=7), 1)
    broker.drop(7, broken=False)
    assert broker.receive() == []
    broker.complete(delivery)


def test_a_link_closed_properly_leaves_its_locks_even_if_the_connection_breaks_then(broker: Broker) -> None:
    """Req: L-13"""
    broker.send()
    link = broker.receiver(connection=7)
    (delivery,) = broker.credit(link, 1)
    broker.do(CloseLink(link))
    broker.drop(7)
    assert broker.receive() == []
    broker.complete(delivery)


def test_locks_of_other_connections_stay_when_one_breaks(broker: Broker) -> None:
    """Req: L-13"""
    broker.send()
    broker.send()
    (mine,) = broker.credit(broker.receiver(connection=7), 1)
    (theirs,) = broker.credit(broker.receiver(connection=8), 1)
    broker.drop(8)
    broker.complete(mine)
    assert isinstance(broker.refused(Complete(4, token(theirs), broker.reply_to())), MessageLockLost)


def test_locks_taken_by_a_request_belong_to_its_connection(broker: Broker) -> None:
    """Req: L-13"""
    broker.send()
    broker.defer(broker.receive()[0])
    (view,) = broker.receive_deferred(1, connection=7)
    broker.drop(1)
    broker.drop(7)
    assert isinstance(broker.refused(Complete(4, token(view), broker.reply_to())), MessageLockLost)
    (again,) = broker.receive_deferred(1)
    assert (again.delivery_count, again.state) == (2, MessageState.DEFERRED)


def test_a_settled_lock_is_not_counted_when_its_connection_breaks(broker: Broker) -> None:
    """Req: L-13"""
    broker.send()
    link = broker.receiver(connection=7)
    (delivery,) = broker.credit(link, 1)
    broker.release(delivery)
    broker.drop(7)
    assert broker.receive()[0].delivery_count == 0


@pytest.mark.parametrize(
    ("to", "active", "dead", "count"),
    [
        (Disposition.COMPLETED, 0, 0, None),
        (Disposition.ABANDONED, 1, 0, 1),
        (Disposition.DEFERRED, 1, 0, 1),
        (Disposition.SUSPENDED, 0, 1, None),
    ],
)
def test_settlement_through_the_management_node_from_any_connection(
    broker: Broker, to: Disposition, active: int, dead: int, count: int | None
) -> None:
    """Req: L-14"""
    broker.send()
    (delivery,) = broker.receive()
    command = disposition(broker, token(delivery), to=to)
    assert broker.do(command) == [Done(command.reply_to)]
    view = broker.view()
    assert (view.active_count, view.dead_letter_count) == (active, dead)
    if count is not None:
        assert broker.peek()[0].delivery_count == count
    assert isinstance(broker.refused(command), MessageLockLost)


def test_a_disposition_of_several_is_all_or_none(broker: Broker) -> None:
    """Req: L-14, L-11"""
    broker.send()
    broker.send()
    first, second = broker.receive(2)
    assert isinstance(
        broker.refused(disposition(broker, token(first), LockToken(bytes(16)))), MessageLockLost
    )
    broker.do(disposition(broker, token(first), token(second), token(first)))
    assert broker.peek() == []


def test_a_disposition_hands_on_what_was_abandoned(broker: Broker) -> None:
    """Req: L-14"""
    broker.send()
    (delivery,) = broker.receive()
    broker.credit(broker.receiver())
    effects = broker.do(disposition(broker, token(delivery), to=Disposition.ABANDONED))
    assert numbers(deliveries(effects)) == [1]


def test_a_disposition_in_the_dead_letter_queue(broker: Broker) -> None:
    """Req: L-14, L-17"""
    broker.send()
    broker.dead_letter(broker.receive()[0])
    (dead,) = broker.receive_dead()
    suspend = disposition(broker, token(dead), to=Disposition.SUSPENDED, dead=True)
    assert isinstance(broker.refused(suspend), InvalidOperation)
    broker.do(disposition(broker, token(dead), dead=True))
    assert broker.view().dead_letter_count == 0


def test_a_disposition_refused_for_one_settles_none(broker: Broker) -> None:
    """Req: L-14, L-17"""
    for _ in range(2):
        broker.send()
    for index, delivery in enumerate(broker.receive(2)):
        broker.dead_letter(delivery, properties={"note": "x" * 60_000 * index})
    first, second = broker.receive_dead(2)
    address = Address("orders", SubQueue.DEAD_LETTER)
    tokens = [token(first), token(second)]
    properties = {"more": "x" * 10_000}
    command = UpdateDisposition(
        address, tokens, Disposition.ABANDONED, broker.reply_to(), properties=properties
    )
    assert isinstance(broker.refused(command), InvalidOperation)
    broker.complete(first, 5)
    broker.complete(second, 5)


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED])
def test_while_receiving_is_disabled_that_is_the_answer(broker: Broker, status: EntityStatus) -> None:
    """Req: L-11, A-04"""
    broker.send()
    link = broker.receiver()
    (delivery,) = broker.credit(link, 1)
    effects = broker.update(status=status)
    (detach,) = [effect for effect in effects if isinstance(effect, DetachLink)]
    assert detach.link == link
    assert isinstance(detach.error, EntityDisabled)
    assert isinstance(broker.refused(Complete(4, token(delivery), broker.reply_to())), EntityDisabled)
    broker.update(status=EntityStatus.ACTIVE)
    assert isinstance(broker.refused(Complete(4, token(delivery), broker.reply_to())), MessageLockLost)
    assert broker.receive()[0].delivery_count == 0
