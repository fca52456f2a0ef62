"""Duplicate detection by message id within a window."""

from __future__ import annotations

import itertools
import random
import tracemalloc

import pytest

from peeklock.broker.queue.duplicates import Duplicates
from peeklock.broker.vocabulary.changes import MessageIdSeen
from peeklock.broker.vocabulary.commands import Address, CancelScheduled, Send, SequenceNumber
from peeklock.broker.vocabulary.effects import Accepted, Done
from peeklock.broker.vocabulary.errors import QuotaExceeded
from tests.broker.harness import EMPTY, MINUTE_MS, START_MS, Broker, arriving, numbers

WINDOW_MS = 10 * MINUTE_MS
SWEPT_AFTER_MS = WINDOW_MS // 16
"""So much later than it might be an id is forgotten."""


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create(requires_duplicate_detection=True)
    return made


def seen(broker: Broker) -> int:
    duplicates = broker.namespace._queues[4].duplicates
    assert duplicates is not None
    return len(duplicates)


def test_a_duplicate_is_accepted_and_dropped(broker: Broker) -> None:
    """Req: D-01, S-01"""
    broker.send(message_id=b"a")
    facts = len(broker.facts)
    broker.send(message_id=b"a")
    assert len(broker.facts) == facts
    assert broker.send(message_id=b"b").sequence_number == 2
    assert numbers(broker.peek()) == [1, 2]


def test_messages_without_an_id_are_never_duplicates(broker: Broker) -> None:
    """Req: D-01"""
    broker.send()
    broker.send()
    assert len(broker.peek()) == 2


def test_a_queue_without_detection_takes_every_message() -> None:
    """Req: D-01"""
    broker = Broker()
    broker.create()
    broker.send(message_id=b"a")
    broker.send(message_id=b"a")
    assert len(broker.peek()) == 2


def test_the_id_is_not_kept_with_the_message(broker: Broker) -> None:
    """Req: T-08"""
    assert broker.send(message_id=b"a").routing is None


@pytest.mark.parametrize("window_ms", [20_000, WINDOW_MS, 7 * 24 * 60 * MINUTE_MS])
def test_it_holds_for_the_window_from_the_first_message_on(broker: Broker, window_ms: int) -> None:
    """Req: D-01"""
    broker.update(duplicate_window_ms=window_ms)
    broker.send(message_id=b"a")
    broker.advance(window_ms - 1)
    broker.send(message_id=b"a")  # does not prolong it
    assert len(broker.peek()) == 1
    broker.advance(1)
    broker.send(message_id=b"a")
    assert len(broker.peek()) == 2
    broker.advance(window_ms - 1)
    broker.send(message_id=b"a")
    assert len(broker.peek()) == 2


def test_it_holds_after_completion_and_across_a_restart(broker: Broker) -> None:
    """Req: D-01, R-02"""
    broker.send(message_id=b"a")
    broker.complete(broker.receive()[0])
    broker.restart(down_ms=MINUTE_MS)
    broker.send(message_id=b"a")
    assert broker.peek() == []
    broker.advance(9 * MINUTE_MS)
    broker.send(message_id=b"a")
    assert numbers(broker.peek()) == [2]


def test_it_holds_within_and_across_batches(broker: Broker) -> None:
    """Req: D-01, T-07"""
    broker.send(message_id=b"a")
    effects = broker.send_batch([arriving(1, message_id=id_) for id_ in (b"a", b"b", b"b", b"c")])
    assert [type(effect) for effect in effects] == [Accepted]
    assert numbers(broker.peek()) == [1, 2, 3]


def test_it_holds_for_scheduled_sends(broker: Broker) -> None:
    """Req: D-01, S-05"""
    broker.send(message_id=b"a", scheduled_at_ms=START_MS + 1_000)
    broker.send(message_id=b"a")
    assert (broker.view().scheduled_count, broker.view().active_count) == (1, 0)
    broker.advance(1_000)
    broker.send(message_id=b"a")
    assert broker.view().active_count == 1


def test_scheduling_a_duplicate_answers_the_first_number(broker: Broker) -> None:
    """Req: D-01, S-01"""
    broker.send()
    assert broker.schedule(1_000, message_id=b"a") == [2]
    assert broker.schedule(5_000, message_id=b"a") == [2]
    assert broker.schedule(5_000, 5_000, message_id=b"b") == [3, 3]
    assert broker.view().scheduled_count == 2
    broker.restart()
    assert broker.schedule(5_000, message_id=b"b") == [3]


def cancel(broker: Broker, *sequence_numbers: int, name: str = "orders") -> None:
    broker.one(
        CancelScheduled(Address(name), list(map(SequenceNumber, sequence_numbers)), broker.reply_to()), Done
    )


@pytest.mark.parametrize("restarts", [False, True])
def test_the_id_of_a_cancelled_message_is_free_again(broker: Broker, restarts: bool) -> None:
    """It was never enqueued. Req: D-01, S-06"""
    assert broker.schedule(MINUTE_MS, message_id=b"a") == [1]
    broker.send(message_id=b"b", scheduled_at_ms=START_MS + MINUTE_MS)
    if restarts:
        broker.restart()
    cancel(broker, 1, 2)
    if restarts:
        broker.restart()
    assert seen(broker) == 0
    assert broker.schedule(MINUTE_MS, message_id=b"a") == [3]
    broker.send(message_id=b"b")
    assert numbers(broker.peek()) == [3, 4]
    if restarts:
        broker.restart()
    assert broker.schedule(MINUTE_MS, message_id=b"a") == [3]
    broker.send(message_id=b"b")
    assert numbers(broker.peek()) == [3, 4]


def test_a_cancelled_message_whose_id_was_seen_otherwise_leaves_it_taken(broker: Broker) -> None:
    """After the window another message has the id. Req: D-01, S-06"""
    assert broker.schedule(2 * WINDOW_MS, message_id=b"a") == [1]
    broker.advance(WINDOW_MS)
    broker.send(message_id=b"a")
    cancel(broker, 1)
    broker.restart()
    broker.send(message_id=b"a")
    assert numbers(broker.peek()) == [2]


def test_an_activated_message_keeps_its_id(broker: Broker) -> None:
    """Req: D-01, S-06"""
    broker.schedule(1_000, message_id=b"a")
    broker.advance(1_000)
    broker.send(message_id=b"a")
    assert numbers(broker.peek()) == [2]
    duplicates = broker.namespace._queues[4].duplicates
    assert duplicates is not None
    assert duplicates.waiting == {}


def test_the_fact_that_frees_an_id_wins_in_any_order_and_at_any_time(broker: Broker) -> None:
    """Req: D-01, R-02"""
    broker.schedule(MINUTE_MS, message_id=b"a")
    cancel(broker, 1)
    taken, freed = [fact for fact in broker.facts if isinstance(fact, MessageIdSeen)]
    assert broker.namespace.still_holds(freed, broker.now_ms) is None
    for order, now_ms in itertools.product(((taken, freed), (freed, taken)), (0, START_MS)):
        restored = Duplicates(4, b"key", WINDOW_MS)
        restored.restore(order, now_ms, {SequenceNumber(1)})
        assert (len(restored), restored.waiting) == (0, {})


def test_the_id_of_a_cancelled_message_is_free_in_its_partition_and_in_a_topic() -> None:
    """Req: D-01, S-02, S-05"""
    broker = Broker()
    broker.create(requires_duplicate_detection=True, enable_partitioning=True)
    broker.create_topic(requires_duplicate_detection=True)
    for name in ("orders", "news"):
        for key in ("k", "l", None):
            first = broker.schedule(MINUTE_MS, name=name, message_id=b"a", partition_key=key)
            cancel(broker, *first, name=name)
            second = broker.schedule(MINUTE_MS, name=name, message_id=b"a", partition_key=key)
            assert second == [first[0] + 1]
            assert broker.schedule(MINUTE_MS, name=name, message_id=b"a", partition_key=key) == second
            if name == "news":
                cancel(broker, *second, name=name)


def test_a_refused_send_leaves_its_id_free(broker: Broker) -> None:
    """Req: D-01"""
    broker.refused(Send(4, arriving(1 << 20, message_id=b"a"), EMPTY, broker.reply_to()))
    broker.send(message_id=b"a")
    assert len(broker.peek()) == 1


def test_ids_are_forgotten_in_time(broker: Broker) -> None:
    """Req: D-01, T-08"""
    for number in range(20):
        broker.send(message_id=b"%d" % number)
        broker.advance(MINUTE_MS)
        assert seen(broker) <= 11
    broker.advance(WINDOW_MS - MINUTE_MS)
    assert seen(broker) > 0
    broker.advance(SWEPT_AFTER_MS)
    assert seen(broker) == 0
    assert broker.namespace.timers.next_ms is None


@pytest.mark.parametrize("a_second", [1_000, 10_000])
def test_a_sweep_goes_on_in_slices_while_ids_come(a_second: int) -> None:
    """Req: D-01, T-08"""
    ids = Duplicates(4, b"test", 20_000)
    for number in range(5 * a_second):
        ids.note(ids.digest(b"%d" % number), SequenceNumber(number), number * 1_000 // a_second)
    now_ms = 24_000  # the first 4 seconds are past
    slices = 0
    while (due_ms := ids.next_ms()) is not None and due_ms <= now_ms:
        assert ids.purge(now_ms, 100) <= 2 * 100
        ids.note(ids.digest(b"later %d" % slices), SequenceNumber(1), now_ms)
        ids.check()
        slices += 1
    assert slices > 5
    past = 4 * a_second + a_second // 1_000
    assert len(ids) == 5 * a_second - past + slices
    assert ids.next_ms() == 4_001 + 20_000 + 20_000 // 16


@pytest.mark.parametrize("spread_ms", [0, 1, 3, 500])
def test_it_remembers_exactly_what_is_in_the_window(spread_ms: int) -> None:
    """Req: D-01"""
    chance = random.Random(spread_ms)
    window_ms = 20_000
    ids = Duplicates(4, b"test", window_ms)
    expected: dict[bytes, tuple[int, int]] = {}
    now_ms = START_MS
    for number in range(40_000):
        digest = ids.digest(b"%d" % chance.randrange(30_000))
        first = expected.get(digest)
        if first is not None and first[0] + window_ms <= now_ms:
            first = None
        assert ids.first_number(digest, now_ms) == (None if first is None else first[1])
        if first is None:
            expected[digest] = (now_ms, number)
            ids.note(digest, SequenceNumber(number), now_ms)
        now_ms += chance.randint(0, spread_ms)
        due_ms = ids.next_ms()
        if due_ms is not None and due_ms <= now_ms:
            ids.purge(now_ms, 50)
        if number % 1_000 == 0:
            ids.check()
    ids.check()
    still = [(digest, at) for digest, (at, _) in expected.items() if at + window_ms > now_ms]
    assert len(still) <= len(ids) <= len(expected)


def test_an_id_in_the_window_costs_at_most_200_bytes() -> None:
    """Req: D-01, T-08"""
    ids = Duplicates(4, b"test", 20_000)
    most = 0.0
    tracemalloc.start()
    try:
        for number in range(60_000):  # 40,000 of them in the window at a time
            ids.note(ids.digest(b"%d" % number), SequenceNumber(number), START_MS + number // 2)
            if number % 1_000 == 999:
                while (due_ms := ids.next_ms()) is not None and due_ms <= START_MS + number // 2:
                    ids.purge(START_MS + number // 2, 1_000)
                most = max(most, tracemalloc.get_traced_memory()[0] / len(ids))
    finally:
        tracemalloc.stop()
    assert len(ids) <= 40_000 * 17 // 16 + 1_000
    assert most <= 200


def test_ids_that_come_after_the_clock_was_set_back_are_forgotten_in_time() -> None:
    """Req: D-01, T-08"""
    ids = Duplicates(4, b"test", 20_000)
    first = [
        ids.note(ids.digest(b"%d" % number), SequenceNumber(number), START_MS + number)
        for number in range(1_000)
    ]
    now_ms = START_MS - 15_000
    restored = Duplicates(4, b"test", 20_000)
    restored.restore(reversed(first), now_ms)
    for number in range(5_000):
        restored.note(restored.digest(b"later %d" % number), SequenceNumber(number), now_ms + number)
    while (due_ms := restored.next_ms()) is not None and due_ms < START_MS + 20_000:
        restored.check()
        restored.purge(due_ms, 300)
        now_ms = due_ms
    assert now_ms <= START_MS + 12_500
    assert len(restored) == 1_000
    assert restored.first_number(first[0].digest, now_ms) == 0


def test_at_the_cap_sends_are_refused_rather_than_ids_forgotten(broker: Broker) -> None:
    """Req: D-01, A-05, T-08"""
    duplicates = broker.namespace._queues[4].duplicates
    assert duplicates is not None
    duplicates.count_max = 2
    for message_id in (b"a", b"b"):
        broker.send(message_id=message_id)
    error = broker.refused(Send(4, arriving(message_id=b"c"), EMPTY, broker.reply_to()))
    assert type(error) is QuotaExceeded
    assert "'orders' remembers 2 message ids" in str(error)
    broker.advance(WINDOW_MS + SWEPT_AFTER_MS)
    broker.send(message_id=b"c")
    assert len(broker.peek()) == 3


def test_in_a_partitioned_queue_the_partition_key_belongs_to_the_id() -> None:
    """Req: D-01, S-02

    Source: wire contract 10.3.
    """
    broker = Broker()
    broker.create(requires_duplicate_detection=True, enable_partitioning=True)
    broker.send(message_id=b"a", partition_key="k")
    broker.send(message_id=b"a", partition_key="k")
    broker.send(message_id=b"a", partition_key="l")
    broker.send(message_id=b"a")
    broker.send(message_id=b"a")
    assert len(broker.peek()) == 3


def test_a_key_with_an_id_differs_from_every_other_split_of_the_same_bytes() -> None:
    """Req: D-01"""
    ids = Duplicates(4, b"test", WINDOW_MS)
    digests = {
        ids.digest(b"\xa1\x02ab"),
        ids.digest(b"\xa1\x02ab", ""),
        ids.digest(b"\xa1\x02ab", "k"),
        ids.digest(b"\xa1\x02ab", "k\xa1"),
        ids.digest(b"\xa1\x01b", "k\xa1\x02a"),
    }
    assert len(digests) == 5


def test_an_id_seen_again_after_its_window_is_forgotten_last(broker: Broker) -> None:
    """Req: D-01, T-08"""
    broker.send(message_id=b"a")
    broker.advance(MINUTE_MS)
    broker.send(message_id=b"b")
    broker.advance(WINDOW_MS - MINUTE_MS)
    broker.send(message_id=b"a")
    broker.advance(MINUTE_MS + SWEPT_AFTER_MS)
    assert seen(broker) == 1
    broker.send(message_id=b"a")
    assert len(broker.peek()) == 3


def test_another_window_applies_to_ids_seen_before(broker: Broker) -> None:
    """Req: D-01, A-07"""
    broker.send(message_id=b"a")
    broker.advance(MINUTE_MS)
    broker.update(duplicate_window_ms=30_000)
    broker.send(message_id=b"a")
    assert len(broker.peek()) == 2


def test_a_shorter_window_makes_room_at_once(broker: Broker) -> None:
    """Req: D-01, A-07"""
    duplicates = broker.namespace._queues[4].duplicates
    assert duplicates is not None
    duplicates.count_max = 1
    broker.send(message_id=b"a")
    broker.advance(30_000)
    broker.update(duplicate_window_ms=20_000)
    broker.advance(0)
    broker.send(message_id=b"b")


def test_a_fact_about_an_id_holds_while_it_is_the_latest_and_in_the_window(broker: Broker) -> None:
    """Req: D-01, R-02"""
    broker.send(message_id=b"a")
    (first,) = [fact for fact in broker.facts if isinstance(fact, MessageIdSeen)]
    holds = broker.namespace.still_holds
    assert len(first.digest) == 16
    assert b"a" not in first.digest
    assert holds(first, broker.now_ms) == first
    broker.jump(WINDOW_MS - 1)
    assert holds(first, broker.now_ms) == first
    broker.jump(1)
    assert holds(first, broker.now_ms) is None
    broker.send(message_id=b"a")
    _, second = [fact for fact in broker.facts if isinstance(fact, MessageIdSeen)]
    assert holds(first, START_MS) is None
    assert holds(second, broker.now_ms) == second


def test_facts_written_again_out_of_order_restore_the_same_window(broker: Broker) -> None:
    """Req: D-01, R-02"""
    broker.send(message_id=b"a")
    broker.advance(MINUTE_MS)
    broker.send(message_id=b"b")
    broker.facts.append(next(fact for fact in broker.facts if isinstance(fact, MessageIdSeen)))
    broker.restart()
    broker.advance(9 * MINUTE_MS + SWEPT_AFTER_MS)
    assert seen(broker) == 1
    broker.send(message_id=b"b")
    assert len(broker.peek()) == 2


def test_ids_from_before_the_clock_was_set_back_do_not_displace_later_ones(broker: Broker) -> None:
    """Req: D-01, R-02"""
    ids = [b"%d" % number for number in range(40)]
    for message_id in ids[::2]:
        broker.send(message_id=message_id)
    broker.restart(down_ms=-60 * MINUTE_MS)
    for message_id in ids[1::2]:
        broker.send(message_id=message_id)
    broker.restart(down_ms=1)
    for message_id in ids:
        broker.send(message_id=message_id)
    assert len(broker.peek()) == 40
    broker.advance(WINDOW_MS + SWEPT_AFTER_MS)
    broker.namespace.check(broker.now_ms)
    assert seen(broker) == 20


def test_the_digest_depends_on_the_key() -> None:
    """Req: R-05"""
    digests = set()
    for key in (b"one", b"two"):
        broker = Broker(digest_key=key)
        broker.create(requires_duplicate_detection=True)
        broker.send(message_id=b"a")
        digests |= {fact.digest for fact in broker.facts if isinstance(fact, MessageIdSeen)}
    assert len(digests) == 2
