"""Duplicate detection by message id within a window."""

from __future__ import annotations

import pytest

from peeklock.broker.changes import MessageIdSeen
from peeklock.broker.commands import Send
from peeklock.broker.duplicates import PURGE_EVERY_MS
from peeklock.broker.effects import Accepted
from tests.broker.playbook import MINUTE_MS, START_MS, Broker, arriving, numbers

WINDOW_MS = 10 * MINUTE_MS


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


def test_a_refused_send_leaves_its_id_free(broker: Broker) -> None:
    """Req: D-01"""
    broker.refused(Send(4, arriving(1 << 20, message_id=b"a"), b"", broker.reply_to()))
    broker.send(message_id=b"a")
    assert len(broker.peek()) == 1


def test_ids_are_forgotten_in_time(broker: Broker) -> None:
    """Req: D-01, T-08"""
    for number in range(10):
        broker.send(message_id=b"%d" % number)
        broker.advance(1_000)
    broker.advance(WINDOW_MS - 10_000 + PURGE_EVERY_MS)
    assert 8 <= seen(broker) <= 9
    broker.advance(WINDOW_MS)
    assert seen(broker) == 0
    assert broker.namespace.next_deadline_ms() is None


def test_an_id_seen_again_after_its_window_is_forgotten_last(broker: Broker) -> None:
    """Req: D-01, T-08"""
    broker.send(message_id=b"a")
    broker.advance(MINUTE_MS)
    broker.send(message_id=b"b")
    broker.advance(WINDOW_MS - MINUTE_MS)
    broker.send(message_id=b"a")
    broker.advance(MINUTE_MS + PURGE_EVERY_MS)
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
    broker.advance(9 * MINUTE_MS + PURGE_EVERY_MS)
    assert seen(broker) == 1
    broker.send(message_id=b"b")
    assert len(broker.peek()) == 2


def test_the_digest_depends_on_the_key() -> None:
    """Req: R-05"""
    digests = set()
    for key in (b"one", b"two"):
        broker = Broker(digest_key=key)
        broker.create(requires_duplicate_detection=True)
        broker.send(message_id=b"a")
        digests |= {fact.digest for fact in broker.facts if isinstance(fact, MessageIdSeen)}
    assert len(digests) == 2
