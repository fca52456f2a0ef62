"""What can be asked of the broker: plain values, imperatives.

Owns: the vocabulary. Must not know: who asks. A `LinkId` or `ReplyTo` is opaque to the core: it hands it back
in effects. Nothing here refers to live objects of another room, so that one day a node can relay a command to
another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from peeklock.amqp.messaging import Sections
from peeklock.broker.vocabulary.definition_commands import AddRule as AddRule
from peeklock.broker.vocabulary.definition_commands import CreateEntity as CreateEntity
from peeklock.broker.vocabulary.definition_commands import DefinitionCommand
from peeklock.broker.vocabulary.definition_commands import DeleteEntity as DeleteEntity
from peeklock.broker.vocabulary.definition_commands import FindRule as FindRule
from peeklock.broker.vocabulary.definition_commands import IfMatch as IfMatch
from peeklock.broker.vocabulary.definition_commands import ListEntities as ListEntities
from peeklock.broker.vocabulary.definition_commands import ListRules as ListRules
from peeklock.broker.vocabulary.definition_commands import LookUp as LookUp
from peeklock.broker.vocabulary.definition_commands import RemoveRule as RemoveRule
from peeklock.broker.vocabulary.definition_commands import UpdateEntity as UpdateEntity
from peeklock.broker.vocabulary.definition_commands import UpdateRule as UpdateRule
from peeklock.broker.vocabulary.extension_commands import ClaimMessages as ClaimMessages
from peeklock.broker.vocabulary.extension_commands import CommitClaims as CommitClaims
from peeklock.broker.vocabulary.extension_commands import ExtensionCommand
from peeklock.broker.vocabulary.extension_commands import ListCursors as ListCursors
from peeklock.broker.vocabulary.extension_commands import ReadClaim as ReadClaim
from peeklock.broker.vocabulary.extension_commands import ReleaseCursor as ReleaseCursor
from peeklock.broker.vocabulary.message import Message

OWN_CONNECTION_ID = 0
"""Connection id of what the process itself asks for; those of peers begin at 1."""

NO_LINK = 0
"""Link number of a request that no link of the broker carries; those of links begin at 1."""


class LinkId(NamedTuple):
    """Names a link towards the broker; never used twice."""

    connection_id: int
    number: int
    """The connection counts its links; this is no AMQP handle, which is used again."""


class ReplyTo(NamedTuple):
    """Where an answer goes."""

    connection_id: int
    link_number: int
    """`LinkId.number`, or NO_LINK."""
    number: int
    """Which request of the link it answers: the delivery id; without a link the asker's own number."""


NOWHERE = ReplyTo(OWN_CONNECTION_ID, NO_LINK, 0)
"""Stands in a command until who offers it says where its answer goes, or where nobody waits for one."""


DELIVERY_BYTES = 256
"""What a delivery counts beside its message: about what it takes in memory and is given on the wire. Without
it a quarter of a million of the smallest messages go out at once, which takes a second. Our choice."""


class SubQueue(Enum):
    """Which queue of an entity is meant."""

    MAIN = 0
    DEAD_LETTER = 1
    TRANSFER_DEAD_LETTER = 2


@dataclass(frozen=True, slots=True)
class Address:
    """An entity and one of its queues; `path` is as the client spelt it, looked up case-insensitively. That
    of a subscription is `topic/Subscriptions/name`."""

    path: str
    sub_queue: SubQueue = SubQueue.MAIN


class ReceiveMode(Enum):
    PEEK_LOCK = "peek-lock"
    RECEIVE_AND_DELETE = "receive-and-delete"


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """Which session a receiver wants to hold."""

    session_id: str | None
    """None = the one that has been available longest."""
    wait_until_ms: int
    """With None: until when to wait for one, UTC ms. A named session is given or refused at once."""


# Links


@dataclass(slots=True)
class OpenSender:
    """-> SenderOpened | LinkRefused. With `destination`, messages pass through the entity to that one (send
    via)."""

    link: LinkId
    address: Address
    destination: Address | None = None


@dataclass(slots=True)
class OpenReceiver:
    """-> ReceiverOpened | LinkRefused; with a wish for the next session maybe much later, or never if the
    link is closed before."""

    link: LinkId
    address: Address
    mode: ReceiveMode
    session: SessionRequest | None = None
    name: str | None = None
    """As the peer calls the link; for the event log."""


@dataclass(slots=True)
class OpenCoordinator:
    """Open the link over which transactions are declared and discharged -> CoordinatorOpened |
    LinkRefused."""

    link: LinkId


@dataclass(slots=True)
class CloseLink:
    """Forget a link that was closed properly: message locks stay until they lapse, a session is free at once
    (L-13), transactions are rolled back (F-03). No answer."""

    link: LinkId


@dataclass(slots=True)
class SetCredit:
    """Allow a receiver link deliveries, as totals since it was opened, so that deliveries under way need no
    care.

    With `drain`, what is available within the credit is delivered, then -> Drained.
    """

    link: LinkId
    deliveries_max: int
    """The link may be given so many deliveries in all."""
    bytes_max: int
    """No further delivery is made once the link's deliveries add up to this many bytes, `DELIVERY_BYTES` each
    beside the message."""
    drain: bool = False


@dataclass(slots=True)
class DropConnection:
    """A connection is over: forget its links. `broken`: its locks end with its grace, count +1 (L-13); else
    they stay."""

    connection_id: int
    broken: bool
    undelivered: list[tuple[int, bytes]] = field(default_factory=list)
    """Queue ids and lock tokens of messages that were locked for it and never sent: they are available again,
    uncounted (L-16)."""


RUN_MAX = 64
"""Messages of one `Send` or `Complete`: half a millisecond, before others may have a turn. Our choice."""


def _behind(reply_to: ReplyTo | None, count: int) -> ReplyTo | None:
    return None if reply_to is None else reply_to._replace(number=reply_to.number + count)


# Sending


@dataclass(slots=True)
class Send:
    """Store one message -> Accepted | Rejected; without `reply_to` (pre-settled) a refusal is only counted
    (T-06)."""

    queue_id: int
    message: Message
    sections: Sections
    reply_to: ReplyTo | None
    destination: Address | None = None
    """Of a link that sends via the queue."""
    further: list[tuple[Message, Sections]] | tuple[()] = ()
    """Messages that came right behind it over the same link. Each is accepted or refused by itself, under the
    number that follows."""

    def after(self, count: int) -> Send | None:
        """Return what is left when so many messages are done; None when all are."""
        if count > len(self.further):
            return None
        message, sections = self.further[count - 1]
        reply_to = _behind(self.reply_to, count)
        return Send(self.queue_id, message, sections, reply_to, self.destination, [*self.further[count:]])


@dataclass(slots=True)
class SendBatch:
    """Store all messages or none (T-07) -> Accepted | Rejected."""

    queue_id: int
    messages: list[tuple[Message, Sections]]
    reply_to: ReplyTo | None
    destination: Address | None = None


@dataclass(slots=True)
class SendTo:
    """Store all messages or none, without a link -> Accepted | Rejected. Each has its `Routing`."""

    address: Address
    messages: list[tuple[Message, Sections]]
    reply_to: ReplyTo


# Settlement by a receiver link: -> Settled | SettlementFailed when reply_to is given


@dataclass(slots=True)
class Complete:
    queue_id: int
    lock_token: bytes
    reply_to: ReplyTo | None
    further: list[bytes] | tuple[()] = ()
    """Lock tokens of the deliveries behind it, which one disposition completes too; as of `Send`."""

    def after(self, count: int) -> Complete | None:
        """Return what is left when so many messages are done; None when all are."""
        if count > len(self.further):
            return None
        reply_to = _behind(self.reply_to, count)
        return Complete(self.queue_id, self.further[count - 1], reply_to, [*self.further[count:]])


@dataclass(slots=True)
class Abandon:
    queue_id: int
    lock_token: bytes
    reply_to: ReplyTo | None
    properties: Mapping[str, Any] | None = None
    """Application properties to change; a None value is stored as null."""


@dataclass(slots=True)
class Defer:
    """Set the message aside until it is asked for by number, counted (L-08, L-10)."""

    queue_id: int
    lock_token: bytes
    reply_to: ReplyTo | None
    properties: Mapping[str, Any] | None = None


@dataclass(slots=True)
class DeadLetter:
    queue_id: int
    lock_token: bytes
    reply_to: ReplyTo | None
    reason: str | None = None
    description: str | None = None
    properties: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Release:
    """Make the message available again at its place, delivery count unchanged (L-08): to the receiver that
    had it only when no other has credit."""

    queue_id: int
    lock_token: bytes
    reply_to: ReplyTo | None


# Management of messages: each answered to `reply_to`, or Failed(reply_to, error)


@dataclass(slots=True)
class RenewLocks:
    """-> LocksRenewed. All or none."""

    address: Address
    lock_tokens: list[bytes]
    reply_to: ReplyTo


@dataclass(slots=True)
class Peek:
    """-> MessagesFound, in ascending order of sequence number, any state (S-11)."""

    address: Address
    from_sequence_number: int
    count_max: int
    bytes_max: int
    reply_to: ReplyTo
    session_id: str | None = None
    """Only messages of this session."""


@dataclass(slots=True)
class Schedule:
    """-> MessagesScheduled. All or none; a time in the past enqueues now."""

    address: Address
    messages: list[tuple[Message, Sections]]
    reply_to: ReplyTo


@dataclass(slots=True)
class CancelScheduled:
    """-> Done. All or none; MessageNotFound when one is not scheduled (any more)."""

    address: Address
    sequence_numbers: list[int]
    reply_to: ReplyTo


@dataclass(slots=True)
class ReceiveDeferred:
    """-> MessagesFound, locked for the request's connection in peek-lock mode. All or none:
    MessageNotFound. In a queue with sessions they are locked with their session, which the connection must
    hold (G-05)."""

    address: Address
    sequence_numbers: list[int]
    mode: ReceiveMode
    reply_to: ReplyTo
    session_id: str | None = None
    bodies_read: bool = False
    """The core has waited for the bodies (`awaited_bodies`)."""


class Disposition(Enum):
    COMPLETED = "completed"
    ABANDONED = "abandoned"
    DEFERRED = "defered"
    SUSPENDED = "suspended"


@dataclass(slots=True)
class UpdateDisposition:
    """Settle by lock token from any connection, messages of a session from its holder's alone (L-14) -> Done.
    All or none."""

    address: Address
    lock_tokens: list[bytes]
    disposition: Disposition
    reply_to: ReplyTo
    reason: str | None = None
    description: str | None = None
    properties: Mapping[str, Any] | None = None
    session_id: str | None = None


@dataclass(slots=True)
class DeleteMessages:
    """Delete the oldest active, unlocked messages enqueued at or before a time -> MessagesDeleted."""

    address: Address
    count_max: int
    enqueued_before_ms: int
    reply_to: ReplyTo
    session_id: str | None = None


@dataclass(slots=True)
class PurgeMessages:
    """Delete all active and deferred messages enqueued at or before a time that are not locked, in slices ->
    MessagesDeleted once all are gone (A-06). Each slice is durable by itself: after a restart, ask again."""

    address: Address
    enqueued_before_ms: int
    reply_to: ReplyTo


@dataclass(slots=True)
class Fetched:
    """Answer an effect `Fetch`. No answer."""

    queue_id: int
    position: int
    payload: bytes


@dataclass(slots=True)
class LoseBodies:
    """The bodies of these messages are damaged on the disk: dead-letter them without -> BodiesLost."""

    messages: list[tuple[int, int]]
    """(queue id, position)"""
    reply_to: ReplyTo


# Sessions: each answered to `reply_to`, or Failed(reply_to, error). All but the last two want the session to
# be held by a link of the request's connection: else SessionLockLost.


@dataclass(slots=True)
class RenewSessionLock:
    """-> SessionLockRenewed."""

    address: Address
    session_id: str
    reply_to: ReplyTo


@dataclass(slots=True)
class GetSessionState:
    """-> MessagesFound with one record whose body is the state, or with none."""

    address: Address
    session_id: str
    reply_to: ReplyTo


@dataclass(slots=True)
class SetSessionState:
    """-> Done. None clears the state."""

    address: Address
    session_id: str
    state: bytes | None
    reply_to: ReplyTo


@dataclass(slots=True)
class ShowSession:
    """-> SessionShown, whoever holds the session; one that nothing is known of is empty."""

    address: Address
    session_id: str
    reply_to: ReplyTo


@dataclass(slots=True)
class ListSessions:
    """-> SessionsFound (G-07)."""

    address: Address
    updated_since_ms: int | None
    """Only sessions whose state was set after this; None = all with active or deferred messages or state."""
    skip: int
    top: int
    reply_to: ReplyTo


# Transactions (F-03)


@dataclass(slots=True)
class Declare:
    """Begin a transaction that lives no longer than its coordinator link -> Declared | Rejected. It waits
    while the connection has as many as it may; nobody is answered when its link ends before."""

    link: LinkId
    reply_to: ReplyTo


@dataclass(slots=True)
class Discharge:
    """Commit all that was enlisted, or with `fail` roll it back -> Accepted | Rejected."""

    link: LinkId
    transaction_id: bytes
    fail: bool
    reply_to: ReplyTo


@dataclass(slots=True)
class Enlist:
    """Check a command now and do it when its transaction is committed -> Enlisted to the command's reply-to,
    or the command's own refusal; for a schedule MessagesScheduled, with numbers that are used whatever
    becomes of the transaction. Of another connection's transaction: TransactionUnknown."""

    connection_id: int
    transaction_id: bytes
    command: (
        Send
        | SendBatch
        | Schedule
        | CancelScheduled
        | Complete
        | Abandon
        | Defer
        | DeadLetter
        | UpdateDisposition
        | SetSessionState
    )
    via: str | None = None
    """Name of the top-level entity that the command counts for, where its link is on the AMQP session of the
    transaction's coordinator; None = the one that it is about. A transaction has one."""


# The world


@dataclass(frozen=True, slots=True)
class CountDroppedSend:
    """Count a pre-settled send that was refused before it became a command (T-06). No answer."""


@dataclass(slots=True)
class LimitSending:
    """Refuse new sends for a reason until told otherwise (R-06); settlements go on. No answer."""

    low_space: bool = field(default=False)
    lagging: bool = field(default=False)
    capture_full: bool = field(default=False)
    """The event log lags behind by more than it may, and must not lose anything."""


@dataclass(frozen=True, slots=True)
class ClockStepped:
    """The wall clock was set by so much, and stays there. No answer."""

    delta_ms: int


@dataclass(frozen=True, slots=True)
class AcceptClock:
    """The wall clock is right, although it went too far forwards to be believed. No answer."""


Command: TypeAlias = (
    OpenSender | OpenReceiver | OpenCoordinator | CloseLink | SetCredit | DropConnection | Send | SendBatch |
    SendTo | Complete | Abandon | Defer | DeadLetter | Release | RenewLocks | Peek | Schedule |
    CancelScheduled | ReceiveDeferred | UpdateDisposition | DeleteMessages | PurgeMessages | Fetched |
    LoseBodies | RenewSessionLock | GetSessionState | SetSessionState | ShowSession | ListSessions | Declare |
    Discharge | Enlist | LimitSending | CountDroppedSend | ClockStepped | AcceptClock | DefinitionCommand |
    ExtensionCommand
)  # fmt: skip
