"""Forwards in circles: hops end them, at once, in slices, over rests and restarts, and nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.amqp import codec
from peeklock.broker.queue.enqueue import COPIES_MAX
from peeklock.broker.vocabulary.changes import MessageStored
from peeklock.broker.vocabulary.commands import Address, DeleteEntity, Fetched, LookUp, Send, SubQueue
from peeklock.broker.vocabulary.effects import Accepted, Effect, Fetch
from peeklock.broker.vocabulary.errors import EntityNotFound, InvalidOperation
from peeklock.broker.vocabulary.events import EventType
from peeklock.broker.vocabulary.message import COPIES_FOLLOWING_MAX, MessageView
from peeklock.rules.filters import SqlFilter
from tests.broker.harness import EMPTY, MINUTE_MS, Broker, arriving, numbers, payload_of, stored_messages

DEAD = SubQueue.DEAD_LETTER
TRANSFERS = SubQueue.TRANSFER_DEAD_LETTER
TOO_FAR = "MaxTransferHopCountExceeded"


@pytest.fixture
def broker() -> Broker:
    return Broker()


def reason_of(view: MessageView) -> str:
    assert view.message.overlay is not None
    reason: str = codec.decode(view.message.overlay)[0]["DeadLetterReason"]
    return reason


def circle(broker: Broker, *names: str, **settings: Any) -> None:
    """Make queues of which each forwards to the next, and the last to the first; ids are 4, 8, ..."""
    for name in names:
        broker.create(name, **settings)
    for name, target in zip(names, [*names[1:], names[0]], strict=True):
        broker.update(name, forward_to=target)


def at_rest(broker: Broker, ms: int = 24 * 60 * MINUTE_MS) -> None:
    """Advance by a day, after which nothing is due."""
    broker.advance(ms)
    assert broker.namespace.timers.next_ms is None


def answer(broker: Broker, effects: list[Effect]) -> None:
    """Hand over what was asked for, and what that makes the broker ask for."""
    fetches = [effect for effect in effects if isinstance(effect, Fetch)]
    while fetches:
        fetch = fetches.pop()
        routing = arriving(message_id=b"\xa1\x01x", session_id="s").routing
        assert routing is not None
        payload = payload_of(routing)
        more = broker.do(Fetched(fetch.queue_id, fetch.message.position, payload)) + broker.settle_time()
        fetches += [effect for effect in more if isinstance(effect, Fetch)]


def assert_lives_begin_once(broker: Broker) -> None:
    """A dead letter that is not passed on goes on living where it is (X-03)."""
    begun = [
        (event.queue_id, event.sequence_number) for event in broker.events if event.type is EventType.ENQUEUED
    ]
    assert len(begun) == len(set(begun))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_a_message_in_a_circle_makes_four_hops_and_is_a_dead_letter_where_it_is_then(
    broker: Broker, length: int
) -> None:
    """Req: F-01

    Source: wire contract C15.
    """
    names = [f"q{number}" for number in range(length)]
    circle(broker, *names)
    broker.send(4)
    (view,) = broker.peek(name=names[4 % length], sub_queue=DEAD)
    assert (reason_of(view), view.message.hops, view.message.enqueued_sequence_number) == (TOO_FAR, 4, 1)
    assert view.message.sequence_number == 1 + 4 // length
    assert sum(broker.view(name).dead_letter_count for name in names) == 1
    assert not any(broker.view(name).active_count for name in names)
    broker.restart()
    at_rest(broker)
    assert broker.view(names[4 % length]).dead_letter_count == 1


def test_a_batch_and_what_falls_due_go_round_like_a_message(broker: Broker) -> None:
    """Req: F-01, T-04, S-05"""
    circle(broker, "a", "b")
    broker.send_batch([arriving() for _ in range(600)])
    broker.schedule(1_000, 2_000, name="b")
    at_rest(broker)
    dead = broker.peek(name="a", sub_queue=DEAD)
    assert [view.message.enqueued_sequence_number for view in dead] == list(range(1, 1801, 3))
    assert (broker.view("a").dead_letter_count, broker.view("b").dead_letter_count) == (600, 2)


def test_what_was_there_goes_round_once_a_queue_forwards_to_itself(broker: Broker) -> None:
    """Req: F-01, A-07"""
    broker.create("a")
    for _ in range(3):
        broker.send()
    (held, *_) = broker.receive(2, "a")
    broker.update("a", forward_to="A")
    broker.restart()
    at_rest(broker)
    dead = broker.peek(name="a", sub_queue=DEAD)
    assert [view.message.enqueued_sequence_number for view in dead] == [1, 2, 3]
    assert {(reason_of(view), view.message.hops) for view in dead} == {(TOO_FAR, 4)}
    assert held.message.position not in {view.message.position for view in broker.peek(name="a")}


@pytest.mark.parametrize("settings", [{"requires_session": True}, {"enable_partitioning": True}])
def test_a_queue_that_reads_what_it_gets_may_forward_to_itself(
    broker: Broker, settings: dict[str, Any]
) -> None:
    """Also when it begins to, for what is stored: the bodies are asked for at each of the hops.

    Req: F-01, G-01
    """
    broker.create("a", **settings)
    for _ in range(3):
        broker.send(4, session_id="s")
    broker.update("a", forward_to="a")
    effects = broker.do(Send(4, arriving(session_id="s"), EMPTY, broker.reply_to()))  # waits behind them
    answer(broker, effects + broker.settle_time())
    at_rest(broker)
    dead = broker.peek(name="a", sub_queue=DEAD)
    first = [view.message.enqueued_sequence_number & 0xFFFF for view in dead]
    assert (first, {view.message.hops for view in dead}) == ([1, 2, 3, 4], {4})
    assert {reason_of(view) for view in dead} == {TOO_FAR}
    assert not broker.namespace._entities.forwarding._asked


def test_a_queue_with_sessions_passes_its_messages_on_and_has_no_receivers(broker: Broker) -> None:
    """A target with sessions gets the session id again; one without takes the message as it is.

    Req: F-01, G-01
    """
    broker.create("plain")
    broker.create("of-sessions", requires_session=True)
    broker.create("a", requires_session=True)
    broker.send(12, session_id="s")
    opened = broker.accept("s", "a")
    broker.credit(opened.link)
    effects = broker.update("a", forward_to="of-sessions")
    answer(broker, effects + broker.settle_time())
    broker.send(12, session_id="t")
    broker.update("a", forward_to="plain")
    broker.send(12, session_id="u")
    assert [view.message.session_id for view in broker.peek(name="of-sessions")] == ["s", "t"]
    assert [view.message.session_id for view in broker.peek(name="plain")] == [None]
    assert isinstance(broker.refused(broker.wish("s", "a")), InvalidOperation)
    assert isinstance(broker.refused(Send(12, arriving(), EMPTY, broker.reply_to())), InvalidOperation)
    assert broker.view("a").active_count == 0


def test_a_subscription_with_sessions_passes_its_copies_on(broker: Broker) -> None:
    """Req: F-01, G-01, P-01"""
    topic_id = broker.create_topic()
    broker.create("plain")
    broker.subscribe("on", requires_session=True, forward_to="plain")
    for session_id in ("s", None):
        broker.publish(topic_id=topic_id, group_id=session_id)
    assert numbers(broker.peek(name="plain")) == [1]
    (dead,) = broker.peek(name="news/Subscriptions/on", sub_queue=DEAD)
    assert reason_of(dead) == "Session ID is null."


def test_a_circle_of_dead_letter_forwards_comes_to_rest(broker: Broker) -> None:
    """Each message expires where it comes to, until its hops are made.

    Req: F-01, E-08, L-09
    """
    for name in ("a", "b"):
        broker.create(name, default_ttl_ms=1_000, dead_lettering_on_expiration=True)
    broker.update("a", forward_dead_lettered_to="b")
    broker.update("b", forward_dead_lettered_to="a")
    for _ in range(5):
        broker.send(4)
    for expected in ("b", "a", "b", "a"):
        broker.advance(1_000)
        assert (broker.view("a").active_count, broker.view("b").active_count) == (
            (5, 0) if expected == "a" else (0, 5)
        )
        broker.restart()
    at_rest(broker)
    dead = broker.peek(name="a", sub_queue=DEAD)
    assert [view.message.enqueued_sequence_number for view in dead] == [1, 2, 3, 4, 5]
    assert {(reason_of(view), view.message.hops) for view in dead} == {(TOO_FAR, 4)}
    assert {view.message.dead_letter_source for view in dead} == {"b"}
    assert_lives_begin_once(broker)
    facts = len(broker.facts)
    broker.restart()
    at_rest(broker)
    assert len(broker.facts) == facts  # they are not tried again


def test_a_dead_letter_at_its_end_stays_when_it_is_given_back(broker: Broker) -> None:
    """Req: F-01, L-07"""
    broker.create("a", forward_dead_lettered_to="a")
    broker.send()
    for _ in range(5):
        (held,) = broker.receive(1, "a")
        broker.dead_letter(held, 4, reason="why")
    (held,) = broker.receive(1, "a", sub_queue=DEAD)
    assert reason_of(held) == TOO_FAR
    broker.abandon(held, 5)
    at_rest(broker)
    assert len(broker.peek(name="a", sub_queue=DEAD)) == 1


def test_forwards_of_messages_and_of_dead_letters_make_a_circle_together(broker: Broker) -> None:
    """Req: F-01, E-08"""
    broker.create("work", default_ttl_ms=1_000, dead_lettering_on_expiration=True)
    broker.create("retry", forward_to="work")
    broker.update("work", forward_dead_lettered_to="retry")
    broker.send(4)
    broker.advance(1_000)
    (view,) = broker.peek(name="work")
    assert (view.message.hops, view.message.dead_letter_source) == (2, "work")
    broker.advance(1_000)
    assert broker.peek(name="work")[0].message.hops == 4
    at_rest(broker)
    (dead,) = broker.peek(name="work", sub_queue=DEAD)
    assert reason_of(dead) == TOO_FAR


def test_a_chain_becomes_a_circle_while_a_message_is_on_its_way(broker: Broker) -> None:
    """It waits for its body in the second queue, and in the fourth again.

    Req: F-01, A-07
    """
    broker.create("c", requires_session=True)
    broker.create("b", forward_to="c")
    broker.create("a")
    broker.send(12, session_id="s")
    fetches = [effect for effect in broker.update("a", forward_to="b") if isinstance(effect, Fetch)]
    fetches += [effect for effect in broker.settle_time() if isinstance(effect, Fetch)]
    assert broker.view("b").active_count == 1
    broker.update("c", forward_to="a")
    broker.restart()
    answer(broker, broker.settle_time())
    at_rest(broker)
    (view,) = broker.peek(name="b", sub_queue=DEAD)
    assert (reason_of(view), view.message.hops, view.message.enqueued_sequence_number) == (TOO_FAR, 4, 1)


def test_an_entity_of_a_circle_is_deleted(broker: Broker) -> None:
    """What comes next to where it was goes to the transfer dead-letter queue; links to it end.

    Req: F-01, A-03
    """
    circle(broker, "a", "b", "c")
    broker.send(4)
    broker.do(DeleteEntity("c", broker.reply_to()))
    broker.send(4)
    (view,) = broker.peek(name="b", sub_queue=TRANSFERS)
    assert reason_of(view) == "MessagingEntityNotFound"
    assert (view.message.hops, view.message.enqueued_sequence_number) == (1, 3)
    broker.create("c", forward_to="a")  # its name closes the circle again
    broker.send(4)
    assert broker.view("b").dead_letter_count == 2


def test_an_entity_of_a_circle_is_never_idle(broker: Broker) -> None:
    """Req: F-02, A-03"""
    circle(broker, "a", "b", auto_delete_on_idle_ms=5 * MINUTE_MS)
    topic_id = broker.create_topic(auto_delete_on_idle_ms=5 * MINUTE_MS)
    broker.subscribe("round", forward_to="news", auto_delete_on_idle_ms=5 * MINUTE_MS)
    for _ in range(10):
        broker.advance(60 * MINUTE_MS)
    assert broker.publish(topic_id=topic_id)
    for changed, idle in (("b", "b"), ("news/Subscriptions/round", "news")):
        broker.update(changed, forward_to=None)
        broker.advance(6 * MINUTE_MS)
        error = broker.refused(LookUp(Address(idle), broker.reply_to()))
        assert isinstance(error, EntityNotFound)
    assert broker.view("a").description.forward_to == "b"


def test_a_message_that_comes_back_to_a_queue_that_knows_its_id_is_a_duplicate_there(broker: Broker) -> None:
    """Our choice: as any message with that id within the window.

    Req: F-01, D-01
    """
    broker.create("b")
    broker.create("a", forward_to="b", requires_duplicate_detection=True)
    broker.update("b", forward_to="a")
    effects = broker.do(Send(8, arriving(message_id=b"\xa1\x01x"), EMPTY, broker.reply_to()))
    assert isinstance(effects[0], Accepted)
    assert [broker.view(name).dead_letter_count for name in "ab"] == [0, 0]
    assert broker.view("b").active_count == broker.view("a").active_count == 0


# Copies


def round_topic(broker: Broker, count: int, **settings: Any) -> int:
    """Make a topic with so many subscriptions that forward to it; give its id as that of a queue."""
    broker.checks = False
    topic_id = broker.create_topic()
    for number in range(count):
        broker.subscribe(f"s{number}", **(settings or {"forward_to": "news"}))
    return topic_id


def follow(broker: Broker, effects: list[Effect]) -> list[int]:
    """Do what is due in slices, with a restart between two of them; answer how many records each
    call wrote."""
    made: list[int] = []
    fetches = [effect for effect in effects if isinstance(effect, Fetch)]
    for step in range(100_000):
        facts = len(broker.facts)
        if fetches:
            fetch = fetches.pop(0)
            payload = broker.payloads[fetch.message.size_bytes]
            effects = broker.do(Fetched(fetch.queue_id, fetch.message.position, payload))
        elif (due_ms := broker.namespace.timers.next_ms) is not None and due_ms <= broker.now_ms:
            changes, effects = broker.namespace.advance(broker.now_ms)
            broker._keep(changes)
        else:
            broker.namespace.check(broker.now_ms)
            assert broker.lives == stored_messages(broker.namespace)
            assert_lives_begin_once(broker)
            return made
        fetches += [effect for effect in effects if isinstance(effect, Fetch)]
        made.append(records(broker, facts))
        if step == 30:
            broker.restart()
            fetches = []
    raise AssertionError("it never comes to an end")


def records(broker: Broker, since: int) -> int:
    """How many records were written since then."""
    return sum(isinstance(fact, MessageStored) for fact in broker.facts[since:])


def copies_made(broker: Broker) -> int:
    """How many copies there were: the numbers that subscriptions have issued."""
    subscriptions = [entity for entity in broker.namespace._entities if entity.topic is not None]
    return sum(entity.main.next_position - 1 for entity in subscriptions)


def dead_by_reason(broker: Broker, count: int) -> dict[tuple[str, int], int]:
    """Count the dead letters of all subscriptions by reason and hops."""
    found: dict[tuple[str, int], int] = {}
    for number in range(count):
        for view in broker.peek(name=f"news/Subscriptions/s{number}", sub_queue=DEAD, count=10_000):
            key = reason_of(view), view.message.hops
            found[key] = found.get(key, 0) + 1
    return found


@pytest.mark.parametrize(
    ("count", "copies", "dead"),
    [(1, 5, {4: 1}), (2, 2 + 4 + 8 + 16 + 32, {4: 32}), (5, 5 + 25 + 125 + 625 + 3_125, {4: 3_125})],
)
def test_a_topic_to_which_subscriptions_forward_makes_copies_for_four_hops(
    broker: Broker, count: int, copies: int, dead: dict[int, int]
) -> None:
    """Req: F-01, P-01

    Source: wire contract C15.
    """
    topic_id = round_topic(broker, count)
    follow(broker, broker.publish(topic_id=topic_id))
    assert copies_made(broker) == copies
    assert dead_by_reason(broker, count) == {(TOO_FAR, hops): number for hops, number in dead.items()}
    assert broker.view("news").active_count == 0


@pytest.mark.parametrize(
    "count", [7, 150, *(pytest.param(count, marks=pytest.mark.long) for count in (10, 30, 100))]
)
def test_at_most_10_000_copies_follow_from_one_message_and_what_goes_beyond_is_a_dead_letter(
    broker: Broker, count: int
) -> None:
    """It stays in the subscription that was to forward it. Nothing is lost over restarts: each copy that was
    not passed on is there.

    Req: F-01, P-05, R-02

    Source: wire contract C15.
    """
    topic_id = round_topic(broker, count)
    made = follow(broker, broker.publish(topic_id=topic_id))
    copies = copies_made(broker)
    whole = sum(count**level for level in range(1, 6))
    assert copies <= COPIES_FOLLOWING_MAX < whole
    assert copies > COPIES_FOLLOWING_MAX - max(count, 100)  # what does not suffice for all copies of one
    dead = dead_by_reason(broker, count)
    assert {reason for reason, _ in dead} == {TOO_FAR}
    assert sum(dead.values()) == copies - (copies // count - 1)  # all but those that became copies again
    assert max(made) <= COPIES_MAX + count
    assert all(broker.view(f"news/Subscriptions/s{number}").active_count == 0 for number in range(count))
    facts = len(broker.facts)
    broker.restart()
    assert follow(broker, broker.settle_time()) == []
    assert len(broker.facts) == facts


@pytest.mark.long
def test_the_limit_of_copies_is_that_of_each_message(broker: Broker) -> None:
    """Req: F-01, P-05"""
    topic_id = round_topic(broker, 10)
    effects = broker.publish(topic_id=topic_id)
    effects += broker.publish(topic_id=topic_id)
    follow(broker, effects)
    once = Broker()
    follow(once, once.publish(topic_id=round_topic(once, 10)))
    assert copies_made(broker) == 2 * copies_made(once)


@pytest.mark.long
def test_copies_that_expire_in_a_circle_are_limited_too(broker: Broker) -> None:
    """They rest between two hops, each over a restart.

    Req: F-01, E-08, P-05
    """
    settings = {
        "default_ttl_ms": 1_000,
        "dead_lettering_on_expiration": True,
        "forward_dead_lettered_to": "news",
    }
    topic_id = round_topic(broker, 15, **settings)
    effects = broker.publish(topic_id=topic_id)
    for _ in range(6):
        follow(broker, effects)
        broker.restart()
        broker.jump(1_000)
        effects = broker.settle_time()
    copies = copies_made(broker)
    assert COPIES_FOLLOWING_MAX - 15 < copies <= COPIES_FOLLOWING_MAX
    dead = dead_by_reason(broker, 15)
    assert sum(dead.values()) == copies - (copies // 15 - 1)
    assert {reason for reason, _ in dead} == {TOO_FAR}
    assert broker.namespace.timers.next_ms is None


def test_dead_letters_beyond_the_limit_go_on_to_where_dead_letters_go(broker: Broker) -> None:
    """Req: F-01, L-09"""
    broker.create("graves")
    round_topic(broker, 25, forward_to="news", forward_dead_lettered_to="graves")
    follow(broker, broker.publish(topic_id=8))
    dead = dead_by_reason(broker, 25)
    assert set(dead) <= {(TOO_FAR, 4)}  # these had made all of their hops
    graves = broker.view("graves").active_count
    copies = copies_made(broker)
    assert graves > 0
    assert graves + sum(dead.values()) == copies - (copies // 25 - 1)
    assert {reason_of(view) for view in broker.peek(name="graves")} == {TOO_FAR}


def test_a_topic_behind_many_subscriptions_counts_what_it_makes_of_this_message(broker: Broker) -> None:
    """Hundreds of its rules choose others. So 40 copies of a message may each come to it.

    Req: F-01, P-01
    """
    broker.checks = False
    broker.create_topic("last")
    for number in range(300):
        broker.subscribe(f"s{number}", SqlFilter(f"kind = {number}"), topic="last")
    topic_id = broker.create_topic()
    for number in range(40):
        broker.subscribe(f"s{number}", forward_to="last")
    follow(broker, broker.publish({"kind": 7}, topic_id=topic_id))
    assert broker.view("last/Subscriptions/s7").active_count == 40


def test_a_copy_from_which_no_way_leads_to_a_topic_begins_anew_after_an_update(broker: Broker) -> None:
    """Req: F-01, A-07"""
    topic_id = broker.create_topic()
    broker.subscribe("rest")
    broker.create_topic("other")
    broker.subscribe("on", topic="other", forward_to="other")
    broker.publish(topic_id=topic_id)
    (view,) = broker.peek(name="news/Subscriptions/rest")
    assert view.message.copies_left == COPIES_FOLLOWING_MAX
    broker.update("news/Subscriptions/rest", forward_to="news")
    broker.publish(topic_id=topic_id)
    follow(broker, broker.settle_time())
    assert broker.view("news/Subscriptions/rest").dead_letter_count == 2


def test_a_circle_through_queues_and_topics_shares_one_limit(broker: Broker) -> None:
    """Req: F-01, P-05"""
    broker.checks = False
    broker.create_topic()
    broker.create("back", forward_to="news")
    for number in range(110):
        broker.subscribe(f"s{number}", forward_to="back")
    follow(broker, broker.publish())
    copies = copies_made(broker)
    assert COPIES_FOLLOWING_MAX - 110 < copies <= COPIES_FOLLOWING_MAX
    refused = broker.view("back").dead_letter_count
    assert refused == copies - (copies // 110 - 1)
