"""A broker whose disk has damaged bodies, seen by the official client."""

from __future__ import annotations

from pathlib import Path

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import ServiceBusError

from peeklock.demo.broker import BrokerProcess
from tests.interop.test_rest import Http
from tests.server.test_lost_bodies import body, damage
from tests.server.test_process import create_queue, health


@pytest.mark.parametrize("peeks_first", [True, False])
def test_a_damaged_body_costs_its_own_message_alone(tmp_path: Path, peeks_first: bool) -> None:
    """Its credit goes to the next message. Req: R-03."""
    broker = BrokerProcess(tmp_path)
    broker.start()
    create_queue(broker, "q")
    client = ServiceBusClient.from_connection_string(broker.connection_string)
    with client, client.get_queue_sender("q") as sender:
        sender.send_messages([ServiceBusMessage(body(number)) for number in range(10, 16)])
    broker.stop()
    damage(broker.data, body(10))
    damage(broker.data, body(12))
    broker.start()
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        if peeks_first:
            with client.get_queue_receiver("q") as receiver:
                assert [each.sequence_number for each in receiver.peek_messages(10)] == [2, 4, 5, 6]
        mode = ServiceBusReceiveMode.PEEK_LOCK
        got = []
        with client.get_queue_receiver("q", receive_mode=mode) as receiver:
            for _ in range(4):
                [message] = receiver.receive_messages(1, max_wait_time=10)
                got.append((message.sequence_number, b"".join(message.body)))
                receiver.complete_message(message)
            assert receiver.receive_messages(1, max_wait_time=1) == []
        assert got == [(number - 9, body(number)) for number in (11, 13, 14, 15)]
        with client.get_queue_receiver("q", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            dead = receiver.receive_messages(2, max_wait_time=10)
            found = [(each.sequence_number, each.dead_letter_reason, b"".join(each.body)) for each in dead]
            assert found == [(1, "StoreDamaged", b""), (3, "StoreDamaged", b"")]
            for message in dead:
                receiver.complete_message(message)
    assert health(broker)["lost_bodies"] == 2
    broker.kill()


@pytest.mark.parametrize("prefetch", [0, 4])
def test_receive_and_delete_passes_over_a_damaged_body(tmp_path: Path, prefetch: int) -> None:
    """Its message is not deleted with the others: it is a dead letter. Deferred ones too. Req: L-01, R-03."""
    broker = BrokerProcess(tmp_path)
    broker.start()
    create_queue(broker, "q")
    client = ServiceBusClient.from_connection_string(broker.connection_string)
    with client, client.get_queue_sender("q") as sender:
        sender.send_messages([ServiceBusMessage(body(number)) for number in range(10, 18)])
        with client.get_queue_receiver("q") as receiver:
            for message in receiver.receive_messages(2, max_wait_time=10):
                receiver.defer_message(message)
    broker.stop()
    for number in (10, 13, 15):
        damage(broker.data, body(number))
    broker.start()
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_queue_receiver("q", receive_mode=mode, prefetch_count=prefetch) as receiver:
            got: list[tuple[int | None, bytes]] = []
            while len(got) < 4:
                found = receiver.receive_messages(3, max_wait_time=10)
                assert found
                got += [(message.sequence_number, b"".join(message.body)) for message in found]
            assert got == [(number - 9, body(number)) for number in (12, 14, 16, 17)]
            assert receiver.receive_messages(1, max_wait_time=1) == []
            with pytest.raises(ServiceBusError):
                receiver.receive_deferred_messages([1, 2])
            [message] = receiver.receive_deferred_messages(2)
            assert b"".join(message.body) == body(11)
            assert receiver.peek_messages(10) == []
        dead = client.get_queue_receiver(
            "q", sub_queue=ServiceBusSubQueue.DEAD_LETTER, receive_mode=mode, prefetch_count=prefetch
        )
        with dead:
            letters: list[ServiceBusReceivedMessage] = []
            while len(letters) < 3:
                letters += dead.receive_messages(3, max_wait_time=10)
            reasons = sorted((each.sequence_number, each.dead_letter_reason) for each in letters)
            assert reasons == [(1, "StoreDamaged"), (4, "StoreDamaged"), (6, "StoreDamaged")]
            assert [b"".join(each.body) for each in letters] == [b""] * 3
    assert health(broker)["lost_bodies"] == 3
    broker.kill()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/q/messages/head?timeout=5"),
        ("DELETE", "/q/messages/head?timeout=0"),
        ("POST", "/$api/v1/entities/q/locks"),
        ("GET", "/$api/v1/entities/q/messages"),
    ],
)
def test_over_http_the_next_message_is_received(tmp_path: Path, method: str, path: str) -> None:
    """A damaged message is never delivered or shown. Req: R-03, T-09."""
    broker = BrokerProcess(tmp_path)
    broker.start()
    create_queue(broker, "q")
    client = ServiceBusClient.from_connection_string(broker.connection_string)
    with client, client.get_queue_sender("q") as sender:
        sender.send_messages([ServiceBusMessage(body(number)) for number in (10, 11, 12)])
    broker.stop()
    for number in (10, 11):
        damage(broker.data, body(number))
    broker.start()
    web = Http(broker.http_port, None)
    content = b"{}" if "locks" in path else b""
    status, _, answer = web.ask(method, path, content, {"Content-Type": "application/json"})
    assert status in (200, 201)
    assert body(12) in answer
    assert health(broker)["lost_bodies"] == 2
    assert health(broker)["defects"] == 0
    web.close()
    broker.kill()
