"""The planted bugs: names, the classes that have them, the seeds that find them, what the violation says.

Each subclasses or wraps a real part, so that the product has no switch for it. A checker that has never
failed proves nothing: each bug here is one that a broker of this kind has had, or nearly, and a test requires
that it is found within `seeds` seeds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from peeklock.broker.namespace import Namespace
from peeklock.broker.queue.peek_lock import Holder, Lock
from peeklock.broker.queue.timers import FAR_MS, Timers
from peeklock.broker.vocabulary.changes import (
    Change,
    EntityStored,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
    RuleStored,
)
from peeklock.broker.vocabulary.commands import Command, LockToken, UpdateDisposition
from peeklock.broker.vocabulary.effects import Deliver, Drained, Effect
from peeklock.engine.bodies import BodyCache
from peeklock.engine.engine import Engine
from peeklock.store.base import (
    Batch,
    Definitions,
    Frame,
    FrameKeys,
    LiveFacts,
    Store,
    StoreError,
    StoreReader,
)
from peeklock.store.event_backlog import EventBacklog
from tests.simulation.actors.hostile import HOSTILE_FIRST
from tests.simulation.bugs.circles import (
    DroppedAtTheEnd,
    DroppedBeyondTheLimit,
    EndlessCircles,
    ForgottenHops,
    LostForwards,
    UncountedHops,
    UnsharedLimits,
)
from tests.simulation.bugs.clocks import DueBackwards, ForgottenWindows, ShortenedLocks, StaleEnds
from tests.simulation.bugs.driver import (
    DroppedRows,
    EndlessLeases,
    KeptUndelivered,
    OvertakingEffects,
)
from tests.simulation.bugs.graces import EndlessGraces, HastyGraces, LateLapses, UnmovedLocks
from tests.simulation.bugs.http import HastyDeletions, LostLeavers, ReleasedLocks
from tests.simulation.bugs.isolation import IGNORED_KEYS, UNTOLD_CHOICES, CrossedDriver, SharedBodies
from tests.simulation.bugs.namespace import (
    WORN_DELIVERIES,
    CopyingForwards,
    CountedDeadLetters,
    DeafToCancelling,
    DisorderedSessions,
    EagerDetaches,
    ForgottenClaims,
    ForgottenDetaches,
    GreedyClaims,
    HastyCancels,
    HeldAfterRollBacks,
    KeptIds,
    KeptSessions,
    LeftStates,
    LostSettlements,
    OpenSessions,
    SharedSessions,
    SplitSessions,
    StaleDeliveries,
    StrangeSettlements,
    TornCommits,
    TornTransactions,
    UnaskedSchedules,
    UncountedDeferrals,
    VolatileClaims,
    VolatileFreedom,
)
from tests.simulation.bugs.nodes import ENDLESS_LEASES, FAITHFUL_RELAYS, HASTY_READS, SKIPPED_FENCES
from tests.simulation.bugs.owners import KEPT_CLAIMS, STOLEN_CURSORS, STRANGE_READERS
from tests.simulation.bugs.peers import (
    LEAKED_PARTIALS,
    UNBOUND_CREDIT,
    UNBOUND_STRANGERS,
    UNSHARED_BOUND,
    Borderless,
    GenerousTurns,
    StubbornTurns,
    Unbudgeted,
)
from tests.simulation.bugs.topics import (
    DoubledCopies,
    ExactNames,
    ForgivenRules,
    LostCopies,
    OwnBodies,
    SilentRules,
    TornCopies,
)
from tests.simulation.world.pieces import Pieces
from tests.simulation.world.sizes import COPIES_FOLLOWING_MAX
from tests.simulation.world.topology import CIRCLES_FIRST, TOPIC_CIRCLES_FIRST, TOPICS_FIRST


class _EarlyTimers(Timers):
    """Timers of a namespace; one is due while effects of a batch in flight are to be handed out."""

    def __init__(self, engine: EarlyEngine) -> None:
        self._engine = engine

    @property
    def next_ms(self) -> int | None:  # type: ignore[override]  # planted in place of an attribute
        return 0 if self._engine._early else self._engine.namespace.timers.next_ms


class EarlyEngine(Engine):
    """Hands out the effects of a batch while it is in flight."""

    def __init__(self, namespace: Namespace, bodies: BodyCache) -> None:
        super().__init__(namespace, bodies)
        self._early: list[Effect] = []
        self._commits = False
        self.timers = _EarlyTimers(self)

    @property
    def idle(self) -> bool:
        return super().idle and not self._commits

    def take_batch(self, now_ms: int) -> Batch | None:
        if self._early:
            return None
        batch = super().take_batch(now_ms)
        if batch is not None:
            self._early, self._flying_effects = self._flying_effects, []
            self._commits, self.in_flight = True, not self._early
        return batch

    def committed(self, no: int, frame_bytes: int, now_ms: int) -> list[Effect]:
        self._commits, self.in_flight = False, True
        return super().committed(no, frame_bytes, now_ms)

    def release(self) -> list[Effect]:
        early, self._early = self._early, []
        self.in_flight = self._commits
        return early or super().release()


class TornEngine(Engine):
    """Takes a batch in the middle of a command."""

    def take_batch(self, now_ms: int) -> Batch | None:
        namespace = self.namespace
        assert isinstance(namespace, Namespace)
        unfinished, namespace.unfinished = namespace.unfinished, False
        try:
            return super().take_batch(now_ms)
        finally:
            namespace.unfinished = unfinished


class WrappedStore:
    """A store whose batches and facts pass through `batch` and `live`."""

    def __init__(
        self,
        inner: Store,
        *,
        batch: Callable[[Batch], Batch] = lambda batch: batch,
        live: Callable[[LiveFacts], LiveFacts] = lambda live: live,
    ) -> None:
        self._inner = inner
        self._batch = batch
        self._live = live

    async def open(self) -> None:
        await self._inner.open()

    async def load_definitions(self) -> Definitions:
        return await self._inner.load_definitions()

    def load(self) -> AsyncIterator[Frame]:
        return self._inner.load()

    async def load_live(self) -> LiveFacts:
        return self._live(await self._inner.load_live())

    def commit(self, batch: Batch) -> Awaitable[int]:
        return self._inner.commit(self._batch(batch))

    async def read_body_rows(self, rows: Sequence[int]) -> dict[int, Sequence[bytes]]:
        return await self._inner.read_body_rows(rows)

    async def list_body_rows(self, after: int, count_max: int) -> list[tuple[int, int]]:
        return await self._inner.list_body_rows(after, count_max)

    async def last_body_row(self) -> int:
        return await self._inner.last_body_row()

    async def read_head(self, bytes_max: int) -> list[FrameKeys]:
        return await self._inner.read_head(bytes_max)

    @property
    def created_at_ms(self) -> int:
        return self._inner.created_at_ms

    @property
    def event_backlog(self) -> EventBacklog:
        return self._inner.event_backlog

    def free_bytes(self) -> int | None:
        return self._inner.free_bytes()

    def valid_until_s(self) -> float:
        return self._inner.valid_until_s()

    def failure(self) -> StoreError | None:
        return self._inner.failure()

    def reader(self) -> StoreReader:
        return self._inner.reader()

    async def close(self) -> None:
        await self._inner.close()


def _forget_counters(live: LiveFacts) -> LiveFacts:
    """Recover without the counters: the highest message that is left decides the next number."""
    return replace(live, numbers=[])


def _forget_partitions(live: LiveFacts) -> LiveFacts:
    """Recover without the counters of partitions: each begins again."""
    return replace(
        live,
        numbers=[(no, replace(n, partitions=(1,) * 16) if n.partitions else n) for no, n in live.numbers],
    )


def _forget_answered_numbers(batch: Batch) -> Batch:
    """Lose the counters of a batch that stores no message."""
    if any(type(change) is MessageStored for change in batch.changes):
        return batch
    return replace(batch, changes=[c for c in batch.changes if type(c) is not NumbersIssued])


def _forget_ids(live: LiveFacts) -> LiveFacts:
    """Recover without the message ids of the duplicate window."""
    return replace(live, ids=[], id_frames={})


def _forget_schedules(live: LiveFacts) -> LiveFacts:
    """Recover without the fact that a message was scheduled."""

    def without() -> Iterator[tuple[int, list[MessageStored]]]:
        for queue_id, changes in live.messages:
            for change in changes:
                change.message.was_scheduled = False
            yield queue_id, changes

    return replace(live, messages=without())


def _forget_copies(live: LiveFacts) -> LiveFacts:
    """Recover without how many copies may still follow from messages."""

    def without() -> Iterator[tuple[int, list[MessageStored]]]:
        for queue_id, changes in live.messages:
            for change in changes:
                change.message.copies_left = COPIES_FOLLOWING_MAX
            yield queue_id, changes

    return replace(live, messages=without())


def _forget_removals(batch: Batch) -> Batch:
    """Lose the removal records of some batches."""
    if batch.no % 7:
        return batch
    return replace(batch, changes=[c for c in batch.changes if type(c) is not MessageRemoved])


def _store_partly(batch: Batch) -> Batch:
    """Store only the first of several new messages, now and then."""
    stored = [c for c in batch.changes if type(c) is MessageStored]
    if len(stored) < 2 or batch.no % 3:
        return batch
    return replace(batch, changes=[c for c in batch.changes if c is not stored[-1]])


def _forget_rules(batch: Batch) -> Batch:
    """Lose the rules that are added or changed after their subscription was created."""
    if any(type(c) is EntityStored for c in batch.changes):
        return batch
    return replace(batch, changes=[c for c in batch.changes if type(c) is not RuleStored])


class KeptLocks(Namespace):
    """Keeps the locks of the process before, and lets their holders settle."""

    def __init__(self, kept: dict[bytes, tuple[int, int, int]], **settings: Any) -> None:
        """Keep the real namespace. `kept` outlives the process: token -> (queue id, position, locked
        until)."""
        super().__init__(**settings)
        self._kept = kept

    def apply(self, command: Command, now_ms: int) -> tuple[list[Change], list[Effect]]:
        if type(command) is UpdateDisposition:
            for token in command.lock_tokens:
                self._take_back(token, now_ms)
        changes, effects = super().apply(command, now_ms)
        self._keep(effects)
        return changes, effects

    def advance(self, now_ms: int, items: int | None = None) -> tuple[list[Change], list[Effect]]:
        changes, effects = super().advance(now_ms, items)
        self._keep(effects)
        return changes, effects

    def _keep(self, effects: list[Effect]) -> None:
        for effect in effects:
            if type(effect) is Deliver and effect.lock_token is not None and effect.locked_until_ms:
                message = effect.message
                self._kept[effect.lock_token] = message.queue_id, message.position, effect.locked_until_ms

    def _take_back(self, token: LockToken, now_ms: int) -> None:
        queue_id, position, until_ms = self._kept.pop(token, (0, 0, 0))
        message = self.find(queue_id, position)
        if message is not None and message.lock is None and until_ms > now_ms:
            queue = self._queues[queue_id]
            holder = Holder()
            lock = Lock(token, message, queue, until_ms, holder)
            message.lock = queue.locks[token] = holder[token] = lock


class UncountedLapse(Namespace):
    """Does not count the delivery whose lock lapsed."""

    def advance(self, now_ms: int, items: int | None = None) -> tuple[list[Change], list[Effect]]:
        changes, effects = super().advance(now_ms, items)
        lapsed = [c.message for c in changes if type(c) is MessageStored and c.message.delivery_count > 0]
        for message in lapsed:
            if message.queue_id % 4 == 0:
                message.delivery_count -= 1
        for effect in effects:
            if type(effect) is Deliver:
                effect.delivery_count = effect.message.delivery_count
        return changes, effects


class HastyDrain(Namespace):
    """Answers a drain before the deliveries that it allows."""

    def apply(self, command: Command, now_ms: int) -> tuple[list[Change], list[Effect]]:
        changes, effects = super().apply(command, now_ms)
        return changes, sorted(effects, key=lambda effect: type(effect) is not Drained)


@dataclass(frozen=True, slots=True)
class Bug:
    """A planted bug."""

    what: str
    seeds: int
    """It must be found within so many seeds."""
    shows: str
    """What the violation says, as a regular expression: the bug must be found for the right reason."""
    pieces: Callable[[], Pieces]
    first_seed: int = 0
    nodes: int | None = None
    """So many nodes on one store with leases; None = one without."""


NODES = 3

SESSIONS_READ_FROM = 120
"""A seed in which a reader's cursor and receivers meet at one session, and a client sees it first; 190 is
another."""

DISORDER_FROM = 40
"""In 40, 48 and 50 a delivery shows the disorder of a session; in seeds before it a peek does so first."""
STATE_LEFT_FROM = 40
"""In 47 a transaction that has set a state is rolled back, and the state is read after it."""
OVERTAKEN_FROM = 100
"""In 107 two effects for one connection have left in the wrong order; in 113 two others."""
HASTY_FROM = 20
"""In 28 a broker dies between the answer and the deletion."""
CANCELLED_FROM = 140
"""In 149 and 167 a cancelled accept meets a session that is free."""
LAPSED_FROM = 28
"""A seed in which no client uses or takes a lapsed session, so that its link is only to be detached."""
STALE_FROM = 22
"""A seed in which a message comes to a session while its last holder still has the link."""
COPIES_TORN_FROM = 14
"""A seed in which the last copy of a message is missing until another batch."""
FREED_FROM = 170
"""A seed in which the id of a cancelled message is sent again after a restart."""
WORN_FROM = 190
"""A seed in which a MaxDeliveryCount is lowered below the count of a message that is delivered then."""
FLOODED_FROM = 70
"""A seed in which a flood that is served whole keeps a client waiting; 76 and 80 are others."""
RULES_FAIL_FROM = 26
"""A seed in which a rule fails for a message whose subscription dead-letters it."""

LATE_FROM = 194
"""A seed in which a client settles between the end of a lock and that of its connection's grace."""
BELIEVED_FROM = 50
"""Something falls due by a step of the clock in 51 and 60."""
WINDOWS_FROM = 70
"""A seed in which an id comes again after a restart, in a window that has moved with the clock."""
LIMIT_FROM = 62
"""A seed in which a restart meets a circle of topics that is near its end; 78 is another."""
STRANGERS_FROM = 10
"""A seed in which all strangers together pass their bound; 15 is another."""
SECOND_FROM = 11
"""From here on four seeds follow each other that have two namespaces."""

BUGS: dict[str, Bug] = {
    "early-effects": Bug(
        "effects released before commit",
        5,
        "not on stable storage|yet not stored|is not durable",
        lambda: Pieces(engine=EarlyEngine),
    ),
    "overtaking-effects": Bug(
        "effects that leave before others that were made durable before them",
        20,
        r"was given position \d+ after \d+",
        lambda: Pieces(driver=OvertakingEffects),
        OVERTAKEN_FROM,
    ),
    "dropped-row": Bug(
        "a body row dropped while a connection waits for it",
        20,
        "that are waited for some are gone",
        lambda: Pieces(driver=DroppedRows),
    ),
    "kept-undelivered": Bug(
        "a locked message that reaches no connection and is not given back",
        20,
        "locked, and no connection received it",
        lambda: Pieces(driver=KeptUndelivered),
    ),
    "endless-lease": Bug(
        "effects without a batch that leave after the lease",
        8,
        "effects leave [0-9]+ ms after the lease",
        lambda: Pieces(driver=EndlessLeases),
    ),
    "torn-batch": Bug(
        "a batch of messages in two commits, and a crash between them",
        5,
        "a batched send was stored without its member",
        lambda: Pieces(engine=TornEngine),
    ),
    "reused-number": Bug(
        "a sequence number reused after restart",
        10,
        "a number is used again",
        lambda: Pieces(store=lambda store: WrappedStore(store, live=_forget_counters)),
    ),
    "forgotten-schedule": Bug(
        "a message that was scheduled does not say so after a restart",
        5,
        "was scheduled:",
        lambda: Pieces(store=lambda store: WrappedStore(store, live=_forget_schedules)),
    ),
    "kept-lock": Bug(
        "a lock kept over a restart",
        20,
        "succeeded on a lock",
        lambda: Pieces(namespace=partial(KeptLocks, {})),
    ),
    "hasty-grace": Bug(
        "a lock dropped before the grace of its connection is over",
        40,
        "has two live locks|yet the lock is live",
        lambda: Pieces(namespace=HastyGraces),
    ),
    "endless-grace": Bug(
        "a lock kept past the grace of its connection",
        40,
        "succeeded on a lock of a broken connection",
        lambda: Pieces(namespace=EndlessGraces),
    ),
    "late-lapse": Bug(
        "a lock kept past its own end, since the grace of its connection lasts longer",
        20,
        "succeeded on a lapsed lock",
        lambda: Pieces(namespace=LateLapses),
        LATE_FROM,
    ),
    "unmoved-lock": Bug(
        "a renewal that does not move a lock to its connection",
        40,
        "has two live locks|yet the lock is live",
        lambda: Pieces(namespace=UnmovedLocks),
    ),
    "lost-removal": Bug(
        "a completed message coming back: its removal record is lost",
        10,
        "returns a message that was removed",
        lambda: Pieces(store=lambda store: WrappedStore(store, batch=_forget_removals)),
    ),
    "uncounted-lapse": Bug(
        "delivery count not incremented when a lock lapses",
        20,
        "the delivery count did not go up",
        lambda: Pieces(namespace=UncountedLapse),
    ),
    "uncounted-deferral": Bug(
        "delivery count not incremented when a message is deferred",
        10,
        "deferred, yet the delivery count did not go up|defer was acknowledged, yet",
        lambda: Pieces(namespace=UncountedDeferrals),
    ),
    "counted-dead-letter": Bug(
        "delivery count incremented in a dead-letter queue",
        20,
        "the delivery count of a dead letter",
        lambda: Pieces(namespace=CountedDeadLetters),
    ),
    "worn-delivery": Bug(
        "a message delivered once more although MaxDeliveryCount was lowered to its count",
        12,
        "past MaxDeliveryCount",
        lambda: Pieces(patches=WORN_DELIVERIES),
        WORN_FROM,
    ),
    "hasty-drain": Bug(
        "a drain answered before its deliveries",
        10,
        "was drained after",
        lambda: Pieces(namespace=HastyDrain),
    ),
    "partial-batch": Bug(
        "a batch stored partly",
        10,
        "has lost a message|another body",
        lambda: Pieces(store=lambda store: WrappedStore(store, batch=_store_partly)),
    ),
    "shared-session": Bug(
        "a session handed to two links",
        10,
        "two links hold a session",
        lambda: Pieces(namespace=SharedSessions),
    ),
    "split-session": Bug(
        "each spelling of a session id has its own holder",
        10,
        "two links hold a session",
        lambda: Pieces(namespace=SplitSessions),
    ),
    "eager-detach": Bug(
        "the link of a session detached together with the lapse of its lock",
        10,
        "before the time, and for nothing",
        lambda: Pieces(namespace=EagerDetaches),
    ),
    "forgotten-detach": Bug(
        "the link of a lapsed session never detached",
        10,
        "the link of a lapsed session was not detached",
        lambda: Pieces(namespace=ForgottenDetaches),
        LAPSED_FROM,
    ),
    "stale-delivery": Bug(
        "a delivery over the link of a lapsed session",
        10,
        "came over the link of a lapsed session|came again that was not given back",
        lambda: Pieces(namespace=StaleDeliveries),
        STALE_FROM,
    ),
    "strange-settlement": Bug(
        "a message of a session settled by a connection that does not hold it",
        10,
        "was settled by a connection that does not hold the session",
        lambda: Pieces(namespace=StrangeSettlements),
    ),
    "kept-session": Bug(
        "a session's lock kept over a restart",
        20,
        "though it is free",
        lambda: Pieces(namespace=partial(KeptSessions, {})),
    ),
    "disordered-session": Bug(
        "what is given back comes behind the rest of its session",
        20,
        "which was given back",
        lambda: Pieces(namespace=DisorderedSessions),
        DISORDER_FROM,
    ),
    "deaf-to-cancelling": Bug(
        "a cancelled accept keeps a session",
        30,
        "though it (is|was) free|no session was available",
        lambda: Pieces(namespace=DeafToCancelling),
        CANCELLED_FROM,
    ),
    "torn-transaction": Bug(
        "a transaction done in two frames",
        10,
        "done in part|was committed, yet",
        lambda: Pieces(namespace=TornTransactions),
    ),
    "lost-settlement": Bug(
        "a settlement of a transaction lost",
        10,
        "done in part, without the|was committed, yet",
        lambda: Pieces(namespace=LostSettlements),
    ),
    "unasked-schedule": Bug(
        "a message scheduled in a transaction stored without its commit",
        10,
        "was not committed|was refused with rolled back",
        lambda: Pieces(namespace=UnaskedSchedules),
    ),
    "left-state": Bug(
        "a transaction's state left behind after a rollback",
        40,
        "a state is stored, yet its transaction was not committed",
        lambda: Pieces(namespace=LeftStates),
        first_seed=STATE_LEFT_FROM,
    ),
    "hasty-cancel": Bug(
        "a cancel in a transaction acts at once",
        40,
        "gone without a request",
        lambda: Pieces(namespace=HastyCancels),
    ),
    "held-after-roll-back": Bug(
        "a delivery that cannot be settled after a roll-back",
        20,
        "yet the lock is live",
        lambda: Pieces(namespace=HeldAfterRollBacks),
    ),
    "volatile-number": Bug(
        "a number answered in a transaction, and again after a crash",
        20,
        "was answered, yet is not durable|was answered again|used again|lost counters",
        lambda: Pieces(store=lambda store: WrappedStore(store, batch=_forget_answered_numbers)),
    ),
    "copying-forward": Bug(
        "a forward that copies without removing",
        30,
        "in two places",
        lambda: Pieces(namespace=CopyingForwards),
    ),
    "forgotten-hop": Bug(
        "a hop that is not counted",
        17,
        "no way leads there",
        lambda: Pieces(namespace=ForgottenHops),
        CIRCLES_FIRST,
    ),
    "endless-circle": Bug(
        "a circle without an end, since hops are not counted from the second one on",
        17,
        "RecursionError",
        lambda: Pieces(namespace=EndlessCircles),
        CIRCLES_FIRST,
    ),
    "dropped-at-the-end": Bug(
        "a message that is dropped silently after its last hop",
        17,
        "a number is skipped",
        lambda: Pieces(namespace=DroppedAtTheEnd),
        CIRCLES_FIRST,
    ),
    "lost-forward": Bug(
        "a message that is lost behind its second hop, and reported to have gone on",
        17,
        "not the copies that the rules choose|a message is gone|a number is skipped",
        lambda: Pieces(namespace=LostForwards),
        TOPIC_CIRCLES_FIRST,
    ),
    "dropped-beyond-the-limit": Bug(
        "a message that is dropped silently when too many copies would follow from it",
        17,
        "not the copies that the rules choose|a message is gone without a request",
        lambda: Pieces(namespace=DroppedBeyondTheLimit),
        TOPIC_CIRCLES_FIRST,
    ),
    "unshared-limit": Bug(
        "copies that each have a limit of copies, in place of one limit for all",
        17,
        "copies follow from uid",
        lambda: Pieces(namespace=UnsharedLimits),
        TOPIC_CIRCLES_FIRST,
    ),
    "forgotten-limit": Bug(
        "how many copies may still follow from a message, forgotten at a restart",
        17,
        "copies follow from uid",
        lambda: Pieces(store=lambda store: WrappedStore(store, live=_forget_copies)),
        LIMIT_FROM,
    ),
    "uncounted-copy": Bug(
        "a topic's copies that do not count the hop which their message has made",
        17,
        "not the copies that the rules choose|no way leads there",
        lambda: Pieces(namespace=UncountedHops),
        TOPIC_CIRCLES_FIRST,
    ),
    "forgotten-id": Bug(
        "message ids forgotten at a restart",
        10,
        "is a duplicate of",
        lambda: Pieces(store=lambda store: WrappedStore(store, live=_forget_ids)),
    ),
    "kept-id": Bug(
        "the id of a cancelled message is not free",
        30,
        "was accepted, yet|a message is gone|was committed, yet|stored without its member",
        lambda: Pieces(namespace=KeptIds),
    ),
    "volatile-freedom": Bug(
        "the id of a cancelled message is taken again after a restart",
        30,
        "was accepted, yet|a message is gone|was committed, yet|stored without its member",
        lambda: Pieces(namespace=VolatileFreedom),
        FREED_FROM,
    ),
    "reused-partition-number": Bug(
        "a partition's number used again after a restart",
        20,
        "partition's number is used again|counters go backwards",
        lambda: Pieces(store=lambda store: WrappedStore(store, live=_forget_partitions)),
    ),
    "lost-copy": Bug(
        "the copy for the last subscription lost",
        10,
        "not the copies that the rules choose|a number is skipped|was accepted, yet",
        lambda: Pieces(namespace=LostCopies),
        TOPICS_FIRST,
    ),
    "doubled-copy": Bug(
        "a second copy for two rules without an action",
        10,
        "not the copies that the rules choose",
        lambda: Pieces(namespace=DoubledCopies),
        TOPICS_FIRST,
    ),
    "torn-copies": Bug(
        "copies of one message in two frames",
        10,
        "not the copies that the rules choose|a number is skipped|was accepted, yet",
        lambda: Pieces(namespace=TornCopies),
        COPIES_TORN_FROM,
    ),
    "own-body": Bug(
        "a body for each copy",
        10,
        "a body is stored twice|do not share one body",
        lambda: Pieces(namespace=OwnBodies),
        TOPICS_FIRST,
    ),
    "lost-rule": Bug(
        "a change of a rule that is not durable",
        10,
        "returns other rules",
        lambda: Pieces(store=lambda store: WrappedStore(store, batch=_forget_rules)),
        TOPICS_FIRST,
    ),
    "silent-rule": Bug(
        "a rule that judges messages, and is not in the store",
        10,
        "not the copies that the rules choose|acknowledged, yet|never had these rules",
        lambda: Pieces(namespace=SilentRules),
        TOPICS_FIRST,
    ),
    "exact-names": Bug(
        "a correlation filter compares names exactly",
        10,
        "not the copies that the rules choose|a number is skipped|was accepted, yet",
        lambda: Pieces(namespace=ExactNames),
        TOPICS_FIRST,
    ),
    "forgiven-rule": Bug(
        "a message that a rule fails for is not dead-lettered",
        10,
        "not the copies that the rules choose|a number is skipped|was accepted, yet",
        lambda: Pieces(namespace=ForgivenRules),
        RULES_FAIL_FROM,
    ),
    "forgotten-claims": Bug(
        "claims forgotten at a restart",
        30,
        "a cursor h(e|o)ld|was answered|is not listed|do not agree",
        lambda: Pieces(namespace=ForgottenClaims),
    ),
    "volatile-claim": Bug(
        "a claim that is not durable",
        20,
        "is not on stable storage|a claim is removed that was not there",
        lambda: Pieces(namespace=VolatileClaims),
    ),
    "torn-commit": Bug(
        "a commit that removes without a record of it",
        20,
        "is gone that a cursor holds",
        lambda: Pieces(namespace=TornCommits),
    ),
    "stolen-cursor": Bug(
        "a cursor is taken from an owner that has read, without being told to",
        20,
        "was taken from an owner that has read|the owner was refused",
        lambda: Pieces(patches=STOLEN_CURSORS),
        30,
    ),
    "kept-claims": Bug(
        "a new owner keeps the claims of one that has not read",
        20,
        "a new owner has other claims than it should",
        lambda: Pieces(patches=KEPT_CLAIMS),
    ),
    "strange-reader": Bug(
        "a reader that owns no cursor claims, reads and commits with it",
        20,
        "has another owner without a request|a cursor was taken|has other claims",
        lambda: Pieces(patches=STRANGE_READERS),
    ),
    "greedy-claim": Bug(
        "claimed messages are delivered too",
        30,
        "while a cursor held it|is gone that a cursor holds|two claims hold|of another cursor",
        lambda: Pieces(namespace=GreedyClaims),
    ),
    "open-session": Bug(
        "a session that a cursor holds is given to a receiver",
        20,
        "was given away|while a cursor held it|two claims hold|is gone that a cursor holds",
        lambda: Pieces(namespace=OpenSessions),
        SESSIONS_READ_FROM,
    ),
    "due-backwards": Bug(
        "messages expire by a step of the clock backwards",
        40,
        "gone without a request|dead-lettered for expiration before it",
        lambda: Pieces(namespace=DueBackwards),
    ),
    "believed-error": Bug(
        "messages fall due by a step of the clock that is taken for an error",
        40,
        "gone without a request|dead-lettered for expiration before it|activated before its time",
        lambda: Pieces(namespace=partial(Namespace, clock_step_limit_ms=FAR_MS)),
        BELIEVED_FROM,
    ),
    "forgotten-window": Bug(
        "the ids that were seen are forgotten when the clock is set",
        40,
        "is a duplicate of uid",
        lambda: Pieces(namespace=ForgottenWindows),
        WINDOWS_FROM,
    ),
    "shortened-lock": Bug(
        "a lock is shortened by a step of the clock forwards",
        40,
        "has two live locks|yet the lock is live",
        lambda: Pieces(namespace=ShortenedLocks),
    ),
    "stale-end": Bug(
        "the end of a lock is reported by the clock before the step",
        40,
        "from before its connection|from a time to come|a renewal between",
        lambda: Pieces(namespace=StaleEnds),
    ),
    "released-locks-of-http": Bug(
        "a lock over HTTP ends with the connection that asked for it",
        10,
        "two live locks|yet the lock is live",
        lambda: Pieces(receives=ReleasedLocks),
    ),
    "hasty-deletions": Bug(
        "the answer to receive-and-delete over HTTP before the deletion is durable",
        20,
        "given to receive-and-delete, yet its removal is not on stable storage",
        lambda: Pieces(receives=HastyDeletions),
        HASTY_FROM,
    ),
    "lost-leavers": Bug(
        "a message deleted for a client that left during a wait over HTTP",
        40,
        "gone without a request|gone for a request that got none|gone while it was locked",
        lambda: Pieces(receives=LostLeavers),
    ),
    "unbound-credit": Bug(
        "credit that passes 32 bits, so that its echo does not encode",
        8,
        r"a connection has met a defect(.|\n)*EncodeError",
        lambda: Pieces(patches=UNBOUND_CREDIT),
        HOSTILE_FIRST,
    ),
    "no-border": Bug(
        "a defect that leaves the gateway",
        8,
        r"a defect has left the gateway(.|\n)*EncodeError",
        lambda: Pieces(gateway=Borderless, patches=UNBOUND_CREDIT),
        HOSTILE_FIRST,
    ),
    "no-budget": Bug(
        "a whole read worked on in one turn",
        8,
        "frames were answered in a turn",
        lambda: Pieces(turns=Unbudgeted),
        HOSTILE_FIRST,
    ),
    "clients-budget": Bug(
        "strangers with the budget of clients",
        8,
        "frames were answered in a turn, 17 are the most",
        lambda: Pieces(turns=GenerousTurns),
        HOSTILE_FIRST,
    ),
    "stubborn-turns": Bug(
        "a flooding peer served until it is done",
        20,
        "a client's bytes waited for",
        lambda: Pieces(turns=StubbornTurns),
        FLOODED_FROM,
    ),
    "leaked-partial": Bug(
        "unfinished deliveries of links that end are never given back",
        8,
        "bytes are still counted for strangers",
        lambda: Pieces(patches=LEAKED_PARTIALS),
        HOSTILE_FIRST,
    ),
    "unbound-strangers": Bug(
        "unfinished deliveries without a bound before the claim",
        8,
        "bytes are held for it, 65536 are the most",
        lambda: Pieces(patches=UNBOUND_STRANGERS),
        HOSTILE_FIRST,
    ),
    "unshared-bound": Bug(
        "unfinished deliveries of all strangers without a bound",
        8,
        "bytes are held for strangers",
        lambda: Pieces(patches=UNSHARED_BOUND),
        STRANGERS_FROM,
    ),
    "ignored-keys": Bug(
        "the name of a key does not decide which namespace a client uses",
        4,
        "the broker ended the connection|token refused|is answered by 'simulation'",
        lambda: Pieces(patches=IGNORED_KEYS),
        SECOND_FROM,
    ),
    "untold-choice": Bug(
        "a connection that has chosen a namespace, and stays with the default one",
        4,
        "effects of 'simulation' are for c[0-9]+, whose client means 'second'",
        lambda: Pieces(patches=UNTOLD_CHOICES),
        SECOND_FROM,
    ),
    "shared-bodies": Bug(
        "a body is looked for in the cache of another namespace",
        4,
        "of another namespace was seen",
        lambda: Pieces(engine=SharedBodies()),
        SECOND_FROM,
    ),
    "crossed-effects": Bug(
        "effects handed out by the number of a connection in the wrong namespace",
        4,
        r"effects of '\w+' are for c\d+, of '\w+'",
        lambda: Pieces(driver=partial(CrossedDriver, crossing=[])),
        SECOND_FROM,
    ),
    "skipped-fence": Bug(
        "a commit of a deposed owner passes",
        20,
        "is durable, and .* owns the store",
        lambda: Pieces(patches=SKIPPED_FENCES),
        nodes=NODES,
    ),
    "hasty-read": Bug(
        "a new owner reads before the commit of its lease has returned",
        20,
        "the store (has lost|returns)",
        lambda: Pieces(patches=HASTY_READS),
        nodes=NODES,
    ),
    "endless-lease-of-store": Bug(
        "a lock renewed, or a message peeked, after the store's lease has ended",
        20,
        "effects leave .* without a batch, [0-9]+ ms after",
        lambda: Pieces(patches=ENDLESS_LEASES),
        nodes=NODES,
    ),
    "faithful-relay": Bug(
        "clients stay with an owner that is deposed",
        20,
        "relays bytes to .* has taken the store over",
        lambda: Pieces(patches=FAITHFUL_RELAYS),
        nodes=NODES,
    ),
}
