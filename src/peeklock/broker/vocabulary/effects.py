"""Effects: what to do once the changes are durable, as plain values named by imperatives, or answers.

They leave in order, never before the batch that caused them is durable (see `engine`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from peeklock.broker.vocabulary.addresses import Address, LinkId, LockToken, ReplyTo, SequenceNumber
from peeklock.broker.vocabulary.descriptions import Description, RuleDescription
from peeklock.broker.vocabulary.errors import ServiceBusError
from peeklock.broker.vocabulary.extension_commands import SearchCursor
from peeklock.broker.vocabulary.message import Message, MessageState, MessageView


@dataclass(slots=True)
class SenderOpened:
    link: LinkId
    queue_id: int
    message_size_bytes_max: int
    reads_routing: bool
    """The gateway must read the `Routing` of each message."""
    takes_runs: bool = False
    """A `Send` may have further messages: none is passed on when the link is opened."""


@dataclass(slots=True)
class ReceiverOpened:
    link: LinkId
    queue_id: int
    partitioned: bool = False
    """The top 16 bits of sequence numbers are the partition."""
    session_id: str | None = None
    """Held by the link."""
    locked_until_ms: int = 0


@dataclass(slots=True)
class CoordinatorOpened:
    link: LinkId


@dataclass(slots=True)
class LinkRefused:
    link: LinkId
    error: ServiceBusError


@dataclass(slots=True)
class DetachLink:
    """Detach an open link (entity deleted or disabled, ...); the core has forgotten it."""

    link: LinkId
    error: ServiceBusError


@dataclass(slots=True)
class SessionLockLapsed:
    """The lock of a link's session has lapsed: drop deliveries that are not sent. The link stays for a while
    (see `lapsed_sessions`)."""

    link: LinkId


@dataclass(slots=True)
class Accepted:
    reply_to: ReplyTo
    count: int = 1
    """Messages that it answers: that of `reply_to` and the next ones."""


@dataclass(slots=True)
class Rejected:
    reply_to: ReplyTo
    error: ServiceBusError


@dataclass(slots=True, init=False)
class Deliver(MessageView):
    """Transfer a message over a receiver link. `lock_token` is the delivery tag in both modes, new each time.
    In a session `locked_until_ms` is 0: the lock is the session's."""

    link: LinkId

    def __init__(  # written for the compiled form: each delivery makes one, and it inherits
        self,
        message: Message,
        lock_token: LockToken | None,
        locked_until_ms: int,
        delivery_count: int,
        ttl_ms: int | None,
        state: MessageState,
        overlay: bytes | None,
        link: LinkId,
    ) -> None:
        self.message = message
        self.lock_token = lock_token
        self.locked_until_ms = locked_until_ms
        self.delivery_count = delivery_count
        self.ttl_ms = ttl_ms
        self.state = state
        self.overlay = overlay
        self.link = link
        self.cursor = None
        self.of_session = False

    def __reduce__(self) -> tuple[object, ...]:
        lock = self.lock_token, self.locked_until_ms
        others = self.delivery_count, self.ttl_ms, self.state, self.overlay, self.link
        return Deliver, (self.message, *lock, *others)


@dataclass(slots=True)
class Drained:
    """Available messages were delivered within the credit; the rest of the credit is used up."""

    link: LinkId


@dataclass(slots=True)
class Settled:
    reply_to: ReplyTo
    count: int = 1
    """See `Accepted`."""


@dataclass(slots=True)
class SettlementFailed:
    reply_to: ReplyTo
    error: ServiceBusError


@dataclass(slots=True)
class LostBody:
    """A message that was dead-lettered without its body."""

    queue_name: str
    """Its queue before."""
    sequence_number: SequenceNumber
    session_id: str | None


@dataclass(slots=True)
class BodiesLost:
    """Answer to LoseBodies: the messages that were still stored."""

    reply_to: ReplyTo
    lost: list[LostBody]


@dataclass(slots=True)
class LocksRenewed:
    reply_to: ReplyTo
    locked_until_ms: list[int]


@dataclass(slots=True)
class MessagesFound:
    """Answer to Peek, ReceiveDeferred, GetSessionState and ReadClaim; may be empty."""

    reply_to: ReplyTo
    messages: list[MessageView]
    partitioned: bool = False
    """The top 16 bits of sequence numbers are the partition."""
    stopped_at: SequenceNumber | None = None
    """Where a browse of one state goes on that passed over many messages of others."""


@dataclass(slots=True)
class Match:
    """A message found by a search."""

    address: Address
    view: MessageView


@dataclass(slots=True)
class MessagesMatched:
    """Answer to SearchMessages."""

    reply_to: ReplyTo
    matches: tuple[Match, ...]
    next: SearchCursor | None
    """Where to continue; None = the search is complete."""


@dataclass(slots=True)
class MatchingDeleted:
    """Answer to DeleteMatching."""

    reply_to: ReplyTo
    deleted: int
    locked: int
    """Matches that stay because they are held."""
    next: SearchCursor | None
    """Where to continue; None = the search is complete."""


@dataclass(slots=True)
class ScheduledShifted:
    reply_to: ReplyTo
    count: int


@dataclass(slots=True)
class MessagesScheduled:
    reply_to: ReplyTo
    sequence_numbers: list[SequenceNumber]


@dataclass(slots=True)
class MessagesDeleted:
    reply_to: ReplyTo
    count: int


@dataclass(slots=True)
class SessionLockRenewed:
    reply_to: ReplyTo
    locked_until_ms: int


@dataclass(slots=True)
class SessionShown:
    """A session as administration shows it."""

    reply_to: ReplyTo
    session_id: str
    locked_until_ms: int
    """UTC ms; 0 = not held."""
    active: int
    """Messages, as the next two."""
    deferred: int
    scheduled: int
    state: MessageView | None
    """Its body is the state; None = not set."""
    connection_id: int = 0
    """Of the receiver that holds it; 0 = not held."""
    link_name: str | None = None
    """Of that receiver, on the wire."""


@dataclass(slots=True)
class SessionsFound:
    reply_to: ReplyTo
    session_ids: list[str]
    next_skip: int


@dataclass(slots=True)
class Claimed:
    reply_to: ReplyTo
    no: int
    """Number of the new claim; 0 = nothing was available and no claim was made."""
    count: int
    size_bytes: int


@dataclass(slots=True)
class ClaimsLeft:
    """Messages still to be removed or given back; 0 = done."""

    reply_to: ReplyTo
    count: int


@dataclass(slots=True)
class CursorView:
    """A cursor and its claims."""

    name: str
    last_no: int
    committed_no: int
    used_at_ms: int
    expires_after_ms: int
    claims: list[tuple[int, int, int]]
    """(number, messages, bytes) of each claim neither committed nor released, ascending."""
    owner: str | None = None
    has_read: bool = True
    """Whether the owner has read, so that it is not replaced by another reader that only asks."""
    backlog: int = 0
    """Messages that it claimed and has not committed, and those that no other cursor holds."""
    oldest_enqueued_at_ms: int | None = None
    """Of the backlog, UTC ms; None = there is none. If others hold most of the queue, it may be earlier."""
    undone: tuple[int, int] | None = None
    """The first and the last number of claims that a restore has undone; None = there was no restore."""


@dataclass(slots=True)
class CursorsFound:
    reply_to: ReplyTo
    cursors: list[CursorView]
    now_ms: int
    """The time of this state; a claim up to it takes what was there."""


@dataclass(slots=True)
class Declared:
    reply_to: ReplyTo
    transaction_id: bytes


@dataclass(slots=True)
class TransactionEnded:
    """A transaction timed out and was rolled back."""

    link: LinkId
    transaction_id: bytes


@dataclass(slots=True)
class Enlisted:
    """The command is checked, and done if its transaction is committed."""

    reply_to: ReplyTo


@dataclass(slots=True)
class Fetch:
    """Read the body of a stored message -> Fetched. The driver answers it; it goes to no client."""

    queue_id: int
    message: Message


@dataclass(slots=True)
class Done:
    reply_to: ReplyTo


@dataclass(slots=True)
class Failed:
    reply_to: ReplyTo
    error: ServiceBusError


@dataclass(slots=True)
class EntityView:
    """An entity's description and runtime figures, as administration shows them."""

    entity_id: int
    description: Description
    created_at_ms: int
    updated_at_ms: int
    accessed_at_ms: int
    """0 = never since the start."""
    size_bytes: int
    active_count: int
    """Active, locked and deferred messages."""
    scheduled_count: int
    dead_letter_count: int
    transfer_dead_letter_count: int
    subscription_count: int = 0
    """Of a topic, as the next three."""
    sql_filter_count: int = 0
    """Filters of all subscriptions that are not correlation filters."""
    correlation_filter_count: int = 0
    unmatched_count: int = 0
    """Messages since the start that no rule matched: accepted and dropped."""
    message_size_bytes_max: int = 0
    """Size limit of a message; of a subscription, its topic's."""

    @property
    def version(self) -> str:
        """Changes with the settings, and with an entity of the same name created later; not with figures."""
        return entity_version(self.entity_id, self.updated_at_ms)


def entity_version(entity_id: int, updated_at_ms: int) -> str:
    """Return an entity's version; no two updates of one have the same time."""
    return f"{entity_id}-{updated_at_ms}"


@dataclass(slots=True)
class EntityFound:
    reply_to: ReplyTo
    entity: EntityView


@dataclass(slots=True)
class EntitiesFound:
    reply_to: ReplyTo
    entities: list[EntityView]
    more: bool


@dataclass(slots=True)
class RulesFound:
    reply_to: ReplyTo
    rules: list[RuleDescription]
    more: bool = False


Effect: TypeAlias = (
    SenderOpened | ReceiverOpened | CoordinatorOpened | LinkRefused | DetachLink | SessionLockLapsed |
    Accepted | Rejected | Deliver | Drained | Settled | SettlementFailed | LocksRenewed | MessagesFound |
    MessagesScheduled | TransactionEnded |
    MessagesDeleted | SessionLockRenewed | SessionShown | SessionsFound | Declared | Enlisted | Fetch | Done |
    Failed | EntityFound | EntitiesFound | RulesFound | Claimed | ClaimsLeft | CursorsFound | BodiesLost |
    MessagesMatched | MatchingDeleted | ScheduledShifted
)  # fmt: skip

BY_LINK: Final = frozenset(
    {
        CoordinatorOpened,
        DetachLink,
        Deliver,
        Drained,
        LinkRefused,
        ReceiverOpened,
        SenderOpened,
        SessionLockLapsed,
        TransactionEnded,
    }
)
"""Effects addressed by link; all others but `Fetch` are addressed by reply_to."""
