"""Transports, keys, and a broker that goes and comes back."""

from __future__ import annotations

import os
from typing import Any

from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from surroundings import Surroundings, feature, refused

from tests.interop.helpers import assert_empty, send, take_one


def _send_and_receive(client: Any, queue: str) -> None:
    send(client, queue, "hello")
    with client.get_queue_receiver(queue) as receiver:
        message = take_one(receiver)
        assert str(message) == "hello"
        receiver.complete_message(message)


@feature
def amqp_plain(ours: Surroundings) -> None:
    _send_and_receive(ours.plain_client(), ours.queue())


@feature
def amqp_tls(ours: Surroundings) -> None:
    queue = ours.queue()
    _send_and_receive(ours.tls_client(), queue)
    if ours.authority:
        stranger = ours.tls_client(connection_verify=None, retry_total=0)  # trusts what the system trusts
        with stranger.get_queue_sender(queue) as sender, refused(ServiceBusError):
            sender.opened()


@feature
def websocket(ours: Surroundings) -> None:
    _send_and_receive(ours.tls_client(transport_type=TransportType.AmqpOverWebsocket), ours.queue())


@feature
def wrong_key(ours: Surroundings) -> None:
    """The client makes ServiceBusConnectionError of it where it has a custom endpoint."""
    queue = ours.queue()
    client = ours.bare_client(ours.tls.replace(ours.key, "d3Jvbmc="))
    with client.get_queue_sender(queue) as sender, refused(ServiceBusAuthenticationError):
        sender.send_messages(ServiceBusMessage("x"))
    with ours.client.get_queue_receiver(queue) as receiver:
        assert_empty(receiver)


@feature
def missing_entity(ours: Surroundings) -> None:
    """The client asks with its token first, and takes whatever is refused there for a matter of
    authentication."""
    client, name = ours.bare_client(ours.tls), ours.name()
    expected = (MessagingEntityNotFoundError, ServiceBusAuthenticationError)
    for link in (client.get_queue_sender(name), client.get_queue_receiver(name)):
        with link, refused(*expected):
            link.opened()


@feature
def missing_right(ours: Surroundings) -> None:
    queue = ours.queue()
    listener = ours.tls_client(os.environ["PEEKLOCK_LISTEN_CONNECTION_STRING"], retry_total=0)
    send(ours.client, queue, "x")
    with listener.get_queue_receiver(queue) as receiver:
        receiver.complete_message(take_one(receiver))
    expected = (ServiceBusAuthorizationError, ServiceBusAuthenticationError)
    with listener.get_queue_sender(queue) as sender, refused(*expected):
        sender.send_messages(ServiceBusMessage("x"))


@feature
def reconnect(ours: Surroundings) -> None:
    queue = ours.queue()
    client = ours.tls_client()
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        for body in ("before", "after"):
            sender.send_messages(ServiceBusMessage(body))
            message = take_one(receiver)
            assert str(message) == body
            receiver.complete_message(message)
            if body == "before":
                ours.ask("restart")
