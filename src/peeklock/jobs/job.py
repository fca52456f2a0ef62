"""The order of a job's operations, such that nothing is lost when it is killed between any two of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final

from peeklock.jobs.checkpoint import Checkpoint
from peeklock.jobs.operations import (
    Close,
    Complete,
    Done,
    Forward,
    Look,
    Message,
    Open,
    Operation,
    Outcome,
    Outgoing,
    Receive,
    Renew,
    Save,
    Settled,
    Wait,
)
from peeklock.jobs.survey import Snapshot
from peeklock.search import Peeked

SLICE: Final = 1000
"""Messages received at a time. Our choice: they are moved in less than the shortest lock, 5 s."""

ROUNDS_MAX: Final = 3
"""Receives without a message of the job, after which the rest is given up: others hold it."""

RENEW_MS: Final = (1_000, 20_000)
"""Shortest and longest time between two renewals of held locks. Source: the shortest and the usual lock last
5 s and 60 s."""

PATIENCE_MS: Final = 10_000
"""How long to wait for messages whose locks were lost with a connection. Our choice: longer than peeklock
keeps such locks, 5 s; Azure keeps them until they lapse."""

RETRY_MS: Final = 1_000
"""Time between two looks for these."""

SAVE_MS: Final = 1_000
"""Time between two checkpoints."""

_LOCKED_UNTIL: Final = "x-opt-locked-until"

_Steps = Generator[Operation, Outcome, None]


class Job:
    """A purge, move or resubmission at work. The caller carries out its operations, one at a time."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        due: int,
        sessions: Mapping[str, int] | None,
        is_resumed: bool = False,
        chooses: Callable[[Peeked], bool] | None = None,
    ) -> None:
        """Begin, or go on.

        Args:
            due: messages of the job that are there, as a `Survey` counts them.
            sessions: those by session, of an entity with sessions.
            is_resumed: the run before may still hold locks.
            chooses: the chooser of the plan, as the caller limits it; None = as it is.

        Raises: SearchError.
        """
        self.plan = checkpoint.plan
        self.taken = checkpoint.taken
        """Messages that it has begun to move, or to remove."""
        self.done = checkpoint.done
        """Those that are known to have left the source."""
        self.due = due
        """Those that are there, and not taken."""
        self._highest = checkpoint.highest
        self._snapshot = Snapshot(checkpoint.highest)
        self._chooses = self.plan.chooser() if chooses is None else chooses
        self._sessions = sessions
        self._is_resumed = is_resumed
        self._is_stopping = False
        self._now_ms = 0
        self._held: dict[int, bytes] = {}
        """Number -> token of messages that are locked, and not the job's."""
        self._sent: set[int] = set()
        """Numbers of messages that the target has, and that are to be completed."""
        self._unknown: set[int] = set()
        """Numbers of taken messages that come again, unless they have left the source."""
        self._saved_ms = self._renewed_ms = 0
        self._renew_after_ms = 0
        """Half of the time of a lock; 0 = not known yet."""
        self._is_session = False
        self._patient_until_ms = 0
        """Messages may come again until then, since locks were lost; 0 = none was."""
        self._free_at_ms = 0.0
        """When the rate allows the next message."""
        self._steps = self._run()

    def start(self, now_ms: int) -> Operation:
        """Return the first operation."""
        self._now_ms = self._renewed_ms = now_ms
        if self._is_resumed:
            self._patient_until_ms = now_ms + PATIENCE_MS
        return next(self._steps)

    def step(self, outcome: Outcome, now_ms: int) -> Operation:
        """Return the next operation after the outcome of the last one; none follows `Done`."""
        self._now_ms = now_ms
        return self._steps.send(outcome)

    def stop(self) -> None:
        """Have the job end in order: the messages under way are done, those that are held are released."""
        self._is_stopping = True

    @property
    def left(self) -> int:
        """Messages of the job that are there and were not moved, up to its limit."""
        return self._wanted() + len(self._sent) + len(self._unknown)

    @property
    def unsettled(self) -> int:
        """Those that the target has, and the source too: their locks were lost."""
        return len(self._sent)

    def checkpoint(self) -> Checkpoint:
        """Return how far the job is."""
        return Checkpoint(self.plan, self._highest, self.taken, self.done)

    # Steps

    def _run(self) -> _Steps:
        yield self._save()
        sessions: Mapping[Any, int | None] = {None: None} if self._sessions is None else self._sessions
        for session_id, due in sessions.items():
            if self._ends():
                break
            if (yield Open(session_id)):
                self._renew_after_ms = 0
                self._is_session = session_id is not None
                yield from self._receive(due)
                yield Close((*self._held.values(),))
                self._held.clear()
        yield from self._look()
        yield self._save()
        yield Done()

    def _receive(self, due: int | None) -> _Steps:
        """Take the messages of what is open; `due`: how many a session has."""
        fruitless = 0
        before = self.taken
        while not self._ends() and fruitless < ROUNDS_MAX:
            if due is not None and self.taken - before >= due and not (self._sent or self._unknown):
                break
            yield from self._pause()
            if self._is_stopping:
                break
            arrived = yield Receive(self._slice())
            assert isinstance(arrived, tuple), "the outcome of Receive"
            if not arrived:
                if (yield from self._may_come_again()):
                    continue
                break
            if not self._renew_after_ms:
                self._set_renewal(Peeked(arrived[0].payload))
            ours, is_news = self._sort(arrived)
            fruitless = 0 if is_news else fruitless + 1
            yield from self._take(ours)
            yield from self._renew()
            if self._now_ms - self._saved_ms >= SAVE_MS:
                yield self._save()

    def _may_come_again(self) -> Generator[Operation, Outcome, bool]:
        """Wait for messages whose locks were lost; return whether another try may find some."""
        if not self._patient_until_ms:
            return False
        yield from self._look()
        if self._ends() or self._now_ms >= self._patient_until_ms:
            return False
        yield Wait(self._now_ms + RETRY_MS)
        yield from self._renew()
        return True

    def _look(self) -> _Steps:
        """Find out which messages have left the source, of those whose outcome is not known."""
        if pending := self._sent | self._unknown:
            there = yield Look(frozenset(pending))
            assert isinstance(there, frozenset), "the outcome of Look"
            self.done += len(pending - there)
            self._sent &= there
            self._unknown &= there

    def _sort(self, arrived: Sequence[Message]) -> tuple[dict[int, Message], bool]:
        """Return the messages of the job by number, and whether any is news; hold the others."""
        ours: dict[int, Message] = {}
        wanted = self._wanted()
        new = 0
        is_news = False
        for message in arrived:
            peeked = Peeked(message.payload)
            number = peeked.sequence_number
            assert number is not None, "a broker numbers its messages"
            is_known = number in self._sent or number in self._unknown
            was_there = self._snapshot.has(number)
            if is_known or (new < wanted and was_there and self._chooses(peeked)):
                new += not is_known
                ours[number] = message
                is_news = True
            else:
                is_news |= wanted > 0 and was_there and number not in self._held
                self._held[number] = message.token
        return ours, is_news

    def _take(self, ours: Mapping[int, Message]) -> _Steps:
        """Move or remove messages of the job."""
        known = self._sent | self._unknown
        new = len(ours.keys() - known)
        self.taken += new
        self.due -= new
        if new and self.plan.limit is not None:
            yield self._save()  # a job that goes on after a kill takes no more than the limit
        completed = {n: each for n, each in ours.items() if self.plan.target is None or n in self._sent}
        forwarded = {n: each for n, each in ours.items() if n not in completed}
        if completed:
            yield from self._settle(completed, Complete(tuple(each.token for each in completed.values())))
        if forwarded:
            outgoing = (
                Outgoing(each.token, self.plan.outgoing(Peeked(each.payload)), number)
                for number, each in forwarded.items()
            )
            yield from self._settle(forwarded, Forward(tuple(outgoing)))
        if self.plan.rate is not None:
            self._free_at_ms = max(self._free_at_ms, self._now_ms) + len(ours) * 1000 / self.plan.rate

    def _settle(self, messages: Mapping[int, Message], operation: Operation) -> _Steps:
        settled = yield operation
        assert isinstance(settled, Settled), "the outcome of Complete and Forward"
        if settled.sent or settled.unknown:
            self._patient_until_ms = self._now_ms + PATIENCE_MS
        for number, message in messages.items():
            was_sent = number in self._sent
            self._sent.discard(number)
            self._unknown.discard(number)
            if message.token in settled.sent or (was_sent and message.token in settled.unknown):
                self._sent.add(number)
            elif message.token in settled.unknown:
                self._unknown.add(number)
            else:
                self.done += 1

    def _pause(self) -> _Steps:
        """Wait until the rate allows the next message. What is held stays so; nothing else is locked."""
        while self._now_ms < self._free_at_ms and not self._is_stopping:
            yield Wait(min(math.ceil(self._free_at_ms), self._now_ms + RENEW_MS[0]))
            yield from self._renew()

    def _renew(self) -> _Steps:
        if (self._held or self._is_session) and self._now_ms - self._renewed_ms >= self._renew_after_ms:
            self._renewed_ms = self._now_ms
            yield Renew((*self._held.values(),))

    def _set_renewal(self, peeked: Peeked) -> None:
        """Renew locks after half of their time; `peeked` is the first message that arrived."""
        self._renewed_ms = self._now_ms
        self._renew_after_ms = RENEW_MS[1]
        until_ms = peeked.annotations.get(_LOCKED_UNTIL)
        if isinstance(until_ms, int):
            half_ms = (until_ms - self._now_ms) // 2
            self._renew_after_ms = max(RENEW_MS[0], min(half_ms, RENEW_MS[1]))

    def _save(self) -> Save:
        self._saved_ms = self._now_ms
        return Save(self.checkpoint())

    # Figures

    def _wanted(self) -> int:
        """Return how many messages are still to be taken."""
        limit = self.plan.limit
        return max(0, self.due if limit is None else min(self.due, limit - self.taken))

    def _ends(self) -> bool:
        return self._is_stopping or not (self._wanted() or self._sent or self._unknown)

    def _slice(self) -> int:
        """Return how many messages to receive: no more than are moved within a second."""
        rate = self.plan.rate
        return SLICE if rate is None else max(1, min(SLICE, math.floor(rate)))
