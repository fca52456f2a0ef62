"""Purging a queue: everything that was there, in slices."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from peeklock.broker.handlers.purging import SLICE, WAITING_MAX
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.vocabulary.changes import MessageRemoved
from peeklock.broker.vocabulary.commands import (
    Address,
    DeleteEntity,
    DropConnection,
    PurgeMessages,
    ReplyTo,
    SubQueue,
)
from peeklock.broker.vocabulary.descriptions import EntityStatus
from peeklock.broker.vocabulary.effects import Effect, Failed, MessagesDeleted
from peeklock.broker.vocabulary.errors import EntityDeleted, EntityDisabled, EntityNotFound, ServerBusy
from peeklock.broker.vocabulary.message import MessageState
from tests.broker.harness import LOTS, MINUTE_MS, Broker, arriving, numbers, token


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create()
    return made


def ask(
    broker: Broker, name: str = "orders", before_ms: int | None = None, sub_queue: SubQueue = SubQueue.MAIN
) -> ReplyTo:
    """Ask for a purge; nothing is answered yet."""
    reply_to = broker.reply_to()
    before_ms = broker.now_ms if before_ms is None else before_ms
    assert broker.do(PurgeMessages(Address(name, sub_queue), before_ms, reply_to)) == []
    return reply_to


def purge(
    broker: Broker, name: str = "orders", before_ms: int | None = None, sub_queue: SubQueue = SubQueue.MAIN
) -> int:
    reply_to = ask(broker, name, before_ms, sub_queue)
    (answer,) = [found for found in broker.settle_time() if isinstance(found, MessagesDeleted)]
    assert answer.reply_to == reply_to
    return answer.count


def a_slice(broker: Broker) -> list[Effect]:
    changes, effects = broker.namespace.advance(broker.now_ms)
    broker._keep(changes)
    return effects


def fill(broker: Broker, count: int, queue_id: int = 4) -> None:
    broker.checks = False
    for start in range(0, count, 500):
        broker.send_batch([arriving() for _ in range(min(500, count - start))], queue_id)
    broker.checks = True


def test_active_and_deferred_messages_go_and_scheduled_and_locked_ones_stay(broker: Broker) -> None:
    """Req: A-06"""
    for _ in range(5):
        broker.send()
    broker.schedule(MINUTE_MS)
    deferred, locked, deferred_and_locked, abandoned = broker.receive(4)
    broker.defer(deferred)
    broker.defer(deferred_and_locked)
    broker.receive_deferred(3)
    broker.abandon(abandoned)
    assert purge(broker) == 3
    assert numbers(broker.peek()) == [2, 3, 6]
    broker.complete(locked)
    assert purge(broker) == 0
    broker.advance(MINUTE_MS)
    assert purge(broker) == 2
    assert broker.peek() == []
    broker.restart()
    assert broker.peek() == []


def test_what_was_enqueued_after_the_time_stays(broker: Broker) -> None:
    """Req: A-06"""
    for _ in range(3):
        broker.send()
        broker.advance(1_000)
    assert purge(broker, before_ms=broker.now_ms - 2_000) == 2
    assert numbers(broker.peek()) == [3]


def test_an_empty_queue_is_purged_at_once(broker: Broker) -> None:
    """Req: A-06"""
    facts = len(broker.facts)
    assert purge(broker) == 0
    assert len(broker.facts) == facts
    assert broker.namespace.timers.next_ms is None


def test_it_goes_on_in_slices_and_answers_at_the_end(broker: Broker) -> None:
    """Req: A-06"""
    fill(broker, 3 * SLICE + 1)
    reply_to = ask(broker)
    for gone in (SLICE, 2 * SLICE, 3 * SLICE):
        facts = len(broker.facts)
        assert a_slice(broker) == []
        assert len(broker.facts) == facts + SLICE
        assert broker.namespace.totals().active_messages == 3 * SLICE + 1 - gone
        assert broker.namespace.timers.next_ms == broker.now_ms
    assert a_slice(broker) == [MessagesDeleted(reply_to, 3 * SLICE + 1)]
    assert broker.namespace.timers.next_ms is None


def test_messages_that_come_meanwhile_stay(broker: Broker) -> None:
    """Req: A-06"""
    fill(broker, SLICE + 1)
    reply_to = ask(broker, before_ms=broker.now_ms + MINUTE_MS)
    late = [broker.send()]
    a_slice(broker)
    late.append(broker.send())
    assert broker.settle_time() == [MessagesDeleted(reply_to, SLICE + 1)]
    assert [view.message for view in broker.peek()] == late


def test_no_message_is_looked_at_twice(broker: Broker) -> None:
    """Req: A-06"""
    fill(broker, 2 * SLICE)
    link = broker.receiver()
    held = broker.credit(link, SLICE)  # as many locked ones as one slice looks at
    reply_to = ask(broker)
    assert a_slice(broker) == []
    never_sent = [(4, token(delivery)) for delivery in held]
    broker.do(DropConnection(1, True, never_sent))  # all come back, behind the purge
    assert a_slice(broker) == []
    assert a_slice(broker) == [MessagesDeleted(reply_to, SLICE)]
    assert len(broker.peek(count=LOTS)) == SLICE


def test_messages_may_move_under_a_purge(broker: Broker) -> None:
    """Req: A-06"""
    fill(broker, SLICE + 3)
    held = broker.receive(3)
    reply_to = ask(broker)
    assert a_slice(broker) == []
    broker.defer(held[0])
    broker.complete(held[1])
    for view in broker.receive(2):
        broker.dead_letter(view)
    (answer,) = broker.settle_time()
    # All but the one still locked, the one completed and the two that went away in time.
    assert answer == MessagesDeleted(reply_to, SLICE + 3 - 4)
    assert numbers(broker.peek()) == numbers([held[2]])
    assert len(broker.peek_dead()) == 2


def test_a_dead_letter_queue_is_purged_by_itself(broker: Broker) -> None:
    """Req: A-06"""
    for _ in range(4):
        broker.send()
        broker.advance(1_000)
    views = broker.receive(3)
    for view in reversed(views):
        broker.dead_letter(view)
    (held,) = broker.receive_dead(1)
    assert purge(broker, sub_queue=SubQueue.DEAD_LETTER, before_ms=broker.now_ms - 3_001) == 1
    assert purge(broker, sub_queue=SubQueue.DEAD_LETTER) == 1
    assert numbers(broker.peek_dead()) == numbers([held])
    assert numbers(broker.peek()) == [4]


def test_sessions_and_partitions_are_purged_too(broker: Broker) -> None:
    """Req: A-06, G-01, S-02"""
    queue_id = broker.create("steps", requires_session=True, enable_partitioning=True)
    for n in range(40):
        broker.send(queue_id, session_id=f"s{n % 8}")
    opened = broker.accept("s3", "steps")
    held = broker.credit(opened.link, 2)
    assert purge(broker, "steps") == 38
    assert numbers(broker.peek(name="steps")) == numbers(held)
    broker.complete(held[0], queue_id)
    broker.send(queue_id, session_id="s5")
    assert broker.accept(None, "steps").session_id == "s5"


def test_a_slice_looks_at_a_bounded_number_of_messages_of_sessions_too(broker: Broker) -> None:
    """Req: A-06, T-08"""
    queue_id = broker.create("steps", requires_session=True)
    broker.checks = False
    for n in range(10 * SLICE):
        broker.send(queue_id, session_id=f"s{n % 10}")
    ask(broker, "steps")
    looks = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal looks
        looks += event == "call" and frame.f_code is MessageQueue.find.__code__

    most = 0
    while broker.namespace.timers.next_ms == broker.now_ms:
        looks = 0
        sys.setprofile(count)
        try:
            a_slice(broker)
        finally:
            sys.setprofile(None)
        most = max(most, looks)
    assert 0 < most <= 5 * SLICE
    broker.namespace.check(broker.now_ms)
    assert broker.peek(name="steps") == []


def test_expired_messages_are_left_to_the_sweep(broker: Broker) -> None:
    """Req: A-06, E-08"""
    broker.update(dead_lettering_on_expiration=True)
    broker.send(ttl_ms=1_000)
    broker.send()
    broker.jump(1_000)
    assert purge(broker) == 1
    assert numbers(broker.peek_dead()) == [1]


def test_purges_of_one_queue_wait_for_each_other(broker: Broker) -> None:
    """Req: A-06"""
    fill(broker, SLICE + 1)
    first, second = ask(broker), ask(broker)
    effects = broker.settle_time()
    assert effects == [MessagesDeleted(first, SLICE + 1), MessagesDeleted(second, 0)]


def test_purges_of_different_queues_take_turns(broker: Broker) -> None:
    """Req: A-06, T-08"""
    broker.create("bills")
    fill(broker, 5 * SLICE)
    large = ask(broker)
    broker.send(8)
    small = ask(broker, "bills")
    assert broker.settle_time() == [MessagesDeleted(small, 1), MessagesDeleted(large, 5 * SLICE)]


def test_too_many_purges_of_one_queue_are_refused(broker: Broker) -> None:
    """Req: A-06, T-08"""
    asked = [ask(broker) for _ in range(WAITING_MAX)]
    command = PurgeMessages(Address("orders"), broker.now_ms, broker.reply_to())
    assert type(broker.refused(command)) is ServerBusy
    assert broker.settle_time() == [MessagesDeleted(reply_to, 0) for reply_to in asked]
    assert purge(broker) == 0


def test_a_queue_that_is_deleted_meanwhile_ends_its_purges(broker: Broker) -> None:
    """Req: A-06, A-01"""
    fill(broker, 2 * SLICE)
    asked = [ask(broker), ask(broker)]
    a_slice(broker)
    broker.do(DeleteEntity("orders", broker.reply_to()))
    broker.create()
    broker.send(8)
    effects = broker.settle_time()
    assert [effect.reply_to for effect in effects if isinstance(effect, Failed)] == asked
    assert all(isinstance(effect, Failed) and type(effect.error) is EntityDeleted for effect in effects)
    assert len(broker.peek()) == 1


def test_a_purge_stops_with_a_restart_and_can_be_asked_again(broker: Broker) -> None:
    """Req: A-06, R-02"""
    fill(broker, 2 * SLICE)
    ask(broker)
    a_slice(broker)
    broker.restart()
    assert broker.settle_time() == []
    assert broker.namespace.totals().active_messages == SLICE
    assert purge(broker) == SLICE


def test_a_purge_goes_on_when_its_asker_is_gone(broker: Broker) -> None:
    """Req: A-06"""
    fill(broker, 2 * SLICE)
    broker.receiver()
    ask(broker)
    broker.drop()
    broker.settle_time()
    assert broker.peek() == []


def test_who_may_not_receive_may_not_purge(broker: Broker) -> None:
    """Req: A-06, A-04"""
    command = PurgeMessages(Address("missing"), broker.now_ms, broker.reply_to())
    assert type(broker.refused(command)) is EntityNotFound
    broker.update(status=EntityStatus.RECEIVE_DISABLED)
    command = PurgeMessages(Address("orders"), broker.now_ms, broker.reply_to())
    assert type(broker.refused(command)) is EntityDisabled


def test_what_was_removed_is_removed_once(broker: Broker) -> None:
    """Req: A-06, R-02"""
    fill(broker, 300)
    for view in broker.receive(100):
        broker.defer(view)
    facts = len(broker.facts)
    assert purge(broker) == 300
    removed = [fact.message.position for fact in broker.facts[facts:] if isinstance(fact, MessageRemoved)]
    assert len(removed) == len(set(removed)) == 300
    assert all(view.state is MessageState.ACTIVE for view in broker.peek())


def test_a_small_slice_of_a_purge_leaves_what_else_is_due_its_own() -> None:
    """Req: R-06"""
    broker = Broker()
    broker.create()
    other = broker.create("other", default_ttl_ms=1_000)
    fill(broker, 50)
    fill(broker, 50, other)
    broker.jump(2_000)
    ask(broker)
    gone = []
    for _ in range(2):
        changes, _ = broker.namespace.advance(broker.now_ms, 5)
        broker._keep(changes)
        gone.append([sum(1 for _ in broker.namespace._queues[queue_id].active) for queue_id in (4, other)])
    assert gone == [[45, 0], [40, 0]]
