"""Partitioned queues: one order of arrival, numbers per partition."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.broker.queue.sequence_numbers import PARTITION_COUNT
from peeklock.broker.vocabulary.changes import NumbersIssued
from peeklock.broker.vocabulary.commands import (
    Address,
    CancelScheduled,
    DeleteMessages,
    Send,
    SendBatch,
    SubQueue,
)
from peeklock.broker.vocabulary.effects import Accepted, Done, MessagesDeleted, ReceiverOpened
from peeklock.broker.vocabulary.errors import MessageNotFound
from tests.broker.harness import EMPTY, START_MS, Broker, arriving, deliveries, numbers

LOW = (1 << 48) - 1


def parts(views: list[Any]) -> list[tuple[int, int]]:
    """Split sequence numbers into (partition, number within it)."""
    return [(number >> 48, number & LOW) for number in numbers(views)]


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create(enable_partitioning=True)
    return made


def test_messages_without_a_key_go_round_robin(broker: Broker) -> None:
    """Req: S-02"""
    for _ in range(2 * PARTITION_COUNT):
        broker.send()
    expected = [(partition, number) for number in (1, 2) for partition in range(PARTITION_COUNT)]
    assert parts(broker.receive(32)) == expected  # in the order of arrival
    assert parts(broker.peek()) == sorted(expected)


def test_a_key_names_its_partition_for_ever(broker: Broker) -> None:
    """Req: S-02"""
    by_key: dict[str, int] = {}
    for _ in range(3):
        for key in "abcdefgh":
            found = broker.send(partition_key=key).sequence_number
            assert by_key.setdefault(key, found >> 48) == found >> 48
        broker.restart()
    assert len(set(by_key.values())) > 3
    per_partition: dict[int, list[int]] = {}
    for partition, number in parts(broker.peek()):
        per_partition.setdefault(partition, []).append(number)
    for found_numbers in per_partition.values():
        assert found_numbers == list(range(1, len(found_numbers) + 1))


def test_a_session_id_is_the_key_of_its_session() -> None:
    """Req: S-02, G-01"""
    broker = Broker()
    broker.create(enable_partitioning=True, requires_session=True)
    sent = [broker.send(session_id="s").sequence_number for _ in range(3)]
    assert sent == [sent[0], sent[0] + 1, sent[0] + 2]
    broker.send(session_id="t")
    opened = broker.accept("s")
    assert opened.partitioned
    assert numbers(broker.credit(opened.link)) == sent
    assert numbers(broker.peek(session_id="s")) == sent
    assert numbers(broker.peek(sent[1], session_id="s")) == sent[1:]


@pytest.mark.parametrize("requires_session", [False, True])
def test_the_empty_session_id_is_a_key_only_where_sessions_are_required(requires_session: bool) -> None:
    """Req: S-02, G-01. Source: wire contract C11, 10.3."""
    broker = Broker()
    broker.create(enable_partitioning=True, requires_session=requires_session)
    keys = "abcdefgh"
    partitions = [broker.send(session_id="", partition_key=key).sequence_number >> 48 for key in keys]
    if requires_session:
        assert len(set(partitions)) == 1
    else:
        alone = [broker.send(partition_key=key).sequence_number >> 48 for key in keys]
        assert partitions == alone
        assert len(set(alone)) > 3


def test_with_duplicate_detection_the_message_id_is_a_key_too() -> None:
    """Req: D-01, S-02"""
    broker = Broker()
    broker.create(enable_partitioning=True, requires_duplicate_detection=True)
    for _ in range(3):
        broker.send(message_id=b"1")
    broker.send(message_id=b"1", partition_key="a")  # another message: the key belongs to its id
    broker.send(message_id=b"1", partition_key="a")
    broker.send(message_id=b"1", partition_key="b")
    assert len(broker.peek()) == 3
    broker.restart()
    broker.send(message_id=b"1", partition_key="b")
    assert len(broker.peek()) == 3


def test_a_batch_without_keys_goes_to_one_partition_and_with_keys_each_to_its_own(broker: Broker) -> None:
    """Req: S-03, T-07"""
    broker.send_batch([arriving() for _ in range(5)])
    assert len({partition for partition, _ in parts(broker.peek())}) == 1
    broker.send_batch([arriving() for _ in range(5)])
    assert len({partition for partition, _ in parts(broker.peek())}) == 2
    keys = list("abcdefgh")
    batch = [arriving(partition_key=key) for key in keys]
    (effect,) = broker.do(SendBatch(4, [(message, EMPTY) for message in batch], broker.reply_to()))
    assert isinstance(effect, Accepted)
    assert len({message.sequence_number >> 48 for message in batch}) > 3


def test_one_counter_record_states_all_partitions(broker: Broker) -> None:
    """Req: S-02"""
    broker.send()
    (fact,) = [fact for fact in broker.facts if isinstance(fact, NumbersIssued)]
    assert fact.partitions == (2, *[1] * (PARTITION_COUNT - 1))


def test_no_number_is_used_again_after_a_restart(broker: Broker) -> None:
    """Req: S-01, S-02, R-02"""
    for _ in range(3):
        broker.send(partition_key="a")
    assert len(broker.receive(3, deletes=True)) == 3
    broker.restart()
    assert broker.send(partition_key="a").sequence_number & LOW == 4


def test_roll_over_of_a_partition_keeps_order_and_numbers() -> None:
    """Req: S-03"""
    broker = Broker(first_sequence_number=(1 << 48) - 2)
    broker.create(enable_partitioning=True)
    sent = [broker.send(partition_key="a").sequence_number for _ in range(4)]
    partition = sent[0] >> 48
    assert [number & LOW for number in sent] == [LOW - 1, LOW, 0, 1]
    assert {number >> 48 for number in sent} == {partition}
    assert numbers(broker.peek()) == sent
    assert numbers(broker.peek(sent[1])) == sent[1:]
    broker.restart()
    assert numbers(broker.receive(4)) == sent
    broker.restart()
    assert broker.send(partition_key="a").sequence_number & LOW == 2
    for view in broker.receive(5):
        broker.defer(view)
    for number in sent:
        (found,) = broker.receive_deferred(number)
        assert found.message.sequence_number == number


def test_the_last_partition_stays_below_the_sign() -> None:
    """Req: S-03"""
    broker = Broker(first_sequence_number=(1 << 63) - 2)
    broker.create(enable_partitioning=True)
    sent = [broker.send().sequence_number for _ in range(3 * PARTITION_COUNT)]
    assert all(0 <= number < 0x8000 << 48 for number in sent)
    assert len(set(sent)) == len(sent)
    assert numbers(broker.receive(48)) == sent


def test_peek_goes_on_from_one_partition_to_the_next(broker: Broker) -> None:
    """Req: S-11, S-02"""
    for _ in range(40):
        broker.send()
    found: list[int] = []
    while page := numbers(broker.peek(found[-1] + 1 if found else 0, count=7)):
        found += page
    assert found == sorted(numbers(broker.peek()))
    assert len(found) == 40
    assert broker.peek(0x7FFF << 48) == []


def test_scheduled_messages_keep_their_partition(broker: Broker) -> None:
    """Req: S-07, S-02"""
    first, second = broker.schedule(5_000, 5_000, partition_key="a")
    assert second == first + 1
    (third,) = broker.schedule(5_000, partition_key="a")
    broker.one(CancelScheduled(Address("orders"), [second], broker.reply_to()), Done)
    cancelled = CancelScheduled(Address("orders"), [second], broker.reply_to())
    assert isinstance(broker.refused(cancelled), MessageNotFound)
    broker.advance(5_000)
    views = broker.peek()
    assert numbers(views) == [third + 1, third + 2]
    assert [view.message.enqueued_sequence_number for view in views] == [first, third]


def test_a_dead_letter_keeps_its_number_and_is_found_by_it(broker: Broker) -> None:
    """Req: S-01, L-09, S-02"""
    sent = [broker.send().sequence_number for _ in range(20)]
    for view in broker.receive(20):
        broker.dead_letter(view)
    assert numbers(broker.receive_dead(20, deletes=False)) == sent  # by arrival
    assert numbers(broker.peek_dead()) == sorted(sent)
    broker.restart()
    assert numbers(broker.peek_dead()) == sorted(sent)


@pytest.mark.parametrize("sub_queue", [SubQueue.MAIN, SubQueue.DEAD_LETTER])
def test_batch_delete_takes_the_oldest_of_all_partitions(broker: Broker, sub_queue: SubQueue) -> None:
    """Req: A-06, S-02. Source: wire contract C9. Neither the numbers of partitions nor the order in which
    messages were dead-lettered is that of their enqueued times."""
    sent = []
    for _ in range(40):
        sent.append(broker.send().sequence_number)
        broker.jump(10)
    if sub_queue is SubQueue.DEAD_LETTER:
        for delivery in reversed(broker.receive(40)):
            broker.dead_letter(delivery)

    def delete(count_max: int, before_ms: int) -> int:
        command = DeleteMessages(Address("orders", sub_queue), count_max, before_ms, broker.reply_to())
        return broker.one(command, MessagesDeleted).count

    def left() -> list[int]:
        return numbers(broker.peek() if sub_queue is SubQueue.MAIN else broker.peek_dead())

    assert delete(5, broker.now_ms) == 5
    assert left() == sorted(sent[5:])
    assert delete(40, START_MS + 190) == 15
    assert left() == sorted(sent[20:])
    assert delete(40, broker.now_ms) == 20
    assert left() == []


def test_competing_receivers_get_messages_of_all_partitions(broker: Broker) -> None:
    """Req: S-02, L-02"""
    links = [broker.receiver() for _ in range(2)]
    for link in links:
        broker.credit(link)
    got = []
    for _ in range(32):
        got += deliveries(broker.do(Send(4, arriving(), EMPTY, None)))
    assert len(got) == 32
    assert {delivery.link for delivery in got} == set(links)


def test_a_plain_receiver_is_told_that_the_queue_is_partitioned(broker: Broker) -> None:
    broker.create("plain")
    for name, expected in (("orders", True), ("plain", False)):
        wish = broker.wish(name=name)
        wish.session = None
        assert broker.one(wish, ReceiverOpened).partitioned is expected
