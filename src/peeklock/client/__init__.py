"""A blocking AMQP client for peeklock and other brokers that speak Azure Service Bus.

administration     `Administration`: entities and rules, over HTTPS.
browsing           Messages read without being taken, by peeks.
claims             One entity's cursor: claims made, read and committed (peeklock only).
composing          Messages to send, made of JSON objects.
connection         `BlockingConnection`: the socket, tokens, and reconnecting.
connection_string  `ConnectionString`: a parsed connection string.
credentials        Web tokens of an identity service.
deferred           Deferred messages, received by their numbers.
durations          Spans of time as text.
entities           `Entity`: settings and figures, from XML and to XML.
errors             `ServiceBusError`, `OptionError`, and the conditions they name.
found              Messages in an answer, taken from its bytes.
given              A connection over a socket that is connected already.
http               HTTP requests to a namespace.
links              `Receiver` and its outcomes; what all links have in common.
load               `Load`: messages sent and received at a rate, and how long they took.
management         Requests to the `$management` and `$cbs` nodes.
overrides          An encoded message with some parts replaced.
requests           Requests to the administration: throttled ones are repeated, refusals are errors.
rules              `Rule`: filters and actions, from XML and to XML.
scheduling         Scheduled messages, cancelled or moved to another time.
sender             `Sender`: many messages under way at a time.
sessions           Sessions: their ids, states and locks.
token_file         A JSON web token in a file that another program replaces.
tokens             The tokens that a connection puts for its entities.
transactions       `Forwarder`: messages moved to another entity, each group in one transaction.
websocket          A socket whose bytes travel in frames of WebSocket.

Messages are bytes, as on the wire: `encode_message` makes them, `scan` takes them apart.

    connection = BlockingConnection(ConnectionString.parse(text))
    sender = connection.sender("orders")
    sender.send(encode_message(data=b"1 banana"))
    sender.flush()  # waits until the broker has stored it
    receiver = connection.receiver("orders", ReceiveMode.PEEK_LOCK)
    for delivery in receiver.receive(max_count=10, timeout_s=5):
        print(scan(delivery.payload).decode_body())  # [("data", b"1 banana")]
        receiver.settle(delivery, COMPLETE)
    receiver.flush()  # waits until the broker has completed them
    connection.close()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peeklock.amqp.message_writing import encode_message
    from peeklock.amqp.messaging import Header, Properties, Sections, scan
    from peeklock.client.administration import Administration
    from peeklock.client.connection import BlockingConnection
    from peeklock.client.connection_string import ConnectionString
    from peeklock.client.entities import Entity
    from peeklock.client.errors import OptionError, ServiceBusError
    from peeklock.client.links import (
        ABANDON,
        COMPLETE,
        DEFER,
        NEXT,
        RELEASE,
        Delivery,
        ReceiveMode,
        Receiver,
        SessionChoice,
        dead_letter,
    )
    from peeklock.client.management import Management, Response, Ticket
    from peeklock.client.requests import AdministrationError
    from peeklock.client.rules import Correlation, Rule, Sql, Typed
    from peeklock.client.sender import Sender
    from peeklock.client.transactions import FORWARD_MAX, Forwarder

__all__ = [
    "ABANDON",
    "COMPLETE",
    "DEFER",
    "FORWARD_MAX",
    "NEXT",
    "RELEASE",
    "Administration",
    "AdministrationError",
    "BlockingConnection",
    "ConnectionString",
    "Correlation",
    "Delivery",
    "Entity",
    "Forwarder",
    "Header",
    "Management",
    "OptionError",
    "Properties",
    "ReceiveMode",
    "Receiver",
    "Response",
    "Rule",
    "Sections",
    "Sender",
    "ServiceBusError",
    "SessionChoice",
    "Sql",
    "Ticket",
    "Typed",
    "dead_letter",
    "encode_message",
    "scan",
]

_NAMES = {
    "peeklock.amqp.message_writing": ("encode_message",),
    "peeklock.amqp.messaging": (
        "Header",
        "Properties",
        "Sections",
        "scan",
    ),
    "peeklock.client.administration": ("Administration",),
    "peeklock.client.connection": ("BlockingConnection",),
    "peeklock.client.connection_string": ("ConnectionString",),
    "peeklock.client.entities": ("Entity",),
    "peeklock.client.errors": (
        "OptionError",
        "ServiceBusError",
    ),
    "peeklock.client.links": (
        "ABANDON",
        "COMPLETE",
        "DEFER",
        "NEXT",
        "RELEASE",
        "Delivery",
        "ReceiveMode",
        "Receiver",
        "SessionChoice",
        "dead_letter",
    ),
    "peeklock.client.management": (
        "Management",
        "Response",
        "Ticket",
    ),
    "peeklock.client.requests": ("AdministrationError",),
    "peeklock.client.rules": (
        "Correlation",
        "Rule",
        "Sql",
        "Typed",
    ),
    "peeklock.client.sender": ("Sender",),
    "peeklock.client.transactions": (
        "FORWARD_MAX",
        "Forwarder",
    ),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: the help of a command needs none of the sockets."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
