"""The same over TLS, as a client of the real service connects: no emulator flag, the certificate checked."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue, TransportType
from azure.servicebus.exceptions import ServiceBusError

from peeklock.demo.broker import BrokerProcess
from tests.interop.clients import Api, Background, Links
from tests.interop.helpers import bodies, take, take_one


def _connection_string(broker: BrokerProcess) -> str:
    return broker.connection_string.replace("UseDevelopmentEmulator=true;", "").replace(
        f":{broker.amqp_port}", ""
    )


@pytest.fixture
def tls_client(
    api: Api, broker: BrokerProcess, tls_pair: tuple[Path, Path], background: Background
) -> Iterator[Callable[..., Links]]:
    """Make clients that connect by TLS to one of the broker's ports."""
    made: list[Any] = []

    def make(port: int, certificate: Path = tls_pair[0]) -> Links:
        client = api.client(
            _connection_string(broker),
            custom_endpoint_address=f"sb://localhost:{port}",
            connection_verify=str(certificate),
            transport_type=TransportType.Amqp,
            retry_total=0,
        )
        made.append(client)
        return Links(client, background)

    yield make
    background.join()
    for client in made:
        client.close()


@pytest.mark.parametrize("port", ["amqp_port", "http_port"])
def test_everything_works_over_tls_on_any_port(
    tls_client: Callable[..., Links], broker: BrokerProcess, queue: str, port: str
) -> None:
    """Req: T-09, T-11"""
    client = tls_client(getattr(broker, port))
    dead = client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver, dead:
        large = bytes(n % 253 for n in range(250 * 1024))
        sender.send_messages(ServiceBusMessage(large))
        message = take_one(receiver)
        assert b"".join(message.body) == large
        receiver.complete_message(message)
        sender.send_messages([ServiceBusMessage(str(n)) for n in range(4)])
        abandoned, deferred, dead_lettered, renewed = take(receiver, 4)
        receiver.abandon_message(abandoned)
        receiver.defer_message(deferred)
        receiver.dead_letter_message(dead_lettered, reason="why")
        receiver.renew_message_lock(renewed)
        receiver.complete_message(renewed)
        assert bodies(receiver.receive_deferred_messages(deferred.sequence_number)) == ["1"]
        assert take_one(receiver).delivery_count == 1
        assert take_one(dead).dead_letter_reason == "why"
        due = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
        number = sender.schedule_messages(ServiceBusMessage("later"), due)
        sender.cancel_scheduled_messages(number)


def test_a_client_that_does_not_trust_the_certificate_does_not_connect(
    tls_client: Callable[..., Links], broker: BrokerProcess, queue: str, tmp_path: Path
) -> None:
    """Req: R-04"""
    from peeklock.server.tls.certificates import make_pair

    other = tmp_path / "other.pem"
    other.write_bytes(make_pair(["localhost"], dt.datetime.now(dt.UTC))[0])
    refused = pytest.raises(ServiceBusError, match=r"(?i)certificate")
    with tls_client(broker.amqp_port, other).get_queue_sender(queue) as sender, refused:
        sender.opened()
