"""Connections as JSON, for the operator's page `/connections`: rates are made of two views of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peeklock.api.instants import write_instant
from peeklock.api.schema import Schema, record
from peeklock.gateway.views import ConnectionView, LinkView

Counts = Mapping[tuple[int, int], int]
"""Deliveries of the links of one connection, by key."""

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_RATE: Schema = {"type": "number", "minimum": 0, "description": "Deliveries a second, of the last second."}

LINK: Schema = record(
    {
        "entity": _TEXT,
        "role": {"type": "string", "enum": ["sender", "receiver", "request", "reply", "coordinator"]},
        "credit": {**_COUNT, "description": "Deliveries that may come over the link now."},
        "unsettled": {**_COUNT, "description": "Deliveries without an outcome."},
        "deliveries": {**_COUNT, "description": "Since the link was opened."},
        "rate": _RATE,
        "sessionId": {**_TEXT, "description": "Of the message session that the receiver holds."},
    },
    ["entity", "role", "credit", "unsettled", "deliveries", "rate"],
    description="A link, from the client's end.",
)

CONNECTION: Schema = record(
    {
        "id": {**_COUNT, "description": "Unique until the broker restarts."},
        "namespace": _TEXT,
        "peer": {**_TEXT, "description": "Address and port of the client."},
        "tls": {"type": "boolean"},
        "identities": {"type": "array", "items": _TEXT, "description": "Names of keys and roles."},
        "client": record({"product": _TEXT, "version": _TEXT, "containerId": _TEXT}),
        "openedAt": {"type": "string", "format": "date-time"},
        "ageSeconds": {"type": "number", "minimum": 0},
        "rate": _RATE,
        "links": {"type": "array", "items": LINK},
    },
    description="An AMQP connection.",
)


@dataclass(frozen=True, slots=True)
class Where:
    """What the gateway does not know of a connection."""

    connection_id: int
    namespace: str
    peer: str
    tls: bool
    opened_at_ms: int
    """UTC."""


def counts_of(view: ConnectionView) -> dict[tuple[int, int], int]:
    """Return the deliveries of each link, to compare later."""
    return {link.key: link.deliveries for link in view.links}


def connection_json(
    where: Where, view: ConnectionView, before: Counts, elapsed_s: float, now_ms: int
) -> dict[str, Any]:
    """Return a connection as JSON.

    `before`: its counts `elapsed_s` seconds ago; a link that was not there then has carried all since.
    """
    links = [_link_json(link, before, elapsed_s) for link in view.links]
    client = view.client
    return {
        "id": where.connection_id,
        "namespace": where.namespace,
        "peer": where.peer,
        "tls": where.tls,
        "identities": view.identities,
        "client": {
            "product": client.product,
            "version": client.version,
            "containerId": client.container_id,
        },
        "openedAt": write_instant(where.opened_at_ms),
        "ageSeconds": max(0, now_ms - where.opened_at_ms) / 1000,
        "rate": round(sum(link["rate"] for link in links), 1),
        "links": links,
    }


def _link_json(link: LinkView, before: Counts, elapsed_s: float) -> dict[str, Any]:
    carried = link.deliveries - before.get(link.key, 0)
    if carried < 0:  # another link with this key
        carried = link.deliveries
    session = {} if link.session_id is None else {"sessionId": link.session_id}
    return {
        "entity": link.entity,
        "role": link.role,
        "credit": link.credit,
        "unsettled": link.unsettled,
        "deliveries": link.deliveries,
        "rate": round(carried / elapsed_s, 1),
        **session,
    }
