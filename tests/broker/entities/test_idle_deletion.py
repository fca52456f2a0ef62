"""Deleting queues that nobody uses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from peeklock.broker.entities.idle import CHECK_AGAIN_MS
from peeklock.broker.vocabulary.changes import EntityRemoved
from peeklock.broker.vocabulary.commands import (
    Address,
    CancelScheduled,
    CloseLink,
    CreateEntity,
    DeleteEntity,
    LookUp,
    Send,
    SetCredit,
    SubQueue,
    UpdateEntity,
)
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS, EntityStatus, QueueDescription
from peeklock.broker.vocabulary.effects import DetachLink
from peeklock.broker.vocabulary.errors import EntityDeleted, InvalidOperation, NotSupported
from peeklock.broker.vocabulary.events import FLUSH_MS
from peeklock.broker.vocabulary.quotas import BASIC
from tests.broker.harness import EMPTY, LOTS, MINUTE_MS, START_MS, Broker, arriving

IDLE_MS = 5 * MINUTE_MS


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create(auto_delete_on_idle_ms=IDLE_MS)
    return made


def is_there(broker: Broker, name: str = "orders") -> bool:
    return any(view.description.name == name for view in broker.namespace.entity_views())


def assert_idle_since(broker: Broker, since_ms: int, *, late_ms: int = 0, name: str = "orders") -> None:
    """The queue is deleted at the end of its idle time, and never before."""
    broker.advance(since_ms + IDLE_MS - broker.now_ms - 1)
    assert is_there(broker, name)
    broker.advance(1 + late_ms)
    assert not is_there(broker, name)


def test_an_unused_queue_is_deleted_with_its_messages_and_links(broker: Broker) -> None:
    """Req: A-03"""
    sender = broker.sender()
    broker.send()
    broker.advance(IDLE_MS - 1)
    assert is_there(broker)
    effects = broker.advance(1)
    assert [(effect.link, type(effect.error)) for effect in effects if isinstance(effect, DetachLink)] == [
        (sender, EntityDeleted)
    ]
    assert isinstance(broker.facts[-1], EntityRemoved)
    assert not is_there(broker)
    assert len(list(broker.namespace.removed_entity_messages(1))) == 1
    assert broker.namespace.timers.next_ms is None
    broker.restart()
    assert not is_there(broker)


def test_a_new_queue_is_idle_from_its_creation_on(broker: Broker) -> None:
    """Req: A-03"""
    assert_idle_since(broker, broker.now_ms)


def _browse(broker: Broker) -> None:
    broker.peek()


def _browse_dead_letters(broker: Broker) -> None:
    broker.peek_dead()


def _receive_nothing(broker: Broker) -> None:
    assert broker.receive(5) == []


def _receive_dead(broker: Broker) -> None:
    assert broker.receive_dead() == []


def _update(broker: Broker) -> None:
    broker.update(lock_duration_ms=30_000)


def _update_nothing(broker: Broker) -> None:
    broker.update()


def _schedule_and_cancel(broker: Broker) -> None:
    found = broker.schedule(MINUTE_MS)
    broker.do(CancelScheduled(Address("orders"), found, broker.reply_to()))


def _send_in_a_transaction(broker: Broker) -> None:
    link = broker.coordinator()
    transaction = broker.declare(link)
    broker.enlist(transaction, Send(4, arriving(), EMPTY, broker.reply_to()))
    broker.discharge(link, transaction)


@pytest.mark.parametrize(
    "use",
    [
        Broker.send,
        _browse,
        _browse_dead_letters,
        _receive_nothing,
        _receive_dead,
        _update,
        _update_nothing,
        _schedule_and_cancel,
        _send_in_a_transaction,
    ],
)
def test_any_use_starts_the_idle_time_anew(broker: Broker, use: Callable[[Broker], None]) -> None:
    """Req: A-03"""
    broker.advance(3 * MINUTE_MS)
    use(broker)
    assert_idle_since(broker, broker.now_ms)


def test_refused_sends_look_ups_and_links_without_credit_are_no_use(broker: Broker) -> None:
    """Req: A-03"""
    since_ms = broker.now_ms
    broker.advance(3 * MINUTE_MS)
    broker.refused(Send(4, arriving(1 << 20), EMPTY, broker.reply_to()))
    broker.view()
    broker.sender()
    broker.receiver()
    assert_idle_since(broker, since_ms)


def test_a_receiver_with_credit_is_use_until_it_is_gone(broker: Broker) -> None:
    """Req: A-03"""
    link = broker.receiver()
    broker.credit(link, 1)
    broker.advance(3 * IDLE_MS + MINUTE_MS)
    broker.do(CloseLink(link))
    assert_idle_since(broker, broker.now_ms, late_ms=CHECK_AGAIN_MS)


@pytest.mark.parametrize("broken", [True, False])
def test_a_receiver_with_credit_is_use_until_its_connection_is_gone(broker: Broker, broken: bool) -> None:
    """Req: A-03"""
    broker.credit(broker.receiver(sub_queue=SubQueue.DEAD_LETTER), 1)
    broker.advance(3 * IDLE_MS + MINUTE_MS)
    broker.drop(broken=broken)
    assert_idle_since(broker, broker.now_ms, late_ms=CHECK_AGAIN_MS)


def test_a_receiver_that_uses_its_credit_up_was_use_until_then(broker: Broker) -> None:
    """Req: A-03"""
    broker.send()
    (held,) = broker.receive(1)
    broker.credit(broker.receiver(deletes=True), 1)
    for _ in range(7):
        broker.advance(MINUTE_MS - 1)
        broker.renew(held)
    broker.advance(MINUTE_MS)  # the lock lapses, and the receiver with credit gets the message
    assert broker.peek() == []
    assert_idle_since(broker, broker.now_ms, late_ms=CHECK_AGAIN_MS)


def test_a_receiver_whose_credit_is_used_up_before_anybody_looks_was_use_until_then(broker: Broker) -> None:
    """Req: A-03"""
    broker.update(lock_duration_ms=4 * MINUTE_MS)
    broker.send()
    broker.receive(1)
    broker.credit(broker.receiver(deletes=True), 1)
    broker.advance(4 * MINUTE_MS)  # the lock lapses, and the receiver with credit gets the message
    assert broker.namespace.totals().active_messages == 0
    assert_idle_since(broker, broker.now_ms)


def test_an_update_after_use_does_not_make_the_deletion_late(broker: Broker) -> None:
    """Req: A-03"""
    link = broker.receiver()
    broker.credit(link, 1)
    broker.advance(IDLE_MS + MINUTE_MS)
    broker.do(CloseLink(link))
    broker.update(max_delivery_count=7)
    assert_idle_since(broker, broker.now_ms)


def test_who_waits_for_a_session_is_use(broker: Broker) -> None:
    """Req: A-03, G-04"""
    broker.create("steps", requires_session=True, auto_delete_on_idle_ms=IDLE_MS)
    wish = broker.wish(name="steps", wait_ms=2 * IDLE_MS)
    assert broker.do(wish) == []
    broker.advance(2 * IDLE_MS - 1)
    assert not is_there(broker)
    assert is_there(broker, "steps")
    broker.advance(1)
    assert_idle_since(broker, broker.now_ms, late_ms=CHECK_AGAIN_MS, name="steps")


def test_an_accepted_session_is_use(broker: Broker) -> None:
    """Req: A-03, G-01"""
    broker.create("steps", requires_session=True, auto_delete_on_idle_ms=IDLE_MS)
    broker.advance(3 * MINUTE_MS)
    broker.accept("s", "steps")
    broker.advance(IDLE_MS - 1)
    assert is_there(broker, "steps")
    broker.advance(2 * MINUTE_MS)
    assert not is_there(broker, "steps")


def test_a_scheduled_message_is_use_until_it_is_enqueued(broker: Broker) -> None:
    """Req: A-03, S-07"""
    broker.schedule(3 * IDLE_MS + MINUTE_MS)
    broker.advance(3 * IDLE_MS + MINUTE_MS)
    assert broker.view().active_count == 1
    assert_idle_since(broker, broker.now_ms, late_ms=CHECK_AGAIN_MS)


def test_messages_that_lie_there_do_not_count_nor_do_locked_ones(broker: Broker) -> None:
    """Req: A-03"""
    for _ in range(4):
        broker.send()
    views = broker.receive(4)
    broker.defer(views[0])
    broker.dead_letter(views[1])
    broker.abandon(views[2])
    broker.advance(MINUTE_MS - 1)
    broker.renew(views[3])
    assert_idle_since(broker, START_MS)


def test_a_queue_that_forwards_is_never_idle(broker: Broker) -> None:
    """Req: F-02, A-03"""
    broker.create("target")
    broker.update(forward_to="target")
    broker.advance(10 * IDLE_MS)
    assert is_there(broker)
    broker.update(forward_to=None)
    assert_idle_since(broker, broker.now_ms)


def test_a_queue_that_only_forwards_its_dead_letters_is_idle_like_any(broker: Broker) -> None:
    """Req: F-02, A-03"""
    broker.create("target")
    broker.update(forward_dead_lettered_to="target")
    assert_idle_since(broker, broker.now_ms)


def test_what_is_forwarded_to_a_queue_is_use(broker: Broker) -> None:
    """Req: A-03, F-01"""
    source = broker.create("source", forward_to="orders")
    broker.advance(3 * MINUTE_MS)
    broker.send(source)
    assert_idle_since(broker, broker.now_ms)


def test_the_idle_time_begins_anew_at_start_up(broker: Broker) -> None:
    """Req: A-03, R-02"""
    broker.send()
    broker.advance(IDLE_MS - 1)
    broker.restart(down_ms=10 * IDLE_MS)
    assert_idle_since(broker, broker.now_ms)


def test_another_idle_time_counts_from_the_update_on(broker: Broker) -> None:
    """Req: A-03, A-07"""
    broker.update(auto_delete_on_idle_ms=UNLIMITED_MS)
    broker.advance(100 * IDLE_MS)
    assert broker.namespace.timers.next_ms is None
    broker.update(auto_delete_on_idle_ms=2 * IDLE_MS)
    broker.advance(MINUTE_MS)
    broker.update(auto_delete_on_idle_ms=IDLE_MS)
    assert_idle_since(broker, broker.now_ms)


def test_a_lock_on_the_namespace_does_not_keep_an_idle_queue() -> None:
    """Req: A-03"""
    broker = Broker(delete_lock=True)
    broker.create(auto_delete_on_idle_ms=IDLE_MS)
    assert type(broker.refused(DeleteEntity("orders", broker.reply_to()))) is InvalidOperation
    assert_idle_since(broker, broker.now_ms)


def test_a_disabled_queue_is_idle_too(broker: Broker) -> None:
    """Req: A-03, A-04"""
    broker.update(status=EntityStatus.DISABLED)
    assert_idle_since(broker, broker.now_ms)


def test_a_queue_of_the_same_name_has_a_time_of_its_own(broker: Broker) -> None:
    """Req: A-03"""
    broker.advance(MINUTE_MS)
    broker.do(DeleteEntity("orders", broker.reply_to()))
    broker.create(auto_delete_on_idle_ms=IDLE_MS)
    assert_idle_since(broker, broker.now_ms)


def test_a_late_timer_deletes_late_and_looks_first(broker: Broker) -> None:
    """Req: A-03"""
    broker.jump(IDLE_MS + 1_000)
    broker.send()
    broker.settle_time()
    assert_idle_since(broker, broker.now_ms)


def test_the_basic_tier_has_no_idle_deletion() -> None:
    """Req: A-03, A-05"""
    broker = Broker(BASIC)
    broker.create()
    asked = QueueDescription("new", auto_delete_on_idle_ms=IDLE_MS)
    assert type(broker.refused(CreateEntity(asked, broker.reply_to()))) is NotSupported
    changed = QueueDescription("orders", auto_delete_on_idle_ms=IDLE_MS)
    assert type(broker.refused(UpdateEntity(changed, broker.reply_to()))) is NotSupported
    assert broker.do(LookUp(Address("orders"), broker.reply_to()))


def test_an_entity_may_be_looked_at_when_events_wait_for_their_batch(broker: Broker) -> None:
    """Both are due at one instant, the first entity and the recorder of events."""
    broker.send(broker.create("other"))
    link = broker.receiver("other")
    broker.jump(IDLE_MS - FLUSH_MS)
    broker.namespace.apply(SetCredit(link, 1, LOTS), broker.now_ms)
    broker.advance(FLUSH_MS)
    assert not is_there(broker)
