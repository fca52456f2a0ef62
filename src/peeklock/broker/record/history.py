"""The history: messages that left recently, as they were sent, and who received them. For tests of
applications.

`history_recorder` writes it as plain tuples; an `Entry` is made when it is read. It is in memory only: a
start begins empty. One number bounds the entries, the messages followed since they arrived, and those
followed since a delivery. A message that is dropped from these will have an entry without what was sent and
without its earlier deliveries.

A message that is activated or forwarded does not leave; what is known goes with it. A dead-lettered message
leaves its queue with one entry, and the dead-letter queue with another.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from peeklock.broker.vocabulary.changes import QUEUES_PER_ENTITY
from peeklock.broker.vocabulary.commands import Address, LinkId, SequenceNumber, SubQueue
from peeklock.broker.vocabulary.message import NEVER_MS, Message, MessageView

if TYPE_CHECKING:
    from peeklock.amqp.messaging import Sections

BODY_BYTES_MAX: Final = 4096
"""Bytes of a body that are kept."""

DELIVERIES_MAX: Final = 16
"""Deliveries of a message that are kept, the last ones: abandoned again and again, it has thousands."""

_DATA: Final = b"\x00\x53\x75\xb0"
"""Head of a data section of 256 bytes or more; its size follows in 4 bytes. Source: AMQP 3.2.6, 1.6.19."""


class Outcome(Enum):
    """How a message left its queue."""

    COMPLETED = "completed"
    RECEIVED_AND_DELETED = "received-and-deleted"
    COMMITTED = "committed"
    """By the cursor that held it."""
    DEAD_LETTERED = "dead-lettered"
    EXPIRED = "expired"
    PURGED = "purged"
    """Deleted by a request for many messages."""
    CANCELLED = "cancelled"
    """While it was scheduled."""
    UNMATCHED = "unmatched"
    """No rule of the topic matched."""


class Ending(Enum):
    """How a delivery ended if the message stayed."""

    ABANDONED = "abandoned"
    RELEASED = "released"
    LOCK_LAPSED = "lock-lapsed"
    DEFERRED = "deferred"


@dataclass(slots=True)
class Delivery:
    """One delivery of a message."""

    at_ms: int
    connection_id: int
    link: LinkId | None
    """None = a request received it: a deferred message, by number, or for a cursor."""
    link_name: str | None
    """On the wire."""
    ended: Ending | None = None
    """None = not yet, or the message left with it."""
    ended_at_ms: int = 0


@dataclass(slots=True)
class Entry:
    """A message that left a queue. Times are UTC ms."""

    no: int
    """1, 2, ... from the start of the broker."""
    address: Address
    view: MessageView
    """The message when it left; `overlay` has its changed properties."""
    payload: bytes | None
    """The encoded message as it was sent; None = not known."""
    body_cut: bool
    """`payload` has the first `BODY_BYTES_MAX` bytes of the body, or none if it is not data."""
    outcome: Outcome
    reason: str | None
    """Of a dead letter: its DeadLetterReason."""
    moved_to: str | None
    """Path of the dead-letter queue that it moved to."""
    left_at_ms: int
    connection_id: int
    """Of the request; 0 = it expired."""
    deliveries: tuple[Delivery, ...]
    """In order, the last `DELIVERIES_MAX` of those known."""
    deliveries_total: int
    """Number of those known."""


Place = tuple[int, SequenceNumber]
"""Queue id and sequence number; a message may get another record before it leaves."""

Handed = tuple[int, int, int, "LinkId | None", "str | None", "Ending | None", int]
"""One delivery: its number, from 1 on, and the fields of `Delivery`."""

Life = tuple["bytes | None", bool, *tuple[Handed, ...]]
"""A message that is followed: `payload`, `body_cut`, and its last `DELIVERIES_MAX` deliveries."""

Left = tuple[str, int, MessageView | Message, "Life | None", Outcome, "str | None", "str | None", int, int]
"""An `Entry` to be: name of the entity, queue id, the message as it left (its record, if that does not change
any more), its life, outcome, reason, where it moved to, when it left, connection. To make entries at once
would double the time of a purge."""


class History:
    """The last messages that left, and the messages that are followed until they do."""

    def __init__(self, size: int) -> None:
        """Keep `size` entries, and follow as many messages."""
        assert size > 0
        self.size = size
        self.last_no = 0
        """Number of the newest entry."""
        self.left: deque[Left] = deque(maxlen=size)
        """Entries to be, the oldest first."""
        # Ordered dicts: the first entry of a dict is behind all freed ones, 20 us with 100,000.
        self.lives: OrderedDict[Place, Life] = OrderedDict()
        """Messages followed since they arrived, the oldest first."""
        self.late: OrderedDict[Place, Life] = OrderedDict()
        """Messages followed since a delivery, as after a start."""

    def newest(self, before: int | None, entries_max: int) -> list[Entry]:
        """Return entries, the newest first.

        Args:
            before: only those with a lower number; None = all.
            entries_max: how many at most.
        """
        last = self.last_no if before is None else min(self.last_no, before - 1)
        first = max(last - max(entries_max, 0), self.last_no - self.size, 0)
        next_no = self.last_no + 1
        return [_entry_of(no, self.left[no - next_no]) for no in range(last, first, -1)]


def _entry_of(no: int, left: Left) -> Entry:
    name, queue_id, view, life, outcome, reason, moved_to, at_ms, connection_id = left
    payload, body_cut, *handed = life or (None, False)
    return Entry(
        no,
        Address(name, SubQueue(queue_id % QUEUES_PER_ENTITY)),
        view_of(view) if isinstance(view, Message) else view,
        payload,
        body_cut,
        outcome,
        reason,
        moved_to,
        at_ms,
        connection_id,
        tuple(Delivery(at, by, link, name, how, until) for _, at, by, link, name, how, until in handed),
        handed[-1][0] if handed else 0,
    )


def view_of(message: Message) -> MessageView:
    """Return the view of a message that leaves."""
    ttl_ms = message.ttl_ms
    if message.expires_at_ms != NEVER_MS:
        ttl_ms = message.expires_at_ms - message.enqueued_at_ms
    return MessageView(message, None, 0, message.delivery_count, ttl_ms, message.state, message.overlay)


def shortened(sections: Sections) -> bytes:
    """Return an encoded message with at most `BODY_BYTES_MAX` bytes of its body."""
    payload, start = sections.payload, sections.body_offset
    data_start = start + len(_DATA) + 4
    if not payload.startswith(_DATA, start):
        return payload[:start]
    size_bytes = int.from_bytes(payload[data_start - 4 : data_start], "big")
    data = payload[data_start : data_start + min(size_bytes, BODY_BYTES_MAX)]
    return payload[:start] + _DATA + len(data).to_bytes(4, "big") + data
