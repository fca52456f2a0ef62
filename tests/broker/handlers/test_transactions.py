"""Transactions: all that was enlisted, or nothing."""

from __future__ import annotations

import gc
import random
import sys
from typing import Any

import pytest

from peeklock.broker.handlers.transactions import TIMED_OUT_MAX
from peeklock.broker.vocabulary.changes import MessageRemoved, MessageStored
from peeklock.broker.vocabulary.commands import (
    Abandon,
    Address,
    CancelScheduled,
    CloseLink,
    Complete,
    DeadLetter,
    Declare,
    Defer,
    DeleteEntity,
    Discharge,
    Disposition,
    Enlist,
    LimitSending,
    LinkId,
    LockToken,
    OpenCoordinator,
    Release,
    ReplyTo,
    Schedule,
    Send,
    SendBatch,
    SetSessionState,
    UpdateDisposition,
)
from peeklock.broker.vocabulary.descriptions import EntityStatus
from peeklock.broker.vocabulary.effects import (
    Declared,
    Enlisted,
    Rejected,
    SessionLockLapsed,
    TransactionEnded,
)
from peeklock.broker.vocabulary.errors import (
    EntityDisabled,
    InvalidOperation,
    MessageLockLost,
    MessageSizeExceeded,
    NotSupported,
    QuotaExceeded,
    ServerBusy,
    TransactionRolledBack,
    TransactionTimedOut,
    TransactionUnknown,
)
from peeklock.broker.vocabulary.message import Message, MessageState
from peeklock.broker.vocabulary.quotas import (
    BASIC,
    DECLARE_WAIT_MS_MAX,
    EMPTY_TRANSACTION_MS_MAX,
    OPEN_TRANSACTIONS_MAX,
    PREMIUM,
    TRANSACTION_MESSAGES_MAX,
    TRANSACTION_MS_MAX,
    WAITING_DECLARES_MAX,
)
from tests.broker.harness import EMPTY, MINUTE_MS, Broker, arriving, deliveries, numbers, token

MIB = 1024 * 1024
SPANS = "Local transactions cannot span multiple top-level entities such as queue or topic."


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create()
    return made


@pytest.fixture
def link(broker: Broker) -> LinkId:
    return broker.coordinator()


def sending(broker: Broker, queue_id: int = 4, size: int = 100, **fields: Any) -> Send:
    return Send(queue_id, arriving(size, **fields), EMPTY, broker.reply_to())


def batch(broker: Broker, count: int, size: int = 100) -> SendBatch:
    return SendBatch(4, [(arriving(size), EMPTY) for _ in range(count)], broker.reply_to())


def completing(broker: Broker, view: Any, queue_id: int = 4) -> Complete:
    return Complete(queue_id, token(view), broker.reply_to())


# Commit


def test_nothing_is_seen_before_the_commit_and_all_of_it_after(broker: Broker, link: LinkId) -> None:
    """Req: F-03"""
    broker.create("bills")
    broker.send()
    broker.send()
    held, kept = broker.receive(2)
    receiver = broker.receiver("bills", connection=2)
    broker.credit(receiver, 10)
    transaction = broker.declare(link)
    assert len(transaction) == 16
    for command in (
        completing(broker, held),
        sending(broker),
        sending(broker, 8),
        DeadLetter(4, token(kept), broker.reply_to(), "why"),
    ):
        broker.enlist(transaction, command, via="orders")
    assert numbers(broker.peek()) == [1, 2]
    assert broker.peek(name="bills") == []
    facts = len(broker.facts)
    effects = broker.discharge(link, transaction)
    kinds = [type(fact) for fact in broker.facts[facts:] if isinstance(fact, MessageStored | MessageRemoved)]
    assert kinds == [MessageRemoved, MessageStored, MessageStored, MessageRemoved, MessageStored]
    assert numbers(broker.peek()) == [3]
    assert numbers(broker.peek_dead()) == [2]
    assert [found.link for found in deliveries(effects)] == [receiver]


def test_every_settlement_can_be_enlisted(broker: Broker, link: LinkId) -> None:
    """Req: F-03"""
    for _ in range(6):
        broker.send()
    views = broker.receive(6)
    transaction = broker.declare(link)
    commands = [
        Complete(4, token(views[0]), broker.reply_to()),
        Abandon(4, token(views[1]), broker.reply_to(), {"n": 1}),
        Defer(4, token(views[2]), broker.reply_to()),
        DeadLetter(4, token(views[3]), broker.reply_to()),
        UpdateDisposition(
            Address("orders"),
            [token(views[4]), token(views[5])],
            Disposition.COMPLETED,
            broker.reply_to(connection=2),
        ),
    ]
    for command in commands:
        broker.enlist(transaction, command)
    broker.discharge(link, transaction)
    left = broker.peek()
    assert [(view.message.sequence_number, view.state, view.delivery_count) for view in left] == [
        (2, MessageState.ACTIVE, 1),
        (3, MessageState.DEFERRED, 1),
    ]
    assert left[0].message.overlay is not None
    assert numbers(broker.peek_dead()) == [4]


def test_commands_are_done_in_the_order_of_enlisting_and_numbered_then(broker: Broker, link: LinkId) -> None:
    """Req: F-03, S-01"""
    transaction = broker.declare(link)
    other = broker.declare(link)
    commands = [sending(broker, size=size) for size in (101, 102, 103)]
    broker.enlist(transaction, commands[0])
    broker.enlist(other, sending(broker, size=201))
    broker.enlist(transaction, commands[1])
    broker.send(size=1)
    broker.advance(1_000)
    broker.enlist(transaction, commands[2])
    broker.discharge(link, other)
    broker.advance(1_000)
    broker.discharge(link, transaction)
    found = [view.message for view in broker.peek()]
    assert [message.size_bytes for message in found] == [1, 201, 101, 102, 103]
    assert {message.enqueued_at_ms for message in found[2:]} == {broker.now_ms}


def test_a_scheduled_message_can_be_sent_in_a_transaction(broker: Broker, link: LinkId) -> None:
    """Req: F-03, S-05"""
    transaction = broker.declare(link)
    broker.enlist(transaction, sending(broker, scheduled_at_ms=broker.now_ms + MINUTE_MS))
    broker.discharge(link, transaction)
    assert broker.view().scheduled_count == 1


def test_a_message_sent_via_an_entity_arrives_with_the_commit(broker: Broker, link: LinkId) -> None:
    """Req: F-03, F-01"""
    broker.create("bills")
    broker.send()
    (held,) = broker.receive()
    transaction = broker.declare(link)
    broker.enlist(transaction, completing(broker, held))
    broker.enlist(transaction, Send(4, arriving(), EMPTY, broker.reply_to(), Address("bills")))
    assert broker.peek(name="bills") == []
    broker.discharge(link, transaction)
    assert broker.peek() == []
    assert len(broker.peek(name="bills")) == 1


def test_an_empty_transaction_can_be_discharged_either_way(broker: Broker, link: LinkId) -> None:
    """Req: F-03"""
    assert broker.discharge(link, broker.declare(link)) == []
    assert broker.discharge(link, broker.declare(link), fail=True) == []


def test_duplicates_are_looked_for_at_the_commit(broker: Broker, link: LinkId) -> None:
    """Req: F-03, D-01"""
    queue_id = broker.create("ids", requires_duplicate_detection=True)
    transaction = broker.declare(link)
    for message_id in (b"a", b"b", b"b", b"c"):
        broker.enlist(transaction, sending(broker, queue_id, message_id=message_id))
    broker.send(queue_id, message_id=b"a")
    broker.discharge(link, transaction)
    assert numbers(broker.peek(name="ids")) == [1, 2, 3]
    rolled_back = broker.declare(link)
    broker.enlist(rolled_back, sending(broker, queue_id, message_id=b"d"))
    broker.discharge(link, rolled_back, fail=True)
    broker.send(queue_id, message_id=b"d")
    assert len(broker.peek(name="ids")) == 4


@pytest.mark.parametrize("seed", range(20))
def test_a_commit_leaves_what_the_same_commands_leave_one_by_one(seed: int) -> None:
    """Req: F-03"""
    chance = random.Random(seed)
    brokers = Broker(), Broker()
    for broker in brokers:
        broker.create(max_delivery_count=2)
        broker.create("bills", requires_duplicate_detection=True)
        for _ in range(12):
            broker.send()
    held = [broker.receive(12) for broker in brokers]
    order = chance.sample(range(12), 8)
    steps: list[tuple[str, int]] = [(chance.choice("cafd"), place) for place in order]
    steps += [(chance.choice("sbBi"), chance.randrange(3)) for _ in range(12)]
    chance.shuffle(steps)
    shown = []
    for together, broker, views in zip((True, False), brokers, held, strict=True):
        coordinator = broker.coordinator()
        transaction = broker.declare(coordinator)
        for kind, n in steps:
            command = _command(broker, kind, n, views)
            if together:
                broker.enlist(transaction, command, via="orders")
            else:
                broker.do(command)
        broker.discharge(coordinator, transaction)
        found = broker.peek() + broker.peek_dead() + broker.peek(name="bills")
        shown.append(
            [
                (view.message.sequence_number, view.message.queue_id, view.state, view.delivery_count)
                for view in found
            ]
        )
    assert shown[0] == shown[1]


def _command(broker: Broker, kind: str, n: int, views: list[Any]) -> Any:
    if kind == "s":
        return sending(broker)
    if kind == "b":
        return batch(broker, n + 1)
    if kind == "B":
        return sending(broker, 8, scheduled_at_ms=broker.now_ms + n * 1_000)
    if kind == "i":
        return sending(broker, 8, message_id=b"%d" % n)
    ask = {"c": Complete, "a": Abandon, "f": Defer, "d": DeadLetter}[kind]
    return ask(4, token(views[n]), broker.reply_to())


# Roll-back


def test_after_a_roll_back_the_locks_are_held_and_free_to_be_settled(broker: Broker, link: LinkId) -> None:
    """Req: F-03

    Source: wire contract 6: "completes/abandons undone (message stays locked until its lock ends)".
    """
    broker.send()
    (held,) = broker.receive()
    transaction = broker.declare(link)
    broker.enlist(transaction, completing(broker, held))
    broker.enlist(transaction, sending(broker))
    assert broker.discharge(link, transaction, fail=True) == []
    assert numbers(broker.peek()) == [1]
    assert broker.receive() == []
    broker.complete(held)
    assert broker.peek() == []


@pytest.mark.parametrize("end", ["close", "drop", "drop properly"])
def test_what_is_open_is_rolled_back_when_its_link_is_gone(broker: Broker, link: LinkId, end: str) -> None:
    """Req: F-03"""
    broker.send()
    held = broker.credit(broker.receiver(connection=2), 1)[0]
    transaction = broker.declare(link)
    broker.enlist(transaction, completing(broker, held))
    broker.enlist(transaction, sending(broker))
    if end == "close":
        assert broker.do(CloseLink(link)) == []
    else:
        assert broker.drop(broken=end == "drop") == []
    assert broker.namespace.timers.next_ms == held.locked_until_ms
    again = broker.coordinator()
    error = broker.refused(Discharge(again, transaction, False, broker.reply_to()))
    assert type(error) is TransactionUnknown
    assert numbers(broker.peek()) == [1]
    broker.complete(held)


def test_a_restart_rolls_back_what_is_open(broker: Broker, link: LinkId) -> None:
    """Req: F-03, R-02"""
    broker.send()
    (held,) = broker.receive()
    transaction = broker.declare(link)
    broker.enlist(transaction, completing(broker, held))
    broker.enlist(transaction, sending(broker))
    broker.restart()
    assert numbers(broker.receive(10)) == [1]


# Locks


@pytest.mark.parametrize("where", ["alone", "same transaction", "another transaction"])
@pytest.mark.parametrize("kind", [Complete, Abandon, Defer, DeadLetter])
def test_an_enlisted_lock_cannot_be_settled_again(
    broker: Broker, link: LinkId, where: str, kind: Any
) -> None:
    """Req: F-03, L-11"""
    broker.send()
    (held,) = broker.receive()
    transaction = broker.declare(link)
    broker.enlist(transaction, completing(broker, held))
    second = kind(4, token(held), broker.reply_to())
    if where == "alone":
        error = broker.refused(second)
    else:
        other = transaction if where == "same transaction" else broker.declare(link)
        error = broker.refused(Enlist(1, other, second))
    assert type(error) is MessageLockLost
    assert "settled in a transaction" in str(error)
    broker.discharge(link, transaction)
    assert broker.peek() == []


def test_an_enlisted_lock_cannot_be_settled_by_request_or_released(broker: Broker, link: LinkId) -> None:
    """Req: F-03, L-14"""
    broker.send()
    (held,) = broker.receive()
    broker.enlist(broker.declare(link), completing(broker, held))
    for command in (
        UpdateDisposition(Address("orders"), [token(held)], Disposition.COMPLETED, broker.reply_to()),
        Release(4, token(held), broker.reply_to()),
    ):
        assert type(broker.refused(command)) is MessageLockLost


def test_a_lock_named_twice_in_one_request_is_settled_once(broker: Broker, link: LinkId) -> None:
    """Req: F-03"""
    broker.send()
    (held,) = broker.receive()
    transaction = broker.declare(link)
    tokens = [token(held), token(held)]
    broker.enlist(
        transaction, UpdateDisposition(Address("orders"), tokens, Disposition.COMPLETED, broker.reply_to())
    )
    broker.discharge(link, transaction)
    assert broker.peek() == []


def test_a_lock_that_lapses_before_the_commit_rolls_all_back(broker: Broker, link: LinkId) -> None:
    """Req: F-03, L-04"""
    broker.send()
    broker.send()
    lapses, renewed = broker.receive(2)
    transaction = broker.declare(link)
    broker.enlist(transaction, sending(broker))
    broker.enlist(transaction, completing(broker, lapses))
    broker.enlist(transaction, completing(broker, renewed))
    broker.advance(MINUTE_MS - 1)
    broker.renew(renewed)
    broker.advance(1)
    facts = len(broker.facts)
    error = broker.refused(Discharge(link, transaction, False, broker.reply_to()))
    assert type(error) is TransactionRolledBack
    assert "lock" in str(error)
    assert len(broker.facts) == facts
    assert numbers(broker.peek()) == [1, 2]
    assert numbers(broker.receive(10)) == [1]
    broker.complete(renewed)


def test_a_lock_counts_as_lost_at_exactly_its_end_also_at_the_commit(broker: Broker, link: LinkId) -> None:
    """Req: F-03, L-04"""
    broker.send()
    (held,) = broker.receive()
    transaction = broker.declare(link)
    broker.enlist(transaction, completing(broker, held))
    broker.jump(MINUTE_MS)
    assert type(broker.refused(Discharge(link, transaction, False, broker.reply_to()))) is (
        TransactionRolledBack
    )


def test_a_lock_can_be_renewed_while_it_is_enlisted(broker: Broker, link: LinkId) -> None:
    """Req: F-03, L-04"""
    broker.send()
    (held,) = broker.receive()
    transaction = broker.declare(link)
    broker.enlist(transaction, completing(broker, held))
    broker.advance(MINUTE_MS - 1)
    broker.renew(held)
    broker.advance(MINUTE_MS - 1)
    broker.discharge(link, transaction)
    assert broker.peek() == []


def test_a_message_that_expires_while_its_lock_is_enlisted_is_still_completed(
    broker: Broker, link: LinkId
) -> None:
    """Req: F-03, E-03"""
    broker.send(ttl_ms=1_000)
    (held,) = broker.receive()
    transaction = broker.declare(link)
    broker.enlist(transaction, completing(broker, held))
    broker.advance(2_000)
    broker.discharge(link, transaction)
    assert broker.peek() == []


def test_locks_dropped_by_a_broken_connection_roll_the_transaction_back(broker: Broker, link: LinkId) -> None:
    """Req: F-03, L-13"""
    broker.send()
    held = broker.credit(broker.receiver(connection=2), 1)[0]
    transaction = broker.declare(link)
    request = UpdateDisposition(Address("orders"), [token(held)], Disposition.COMPLETED, broker.reply_to())
    broker.enlist(transaction, request)
    broker.drop(2)
    error = broker.refused(Discharge(link, transaction, False, broker.reply_to()))
    assert type(error) is TransactionRolledBack
    (again,) = broker.receive()
    assert again.delivery_count == 1


def test_messages_of_a_session_are_settled_while_it_is_held(broker: Broker, link: LinkId) -> None:
    """Req: F-03, G-02"""
    queue_id = broker.create("steps", requires_session=True)
    broker.send(queue_id, session_id="s")
    broker.send(queue_id, session_id="s")
    opened = broker.accept("s", "steps")
    first, second = broker.credit(opened.link, 2)
    transaction = broker.declare(link)
    broker.enlist(transaction, completing(broker, first, queue_id))
    broker.discharge(link, transaction)
    assert numbers(broker.peek(name="steps")) == [2]
    lapsing = broker.declare(link)
    broker.enlist(lapsing, completing(broker, second, queue_id))
    assert broker.advance(MINUTE_MS) == [SessionLockLapsed(opened.link)]
    error = broker.refused(Discharge(link, lapsing, False, broker.reply_to()))
    assert type(error) is TransactionRolledBack
    assert numbers(broker.peek(name="steps")) == [2]


# What changes before the commit


def test_a_commit_is_refused_as_a_whole_when_one_entity_is_gone(broker: Broker, link: LinkId) -> None:
    """Req: F-03"""
    broker.create("bills")
    broker.send()
    (held,) = broker.receive()
    transaction = broker.declare(link)
    broker.enlist(transaction, completing(broker, held), via="orders")
    broker.enlist(transaction, sending(broker, 8), via="orders")
    broker.do(DeleteEntity("bills", broker.reply_to()))
    error = broker.refused(Discharge(link, transaction, False, broker.reply_to()))
    assert type(error) is TransactionRolledBack
    assert "deleted" in str(error)
    broker.complete(held)


def test_a_commit_is_refused_when_an_entity_takes_no_messages_any_more(broker: Broker, link: LinkId) -> None:
    """Req: F-03, A-04, R-06"""
    disabled = broker.declare(link)
    broker.enlist(disabled, sending(broker))
    broker.update(status=EntityStatus.SEND_DISABLED)
    error = broker.refused(Discharge(link, disabled, False, broker.reply_to()))
    assert type(error) is TransactionRolledBack
    broker.update(status=EntityStatus.ACTIVE)
    full = broker.declare(link)
    broker.enlist(full, sending(broker))
    broker.do(LimitSending(low_space=True))
    error = broker.refused(Discharge(link, full, False, broker.reply_to()))
    assert type(error) is TransactionRolledBack
    assert broker.peek() == []


def test_room_is_looked_for_for_all_messages_together() -> None:
    """Req: F-03, A-05"""
    broker = Broker(PREMIUM, enforce_quotas=True)
    broker.create(max_size_mb=1024, max_message_size_kb=100 * 1024)
    link = broker.coordinator()
    for _ in range(10):
        broker.send(size=100 * MIB)
    room_bytes = 24 * MIB
    transaction = broker.declare(link)
    broker.enlist(transaction, sending(broker, size=12 * MIB))
    broker.discharge(link, transaction)
    room_bytes -= 12 * MIB
    transaction = broker.declare(link)
    broker.enlist(transaction, sending(broker, size=8 * MIB))
    broker.enlist(transaction, sending(broker, size=room_bytes - 8 * MIB + 1))
    error = broker.refused(Discharge(link, transaction, False, broker.reply_to()))
    assert type(error) is TransactionRolledBack
    assert len(broker.peek()) == 11
    transaction = broker.declare(link)
    broker.enlist(transaction, sending(broker, size=8 * MIB))
    broker.enlist(transaction, sending(broker, size=room_bytes - 8 * MIB))
    broker.discharge(link, transaction)
    assert len(broker.peek()) == 13


# Refusals at once


def test_a_command_is_refused_when_enlisted_as_it_would_be_alone(broker: Broker, link: LinkId) -> None:
    """Req: F-03, T-10, L-11, A-04"""
    transaction = broker.declare(link)
    for command, reason in (
        (sending(broker, size=300 * 1024), MessageSizeExceeded),
        (batch(broker, 3, size=100 * 1024), MessageSizeExceeded),
        (sending(broker, 5), InvalidOperation),
        (Complete(4, LockToken(b"x" * 16), broker.reply_to()), MessageLockLost),
    ):
        assert type(broker.refused(Enlist(1, transaction, command))) is reason
    broker.enlist(transaction, sending(broker))
    broker.update(status=EntityStatus.DISABLED)
    assert type(broker.refused(Enlist(1, transaction, sending(broker)))) is EntityDisabled
    broker.update(status=EntityStatus.ACTIVE)
    broker.discharge(link, transaction)
    assert len(broker.peek()) == 1


def test_what_is_refused_without_anybody_being_told_rolls_the_transaction_back(
    broker: Broker, link: LinkId
) -> None:
    """Req: F-03, T-06"""
    transaction = broker.declare(link)
    broker.enlist(transaction, sending(broker))
    assert broker.do(Enlist(1, transaction, Send(4, Message(1 << 20), EMPTY, None))) == []
    assert broker.namespace.dropped_sends == 1
    error = broker.refused(Discharge(link, transaction, False, broker.reply_to()))
    assert type(error) is TransactionRolledBack
    assert broker.peek() == []
    presettled = broker.declare(link)
    assert broker.do(Enlist(1, presettled, Send(4, Message(1), EMPTY, None))) == []
    broker.discharge(link, presettled)
    assert len(broker.peek()) == 1


def test_a_tier_without_transactions_refuses_the_coordinator() -> None:
    """Req: F-03, A-05"""
    broker = Broker(BASIC)
    error = broker.refused(OpenCoordinator(broker.link()))
    assert type(error) is NotSupported
    assert "Basic" in str(error)


def test_an_id_is_known_to_its_own_link_until_it_is_discharged(broker: Broker, link: LinkId) -> None:
    """Req: F-03"""
    other, foreign = broker.coordinator(), broker.coordinator(connection=2)
    transaction = broker.declare(link)
    for command in (
        Discharge(link, b"x" * 16, False, broker.reply_to()),
        Discharge(link, b"", True, broker.reply_to()),
        Discharge(other, transaction, False, broker.reply_to()),
        Discharge(foreign, transaction, True, broker.reply_to()),
        Enlist(2, transaction, sending(broker)),
        Enlist(3, transaction, sending(broker)),
        Enlist(1, b"x" * 16, sending(broker)),
    ):
        assert type(broker.refused(command)) is TransactionUnknown
    broker.discharge(link, transaction)
    for fail in (False, True):
        error = broker.refused(Discharge(link, transaction, fail, broker.reply_to()))
        assert type(error) is TransactionUnknown
        assert transaction.hex() in str(error)
    assert type(broker.refused(Enlist(1, transaction, sending(broker)))) is TransactionUnknown


# Time


def test_a_transaction_is_rolled_back_two_minutes_after_its_first_operation(
    broker: Broker, link: LinkId
) -> None:
    """Req: F-03; "the transaction timer starts when the first operation starts" (Learn)."""
    broker.update(lock_duration_ms=5 * MINUTE_MS)
    transaction = broker.declare(link)
    broker.advance(EMPTY_TRANSACTION_MS_MAX - 1)
    broker.send()
    (held,) = broker.receive()
    broker.enlist(transaction, completing(broker, held))
    broker.advance(TRANSACTION_MS_MAX - 1)
    broker.enlist(transaction, sending(broker))
    broker.advance(1)
    assert len(broker.namespace._transactions) == 0
    for _ in range(2):
        error = broker.refused(Enlist(1, transaction, sending(broker)))
        assert type(error) is TransactionTimedOut
    broker.complete(held)  # free again
    discharge = Discharge(link, transaction, False, broker.reply_to())
    assert type(broker.refused(discharge)) is TransactionTimedOut
    assert type(broker.refused(discharge)) is TransactionUnknown
    assert broker.peek() == []


def test_a_refused_operation_starts_the_time_too(broker: Broker, link: LinkId) -> None:
    """Req: F-03"""
    transaction = broker.declare(link)
    broker.refused(Enlist(1, transaction, Send(99, arriving(), EMPTY, broker.reply_to())))
    broker.advance(TRANSACTION_MS_MAX)
    discharge = Discharge(link, transaction, False, broker.reply_to())
    assert type(broker.refused(discharge)) is TransactionTimedOut


@pytest.mark.parametrize("fail", [False, True])
def test_a_discharge_at_the_limit_comes_too_late_however_late_the_timer(
    broker: Broker, link: LinkId, fail: bool
) -> None:
    """Req: F-03"""
    in_time, late = broker.declare(link), broker.declare(link)
    for transaction in (in_time, late):
        broker.enlist(transaction, sending(broker))
    broker.jump(TRANSACTION_MS_MAX - 1)
    broker.discharge(link, in_time)
    broker.jump(1)
    assert type(broker.refused(Discharge(link, late, fail, broker.reply_to()))) is TransactionTimedOut


def test_transactions_time_out_one_after_the_other(broker: Broker, link: LinkId) -> None:
    """Req: F-03"""
    first, second = broker.declare(link), broker.declare(link)
    broker.enlist(first, sending(broker))
    broker.advance(MINUTE_MS)
    broker.enlist(second, sending(broker))
    broker.advance(MINUTE_MS)
    broker.enlist(second, sending(broker))
    assert type(broker.refused(Enlist(1, first, sending(broker)))) is TransactionTimedOut
    broker.advance(MINUTE_MS)
    assert type(broker.refused(Enlist(1, second, sending(broker)))) is TransactionTimedOut
    assert broker.namespace.timers.next_ms is None


def test_a_transaction_without_an_operation_ends_ten_minutes_after_its_declare(
    broker: Broker, link: LinkId
) -> None:
    """Req: F-03, C34"""
    empty, used = broker.declare(link), broker.declare(link)
    broker.advance(EMPTY_TRANSACTION_MS_MAX - 1)
    broker.enlist(used, sending(broker))
    assert broker.advance(1) == [TransactionEnded(link, empty)]
    discharge = Discharge(link, empty, False, broker.reply_to())
    assert type(broker.refused(discharge)) is TransactionTimedOut
    assert type(broker.refused(discharge)) is TransactionUnknown
    broker.advance(TRANSACTION_MS_MAX - 2)
    broker.discharge(link, used)
    assert len(broker.peek()) == 1


def test_so_many_ids_of_timed_out_transactions_are_remembered(broker: Broker, link: LinkId) -> None:
    """Req: F-03, T-08"""
    broker.checks = False
    ids = [broker.declare(link) for _ in range(OPEN_TRANSACTIONS_MAX)]
    broker.advance(EMPTY_TRANSACTION_MS_MAX)
    ids.append(broker.declare(link))
    broker.advance(EMPTY_TRANSACTION_MS_MAX)
    broker.checks = True
    assert len(ids) == TIMED_OUT_MAX + 1
    found = [ids[place] for place in (0, 1, -1)]
    reasons = [type(broker.refused(Enlist(1, each, sending(broker)))) for each in found]
    assert reasons == [TransactionUnknown, TransactionTimedOut, TransactionTimedOut]
    broker.do(CloseLink(link))
    again = broker.coordinator()
    assert type(broker.refused(Discharge(again, ids[-1], False, broker.reply_to()))) is TransactionUnknown


# Limits


def test_a_transaction_sends_a_hundred_messages_and_settles_more(broker: Broker, link: LinkId) -> None:
    """Req: F-03, R-05, C34"""
    for _ in range(150):
        broker.send()
    views = broker.receive(150)
    transaction = broker.declare(link)
    for view in views[:100]:
        broker.enlist(transaction, completing(broker, view))
    tokens = [token(view) for view in views[100:]]
    broker.enlist(
        transaction, UpdateDisposition(Address("orders"), tokens, Disposition.COMPLETED, broker.reply_to())
    )
    broker.enlist(transaction, batch(broker, TRANSACTION_MESSAGES_MAX - 1))
    assert type(broker.refused(Enlist(1, transaction, batch(broker, 2)))) is QuotaExceeded
    broker.enlist(transaction, sending(broker))
    error = broker.refused(Enlist(1, transaction, sending(broker)))
    assert type(error) is QuotaExceeded
    assert "101 messages" in str(error)
    broker.discharge(link, transaction)
    assert numbers(broker.peek()) == list(range(151, 151 + TRANSACTION_MESSAGES_MAX))


def test_a_transaction_holds_16_mib_and_a_connection_64() -> None:
    """Req: F-03, R-05, T-08, C34"""
    broker = Broker(PREMIUM)
    broker.create(max_message_size_kb=100 * 1024)
    link, other = broker.coordinator(), broker.coordinator(connection=2)
    opened = [broker.declare(link) for _ in range(5)]
    broker.enlist(opened[0], sending(broker, size=15 * MIB))
    assert type(broker.refused(Enlist(1, opened[0], sending(broker, size=MIB + 1)))) is QuotaExceeded
    broker.enlist(opened[0], sending(broker, size=MIB))
    for transaction in opened[1:4]:
        broker.enlist(transaction, batch(broker, 16, size=MIB))
    assert type(broker.refused(Enlist(1, opened[4], sending(broker, size=1)))) is ServerBusy
    broker.enlist(broker.declare(other), sending(broker, size=16 * MIB), connection=2)
    broker.discharge(link, opened[0], fail=True)
    broker.enlist(opened[4], sending(broker, size=16 * MIB))
    for transaction in opened[1:]:
        broker.discharge(link, transaction)
    assert len(broker.peek()) == 49


def test_what_is_small_counts_512_bytes(broker: Broker, link: LinkId) -> None:
    """Req: F-03, R-05, T-08, C34"""
    for _ in range(3):
        broker.send()
    views = broker.receive(3)
    scheduled = broker.schedule(MINUTE_MS, MINUTE_MS)
    queue_id = broker.create("jobs", requires_session=True)
    broker.send(queue_id, session_id="s")
    broker.accept("s", "jobs")
    connection = broker.namespace._transactions._connections[1]

    def counted(command: Any, via: str | None = None) -> int:
        before = connection.size_bytes
        transaction = broker.declare(link)
        broker.enlist(transaction, command, via=via)
        return connection.size_bytes - before

    tokens = [token(view) for view in views[1:]]
    disposition = UpdateDisposition(Address("orders"), tokens, Disposition.COMPLETED, broker.reply_to())
    assert counted(completing(broker, views[0])) == 512
    assert counted(disposition) == 1024
    assert counted(CancelScheduled(Address("orders"), scheduled, broker.reply_to())) == 1024
    assert counted(batch(broker, 3)) == 3 * 512
    assert counted(sending(broker, size=1_000)) == 1_000
    for state, size in ((None, 512), (b"s" * 600, 600)):
        assert counted(SetSessionState(Address("jobs"), "s", state, broker.reply_to())) == size
    broker.do(CloseLink(link))
    assert connection.size_bytes == 0


def test_changed_properties_count_as_what_a_transaction_holds(broker: Broker, link: LinkId) -> None:
    """They come with requests of up to a megabyte. Req: F-03, R-05, T-08"""
    for _ in range(17):
        broker.send()
    views = broker.receive(17)
    transaction = broker.declare(link)
    settlements = [
        Abandon(4, token(view), broker.reply_to(), properties={"x": "y" * (MIB - 100)}) for view in views[:16]
    ]
    for settlement in settlements:
        broker.enlist(transaction, settlement)
    late = DeadLetter(4, token(views[16]), broker.reply_to(), reason="r" * MIB)
    assert type(broker.refused(Enlist(1, transaction, late))) is QuotaExceeded
    broker.discharge(link, transaction)
    assert len(broker.peek_dead()) == 16  # the properties are too large for the messages


@pytest.fixture
def crowd(broker: Broker, link: LinkId) -> list[bytes]:
    """All that a connection may have open."""
    broker.checks = False
    opened = [broker.declare(link) for _ in range(OPEN_TRANSACTIONS_MAX)]
    broker.checks = True
    return opened


def waiting(broker: Broker, link: LinkId) -> ReplyTo:
    """Declare, with no answer yet; return to whom it will be."""
    reply_to = broker.reply_to(link.connection_id)
    assert broker.do(Declare(link, reply_to)) == []
    return reply_to


def declared(effects: list[Any]) -> list[ReplyTo]:
    return [effect.reply_to for effect in effects if isinstance(effect, Declared)]


def test_a_declare_beyond_5000_waits_until_another_transaction_ends(
    broker: Broker, link: LinkId, crowd: list[bytes]
) -> None:
    """In order of arrival over all links of the connection, and of no other. Req: F-03, R-05, C34"""
    other = broker.coordinator()
    broker.declare(broker.coordinator(connection=2))
    asked = [waiting(broker, found) for found in (link, other, link, other)]
    assert declared(broker.discharge(link, crowd[0], fail=True)) == asked[:1]
    broker.enlist(crowd[1], sending(broker))
    broker.update(status=EntityStatus.SEND_DISABLED)
    effects = broker.do(Discharge(link, crowd[1], False, broker.reply_to()))
    assert declared(effects) == asked[1:2]
    assert [type(effect.error) for effect in effects if isinstance(effect, Rejected)] == [
        TransactionRolledBack
    ]
    assert declared(broker.do(CloseLink(link))) == asked[3:]  # what waited on that link went with it
    assert broker.advance(DECLARE_WAIT_MS_MAX) == []


def test_a_declare_waits_20_seconds(broker: Broker, link: LinkId, crowd: list[bytes]) -> None:
    """Req: F-03, C34"""
    first = waiting(broker, link)
    broker.advance(1_000)
    second = waiting(broker, link)
    (refused,) = broker.advance(DECLARE_WAIT_MS_MAX - 1_000)
    assert isinstance(refused, Rejected)
    assert (refused.reply_to, type(refused.error)) == (first, ServerBusy)
    assert declared(broker.discharge(link, crowd[0])) == [second]
    assert broker.advance(DECLARE_WAIT_MS_MAX) == []


def test_what_waits_is_answered_when_others_time_out(
    broker: Broker, link: LinkId, crowd: list[bytes]
) -> None:
    """Req: F-03, C34"""
    broker.advance(EMPTY_TRANSACTION_MS_MAX - 1)
    asked = [waiting(broker, link) for _ in range(3)]
    effects = broker.advance(1)
    assert declared(effects) == asked
    assert [effect.transaction_id for effect in effects if isinstance(effect, TransactionEnded)] == crowd


def test_a_hundred_declares_wait_on_a_link(broker: Broker, link: LinkId, crowd: list[bytes]) -> None:
    """Who sends more than its credit is refused at once. Req: F-03, R-05, C34"""
    other = broker.coordinator()
    for _ in range(WAITING_DECLARES_MAX):
        last = waiting(broker, link)
    for reply_to in (last, broker.reply_to()):
        assert type(broker.refused(Declare(link, reply_to))) is ServerBusy
    waiting(broker, other)


def test_declares_that_wait_end_with_their_connection(
    broker: Broker, link: LinkId, crowd: list[bytes]
) -> None:
    """Req: F-03, C34"""
    for _ in range(3):
        waiting(broker, link)
    assert broker.drop() == []
    assert broker.advance(DECLARE_WAIT_MS_MAX) == []
    broker.declare(broker.coordinator())


def test_an_enlist_takes_as_many_steps_with_5000_open_as_with_one(broker: Broker, link: LinkId) -> None:
    """Told by the calls and lines of Python, no clock. Req: F-03, C34"""
    broker.checks = False
    counts = []
    first = broker.declare(link)
    for _ in range(2):
        commands = [Enlist(1, first, sending(broker)) for _ in range(2)]
        broker.namespace.apply(commands[0], broker.now_ms)
        steps = 0

        def trace(frame: Any, event: str, arg: Any) -> Any:
            nonlocal steps
            steps += 1
            return trace

        before = sys.gettrace()
        gc.disable()  # what the collector frees may run Python of its own
        sys.settrace(trace)
        try:
            broker.namespace.apply(commands[1], broker.now_ms)
        finally:
            sys.settrace(before)
            gc.enable()
        counts.append(steps)
        for _ in range(OPEN_TRANSACTIONS_MAX - 1 if len(counts) == 1 else 0):
            broker.enlist(broker.declare(link), sending(broker))
    assert counts[0] == counts[1] > 50


# Top-level entities


@pytest.fixture
def bills(broker: Broker) -> int:
    return broker.create("bills")


def test_a_transaction_is_about_one_top_level_entity(broker: Broker, link: LinkId, bills: int) -> None:
    """Req: F-03, C48"""
    broker.send(bills)
    (held,) = broker.receive(1, "bills")
    transaction = broker.declare(link)
    broker.enlist(transaction, sending(broker))
    for command in (
        sending(broker, bills),
        completing(broker, held, bills),
        UpdateDisposition(Address("bills"), [token(held)], Disposition.COMPLETED, broker.reply_to()),
        Schedule(Address("bills"), broker.later(MINUTE_MS), broker.reply_to()),
    ):
        error = broker.refused(Enlist(1, transaction, command))
        assert type(error) is InvalidOperation
        assert str(error) == SPANS
    error = broker.refused(Enlist(1, transaction, sending(broker, bills), "bills"))
    assert str(error) == SPANS
    broker.enlist(broker.declare(link), completing(broker, held, bills))
    broker.discharge(link, transaction)
    assert len(broker.peek()) == 1


def test_over_the_coordinators_session_it_sends_anywhere(broker: Broker, link: LinkId, bills: int) -> None:
    """Whatever the case of the name. Req: F-03, C48"""
    transaction = broker.declare(link)
    for queue_id, via in ((bills, "Orders"), (4, "orders"), (4, None)):
        broker.enlist(transaction, sending(broker, queue_id), via=via)
    assert type(broker.refused(Enlist(1, transaction, sending(broker, bills)))) is InvalidOperation
    broker.discharge(link, transaction)
    assert (len(broker.peek()), len(broker.peek(name="bills"))) == (2, 1)


def test_what_is_refused_does_not_make_a_transaction_about_its_entity(
    broker: Broker, link: LinkId, bills: int
) -> None:
    """Req: F-03, C48"""
    transaction = broker.declare(link)
    broker.refused(Enlist(1, transaction, sending(broker, bills, size=1 << 20)))
    broker.enlist(transaction, sending(broker))


def test_a_queue_and_its_dead_letters_and_a_topic_and_its_subscriptions_are_one(
    broker: Broker, link: LinkId
) -> None:
    """Req: F-03, C48, P-01"""
    broker.send()
    (held,) = broker.receive()
    broker.do(DeadLetter(4, token(held), broker.reply_to()))
    (dead,) = broker.receive_dead()
    transaction = broker.declare(link)
    broker.enlist(transaction, completing(broker, dead, 5))
    broker.enlist(transaction, sending(broker))
    broker.discharge(link, transaction)
    topic, subscription = broker.create_topic(), broker.subscribe()
    broker.send(topic)
    (copy,) = broker.receive(1, "news/Subscriptions/all")
    transaction = broker.declare(link)
    broker.enlist(transaction, completing(broker, copy, subscription))
    broker.enlist(transaction, sending(broker, topic))
    broker.discharge(link, transaction)


def test_answers_go_to_who_asked_for_the_command(broker: Broker, link: LinkId) -> None:
    """Req: F-03"""
    transaction = broker.declare(link)
    command = sending(broker)
    assert broker.do(Enlist(1, transaction, command)) == [Enlisted(command.reply_to or ReplyTo(0, 0, 0))]
    refused = sending(broker, size=1 << 20)
    (effect,) = broker.do(Enlist(1, transaction, refused))
    assert isinstance(effect, Rejected)
    assert effect.reply_to == refused.reply_to
