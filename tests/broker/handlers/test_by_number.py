"""One message settled by its number, without a lock."""

from __future__ import annotations

import pytest

from peeklock.broker.vocabulary.changes import MessageRemoved, MessageStored
from peeklock.broker.vocabulary.commands import Address, Disposition, SequenceNumber, SubQueue
from peeklock.broker.vocabulary.descriptions import EntityStatus
from peeklock.broker.vocabulary.effects import Done, Failed, ScheduledShifted
from peeklock.broker.vocabulary.errors import (
    ArgumentInvalid,
    EntityDisabled,
    InvalidOperation,
    MessageLocked,
    MessageNotFound,
    NotSupported,
)
from peeklock.broker.vocabulary.events import EventType
from peeklock.broker.vocabulary.extension_commands import ClaimMessages, SettleByNumber, ShiftScheduled
from peeklock.broker.vocabulary.message import MessageState
from peeklock.broker.vocabulary.quotas import BASIC
from peeklock.rules.filters import SqlFilter
from tests.broker.harness import LOTS, Broker

MINUTE_MS = 60_000


@pytest.fixture
def broker() -> Broker:
    """Queue 'orders' with three messages."""
    made = Broker()
    made.create("orders")
    for _ in range(3):
        made.send()
    return made


def settle(
    broker: Broker,
    number: int,
    disposition: Disposition = Disposition.COMPLETED,
    name: str = "orders",
    sub_queue: SubQueue = SubQueue.MAIN,
    reason: str | None = None,
    description: str | None = None,
) -> Done | Failed:
    """Ask; return the answer."""
    command = SettleByNumber(
        broker.reply_to(), Address(name, sub_queue), SequenceNumber(number), disposition, reason, description
    )
    (answer,) = [each for each in broker.do(command) if isinstance(each, Done | Failed)]
    return answer


def numbers(broker: Broker, sub_queue: SubQueue = SubQueue.MAIN) -> list[tuple[int, MessageState]]:
    views = broker.peek(name="orders", sub_queue=sub_queue)
    return [(view.message.sequence_number, view.state) for view in views]


ACTIVE, DEFERRED = MessageState.ACTIVE, MessageState.DEFERRED


def test_a_message_is_deleted(broker: Broker) -> None:
    assert isinstance(settle(broker, 2), Done)
    assert numbers(broker) == [(1, ACTIVE), (3, ACTIVE)]
    assert isinstance(broker.facts[-1], MessageRemoved)
    answer = settle(broker, 2)
    assert isinstance(answer, Failed)
    assert isinstance(answer.error, MessageNotFound)


def test_a_message_is_deferred_without_a_delivery(broker: Broker) -> None:
    assert isinstance(settle(broker, 2, Disposition.DEFERRED), Done)
    assert numbers(broker) == [(1, ACTIVE), (2, DEFERRED), (3, ACTIVE)]
    assert broker.peek(name="orders")[1].delivery_count == 0
    assert isinstance(broker.facts[-1], MessageStored)
    answer = settle(broker, 2, Disposition.DEFERRED)
    assert isinstance(answer, Failed)
    assert isinstance(answer.error, InvalidOperation)
    assert isinstance(settle(broker, 2), Done)


def test_a_message_is_dead_lettered_with_its_reason(broker: Broker) -> None:
    settle(broker, 1, Disposition.DEFERRED)
    for number in (1, 3):
        answer = settle(broker, number, Disposition.SUSPENDED, reason="seen", description="by hand")
        assert isinstance(answer, Done)
    assert numbers(broker) == [(2, ACTIVE)]
    assert [number for number, _ in numbers(broker, SubQueue.DEAD_LETTER)] == [1, 3]
    overlay = broker.peek(name="orders", sub_queue=SubQueue.DEAD_LETTER)[0].overlay
    assert overlay is not None
    assert b"seen" in overlay
    assert b"by hand" in overlay
    answer = settle(broker, 1, Disposition.SUSPENDED, sub_queue=SubQueue.DEAD_LETTER)
    assert isinstance(answer, Failed)
    assert isinstance(answer.error, InvalidOperation)
    assert isinstance(settle(broker, 1, sub_queue=SubQueue.DEAD_LETTER), Done)


@pytest.mark.parametrize("disposition", [Disposition.COMPLETED, Disposition.DEFERRED, Disposition.SUSPENDED])
def test_what_a_receiver_holds_stays(broker: Broker, disposition: Disposition) -> None:
    broker.receive(1)
    answer = settle(broker, 1, disposition)
    assert isinstance(answer, Failed)
    assert isinstance(answer.error, MessageLocked)
    broker.advance(MINUTE_MS)
    assert isinstance(settle(broker, 1, disposition), Done)


def test_what_a_cursor_holds_stays(broker: Broker) -> None:
    broker.do(ClaimMessages(Address("orders"), "reader", 1, LOTS, broker.reply_to()))
    answer = settle(broker, 1)
    assert isinstance(answer, Failed)
    assert isinstance(answer.error, MessageLocked)
    assert isinstance(settle(broker, 2), Done)


def test_a_scheduled_message_can_only_be_cancelled(broker: Broker) -> None:
    (number,) = broker.schedule(MINUTE_MS)
    for disposition in (Disposition.DEFERRED, Disposition.SUSPENDED):
        answer = settle(broker, number, disposition)
        assert isinstance(answer, Failed)
        assert isinstance(answer.error, InvalidOperation)
    assert isinstance(settle(broker, number), Done)
    assert broker.events[-1].type is EventType.CANCELLED
    assert broker.view().scheduled_count == 0


def test_what_has_expired_is_left_to_the_sweep(broker: Broker) -> None:
    message = broker.send(ttl_ms=10)
    broker.jump(10)
    answer = settle(broker, message.sequence_number)
    assert isinstance(answer, Failed)
    assert isinstance(answer.error, MessageNotFound)


def test_messages_on_their_way_through_a_topic_are_not_found() -> None:
    broker = Broker()
    broker.create_topic()
    broker.subscribe("red", SqlFilter("colour = 'red'"))
    broker.publish({"colour": "red"}, scheduled_at_ms=broker.now_ms + MINUTE_MS)
    broker.publish({"colour": "red"}, scheduled_at_ms=broker.now_ms + 2 * MINUTE_MS)
    broker.advance(MINUTE_MS)  # the first one waits for its body, under a new number
    answer = settle(broker, 3, name="news")
    assert isinstance(answer, Failed)
    assert isinstance(answer.error, MessageNotFound)
    assert isinstance(settle(broker, 2, name="news"), Done)


@pytest.mark.parametrize("disposition", [Disposition.COMPLETED, Disposition.DEFERRED, Disposition.SUSPENDED])
def test_messages_of_a_session_that_nobody_or_somebody_holds(disposition: Disposition) -> None:
    """The session's holder has the messages that were delivered; the others nobody has."""
    broker = Broker()
    broker.create(requires_session=True)
    for _ in range(3):
        broker.send(session_id="s")
    assert isinstance(settle(broker, 2, disposition), Done)
    link = broker.accept("s").link
    broker.credit(link, 1)
    answer = settle(broker, 1, disposition)
    assert isinstance(answer, Failed)
    assert isinstance(answer.error, MessageLocked)
    assert isinstance(settle(broker, 3, disposition), Done)
    assert broker.credit(link) == []


def test_a_session_without_active_messages_is_not_given_out() -> None:
    broker = Broker()
    broker.create(requires_session=True)
    broker.send(session_id="s")
    settle(broker, 1, Disposition.DEFERRED)
    assert broker.do(broker.wish()) == []


def test_a_restart_finds_what_was_settled(broker: Broker) -> None:
    settle(broker, 1, Disposition.DEFERRED)
    settle(broker, 2)
    settle(broker, 3, Disposition.SUSPENDED)
    broker.restart()
    assert numbers(broker) == [(1, DEFERRED)]
    assert numbers(broker, SubQueue.DEAD_LETTER) == [(3, ACTIVE)]


def test_each_settlement_has_its_event(broker: Broker) -> None:
    """Req: X-02."""
    broker.events.clear()
    settle(broker, 1, Disposition.DEFERRED)
    settle(broker, 2)
    settle(broker, 3, Disposition.SUSPENDED, reason="seen")
    told = [(event.type, event.reason, event.lock_token, event.delivery_count) for event in broker.events]
    assert told[:3] == [
        (EventType.DEFERRED, "by request", None, 0),
        (EventType.PURGED, None, None, 0),
        (EventType.DEAD_LETTERED, "seen", None, 0),
    ]


def test_what_cannot_be_asked_is_refused(broker: Broker) -> None:
    for disposition, reason, error in (
        (Disposition.ABANDONED, None, ArgumentInvalid),
        (Disposition.SUSPENDED, "r" * 70_000, ArgumentInvalid),
    ):
        answer = settle(broker, 1, disposition, reason=reason)
        assert isinstance(answer, Failed)
        assert isinstance(answer.error, error)
    broker.update(status=EntityStatus.RECEIVE_DISABLED)
    answer = settle(broker, 1)
    assert isinstance(answer, Failed)
    assert isinstance(answer.error, EntityDisabled)
    basic = Broker(BASIC)
    basic.create()
    basic.send()
    answer = settle(basic, 1, Disposition.DEFERRED)
    assert isinstance(answer, Failed)
    assert isinstance(answer.error, NotSupported)


def test_a_shift_to_an_instant() -> None:
    """Req: S-06."""
    broker = Broker()
    broker.create()
    (number,) = broker.schedule(MINUTE_MS)
    at_ms = broker.now_ms + 2 * MINUTE_MS
    command = ShiftScheduled(broker.reply_to(), Address("orders"), (number,), None, at_ms)
    assert broker.one(command, ScheduledShifted).count == 1
    broker.advance(2 * MINUTE_MS - 1)
    assert broker.view().scheduled_count == 1
    broker.advance(1)
    assert broker.view().active_count == 1
