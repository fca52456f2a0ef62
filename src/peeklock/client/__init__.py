"""A blocking AMQP client for peeklock and other brokers that speak Azure Service Bus.

browsing           Messages read without being taken, by peeks.
claims             One entity's cursor: claims made, read and committed (peeklock only).
connection         `BlockingConnection`: the socket, tokens, and reconnecting.
connection_string  `ConnectionString`: a parsed connection string.
errors             `ServiceBusError`, `OptionError`, and the conditions they name.
found              Messages in an answer, taken from its bytes.
links              `Receiver` and its outcomes; what all links have in common.
management         Requests to the `$management` and `$cbs` nodes.
overrides          An encoded message with some parts replaced.
sender             `Sender`: many messages under way at a time.
token_file         A JSON web token in a file that another program replaces.

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

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Header, Properties, Sections, scan
from peeklock.client.connection import BlockingConnection
from peeklock.client.connection_string import ConnectionString
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
)
from peeklock.client.management import Management, Response, Ticket
from peeklock.client.sender import Sender

__all__ = [
    "ABANDON",
    "COMPLETE",
    "DEFER",
    "NEXT",
    "RELEASE",
    "BlockingConnection",
    "ConnectionString",
    "Delivery",
    "Header",
    "Management",
    "OptionError",
    "Properties",
    "ReceiveMode",
    "Receiver",
    "Response",
    "Sections",
    "Sender",
    "ServiceBusError",
    "SessionChoice",
    "Ticket",
    "encode_message",
    "scan",
]
