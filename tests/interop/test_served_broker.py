"""A broker whose clock is moved, used by the official client."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.management import ServiceBusAdministrationClient

from peeklock.testing.served import ServedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[ServedBroker]:
    with ServedBroker() as served:
        yield served


@pytest.fixture(scope="module")
def client(broker: ServedBroker) -> Iterator[Any]:
    with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as made:
        yield made


def make_queue(broker: ServedBroker, name: str, **settings: Any) -> None:
    with ServiceBusAdministrationClient.from_connection_string(
        broker.connection_string, connection_verify=broker.ca_file
    ) as administration:
        administration.create_queue(name, **settings)


def test_timers_fire_in_their_order_and_at_their_own_times(broker: ServedBroker, client: Any) -> None:
    """What was scheduled for different days is enqueued on those days, although all pass at once; a client
    that was connected before is connected still.

    Req: S-07
    """
    make_queue(broker, "timers")
    start = datetime.fromtimestamp(broker.now_ms() // 1000, UTC)
    days = (90, 1, 30)
    with client.get_queue_sender("timers") as sender, client.get_queue_receiver("timers") as receiver:
        for day in days:
            sender.schedule_messages(ServiceBusMessage(str(day)), start + timedelta(days=day))
        broker.advance(timedelta(days=100))
        sender.send_messages(ServiceBusMessage("100"))
        came: list[Any] = []
        while len(came) < 4:
            came += receiver.receive_messages(max_message_count=4, max_wait_time=10)
        for message in came:
            receiver.complete_message(message)
    assert [str(message) for message in came] == ["1", "30", "90", "100"]
    assert [message.enqueued_time_utc for message in came[:3]] == [
        start + timedelta(days=day) for day in sorted(days)
    ]
    assert came[3].enqueued_time_utc >= start + timedelta(days=100)


def test_time_to_live_ends_in_moved_time(broker: ServedBroker, client: Any) -> None:
    """Req: E-08"""
    make_queue(broker, "short", dead_lettering_on_message_expiration=True)
    with client.get_queue_sender("short") as sender:
        sender.send_messages(ServiceBusMessage("late", time_to_live=timedelta(hours=1)))
    broker.advance(timedelta(hours=1))
    with client.get_queue_receiver("short", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead_letters:
        (dead,) = dead_letters.receive_messages(max_wait_time=10)
    assert dead.dead_letter_reason == "TTLExpiredException"


def test_the_clock_does_not_go_back(broker: ServedBroker) -> None:
    before = broker.now_ms()
    with pytest.raises(ValueError, match="cannot go back"):
        broker.advance(timedelta(seconds=-1))
    assert broker.now_ms() - before < 60_000
