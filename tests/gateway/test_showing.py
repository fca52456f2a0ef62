"""What an operator sees of a connection, from a client's own acts."""

from __future__ import annotations

import pytest

from peeklock.amqp.events import ConnectionOpened
from peeklock.amqp.types import Symbol
from peeklock.gateway.showing import TEXT_LENGTH_MAX, client_of
from peeklock.gateway.views import Client
from peeklock.testing.inprocess import InProcessBroker
from tests.gateway.harness import LiveHarness
from tests.gateway.live import message, send


def opened(**properties: object) -> Client:
    given = {Symbol(name.replace("_", "-")): value for name, value in properties.items()}
    return client_of(ConnectionOpened("container", None, 65536, 10, None, given))


@pytest.mark.parametrize(
    ("properties", "product", "version"),
    [
        ({"product": "azsdk-python-servicebus", "version": "7.14"}, "azsdk-python-servicebus", "7.14"),
        ({"product": Symbol("QpidJMS"), "version": 2}, "QpidJMS", ""),
        ({"user_agent": "az/1 (x)"}, "az/1 (x)", ""),
        ({}, "", ""),
        ({"product": "a\x1b[2Jb\n"}, "a?[2Jb?", ""),
        ({"product": "x" * (TEXT_LENGTH_MAX + 1)}, "x" * TEXT_LENGTH_MAX, ""),
    ],
)
def test_a_client_is_what_it_says_as_far_as_it_may_be_shown(
    properties: dict[str, object], product: str, version: str
) -> None:
    assert opened(**properties) == Client(product, version, "container")


def test_links_are_shown_from_the_clients_end() -> None:
    broker = InProcessBroker()
    broker.create_queue("orders")
    rig = LiveHarness(broker)
    send(rig, message("a"))
    rig.sender()
    rig.listen(credit=5)
    assert len(rig.deliveries()) == 1
    [connection] = broker.pump.connections.values()
    shown = connection.gateway.view()
    links = {link.role: link for link in shown.links if link.role in ("sender", "receiver")}
    assert (links["sender"].entity, links["sender"].deliveries, links["sender"].unsettled) == ("orders", 0, 0)
    receiver = links["receiver"]
    assert (receiver.entity, receiver.deliveries, receiver.unsettled, receiver.credit) == ("orders", 1, 1, 4)
    assert receiver.session_id is None
