"""What happened since the start, counted: integers that never fall.

Owns: the counters of one entity and of the namespace, and which events they count. Must not know: how they
are shown.

An entity counts all that came into it; the namespace counts what its clients sent. A total loses nothing when
an entity is deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from peeklock.broker.content.overlay import STORE_DAMAGED
from peeklock.broker.vocabulary.errors import ServerBusy, ServiceBusError
from peeklock.broker.vocabulary.events import EventType

APPLICATION: Final = "application"
"""Stands for each reason that a receiver chose itself: their number has no bound."""

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
"""DeadLetterReasons of the broker."""


@dataclass(slots=True)
class Counters:
    """Of one entity, its dead-letter queues included, or of the namespace. Messages, unless it says bytes."""

    received: int = 0
    """Accepted: of clients, and in an entity also by a forward or as a copy of its topic's. Duplicates are
    not among them, scheduled ones are."""
    received_bytes: int = 0
    delivered: int = 0
    """Handed to a receiver or a cursor, each time."""
    delivered_bytes: int = 0
    completed: int = 0
    """By a settlement, as it was received and deleted, or by a cursor's commit."""
    abandoned: int = 0
    deferred: int = 0
    dead_lettered: dict[str, int] = field(default_factory=dict)
    """By reason: one of `REASONS` or `APPLICATION`."""
    expired: int = 0
    """Dead-lettered for it or gone."""
    duplicates: int = 0
    """Dropped by duplicate detection."""
    scheduled: int = 0
    """By a client, or by an action of a rule where its copy is forwarded to."""
    forwarded: int = 0
    """Passed on to another entity, in the entity that passed it on."""
    lock_lapses: int = 0


@dataclass(slots=True)
class RequestCounters:
    """What became of the requests for one operation."""

    succeeded: int = 0
    """Done, or begun: a request that waits, for a session or a body, counts before it is answered."""
    throttled: int = 0
    """Refused with `ServerBusy`."""
    refused: int = 0
    """Refused for what the client asked."""

    def count_refusal(self, error: ServiceBusError) -> None:
        """Count a request that was refused."""
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
"""The counter of each event that has one and no method of its own in `outcome`."""
