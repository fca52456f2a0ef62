"""What clients did and saw, and what the world did: the material that the checker judges.

Owns: the values (`Sent`, `Lock`, `Hold`, `Unit`...) and simple questions about them. Must not know: promises,
any structure of the broker.

All times are of a clock that passes as the broker's does, unless a name says `broker`: those are UTC, as the
broker shows or believes it (`clocks`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from peeklock.broker.vocabulary.changes import QUEUES_PER_ENTITY
from peeklock.broker.vocabulary.descriptions import Description
from tests.simulation.oracle.facts import Facts
from tests.simulation.oracle.records import Commit, require_own
from tests.simulation.oracle.rulebook import Traits
from tests.simulation.oracle.spellings import session_of
from tests.simulation.world.clocks import FOREVER, Clocks

WIRE_MS_MAX = 5_000
"""The longest that anything is in flight on the simulated network, either direction."""

COMMIT_MS_MAX = 3_000
"""The longest from an offered command to its durable batch: a slow commit in flight, then a slow one of its
own."""

HALF_OPEN_MS_MAX = 300_000
"""The longest that the broker keeps a half-open connection: its idle time-out, and some."""

DISABLED = "com.microsoft:entity-disabled"
GONE = ("amqp:not-found", "amqp:resource-deleted")
LIMITED = ("amqp:resource-limit-exceeded", "com.microsoft:server-busy")
"""Refusals of sends while space is low or the broker lags (R-06)."""

DuplicateKey = tuple[str, str | None]
"""(message id, key of the partition): what duplicate detection compares."""


@dataclass(slots=True, eq=False)
class Sent:
    """One message that a client sent, scheduled or not."""

    uid: int
    queue: str
    message_id: str | None
    ttl_ms: int | None
    scheduled_broker_ms: int | None
    group: int
    """Number of its batch; 0 = sent alone."""
    sent_ms: int
    wrong: str | None = None
    """It breaks a rule: it must be refused with this condition, with all its batch."""
    session_id: str | None = None
    partition_key: str | None = None
    via: str | None = None
    """The entity that it was sent via."""
    unit: Unit | None = None
    """The transaction it was sent in."""
    free: bool = False
    """It was sent in a transaction from the coordinator's AMQP session to another entity than the
    transaction's: no partition rule applies."""
    ahead: bool = False
    """It was scheduled by request in a transaction: numbered before it is stored."""
    number: int | None = None
    """The number in that answer."""
    outcome: str | None = None
    """None = unknown; else `accepted`, `dropped` (accepted without a trace: as a duplicate, or since no rule
    chose it), or the condition of the rejection."""
    answered_ms: int = FOREVER
    reasons: set[str] = field(default_factory=set)
    """Requests that would or may remove it: complete, `dead-letter <reason>`, defer."""
    units: list[tuple[Unit, Lock, str, str]] = field(default_factory=list)
    """The same, in transactions: (unit, lock, kind, reason)."""
    traits: Traits = field(default_factory=Traits)
    own_id: bool = True
    """False: it was sent without an id, and `message_id` is the one that the broker chose."""
    copy_of: int | None = None
    """For a topic's copy, the uid of the original. A copy is as if it had been sent to its subscription."""

    def duplicate_key(self, description: Description) -> DuplicateKey | None:
        """What a queue that detects duplicates compares; None = it is never a duplicate."""
        if self.message_id is None:
            return None
        partitioned = description.enable_partitioning
        return self.message_id, self._exact_key(description) if partitioned else None

    def key(self, description: Description) -> str | None:
        """What decides over the partition; the empty session id only where sessions are required."""
        key = self._exact_key(description)
        return session_of(key) if key is not None and description.requires_session else key

    def _exact_key(self, description: Description) -> str | None:
        if description.requires_session and self.session_id is not None:
            return self.session_id
        return self.session_id or self.partition_key


@dataclass(frozen=True, slots=True)
class Seen:
    """A message as a receiver sees it."""

    uid: int
    number: int
    enqueued_number: int
    count: int
    until_broker_ms: int | None
    state: int
    session_id: str | None
    source: str | None
    """The entity that forwarded it as a dead letter."""
    properties: dict[str, object] = field(default_factory=dict)
    """Application properties that rules read or write."""
    label: str | None = None


@dataclass(slots=True, eq=False)
class Claim:
    """Something held for a time: a message by its lock, or a session."""

    connection: int
    queue_id: int
    taken_ms: int
    until_ms: int
    """The latest end that the client knows."""
    ends: list[tuple[int, str]] = field(default_factory=list, kw_only=True)
    """When and by what it may have ended before: `settle complete`, `crash`, `cut`, `update`..."""
    renewals_open: int = field(default=0, kw_only=True)
    """Unanswered renewals: `until_ms` may be later than known."""
    renewed: bool = field(default=False, kw_only=True)

    @property
    def entity_id(self) -> int:
        return self.queue_id // QUEUES_PER_ENTITY

    def may_end_ms(self) -> int:
        """The earliest instant at which it can have ended."""
        return min([self.until_ms, *(at for at, _ in self.ends)])

    def ended_by(self, what: str, since_ms: int = 0) -> bool:
        return any(kind == what and at >= since_ms for at, kind in self.ends)


@dataclass(slots=True, eq=False, repr=False)
class Hold(Claim):
    """A session as its receiver link holds it."""

    session_id: str
    opened_ms: int
    """When the receiver learnt of it."""
    first: dict[int, Lock] = field(default_factory=dict)
    """Sequence number -> its latest delivery over the link."""
    returned: dict[int, int] = field(default_factory=dict)
    """Sequence number -> how many messages behind it may still come before it: it was given back."""
    used_ms: int = 0
    """When its client last requested something that only a holder may do, or settled a message of it."""

    @property
    def session(self) -> str:
        """The session, however its holder spells it."""
        return session_of(self.session_id)

    def surely_live(self, now_ms: int) -> bool:
        return not self.ends and now_ms < self.until_ms

    def __repr__(self) -> str:
        return (
            f"Hold({self.session_id!r} of queue {self.queue_id} by c{self.connection},"
            f" {self.taken_ms} to {self.until_ms}, ends {self.ends})"
        )


@dataclass(slots=True, eq=False)
class Renewal:
    """A renewal of a message's lock, which moves it to the connection of the renewal (C26)."""

    connection: int
    asked_ms: int
    answered_ms: int = FOREVER
    """When it was known to be done."""


@dataclass(slots=True, eq=False, repr=False)
class Lock(Claim):
    """One peek-lock as its receiver knows it. Under a session's lock `taken_ms` is that one's, and `until_ms`
    means nothing."""

    token: bytes
    uid: int
    count: int
    seen_ms: int
    """When the delivery arrived."""
    hold: Hold | None = None
    number: int = 0
    """The sequence number: in a circle a message comes back to its queue under another one."""
    settled: str | None = None
    """The settlement that was answered with success."""
    settled_ms: int = 0
    freed_ms: int = 0
    """When its client learnt that the transaction which was to settle it had not."""
    renewals: list[Renewal] = field(default_factory=list)
    """All renewals that may have been done."""
    breaks: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By lost connection that it may have belonged to: the entry in `ends` for the loss."""

    def owners(self, before_ms: int = FOREVER) -> set[int]:
        """Return the connections that it may belong to, as far as renewals requested before an instant show
        it."""
        renewals = [renewal for renewal in self.renewals if renewal.asked_ms < before_ms]
        done = [renewal for renewal in renewals if renewal.answered_ms < FOREVER]
        owners = set() if done else {self.connection}
        for renewal in renewals:
            if not any(later.asked_ms > renewal.answered_ms for later in done):
                owners.add(renewal.connection)
        return owners

    def may_end_ms(self) -> int:
        own = Claim.may_end_ms(self)
        return own if self.hold is None else min(own, self.hold.may_end_ms())

    def surely_live(self, now_ms: int, but: int = 0, asked_ms: int = FOREVER) -> bool:
        """Nothing but the last `but` events in `ends` can have ended it by `now_ms`, nor was it in a
        transaction at `asked_ms`."""
        ended = sum(at <= now_ms for at, _ in self.ends)  # that of a grace is still to come
        if ended > but or self.settled is not None or asked_ms < self.freed_ms:
            return False
        return now_ms < self.until_ms if self.hold is None else self.hold.surely_live(now_ms)

    def all_ends(self) -> list[tuple[int, str]]:
        return self.ends if self.hold is None else [*self.ends, *self.hold.ends]

    def __repr__(self) -> str:
        held = "" if self.hold is None else f" under {self.hold}"
        return (
            f"Lock(uid {self.uid} of queue {self.queue_id} by c{self.connection}, count {self.count},"
            f" {self.taken_ms} to {self.until_ms}, seen {self.seen_ms}, ends {self.ends},"
            f" settled {self.settled}{held})"
        )


@dataclass(slots=True, eq=False, repr=False)
class Unit:
    """One transaction as its client knows it."""

    no: int
    connection: int
    declared_ms: int
    """When it was requested."""
    sends: list[int] = field(default_factory=list)
    settlements: list[tuple[Lock, str, str]] = field(default_factory=list)
    """(lock, kind, reason)."""
    refused: set[int | bytes] = field(default_factory=set)
    """uids of sends and tokens of locks that were refused, or are not answered."""
    denied: set[int | bytes] = field(default_factory=set)
    """Those of them that were refused."""
    silent: set[int] = field(default_factory=set)
    """uids of its unanswered sends: the commit shows whether they are part of it."""
    cancels: list[tuple[str, int]] = field(default_factory=list)
    """(queue, sequence number) of scheduled messages with a request to cancel them."""
    cancelled: list[tuple[str, int]] = field(default_factory=list)
    """Those of them that the broker has taken into it."""
    states: list[tuple[Hold, StateWrite]] = field(default_factory=list)
    """Requested states of sessions."""
    first_ms: int = FOREVER
    """When the client knew that the broker had begun to count its two minutes."""
    asked: str | None = None
    """`commit` or `roll back`."""
    asked_ms: int = FOREVER
    outcome: str | None = None
    """`committed`, `rolled back`, or None = unknown."""
    applied: Commit | None = None
    """The commit in which its effects appeared."""

    def __repr__(self) -> str:
        settled = [(lock.uid, kind) for lock, kind, _ in self.settlements]
        return (
            f"Unit({self.no} by c{self.connection}, sends {self.sends}, settles {settled},"
            f" without {len(self.refused)}, asked to {self.asked}, {self.outcome})"
        )


@dataclass(slots=True, eq=False)
class StateWrite:
    """A session's state as a client set it."""

    uid: int | None
    """None = cleared."""
    asked_ms: int
    latest_ms: int = FOREVER
    """The latest time at which it has taken effect, if ever."""
    done: bool | None = None
    """Whether it has; None = unknown."""
    unit: Unit | None = None
    """The transaction that sets it."""
    enlisted: bool = False
    """The broker has taken it into that."""

    @property
    def is_held_back(self) -> bool:
        """Whether it waits in a transaction without a request to commit."""
        return self.unit is not None and self.unit.asked != "commit"


@dataclass(slots=True)
class Purge:
    """Messages that the broker may remove by itself, because a client requested the removal of all."""

    queue_id: int
    before_broker_ms: int
    asked_ms: int
    latest_ms: int = FOREVER


class History:
    """Everything that is known at this moment."""

    def __init__(self, now_ms: Callable[[], int], first_uid: int = 0) -> None:
        self.now_ms = now_ms
        self._first_uid = first_uid
        self.facts: Facts
        self.clocks = Clocks()
        self.wire_ms_max = WIRE_MS_MAX
        """The longest that anything is really in flight in this seed."""
        self.sent: dict[int, Sent] = {}
        self.groups: dict[int, list[int]] = {}
        self.locks: dict[bytes, Lock] = {}
        self.locks_of: dict[int, list[Lock]] = {}
        self.holds: list[Hold] = []
        self.crashes: list[int] = []
        self.jumps: list[int] = []
        self.was_disabled = False
        """An entity's status was not active at some time: links may be refused or detached for it."""
        self.limited: list[int] = []
        """When sending was limited, or not any more."""
        self.connections: dict[int, tuple[int, int]] = {}
        """When each was made, and in which life of the broker."""
        self.lost: dict[int, tuple[int, str]] = {}
        self.grace_ms: int | None = 0
        """How long the broker keeps the locks of a broken connection; None = until they lapse."""
        self.updates: dict[int, list[tuple[int, str]]] = {}
        """Entity id -> when its locks were dropped by an `update`, or by an `update perhaps`."""
        self.deletions: dict[str, list[int]] = {}
        """Name -> when its deletion was requested."""
        self.losses: list[int] = []
        """When deliveries may have been lost between broker and client."""
        self.delete_budget: dict[tuple[str, int], int] = {}
        """By name and sub-queue: how many messages receive-and-delete and batch deletion may have removed
        unseen."""
        self.charged: dict[tuple[str, int], list[int]] = {}
        """By the same: the uids that were charged to that."""
        self.vias: dict[str, list[str]] = {}
        """Entity -> where messages were sent via it."""
        self.purges: list[Purge] = []
        self.answered: dict[tuple[int, int], int] = {}
        """(entity id, sequence number) -> uid of the message of a transaction that was answered with it."""
        self.cancels: set[tuple[str, int]] = set()
        """(queue, sequence number) of scheduled messages with a request to cancel them."""

    def passed_ms(self, connection: int, shown_ms: int, lasts_ms: int, from_ms: int = 0) -> int:
        """Return when a lock ends whose end was answered as this instant, and that was taken or renewed since
        a time."""
        epoch = self.connections[connection][1]
        return self.clocks.passed_ms(shown_ms, lasts_ms, epoch, from_ms, self.now_ms())

    def claims(self) -> list[Claim]:
        return [*self.locks.values(), *self.holds]

    def end_claims(self, what: str, at_ms: int, of: Callable[[Claim], bool]) -> None:
        """Record that claims may end."""
        for claim in self.claims():
            if of(claim):
                claim.ends.append((at_ms, what))

    def ends_since(self, claim: Claim) -> list[tuple[int, str]]:
        """Return what may have ended a claim that was taken a while ago and is known only now."""
        since = claim.taken_ms
        ends = [(at, "crash") for at in self.crashes if at >= since]
        ends += [(at, what) for at, what in self.updates.get(claim.entity_id, ()) if at >= since]
        if claim.connection in self.lost and not isinstance(claim, Lock):
            ends.append(self.lost[claim.connection])
        gone = self.facts.gone.get(claim.entity_id)
        return ends if gone is None else [*ends, (gone.opened_ms, "deleted")]

    def may_be_gone(self, name: str) -> bool:
        """Return whether an entity may be missing now, or have been."""
        return name in self.deletions or any(i in self.facts.gone for i in self.facts.named(name))

    def excused(self, connection: int) -> bool:
        """Return whether something has happened since that may end a connection or its links from the
        broker's side."""
        since = self.connections[connection][0]
        return connection in self.lost or any(at >= since for at in (*self.jumps[-1:], *self.crashes[-1:]))

    def queue_id(self, name: str, sub: int) -> int:
        """Return the queue of the latest entity with a name."""
        return self.facts.named(name)[-1] * QUEUES_PER_ENTITY + sub

    def require_own(self, uid: int) -> None:
        """Raise Violation if a body that was seen is of another namespace."""
        require_own(uid, self._first_uid, "seen")

    def identified(self, seen: Seen, name: str, sub: int) -> Seen:
        """Return which copy of a message was seen somewhere, by its number. Raises: Violation, if it is of
        another namespace."""
        self.require_own(seen.uid)
        ids = [entity_id * QUEUES_PER_ENTITY + sub for entity_id in self.facts.named(name)]
        for uid in self.facts.identities(seen.uid):
            for record, _ in self.facts.life(uid).records:
                if record.sequence_number == seen.number and record.queue_id in ids:
                    return replace(seen, uid=uid)
        return seen

    def queue_id_with(self, name: str, sub: int, uid: int) -> int:
        """Return the queue of a name in which a message was, the latest if it was in none."""
        known = {record.queue_id for record, _ in self.facts.life(uid).records}
        ids = [entity_id * QUEUES_PER_ENTITY + sub for entity_id in self.facts.named(name)]
        return next((queue_id for queue_id in reversed(ids) if queue_id in known), ids[-1])

    def story(self, uid: int) -> str:
        """Return what was ever durable about a uid, and its locks."""
        life = self.facts.life(uid)
        lines = [f"{self.sent.get(uid)}"]
        lines += [
            f"  batch {commit.no} landed {commit.landed_ms}: {record}" for record, commit in life.records
        ]
        if life.removed:
            lines.append(f"  gone with batch {life.removed.no} landed {life.removed.landed_ms}")
        lines += [f"  {lock}" for lock in self.locks_of.get(uid, ())]
        return "\n".join(lines)
