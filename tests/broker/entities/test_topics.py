"""Topics: who gets which copy of a message, and what a copy is."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from peeklock.amqp.codec import encode
from peeklock.amqp.messaging import Sections, scan
from peeklock.amqp.types import ULong
from peeklock.broker.content.subject import overlaid
from peeklock.broker.vocabulary.changes import EntityRemoved, MessageRemoved, MessageStored, RuleStored
from peeklock.broker.vocabulary.commands import (
    Abandon,
    Address,
    AddRule,
    CancelScheduled,
    CreateEntity,
    DeleteEntity,
    Fetched,
    ListEntities,
    ListRules,
    OpenReceiver,
    OpenSender,
    Peek,
    PurgeMessages,
    ReceiveMode,
    RemoveRule,
    Schedule,
    Send,
    SequenceNumber,
    SetSessionState,
    SubQueue,
    UpdateEntity,
    UpdateRule,
)
from peeklock.broker.vocabulary.descriptions import (
    EntityKind,
    EntityStatus,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.effects import (
    DetachLink,
    Done,
    EntitiesFound,
    EntityFound,
    Fetch,
    MessagesFound,
    RulesFound,
    SenderOpened,
    SettlementFailed,
)
from peeklock.broker.vocabulary.errors import (
    ArgumentInvalid,
    EntityAlreadyExists,
    EntityDeleted,
    EntityNotFound,
    InvalidOperation,
    MessageLockLost,
    MessageNotFound,
    NameInvalid,
    NotSupported,
    QuotaExceeded,
    RuleAlreadyExists,
    RuleNotFound,
)
from peeklock.broker.vocabulary.message import Message, MessageState, Routing
from peeklock.broker.vocabulary.quotas import BASIC, STANDARD
from peeklock.rules.filters import AsGiven, CorrelationFilter, FalseFilter, SqlAction, SqlFilter, TrueFilter
from tests.broker.harness import EMPTY, MINUTE_MS, Broker, numbers, payload_of

DEAD = SubQueue.DEAD_LETTER


def path(name: str, topic: str = "news") -> str:
    return f"{topic}/Subscriptions/{name}"


def changed(message: Message) -> dict[str, Any]:
    """What the overlay of a message says, the kind of each key told by its type."""
    return {f"{type(key).__name__} {key}": value for key, value in overlaid(message.overlay or encode({}))}


@pytest.fixture
def broker() -> Broker:
    """Topic 'news' (4) with subscriptions 'all' (8) and 'red' (12)."""
    made = Broker()
    made.create_topic()
    made.subscribe("all")
    made.subscribe("red", CorrelationFilter(properties=(("colour", "red"),)))
    return made


def has(broker: Broker, name: str, sub_queue: SubQueue = SubQueue.MAIN, topic: str = "news") -> list[int]:
    """The topic's numbers of what a subscription has."""
    views = broker.peek(name=path(name, topic), sub_queue=sub_queue)
    return [view.message.enqueued_sequence_number for view in views]


def answer(broker: Broker, effects: list[Any]) -> None:
    """Read what the core asked for, as whoever dispatches effects does, until it asks no more."""
    left = [effect for effect in effects if isinstance(effect, Fetch)]
    while left:
        fetch = left.pop(0)
        payload = broker.payloads[fetch.message.size_bytes]
        more = broker.do(Fetched(fetch.queue_id, fetch.message.position, payload))
        more += broker.settle_time()
        left += [effect for effect in more if isinstance(effect, Fetch)]


# Copies


def test_each_subscription_gets_what_its_rules_choose(broker: Broker) -> None:
    """Req: P-01, P-02"""
    for colour in ("red", "green", "red", None):
        broker.publish(None if colour is None else {"colour": colour})
    assert has(broker, "all") == [1, 2, 3, 4]
    assert has(broker, "red") == [1, 3]


def test_a_subscription_numbers_its_copies_itself_and_they_know_the_topics_number(broker: Broker) -> None:
    """Req: S-01, P-01"""
    for colour in ("green", "red", "green", "red"):
        broker.publish({"colour": colour})
    views = broker.peek(name=path("red"))
    assert numbers(views) == [1, 2]
    assert [view.message.enqueued_sequence_number for view in views] == [2, 4]


def test_all_copies_share_one_body_given_once_and_come_in_one_frame(broker: Broker) -> None:
    """Req: P-01"""
    facts = len(broker.facts)
    broker.publish({"colour": "red"})
    stored = [fact for fact in broker.facts[facts:] if isinstance(fact, MessageStored)]
    assert [fact.queue_id for fact in stored] == [8, 12]
    first, second = (fact.payload for fact in stored)
    assert first is not None
    assert first is second


def test_the_copies_of_a_scheduled_message_are_known_to_come_from_one(broker: Broker) -> None:
    """Also where an action changed them. Req: P-01, S-06. Source: wire contract C10."""
    broker.add_rule("all", "marks", TrueFilter(), "SET marked = 1")
    broker.publish({}, scheduled_at_ms=broker.now_ms + 1_000)
    answer(broker, broker.advance(1_000))
    broker.publish({})
    found = [
        (v.message.enqueued_sequence_number, v.message.was_scheduled) for v in broker.peek(name=path("all"))
    ]
    assert sorted(found) == [(1, True), (1, True), (3, False), (3, False)]


def test_each_copy_has_its_own_lock_count_and_dead_letter_queue(broker: Broker) -> None:
    """Req: P-01, L-17"""
    broker.publish({"colour": "red"})
    (mine,) = broker.receive(name=path("all"))
    (other,) = broker.receive(name=path("red"))
    assert mine.lock_token != other.lock_token
    broker.abandon(mine, queue_id=8)
    (again,) = broker.receive(name=path("all"))
    assert again.delivery_count == 1
    broker.dead_letter(again, queue_id=8, reason="no")
    broker.complete(other, queue_id=12)
    assert has(broker, "all") == has(broker, "red") == has(broker, "red", DEAD) == []
    assert has(broker, "all", DEAD) == [1]


def test_a_message_that_no_rule_chooses_is_accepted_and_gone() -> None:
    """Req: P-01"""
    broker = Broker()
    broker.create_topic()
    broker.subscribe("never", FalseFilter())
    broker.publish()
    assert not [fact for fact in broker.facts if isinstance(fact, MessageStored)]
    assert broker.view("news").unmatched_count == 1
    assert broker.namespace.totals().unmatched_messages == 1
    broker.restart()
    broker.subscribe("late")
    broker.publish()
    assert has(broker, "late") == [2]  # its number was used


def test_a_topic_without_subscriptions_takes_messages() -> None:
    """Req: P-01"""
    broker = Broker()
    broker.create_topic()
    broker.publish()
    assert broker.view("news").unmatched_count == 1


def test_several_rules_without_an_action_give_one_copy(broker: Broker) -> None:
    """Req: P-02

    Source: wire contract 9.1.
    """
    broker.add_rule("red", "too", TrueFilter())
    broker.publish({"colour": "red"})
    assert has(broker, "red") == [1]


def test_each_rule_with_an_action_gives_a_copy_that_bears_its_name(broker: Broker) -> None:
    """Req: P-02

    Source: wire contract 9.1.
    """
    broker.add_rule("all", "one", TrueFilter(), "SET sys.Label = 'x'; REMOVE colour")
    broker.add_rule("all", "two", SqlFilter("colour = 'red'"), "SET colour = 'blue'; SET n = 1 + 2")
    broker.publish({"colour": "red"}, subject="s")
    views = broker.peek(name=path("all"))
    assert numbers(views) == [1, 2, 3]
    assert [changed(view.message) for view in views] == [
        {},
        {"Symbol subject": "x", "bytes b'colour'": None, "str RuleName": "one"},
        {"str colour": "blue", "str n": 3, "str RuleName": "two"},
    ]


def test_what_an_action_sets_decides_where_the_copy_goes() -> None:
    """Req: P-02, G-01, D-01"""
    broker = Broker()
    broker.create_topic()
    broker.create("unique", requires_duplicate_detection=True)  # 8
    broker.subscribe("held", TrueFilter(), action="SET sys.SessionId = kind", requires_session=True)
    broker.subscribe("once", TrueFilter(), action="SET sys.MessageId = kind", forward_to="unique")
    for kind in ("a", "b", "a"):
        broker.publish({"kind": kind}, message_id=f"id-{kind}")
    assert [view.message.session_id for view in broker.peek(name=path("held"))] == ["a", "b", "a"]
    assert len(broker.peek(name="unique")) == 2


def test_an_action_can_shorten_the_time_to_live() -> None:
    """Req: P-02, E-01"""
    broker = Broker()
    broker.create_topic()
    description = SubscriptionDescription("news", "short")
    action = SqlAction("SET sys.TimeToLive = @ttl", (("@ttl", timedelta(minutes=1)),))
    rule = RuleDescription("rule", TrueFilter(), action)
    broker.do(CreateEntity(description, broker.reply_to(), rule))
    broker.publish(ttl_ms=60 * MINUTE_MS)
    assert broker.peek(name=path("short"))[0].ttl_ms == MINUTE_MS
    broker.advance(MINUTE_MS)
    assert has(broker, "short") == []


# Errors of rules


@pytest.mark.parametrize("dead_letters", [True, False])
def test_what_cannot_be_evaluated_is_dead_lettered_where_asked(dead_letters: bool) -> None:
    """Req: P-04"""
    broker = Broker()
    broker.create_topic()
    broker.subscribe("split", SqlFilter("10 / n = 5"), dead_lettering_on_filter_errors=dead_letters)
    for n in (2, 0, 3):
        broker.publish({"n": n})
    assert has(broker, "split") == [1]
    assert has(broker, "split", DEAD) == ([2] if dead_letters else [])
    if dead_letters:
        (view,) = broker.peek(name=path("split"), sub_queue=DEAD)
        assert view.message.sequence_number == 2  # of the subscription
        reasons = changed(view.message)
        assert reasons["str DeadLetterReason"] == "FilterEvaluationException"
        assert "'rule'" in reasons["str DeadLetterErrorDescription"]


def test_the_dead_letter_of_a_rule_stands_for_all_copies_of_its_subscription() -> None:
    """Req: P-04"""
    broker = Broker()
    broker.create_topic()
    broker.subscribe("split", SqlFilter("10 / n = 5"))
    broker.add_rule("split", "plain", TrueFilter())
    broker.add_rule("split", "acting", TrueFilter(), "SET m = 10 / n")
    broker.publish({"n": 0})
    broker.publish({"n": 2})
    assert has(broker, "split", DEAD) == [1]
    assert has(broker, "split") == [2, 2]


def test_an_action_that_fails_keeps_the_plain_copy_back() -> None:
    """The rule without an action stands before or behind the one that fails. Req: P-04"""
    broker = Broker()
    broker.create_topic()
    broker.subscribe("before")
    broker.add_rule("before", "divide", TrueFilter(), "SET m = 10 / n")
    broker.subscribe("behind", TrueFilter(), action="SET m = 10 / n")
    broker.add_rule("behind", "plain", TrueFilter())
    broker.publish({"n": 0})
    for name in ("before", "behind"):
        assert (has(broker, name), has(broker, name, DEAD)) == ([], [1])


def test_an_action_that_fails_is_like_a_filter_that_fails() -> None:
    """Req: P-04"""
    broker = Broker()
    broker.create_topic()
    broker.subscribe("strict", TrueFilter(), action="SET m = 10 / n")
    broker.subscribe("lax", TrueFilter(), action="SET m = 10 / n", dead_lettering_on_filter_errors=False)
    broker.publish({"n": 0})
    assert (has(broker, "strict"), has(broker, "strict", DEAD)) == ([], [1])
    assert (has(broker, "lax"), has(broker, "lax", DEAD)) == ([], [])


def test_evaluations_that_fail_are_counted() -> None:
    """Req: P-04"""
    broker = Broker()
    broker.create_topic()
    broker.subscribe("filter", SqlFilter("10 / n = 5"), dead_lettering_on_filter_errors=False)
    broker.subscribe("action", TrueFilter(), action="SET m = 10 / n")
    broker.publish({"n": 0})
    assert broker.namespace.totals().failed_evaluations == 2


def scheduling(broker: Broker, **settings: Any) -> datetime:
    """Make a subscription schedule its copies a minute from now."""
    due = datetime.fromtimestamp(broker.now_ms / 1000 + 60, UTC)
    action = SqlAction("SET sys.ScheduledEnqueueTimeUtc = @t", (("@t", due),))
    rule = RuleDescription("rule", TrueFilter(), action)
    broker.do(CreateEntity(SubscriptionDescription("news", "on", **settings), broker.reply_to(), rule))
    return due


def test_a_time_that_an_action_sets_counts_where_the_copy_is_forwarded_to() -> None:
    """Req: P-02, S-05, F-01

    Source: Learn "Topic filters and actions", on scheduled messages.
    """
    broker = Broker()
    broker.create_topic()
    broker.create("target")
    due = scheduling(broker, forward_to="target")
    broker.publish()
    (view,) = broker.peek(name="target")
    assert view.state is MessageState.SCHEDULED
    assert changed(view.message)["Symbol x-opt-scheduled-enqueue-time"] == due.timestamp() * 1000
    broker.advance(MINUTE_MS)
    assert broker.view("target").active_count == 1


def test_a_time_that_an_action_sets_is_not_forgotten_while_the_copy_waits_to_be_forwarded() -> None:
    """Req: P-02, S-05, F-01"""
    broker = Broker()
    broker.create_topic()
    broker.create("target", requires_duplicate_detection=True)
    scheduling(broker)
    broker.publish(message_id="a")
    assert has(broker, "on") == [1]  # of no effect in the subscription
    broker.update(path("on"), forward_to="target")
    effects = broker.settle_time()
    broker.publish(message_id="bb")
    answer(broker, effects)
    views = broker.peek(name="target")
    assert [view.state for view in views] == [MessageState.ACTIVE, MessageState.SCHEDULED]


def test_an_action_cannot_leave_a_partition_key_beside_another_session_id() -> None:
    """Req: P-04, S-02

    The empty session id is none. Source: wire contract 3.3, C11.
    """
    broker = Broker()
    broker.create_topic()
    broker.subscribe("key", TrueFilter(), action="SET sys.PartitionKey = 'k'")
    broker.subscribe("both", TrueFilter(), action="SET sys.PartitionKey = 'k'; SET sys.SessionId = 'k'")
    broker.publish(group_id="s")
    broker.publish()
    broker.publish(group_id="")
    assert (has(broker, "key"), has(broker, "key", DEAD)) == ([2, 3], [1])
    assert has(broker, "both") == [1, 2, 3]


# What a subscription can do


def test_a_message_without_session_id_is_a_dead_letter_of_a_subscription_with_sessions(
    broker: Broker,
) -> None:
    """Req: G-01, P-01

    Source: wire contract 3.8.
    """
    broker.subscribe("held", requires_session=True)  # 16
    broker.publish(group_id="s")
    broker.publish()
    opened = broker.accept(name=path("held"))
    assert opened.session_id == "s"
    assert [d.message.enqueued_sequence_number for d in broker.credit(opened.link)] == [1]
    (dead,) = broker.peek(name=path("held"), sub_queue=DEAD)
    assert changed(dead.message)["str DeadLetterReason"] == "Session ID is null."


def test_the_shorter_time_to_live_of_topic_and_subscription_applies() -> None:
    """Req: E-07"""
    broker = Broker()
    broker.create_topic(default_ttl_ms=2 * MINUTE_MS)
    broker.subscribe("long", default_ttl_ms=5 * MINUTE_MS, dead_lettering_on_expiration=True)
    broker.subscribe("short", default_ttl_ms=MINUTE_MS)
    broker.subscribe("none")
    broker.publish()
    broker.publish(ttl_ms=MINUTE_MS // 2)
    broker.publish(ttl_ms=10 * MINUTE_MS)
    broker.advance(MINUTE_MS // 2)
    assert [has(broker, name) for name in ("long", "short", "none")] == [[1, 3]] * 3
    broker.advance(MINUTE_MS // 2)
    assert [has(broker, name) for name in ("long", "short", "none")] == [[1, 3], [], [1, 3]]
    broker.advance(MINUTE_MS)
    assert [has(broker, name) for name in ("long", "short", "none")] == [[], [], []]
    assert has(broker, "long", DEAD) == [1, 2, 3]


def test_a_change_of_the_topics_time_to_live_reaches_what_its_subscriptions_have(broker: Broker) -> None:
    """Req: E-04, E-07"""
    broker.publish()
    broker.update("news", default_ttl_ms=MINUTE_MS)
    broker.advance(MINUTE_MS)
    assert has(broker, "all") == []


def test_duplicates_are_found_at_the_topic() -> None:
    """Req: D-01"""
    broker = Broker()
    broker.create_topic(requires_duplicate_detection=True)
    broker.subscribe("all")
    for message_id in ("a", "b", "a"):
        broker.publish(message_id=message_id)
    assert has(broker, "all") == [1, 2]
    broker.restart()
    broker.publish(message_id="b")
    assert has(broker, "all") == [1, 2]


def test_copies_keep_the_partition_of_their_message() -> None:
    """Req: S-02, P-01"""
    broker = Broker()
    broker.create_topic(enable_partitioning=True)
    broker.subscribe("all")
    broker.subscribe("red", SqlFilter("colour = 'red'"))
    for n in range(20):
        broker.publish({"colour": "red" if n % 3 else "blue"})
    for name in ("all", "red"):
        views = broker.peek(name=path(name))
        assert views
        for view in views:
            message = view.message
            assert message.sequence_number >> 48 == message.enqueued_sequence_number >> 48
        for partition in range(16):
            low = [n & 0xFFFFFFFFFFFF for n in numbers(views) if n >> 48 == partition]
            assert low == list(range(1, len(low) + 1))


def test_a_session_that_an_action_names_is_in_one_partition() -> None:
    """Req: S-02, G-01, P-02"""
    broker = Broker()
    broker.create_topic(enable_partitioning=True)
    broker.subscribe("held", TrueFilter(), action="SET sys.SessionId = 'one'", requires_session=True)
    for _ in range(20):
        broker.publish()
    views = broker.peek(name=path("held"), session_id="one")
    assert sorted(view.message.enqueued_sequence_number >> 48 for view in views)[-1] == 15
    assert [number & 0xFFFFFFFFFFFF for number in numbers(views)] == list(range(1, 21))


def test_a_subscription_forwards_its_copies_and_its_dead_letters() -> None:
    """Req: F-01, P-01"""
    broker = Broker()
    broker.create("target")  # 4
    broker.create("graves")  # 8
    topic_id = broker.create_topic()
    broker.subscribe("on", SqlFilter("10 / n > 0"), forward_to="target", forward_dead_lettered_to="graves")
    broker.subscribe("all")
    broker.publish({"n": 1}, topic_id=topic_id)
    broker.publish({"n": 0}, topic_id=topic_id)
    (view,) = broker.peek(name="target")
    assert (view.message.hops, view.message.enqueued_sequence_number) == (1, 1)
    (dead,) = broker.peek(name="graves")
    assert dead.message.dead_letter_source == path("on")
    assert has(broker, "all") == [1, 2]
    stored = [fact for fact in broker.facts if isinstance(fact, MessageStored)]
    assert len({id(fact.payload) for fact in stored}) == 2  # one body a message


def test_the_dead_letter_of_a_rule_has_its_time_to_live_where_it_is_forwarded_to() -> None:
    """As any other dead letter has. Req: P-04, F-02, E-07"""
    broker = Broker()
    broker.create("graves")
    topic_id = broker.create_topic()
    broker.subscribe(
        "split", SqlFilter("10 / n > 0"), forward_dead_lettered_to="graves", default_ttl_ms=9_000
    )
    broker.publish({"n": 0}, topic_id=topic_id, ttl_ms=20_000)
    (dead,) = broker.peek(name="graves")
    assert dead.message.expires_at_ms - dead.message.enqueued_at_ms == 9_000


def test_a_queue_forwards_to_a_topic_and_a_subscription_to_another_topic() -> None:
    """Req: F-01, P-02"""
    broker = Broker()
    topic_id = broker.create_topic("first")
    broker.create_topic("second")
    broker.subscribe("on", TrueFilter(), topic="first", action="SET step = 2", forward_to="second")
    broker.subscribe("end", SqlFilter("step = 2 AND colour = 'red'"), topic="second")
    broker.create("in", forward_to="first")
    assert topic_id == 4
    broker.publish({"colour": "red"}, topic_id=16 + 4)
    (view,) = broker.peek(name=path("end", "second"))
    assert (view.message.hops, view.message.sequence_number) == (2, 1)
    assert view.message.enqueued_sequence_number == 1


def test_what_was_stored_before_an_entity_forwards_to_a_topic_is_filtered_when_it_arrives() -> None:
    """Req: F-01, P-01"""
    broker = Broker()
    broker.create("in")
    broker.create_topic()
    broker.subscribe("red", SqlFilter("colour = 'red'"))
    for colour in ("red", "blue", "red"):
        broker.publish({"colour": colour})
    broker.update("in", forward_to="news")
    answer(broker, broker.settle_time())
    assert has(broker, "red") == [1, 3]
    assert broker.view("in").active_count == broker.view("news").active_count == 0


@pytest.mark.parametrize("target", ["news", "mid"], ids=["back to its topic", "back by another queue"])
def test_a_subscription_may_forward_back_to_its_topic(target: str) -> None:
    """Req: F-01. Source: wire contract C15."""
    broker = Broker()
    broker.create_topic()
    broker.create("mid", forward_to="news")
    broker.subscribe("round", forward_to=target)
    about: Any = broker.view(path("round")).description
    assert about.forward_to == target
    broker.one(UpdateEntity(replace(about, forward_dead_lettered_to=target), broker.reply_to()), EntityFound)
    assert broker.view(path("round")).description.forward_dead_lettered_to == target


def test_nothing_is_forwarded_to_a_subscription(broker: Broker) -> None:
    """Req: F-01"""
    asked = QueueDescription("in", forward_to=path("all"))
    error = broker.refused(CreateEntity(asked, broker.reply_to()))
    assert "no such queue or topic" in str(error)


# Scheduled


def test_a_scheduled_message_is_filtered_when_it_falls_due(broker: Broker) -> None:
    """Req: S-05, S-07, P-01"""
    due_ms = broker.now_ms + MINUTE_MS
    broker.publish({"colour": "red"}, scheduled_at_ms=due_ms)
    assert broker.view("news").scheduled_count == 1
    assert has(broker, "all") == []
    broker.subscribe("late", SqlFilter("colour = 'red'"))
    broker.one(RemoveRule(path("red"), "rule", broker.reply_to()), Done)
    answer(broker, broker.advance(MINUTE_MS))
    assert [has(broker, name) for name in ("all", "red", "late")] == [[1], [], [1]]  # as it was scheduled
    (view,) = broker.peek(name=path("late"))
    assert view.message.enqueued_at_ms == due_ms
    assert broker.view("news").scheduled_count == broker.view("news").active_count == 0
    removed = [fact for fact in broker.facts if isinstance(fact, MessageRemoved)]
    assert len(removed) == 2  # the scheduled one and the one that waited for its body


def test_what_waits_for_its_body_is_not_lost_by_a_restart(broker: Broker) -> None:
    """Req: R-02, S-07"""
    for n in range(3):
        broker.publish({"colour": "red", "n": "x" * n}, scheduled_at_ms=broker.now_ms + MINUTE_MS)
    broker.jump(MINUTE_MS)
    broker.settle_time()  # nobody answers
    broker.publish({"colour": "red", "n": "behind"})
    assert has(broker, "all") == []
    broker.restart()
    answer(broker, broker.settle_time())
    assert has(broker, "all") == has(broker, "red") == [1, 2, 3, 7]
    assert numbers(broker.peek(name=path("red"))) == [1, 2, 3, 4]


def test_a_scheduled_message_of_a_topic_can_be_cancelled(broker: Broker) -> None:
    """Req: S-06"""
    (number,) = broker.schedule(MINUTE_MS, name="news")
    cancel = CancelScheduled(Address("news"), [number], broker.reply_to())
    broker.one(cancel, Done)
    assert isinstance(broker.refused(cancel), MessageNotFound)
    answer(broker, broker.advance(MINUTE_MS))
    assert has(broker, "all") == []


# Rules


def test_the_rules_of_a_subscription_change_live(broker: Broker) -> None:
    """Req: P-03"""
    broker.publish({"colour": "blue"})
    broker.add_rule("red", "blue", SqlFilter("colour = 'blue'"))
    broker.publish({"colour": "blue"})
    new = RuleDescription("Rule", SqlFilter("colour = 'green'"))
    found = broker.one(UpdateRule(path("red"), new, broker.reply_to()), RulesFound)
    assert found.rules[0].name == "rule"  # as it was first spelt
    broker.publish({"colour": "red"})
    broker.publish({"colour": "green"})
    broker.one(RemoveRule(path("red"), "BLUE", broker.reply_to()), Done)
    broker.publish({"colour": "blue"})
    assert has(broker, "red") == [2, 4]
    broker.restart()
    broker.publish({"colour": "green"})
    assert has(broker, "red") == [2, 4, 6]


def test_rules_are_listed_by_name_a_page_at_a_time(broker: Broker) -> None:
    """Req: P-03"""
    for name in ("b", "a", "c"):
        broker.add_rule("all", name, TrueFilter())

    def page(skip: int, top: int) -> tuple[list[str], bool]:
        found = broker.one(ListRules(path("all"), skip, top, broker.reply_to()), RulesFound)
        return [rule.name for rule in found.rules], found.more

    assert page(0, 100) == (["$Default", "a", "b", "c"], False)
    assert page(1, 2) == (["a", "b"], True)
    assert page(4, 2) == ([], False)


def test_a_change_of_rules_leaves_locks_and_stored_copies_alone(broker: Broker) -> None:
    """Req: L-12, P-03"""
    broker.publish()
    (locked,) = broker.receive(name=path("all"))
    broker.one(RemoveRule(path("all"), "$Default", broker.reply_to()), Done)
    broker.complete(locked, queue_id=8)


@pytest.mark.parametrize(
    ("rule", "kind", "text"),
    [
        (
            RuleDescription("RULE"),
            RuleAlreadyExists,
            "The messaging entity 'news/Subscriptions/red/Rules/RULE' already exists.",
        ),
        (RuleDescription("a/b"), NameInvalid, "a/b"),
        (RuleDescription(""), NameInvalid, "''"),
        (RuleDescription("n" * 51), NameInvalid, "51 characters"),
        (RuleDescription("bad", SqlFilter("a = ")), ArgumentInvalid, "position"),
        (RuleDescription("bad", SqlFilter("f(a) = 1")), ArgumentInvalid, "f"),
        (RuleDescription("bad", TrueFilter(), SqlAction("SET a")), ArgumentInvalid, "position"),
        (RuleDescription("bad", CorrelationFilter()), ArgumentInvalid, "bad"),
        (
            RuleDescription("bad", CorrelationFilter(properties=(("size", 3), ("Size", 4)))),
            ArgumentInvalid,
            "'Size' is given twice",
        ),
        (RuleDescription("bad", CorrelationFilter(to="x" * 65_536)), ArgumentInvalid, "65536 are allowed"),
        (RuleDescription("bad", SqlFilter("1=1", (("@p", b"x" * 65_536),))), ArgumentInvalid, "65536"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_rule_that_cannot_be_is_refused_and_nothing_changes(
    broker: Broker, rule: RuleDescription, kind: type[Exception], text: str
) -> None:
    """Req: P-03, C36"""
    error = broker.refused(AddRule(path("red"), rule, broker.reply_to()))
    assert type(error) is kind
    assert text in str(error)
    if kind is ArgumentInvalid and rule.name == "bad":
        changed_rule = replace(rule, name="rule")
        assert isinstance(
            broker.refused(UpdateRule(path("red"), changed_rule, broker.reply_to())), ArgumentInvalid
        )
        asked = CreateEntity(SubscriptionDescription("news", "new"), broker.reply_to(), rule)
        assert isinstance(broker.refused(asked), ArgumentInvalid)
        assert isinstance(broker.refused(ListRules(path("new"), 0, 1, broker.reply_to())), EntityNotFound)
    broker.publish({"colour": "red"})
    assert has(broker, "red") == [1]


def test_how_a_value_was_given_is_kept_and_changed_with_it(broker: Broker) -> None:
    """Req: C35. Also where the values are equal, and over a restart."""
    for kind in ("d:short", "d:long"):
        filter = CorrelationFilter(properties=(("size", 5),), as_given=(AsGiven(kind, "+5"),))
        changed_rule = RuleDescription(
            "rule", filter, SqlAction("SET a = @p", (("@p", 1),), (AsGiven(kind, "1"),))
        )
        broker.one(UpdateRule(path("red"), changed_rule, broker.reply_to()), RulesFound)
        broker.restart()
        (rule,) = broker.one(ListRules(path("red"), 0, 10, broker.reply_to()), RulesFound).rules
        assert isinstance(rule.filter, CorrelationFilter)
        assert rule.filter.as_given == (AsGiven(kind, "+5"),)
        assert rule.action is not None
        assert rule.action.as_given == (AsGiven(kind, "1"),)
    broker.publish({"SIZE": 5})
    assert has(broker, "red") == [1]


def test_the_texts_of_values_count_to_the_size_of_a_rule(broker: Broker) -> None:
    """Req: C35, R-05. A number may be written with any number of digits."""
    given = AsGiven("d:double", "0." + "0" * 65_536)
    filter = SqlFilter("a = @p", (("@p", 0.0),), (given,))
    action = SqlAction("SET a = @p", (("@p", 0.0),), (given,))
    for rule in (RuleDescription("r", filter), RuleDescription("r", TrueFilter(), action)):
        assert "65536 are allowed" in str(broker.refused(AddRule(path("red"), rule, broker.reply_to())))


def test_an_integer_has_64_bits_signed_or_not(broker: Broker) -> None:
    """Req: C35. A message may have an unsigned one, and a rule asks for it."""
    broker.add_rule("red", "large", CorrelationFilter(properties=(("size", 2**64 - 1),)), "SET copy = size")
    broker.publish({"size": ULong(2**64 - 1)})
    broker.publish({"size": ULong(2**64 - 2)})
    assert has(broker, "red") == [1]
    (view,) = broker.peek(name=path("red"))
    assert changed(view.message)["str copy"] == 2**64 - 1
    for number in (2**64, -(2**63) - 1):
        rule = RuleDescription("r", CorrelationFilter(properties=(("size", number),)))
        assert isinstance(broker.refused(AddRule(path("red"), rule, broker.reply_to())), ArgumentInvalid)


def test_a_stored_rule_with_two_spellings_of_a_name_keeps_both_conditions(broker: Broker) -> None:
    """Req: C36. An earlier release took it; it matches what has both values under that name: nothing, or all
    where the values are equal."""
    (fact,) = [fact for fact in broker.facts if isinstance(fact, RuleStored) and fact.rule.name == "rule"]
    for name, second in (("never", "blue"), ("alike", "red")):
        filter = CorrelationFilter(properties=(("colour", "red"), ("Colour", second)))
        broker.facts.append(replace(fact, rule=RuleDescription(name, filter)))
    broker.one(RemoveRule(path("red"), "rule", broker.reply_to()), Done)
    broker.restart()
    listed = broker.one(ListRules(path("red"), 0, 10, broker.reply_to()), RulesFound)
    assert [len(rule.filter.properties) for rule in listed.rules if rule.name == "never"] == [2]  # type: ignore[union-attr]  # it is a correlation filter
    broker.publish({"COLOUR": "red"})
    assert has(broker, "red") == [1]
    broker.one(RemoveRule(path("red"), "alike", broker.reply_to()), Done)
    broker.publish({"COLOUR": "red"})
    broker.publish({"colour": "red", "Colour": "blue"})
    assert has(broker, "red") == [1]
    assert has(broker, "red", DEAD) == []


def test_a_rule_that_is_not_there_cannot_be_changed_or_removed(broker: Broker) -> None:
    """Req: P-03"""
    for command in (
        UpdateRule(path("red"), RuleDescription("none"), broker.reply_to()),
        RemoveRule(path("red"), "none", broker.reply_to()),
    ):
        assert isinstance(broker.refused(command), RuleNotFound)
    for name in ("news", path("none")):
        error = broker.refused(RemoveRule(name, "rule", broker.reply_to()))
        assert isinstance(error, InvalidOperation if name == "news" else EntityNotFound)


def test_too_many_rules_are_refused_where_the_tier_is_held_to() -> None:
    """Req: A-05, P-03"""
    limits = replace(STANDARD, sql_filters_max=2, correlation_filters_max=1, subscriptions_max=2)
    broker = Broker(limits, enforce_quotas=True)
    broker.create_topic()
    broker.subscribe("a")
    broker.subscribe("b", CorrelationFilter(label="x"))
    for rule in (RuleDescription("c", CorrelationFilter(label="y")),):
        assert isinstance(broker.refused(AddRule(path("a"), rule, broker.reply_to())), QuotaExceeded)
    broker.add_rule("a", "sql", SqlFilter("a = 1"))
    rule = RuleDescription("more", SqlFilter("a = 2"))
    assert isinstance(broker.refused(AddRule(path("b"), rule, broker.reply_to())), QuotaExceeded)
    description = SubscriptionDescription("news", "c")
    assert isinstance(broker.refused(CreateEntity(description, broker.reply_to())), QuotaExceeded)


# Entities


def test_topics_and_subscriptions_are_listed_each_by_kind(broker: Broker) -> None:
    """Req: A-01"""
    broker.create("orders")
    broker.create_topic("a")
    broker.subscribe("other", topic="a")

    def names(kind: EntityKind, topic: str | None = None) -> list[str]:
        command = ListEntities(kind, 0, 100, broker.reply_to(), topic)
        return [view.description.name for view in broker.one(command, EntitiesFound).entities]

    assert names(EntityKind.QUEUE) == ["orders"]
    assert names(EntityKind.TOPIC) == ["a", "news"]
    assert names(EntityKind.SUBSCRIPTION, "NEWS") == [path("all"), path("red")]
    assert len(names(EntityKind.SUBSCRIPTION)) == 3
    missing = ListEntities(EntityKind.SUBSCRIPTION, 0, 100, broker.reply_to(), "none")
    assert isinstance(broker.refused(missing), EntityNotFound)


def test_a_peek_at_a_topic_sees_what_is_scheduled_alone(broker: Broker) -> None:
    """What fell due and waits for its body is on its way to the subscriptions. Req: S-08"""
    for minutes in (1, 2):
        broker.publish({"colour": "red"}, scheduled_at_ms=broker.now_ms + minutes * MINUTE_MS)
    assert len(broker.peek(name="news")) == 2
    due = broker.advance(MINUTE_MS)
    (view,) = broker.peek(name="news")
    assert view.state is MessageState.SCHEDULED
    answer(broker, due)
    assert [each.message.sequence_number for each in broker.peek(name="news")] == [2]
    assert has(broker, "all") == [1]


def test_a_topic_shows_what_its_subscriptions_have(broker: Broker) -> None:
    """Req: A-01

    Source: wire contract 7.4, 7.8.
    """
    broker.publish({"colour": "red"})
    view = broker.view("news")
    size = broker.view(path("all")).size_bytes
    assert (view.subscription_count, view.sql_filter_count, view.correlation_filter_count) == (2, 1, 1)
    assert (view.active_count, view.scheduled_count, view.size_bytes) == (0, 0, 2 * size)
    assert broker.view(path("all")).active_count == 1


def test_a_topic_counts_the_bytes_that_its_subscriptions_hold(broker: Broker) -> None:
    """Req: A-01, A-05"""
    broker.subscribe("held", requires_session=True)
    broker.create("gone")
    broker.subscribe("lost", forward_to="gone")  # to its transfer dead-letter queue
    broker.one(DeleteEntity("gone", broker.reply_to()), Done)
    broker.publish({"colour": "red"}, group_id="a")
    broker.accept("a", path("held"))
    broker.one(SetSessionState(Address(path("held")), "a", b"12345", broker.reply_to()), Done)
    (dead,) = broker.receive(name=path("red"))
    broker.dead_letter(dead, broker.view(path("red")).entity_id * 4)
    names: tuple[str, ...] = ("all", "red", "held", "lost")

    def held() -> int:
        return sum(broker.view(path(name)).size_bytes for name in names)

    assert broker.view("news").size_bytes == held() == 4 * dead.message.size_bytes + 5
    broker.restart()
    assert broker.view("news").size_bytes == held()
    broker.accept("a", path("held"))
    broker.one(SetSessionState(Address(path("held")), "a", None, broker.reply_to()), Done)
    broker.one(DeleteEntity(path("red"), broker.reply_to()), Done)
    names = ("all", "held", "lost")
    assert broker.view("news").size_bytes == held() == 3 * dead.message.size_bytes


@pytest.mark.parametrize(
    ("description", "kind"),
    [
        (QueueDescription("News"), EntityAlreadyExists),
        (TopicDescription("NEWS"), EntityAlreadyExists),
        (SubscriptionDescription("News", "ALL"), EntityAlreadyExists),
        (SubscriptionDescription("none", "a"), EntityNotFound),
        (SubscriptionDescription("orders", "a"), ArgumentInvalid),
        (SubscriptionDescription("news", "a/b"), NameInvalid),
        (SubscriptionDescription("news", "$a"), NameInvalid),
        (SubscriptionDescription("news", "a" * 51), NameInvalid),
        (SubscriptionDescription("news", "a", max_delivery_count=0), Exception),
        (TopicDescription("a/Subscriptions/b"), NameInvalid),
        (QueueDescription("a/subscriptions/b"), NameInvalid),
    ],
    ids=str,
)
def test_an_entity_that_cannot_be_is_refused(broker: Broker, description: Any, kind: type[Exception]) -> None:
    """Req: A-01"""
    broker.create("orders")
    assert isinstance(broker.refused(CreateEntity(description, broker.reply_to())), kind)


@pytest.mark.parametrize(
    ("description", "text"),
    [
        (QueueDescription("news"), "'news' is a topic: "),
        (TopicDescription("news", enable_partitioning=True), "Partitioning cannot be changed for Topic. "),
        (
            TopicDescription("news", requires_duplicate_detection=True),
            "The value for the RequiresDuplicateDetection property of an existing Topic cannot be changed. ",
        ),
        (
            SubscriptionDescription("news", "all", requires_session=True),
            "The value for the RequiresSession property of an existing Subscription cannot be changed. ",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_entity_keeps_its_kind_and_what_is_fixed_at_creation(
    broker: Broker, description: Any, text: str
) -> None:
    """Req: A-01. Source of the texts: wire contract C19."""
    error = broker.refused(UpdateEntity(description, broker.reply_to()))
    assert isinstance(error, ArgumentInvalid)
    assert str(error).startswith(text)


def test_there_are_no_topics_in_the_basic_tier() -> None:
    """Req: A-05"""
    broker = Broker(BASIC)
    assert isinstance(broker.refused(CreateEntity(TopicDescription("a"), broker.reply_to())), NotSupported)


def test_a_topic_is_deleted_with_its_subscriptions(broker: Broker) -> None:
    """Req: A-01"""
    broker.publish({"colour": "red"})
    receiver = broker.receiver(path("all"))
    sender = broker.sender("news")
    effects = broker.do(DeleteEntity("News", broker.reply_to()))
    detached = [effect for effect in effects if isinstance(effect, DetachLink)]
    assert {effect.link for effect in detached} == {receiver, sender}
    assert all(isinstance(effect.error, EntityDeleted) for effect in detached)
    assert [fact.entity_id for fact in broker.facts if isinstance(fact, EntityRemoved)] == [2, 3, 1]
    broker.restart()
    assert broker.namespace.entity_views() == []
    broker.create_topic()
    broker.subscribe("all")
    assert has(broker, "all") == []


def test_a_deleted_subscription_gets_nothing_more_and_the_others_go_on(broker: Broker) -> None:
    """Req: A-01, P-01"""
    broker.do(DeleteEntity(path("all"), broker.reply_to()))
    broker.publish({"colour": "red"})
    assert has(broker, "red") == [1]
    broker.subscribe("all")
    assert has(broker, "all") == []


def test_a_change_of_the_topic_drops_the_locks_in_all_its_subscriptions(broker: Broker) -> None:
    """Req: L-12"""
    broker.publish({"colour": "red"})
    (mine,) = broker.receive(name=path("all"))
    (other,) = broker.receive(name=path("red"))
    broker.update("news", user_metadata="note")
    assert mine.lock_token is not None
    broker.update("news", default_ttl_ms=60 * MINUTE_MS)
    for queue_id, view in ((8, mine), (12, other)):
        assert view.lock_token is not None
        failed = broker.one(Abandon(queue_id, view.lock_token, broker.reply_to()), SettlementFailed)
        assert isinstance(failed.error, MessageLockLost)
    assert broker.receive(name=path("all"))[0].delivery_count == 0


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.SEND_DISABLED])
def test_a_disabled_topic_takes_no_message_and_its_subscriptions_are_read(
    broker: Broker, status: EntityStatus
) -> None:
    """Req: A-04"""
    broker.publish()
    broker.update("news", status=status)
    message = Message(4, routing=Routing())
    error = broker.refused(Send(4, message, scan(payload_of(Routing())), broker.reply_to()))
    assert status.value in str(error)
    assert len(broker.receive(name=path("all"))) == 1


def test_a_disabled_subscription_gets_copies_for_later(broker: Broker) -> None:
    """Req: A-04"""
    broker.update(path("all"), status=EntityStatus.DISABLED)
    broker.publish()
    broker.update(path("all"), status=EntityStatus.ACTIVE)
    assert has(broker, "all") == [1]


def test_what_a_topic_or_a_subscription_is_not_for_is_refused_by_name(broker: Broker) -> None:
    """Req: S-08, L-17

    Source: wire contract 2.1.
    """
    peek_lock = ReceiveMode.PEEK_LOCK
    for command in (
        OpenReceiver(broker.link(), Address("news"), peek_lock),
        OpenReceiver(broker.link(), Address("news", DEAD), peek_lock),
        OpenSender(broker.link(), Address(path("all"))),
        OpenSender(broker.link(), Address("news"), Address(path("all"))),
        PurgeMessages(Address("news"), broker.now_ms, broker.reply_to()),
        Schedule(Address(path("all")), [(Message(1), EMPTY)], broker.reply_to()),
    ):
        error = broker.refused(command)
        assert isinstance(error, InvalidOperation), error
        assert "news" in str(error)


def test_a_topic_shows_what_is_scheduled_in_it(broker: Broker) -> None:
    """Req: S-08. Source: Azure/azure-service-bus issue 352: the service browses topics by design."""
    for _ in range(2):
        message = Message(1, scheduled_at_ms=broker.now_ms + 1000)
        broker.do(Schedule(Address("news"), [(message, EMPTY)], broker.reply_to()))
    peek = Peek(Address("news"), SequenceNumber(0), 9, 100, broker.reply_to())
    found = broker.one(peek, MessagesFound).messages
    assert [(view.message.sequence_number, view.state) for view in found] == [
        (1, MessageState.SCHEDULED),
        (2, MessageState.SCHEDULED),
    ]


def test_a_sender_to_a_topic_is_to_read_routing(broker: Broker) -> None:
    """Req: D-01, G-01"""
    assert broker.one(OpenSender(broker.link(), Address("news")), SenderOpened).reads_routing


# Transactions and idleness


def test_a_transaction_sends_to_a_topic_when_it_is_committed(broker: Broker) -> None:
    """Req: F-03"""
    coordinator = broker.coordinator()
    payload = payload_of(Routing())
    for fail in (True, False):
        transaction = broker.declare(coordinator)
        send = Send(4, Message(len(payload), routing=Routing()), scan(payload), broker.reply_to())
        broker.enlist(transaction, send)
        broker.discharge(coordinator, transaction, fail=fail)
    assert has(broker, "all") == [1]


def test_a_topic_and_its_subscriptions_are_deleted_when_idle() -> None:
    """Req: A-03"""
    broker = Broker()
    idle = 5 * MINUTE_MS
    topic_id = broker.create_topic(auto_delete_on_idle_ms=2 * idle)
    broker.subscribe("unused", auto_delete_on_idle_ms=idle)
    broker.subscribe("used")
    broker.advance(idle - 1)
    broker.publish(topic_id=topic_id)  # copies are no use of a subscription
    broker.advance(1)
    names = [view.description.name for view in broker.namespace.entity_views()]
    assert names == ["news", path("used")]
    broker.advance(idle)
    broker.receive(name=path("used"))  # which is an operation on a subscription
    broker.advance(2 * idle - MINUTE_MS)
    assert broker.namespace.entity_views()
    broker.advance(2 * MINUTE_MS)
    assert broker.namespace.entity_views() == []


def test_a_topic_with_a_subscription_that_forwards_is_not_idle() -> None:
    """Req: F-02"""
    broker = Broker()
    broker.create("target")
    broker.create_topic(auto_delete_on_idle_ms=5 * MINUTE_MS)
    broker.subscribe("on", forward_to="target", auto_delete_on_idle_ms=5 * MINUTE_MS)
    broker.advance(60 * MINUTE_MS)
    assert len(broker.namespace.entity_views()) == 3


def test_the_copies_count_against_the_topics_size() -> None:
    """Req: A-05"""
    broker = Broker(enforce_quotas=True)
    broker.create_topic()
    broker.subscribe("a")
    broker.subscribe("b")
    big = 200 * 1024
    payload = payload_of(Routing()).ljust(big, b"\0")
    broker.checks = False
    for _ in range(1024 * 1024 * 1024 // (2 * big) + 1):
        effects = broker.do(Send(4, Message(big, routing=Routing()), Sections(payload), broker.reply_to()))
    error = broker.refused(Send(4, Message(big, routing=Routing()), Sections(payload), broker.reply_to()))
    assert isinstance(error, QuotaExceeded)
    assert effects
