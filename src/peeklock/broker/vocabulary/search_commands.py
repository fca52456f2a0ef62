"""What can be asked about messages by what they are, wherever they stand: plain values, imperatives.

Owns: the vocabulary. Must not know: who asks; see `commands`. Each is answered to `reply_to`, or by
Failed(reply_to, error).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peeklock.broker.vocabulary.commands import Address, ReplyTo
    from peeklock.rules.filters import Filter


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
