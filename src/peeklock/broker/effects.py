"""What to do once the facts are durable: plain values, imperatives or answers.

Owns: the vocabulary. Effects leave in order, never before the batch that caused them is durable (see
`engine`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from peeklock.broker.commands import Link, ReplyTo
from peeklock.broker.descriptions import QueueDescription
from peeklock.broker.errors import ServiceBusError
from peeklock.broker.message import MessageView


@dataclass(slots=True)
class SenderOpened:
    link: Link
    queue_id: int
    message_size_bytes_max: int
    requires_duplicate_detection: bool
    """The gateway must decode the message id of each message sent here."""


@dataclass(slots=True)
class ReceiverOpened:
    link: Link
    queue_id: int
    message_size_bytes_max: int


@dataclass(slots=True)
class LinkRefused:
    link: Link
    error: ServiceBusError


@dataclass(slots=True)
class DetachLink:
    """Detach an open link (entity deleted or disabled, ...); the core has forgotten it."""

    link: Link
    error: ServiceBusError


@dataclass(slots=True)
class Accepted:
    reply_to: ReplyTo


@dataclass(slots=True)
class Rejected:
    reply_to: ReplyTo
    error: ServiceBusError


@dataclass(slots=True)
class Deliver(MessageView):
    """Transfer a message over a receiver link; `lock_token` is the delivery tag in either mode, fresh each
    time."""

    link: Link


@dataclass(slots=True)
class Drained:
    """All that was available within the credit has been delivered; the rest of the credit is used up."""

    link: Link


@dataclass(slots=True)
class Settled:
    reply_to: ReplyTo


@dataclass(slots=True)
class SettlementFailed:
    reply_to: ReplyTo
    error: ServiceBusError


@dataclass(slots=True)
class LocksRenewed:
    reply_to: ReplyTo
    locked_until_ms: list[int]


@dataclass(slots=True)
class MessagesFound:
    """Answer to Peek and ReceiveDeferred; may be empty."""

    reply_to: ReplyTo
    messages: list[MessageView]


@dataclass(slots=True)
class MessagesScheduled:
    reply_to: ReplyTo
    sequence_numbers: list[int]


@dataclass(slots=True)
class MessagesDeleted:
    reply_to: ReplyTo
    count: int


@dataclass(slots=True)
class Done:
    reply_to: ReplyTo


@dataclass(slots=True)
class Failed:
    reply_to: ReplyTo
    error: ServiceBusError


@dataclass(slots=True)
class QueueView:
    """A queue's description with its runtime figures, as the administration shows it."""

    entity_id: int
    description: QueueDescription
    created_at_ms: int
    updated_at_ms: int
    accessed_at_ms: int
    """0 = never since start."""
    size_bytes: int
    active_count: int
    """Active, locked and deferred messages."""
    scheduled_count: int
    dead_letter_count: int
    transfer_dead_letter_count: int


@dataclass(slots=True)
class EntityFound:
    reply_to: ReplyTo
    entity: QueueView


@dataclass(slots=True)
class EntitiesFound:
    reply_to: ReplyTo
    entities: list[QueueView]
    more: bool


Effect: TypeAlias = (
    SenderOpened | ReceiverOpened | LinkRefused | DetachLink | Accepted | Rejected | Deliver | Drained |
    Settled | SettlementFailed | LocksRenewed | MessagesFound | MessagesScheduled | MessagesDeleted | Done |
    Failed | EntityFound | EntitiesFound
)  # fmt: skip
