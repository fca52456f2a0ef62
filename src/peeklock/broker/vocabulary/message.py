"""The record of one stored message, and the view of it that a reader gets.

The core keeps a record of about 200 bytes in memory for every stored message; bodies are elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final, Protocol

from peeklock.broker.vocabulary.addresses import NOT_NUMBERED, LockToken

NEVER_MS: Final = 0
"""`expires_at_ms` of a message without its own time-to-live: the entity's default applies."""
COPIES_FOLLOWING_MAX = 10_000
"""Copies that topics may make from one accepted message. Our choice (C15): a topic with k subscriptions that
forward to it would make k^4; 10,000 take about a second of a disk and 3 MB of memory."""


class MessageState(IntEnum):
    """Durable state; a lock is not one. The numbers are those of the annotation `x-opt-message-state`."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


class Disposition(Enum):
    """What a message is settled with. The values are those on the wire."""

    COMPLETED = "completed"
    ABANDONED = "abandoned"
    DEFERRED = "defered"
    SUSPENDED = "suspended"
    """Dead-lettered."""


ACTIVE: Final = MessageState.ACTIVE
"""A global: in Python 3.11 the lookup of an Enum member takes ten times as long."""

TRANSITIONS: Final[dict[MessageState | None, frozenset[MessageState | None]]] = {
    None: frozenset((MessageState.ACTIVE, MessageState.SCHEDULED)),
    MessageState.ACTIVE: frozenset((MessageState.ACTIVE, MessageState.DEFERRED, None)),
    MessageState.DEFERRED: frozenset((MessageState.DEFERRED, None)),
    MessageState.SCHEDULED: frozenset((MessageState.SCHEDULED, None)),
}
"""The life of one record: the states with which it may be written again; None: not stored.

A record that keeps its state has another delivery count, other properties or another time. Activation,
dead-lettering and forwarding end one record and begin another, ACTIVE; so a deferred message never becomes
active again."""
SHARED_MAX: Final = 4096
SHARED: Final = tuple(range(SHARED_MAX))
"""One object for each small number: the size of a stored message is one, or takes 32 bytes of its own."""
LOST_BODY: Final = b"a damaged body"
"""Replaces a payload that cannot be read; compared by identity."""

EMPTY_PAYLOAD: Final = b"\x00\x53\x75\xa0\x00"
"""A message with one empty data section; replaces the lost body of a dead letter."""


@dataclass(slots=True)
class Routing:
    """The properties that decide where an arriving message goes; read only for entities that need them."""

    message_id: bytes | None = None
    """Encoded: equal ids of different AMQP types differ."""
    session_id: str | None = None
    """properties.group-id; the empty string is a legal session id."""
    partition_key: str | None = None
    """Annotation x-opt-partition-key."""
    via_partition_key: str | None = None
    """Annotation x-opt-via-partition-key, for the entity that the message is sent via."""

    def key(self, *, requires_sessions: bool) -> str | None:
        """Return the session id, else the partition key: it keeps messages in one partition.

        The empty session id counts only where sessions are required.
        """
        if requires_sessions and self.session_id is not None:
            return self.session_id
        return self.session_id or self.partition_key


class Hold(Protocol):
    """Holder of a message: the lock of a receiver, or the claim of a cursor."""

    @property
    def token(self) -> LockToken | None:
        """The lock token; None for a claim."""


WRITERS: Final = {
    "queue_id": "engine",
    "body_row": "engine",
    "body_slot": "engine",
    "journal_no": "engine",
    "bare_offset": "broker",
    "delivery_count": "broker",
    "lock": "broker",
    "overlay": "broker",
    "scheduled_at_ms": "broker",
    "session_id": "broker",
    "state": "broker",
}
"""Fields of a record that may be written after a change names it, and their writers. The engine owns the
first four from the start. All other fields stay as they are; a test holds the code to this table."""


FIELDS: Final = (
    "bare_offset",
    "body_row",
    "body_slot",
    "copies_left",
    "dead_letter_source",
    "delivery_count",
    "enqueued_at_ms",
    "enqueued_sequence_number",
    "expires_at_ms",
    "hops",
    "journal_no",
    "lead_ms",
    "lock",
    "overlay",
    "position",
    "queue_id",
    "routing",
    "scheduled_at_ms",
    "sequence_number",
    "session_id",
    "size_bytes",
    "state",
    "ttl_ms",
    "was_scheduled",
)
"""Of a message. The compiled class has no `__slots__`."""


class Message:
    """One stored message: routing fields, numbers, state; the body is named by (body_row, body_slot).

    The record is shared by the core, by the changes and effects that name it, and by the engine (see
    `WRITERS`). A batch reads it when it closes; an effect has by value what the next command may change.
    `queue_id` and `position` never change once set: a move (dead-lettering, activation) makes a new record
    that shares the body, so an earlier change in the same batch still names the old one.
    """

    __slots__ = FIELDS

    def __init__(
        self,
        size_bytes: int,
        *,
        bare_offset: int = 0,
        ttl_ms: int | None = None,
        scheduled_at_ms: int | None = None,
        routing: Routing | None = None,
    ) -> None:
        """Describe an arriving message; the core sets the other fields.

        Args:
            size_bytes: encoded size as transferred.
            bare_offset: start of the bare message in the payload; 0 without header and annotations.
            ttl_ms: the sender's time-to-live, None if absent.
            scheduled_at_ms: the scheduled enqueue time, None if absent.
            routing: if the entity decides by it (`SenderOpened.reads_routing`).
        """
        self.size_bytes = size_bytes
        self.bare_offset = bare_offset
        self.ttl_ms = ttl_ms
        self.scheduled_at_ms = scheduled_at_ms
        self.routing = routing  # until the message is stored
        self.queue_id = 0  # set by the engine with the first record
        self.position = (
            0  # order of retrieval in its queue and key of the journal; never reused, no roll-over
        )
        self.sequence_number = NOT_NUMBERED
        self.enqueued_sequence_number = NOT_NUMBERED
        self.enqueued_at_ms = 0
        self.expires_at_ms = NEVER_MS
        self.lead_ms = 0  # how much later than its arrival it is stamped: the clock went back
        self.state = ACTIVE
        self.was_scheduled = False  # it was activated, here or in an entity before
        self.delivery_count = 0
        self.session_id: str | None = None  # in a queue that requires sessions
        self.hops = 0  # entities it was forwarded from
        self.dead_letter_source: str | None = None  # entity that forwarded it as a dead letter
        self.copies_left = COPIES_FOLLOWING_MAX  # how many topics may still make of it (`fan_out`)
        self.overlay: bytes | None = None  # see `content.overlay`
        self.lock: Hold | None = None
        self.body_row = 0  # set by the engine when it places the body
        self.body_slot = 0
        self.journal_no = 0  # of the batch with its last record; 0 = none yet

    def __reduce__(self) -> tuple[Callable[[dict[str, object]], Message], tuple[dict[str, object]]]:
        """Return how a pickle makes the message again: without the lock, which is never a fact."""
        fields: dict[str, object] = {name: getattr(self, name) for name in FIELDS}
        fields["lock"] = None
        return _message_of, (fields,)

    def moved(self) -> Message:
        """Return a record for another place: same body and numbers, no position yet."""
        copy = Message(self.size_bytes, bare_offset=self.bare_offset, ttl_ms=self.ttl_ms)
        copy.sequence_number = self.sequence_number
        copy.enqueued_sequence_number = self.enqueued_sequence_number
        copy.enqueued_at_ms = self.enqueued_at_ms
        copy.expires_at_ms = self.expires_at_ms
        copy.was_scheduled = self.was_scheduled
        copy.delivery_count = self.delivery_count
        copy.session_id = self.session_id
        copy.hops = self.hops
        copy.dead_letter_source = self.dead_letter_source
        copy.copies_left = self.copies_left
        copy.overlay = self.overlay
        copy.body_row = self.body_row
        copy.body_slot = self.body_slot
        return copy

    def copied(self) -> Message:
        """Return a record for a subscription, with the routing fields."""
        copy = self.moved()
        copy.routing = self.routing
        return copy


def _message_of(fields: dict[str, object]) -> Message:
    message = Message(0)
    for name, value in fields.items():
        setattr(message, name, value)
    return message


@dataclass(slots=True)
class MessageView:
    """A message as one reader sees it, at the time of the command."""

    message: Message
    lock_token: LockToken | None
    """16 bytes in .NET order; None if the message is only browsed."""
    locked_until_ms: int
    """UTC ms; 0 if not locked, or under the session's lock. Without a token the lock is another reader's."""
    delivery_count: int
    ttl_ms: int | None
    """Value of header.ttl (E-05); None = absent."""
    state: MessageState
    overlay: bytes | None
    """See `Message.overlay`."""
    cursor: str | None = field(default=None, kw_only=True)
    """Name of the cursor that holds it, in browsing."""
    of_session: bool = field(default=False, kw_only=True)
    """Browsing shows it under the lock of a session, which has no end (wire contract C28)."""
