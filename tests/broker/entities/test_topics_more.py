"""Topics at their edges: many copies at once, what is parked, idle topics, texts that nothing can carry."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from peeklock.amqp import codec
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties, Sections, scan
from peeklock.amqp.types import Symbol
from peeklock.broker.entities.fan_out import OVERLAYS_BYTES_MAX
from peeklock.broker.handlers.storing import SLICE_MESSAGES
from peeklock.broker.queue.enqueue import COPIES_MAX
from peeklock.broker.vocabulary.changes import MessageStored, RuleStored
from peeklock.broker.vocabulary.commands import (
    Address,
    AddRule,
    Discharge,
    Enlist,
    Fetched,
    Send,
    SendBatch,
    SubQueue,
    UpdateRule,
)
from peeklock.broker.vocabulary.descriptions import EntityStatus, RuleDescription, subscription_path
from peeklock.broker.vocabulary.effects import Accepted, Effect, Fetch, RulesFound
from peeklock.broker.vocabulary.errors import ArgumentInvalid, QuotaExceeded
from peeklock.broker.vocabulary.message import Message, Routing
from peeklock.broker.vocabulary.quotas import STANDARD
from peeklock.rules.filters import CorrelationFilter, SqlAction, SqlFilter, TrueFilter
from tests.broker.harness import MINUTE_MS, Broker


def path(name: str, topic: str = "news") -> str:
    return subscription_path(topic, name)


def messages(count: int) -> list[tuple[Message, Sections]]:
    """Return messages of different sizes."""
    found = []
    for number in range(count):
        payload = encode_message(
            properties=Properties(message_id="1"), application_properties={"n": number}, data=b"x" * number
        )
        found.append((Message(len(payload), routing=Routing()), scan(payload)))
    return found


def answer(broker: Broker, effects: list[Effect], sent: list[tuple[Message, Sections]]) -> None:
    """Read what the core asks for until it asks no more."""
    payloads = {len(sections.payload): sections.payload for _, sections in sent}
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


@pytest.mark.parametrize("slice_items", [SLICE_MESSAGES, 10])
def test_a_batch_makes_a_bounded_number_of_copies_at_once_and_the_others_follow_in_order(
    slice_items: int,
) -> None:
    """Req: P-01, P-05, T-04. The bound is that of the command, however many steps it is done in."""
    broker = Broker(slice_items=slice_items)
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
    for number in range(20):
        broker.subscribe(f"s{number}", topic="last")
    for number in range(20):
        broker.subscribe(f"s{number}", topic="middle", forward_to="last")
        broker.subscribe(f"s{number}", forward_to="middle")
    since = len(broker.facts)
    sent = messages(1)
    effects = broker.do(SendBatch(topic_id, sent, broker.reply_to()))
    assert copies(broker, topic_id, since) <= COPIES_MAX + 20 + 20 + 20
    answer(broker, effects + broker.settle_time(), sent)
    assert broker.view(path("s0", "last")).active_count == 20 * 20
    assert broker.view(path("s19", "last")).active_count == 20 * 20


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


# Values


@pytest.mark.parametrize("value", [timedelta.max, timedelta.min, Decimal("sNaN")])
def test_a_rule_with_a_value_that_no_message_can_have_is_refused(value: Any) -> None:
    """The administration API takes time spans of a billion days; AMQP could not tell of them."""
    broker = Broker()
    broker.create_topic()
    broker.subscribe("all")
    pairs = (("@late", value),)
    for filter, action in (
        (CorrelationFilter(properties=(("late", value),)), None),
        (SqlFilter("late = @late", pairs), None),
        (SqlFilter("1 = 1"), SqlAction("SET late = @late", pairs)),
    ):
        rule = RuleDescription("odd", filter, action)
        assert isinstance(broker.refused(AddRule(path("all"), rule, broker.reply_to())), ArgumentInvalid)


# What cannot be passed on


def test_what_was_sent_via_a_topic_and_cannot_arrive_is_received_from_its_transfer_dead_letters() -> None:
    """Req: F-01"""
    broker = Broker()
    topic_id = broker.create_topic()
    broker.subscribe("all")
    broker.create("sales", status=EntityStatus.DISABLED)
    [(message, sections)] = messages(1)
    broker.do(Send(topic_id, message, sections, broker.reply_to(), Address("sales")))
    assert broker.view("news").transfer_dead_letter_count == 1
    assert broker.view("news").size_bytes == message.size_bytes
    broker.restart()
    transfers = SubQueue.TRANSFER_DEAD_LETTER
    assert len(broker.peek(name="news", sub_queue=transfers)) == 1
    [view] = broker.receive(1, "news", sub_queue=transfers)
    broker.complete(view, topic_id + transfers.value)
    assert broker.view("news").size_bytes == 0


# Limits


def test_a_rule_does_not_change_its_kind_beyond_the_tiers_number() -> None:
    """Req: A-05"""
    limits = replace(STANDARD, sql_filters_max=1)
    broker = Broker(limits, enforce_quotas=True)
    broker.create_topic()
    broker.subscribe("all")  # whose rule counts
    equality = CorrelationFilter(label="urgent")
    broker.add_rule("all", "urgent", equality)
    changed = RuleDescription("urgent", SqlFilter("sys.Label = 'urgent'"))
    error = broker.refused(UpdateRule(path("all"), changed, broker.reply_to()))
    assert isinstance(error, QuotaExceeded)
    changed = RuleDescription("$Default", SqlFilter("a = 1"))
    broker.one(UpdateRule(path("all"), changed, broker.reply_to()), RulesFound)  # one for one


def test_little_is_kept_of_messages_that_wait_for_their_copies() -> None:
    """Neither bodies nor footers, which may be as large; up to 64 messages of each topic are read at once."""
    broker = Broker()
    topic_id = broker.create_topic()
    broker.subscribe("all", CorrelationFilter(properties=(("n", 1),)))
    at_ms = broker.now_ms + 1000
    properties = encode_message(application_properties={"n": 1}, data=b"").removesuffix(
        b"\x00\x53\x75\xa0\x00"
    )
    footer = b"\x00\x53\x78" + codec.encode({Symbol("signature"): b"x" * 100_000})
    for payload in (properties, properties + footer):
        message = Message(len(payload), scheduled_at_ms=at_ms, routing=Routing())
        broker.do(Send(topic_id, message, scan(payload), broker.reply_to()))
    first, second = [effect for effect in broker.advance(1000) if isinstance(effect, Fetch)]
    tracemalloc.start()
    broker.do(Fetched(topic_id, second.message.position, properties + footer))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 20_000
    broker.do(Fetched(topic_id, first.message.position, properties))
    broker.settle_time()
    assert len(broker.peek(name=path("all"))) == 2


def test_what_the_actions_of_one_message_change_is_bounded() -> None:
    """Req: R-05, P-04"""
    broker = Broker()
    broker.create_topic()
    action = "SET a = p + ''; SET b = p + ''"
    for n in range(100):
        broker.subscribe(f"s{n}", TrueFilter(), action=action)
    broker.publish({"p": "x" * 30_000})
    views = [broker.view(subscription_path("news", f"s{n}")) for n in range(100)]
    made = [view for view in views if view.active_count]
    dead = [view for view in views if view.dead_letter_count]
    assert len(made) == OVERLAYS_BYTES_MAX // 60_044
    assert len(made) + len(dead) == 100


def test_a_stored_rule_that_is_refused_now_fails_for_each_message_and_can_be_replaced() -> None:
    """Req: P-04, R-07"""
    broker = Broker()
    broker.create_topic()
    broker.subscribe("all", TrueFilter())
    rule = next(fact for fact in broker.facts if isinstance(fact, RuleStored))
    rule.rule = RuleDescription("rule", SqlFilter("a = 1 -- as it was once"))
    broker.restart()
    broker.publish()
    view = broker.view(subscription_path("news", "all"))
    assert (view.active_count, view.dead_letter_count) == (0, 1)
    assert broker.namespace.totals().failed_evaluations == 1
    new = RuleDescription("rule", TrueFilter())
    broker.one(UpdateRule(subscription_path("news", "all"), new, broker.reply_to()), RulesFound)
    broker.publish()
    assert broker.view(subscription_path("news", "all")).active_count == 1
