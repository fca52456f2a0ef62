"""Browsing one state: the messages of other states are not passed over, or a bounded number of them."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.broker.queue.browsing import PASSED_OVER_MAX
from peeklock.broker.vocabulary.commands import Address, Disposition, Peek, SequenceNumber, SubQueue
from peeklock.broker.vocabulary.effects import Done, MessagesFound
from peeklock.broker.vocabulary.extension_commands import SettleByNumber
from peeklock.broker.vocabulary.message import MessageState
from tests.broker.harness import MINUTE_MS, Broker, arriving, numbers

ACTIVE, DEFERRED, SCHEDULED = MessageState
LOTS = 1 << 30
BATCH = 1000


def browse(
    broker: Broker,
    state: MessageState,
    from_number: int = 0,
    *,
    count: int = 250,
    place: Address | None = None,
    session_id: str | None = None,
) -> MessagesFound:
    """Return what one request finds."""
    address = place or Address("orders")
    first = SequenceNumber(from_number)
    return broker.one(Peek(address, first, count, LOTS, broker.reply_to(), session_id, state), MessagesFound)


def walk(broker: Broker, state: MessageState, **where: Any) -> tuple[list[int], int]:
    """Browse to the end; return the numbers of the messages, and how many requests it took."""
    found: list[int] = []
    asked, from_number = 1, 0
    while True:
        page = browse(broker, state, from_number, **where)
        found += numbers(page.messages)
        if page.stopped_at is None and not page.messages:
            return found, asked
        from_number = page.stopped_at if page.stopped_at is not None else found[-1] + 1
        asked += 1


def send_many(broker: Broker, count: int, **fields: Any) -> None:
    for first in range(0, count, BATCH):
        broker.send_batch([arriving(**fields) for _ in range(min(BATCH, count - first))])


def made(**settings: Any) -> Broker:
    broker = Broker()
    broker.checks = False
    broker.create(**settings)
    return broker


def set_aside_last(broker: Broker, count: int) -> list[int]:
    """Defer the active messages with the highest numbers; return these."""
    active = [view for view in broker.peek(0, LOTS) if view.state is ACTIVE]
    last = numbers(active)[-count:]
    for number in last:
        command = SettleByNumber(
            broker.reply_to(), Address("orders"), SequenceNumber(number), Disposition.DEFERRED
        )
        broker.one(command, Done)
    return last


@pytest.mark.parametrize("settings", [{}, {"enable_partitioning": True}], ids=["queue", "partitioned"])
def test_few_of_a_state_are_found_at_once_behind_many_others(settings: dict[str, Any]) -> None:
    """Req: S-11"""
    broker = made(**settings)
    (last,) = broker.schedule(MINUTE_MS)
    send_many(broker, PASSED_OVER_MAX + BATCH)
    deferred = set_aside_last(broker, 3)
    found = browse(broker, DEFERRED)
    assert (numbers(found.messages), found.stopped_at) == (deferred, None)
    assert numbers(browse(broker, DEFERRED, deferred[0] + 1).messages) == deferred[1:]
    assert numbers(browse(broker, DEFERRED, count=2).messages) == deferred[:2]
    found = browse(broker, SCHEDULED)
    assert (numbers(found.messages), found.stopped_at) == ([last], None)
    assert browse(broker, SCHEDULED, last + 1).messages == []
    assert numbers(browse(broker, ACTIVE).messages) == numbers(broker.peek(0, 251))[1:]


def test_many_of_a_state_behind_many_others_of_a_partition_are_found_in_bounded_steps() -> None:
    """Numbers there are in no order that the state has; each request passes over a bounded number."""
    broker = made(enable_partitioning=True)
    many = PASSED_OVER_MAX + BATCH
    send_many(broker, many, partition_key="a")
    scheduled: list[int] = []
    for _ in range(0, many, BATCH):
        scheduled += broker.schedule(*[MINUTE_MS] * BATCH, partition_key="a")
    page = browse(broker, SCHEDULED)
    assert page.messages == []
    assert page.stopped_at == numbers(broker.peek(0, PASSED_OVER_MAX + 1))[-1]
    found, asked = walk(broker, SCHEDULED)
    assert found == scheduled
    assert asked <= 2 + many // 250 + 1


def test_dead_letters_of_a_state_come_by_number() -> None:
    broker = made()
    for _ in range(4):
        broker.send()
    for delivery in reversed(broker.receive(4)):
        broker.dead_letter(delivery)
    dead = broker.receive_dead(4)
    for delivery in dead[:2]:
        broker.defer(delivery, queue_id=5)
    place = Address("orders", SubQueue.DEAD_LETTER)
    assert walk(broker, DEFERRED, place=place, count=1) == (sorted(numbers(dead[:2])), 3)


def test_a_session_is_searched_in_bounded_steps() -> None:
    broker = made(requires_session=True)
    send_many(broker, PASSED_OVER_MAX + BATCH, session_id="s")
    (later,) = broker.schedule(MINUTE_MS, session_id="s")
    broker.schedule(MINUTE_MS, session_id="other")
    assert walk(broker, SCHEDULED, session_id="s") == ([later], 3)
    assert walk(broker, DEFERRED, session_id="s") == ([], 2)


def test_a_topic_has_scheduled_messages_only() -> None:
    broker = Broker()
    topic = broker.create_topic()
    broker.subscribe()
    broker.send(topic)
    (later,) = broker.schedule(MINUTE_MS, name="news")
    place = Address("news")
    assert walk(broker, SCHEDULED, place=place) == ([later], 2)
    assert walk(broker, ACTIVE, place=place) == ([], 1)
