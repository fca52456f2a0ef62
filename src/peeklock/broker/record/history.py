"""The messages that left lately: what was sent, and who took it.

Owns: the last entries, in memory, and what is known of messages that may become some. Must not know: why
something happens, who reads. `history_recorder` writes all of it, as plain tuples: an `Entry` is made of them
once somebody reads it.

It is for whoever writes a test and asks what became of a message. Nothing of it is durable: a start begins
with none. One number bounds the entries, the messages that are followed since they arrived, and those that
are followed since a delivery. The one that was followed longest makes room for another, and its entry will
lack what was sent, and the deliveries until then.

A message that goes on elsewhere by itself (activated, forwarded) does not leave; what is known goes with it.
One that is dead-lettered leaves its queue with an entry, and the dead-letter queue with another.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from peeklock.broker.vocabulary.changes import QUEUES_PER_ENTITY
from peeklock.broker.vocabulary.commands import Address, LinkId, SubQueue
from peeklock.broker.vocabulary.message import NEVER_MS, Message, MessageView

if TYPE_CHECKING:
    from peeklock.amqp.messaging import Sections

BODY_BYTES_MAX: Final = 4096
"""What is kept of a body."""

DELIVERIES_MAX: Final = 16
"""The last deliveries of a message that are kept: one that is abandoned again and again has thousands."""

_DATA: Final = b"\x00\x53\x75\xb0"
"""How a data section of 256 bytes or more begins; its size follows in 4 bytes. Source: AMQP 1.0 part 3.2.6
and part 1.6.19."""


class Outcome(Enum):
    """How a message left its queue."""

    COMPLETED = "completed"
    RECEIVED_AND_DELETED = "received-and-deleted"
    COMMITTED = "committed"
    """By the cursor that held it."""
    DEAD_LETTERED = "dead-lettered"
    EXPIRED = "expired"
    PURGED = "purged"
    """Deleted with others, by request."""
    CANCELLED = "cancelled"
    """While it was scheduled."""
    UNMATCHED = "unmatched"
    """No rule of its topic chose it."""


class Ending(Enum):
    """How a delivery ended without the message having left."""

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
    """None = a request had it: for a deferred message, by number, or for a cursor."""
    link_name: str | None
    """As the peer calls the link."""
    ended: Ending | None = None
    """None = it is under way, or the message left with it."""
    ended_at_ms: int = 0


@dataclass(slots=True)
class Entry:
    """A message that left a queue. Instants are UTC ms."""

    no: int
    """Entries are numbered 1, 2, ... from the start of the broker on."""
    address: Address
    """Where it was."""
    view: MessageView
    """How it was when it left: its numbers and times, and in `overlay` what was changed of its properties."""
    payload: bytes | None
    """The encoded message as it was sent; None = not known any more."""
    body_cut: bool
    """Of the body, `payload` has the first `BODY_BYTES_MAX` bytes, or nothing when it is not one of data."""
    outcome: Outcome
    reason: str | None
    """Of a dead letter: its DeadLetterReason."""
    moved_to: str | None
    """Path of the dead-letter queue where it is now."""
    left_at_ms: int
    connection_id: int
    """Who asked for it; 0 = nobody, its time was up."""
    deliveries: tuple[Delivery, ...]
    """In their order, the last `DELIVERIES_MAX` of those that are known."""
    deliveries_total: int
    """How many are known."""


Place = tuple[int, int]
"""Of a message: queue id and sequence number. Its record may be another one before it goes on."""

Handed = tuple[int, int, int, "LinkId | None", "str | None", "Ending | None", int]
"""One delivery of a message: its number among all of them, from 1 on, then the fields of `Delivery`."""

Life = tuple["bytes | None", bool, *tuple[Handed, ...]]
"""What is known of a message that is followed: `payload` and `body_cut` of its `Entry`, then the last
`DELIVERIES_MAX` deliveries."""

Left = tuple[str, int, MessageView | Message, "Life | None", Outcome, "str | None", "str | None", int, int]
"""What an `Entry` is made of: name of the queue's entity, queue id, the message as it left (its record, where
nothing writes there any more), what was known of it, outcome, reason, where it is now, when it left,
connection. To make all entries at once took as long as all else that a purge does with its messages."""


class History:
    """A ring of the last messages that left, and the messages that are followed until they do."""

    def __init__(self, size: int) -> None:
        """Keep `size` entries, and follow so many messages."""
        assert size > 0
        self.size = size
        self.last_no = 0
        """Number of the newest entry."""
        self.left: deque[Left] = deque(maxlen=size)
        """What entries are made of, the oldest first."""
        # The first entry of a dict stands behind all that were freed before it: to find it took 20 us with
        # 100,000.
        self.lives: OrderedDict[Place, Life] = OrderedDict()
        """Messages that are followed since they arrived, the oldest first."""
        self.late: OrderedDict[Place, Life] = OrderedDict()
        """Those that are followed since a delivery, as after a start."""

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
    """Show a message as it leaves."""
    ttl_ms = message.ttl_ms
    if message.expires_at_ms != NEVER_MS:
        ttl_ms = message.expires_at_ms - message.enqueued_at_ms
    return MessageView(message, None, 0, message.delivery_count, ttl_ms, message.state, message.overlay)


def shortened(sections: Sections) -> bytes:
    """Return an encoded message with the first `BODY_BYTES_MAX` bytes of a body that has more."""
    payload, start = sections.payload, sections.body_offset
    data_start = start + len(_DATA) + 4
    if not payload.startswith(_DATA, start):
        return payload[:start]
    size_bytes = int.from_bytes(payload[data_start - 4 : data_start], "big")
    data = payload[data_start : data_start + min(size_bytes, BODY_BYTES_MAX)]
    return payload[:start] + _DATA + len(data).to_bytes(4, "big") + data
