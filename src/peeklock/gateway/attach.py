"""What a client's attach asks for, decided from its termini alone.

Owns: the choice of link kind, and the refusals that need no look at the entity. Must not know: links once
they are open. Source: wire contract 2.1, 2.4, 2.6.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from peeklock.amqp.events import LinkAttached
from peeklock.amqp.performatives import Coordinator, Source
from peeklock.amqp.types import Role
from peeklock.broker.commands import ReceiveMode, SubQueue
from peeklock.broker.errors import InvalidOperation, NotSupported
from peeklock.gateway.address import Node, NodeKind, parse_node, shown
from peeklock.gateway.errors import AddressInvalid

SESSION_FILTER = "com.microsoft:session-filter"
TRANSFER_DESTINATION = "com.microsoft:transfer-destination-address"

NAME_LENGTH_MAX = 512
"""Characters of an address that a refusal quotes. Our choice: host, path (260) and suffixes fit."""

_SETTLED = 1
"""`snd-settle-mode` settled: receive and delete (wire contract 2.4)."""


class LinkKind(Enum):
    """What a link does, seen from the client."""

    SEND = "send"
    RECEIVE = "receive"
    REQUEST = "request"
    REPLY = "reply"


@dataclass(frozen=True, slots=True)
class Wish:
    """What an attach asks for."""

    kind: LinkKind
    node: Node
    mode: ReceiveMode = ReceiveMode.PEEK_LOCK


def read_attach(event: LinkAttached) -> Wish:
    """Decide what a new link shall be.

    Raises:
        AddressInvalid: it names no node.
        NotSupported: transactions, or sending via another entity.
        InvalidOperation: sending to a sub-queue, or a session receiver where there are no sessions.
    """
    if isinstance(event.target, Coordinator):
        raise NotSupported("Transactions are not supported.")
    sends = event.role is Role.SENDER
    address = _address(event)
    if not isinstance(address, str) or not address:
        raise AddressInvalid(f"The link '{event.name[:64]}' names no address.")
    node = parse_node(address)
    if node.kind is not NodeKind.CBS and not node.address.path:
        raise AddressInvalid(f"The address '{address[:64]}' names no entity.")
    if node.kind is not NodeKind.ENTITY:
        return Wish(LinkKind.REQUEST if sends else LinkKind.REPLY, node)
    if sends:
        if TRANSFER_DESTINATION in event.properties:
            raise NotSupported("Sending via another entity is not supported.")
        if node.address.sub_queue is not SubQueue.MAIN:
            raise InvalidOperation(f"It is not possible to send to the sub-queue '{shown(node.address)}'.")
        return Wish(LinkKind.SEND, node)
    if isinstance(event.source, Source) and event.source.filter and SESSION_FILTER in event.source.filter:
        raise InvalidOperation(
            f"It is not possible to create a session receiver for '{shown(node.address)}': "
            "it is an entity that does not require sessions."
        )
    settled = event.snd_settle_mode == _SETTLED
    return Wish(LinkKind.RECEIVE, node, ReceiveMode.RECEIVE_AND_DELETE if settled else ReceiveMode.PEEK_LOCK)


def asked_for(event: LinkAttached) -> str:
    """Name the entity of an attach for the text of a refusal, as far as there is one."""
    address = _address(event)
    return shown(parse_node(address[:NAME_LENGTH_MAX]).address) if isinstance(address, str) else ""


def _address(event: LinkAttached) -> object:
    terminus = event.target if event.role is Role.SENDER else event.source
    return None if terminus is None or isinstance(terminus, Coordinator) else terminus.address
