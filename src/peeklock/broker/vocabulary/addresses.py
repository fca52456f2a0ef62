"""Names of links, answers, messages, locks and queues. A node can send them to another."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, NewType

OWN_CONNECTION_ID: Final = 0
"""Connection id of the process's own commands; those of peers begin at 1."""

NO_LINK: Final = 0
"""Link number of a request without a link of the broker; those of links begin at 1."""


class LinkId(NamedTuple):
    """Name of a link to the broker; never reused."""

    connection_id: int
    number: int
    """Counted by the connection; not an AMQP handle, which is reused."""


class ReplyTo(NamedTuple):
    """Where an answer goes."""

    connection_id: int
    link_number: int
    """`LinkId.number`, or NO_LINK."""
    number: int
    """Of the request on its link: the delivery id; without a link the requester's own number."""


NOWHERE: Final = ReplyTo(OWN_CONNECTION_ID, NO_LINK, 0)
"""Placeholder until the caller sets where the answer goes, or for a command without an answer."""

SequenceNumber = NewType("SequenceNumber", int)
"""Names a message in its queue. Its position there is another number."""

NOT_NUMBERED: Final = SequenceNumber(0)
"""Placeholder until the broker numbers a message, or where there is no message."""

LockToken = NewType("LockToken", bytes)
"""Names the lock of a delivery: a GUID in .NET order. A delivery without a lock has one too, as its tag."""


class SubQueue(Enum):
    """One of the queues of an entity."""

    MAIN = 0
    DEAD_LETTER = 1
    TRANSFER_DEAD_LETTER = 2


@dataclass(frozen=True, slots=True)
class Address:
    """An entity and one of its queues. `path` is spelt as by the client and compares case-insensitively; that
    of a subscription is `topic/Subscriptions/name`."""

    path: str
    sub_queue: SubQueue = SubQueue.MAIN
