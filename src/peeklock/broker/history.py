"""The messages that left lately: what was sent, and who took it.

Owns: the last entries, in memory, and what is known of messages that may become some. Must not know: why
something happens, who reads.

It is for whoever writes a test and asks what became of a message. Nothing of it is durable: a start begins
with none. One number bounds the entries, the messages that are followed since they arrived, and those that
are followed since a delivery. The one that was followed longest makes room for another, and its entry will
lack what was sent, and the deliveries until then.

A message that goes on elsewhere by itself (activated, forwarded) does not leave; what is known goes with it.
One that is dead-lettered leaves its queue with an entry, and the dead-letter queue with another.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from peeklock.broker.changes import QUEUES_PER_ENTITY
from peeklock.broker.commands import Address, LinkId, SubQueue
from peeklock.broker.message import NEVER_MS, Message, MessageView

if TYPE_CHECKING:
    from peeklock.amqp.messaging import Sections
    from peeklock.broker.message_queue import MessageQueue

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


_Place = tuple[int, int]

_Kept = tuple[
    int, str, int, MessageView | Message, "_Life | None", Outcome, "str | None", "str | None", int, int
]  # fmt: skip
"""What an `Entry` is made of once somebody reads it: number, name of the queue's entity, queue id, the
message as it left (its record, where nothing writes there any more), what was known of it, outcome, reason,
where it is now, when it left, connection. To make all entries at once took as long as all else that a purge
does with its messages."""


class _Life:
    """What is known of a message that is followed."""

    __slots__ = ("body_cut", "deliveries", "deliveries_total", "payload")

    def __init__(self, payload: bytes | None, *, body_cut: bool) -> None:
        self.payload = payload
        self.body_cut = body_cut
        self.deliveries: list[Delivery] = []
        self.deliveries_total = 0


class History:
    """A ring of the last messages that left, and the messages that are followed until they do."""

    def __init__(self, size: int) -> None:
        """Keep `size` entries, and follow so many messages."""
        assert size > 0
        self.size = size
        self.last_no = 0
        """Number of the newest entry."""
        self._ring: list[_Kept | None] = [None] * size  # by number modulo size
        # By queue id and sequence number, oldest first: since they arrived, and since a delivery. The first
        # entry of a dict stands behind all that were freed before it: to find it took 20 us with 100,000.
        self._lives: OrderedDict[_Place, _Life] = OrderedDict()
        self._late: OrderedDict[_Place, _Life] = OrderedDict()
        self._going: _Life | None = None  # what left its place last: it may be about to arrive elsewhere

    def newest(self, before: int | None, entries_max: int) -> list[Entry]:
        """Return entries, the newest first.

        Args:
            before: only those with a lower number; None = all.
            entries_max: how many at most.
        """
        last = self.last_no if before is None else min(self.last_no, before - 1)
        first = max(last - max(entries_max, 0), self.last_no - self.size, 0)
        found = (self._ring[no % self.size] for no in range(last, first, -1))
        return [_entry_of(kept) for kept in found if kept is not None]

    # What happens, told by `history_recorder`

    def arrived(self, queue: MessageQueue, message: Message, sections: Sections | None) -> None:
        """Follow a message; without sections it is the one that left its place just now."""
        if sections is not None:
            kept, body_cut = _kept(sections)
            life = _Life(kept, body_cut=body_cut)
        elif self._going is not None:
            life = _Life(self._going.payload, body_cut=self._going.body_cut)
        else:
            life = _Life(None, body_cut=False)
        self._follow(self._lives, (queue.queue_id, message.sequence_number), life)

    def delivered(self, queue: MessageQueue, message: Message, delivery: Delivery) -> None:
        """A message was handed out. One that is not followed, as after a start, is from here on."""
        key = queue.queue_id, message.sequence_number
        life = self._lives.get(key) or self._late.get(key)
        if life is None:
            life = _Life(None, body_cut=False)
            self._follow(self._late, key, life)
        life.deliveries.append(delivery)
        life.deliveries_total += 1
        if len(life.deliveries) > DELIVERIES_MAX:
            del life.deliveries[0]

    def given_back(self, queue: MessageQueue, message: Message, how: Ending, at_ms: int) -> None:
        """The last delivery of a message has ended, and it stays."""
        key = queue.queue_id, message.sequence_number
        life = self._lives.get(key) or self._late.get(key)
        if life is not None and life.deliveries:
            life.deliveries[-1].ended = how
            life.deliveries[-1].ended_at_ms = at_ms

    def went_on(self, queue: MessageQueue, message: Message) -> None:
        """A message leaves its place for another, or for the subscriptions of its topic."""
        key = queue.queue_id, message.sequence_number
        self._going = self._lives.pop(key, None) or self._late.pop(key, None)

    def add(
        self,
        queue: MessageQueue,
        view: MessageView,
        outcome: Outcome,
        at_ms: int,
        connection_id: int,
        *,
        reason: str | None = None,
        moved_to: str | None = None,
    ) -> None:
        """Add an entry for the message that left its place last; it arrives at `moved_to` next, if that is
        given."""
        self.last_no = no = self.last_no + 1
        name, going = queue.main.name, self._going
        self._ring[no % self.size] = (
            no, name, queue.queue_id, view, going, outcome, reason, moved_to, at_ms, connection_id,
        )  # fmt: skip

    def completed(
        self, queue: MessageQueue, message: Message, outcome: Outcome, at_ms: int, connection_id: int
    ) -> None:
        """Add an entry for a message that was taken: nearly all end so. As `went_on` and `add`, with less."""
        key = queue.queue_id, message.sequence_number
        self._going = life = self._lives.pop(key, None) or self._late.pop(key, None)
        self.last_no = no = self.last_no + 1
        self._ring[no % self.size] = (
            no, queue.main.name, queue.queue_id, message, life, outcome, None, None, at_ms, connection_id,
        )  # fmt: skip

    def _follow(self, lives: OrderedDict[_Place, _Life], key: _Place, life: _Life) -> None:
        lives[key] = life
        if len(lives) > self.size:
            lives.popitem(last=False)


def _entry_of(kept: _Kept) -> Entry:
    no, name, queue_id, view, life, outcome, reason, moved_to, at_ms, connection_id = kept
    life = life or _Life(None, body_cut=False)
    if isinstance(view, Message):
        view = view_of(view)
    return Entry(
        no,
        Address(name, SubQueue(queue_id % QUEUES_PER_ENTITY)),
        view,
        life.payload,
        life.body_cut,
        outcome,
        reason,
        moved_to,
        at_ms,
        connection_id,
        tuple(life.deliveries),
        life.deliveries_total,
    )


def view_of(message: Message) -> MessageView:
    """Show a message as it leaves."""
    ttl_ms = message.ttl_ms
    if message.expires_at_ms != NEVER_MS:
        ttl_ms = message.expires_at_ms - message.enqueued_at_ms
    return MessageView(message, None, 0, message.delivery_count, ttl_ms, message.state, message.overlay)


def _kept(sections: Sections) -> tuple[bytes, bool]:
    """Return an encoded message with the first bytes of its body, and whether any are left out."""
    payload, start, end = sections.payload, sections.body_offset, sections.body_end
    if end - start <= BODY_BYTES_MAX:
        return payload, False
    data_start = start + len(_DATA) + 4
    if not payload.startswith(_DATA, start):
        return payload[:start], True
    size_bytes = int.from_bytes(payload[data_start - 4 : data_start], "big")
    data = payload[data_start : data_start + min(size_bytes, BODY_BYTES_MAX)]
    return payload[:start] + _DATA + len(data).to_bytes(4, "big") + data, True
