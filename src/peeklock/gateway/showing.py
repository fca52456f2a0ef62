"""Makes what an operator sees of one connection. Nothing is kept for it: the links count by themselves.

Texts that a client sends are cut and freed of control characters here: they go to terminals and pages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from peeklock.amqp.connection import Connection
from peeklock.amqp.events import ConnectionOpened
from peeklock.gateway.address import shown
from peeklock.gateway.link_table import AnyLink
from peeklock.gateway.links.attach import LinkKind
from peeklock.gateway.links.receiver_endpoint import ReceiverEndpoint
from peeklock.gateway.links.sender_endpoint import SenderEndpoint
from peeklock.gateway.views import Client, LinkView

TEXT_LENGTH_MAX = 128
"""Characters kept of a text that a client sends. Our choice: container ids are GUIDs with a prefix."""

ENTITY_LENGTH_MAX = 400
"""Source: the longest path of a subscription, with its sub-queue."""

ROLES = {
    LinkKind.SEND: "sender",
    LinkKind.RECEIVE: "receiver",
    LinkKind.REQUEST: "request",
    LinkKind.REPLY: "reply",
    LinkKind.COORDINATE: "coordinator",
}
"""Of the client's end."""


def client_of(event: ConnectionOpened) -> Client:
    """Return what an `open` says of the client.

    Ten thousand connections of one client share the texts.
    """
    properties = event.properties
    product, version = _text(properties.get("product")), _text(properties.get("version"))
    if not product:
        product = _text(properties.get("user-agent"))
    return Client(sys.intern(product), sys.intern(version), _text(event.container_id))


def link_views(connection: Connection, links: Iterable[AnyLink]) -> list[LinkView]:
    """Return views of links, those of `$cbs` left out."""
    return [_link_view(connection, link) for link in links if link.node.path != "$cbs"]


def _link_view(connection: Connection, link: AnyLink) -> LinkView:
    credit, deliveries = connection.counts(link.channel, link.handle)
    unsettled = link.unsettled_count if isinstance(link, ReceiverEndpoint | SenderEndpoint) else 0
    holds_session = isinstance(link, ReceiverEndpoint) and link.session_name is not None
    return LinkView(
        _entity(link),
        ROLES[link.kind],
        credit,
        unsettled,
        deliveries,
        (link.channel, link.handle),
        _text(link.session_id) if isinstance(link, ReceiverEndpoint) and holds_session else None,
    )


def _entity(link: AnyLink) -> str:
    """Return the entity of a link, with its sub-queue."""
    return _text(shown(link.node.address) or link.node.path, ENTITY_LENGTH_MAX)


def _text(given: Any, length_max: int = TEXT_LENGTH_MAX) -> str:
    """Return a text of a client as it may be shown; any other value is left out."""
    if not isinstance(given, str):
        return ""
    return "".join(c if c.isprintable() else "?" for c in given[:length_max])
