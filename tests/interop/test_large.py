"""Messages of many frames: at the limit and, where they grew, beyond it, in each mode and from each entity.

The programs of other clients show what these make of them (`largest`, `many-deferred`).
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.management import ServiceBusAdministrationClient

from peeklock.demo.broker import BrokerProcess
from tests.interop.builds import build, clients
from tests.interop.helpers import take, take_one
from tests.interop.program import Outcome, Program

MIB = 1024 * 1024
MODES = list(ServiceBusReceiveMode)
TEXTS = {"reason": "r" * 4_000, "error_description": "d" * 4_000}
LARGEST = 99 * MIB


@pytest.fixture(scope="module")
def premium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("premium"), ["--tier=premium"]) as broker:
        with administration_of(broker) as administration:
            for name, size_kb in (("one", 1024), ("three", 4096), ("large", 100 * 1024)):
                administration.create_queue(name, max_message_size_in_kilobytes=size_kb)
                administration.create_topic(f"{name}-topic", max_message_size_in_kilobytes=size_kb)
                administration.create_subscription(f"{name}-topic", "all")
        yield broker
        assert broker.stop() == 0


@pytest.fixture
def client(premium: BrokerProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(premium.connection_string) as made:
        yield made


def administration_of(broker: BrokerProcess) -> ServiceBusAdministrationClient:
    by_http = broker.connection_string.replace(f":{broker.amqp_port};", f":{broker.http_port};")
    return ServiceBusAdministrationClient.from_connection_string(by_http, connection_verify=False)


def take_whole(receiver: Any, body: bytes, mode: ServiceBusReceiveMode) -> None:
    with receiver:
        (message,) = take(receiver, wait_s=60)
        assert b"".join(message.body) == body
        if mode is ServiceBusReceiveMode.PEEK_LOCK:
            receiver.complete_message(message)
        assert receiver.peek_messages(sequence_number=1) == []


def passes_on(client: ServiceBusClient, name: str, body: bytes, mode: ServiceBusReceiveMode) -> None:
    """From a queue, a subscription and, grown by long texts, a dead-letter queue."""
    with client.get_queue_sender(name) as sender, client.get_topic_sender(f"{name}-topic") as publisher:
        sender.send_messages(ServiceBusMessage(body))
        take_whole(client.get_queue_receiver(name, receive_mode=mode), body, mode)
        publisher.send_messages(ServiceBusMessage(body))
        subscribed = client.get_subscription_receiver(f"{name}-topic", "all", receive_mode=mode)
        take_whole(subscribed, body, mode)
        sender.send_messages(ServiceBusMessage(body))
    with client.get_queue_receiver(name) as receiver:
        receiver.dead_letter_message(take(receiver, wait_s=60)[0], **TEXTS)
    dead = client.get_queue_receiver(name, sub_queue=ServiceBusSubQueue.DEAD_LETTER, receive_mode=mode)
    take_whole(dead, body, mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_message_of_1_mb_arrives(client: ServiceBusClient, mode: ServiceBusReceiveMode) -> None:
    """Req: T-10, C24. As large as its queue takes."""
    passes_on(client, "one", bytes(MIB - 100), mode)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", MODES)
def test_a_message_of_99_mib_arrives(client: ServiceBusClient, mode: ServiceBusReceiveMode) -> None:
    """Req: T-10, C24."""
    passes_on(client, "large", bytes(range(256)) * (LARGEST // 256), mode)


@pytest.mark.long
@pytest.mark.timeout(400)  # the program may have to be built
def test_a_message_of_99_mib_arrives_at_the_go_client(
    premium: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: T-10, C24."""
    go = clients()["go"]
    if go.missing:
        pytest.skip(go.missing)
    monkeypatch.setenv("PEEKLOCK_CA", str(premium.authority()))
    key = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE"
    endpoint = f"Endpoint=sb://localhost:{premium.amqp_port};{key}"
    with Program(go, build(go), tmp_path, endpoint) as program:
        assert program.try_feature("huge") == Outcome("works", "")


def test_a_message_of_3_mb_is_scheduled_peeked_deferred_and_received(client: ServiceBusClient) -> None:
    """Req: T-10, C25. Each request is answered at once."""
    body = bytes(range(256)) * (3_000_000 // 256)
    with client.get_queue_sender("three") as sender, client.get_queue_receiver("three") as receiver:
        due = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)
        began = time.monotonic()
        [number] = sender.schedule_messages(ServiceBusMessage(body), due)
        [peeked] = receiver.peek_messages(sequence_number=number)
        assert b"".join(peeked.body) == body
        message = take_one(receiver)
        receiver.defer_message(message)
        [peeked] = receiver.peek_messages(sequence_number=message.sequence_number)
        assert b"".join(peeked.body) == body
        [found] = receiver.receive_deferred_messages([message.sequence_number])
        assert b"".join(found.body) == body
        receiver.complete_message(found)
        assert receiver.peek_messages(sequence_number=1) == []
        assert time.monotonic() - began < 30  # the client gives an answer up after 60 s
