"""Topics at their edges: many copies at once, what is parked, idle topics, texts that nothing can carry."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.amqp.messaging import encode_message
from peeklock.broker.arrival import COPIES_MAX
from peeklock.broker.changes import MessageStored
from peeklock.broker.commands import AddRule, Discharge, Enlist, Fetched, SendBatch
from peeklock.broker.descriptions import RuleDescription, subscription_path
from peeklock.broker.effects import Accepted, Effect, Fetch
from peeklock.broker.errors import ArgumentInvalid
from peeklock.broker.message import Message, Routing
from peeklock.rules.filters import SqlAction, SqlFilter
from tests.broker.playbook import MINUTE_MS, Broker


def path(name: str, topic: str = "news") -> str:
    return subscription_path(topic, name)


def messages(count: int) -> list[tuple[Message, bytes]]:
    """Give messages, each of a size of its own."""
    found = []
    for number in range(count):
        payload = encode_message(application_properties={"n": number}, data=b"x" * number)
        found.append((Message(len(payload), routing=Routing()), payload))
    return found


def answer(broker: Broker, effects: list[Effect], sent: list[tuple[Message, bytes]]) -> None:
    """Read what the core asks for until it asks no more."""
    payloads = {len(payload): payload for _, payload in sent}
    left = [effect for effect in effects if isinstance(effect, Fetch)]
    while left:
        fetch = left.pop(0)
        message = fetch.message
        more = broker.do(Fetched(fetch.queue_id, message.position, payloads[message.size_bytes]))
        left += [effect for effect in more + broker.settle_time() if isinstance(effect, Fetch)]


def copies(broker: Broker, topic_id: int, since: int) -> int:
    """How many copies were stored since then."""
    stored = [fact for fact in broker.facts[since:] if isinstance(fact, MessageStored)]
    return sum(fact.queue_id != topic_id for fact in stored)


# Many copies


def test_a_batch_makes_a_bounded_number_of_copies_at_once_and_the_others_follow_in_order() -> None:
    """Req: P-01, P-05, T-04"""
    broker = Broker()
    broker.checks = False
    topic_id = broker.create_topic()
    names = [f"s{number}" for number in range(40)]
    for name in names:
        broker.subscribe(name)
    sent = messages(150)
    since = len(broker.facts)
    effects = broker.do(SendBatch(topic_id, sent, broker.reply_to()))
    assert isinstance(effects[0], Accepted)
    assert copies(broker, topic_id, since) <= COPIES_MAX + len(names)
    broker.send_batch(late := [message for message, _ in messages(1)], topic_id)  # waits behind them
    assert not [view for view in broker.peek(name=path("s0")) if view.message.enqueued_sequence_number == 151]
    assert late[0].sequence_number == 151
    answer(broker, effects + broker.settle_time(), [*sent, *messages(1)])
    for name in names:
        views = broker.peek(name=path(name))
        assert [view.message.sequence_number for view in views] == list(range(1, 152))
        assert [view.message.enqueued_sequence_number for view in views] == list(range(1, 152))
        assert {view.message.enqueued_at_ms for view in views} == {broker.now_ms}
    broker.namespace.check(broker.now_ms)


def test_topics_that_forward_to_topics_make_a_bounded_number_of_copies_at_once() -> None:
    """Req: F-01, P-05"""
    broker = Broker()
    broker.checks = False
    for topic in ("last", "middle"):
        broker.create_topic(topic)
    topic_id = broker.create_topic()
    for number in range(60):
        broker.subscribe(f"s{number}", topic="last")
    for number in range(60):
        broker.subscribe(f"s{number}", topic="middle", forward_to="last")
        broker.subscribe(f"s{number}", forward_to="middle")
    since = len(broker.facts)
    sent = messages(1)
    effects = broker.do(SendBatch(topic_id, sent, broker.reply_to()))
    assert copies(broker, topic_id, since) <= COPIES_MAX + 60 + 60 + 60
    answer(broker, effects + broker.settle_time(), sent)
    assert broker.view(path("s0", "last")).active_count == 60 * 60
    assert broker.view(path("s59", "last")).active_count == 60 * 60


def test_what_a_transaction_sends_beyond_that_follows_also_after_a_crash() -> None:
    """Req: F-03, P-01"""
    broker = Broker()
    broker.checks = False
    topic_id = broker.create_topic()
    for number in range(60):
        broker.subscribe(f"s{number}")
    sent = messages(99)
    link = broker.coordinator()
    transaction_id = broker.declare(link)
    broker.do(Enlist(1, transaction_id, SendBatch(topic_id, sent, broker.reply_to())))
    broker.do(Discharge(link, transaction_id, False, broker.reply_to()))
    assert 0 < broker.view(path("s0")).active_count < 99
    broker.restart()
    answer(broker, broker.settle_time(), sent)
    for number in range(60):
        views = broker.peek(name=path(f"s{number}"))
        assert [view.message.enqueued_sequence_number for view in views] == list(range(1, 100))


# Idle topics


def test_what_was_done_with_a_subscription_keeps_its_topic_also_when_the_subscription_is_gone() -> None:
    """Req: A-03"""
    broker = Broker()
    broker.create_topic(auto_delete_on_idle_ms=10 * MINUTE_MS)
    broker.subscribe("short", auto_delete_on_idle_ms=5 * MINUTE_MS)
    broker.advance(4 * MINUTE_MS)
    broker.receive(1, path("short"))
    broker.advance(6 * MINUTE_MS)
    assert broker.view("news").subscription_count == 0
    broker.advance(4 * MINUTE_MS - 1)
    assert broker.namespace.totals().entities == 1
    broker.advance(1)
    assert broker.namespace.totals().entities == 0


# Texts


@pytest.mark.parametrize(
    "given",
    [
        {"filter": "[\ud800] = 1"},
        {"filter": "a = '\ud800'"},
        {"filter": "1 = 1", "action": "SET [\ud800] = 1"},
        {"filter": "1 = 1", "action": "REMOVE [\ud800]"},
    ],
)
def test_a_rule_with_half_a_character_is_refused(given: dict[str, Any]) -> None:
    """A configuration file in JSON can hold what no message, and no store, can."""
    broker = Broker()
    broker.create_topic()
    broker.subscribe("all")
    action = SqlAction(given["action"]) if "action" in given else None
    rule = RuleDescription("odd", SqlFilter(given["filter"]), action)
    assert isinstance(broker.refused(AddRule(path("all"), rule, broker.reply_to())), ArgumentInvalid)
