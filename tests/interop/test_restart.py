"""A broker that is killed and started again, seen by clients that stay."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageLockLostError
from azure.servicebus.management import ServiceBusAdministrationClient

from peeklock.demo.broker import BrokerProcess
from tests.interop.clients import Api, Background, Links
from tests.interop.helpers import assert_empty, bodies, take, take_one


@pytest.fixture
def mortal(tmp_path: Path, tls_pair: tuple[Path, Path]) -> Iterator[BrokerProcess]:
    """A broker of this test's own, with the queue `q` that detects duplicates."""
    with BrokerProcess(tmp_path, (f"--tls-cert={tls_pair[0]}", f"--tls-key={tls_pair[1]}")) as process:
        connection_string = process.connection_string
        with ServiceBusAdministrationClient.from_connection_string(
            connection_string, connection_verify=str(tls_pair[0])
        ) as administration:
            administration.create_queue("q", requires_duplicate_detection=True)
        yield process


@pytest.fixture
def patient(api: Api, mortal: BrokerProcess, background: Background) -> Iterator[Links]:
    """A client with its usual retries."""
    with api.client(mortal.connection_string) as client:
        yield Links(client, background)
        background.join()


def test_clients_go_on_after_the_broker_was_killed(patient: Links, mortal: BrokerProcess) -> None:
    """What was answered holds: active, deferred, scheduled, dead-lettered, completed, and ids seen. Locks are
    gone, and no delivery is counted for them. The same sender and receiver are used throughout.

    Req: R-01, R-02, L-08, L-10, L-11, L-12, S-01, D-01
    """
    dead = patient.get_queue_receiver("q", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    with patient.get_queue_sender("q") as sender, patient.get_queue_receiver("q") as receiver, dead:
        sender.send_messages([ServiceBusMessage(str(n), message_id=f"id {n}") for n in range(1, 7)])
        due = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
        (scheduled,) = sender.schedule_messages(ServiceBusMessage("later", message_id="later"), due)
        completed, deferred, dead_lettered, abandoned, held = take(receiver, 5)
        receiver.complete_message(completed)
        receiver.defer_message(deferred)
        receiver.dead_letter_message(dead_lettered, reason="before the kill")
        receiver.abandon_message(abandoned)
        mortal.kill()
        mortal.start()
        sender.send_messages(ServiceBusMessage("1 again", message_id="id 1"))
        sender.send_messages(ServiceBusMessage("8", message_id="id 8"))
        browsed = receiver.peek_messages(max_message_count=20, sequence_number=1)
        assert [(str(message), message.sequence_number, message.state) for message in browsed] == [
            ("2", 2, ServiceBusMessageState.DEFERRED),
            ("4", 4, ServiceBusMessageState.ACTIVE),
            ("5", 5, ServiceBusMessageState.ACTIVE),
            ("6", 6, ServiceBusMessageState.ACTIVE),
            ("later", 7, ServiceBusMessageState.SCHEDULED),
            ("8", 8, ServiceBusMessageState.ACTIVE),
        ]
        again = take(receiver, 4)
        assert bodies(again) == ["4", "5", "6", "8"]
        assert [message.delivery_count for message in again] == [1, 0, 0, 0]
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(held)
        for message in again:
            receiver.complete_message(message)
        assert bodies(receiver.receive_deferred_messages(2)) == ["2"]
        sender.cancel_scheduled_messages(scheduled)
        assert_empty(receiver)
        assert take_one(dead).dead_letter_reason == "before the kill"


def test_a_stopped_broker_says_goodbye_and_clients_go_on_after_it_is_back(
    patient: Links, mortal: BrokerProcess
) -> None:
    """Req: R-01, L-12"""
    with patient.get_queue_sender("q") as sender, patient.get_queue_receiver("q") as receiver:
        sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
        held: Any = take_one(receiver)
        assert mortal.stop() == 0
        mortal.start()
        sender.send_messages(ServiceBusMessage("3"))
        again = take(receiver, 3)
        assert bodies(again) == ["1", "2", "3"]
        assert again[0].delivery_count == 0
        assert again[0].lock_token != held.lock_token
