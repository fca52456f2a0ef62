"""Commands that the service does not have: cursors, searches, one message by its number, shifts of scheduled
messages, resets.

Each is answered to `reply_to`, or by Failed(reply_to, error).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from peeklock.broker.vocabulary.addresses import Address, ReplyTo, SequenceNumber
from peeklock.broker.vocabulary.message import Disposition

if TYPE_CHECKING:
    from peeklock.rules.filters import Filter

# Cursors. A cursor is a named reader of a queue or sub-queue. It numbers its claims 1, 2, ...
# What a claim holds does not change until it is committed or released, also over a restart.


@dataclass(slots=True)
class TakeCursor:
    """Make a reader the owner of a cursor, new or not -> CursorsFound, this cursor alone. Until it reads,
    another reader may do the same; the claims made meanwhile are released then."""

    address: Address
    cursor: str
    owner: str
    take_over: bool
    """Also from an owner that has read, which is refused from now on."""
    reply_to: ReplyTo
    expires_after_ms: int | None = None
    """As of `ClaimMessages`."""


@dataclass(slots=True)
class ClaimMessages:
    """Hold the next available messages for a cursor, new or not -> Claimed; with count 0 no claim was made.
    In an entity with sessions: messages of sessions that are not held, which the cursor holds then."""

    address: Address
    cursor: str
    count_max: int
    bytes_max: int
    reply_to: ReplyTo
    expires_after_ms: int | None = None
    """How long after its last use the cursor is forgotten; None = unchanged, or the default."""
    enqueued_up_to_ms: int | None = None
    """Only messages enqueued at or before this time; None = any."""
    owner: str | None = None
    """The reader that asks; None = one that does not name itself."""


@dataclass(slots=True)
class ReadClaim:
    """-> MessagesFound: the messages of a claim in order, after the first `skip`. From now on the owner of
    the cursor is replaced by `TakeCursor.take_over` alone. Claim 0 has no messages: a reader only says that
    it reads."""

    address: Address
    cursor: str
    no: int
    skip: int
    count_max: int
    bytes_max: int
    reply_to: ReplyTo
    owner: str | None = None
    """As of `ClaimMessages`."""


@dataclass(slots=True)
class CommitClaims:
    """Remove the messages of a cursor's claims up to a number -> ClaimsLeft. The answer decides; the rest is
    removed in slices, sooner if asked again."""

    address: Address
    cursor: str
    up_to_no: int
    reply_to: ReplyTo
    owner: str | None = None
    """As of `ClaimMessages`."""


@dataclass(slots=True)
class ReleaseCursor:
    """Make all messages of a cursor available again, not counted, and forget it -> ClaimsLeft(0) at the
    end."""

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
    """How far a search has come; opaque to the client."""

    address: Address
    sequence_number: SequenceNumber
    """Of the last message examined; -1 = none of this queue."""


@dataclass(slots=True)
class SearchMessages:
    """-> MessagesMatched: messages in any state that match a filter, by name of their entities, then by
    ascending sequence number. A call examines a bounded number of messages: while the answer has a cursor
    there may be more, even after few matches or none."""

    reply_to: ReplyTo
    where: Filter | None
    """None = all messages. A message for which it cannot be evaluated does not match."""
    address: Address | None
    """One queue, or the scheduled messages of a topic; None = the queues and sub-queues of all entities."""
    after: SearchCursor | None
    """From the previous answer; None = from the start."""
    messages_max: int


@dataclass(slots=True)
class DeleteMatching:
    """-> MatchingDeleted: delete what `SearchMessages` would find, with the same bounds. Locked and claimed
    messages stay; a scheduled message is cancelled. Without an address, entities that cannot be received from
    are skipped."""

    reply_to: ReplyTo
    where: Filter | None
    address: Address | None
    after: SearchCursor | None
    messages_max: int
    """Of the matches, locked ones included."""


@dataclass(slots=True)
class SettleByNumber:
    """Settle a message that nobody holds, by its number -> Done. It is not delivered, and its count stays.
    MessageNotFound: it is gone. MessageLocked: a receiver or a cursor holds it. A scheduled message can only
    be completed, which cancels it."""

    reply_to: ReplyTo
    address: Address
    sequence_number: SequenceNumber
    disposition: Disposition
    """Any but ABANDONED."""
    reason: str | None = None
    """Of SUSPENDED, as the next."""
    description: str | None = None


@dataclass(slots=True)
class ReplaceSessionState:
    """Set the state of a session that nobody holds; None clears it -> Done. SessionCannotBeLocked: a receiver
    holds the session."""

    address: Address
    session_id: str
    state: bytes | None
    reply_to: ReplyTo


@dataclass(slots=True)
class ShiftScheduled:
    """-> ScheduledShifted: shift the times of scheduled messages, which keep their numbers. All or none:
    MessageNotFound if a number is not scheduled (any more)."""

    reply_to: ReplyTo
    address: Address | None
    """A queue or topic; None = all."""
    sequence_numbers: tuple[SequenceNumber, ...] | None
    """Of the queue with the address; None = all."""
    by_ms: int | None
    """Shift, negative = earlier; None = enqueue now, in the order of numbers, or at `at_ms`."""
    at_ms: int | None = None
    """UTC; None = see `by_ms`."""


@dataclass(slots=True)
class Reset:
    """Remove all messages, session states and ids for duplicate detection; for tests -> Done. Entities, rules
    and links stay, held locks are lost, sequence numbers go on."""

    reply_to: ReplyTo


ExtensionCommand: TypeAlias = (
    TakeCursor | ClaimMessages | ReadClaim | CommitClaims | ReleaseCursor | ListCursors | SearchMessages |
    DeleteMatching | SettleByNumber | ReplaceSessionState |
    ShiftScheduled | Reset
)  # fmt: skip
