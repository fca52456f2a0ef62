"""Scheduling in a transaction: numbers at once, messages with the commit; and its partitions."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.broker.queue.sequence_numbers import Partitions
from peeklock.broker.vocabulary.changes import MessageStored, NumbersIssued
from peeklock.broker.vocabulary.commands import (
    Address,
    CancelScheduled,
    Complete,
    CreateEntity,
    DeadLetter,
    DeleteEntity,
    Discharge,
    Disposition,
    Enlist,
    LinkId,
    Schedule,
    Send,
    SendBatch,
    UpdateDisposition,
)
from peeklock.broker.vocabulary.descriptions import EntityStatus, QueueDescription
from peeklock.broker.vocabulary.effects import Done
from peeklock.broker.vocabulary.errors import (
    EntityDisabled,
    EntityNotFound,
    InvalidOperation,
    MessageNotFound,
    MessageSizeExceeded,
    QuotaExceeded,
    TransactionRolledBack,
    TransactionUnknown,
)
from peeklock.broker.vocabulary.events import NUMBERED_AHEAD, EventType
from peeklock.broker.vocabulary.message import MessageState
from peeklock.broker.vocabulary.quotas import TRANSACTION_MESSAGES_MAX
from tests.broker.harness import EMPTY, MINUTE_MS, Broker, arriving, numbers, token


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create()
    return made


@pytest.fixture
def link(broker: Broker) -> LinkId:
    return broker.coordinator()


def partition_of(key: str) -> int:
    return Partitions(1).of_key(key.encode())


KEY = "a"
OTHER = next(key for key in "bcdefgh" if partition_of(key) != partition_of(KEY))
TWIN = next(str(n) for n in range(1_000) if partition_of(str(n)) == partition_of(KEY))
"""A different key in the same partition."""


# Numbers


def test_numbers_are_answered_at_once_and_messages_exist_from_the_commit_on(
    broker: Broker, link: LinkId
) -> None:
    """Req: F-03, S-05. Source: wire contract C12."""
    transaction = broker.declare(link)
    facts = len(broker.facts)
    assert broker.enlist_schedule(transaction, MINUTE_MS, 2 * MINUTE_MS) == [1, 2]
    assert all(isinstance(fact, NumbersIssued) for fact in broker.facts[facts:])
    assert broker.send().sequence_number == 3
    assert broker.enlist_schedule(transaction, MINUTE_MS) == [4]
    assert (numbers(broker.peek()), broker.view().scheduled_count) == ([3], 0)
    broker.discharge(link, transaction)
    found = broker.peek()
    assert numbers(found) == [1, 2, 3, 4]
    assert [view.state for view in found if view.message.sequence_number != 3] == [MessageState.SCHEDULED] * 3
    broker.advance(MINUTE_MS)
    assert numbers(broker.receive(10)) == [3, 5, 6]


def test_the_counters_are_a_fact_before_the_answer(broker: Broker, link: LinkId) -> None:
    """Without a change the engine would hand the answer out at once. Req: F-03, R-02, S-01."""
    command = Schedule(Address("orders"), broker.later(MINUTE_MS), broker.reply_to())
    transaction = broker.declare(link)
    changes, _ = broker.namespace.apply(Enlist(1, transaction, command), broker.now_ms)
    (issued,) = changes
    assert isinstance(issued, NumbersIssued)
    assert (issued.queue_id, issued.next_position, issued.next_sequence_number) == (4, 2, 2)


@pytest.mark.parametrize("end", ["roll back", "restart", "detach", "time out"])
def test_numbers_of_a_transaction_that_did_not_come_to_be_are_used_up(
    broker: Broker, link: LinkId, end: str
) -> None:
    """Req: F-03, R-02, S-01. Source: wire contract C12."""
    transaction = broker.declare(link)
    assert broker.enlist_schedule(transaction, MINUTE_MS, MINUTE_MS) == [1, 2]
    if end == "roll back":
        broker.discharge(link, transaction, fail=True)
    elif end == "restart":
        broker.restart()
    elif end == "detach":
        broker.drop()
    else:
        broker.advance(10 * MINUTE_MS)
    broker.advance(2 * MINUTE_MS)
    assert broker.peek() == []
    broker.restart()
    assert broker.send().sequence_number == 3
    assert broker.schedule(MINUTE_MS) == [4]


def test_events_explain_each_number(broker: Broker, link: LinkId) -> None:
    """Those that were rolled back too. Req: F-03, S-01, X-04."""
    lost, kept = broker.declare(link), broker.declare(link)
    broker.enlist_schedule(lost, MINUTE_MS)
    broker.enlist_schedule(kept, MINUTE_MS)
    broker.discharge(link, lost, fail=True)
    broker.discharge(link, kept)
    told = [
        (event.type, event.sequence_number, event.transaction_id, event.reason)
        for event in broker.events
        if event.sequence_number
    ]
    assert told == [
        (EventType.NUMBER_ISSUED, 1, lost, None),
        (EventType.NUMBER_ISSUED, 2, kept, None),
        (EventType.SCHEDULED, 2, kept, NUMBERED_AHEAD),
    ]


@pytest.mark.parametrize("late_ms", [0, 1_000])
def test_what_is_due_at_the_commit_is_activated_under_the_number_of_its_arrival(
    broker: Broker, link: LinkId, late_ms: int
) -> None:
    """Req: F-03, S-01, S-07."""
    transaction = broker.declare(link)
    assert broker.enlist_schedule(transaction, -MINUTE_MS, late_ms) == [1, 2]
    broker.send()
    broker.advance(late_ms)
    broker.discharge(link, transaction)
    broker.settle_time()
    assert numbers(broker.receive(10)) == [3, 4, 5]
    assert broker.view().scheduled_count == 0


def test_a_number_can_be_cancelled_from_the_commit_on(broker: Broker, link: LinkId) -> None:
    """Req: F-03, S-06. Source: wire contract C12."""
    transaction = broker.declare(link)
    (number,) = broker.enlist_schedule(transaction, MINUTE_MS)
    cancel = CancelScheduled(Address("orders"), [number], broker.reply_to())
    assert type(broker.refused(cancel)) is MessageNotFound
    broker.discharge(link, transaction)
    broker.one(cancel, Done)
    assert broker.peek() == []


def test_messages_are_stored_behind_a_restart_as_they_were_numbered(broker: Broker, link: LinkId) -> None:
    """Req: F-03, R-02."""
    transaction = broker.declare(link)
    broker.enlist_schedule(transaction, MINUTE_MS)
    for _ in range(3):
        broker.send()
    broker.discharge(link, transaction)
    broker.restart()
    assert numbers(broker.peek()) == [1, 2, 3, 4]
    broker.advance(MINUTE_MS)
    assert numbers(broker.receive(10)) == [2, 3, 4, 5]


def test_it_is_scheduled_in_a_session_and_in_a_topic(broker: Broker, link: LinkId) -> None:
    """Req: F-03, G-05, S-05."""
    broker.create("jobs", requires_session=True)
    broker.create_topic("news")
    broker.subscribe(topic="news")
    transaction, other = broker.declare(link), broker.declare(link)
    assert broker.enlist_schedule(transaction, MINUTE_MS, name="jobs", session_id="s") == [1]
    for _ in range(3):
        broker.send(8, session_id="s")
    assert broker.enlist_schedule(other, 1_000, name="news") == [1]
    broker.discharge(link, transaction)
    broker.discharge(link, other)
    assert numbers(broker.peek(name="jobs", session_id="s")) == [1, 2, 3, 4]
    broker.advance(MINUTE_MS)
    opened = broker.accept("s", "jobs")
    assert numbers(broker.credit(opened.link)) == [2, 3, 4, 5]
    assert broker.view("news").scheduled_count == 0


@pytest.mark.parametrize("completed", [0, 10, 200, 260, 299])
def test_a_session_takes_in_what_was_numbered_before_the_others(
    broker: Broker, link: LinkId, completed: int
) -> None:
    """Wherever the compaction of its positions stands. Req: F-03, G-01, G-05."""
    queue_id = broker.create("jobs", requires_session=True, max_delivery_count=1_000)
    broker.checks = False
    transactions = [broker.declare(link) for _ in range(6)]
    ahead = []
    for transaction in transactions:
        ahead += broker.enlist_schedule(transaction, MINUTE_MS // 2, name="jobs", session_id="s")
        for _ in range(50):
            broker.send(queue_id, session_id="s")
    held = broker.credit(broker.accept("s", "jobs").link)
    assert len(held) == 300
    for view in held[:completed]:
        broker.complete(view, queue_id)
    for transaction in reversed(transactions):
        broker.discharge(link, transaction)
    left = sorted([*ahead, *numbers(held[completed:])])
    broker.checks = True
    assert numbers(broker.peek(name="jobs", session_id="s")) == left
    for view in held[completed:]:
        broker.complete(view, queue_id)
    assert numbers(broker.peek(name="jobs", session_id="s")) == sorted(ahead)


# Duplicates


@pytest.fixture
def ids(broker: Broker) -> int:
    return broker.create("ids", requires_duplicate_detection=True)


def test_a_duplicate_of_what_is_committed_is_answered_with_its_number(
    broker: Broker, link: LinkId, ids: int
) -> None:
    """Req: F-03, D-01. Source: wire contract C12."""
    broker.send(ids, message_id=b"a")
    transaction = broker.declare(link)
    facts = len(broker.facts)
    assert broker.enlist_schedule(transaction, MINUTE_MS, name="ids", message_id=b"a") == [1]
    assert len(broker.facts) == facts
    assert broker.enlist_schedule(transaction, MINUTE_MS, name="ids", message_id=b"b") == [2]
    (dropped,) = [event for event in broker.events if event.type is EventType.DUPLICATE_DROPPED]
    assert (dropped.sequence_number, dropped.transaction_id) == (1, None)  # whatever follows
    broker.discharge(link, transaction)
    assert numbers(broker.peek(name="ids")) == [1, 2]


def test_a_duplicate_that_shows_at_the_commit_is_dropped_and_its_number_used_up(
    broker: Broker, link: LinkId, ids: int
) -> None:
    """Req: F-03, D-01, S-01. Source: wire contract C12."""
    transaction = broker.declare(link)
    for number, message_id in enumerate((b"a", b"b", b"b", b"c"), start=1):
        answered = broker.enlist_schedule(transaction, MINUTE_MS, name="ids", message_id=message_id)
        assert answered == [number]
    broker.send(ids, message_id=b"a")
    broker.discharge(link, transaction)
    assert numbers(broker.peek(name="ids")) == [2, 4, 5]
    dropped = [event for event in broker.events if event.type is EventType.DUPLICATE_DROPPED]
    assert [(event.sequence_number, event.related_number) for event in dropped] == [(5, 1), (2, 3)]
    assert {event.transaction_id for event in dropped} == {transaction}
    broker.restart()
    assert broker.schedule(MINUTE_MS, name="ids", message_id=b"c") == [4]
    assert broker.send(ids, message_id=b"d").sequence_number == 6


def test_ids_of_what_is_rolled_back_or_cancelled_are_free(broker: Broker, link: LinkId, ids: int) -> None:
    """Req: F-03, D-01."""
    for fail in (True, False):
        transaction = broker.declare(link)
        answered = broker.enlist_schedule(transaction, MINUTE_MS, name="ids", message_id=b"a")
        broker.discharge(link, transaction, fail=fail)
    broker.restart()
    broker.one(CancelScheduled(Address("ids"), answered, broker.reply_to()), Done)
    assert broker.schedule(MINUTE_MS, name="ids", message_id=b"a") == [3]


# Refusals


def test_a_schedule_is_refused_when_enlisted_as_it_would_be_alone(broker: Broker, link: LinkId) -> None:
    """Req: F-03, T-10, A-04."""
    broker.create("closed", status=EntityStatus.SEND_DISABLED)
    broker.create("jobs", requires_session=True)
    transaction = broker.declare(link)

    def refused(name: str, size: int = 100, transaction_id: bytes = transaction) -> type:
        message = arriving(size, scheduled_at_ms=broker.now_ms + 1)
        command = Schedule(Address(name), [(message, EMPTY)], broker.reply_to())
        return type(broker.refused(Enlist(1, transaction_id, command)))

    assert refused("nowhere") is EntityNotFound
    assert refused("closed") is EntityDisabled
    assert refused("jobs") is InvalidOperation
    assert refused("orders", 1 << 20) is MessageSizeExceeded
    assert refused("orders", transaction_id=b"unknown") is TransactionUnknown
    assert broker.send().sequence_number == 1
    broker.discharge(link, transaction)


def test_scheduled_messages_count_to_the_hundred(broker: Broker, link: LinkId) -> None:
    """Req: F-03, R-05."""
    transaction = broker.declare(link)
    assert len(broker.enlist_schedule(transaction, *[MINUTE_MS] * TRANSACTION_MESSAGES_MAX)) == 100
    command = Schedule(Address("orders"), broker.later(MINUTE_MS), broker.reply_to())
    assert type(broker.refused(Enlist(1, transaction, command))) is QuotaExceeded
    broker.discharge(link, transaction)
    assert broker.view().scheduled_count == TRANSACTION_MESSAGES_MAX


def test_a_commit_into_an_entity_that_was_made_again_is_refused(broker: Broker, link: LinkId) -> None:
    """The numbers were the first one's. Req: F-03."""
    transaction = broker.declare(link)
    broker.enlist_schedule(transaction, MINUTE_MS)
    broker.do(DeleteEntity("orders", broker.reply_to()))
    broker.do(CreateEntity(QueueDescription("orders"), broker.reply_to()))
    error = broker.refused(Discharge(link, transaction, False, broker.reply_to()))
    assert type(error) is TransactionRolledBack
    assert broker.peek() == []


# Partitions


@pytest.fixture
def parts(broker: Broker) -> int:
    """A partitioned queue with a locked message of each of two keys."""
    return broker.create("parts", enable_partitioning=True)


def works(broker: Broker, queue_id: int) -> dict[str, Any]:
    """Return commands that use the partition of `OTHER`."""
    broker.send(queue_id, partition_key=OTHER)
    broker.send(queue_id, partition_key=OTHER)
    first, second = broker.receive(2, "parts")
    reply_to = broker.reply_to
    return {
        "send": Send(queue_id, arriving(partition_key=OTHER), EMPTY, reply_to()),
        "send with a session id": Send(queue_id, arriving(session_id=OTHER), EMPTY, reply_to()),
        "send another key of this partition": Send(queue_id, arriving(partition_key=TWIN), EMPTY, reply_to()),
        "batch": SendBatch(queue_id, [(arriving(partition_key=OTHER), EMPTY)], reply_to()),
        "complete": Complete(queue_id, token(first), reply_to()),
        "dead-letter": DeadLetter(queue_id, token(first), reply_to()),
        "disposition": UpdateDisposition(
            Address("parts"), [token(second)], Disposition.COMPLETED, reply_to()
        ),
        "schedule": Schedule(
            Address("parts"), broker.later(MINUTE_MS, partition_key=OTHER), broker.reply_to()
        ),
    }


@pytest.mark.parametrize(
    "what",
    [
        "send", "send with a session id", "send another key of this partition", "batch", "complete",
        "dead-letter", "disposition", "schedule",
    ],
)  # fmt: skip
@pytest.mark.parametrize("before", ["send", "schedule", "keyless schedule"])
def test_a_transaction_uses_one_partition_of_an_entity(
    broker: Broker, link: LinkId, parts: int, what: str, before: str
) -> None:
    """A transaction that schedules into two partitions among them. It goes on without what was refused.

    Req: F-03, S-02. Source: wire contract 6, C12.
    """
    command = works(broker, parts)[what]
    transaction = broker.declare(link)
    if before == "send":
        broker.enlist(transaction, Send(parts, arriving(partition_key=KEY), EMPTY, broker.reply_to()))
    elif before == "schedule":
        broker.enlist_schedule(transaction, MINUTE_MS, name="parts", partition_key=KEY)
    else:
        queue = broker.namespace._queues[parts]
        assert queue.partitions is not None
        queue.partitions._turn = partition_of(KEY) - 1
        broker.enlist_schedule(transaction, MINUTE_MS, name="parts")
        if what == "send another key of this partition":
            broker.enlist(transaction, command)  # nothing has a key but this
            return
    error = broker.refused(Enlist(1, transaction, command))
    assert type(error) is InvalidOperation
    assert "one partition key" in str(error)
    issued = len([view for view in broker.peek(name="parts") if view.state is MessageState.ACTIVE])
    broker.discharge(link, transaction)
    assert len(broker.peek(name="parts")) == issued + 1


def test_a_batch_and_a_schedule_with_two_keys_are_refused_whole(
    broker: Broker, link: LinkId, parts: int
) -> None:
    """Req: F-03, S-02. Source: wire contract C12."""
    transaction = broker.declare(link)
    messages = [(arriving(partition_key=key, scheduled_at_ms=1), EMPTY) for key in (KEY, OTHER)]
    for command in (
        SendBatch(parts, messages, broker.reply_to()),
        Schedule(Address("parts"), messages, broker.reply_to()),
    ):
        assert type(broker.refused(Enlist(1, transaction, command))) is InvalidOperation
    broker.enlist(transaction, Send(parts, arriving(partition_key=OTHER), EMPTY, broker.reply_to()))
    broker.discharge(link, transaction)
    assert [number >> 48 for number in numbers(broker.peek(name="parts"))] == [partition_of(OTHER)]


@pytest.mark.parametrize("first", ["keyed send", "complete", "schedule", "nothing"])
@pytest.mark.parametrize("detects", [False, True])
def test_messages_without_a_key_follow_the_partition_of_the_transaction(
    broker: Broker, link: LinkId, first: str, detects: bool
) -> None:
    """Also where the id would decide without a transaction. Req: F-03, S-02, S-03. Source: wire contract
    C12."""
    queue_id = broker.create("parts", enable_partitioning=True, requires_duplicate_detection=detects)
    broker.send(queue_id, partition_key=KEY)
    (held,) = broker.receive(1, "parts")
    transaction = broker.declare(link)
    broker.enlist(transaction, Send(queue_id, arriving(message_id=b"1"), EMPTY, broker.reply_to()))
    if first == "keyed send":
        broker.enlist(transaction, Send(queue_id, arriving(partition_key=KEY), EMPTY, broker.reply_to()))
    elif first == "complete":
        broker.enlist(transaction, Complete(queue_id, token(held), broker.reply_to()))
    elif first == "schedule":
        broker.enlist_schedule(transaction, MINUTE_MS, name="parts", message_id=b"2")
    batch = [(arriving(message_id=message_id), EMPTY) for message_id in (b"3", b"4")]
    broker.enlist(transaction, SendBatch(queue_id, batch, broker.reply_to()))
    facts = len(broker.facts)
    broker.discharge(link, transaction)
    used = {
        fact.message.sequence_number >> 48 for fact in broker.facts[facts:] if isinstance(fact, MessageStored)
    }
    assert len(used) == 1
    if first in ("keyed send", "complete"):
        assert used == {partition_of(KEY)}


def test_entities_are_held_to_a_partition_each(broker: Broker, link: LinkId, parts: int) -> None:
    """Req: F-03, S-02."""
    other = broker.create("other", enable_partitioning=True)
    transaction = broker.declare(link)
    for queue_id, key in ((parts, KEY), (other, OTHER), (other, KEY), (4, KEY), (4, OTHER)):
        command = Send(queue_id, arriving(partition_key=key), EMPTY, broker.reply_to())
        broker.enlist(transaction, command, via="parts")
    command = Send(parts, arriving(partition_key=OTHER), EMPTY, broker.reply_to())
    assert type(broker.refused(Enlist(1, transaction, command, "parts"))) is InvalidOperation
    broker.discharge(link, transaction)
    assert len(broker.peek()) == 2


@pytest.mark.parametrize("explicit", [False, True])
def test_the_key_of_the_way_is_held_to_the_entity_between(
    broker: Broker, link: LinkId, parts: int, explicit: bool
) -> None:
    """Over the coordinator's session, and over a link that names where it finally sends to. Req: F-03, C48.

    Source: wire contract 6: "`x-opt-via-partition-key` for the via hop".
    """
    transaction = broker.declare(link)
    broker.enlist(
        transaction, Send(parts, arriving(partition_key=KEY), EMPTY, broker.reply_to()), via="parts"
    )

    def passing(via_key: str | None) -> Send:
        message = arriving(partition_key=OTHER)
        assert message.routing is not None
        message.routing.via_partition_key = via_key
        if explicit:
            return Send(parts, message, EMPTY, broker.reply_to(), Address("orders"))
        return Send(4, message, EMPTY, broker.reply_to())

    for via_key in (KEY, None):
        broker.enlist(transaction, passing(via_key), via="parts")
    error = broker.refused(Enlist(1, transaction, passing(OTHER), "parts"))
    assert type(error) is InvalidOperation
    assert "one partition key" in str(error)
    broker.discharge(link, transaction)
    assert len(broker.peek()) == 2


def test_what_is_sent_via_an_entity_is_numbered_there_by_the_key_of_the_way(
    broker: Broker, parts: int
) -> None:
    """Req: S-02, C48"""
    message = arriving(partition_key=OTHER)
    assert message.routing is not None
    message.routing.via_partition_key = KEY
    broker.do(Send(parts, message, EMPTY, broker.reply_to(), Address("orders")))
    (view,) = broker.peek()
    assert view.message.enqueued_sequence_number >> 48 == partition_of(KEY)


def test_what_is_sent_via_an_entity_is_not_held_to_its_partition(
    broker: Broker, link: LinkId, parts: int
) -> None:
    """Its key is that of its destination. Req: F-03, S-02."""
    transaction = broker.declare(link)
    broker.enlist(transaction, Send(parts, arriving(partition_key=KEY), EMPTY, broker.reply_to()))
    passing = Send(parts, arriving(partition_key=OTHER), EMPTY, broker.reply_to(), Address("orders"))
    broker.enlist(transaction, passing)
    broker.discharge(link, transaction)
    assert len(broker.peek()) == 1


def test_a_topic_and_its_subscriptions_are_one_entity(broker: Broker, link: LinkId) -> None:
    """Req: F-03, S-02, P-01."""
    topic = broker.create_topic(enable_partitioning=True)
    subscription = broker.subscribe()
    broker.publish(message_id="1", group_id=KEY, topic_id=topic)
    (held,) = broker.receive(1, "news/Subscriptions/all")
    transaction = broker.declare(link)
    broker.enlist(transaction, Complete(subscription, token(held), broker.reply_to()))
    refused = Send(topic, arriving(session_id=OTHER), EMPTY, broker.reply_to())
    assert type(broker.refused(Enlist(1, transaction, refused))) is InvalidOperation
    broker.discharge(link, transaction)
