"""Commands: requests to the broker, as plain values named by imperatives.

`LinkId` and `ReplyTo` are opaque to the core, which returns them in effects. No command refers to a live
object, so that one node can relay it to another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeAlias

from peeklock.amqp.messaging import Sections
from peeklock.broker.vocabulary.addresses import NO_LINK as NO_LINK
from peeklock.broker.vocabulary.addresses import NOWHERE as NOWHERE
from peeklock.broker.vocabulary.addresses import OWN_CONNECTION_ID as OWN_CONNECTION_ID
from peeklock.broker.vocabulary.addresses import Address as Address
from peeklock.broker.vocabulary.addresses import LinkId as LinkId
from peeklock.broker.vocabulary.addresses import LockToken as LockToken
from peeklock.broker.vocabulary.addresses import ReplyTo as ReplyTo
from peeklock.broker.vocabulary.addresses import SequenceNumber as SequenceNumber
from peeklock.broker.vocabulary.addresses import SubQueue as SubQueue
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
from peeklock.broker.vocabulary.extension_commands import TakeCursor as TakeCursor
from peeklock.broker.vocabulary.message import Disposition as Disposition
from peeklock.broker.vocabulary.message import Message, MessageState

DELIVERY_BYTES: Final = 256
"""What a delivery counts besides its message: about its cost in memory and on the wire. Without it a quarter
of a million of the smallest messages go out at once, which takes a second. Our choice."""


class ReceiveMode(Enum):
    PEEK_LOCK = "peek-lock"
    RECEIVE_AND_DELETE = "receive-and-delete"


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """The session that a receiver asks for."""

    session_id: str | None
    """None = the one that has been available longest."""
    wait_until_ms: int
    """With None: how long to wait for one, UTC ms. A named session is granted or refused at once."""


# Links


@dataclass(slots=True)
class OpenSender:
    """-> SenderOpened | LinkRefused. With `destination`, messages are sent via the entity to that one."""

    link: LinkId
    address: Address
    destination: Address | None = None


@dataclass(slots=True)
class OpenReceiver:
    """-> ReceiverOpened | LinkRefused. A request for the next session may be answered much later, and is not
    answered if the link is closed before."""

    link: LinkId
    address: Address
    mode: ReceiveMode
    session: SessionRequest | None = None
    name: str | None = None
    """The link's name on the wire; for the event log."""


@dataclass(slots=True)
class OpenCoordinator:
    """Open a link that declares and discharges transactions -> CoordinatorOpened | LinkRefused."""

    link: LinkId


@dataclass(slots=True)
class CloseLink:
    """Forget a link that was closed properly: message locks stay until they lapse, a session is free at once
    (L-13), transactions are rolled back (F-03). No answer."""

    link: LinkId


@dataclass(slots=True)
class SetCredit:
    """Set a receiver link's credit, as totals since it was opened: deliveries in flight need no correction.

    With `drain`, available messages are delivered within the credit, then -> Drained.
    """

    link: LinkId
    deliveries_max: int
    """Deliveries that the link may get in all."""
    bytes_max: int
    """No delivery is made once those of the link have this many bytes, each with `DELIVERY_BYTES`."""
    drain: bool = False


@dataclass(slots=True)
class DropConnection:
    """Forget a connection and its links. `broken`: its locks end with its grace, counted (L-13)."""

    connection_id: int
    broken: bool
    undelivered: list[tuple[int, LockToken]] = field(default_factory=list)
    """Queue ids and lock tokens of messages that were not sent: available again, not counted (L-16)."""


RUN_MAX: Final = 64
"""Messages of one `Send` or `Complete`: half a millisecond of work. Our choice."""


def _behind(reply_to: ReplyTo | None, count: int) -> ReplyTo | None:
    return None if reply_to is None else reply_to._replace(number=reply_to.number + count)


# Sending


@dataclass(slots=True)
class Send:
    """Store one message -> Accepted | Rejected. Pre-settled, a refusal is only counted (T-06)."""

    queue_id: int
    message: Message
    sections: Sections
    reply_to: ReplyTo | None
    destination: Address | None = None
    """Of a link that sends via this queue."""
    further: list[tuple[Message, Sections]] | tuple[()] = ()
    """Messages that followed over the same link, each accepted or refused by itself, under the next
    number."""

    def after(self, count: int) -> Send | None:
        """Return what is left after `count` messages; None when nothing is."""
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
    """Store all messages or none, without a link -> Accepted | Rejected. Each message has its `Routing`."""

    address: Address
    messages: list[tuple[Message, Sections]]
    reply_to: ReplyTo


# Settlement by a receiver link: -> Settled | SettlementFailed if reply_to is given


@dataclass(slots=True)
class Complete:
    queue_id: int
    lock_token: LockToken
    reply_to: ReplyTo | None
    further: list[LockToken] | tuple[()] = ()
    """Lock tokens of the deliveries that follow in one disposition; see `Send.further`."""

    def after(self, count: int) -> Complete | None:
        """Return what is left after `count` messages; None when nothing is."""
        if count > len(self.further):
            return None
        reply_to = _behind(self.reply_to, count)
        return Complete(self.queue_id, self.further[count - 1], reply_to, [*self.further[count:]])


@dataclass(slots=True)
class Abandon:
    queue_id: int
    lock_token: LockToken
    reply_to: ReplyTo | None
    properties: Mapping[str, Any] | None = None
    """Application properties to change; None is stored as null."""


@dataclass(slots=True)
class Defer:
    """Set a message aside until its number is requested, counted (L-08, L-10)."""

    queue_id: int
    lock_token: LockToken
    reply_to: ReplyTo | None
    properties: Mapping[str, Any] | None = None


@dataclass(slots=True)
class DeadLetter:
    queue_id: int
    lock_token: LockToken
    reply_to: ReplyTo | None
    reason: str | None = None
    description: str | None = None
    properties: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Release:
    """Make a message available again, not counted (L-08), to other receivers first."""

    queue_id: int
    lock_token: LockToken
    reply_to: ReplyTo | None


# Management of messages: each answered to `reply_to`, or Failed(reply_to, error)


@dataclass(slots=True)
class RenewLocks:
    """-> LocksRenewed. All or none."""

    address: Address
    lock_tokens: list[LockToken]
    reply_to: ReplyTo


@dataclass(slots=True)
class Peek:
    """-> MessagesFound by ascending sequence number, in any state or in one (S-11)."""

    address: Address
    from_sequence_number: SequenceNumber
    count_max: int
    bytes_max: int
    reply_to: ReplyTo
    session_id: str | None = None
    """Only messages of this session."""
    state: MessageState | None = None


@dataclass(slots=True)
class Schedule:
    """-> MessagesScheduled. All or none; a time in the past enqueues at once."""

    address: Address
    messages: list[tuple[Message, Sections]]
    reply_to: ReplyTo


@dataclass(slots=True)
class CancelScheduled:
    """-> Done. All or none: MessageNotFound if one is not scheduled (any more)."""

    address: Address
    sequence_numbers: list[SequenceNumber]
    reply_to: ReplyTo


@dataclass(slots=True)
class ReceiveDeferred:
    """-> MessagesFound, in peek-lock mode locked for the connection. All or none: MessageNotFound. In a queue
    with sessions the connection must hold the session, whose lock they are under (G-05)."""

    address: Address
    sequence_numbers: list[SequenceNumber]
    mode: ReceiveMode
    reply_to: ReplyTo
    session_id: str | None = None
    bodies_read: bool = False
    """The bodies have been waited for (`awaited_bodies`)."""


@dataclass(slots=True)
class UpdateDisposition:
    """Settle by lock token -> Done. All or none. Of a session, only its holder may (L-14)."""

    address: Address
    lock_tokens: list[LockToken]
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
    """Delete all active and deferred, unlocked messages enqueued at or before a time, in slices ->
    MessagesDeleted at the end (A-06). Each slice is durable by itself: after a restart, ask again."""

    address: Address
    enqueued_before_ms: int
    reply_to: ReplyTo


@dataclass(slots=True)
class Fetched:
    """The body that an effect `Fetch` asked for. No answer."""

    queue_id: int
    position: int
    payload: bytes


@dataclass(slots=True)
class LoseBodies:
    """Dead-letter messages without their bodies, which are damaged on the disk -> BodiesLost."""

    messages: list[tuple[int, int]]
    """(queue id, position)"""
    reply_to: ReplyTo


# Sessions: each answered to `reply_to`, or Failed(reply_to, error). A link of the connection must hold the
# session, else SessionLockLost; not so for the last two.


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
    """-> SessionShown, held or not; an unknown session is shown as empty."""

    address: Address
    session_id: str
    reply_to: ReplyTo


@dataclass(slots=True)
class ListSessions:
    """-> SessionsFound (G-07)."""

    address: Address
    updated_since_ms: int | None
    """Only sessions whose state was set later; None = all with active or deferred messages or a state."""
    skip: int
    top: int
    reply_to: ReplyTo


# Transactions (F-03)


@dataclass(slots=True)
class Declare:
    """Begin a transaction, which ends with its coordinator link at the latest -> Declared | Rejected. It
    waits while the connection has the most there may be; no answer if its link ends before."""

    link: LinkId
    reply_to: ReplyTo


@dataclass(slots=True)
class Discharge:
    """Commit what was enlisted, or with `fail` roll it back -> Accepted | Rejected."""

    link: LinkId
    transaction_id: bytes
    fail: bool
    reply_to: ReplyTo


@dataclass(slots=True)
class Enlist:
    """Check a command now and do it when its transaction is committed -> Enlisted to the reply-to of the
    command, or the command's refusal; for a schedule MessagesScheduled, with numbers that are used up even by
    a roll-back. Of another connection's transaction: TransactionUnknown."""

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
    """Top-level entity that the command counts for, if its link is on the AMQP session of the transaction's
    coordinator; None = the command's own. A transaction has one."""


# The disk and the clock


@dataclass(frozen=True, slots=True)
class CountDroppedSend:
    """Count a pre-settled send that was refused before it became a command (T-06). No answer."""


@dataclass(slots=True)
class LimitSending:
    """Set why new sends are refused (R-06); settlements continue. No answer."""

    low_space: bool = field(default=False)
    lagging: bool = field(default=False)
    capture_full: bool = field(default=False)
    """The backlog of the event log is full, and no event may be lost."""
    throttled: bool = field(default=False)
    full: bool = field(default=False)
    """The namespace sends faster, or has more, than its own limits allow."""


@dataclass(frozen=True, slots=True)
class ClockStepped:
    """The wall clock was set by `delta_ms`. No answer."""

    delta_ms: int


@dataclass(frozen=True, slots=True)
class AcceptClock:
    """The wall clock is right after a step that was too large to be believed. No answer."""


Command: TypeAlias = (
    OpenSender | OpenReceiver | OpenCoordinator | CloseLink | SetCredit | DropConnection | Send | SendBatch |
    SendTo | Complete | Abandon | Defer | DeadLetter | Release | RenewLocks | Peek | Schedule |
    CancelScheduled | ReceiveDeferred | UpdateDisposition | DeleteMessages | PurgeMessages | Fetched |
    LoseBodies | RenewSessionLock | GetSessionState | SetSessionState | ShowSession | ListSessions | Declare |
    Discharge | Enlist | LimitSending | CountDroppedSend | ClockStepped | AcceptClock | DefinitionCommand |
    ExtensionCommand
)  # fmt: skip
