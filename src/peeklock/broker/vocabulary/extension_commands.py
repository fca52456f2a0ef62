"""Commands that the service does not have: cursors, searches, shifts of scheduled messages.

Each is answered to `reply_to`, or by Failed(reply_to, error).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from peeklock.broker.vocabulary.addresses import Address, ReplyTo

if TYPE_CHECKING:
    from peeklock.rules.filters import Filter

# Cursors. A cursor is a named reader of a queue or sub-queue. It numbers its claims 1, 2, ...
# What a claim holds does not change until it is committed or released, also over a restart.


@dataclass(slots=True)
class ClaimMessages:
    """Hold the next available messages for a cursor, made if there is none of the name -> Claimed; with count
    0 no claim was made. In an entity with sessions: of sessions that nobody holds; the claim holds them
    then."""

    address: Address
    cursor: str
    count_max: int
    bytes_max: int
    reply_to: ReplyTo
    expires_after_ms: int | None = None
    """How long after its last use the cursor is forgotten; None = as it was, or the default."""
    enqueued_up_to_ms: int | None = None
    """Only messages enqueued at or before this time; None = any."""


@dataclass(slots=True)
class ReadClaim:
    """-> MessagesFound: what a claim holds in its order, from the `skip`th on."""

    address: Address
    cursor: str
    no: int
    skip: int
    count_max: int
    bytes_max: int
    reply_to: ReplyTo


@dataclass(slots=True)
class CommitClaims:
    """Remove what a cursor's claims up to a number hold -> ClaimsLeft. It is decided with the answer; what is
    left is removed in slices, and faster by asking again."""

    address: Address
    cursor: str
    up_to_no: int
    reply_to: ReplyTo


@dataclass(slots=True)
class ReleaseCursor:
    """Make all that a cursor holds available again at its place, not counted, and forget the cursor ->
    ClaimsLeft with 0, when all is done."""

    address: Address
    cursor: str
    reply_to: ReplyTo


@dataclass(slots=True)
class ListCursors:
    """-> CursorsFound of a queue, sorted by name."""

    address: Address
    reply_to: ReplyTo


# Searches and shifts


@dataclass(frozen=True, slots=True)
class SearchCursor:
    """How far a search has come; whoever asks gives it back as it is."""

    address: Address
    sequence_number: int
    """Of the message that was looked at last; -1 = none of this queue yet."""


@dataclass(slots=True)
class SearchMessages:
    """-> MessagesMatched: messages in any state that a filter matches, by name of their entities, then in
    ascending order of sequence number. A call looks at a bounded number of messages: while the answer names
    a cursor there may be more, also when it holds few messages or none."""

    reply_to: ReplyTo
    where: Filter | None
    """None = all messages. One for which it cannot be evaluated does not match."""
    address: Address | None
    """Which queue; None = the queues and sub-queues of all entities. Of a topic: its scheduled messages."""
    after: SearchCursor | None
    """Of the answer before; None = from the start."""
    messages_max: int


@dataclass(slots=True)
class DeleteMatching:
    """-> MatchingDeleted: delete what `SearchMessages` would find, bounded like it. What is locked, or held
    for a cursor, stays. A scheduled message is cancelled. With no address, entities from which nothing can
    be received are passed over."""

    reply_to: ReplyTo
    where: Filter | None
    address: Address | None
    after: SearchCursor | None
    messages_max: int
    """Of those that match, also the locked ones."""


@dataclass(slots=True)
class ShiftScheduled:
    """-> ScheduledShifted: enqueue scheduled messages earlier or later than they were to be. They keep their
    numbers. All or none; MessageNotFound when a number is not scheduled (any more)."""

    reply_to: ReplyTo
    address: Address | None
    """Of which queue or topic; None = of all."""
    sequence_numbers: tuple[int, ...] | None
    """Which, of the queue with the address; None = all of them."""
    by_ms: int | None
    """How much later, negative = earlier; None = they are due now, in the order of their numbers."""


ExtensionCommand: TypeAlias = (
    ClaimMessages | ReadClaim | CommitClaims | ReleaseCursor | ListCursors | SearchMessages | DeleteMatching |
    ShiftScheduled
)  # fmt: skip
