"""Finding messages by what they are, and deleting them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties, scan
from peeklock.broker.content.routing import routing_of
from peeklock.broker.handlers.searching import EXAMINED_MAX, ROUND_MAX
from peeklock.broker.vocabulary.changes import MessageRemoved
from peeklock.broker.vocabulary.commands import (
    Address,
    ClaimMessages,
    DeleteEntity,
    Fetched,
    PurgeMessages,
    Send,
    SequenceNumber,
    SubQueue,
)
from peeklock.broker.vocabulary.descriptions import EntityStatus
from peeklock.broker.vocabulary.effects import (
    Accepted,
    Claimed,
    Effect,
    Fetch,
    MatchingDeleted,
    MessagesMatched,
)
from peeklock.broker.vocabulary.errors import ArgumentInvalid, EntityDisabled, EntityNotFound
from peeklock.broker.vocabulary.events import EventType
from peeklock.broker.vocabulary.extension_commands import DeleteMatching, SearchCursor, SearchMessages
from peeklock.broker.vocabulary.message import Message, MessageState
from peeklock.rules.filters import CorrelationFilter, FalseFilter, Filter, SqlFilter, TrueFilter
from tests.broker.harness import LOTS, MINUTE_MS, Broker, numbers

RED = SqlFilter("colour = 'red'")


class Searched(Broker):
    """A broker whose messages have bodies that can be fetched: each is told by its size."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.bodies: dict[int, bytes] = {}
        self.sizes = itertools.count(1)
        self.fetches = 0

    def put(self, queue_id: int = 4, *, delay_ms: int | None = None, **properties: Any) -> Message:
        fields = Properties(message_id="m", group_id="s")
        head = encode_message(properties=fields, application_properties=properties, data=b"")
        data = bytes(1_000 + next(self.sizes) - len(head))
        payload = encode_message(properties=fields, application_properties=properties, data=data)
        at_ms = None if delay_ms is None else self.now_ms + delay_ms
        message = Message(len(payload), scheduled_at_ms=at_ms, routing=routing_of(scan(payload), None))
        assert isinstance(self.do(Send(queue_id, message, scan(payload), self.reply_to()))[0], Accepted)
        self.bodies[len(payload)] = payload
        return message

    def ask(
        self,
        where: Filter | None = None,
        address: Address | None = None,
        after: SearchCursor | None = None,
        messages_max: int = 100,
    ) -> MessagesMatched:
        command = SearchMessages(self.reply_to(), where, address, after, messages_max)
        found = self.answered(self.do(command))
        assert isinstance(found, MessagesMatched)
        assert found.reply_to == command.reply_to
        return found

    def delete(
        self,
        where: Filter | None = None,
        address: Address | None = None,
        after: SearchCursor | None = None,
        messages_max: int = 100,
    ) -> MatchingDeleted:
        command = DeleteMatching(self.reply_to(), where, address, after, messages_max)
        found = self.answered(self.do(command))
        assert isinstance(found, MatchingDeleted)
        assert found.reply_to == command.reply_to
        return found

    def answered(self, effects: list[Effect]) -> Effect:
        """Answer fetches until the search is answered."""
        while True:
            fetches = [effect for effect in effects if isinstance(effect, Fetch)]
            if not fetches:
                (answer,) = effects
                return answer
            assert len(fetches) == len(effects) <= ROUND_MAX
            effects = []
            for fetch in fetches:
                effects += self.bring(fetch)

    def bring(self, fetch: Fetch) -> list[Effect]:
        self.fetches += 1
        payload = self.bodies[fetch.message.size_bytes]
        return self.do(Fetched(fetch.queue_id, fetch.message.position, payload))


def places(found: MessagesMatched) -> list[tuple[str, SubQueue, int]]:
    return [(m.address.path, m.address.sub_queue, m.view.message.sequence_number) for m in found.matches]


@pytest.fixture
def broker() -> Searched:
    made = Searched()
    made.create()
    return made


def test_messages_of_all_queues_and_states_are_found_by_name_and_number(broker: Searched) -> None:
    """Req: A-08, S-11"""
    topic = broker.create_topic("News")
    subscription = broker.subscribe("all", topic="News")
    broker.create("bills")
    broker.put(topic)
    for _ in range(4):
        broker.put()
    locked, deferred, dead = broker.receive(3)
    broker.defer(deferred)
    broker.dead_letter(dead)
    broker.put(delay_ms=MINUTE_MS)
    broker.put(topic, delay_ms=MINUTE_MS)
    found = broker.ask()
    assert places(found) == [
        ("News", SubQueue.MAIN, 2),
        ("News/Subscriptions/all", SubQueue.MAIN, 1),
        ("orders", SubQueue.MAIN, 1),
        ("orders", SubQueue.MAIN, 2),
        ("orders", SubQueue.MAIN, 4),
        ("orders", SubQueue.MAIN, 5),
        ("orders", SubQueue.DEAD_LETTER, 3),
    ]
    assert found.next is None
    views = [match.view for match in found.matches]
    assert [view.state for view in views[2:6]] == [
        MessageState.ACTIVE, MessageState.DEFERRED, MessageState.ACTIVE, MessageState.SCHEDULED
    ]  # fmt: skip
    assert views[2].locked_until_ms == locked.locked_until_ms
    assert [view.lock_token for view in views] == [None] * 7
    assert subscription != topic
    assert broker.fetches == 0


def test_one_queue_is_searched_alone(broker: Searched) -> None:
    """Req: A-08"""
    broker.create("bills")
    broker.put(8)
    broker.put()
    broker.dead_letter(broker.receive()[0])
    broker.put()
    assert places(broker.ask(address=Address("ORDERS"))) == [("ORDERS", SubQueue.MAIN, 2)]
    dead = Address("orders", SubQueue.DEAD_LETTER)
    assert places(broker.ask(address=dead)) == [("orders", SubQueue.DEAD_LETTER, 1)]
    assert places(broker.ask(address=Address("orders", SubQueue.TRANSFER_DEAD_LETTER))) == []


def test_a_filter_is_asked_of_each_message(broker: Searched) -> None:
    """Req: A-08, P-01"""
    for n in range(3 * ROUND_MAX):
        broker.put(colour="red" if n % 100 == 0 else "blue", n=n)
    found = broker.ask(RED)
    assert [number for *_, number in places(found)] == [1, 101, 201, 301]
    assert found.next is None
    by_two = CorrelationFilter(message_id="m", properties=(("n", 7),))
    assert numbers([match.view for match in broker.ask(by_two).matches]) == [8]
    assert numbers([match.view for match in broker.ask(SqlFilter("sys.SequenceNumber = 9")).matches]) == [9]


def test_changed_properties_count(broker: Searched) -> None:
    """Req: A-08, L-08"""
    broker.put(colour="blue")
    broker.put(colour="red")
    for view, colour in zip(broker.receive(2), ("red", "blue"), strict=True):
        broker.abandon(view, properties={"colour": colour})
    assert numbers([match.view for match in broker.ask(RED).matches]) == [1]
    broker.dead_letter(broker.receive()[0], reason="broken")
    found = broker.ask(SqlFilter("DeadLetterReason = 'broken'"))
    assert places(found) == [("orders", SubQueue.DEAD_LETTER, 1)]


def test_all_messages_and_none_need_no_bodies(broker: Searched) -> None:
    """Req: A-08"""
    broker.put()
    assert len(broker.ask(TrueFilter()).matches) == 1
    assert len(broker.ask(SqlFilter("1 = 1")).matches) == 1
    found = broker.ask(FalseFilter())
    assert (found.matches, found.next) == ((), None)


def test_what_cannot_be_evaluated_does_not_match(broker: Searched) -> None:
    """Req: A-08, P-04"""
    broker.put(n=0)
    broker.put(n=5)
    assert numbers([match.view for match in broker.ask(SqlFilter("10 / n = 2")).matches]) == [2]
    assert broker.namespace.failed_evaluations == 0


def test_a_wrong_filter_is_refused(broker: Searched) -> None:
    """Req: A-08"""
    for where in (SqlFilter("colour ="), SqlFilter("a = '" + "x" * 100_000 + "'")):
        error = broker.refused(SearchMessages(broker.reply_to(), where, None, None, 1))
        assert isinstance(error, ArgumentInvalid)


def test_an_unknown_queue_a_foreign_cursor_and_no_messages_are_refused(broker: Searched) -> None:
    """Req: A-08"""
    error = broker.refused(SearchMessages(broker.reply_to(), None, Address("missing"), None, 1))
    assert isinstance(error, EntityNotFound)
    after = SearchCursor(Address("bills"), SequenceNumber(1))
    error = broker.refused(SearchMessages(broker.reply_to(), None, Address("orders"), after, 1))
    assert isinstance(error, ArgumentInvalid)
    error = broker.refused(SearchMessages(broker.reply_to(), None, None, None, 0))
    assert isinstance(error, ArgumentInvalid)


@pytest.mark.parametrize("where", [None, RED])
def test_pages_follow_each_other_without_gaps(broker: Searched, where: Filter | None) -> None:
    """Req: A-08"""
    broker.create("bills")
    for n in range(20):
        broker.put(8 if n % 2 else 4, colour="red" if n % 3 else "blue")
    broker.dead_letter(broker.receive()[0])
    whole = places(broker.ask(where))
    assert len(whole) == (20 if where is None else 13)
    paged, after = [], None
    for _ in range(40):
        found = broker.ask(where, after=after, messages_max=3)
        assert len(found.matches) <= 3
        paged += places(found)
        after = found.next
        if after is None:
            break
    assert paged == whole


def test_a_call_looks_at_a_bounded_number_of_messages(broker: Searched) -> None:
    """Req: A-08, T-08"""
    broker.checks = False
    for n in range(2 * EXAMINED_MAX):
        broker.put(colour="red" if n == 2 * EXAMINED_MAX - 1 else "blue")
    first = broker.ask(RED, Address("orders"))
    assert first.matches == ()
    assert broker.fetches < EXAMINED_MAX
    second = broker.ask(RED, Address("orders"), first.next)
    third = broker.ask(RED, Address("orders"), second.next)
    assert numbers([match.view for match in second.matches + third.matches]) == [2 * EXAMINED_MAX]
    assert third.next is None
    assert len(broker.ask(messages_max=LOTS).matches) < EXAMINED_MAX


def test_many_empty_queues_count_too(broker: Searched) -> None:
    """Req: A-08, T-08"""
    broker.checks = False
    for n in range(EXAMINED_MAX):
        broker.create(f"q{n:04}")
    broker.put(8 + 4 * (EXAMINED_MAX - 2))
    after: Any = None
    found: list[Any] = []
    calls = 0
    while calls == 0 or after is not None:
        calls += 1
        answer = broker.ask(after=after)
        found += answer.matches
        after = answer.next
    assert calls == 3  # two queues each
    assert len(found) == 1


def test_large_messages_end_a_call_early(broker: Searched) -> None:
    """Req: A-08, T-08"""
    broker.checks = False
    for _ in range(30):
        message = broker.put(colour="red")
        broker.bodies[1_000_000] = broker.bodies[message.size_bytes]
        message.size_bytes = 1_000_000
    first = broker.ask(RED)
    assert len(first.matches) == 20
    second = broker.ask(RED, after=first.next)
    assert len(second.matches) == 10
    assert second.next is None


def test_what_leaves_before_its_body_is_here_is_no_match(broker: Searched) -> None:
    """Req: A-08"""
    for _ in range(3):
        broker.put(colour="red")
    fetches = broker.do(SearchMessages(broker.reply_to(), RED, None, None, 9))
    broker.complete(broker.receive()[0])
    broker.put(colour="red")
    effects: list[Effect] = []
    for fetch in fetches:
        assert isinstance(fetch, Fetch)
        effects += broker.bring(fetch)
    (answer,) = effects
    assert isinstance(answer, MessagesMatched)
    assert numbers([match.view for match in answer.matches]) == [2, 3]


def test_two_searches_wait_for_one_message(broker: Searched) -> None:
    """Req: A-08"""
    broker.put(colour="red")
    one = broker.do(SearchMessages(broker.reply_to(), RED, None, None, 9))
    two = broker.do(DeleteMatching(broker.reply_to(), RED, None, None, 9))
    (fetch,) = one
    assert isinstance(fetch, Fetch)
    found, deleted = broker.bring(fetch)
    assert isinstance(found, MessagesMatched)
    assert isinstance(deleted, MatchingDeleted)
    assert (len(found.matches), deleted.deleted) == (1, 1)
    assert isinstance(two[0], Fetch)
    assert broker.bring(two[0]) == []


def test_an_entity_that_is_deleted_meanwhile_has_no_matches(broker: Searched) -> None:
    """Req: A-08, A-01"""
    broker.put(colour="red")
    (fetch,) = broker.do(SearchMessages(broker.reply_to(), RED, Address("orders"), None, 9))
    broker.do(DeleteEntity("orders", broker.reply_to()))
    assert isinstance(fetch, Fetch)
    (answer,) = broker.bring(fetch)
    assert isinstance(answer, MessagesMatched)
    assert (answer.matches, answer.next) == ((), None)


def test_a_search_goes_on_behind_an_entity_that_is_gone(broker: Searched) -> None:
    """Req: A-08"""
    broker.create("bills")
    broker.create("zebras")
    broker.put(8)
    broker.put(12)
    broker.put()
    first = broker.ask(messages_max=1)
    broker.do(DeleteEntity("bills", broker.reply_to()))
    assert places(broker.ask(after=first.next)) == [
        ("orders", SubQueue.MAIN, 1), ("zebras", SubQueue.MAIN, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("first", [(1 << 63) - 2, (1 << 48) - 2])
@pytest.mark.parametrize("partitioned", [False, True])
def test_numbers_that_roll_over_are_paged_through_once(first: int, partitioned: bool) -> None:
    """Req: A-08, S-02, S-03"""
    broker = Searched(first_sequence_number=first)
    broker.create(enable_partitioning=partitioned)
    for _ in range(5):
        broker.put()
    expected = numbers(broker.peek())
    found, after = [], None
    for _ in range(9):
        answer = broker.ask(after=after, messages_max=1)
        found += numbers([match.view for match in answer.matches])
        after = answer.next
        if after is None:
            break
    assert found == expected


# Deleting


def test_what_matches_is_deleted_for_good(broker: Searched) -> None:
    """Req: A-08, A-06, R-02"""
    for n in range(6):
        broker.put(colour="red" if n % 2 else "blue")
    broker.put(colour="red", delay_ms=MINUTE_MS)
    answer = broker.delete(RED, messages_max=3)
    assert (answer.deleted, answer.locked) == (3, 0)
    answer = broker.delete(RED, after=answer.next)
    assert (answer.deleted, answer.locked, answer.next) == (1, 0, None)
    assert numbers(broker.peek()) == [1, 3, 5]
    broker.restart()
    assert numbers(broker.peek()) == [1, 3, 5]
    kinds = [event.type for event in broker.events if event.sequence_number in (2, 7)]
    assert kinds == [EventType.ENQUEUED, EventType.SCHEDULED, EventType.PURGED, EventType.CANCELLED]


def test_what_somebody_holds_stays(broker: Searched) -> None:
    """Req: A-08, A-06"""
    for _ in range(5):
        broker.put()
    locked, deferred = broker.receive(2)
    broker.defer(deferred)
    broker.one(ClaimMessages(Address("orders"), "reader", 1, LOTS, broker.reply_to()), Claimed)
    answer = broker.delete(address=Address("orders"))
    assert (answer.deleted, answer.locked, answer.next) == (3, 2, None)
    assert numbers(broker.peek()) == [1, 3]
    broker.complete(locked)


def test_a_cancelled_message_frees_its_id(broker: Searched) -> None:
    """Req: A-08, D-01"""
    once = broker.create("once", requires_duplicate_detection=True)
    broker.put(once, delay_ms=MINUTE_MS)
    assert broker.delete(address=Address("once")).deleted == 1
    assert broker.put(once).sequence_number == 2
    assert numbers(broker.peek(name="once")) == [2]


def test_expired_messages_are_left_to_the_sweep_of_their_queue(broker: Searched) -> None:
    """Req: A-08, E-08"""
    broker.update(dead_lettering_on_expiration=True, default_ttl_ms=1_000)
    broker.put()
    broker.jump(1_000)
    answer = broker.delete(address=Address("orders"))
    assert (answer.deleted, answer.locked) == (0, 0)
    broker.settle_time()
    assert numbers(broker.peek_dead()) == [1]


def test_who_may_not_receive_may_not_delete(broker: Searched) -> None:
    """Req: A-08, A-04"""
    broker.create("bills")
    broker.put()
    broker.put(8)
    broker.update(status=EntityStatus.RECEIVE_DISABLED)
    command = DeleteMatching(broker.reply_to(), None, Address("orders"), None, 9)
    assert isinstance(broker.refused(command), EntityDisabled)
    assert broker.delete().deleted == 1
    assert places(broker.ask()) == [("orders", SubQueue.MAIN, 1)]


def test_a_message_that_is_purged_meanwhile_is_deleted_once(broker: Searched) -> None:
    """Req: A-08, A-06"""
    for _ in range(3):
        broker.put(colour="red")
    facts = len(broker.facts)
    fetches = broker.do(DeleteMatching(broker.reply_to(), RED, None, None, 9))
    broker.do(PurgeMessages(Address("orders"), broker.now_ms, broker.reply_to()))
    broker.settle_time()
    effects: list[Effect] = []
    for fetch in fetches:
        assert isinstance(fetch, Fetch)
        effects += broker.bring(fetch)
    (answer,) = effects
    assert isinstance(answer, MatchingDeleted)
    assert answer.deleted == 0
    assert sum(isinstance(fact, MessageRemoved) for fact in broker.facts[facts:]) == 3


def test_sessions_and_partitions_are_deleted_from_too(broker: Searched) -> None:
    """Req: A-08, G-01, S-02"""
    steps = broker.create("steps", requires_session=True, enable_partitioning=True)
    for n in range(6):
        broker.put(steps, n=n)
    answer = broker.delete(SqlFilter("n > 1"))
    assert answer.deleted == 4
    opened = broker.accept("s", "steps")
    assert len(broker.credit(opened.link)) == 2


@settings(max_examples=60, deadline=None)
@given(
    colours=st.lists(st.tuples(st.sampled_from(["red", "blue"]), st.integers(0, 2)), max_size=12),
    page=st.integers(1, 5),
    deletes=st.booleans(),
)
def test_pages_of_any_size_find_what_one_page_finds(
    colours: list[tuple[str, int]], page: int, deletes: bool
) -> None:
    """Req: A-08"""
    broker = Searched()
    for name in "abc":
        broker.create(name)
    for colour, at in colours:
        broker.put(4 + 4 * at, colour=colour)
    whole = places(broker.ask(RED))
    assert len(whole) == sum(colour == "red" for colour, _ in colours)
    paged, count, after = [], 0, None
    for _ in range(20):
        if deletes:
            deleted = broker.delete(RED, after=after, messages_max=page)
            count += deleted.deleted
            after = deleted.next
        else:
            found = broker.ask(RED, after=after, messages_max=page)
            paged += places(found)
            after = found.next
        if after is None:
            break
    assert count == len(whole) if deletes else paged == whole
    assert len(broker.ask(RED).matches) == (0 if deletes else len(whole))
