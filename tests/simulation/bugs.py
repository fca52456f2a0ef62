"""Planted bugs: each subclasses or wraps a real piece, so that the product has no switch for them.

A checker that has never failed proves nothing. Each bug here is one that a broker of this kind has had, or
nearly; a test requires that it is found within `seeds` seeds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from peeklock.broker.changes import Change, EntityStored, MessageRemoved, MessageStored, RuleStored
from peeklock.broker.commands import Command, UpdateDisposition
from peeklock.broker.effects import Deliver, Drained, Effect
from peeklock.broker.namespace import Namespace
from peeklock.broker.peek_lock import Lock
from peeklock.engine.bodies import BodyCache
from peeklock.engine.engine import Engine
from peeklock.store.base import Batch, Definitions, Frame, FrameKeys, LiveFacts, Store
from peeklock.store.event_backlog import EventBacklog
from tests.simulation.node import Pieces
from tests.simulation.planted import (
    CopyingForwards,
    DeafToCancelling,
    DisorderedSessions,
    ForgottenClaims,
    GreedyClaims,
    KeptSessions,
    LostSettlements,
    OpenSessions,
    SharedSessions,
    TornCommits,
    TornTransactions,
    VolatileClaims,
)
from tests.simulation.planted_topics import (
    DoubledCopies,
    ForgivenRules,
    LostCopies,
    OwnBodies,
    SilentRules,
    TornCopies,
)
from tests.simulation.topology import TOPICS_FIRST


class EarlyEngine(Engine):
    """Hands out the effects of a batch while it is in flight."""

    def __init__(self, namespace: Namespace, bodies: BodyCache) -> None:
        super().__init__(namespace, bodies)
        self._early: list[Effect] = []

    @property
    def in_flight(self) -> bool:
        return super().in_flight and not self._early

    def take_batch(self, now_ms: int) -> Batch | None:
        if self._early:
            return None
        batch = super().take_batch(now_ms)
        if batch is not None:
            self._early, self._flying_effects = self._flying_effects, []
        return batch

    def release(self) -> list[Effect]:
        early, self._early = self._early, []
        return early or super().release()

    def next_deadline_ms(self) -> int | None:
        return 0 if self._early else super().next_deadline_ms()


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

    async def read_body_rows(self, rows: Sequence[int]) -> dict[int, list[bytes]]:
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

    async def free_bytes(self) -> int | None:
        return await self._inner.free_bytes()

    async def close(self) -> None:
        await self._inner.close()


def _forget_counters(live: LiveFacts) -> LiveFacts:
    """Recover without the counters: the highest message that is left decides the next number."""
    return replace(live, numbers=[])


def _forget_partitions(live: LiveFacts) -> LiveFacts:
    """Recover without the counters of partitions: each begins anew."""
    return replace(
        live,
        numbers=[(no, replace(n, partitions=(1,) * 16) if n.partitions else n) for no, n in live.numbers],
    )


def _forget_ids(live: LiveFacts) -> LiveFacts:
    """Recover without the message ids that were seen."""
    return replace(live, ids=[], id_frames={})


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
    """Knows the locks of the process before, and lets their holders settle."""

    def __init__(self, kept: dict[bytes, tuple[int, int, int]], **settings: Any) -> None:
        """`kept` outlives the process: token -> (queue id, position, locked until)."""
        super().__init__(**settings)
        self._kept = kept

    def apply(self, command: Command, now_ms: int) -> tuple[list[Change], list[Effect]]:
        if type(command) is UpdateDisposition:
            for token in command.lock_tokens:
                self._take_back(token, now_ms)
        changes, effects = super().apply(command, now_ms)
        self._keep(effects)
        return changes, effects

    def advance(self, now_ms: int) -> tuple[list[Change], list[Effect]]:
        changes, effects = super().advance(now_ms)
        self._keep(effects)
        return changes, effects

    def _keep(self, effects: list[Effect]) -> None:
        for effect in effects:
            if type(effect) is Deliver and effect.lock_token is not None and effect.locked_until_ms:
                message = effect.message
                self._kept[effect.lock_token] = message.queue_id, message.position, effect.locked_until_ms

    def _take_back(self, token: bytes, now_ms: int) -> None:
        queue_id, position, until_ms = self._kept.pop(token, (0, 0, 0))
        message = self.find(queue_id, position)
        if message is not None and message.lock is None and until_ms > now_ms:
            queue = self._queues[queue_id]
            holder: dict[bytes, Lock] = {}
            lock = Lock(token, message, queue, until_ms, holder)
            message.lock = queue.locks[token] = holder[token] = lock


class UncountedLapse(Namespace):
    """Does not count the delivery whose lock lapsed."""

    def advance(self, now_ms: int) -> tuple[list[Change], list[Effect]]:
        changes, effects = super().advance(now_ms)
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
    """What the violation says, as a regular expression: it must be found for the right reason."""
    pieces: Callable[[], Pieces]
    first_seed: int = 0


BUGS: dict[str, Bug] = {
    "early-effects": Bug(
        "effects released before commit",
        5,
        "not on stable storage|yet not stored|is not durable",
        lambda: Pieces(engine=EarlyEngine),
    ),
    "reused-number": Bug(
        "a sequence number reused after restart",
        10,
        "a number is used again",
        lambda: Pieces(store=lambda store: WrappedStore(store, live=_forget_counters)),
    ),
    "kept-lock": Bug(
        "a lock kept over a restart",
        20,
        "succeeded on a lock",
        lambda: Pieces(namespace=partial(KeptLocks, {})),
    ),
    "lost-removal": Bug(
        "a completed message coming back: its removal record is lost",
        10,
        "gives back a message that was removed",
        lambda: Pieces(store=lambda store: WrappedStore(store, batch=_forget_removals)),
    ),
    "uncounted-lapse": Bug(
        "delivery count not incremented when a lock lapses",
        10,
        "the delivery count did not go up",
        lambda: Pieces(namespace=UncountedLapse),
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
    "kept-session": Bug(
        "a session's lock kept over a restart",
        20,
        "though nobody holds it",
        lambda: Pieces(namespace=partial(KeptSessions, {})),
    ),
    "disordered-session": Bug(
        "what is given back comes behind the rest of its session",
        20,
        "which was given back",
        lambda: Pieces(namespace=DisorderedSessions),
    ),
    "deaf-to-cancelling": Bug(
        "a cancelled accept keeps a session",
        30,
        "though nobody h(olds|eld) it|no session was available",
        lambda: Pieces(namespace=DeafToCancelling),
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
    "copying-forward": Bug(
        "a forward that copies without removing",
        30,
        "in two places",
        lambda: Pieces(namespace=CopyingForwards),
    ),
    "forgotten-id": Bug(
        "message ids forgotten at a restart",
        10,
        "is a duplicate of",
        lambda: Pieces(store=lambda store: WrappedStore(store, live=_forget_ids)),
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
        TOPICS_FIRST,
    ),
    "own-body": Bug(
        "a body for each copy",
        10,
        "a body stands twice|do not share one body",
        lambda: Pieces(namespace=OwnBodies),
        TOPICS_FIRST,
    ),
    "lost-rule": Bug(
        "a change of a rule that is not durable",
        10,
        "gives back other rules",
        lambda: Pieces(store=lambda store: WrappedStore(store, batch=_forget_rules)),
        TOPICS_FIRST,
    ),
    "silent-rule": Bug(
        "a rule that judges messages, and the store does not know it",
        10,
        "not the copies that the rules choose|acknowledged, yet|never had these rules",
        lambda: Pieces(namespace=SilentRules),
        TOPICS_FIRST,
    ),
    "forgiven-rule": Bug(
        "what a rule fails for is no dead letter",
        10,
        "not the copies that the rules choose|a number is skipped|was accepted, yet",
        lambda: Pieces(namespace=ForgivenRules),
        TOPICS_FIRST,
    ),
    "forgotten-claims": Bug(
        "claims forgotten at a restart",
        20,
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
        "a commit that removes, and does not say so",
        20,
        "is gone that a cursor holds",
        lambda: Pieces(namespace=TornCommits),
    ),
    "greedy-claim": Bug(
        "what is claimed is delivered too",
        30,
        "while a cursor held it|is gone that a cursor holds|two claims hold|of another cursor",
        lambda: Pieces(namespace=GreedyClaims),
    ),
    "open-session": Bug(
        "a session that a cursor holds is given away",
        80,
        "was given away|while a cursor held it|two claims hold|is gone that a cursor holds",
        lambda: Pieces(namespace=OpenSessions),
    ),
}
