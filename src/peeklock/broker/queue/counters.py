"""Counters since the start: integers that never fall, per entity and per namespace.

An entity counts what arrives there, by a forward too; the namespace counts what clients send, in deleted
entities too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from peeklock.broker.content.overlay import STORE_DAMAGED
from peeklock.broker.vocabulary.errors import ServerBusy, ServiceBusError
from peeklock.broker.vocabulary.events import EventType

APPLICATION: Final = "application"
"""Replaces the reasons that applications choose: their number has no limit."""

REASONS: Final = frozenset(
    {
        "FilterEvaluationException",
        "HeaderSizeExceeded",
        "MaxDeliveryCountExceeded",
        "MaxTransferHopCountExceeded",
        "MessageSizeExceeded",
        "MessagingEntityDisabled",
        "MessagingEntityNotFound",
        "QuotaExceeded",
        "Session ID is null.",
        "TTLExpiredException",
        STORE_DAMAGED,
    }
)
"""The broker's own DeadLetterReasons."""


@dataclass(slots=True)
class Counters:
    """Of an entity with its dead-letter queues, or of the namespace. Messages, if not bytes."""

    received: int = 0
    """Accepted from clients; in an entity also by a forward or as a copy. Without duplicates."""
    received_bytes: int = 0
    delivered: int = 0
    """Deliveries to a receiver or a cursor."""
    delivered_bytes: int = 0
    completed: int = 0
    """By a settlement, in receive-and-delete mode, or by the commit of a cursor."""
    abandoned: int = 0
    deferred: int = 0
    dead_lettered: dict[str, int] = field(default_factory=dict)
    """By reason: one of `REASONS` or `APPLICATION`."""
    expired: int = 0
    """Dead-lettered or dropped."""
    duplicates: int = 0
    """Dropped by duplicate detection."""
    scheduled: int = 0
    """By a client, or by the action of a rule and a forward."""
    forwarded: int = 0
    """Counted in the entity that forwards."""
    lock_lapses: int = 0


@dataclass(slots=True)
class RequestCounters:
    """Results of the requests for one operation."""

    succeeded: int = 0
    """Done, or begun: a request that waits for a session or a body counts before its answer."""
    throttled: int = 0
    """Refused with `ServerBusy`."""
    refused: int = 0
    """Refused for another reason."""

    def count_refusal(self, error: ServiceBusError) -> None:
        """Count a refusal."""
        if isinstance(error, ServerBusy):
            self.throttled += 1
        else:
            self.refused += 1


COUNTED: Final = {
    EventType.ABANDONED: "abandoned",
    EventType.DEFERRED: "deferred",
    EventType.EXPIRED: "expired",
    EventType.LOCK_LAPSED: "lock_lapses",
}
"""Counters of events that have no method in `outcome`."""
