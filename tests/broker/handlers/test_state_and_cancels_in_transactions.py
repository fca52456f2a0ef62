"""Cancelling schedules and setting the states of sessions in transactions."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.broker.queue.lapsed_sessions import DETACH_AFTER_MS
from peeklock.broker.vocabulary.changes import MessageRemoved, MessageStored
from peeklock.broker.vocabulary.commands import (
    Address,
    CancelScheduled,
    CloseLink,
    Complete,
    CreateEntity,
    DeleteEntity,
    Discharge,
    Enlist,
    GetSessionState,
    LimitSending,
    LinkId,
    RenewSessionLock,
    Send,
    SequenceNumber,
    SetSessionState,
)
from peeklock.broker.vocabulary.descriptions import EntityStatus, QueueDescription
from peeklock.broker.vocabulary.effects import (
    Done,
    MessagesFound,
    ReceiverOpened,
    SessionLockLapsed,
    SessionLockRenewed,
)
from peeklock.broker.vocabulary.errors import (
    EntityDisabled,
    EntityNotFound,
    InvalidOperation,
    LowSpace,
    MessageNotFound,
    MessageSizeExceeded,
    SessionLockLost,
    TransactionRolledBack,
)
from peeklock.broker.vocabulary.events import EventType
from peeklock.broker.vocabulary.quotas import PREMIUM
from tests.broker.handlers.test_scheduling_in_transactions import KEY, OTHER
from tests.broker.harness import EMPTY, MINUTE_MS, Broker, arriving, numbers, token

MIB = 1024 * 1024


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create()
    made.create("jobs", requires_session=True)
    return made


@pytest.fixture
def link(broker: Broker) -> LinkId:
    return broker.coordinator()


@pytest.fixture
def held(broker: Broker) -> ReceiverOpened:
    """Session "s" of `jobs`."""
    broker.send(8, session_id="s")
    return broker.accept("s", "jobs")


def cancelling(broker: Broker, *sequence_numbers: int, name: str = "orders") -> CancelScheduled:
    return CancelScheduled(Address(name), list(map(SequenceNumber, sequence_numbers)), broker.reply_to())


def setting(
    broker: Broker, state: bytes | None, session_id: str = "s", name: str = "jobs", connection: int = 1
) -> SetSessionState:
    return SetSessionState(Address(name), session_id, state, broker.reply_to(connection))


def state_size(broker: Broker, session_id: str = "s", name: str = "jobs") -> int | None:
    """Return how long the state is that a holder is shown."""
    found = broker.one(GetSessionState(Address(name), session_id, broker.reply_to()), MessagesFound).messages
    return found[0].message.size_bytes if found else None


def rolled_back(broker: Broker, link: LinkId, transaction: bytes) -> str:
    error = broker.refused(Discharge(link, transaction, False, broker.reply_to()))
    assert type(error) is TransactionRolledBack
    return str(error)


# Cancelling


def test_a_message_stays_scheduled_until_its_cancellation_is_committed(broker: Broker, link: LinkId) -> None:
    """Req: F-03, S-06, C30"""
    cancelled, kept = broker.schedule(MINUTE_MS, 2 * MINUTE_MS)
    transaction = broker.declare(link)
    broker.enlist(transaction, cancelling(broker, cancelled))
    assert numbers(broker.peek()) == [cancelled, kept]
    broker.discharge(link, transaction)
    assert numbers(broker.peek()) == [kept]
    broker.restart()
    assert numbers(broker.peek()) == [kept]


def test_a_cancellation_that_is_rolled_back_never_was(broker: Broker, link: LinkId) -> None:
    """Req: F-03, S-06, C30"""
    (number,) = broker.schedule(MINUTE_MS)
    for _ in range(2):
        transaction = broker.declare(link)
        broker.enlist(transaction, cancelling(broker, number, number))
        broker.discharge(link, transaction, fail=True)
    assert numbers(broker.peek()) == [number]
    broker.one(cancelling(broker, number), Done)


@pytest.mark.parametrize("how", ["activated", "cancelled", "cancelled in another transaction"])
def test_a_number_that_is_gone_at_the_discharge_rolls_all_back(
    broker: Broker, link: LinkId, how: str
) -> None:
    """Req: F-03, S-09, C30"""
    gone, left = broker.schedule(MINUTE_MS, 5 * MINUTE_MS)
    transaction = broker.declare(link)
    broker.enlist(transaction, cancelling(broker, gone, left))
    broker.enlist(transaction, Send(4, arriving(), EMPTY, broker.reply_to()))
    if how == "activated":
        broker.advance(MINUTE_MS)
    elif how == "cancelled":
        broker.one(cancelling(broker, gone), Done)
    else:
        other = broker.declare(link)
        broker.enlist(other, cancelling(broker, gone))
        broker.discharge(link, other)
    facts = len(broker.facts)
    assert "no scheduled message" in rolled_back(broker, link, transaction)
    assert len(broker.facts) == facts
    assert len(broker.peek()) == (2 if how == "activated" else 1)


def test_a_cancellation_is_refused_when_enlisted_as_it_would_be_alone(broker: Broker, link: LinkId) -> None:
    """Numbers of the same transaction are not found, nor what it cancels already.

    Req: F-03, S-06, C30
    """
    (number,) = broker.schedule(MINUTE_MS)
    broker.create("closed", status=EntityStatus.DISABLED)
    transaction = broker.declare(link)
    (ahead,) = broker.enlist_schedule(transaction, MINUTE_MS)

    def refused(command: CancelScheduled) -> type:
        return type(broker.refused(Enlist(1, transaction, command)))

    assert refused(cancelling(broker, ahead)) is MessageNotFound
    assert refused(cancelling(broker, number, 99)) is MessageNotFound
    assert refused(cancelling(broker, 1, name="nowhere")) is EntityNotFound
    assert refused(cancelling(broker, 1, name="closed")) is EntityDisabled
    broker.enlist(transaction, cancelling(broker, number))
    assert refused(cancelling(broker, number)) is MessageNotFound
    broker.discharge(link, transaction)
    assert numbers(broker.peek()) == [ahead]


def test_a_cancelled_id_is_free_from_the_commit_on(broker: Broker, link: LinkId) -> None:
    """Req: F-03, D-01, C30"""
    broker.create("ids", requires_duplicate_detection=True)
    (number,) = broker.schedule(MINUTE_MS, name="ids", message_id=b"a")
    transaction = broker.declare(link)
    broker.enlist(transaction, cancelling(broker, number, name="ids"))
    assert broker.schedule(MINUTE_MS, name="ids", message_id=b"a") == [number]
    broker.discharge(link, transaction)
    broker.restart()
    assert broker.schedule(MINUTE_MS, name="ids", message_id=b"a") == [number + 1]


def test_a_number_of_a_queue_that_was_made_again_rolls_all_back(broker: Broker, link: LinkId) -> None:
    """Req: F-03, C30"""
    (number,) = broker.schedule(MINUTE_MS)
    transaction = broker.declare(link)
    broker.enlist(transaction, cancelling(broker, number))
    broker.do(DeleteEntity("orders", broker.reply_to()))
    broker.do(CreateEntity(QueueDescription("orders"), broker.reply_to()))
    assert broker.schedule(MINUTE_MS) == [number]
    assert "deleted" in rolled_back(broker, link, transaction)
    assert numbers(broker.peek()) == [number]


# States


def test_a_state_is_shown_from_the_commit_on(broker: Broker, link: LinkId, held: ReceiverOpened) -> None:
    """The last one of several. Req: F-03, G-03, C30"""
    broker.do(setting(broker, b"x"))
    transaction = broker.declare(link)
    for state in (b"yy", None, b"zzz"):
        broker.enlist(transaction, setting(broker, state))
    assert state_size(broker) == 1
    broker.discharge(link, transaction)
    assert state_size(broker) == 3
    cleared = broker.declare(link)
    broker.enlist(cleared, setting(broker, None))
    broker.discharge(link, cleared)
    assert state_size(broker) is None


def test_a_state_that_is_rolled_back_never_was(broker: Broker, link: LinkId, held: ReceiverOpened) -> None:
    """Req: F-03, G-03, C30"""
    transaction = broker.declare(link)
    broker.enlist(transaction, setting(broker, b"x"))
    broker.discharge(link, transaction, fail=True)
    assert state_size(broker) is None
    broker.restart()
    assert broker.namespace.entity_views()[0].size_bytes == 100  # the message alone


def test_state_sends_completes_and_cancels_are_one_frame(
    broker: Broker, link: LinkId, held: ReceiverOpened
) -> None:
    """As the Durable Task Framework commits its work: a whole prefetch at once. Req: F-03, G-03, R-02, C30"""
    for _ in range(49):
        broker.send(8, session_id="s")
    (number,) = broker.schedule(MINUTE_MS, name="jobs", session_id="s")
    views = broker.credit(held.link)
    assert len(views) == 50
    transaction = broker.declare(link)
    commands: list[Any] = [Complete(8, token(view), broker.reply_to()) for view in views]
    commands += [Send(8, arriving(session_id="t"), EMPTY, broker.reply_to()) for _ in range(100)]
    commands += [cancelling(broker, number, name="jobs"), setting(broker, b"done")]
    for command in commands:
        broker.enlist(transaction, command)
    facts, events = len(broker.facts), len(broker.events)
    broker.discharge(link, transaction)
    changed = broker.facts[facts:]
    assert len([fact for fact in changed if isinstance(fact, MessageRemoved)]) == 51
    assert len([fact for fact in changed if isinstance(fact, MessageStored)]) == 101
    told = broker.events[events:]
    assert {event.transaction_id for event in told} == {transaction}
    assert {EventType.CANCELLED, EventType.SESSION_STATE_SET} <= {event.type for event in told}
    broker.restart()
    broker.accept("t", "jobs")
    assert len(broker.peek(name="jobs")) == 100
    assert state_of_free_session(broker) == 4


def state_of_free_session(broker: Broker) -> int | None:
    sessions = broker.namespace._queues[8].sessions
    assert sessions is not None
    session = sessions.get("s")
    assert session is not None
    return None if session.state is None else session.state.size_bytes


@pytest.mark.parametrize("how", ["lapsed", "left", "left and held again", "connection lost", "other holder"])
def test_a_session_lock_that_is_lost_at_the_discharge_rolls_all_back(
    broker: Broker, link: LinkId, how: str
) -> None:
    """Also when the same connection holds the session again: it may have changed between.

    Req: F-03, G-02, C30
    """
    broker.send(8, session_id="s")
    connection = 2 if how == "connection lost" else 1
    held = broker.accept("s", "jobs", connection=connection)
    transaction = broker.declare(link)
    command = setting(broker, b"x", connection=connection)
    broker.enlist(transaction, command)
    broker.enlist(transaction, Send(8, arriving(session_id="t"), EMPTY, broker.reply_to()))
    if how == "lapsed":
        assert broker.advance(MINUTE_MS) == [SessionLockLapsed(held.link)]
    elif how == "connection lost":
        broker.drop(2)
    else:
        broker.do(CloseLink(held.link))
        if how != "left":
            broker.accept("s", "jobs", connection=1 if how == "left and held again" else 2)
    facts = len(broker.facts)
    assert "session" in rolled_back(broker, link, transaction)
    assert len(broker.facts) == facts
    assert state_of_free_session(broker) is None


def test_a_session_can_be_renewed_while_its_state_is_enlisted(
    broker: Broker, link: LinkId, held: ReceiverOpened
) -> None:
    """Req: F-03, G-02, C30"""
    transaction = broker.declare(link)
    broker.advance(MINUTE_MS // 2)
    broker.enlist(transaction, setting(broker, b"x"))
    broker.one(RenewSessionLock(Address("jobs"), "s", broker.reply_to()), SessionLockRenewed)
    broker.advance(MINUTE_MS - 1)
    broker.discharge(link, transaction)
    assert state_size(broker) == 1


def test_a_state_is_refused_when_enlisted_as_it_would_be_alone(
    broker: Broker, link: LinkId, held: ReceiverOpened
) -> None:
    """Req: F-03, G-03, C30"""
    transaction = broker.declare(link)

    def refused(command: SetSessionState) -> type:
        facts = len(broker.facts)
        (effect, *_) = broker.do(Enlist(1, transaction, command))
        assert len(broker.facts) == facts
        return type(getattr(effect, "error", None))

    assert refused(setting(broker, b"x", "other")) is SessionLockLost
    assert refused(setting(broker, b"x", connection=2)) is SessionLockLost
    assert refused(setting(broker, b"x", name="orders")) is InvalidOperation
    assert refused(setting(broker, b"x", name="nowhere")) is EntityNotFound
    assert refused(setting(broker, b"x" * (MIB + 1))) is MessageSizeExceeded
    broker.do(LimitSending(low_space=True))
    assert refused(setting(broker, b"x")) is LowSpace
    broker.do(LimitSending(low_space=False))
    broker.enlist(transaction, setting(broker, b"x"))
    broker.discharge(link, transaction)
    assert state_size(broker) == 1


def test_setting_a_state_in_a_transaction_is_a_use_of_a_lapsed_session(
    broker: Broker, link: LinkId, held: ReceiverOpened
) -> None:
    """Req: G-02, C30"""
    transaction = broker.declare(link)
    broker.advance(MINUTE_MS)
    effects = broker.do(Enlist(1, transaction, setting(broker, b"x")))
    assert [type(effect).__name__ for effect in effects] == ["Failed", "DetachLink"]
    assert broker.advance(DETACH_AFTER_MS) == []


def test_room_is_looked_for_for_states_and_messages_together() -> None:
    """Only by what a state grows. Req: F-03, A-05, C30"""
    broker = Broker(PREMIUM, enforce_quotas=True)
    queue_id = broker.create("jobs", requires_session=True, max_size_mb=1024, max_message_size_kb=100 * 1024)
    link = broker.coordinator()
    for _ in range(10):
        broker.send(queue_id, size=100 * MIB, session_id="s")
    broker.send(queue_id, size=22 * MIB, session_id="s")
    broker.accept("s", "jobs")
    broker.do(setting(broker, b"s" * MIB))  # 1 MiB is left
    for size, fits in ((MIB + 1, False), (MIB, True)):
        transaction = broker.declare(link)
        for state in (b"", b"s" * MIB, b"t" * MIB):
            broker.enlist(transaction, setting(broker, state))
        broker.enlist(transaction, Send(queue_id, arriving(MIB, session_id="s"), EMPTY, broker.reply_to()))
        if size > MIB:
            broker.enlist(transaction, Send(queue_id, arriving(1, session_id="s"), EMPTY, broker.reply_to()))
            assert "size" in rolled_back(broker, link, transaction)
        else:
            broker.discharge(link, transaction)
        assert len(broker.peek(name="jobs")) == 11 + fits


# Partitions


@pytest.mark.parametrize("first", ["send", "cancel", "state"])
def test_a_number_or_session_in_another_partition_is_refused(
    broker: Broker, link: LinkId, first: str
) -> None:
    """Req: F-03, S-02, C30"""
    queue_id = broker.create("parts", enable_partitioning=True, requires_session=True)
    for key in (KEY, OTHER):
        broker.send(queue_id, session_id=key)
        broker.accept(key, "parts")
    scheduled = {key: broker.schedule(MINUTE_MS, name="parts", session_id=key)[0] for key in (KEY, OTHER)}

    def commands(key: str) -> dict[str, Any]:
        return {
            "send": Send(queue_id, arriving(session_id=key), EMPTY, broker.reply_to()),
            "cancel": cancelling(broker, scheduled[key], name="parts"),
            "state": setting(broker, b"x", key, "parts"),
        }

    transaction = broker.declare(link)
    broker.enlist(transaction, commands(KEY)[first])
    for command in commands(OTHER).values():
        error = broker.refused(Enlist(1, transaction, command))
        assert type(error) is InvalidOperation
        assert "one partition key" in str(error)
    for name, command in commands(KEY).items():
        if name != first:
            broker.enlist(transaction, command)
    broker.discharge(link, transaction)
