"""Sending to a queue: acceptance, batches, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.amqp.messaging import Sections
from peeklock.broker.vocabulary.changes import MessageStored
from peeklock.broker.vocabulary.commands import (
    Address,
    CountDroppedSend,
    DeleteEntity,
    LimitSending,
    OpenSender,
    ReplyTo,
    Schedule,
    Send,
    SendBatch,
    SubQueue,
)
from peeklock.broker.vocabulary.descriptions import EntityStatus
from peeklock.broker.vocabulary.effects import Accepted, Deliver, Rejected
from peeklock.broker.vocabulary.errors import (
    EntityDeleted,
    EntityDisabled,
    EntityNotFound,
    InvalidOperation,
    LowSpace,
    MessageSizeExceeded,
    QuotaExceeded,
    ServerBusy,
    ServiceBusError,
)
from peeklock.broker.vocabulary.message import Message
from peeklock.broker.vocabulary.quotas import BASIC, PREMIUM, STANDARD, TierLimits
from tests.broker.harness import EMPTY, Broker, deliveries, numbers

KIB = 1024


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create()
    return made


def test_a_send_is_accepted_with_the_fact_that_makes_it_durable(broker: Broker) -> None:
    """Req: T-01"""
    message = Message(3)
    changes, effects = broker.namespace.apply(
        Send(4, message, Sections(b"abc"), ReplyTo(1, 0, 9)), broker.now_ms
    )
    assert changes == [MessageStored(4, message, b"abc")]
    assert effects == [Accepted(ReplyTo(1, 0, 9))]


def test_the_outcome_comes_before_the_delivery_of_the_same_message(broker: Broker) -> None:
    """Req: T-01, T-04"""
    broker.credit(broker.receiver())
    effects = broker.do(Send(4, Message(1), EMPTY, ReplyTo(1, 0, 9)))
    assert [type(effect) for effect in effects] == [Accepted, Deliver]


def test_a_pre_settled_send_is_stored_without_an_answer(broker: Broker) -> None:
    """Req: T-06"""
    assert broker.do(Send(4, Message(1), EMPTY, None)) == []
    assert broker.view().active_count == 1


def test_a_pre_settled_send_that_is_refused_is_only_counted(broker: Broker) -> None:
    """Req: T-06"""
    assert broker.do(Send(4, Message(257 * KIB), EMPTY, None)) == []
    assert broker.do(Send(99, Message(1), EMPTY, None)) == []
    assert broker.do(SendBatch(4, [(Message(257 * KIB), EMPTY)], None)) == []
    assert broker.do(CountDroppedSend()) == []  # the gateway refused it
    assert broker.view().active_count == 0
    assert broker.namespace.totals().dropped_sends == 4


def test_a_batch_is_stored_as_a_whole_with_consecutive_numbers(broker: Broker) -> None:
    """Req: T-07"""
    effects = broker.send_batch([Message(10) for _ in range(5)])
    assert [type(effect) for effect in effects] == [Accepted]
    assert numbers(broker.peek()) == [1, 2, 3, 4, 5]


def test_a_batch_over_the_limit_stores_nothing_and_uses_no_number(broker: Broker) -> None:
    """Req: T-07, T-10, S-01"""
    effects = broker.send_batch([Message(128 * KIB), Message(128 * KIB + 1)])
    assert isinstance(effects[0], Rejected)
    assert isinstance(effects[0].error, MessageSizeExceeded)
    assert broker.peek() == []
    assert broker.send().sequence_number == 1


def test_a_batch_at_the_limit_is_stored(broker: Broker) -> None:
    """Req: T-07, T-10"""
    effects = broker.send_batch([Message(128 * KIB), Message(128 * KIB)])
    assert isinstance(effects[0], Accepted)


@pytest.mark.parametrize(
    ("tier", "settings", "limit"),
    [
        (BASIC, {}, 256 * KIB),
        (STANDARD, {}, 256 * KIB),
        (PREMIUM, {}, 1024 * KIB),
        (PREMIUM, {"max_message_size_kb": 100 * KIB}, 100 * KIB * KIB),
    ],
)
def test_a_message_of_the_size_limit_passes_and_one_byte_more_does_not(
    tier: TierLimits, settings: dict[str, Any], limit: int
) -> None:
    """Req: T-10, A-05"""
    broker = Broker(tier)
    broker.create(**settings)
    assert broker.do(Send(4, Message(limit), EMPTY, ReplyTo(1, 0, 1))) == [Accepted(ReplyTo(1, 0, 1))]
    error = broker.refused(Send(4, Message(limit + 1), EMPTY, broker.reply_to()))
    assert isinstance(error, MessageSizeExceeded)
    assert f"'orders' is {limit + 1} bytes, the limit is {limit}" in str(error)


def test_a_message_taken_over_the_limit_is_refused_by_the_schedule_operation_too(broker: Broker) -> None:
    """Req: T-10, S-05"""
    command = Schedule(Address("orders"), [(Message(257 * KIB), EMPTY)], broker.reply_to())
    assert isinstance(broker.refused(command), MessageSizeExceeded)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (LimitSending(low_space=True), LowSpace),
        (LimitSending(lagging=True), ServerBusy),
        (LimitSending(low_space=True, lagging=True), LowSpace),
    ],
)
def test_sends_are_refused_while_space_is_low_or_the_broker_lags(
    broker: Broker, limits: LimitSending, reason: type[ServiceBusError]
) -> None:
    """Req: R-06, T-03"""
    broker.send()
    assert broker.do(limits) == []
    assert type(broker.refused(Send(4, Message(1), EMPTY, broker.reply_to()))) is reason
    assert type(broker.refused(SendBatch(4, [(Message(1), EMPTY)], broker.reply_to()))) is reason
    schedule = Schedule(Address("orders"), [(Message(1), EMPTY)], broker.reply_to())
    assert type(broker.refused(schedule)) is reason
    broker.complete(broker.receive()[0])  # settlements go on
    broker.do(LimitSending())
    assert broker.send().sequence_number == 2


def test_nothing_can_be_sent_to_a_dead_letter_queue(broker: Broker) -> None:
    """Req: L-17"""
    for sub_queue in (SubQueue.DEAD_LETTER, SubQueue.TRANSFER_DEAD_LETTER):
        address = Address("orders", sub_queue)
        assert isinstance(broker.refused(OpenSender(broker.link(), address)), InvalidOperation)
        schedule = Schedule(address, [(Message(1), EMPTY)], broker.reply_to())
        assert isinstance(broker.refused(schedule), InvalidOperation)
    assert isinstance(broker.refused(Send(5, Message(1), EMPTY, broker.reply_to())), InvalidOperation)


def test_sending_to_what_is_not_there_tells_which_name(broker: Broker) -> None:
    """Req: T-03"""
    error = broker.refused(OpenSender(broker.link(), Address("Nowhere")))
    assert isinstance(error, EntityNotFound)
    assert "'Nowhere'" in str(error)


def test_a_send_after_the_entity_was_deleted_is_refused(broker: Broker) -> None:
    """Req: T-03"""
    broker.do(DeleteEntity("orders", broker.reply_to()))
    assert isinstance(broker.refused(Send(4, Message(1), EMPTY, broker.reply_to())), EntityDeleted)


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.SEND_DISABLED])
def test_a_disabled_entity_takes_no_message(broker: Broker, status: EntityStatus) -> None:
    """Req: A-04, T-03"""
    broker.sender()
    broker.update(status=status)
    assert isinstance(broker.refused(Send(4, Message(1), EMPTY, broker.reply_to())), EntityDisabled)
    assert isinstance(broker.refused(OpenSender(broker.link(), Address("orders"))), EntityDisabled)
    broker.update(status=EntityStatus.ACTIVE)
    assert broker.send().sequence_number == 1


def test_the_entity_size_is_held_only_where_the_namespace_says_so() -> None:
    """Req: A-05, T-03"""
    free, held = Broker(), Broker(enforce_quotas=True)
    for broker in (free, held):
        broker.checks = False
        broker.create()
        for _ in range(1024 * 4):
            broker.send(size=256 * KIB)
    free.send(size=1)
    assert isinstance(held.refused(Send(4, Message(1), EMPTY, held.reply_to())), QuotaExceeded)
    held.complete(held.receive()[0])
    held.send(size=256 * KIB)


def test_one_slow_queue_does_not_keep_the_outcome_of_another() -> None:
    """Req: T-04"""
    broker = Broker()
    first, second = broker.create("first"), broker.create("second")
    for number in range(3):
        broker.send(first)
        effects = broker.do(Send(second, Message(1), EMPTY, ReplyTo(1, 0, number)))
        assert effects == [Accepted(ReplyTo(1, 0, number))]


def test_a_refused_send_delivers_nothing(broker: Broker) -> None:
    """Req: T-01"""
    broker.credit(broker.receiver())
    effects = broker.do(Send(4, Message(257 * KIB), EMPTY, broker.reply_to()))
    assert deliveries(effects) == []
