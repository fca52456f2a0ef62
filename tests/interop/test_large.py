"""Messages of many frames, on the tier that allows them."""

from __future__ import annotations

from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from peeklock.demo.broker import BrokerProcess


def test_a_message_of_99_mib_comes_back_whole(tmp_path: Path) -> None:
    """Req: T-10"""
    with BrokerProcess(tmp_path, ["--tier=premium"]) as broker:
        connection_string = broker.connection_string
        with ServiceBusAdministrationClient.from_connection_string(
            connection_string.replace(f":{broker.amqp_port};", f":{broker.http_port};"),
            connection_verify=False,
        ) as administration:
            administration.create_queue("large", max_message_size_in_kilobytes=100 * 1024)
        body = bytes(range(256)) * (99 * 4096)
        with ServiceBusClient.from_connection_string(connection_string) as client:
            with client.get_queue_sender("large") as sender:
                sender.send_messages(ServiceBusMessage(body))
            with client.get_queue_receiver("large") as receiver:
                (message,) = receiver.receive_messages(max_wait_time=60)
                assert b"".join(message.body) == body
                receiver.complete_message(message)
        assert broker.stop() == 0
