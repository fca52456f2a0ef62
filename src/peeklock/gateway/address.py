"""Link addresses and audiences in all spellings of the SDKs, normalised. Source: wire contract 0.5."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote

from peeklock.broker.vocabulary.commands import Address, SubQueue

_MANAGEMENT = "/$management"
_SUB_QUEUES = (
    ("/$transfer/$deadletterqueue", SubQueue.TRANSFER_DEAD_LETTER),
    ("/$deadletterqueue", SubQueue.DEAD_LETTER),
)
_SUB_QUEUE_TEXTS = {SubQueue.MAIN: "", **{sub_queue: suffix for suffix, sub_queue in _SUB_QUEUES}}


class NodeKind(Enum):
    """What an address leads to."""

    ENTITY = "entity"
    MANAGEMENT = "management"
    CBS = "cbs"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class Node:
    """An address, parsed."""

    kind: NodeKind
    address: Address
    """The entity as the client spells it, and its sub-queue; an empty path for `$cbs`."""
    path: str
    """The whole path in lower case without outer slashes: rights are checked against it."""


COORDINATOR = Node(NodeKind.COORDINATOR, Address("$coordinator"), "$coordinator")
"""Has no address: a link's target is a coordinator. The name is for texts."""


def parse_node(text: str) -> Node:
    """Parse an address in any SDK's spelling: absolute URI, leading slash, percent-encoded, any case."""
    _, separator, rest = text.partition("://")
    if separator:
        text = rest.partition("/")[2]
    path = unquote(text.strip("/"))
    lower = path.lower()
    if lower == "$cbs":
        return Node(NodeKind.CBS, Address(""), lower)
    kind = NodeKind.ENTITY
    entity = path
    if lower.endswith(_MANAGEMENT):
        kind = NodeKind.MANAGEMENT
        entity = path[: -len(_MANAGEMENT)]
    sub_queue = SubQueue.MAIN
    for suffix, candidate in _SUB_QUEUES:
        if entity.lower().endswith(suffix):
            sub_queue = candidate
            entity = entity[: -len(suffix)]
            break
    return Node(kind, Address(entity, sub_queue), lower)


def shown(address: Address) -> str:
    """Return an address as text for a client."""
    return address.path + _SUB_QUEUE_TEXTS[address.sub_queue]
