"""The record of one stored message, and what of it is shown to a receiver.

Owns: the `Message` record that the core keeps in memory for every stored message, about 200 bytes each;
bodies are elsewhere. Must not know: AMQP sections beyond opaque bytes, body rows beyond two numbers, sockets,
clocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Protocol

NEVER_MS = 0
"""`expires_at_ms` of a message without a time-to-live of its own; the entity's default decides for it."""


COPIES_FOLLOWING_MAX = 10_000
"""Copies by topics that follow from one accepted message. Our choice (C15): a topic with k subscriptions that
forward to it would make k^4 of one send; 10,000 take about a second of a disk and 3 MB of memory."""


class MessageState(IntEnum):
    """Durable state of a message; a lock is not a state, since it is never written.

    The numbers are those of the wire annotation `x-opt-message-state`.
    """

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


ACTIVE: Final = MessageState.ACTIVE
"""By its own name: in Python 3.11, to look a member of an Enum up takes ten times as long as a global."""

TRANSITIONS: Final[dict[MessageState | None, frozenset[MessageState | None]]] = {
    None: frozenset((MessageState.ACTIVE, MessageState.SCHEDULED)),
    MessageState.ACTIVE: frozenset((MessageState.ACTIVE, MessageState.DEFERRED, None)),
    MessageState.DEFERRED: frozenset((MessageState.DEFERRED, None)),
    MessageState.SCHEDULED: frozenset((MessageState.SCHEDULED, None)),
}
"""The life of one record: what its state may become when it is written again; None: it is not stored.

A record that keeps its state has another delivery count, other properties or another time. Activation,
dead-lettering and forwarding end one record and begin another, ACTIVE; so nothing makes a deferred message
active again."""


SHARED_MAX: Final = 4096
SHARED: Final = tuple(range(SHARED_MAX))
"""The numbers below `SHARED_MAX`, as one object each: the size of a stored message is one of these, else each
message would have 32 bytes for its own. A larger one is worth no table of its own: its body takes more."""


LOST_BODY: Final = b"a damaged body"
"""Stands for a payload that cannot be read any more; compared by identity."""

EMPTY_PAYLOAD: Final = b"\x00\x53\x75\xa0\x00"
"""A message of one empty data section, handed out where the body of a dead letter is lost."""


@dataclass(slots=True)
class Routing:
    """What of an arriving message decides where it goes. Read only where an entity needs it, not kept."""

    message_id: bytes | None = None
    """Encoded: equal ids of different AMQP types differ."""
    session_id: str | None = None
    """properties.group-id; the empty text is a legal session id."""
    partition_key: str | None = None
    """Annotation x-opt-partition-key."""
    via_partition_key: str | None = None
    """Annotation x-opt-via-partition-key: of the entity that the message is sent via."""

    def key(self, *, requires_sessions: bool) -> str | None:
        """Return what keeps messages together in one partition: the session id, else the partition key.

        The empty session id counts only where sessions are required.
        """
        if requires_sessions and self.session_id is not None:
            return self.session_id
        return self.session_id or self.partition_key


class Hold(Protocol):
    """What holds a message: the lock of a receiver, or the claim of a cursor."""

    @property
    def token(self) -> bytes | None:
        """The lock token; None for a claim, whose messages cannot be settled one by one."""


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
"""The fields of a record that may be written once a change names it, and who writes each. The first four are
the engine's from the start. A record says nothing else for good: a test holds all code to this table."""


class Message:
    """One stored message: routing fields, numbers, state; the body is named by (body_row, body_slot).

    The record is shared: the core, the changes and effects that name it, the engine and its ledger of space
    have the same object (see `WRITERS`). A batch reads it when it closes, an effect has by value what the
    next command may change. `queue_id` and `position` never change once given: a move (dead-lettering,
    activation) makes a new record that shares the body, so that a change recorded earlier in the same batch
    still names what it meant.
    """

    __slots__ = (
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

    def __init__(
        self,
        size_bytes: int,
        *,
        bare_offset: int = 0,
        ttl_ms: int | None = None,
        scheduled_at_ms: int | None = None,
        routing: Routing | None = None,
    ) -> None:
        """Describe an arriving message: the gateway fills in what it decoded, the core gives the rest.

        Args:
            size_bytes: encoded size as transferred.
            bare_offset: where the bare message starts in the payload; 0 when it has neither header nor
            annotations.
            ttl_ms: the sender's own time-to-live, None when absent.
            scheduled_at_ms: the scheduled enqueue time, None when absent.
            routing: only for entities that decide by it (`SenderOpened.reads_routing`).
        """
        self.size_bytes = size_bytes
        self.bare_offset = bare_offset
        self.ttl_ms = ttl_ms
        self.scheduled_at_ms = scheduled_at_ms
        self.routing = routing  # until it is stored where it belongs
        self.queue_id = 0  # given by the engine with the first record
        self.position = (
            0  # order of retrieval in its queue; never reused, never rolls over; key of the journal
        )
        self.sequence_number = 0
        self.enqueued_sequence_number = 0
        self.enqueued_at_ms = 0
        self.expires_at_ms = NEVER_MS
        self.lead_ms = 0  # its enqueued time is so much later than its arrival: the clock went back
        self.state = ACTIVE
        self.was_scheduled = False  # it was activated: here, or in an entity that it was moved from
        self.delivery_count = 0
        self.session_id: str | None = None  # only in a queue that requires sessions
        self.hops = 0  # entities it was forwarded from
        self.dead_letter_source: str | None = None  # entity it was forwarded from as a dead letter
        self.copies_left = COPIES_FOLLOWING_MAX  # that may still follow from it (`fan_out`)
        self.overlay: bytes | None = None  # encoded AMQP map of changed application properties
        self.lock: Hold | None = None
        self.body_row = 0  # given by the engine when the body is placed
        self.body_slot = 0
        self.journal_no = 0  # number of the batch that holds this message's last record; 0 = not yet recorded

    def __getstate__(self) -> tuple[None, dict[str, object]]:
        """Return the fields for a pickle. The lock is not among them: it is never a fact."""
        fields: dict[str, object] = {name: getattr(self, name) for name in self.__slots__}
        fields["lock"] = None
        return None, fields

    def moved(self) -> Message:
        """Make the record of this message for another place: same body and numbers, no position yet."""
        copy = Message.__new__(Message)  # each field once: a topic makes thousands of copies
        copy.size_bytes = self.size_bytes
        copy.bare_offset = self.bare_offset
        copy.ttl_ms = self.ttl_ms
        copy.scheduled_at_ms = None
        copy.routing = None
        copy.queue_id = 0
        copy.position = 0
        copy.sequence_number = self.sequence_number
        copy.enqueued_sequence_number = self.enqueued_sequence_number
        copy.enqueued_at_ms = self.enqueued_at_ms
        copy.expires_at_ms = self.expires_at_ms
        copy.lead_ms = 0
        copy.state = ACTIVE
        copy.was_scheduled = self.was_scheduled
        copy.delivery_count = self.delivery_count
        copy.session_id = self.session_id
        copy.hops = self.hops
        copy.dead_letter_source = self.dead_letter_source
        copy.copies_left = self.copies_left
        copy.overlay = self.overlay
        copy.lock = None
        copy.body_row = self.body_row
        copy.body_slot = self.body_slot
        copy.journal_no = 0
        return copy

    def copied(self) -> Message:
        """Make the record of a copy that arrives at a subscription; it knows where it may go."""
        copy = self.moved()
        copy.routing = self.routing
        return copy


@dataclass(slots=True)
class MessageView:
    """A message as one reader is shown it, fixed at the moment of the command that asked for it."""

    message: Message
    lock_token: bytes | None
    """16 bytes in .NET order, or None when the message is only looked at."""
    locked_until_ms: int
    """UTC ms; 0 when not locked, or when the lock is the session's. Without a token the lock is another's."""
    delivery_count: int
    ttl_ms: int | None
    """What header.ttl shall say (E-05), None = absent."""
    state: MessageState
    overlay: bytes | None
    """As `Message.overlay`."""
    cursor: str | None = field(default=None, kw_only=True)
    """Name of the cursor that holds it, for who looks at it."""
    of_session: bool = field(default=False, kw_only=True)
    """Who looks at it is shown the lock of a session, which has no end of its own (wire contract C28)."""
