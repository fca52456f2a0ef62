"""The deletion of a topic with many subscriptions, in slices."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.broker.handlers.deletions import WORK
from peeklock.broker.namespace import SLICE
from peeklock.broker.vocabulary.changes import EntityRemoved, EntityStored
from peeklock.broker.vocabulary.commands import (
    Address,
    Complete,
    CreateEntity,
    DeleteEntity,
    ListEntities,
    LookUp,
    OpenReceiver,
    ReceiveMode,
    ReplyTo,
    Send,
)
from peeklock.broker.vocabulary.descriptions import (
    EntityKind,
    SubscriptionDescription,
    TopicDescription,
    subscription_path,
)
from peeklock.broker.vocabulary.effects import (
    DetachLink,
    Done,
    Effect,
    EntitiesFound,
    Failed,
    LinkRefused,
    Rejected,
    Settled,
)
from peeklock.broker.vocabulary.errors import EntityDeleted, EntityNotFound, ServerBusy
from peeklock.broker.vocabulary.message import Message
from tests.broker.harness import EMPTY, MINUTE_MS, Broker, token

COUNT = 25


def path(name: str) -> str:
    return subscription_path("news", name)


def with_topic(count: int = COUNT, *, slice_items: int = 10, **settings: Any) -> Broker:
    """Make a broker with a topic, id 4, of so many subscriptions."""
    broker = Broker(slice_items=slice_items)
    broker.checks = False
    broker.create_topic(**settings)
    for number in range(count):
        broker.subscribe(f"s{number}")
    broker.checks = True
    return broker


def delete(broker: Broker) -> list[Effect]:
    """Begin to delete the topic; nothing that is due is done yet."""
    return broker.do(DeleteEntity("news", ReplyTo(9, 0, 9)))


def step(broker: Broker, count_max: int = 10 * WORK) -> list[Effect]:
    """Do one slice of the deletion, as `advance` of the namespace has it done, with less to do at once."""
    due = broker.namespace._shared.timers.take_due(broker.now_ms)
    assert due is broker.namespace._deletions
    out = broker.namespace._out
    out.begin_due(broker.now_ms)
    due.advance(count_max, out)
    changes, effects = out.take()
    broker._keep(changes)
    return effects


def removed(broker: Broker) -> list[int]:
    return [fact.entity_id for fact in broker.facts if isinstance(fact, EntityRemoved)]


def test_a_topic_of_as_many_subscriptions_as_a_slice_goes_at_once() -> None:
    """Req: A-01"""
    broker = with_topic(10)
    assert delete(broker)[-1] == Done(ReplyTo(9, 0, 9))
    assert removed(broker) == [*range(2, 12), 1]


def test_a_topic_of_more_goes_in_slices_and_is_answered_at_the_end() -> None:
    """Req: A-01, R-05"""
    broker = with_topic()
    assert delete(broker) == []
    assert removed(broker) == []
    found: list[Effect] = []
    for _ in range(3):
        assert found == []
        found += step(broker)
    assert found == [Done(ReplyTo(9, 0, 9))]
    assert removed(broker) == [*range(2, COUNT + 2), 1]
    assert not broker.namespace.is_deleting
    assert broker.namespace.timers.next_ms is None
    assert broker.namespace.entity_views() == []


def test_a_slice_of_due_work_removes_a_bounded_number() -> None:
    """Whatever else is due has its share of it. Req: R-05"""
    broker = with_topic(600, slice_items=256)
    delete(broker)
    counts = []
    while broker.namespace.is_deleting:
        changes, _ = broker.namespace.advance(broker.now_ms)
        counts.append(len(changes))
    assert sum(counts) == 601
    assert max(counts) <= SLICE // WORK + 2


def test_a_topic_under_deletion_is_there_for_nobody() -> None:
    """Req: A-01, A-04"""
    broker = with_topic()
    sender, receiver = broker.sender("news"), broker.receiver(path("s1"))
    detached = delete(broker)
    assert [type(effect) for effect in detached] == [DetachLink]
    assert isinstance(detached[0], DetachLink)
    assert detached[0].link == sender
    for name in ("news", "NEWS", path("s1"), path("s24")):
        failed = broker.one(LookUp(Address(name), broker.reply_to()), Failed)
        assert isinstance(failed.error, EntityNotFound)
        failed = broker.one(DeleteEntity(name, broker.reply_to()), Failed)
        assert isinstance(failed.error, EntityNotFound)
        opening = OpenReceiver(broker.link(), Address(name), ReceiveMode.PEEK_LOCK)
        assert isinstance(broker.one(opening, LinkRefused).error, EntityNotFound)
    assert broker.namespace.entity_views() == []
    for kind in EntityKind:
        assert broker.one(ListEntities(kind, 0, 100, broker.reply_to()), EntitiesFound).entities == []
    refused = broker.one(Send(4, Message(1), EMPTY, ReplyTo(1, 0, 7)), Rejected)
    assert isinstance(refused.error, EntityDeleted)
    effects = broker.settle_time()
    assert [effect.link for effect in effects if isinstance(effect, DetachLink)] == [receiver]


def test_the_name_is_taken_until_the_deletion_is_done() -> None:
    """Req: A-01"""
    broker = with_topic()
    delete(broker)
    for description, error in (
        (TopicDescription("News"), ServerBusy),
        (SubscriptionDescription("news", "s1"), EntityNotFound),
        (SubscriptionDescription("news", "other"), EntityNotFound),
    ):
        failed = broker.one(CreateEntity(description, broker.reply_to()), Failed)
        assert type(failed.error) is error
    broker.settle_time()
    broker.create_topic()
    broker.subscribe("s1")
    assert len(broker.namespace.entity_views()) == 2


def test_what_was_delivered_can_be_settled_until_its_subscription_goes() -> None:
    broker = with_topic()
    broker.publish()
    (view,) = broker.receive(name=path(f"s{COUNT - 1}"))
    delete(broker)
    settled = Complete((COUNT + 1) * 4, token(view), ReplyTo(1, 0, 8))
    assert broker.one(settled, Settled).reply_to == ReplyTo(1, 0, 8)


@pytest.mark.parametrize("steps", range(4))
def test_a_deletion_goes_on_after_a_crash(steps: int) -> None:
    """Between any two slices. Req: A-01, R-01"""
    broker = with_topic()
    broker.publish()
    delete(broker)
    for _ in range(steps):
        step(broker)
    broker.restart()
    assert broker.namespace.entity_views() == []
    assert broker.namespace.is_deleting == (steps < 3)
    assert not any(isinstance(effect, Done) for effect in broker.settle_time())  # its asker is gone
    assert sorted(removed(broker)) == list(range(1, COUNT + 2))
    assert broker.namespace.totals().entities == 0
    assert broker.namespace.totals().active_messages == 0
    broker.create_topic()


def test_the_mark_is_a_fact_of_the_first_commit() -> None:
    broker = with_topic()
    before = len(broker.facts)
    delete(broker)
    (mark,) = broker.facts[before:]
    assert isinstance(mark, EntityStored)
    assert (mark.entity_id, mark.deleting) == (1, True)


def test_several_topics_are_deleted_in_turns() -> None:
    broker = with_topic()
    broker.create_topic("others")
    for number in range(COUNT):
        broker.subscribe(f"s{number}", topic="others")
    delete(broker)
    broker.do(DeleteEntity("others", ReplyTo(9, 0, 10)))
    effects = [effect for _ in range(6) for effect in step(broker)]
    assert effects == [Done(ReplyTo(9, 0, 9)), Done(ReplyTo(9, 0, 10))]
    assert removed(broker)[10] == COUNT + 3  # the first one of the others


def test_an_idle_topic_goes_in_slices_too() -> None:
    """Req: A-03"""
    broker = with_topic(auto_delete_on_idle_ms=5 * MINUTE_MS)
    broker.advance(5 * MINUTE_MS)
    assert broker.namespace.entity_views() == []
    assert sorted(removed(broker)) == list(range(1, COUNT + 2))


def test_a_lock_on_deletions_holds_for_topics_of_many_subscriptions() -> None:
    """Req: A-03"""
    broker = Broker(slice_items=1, delete_lock=True)
    broker.create_topic()
    broker.subscribe("one")
    broker.subscribe("two")
    assert isinstance(delete(broker)[0], Failed)
    assert len(broker.namespace.entity_views()) == 3
