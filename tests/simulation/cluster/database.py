"""A model of PostgreSQL with one synchronous standby, for one store.

Owns: what is visible and what is replicated, the lock of the lease's row, what becomes of transactions whose
backend is ended or whose primary dies. Must not know: nodes, what a batch contains. The statements are those
of `store.postgres.leases` and `store.postgres.writing`; each method names the one that it stands for.

All transactions update the row of the lease, so one at a time is under way and others wait for its lock. It
is written, then replicated, then visible, then answered. Where its backend is ended during the wait for the
standby, it becomes visible at once; a promotion of the standby loses it if it was not replicated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import Any

from peeklock.store.base import Batch
from peeklock.store.memory import MemoryStore
from peeklock.testing.pump import finish
from tests.simulation.world.world import World

REPLICATE_MS_MAX = 6
DOWN_MS = 300
"""From the death of a primary until the standby takes its place."""


class Answer(Enum):
    """What a node gets in place of the row."""

    NONE = "no row: the lease is another's"
    LOCKED = "another transaction has the row"
    LOST = "the connection is lost"
    TWICE = "the primary key is taken"


@dataclass(frozen=True, slots=True)
class Row:
    """The row of the lease."""

    session: str | None = None
    epoch: int = 0
    batch_no: int = 0
    expires_ms: int = 0


Answered = Callable[[Row | Answer], None]


def _nothing(row: Row) -> None:
    pass


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction of a backend."""

    session: str
    change: Callable[[Row, int], Row | None]
    """The new row, given the visible one and the time; None = the `WHERE` finds none."""
    answered: Answered
    batch: Batch | None = None
    replicated: Callable[[Row], None] = _nothing
    """Called when it is on the standby: nothing loses it any more."""
    row: Row | None = None


class Database:
    """A primary and its standby."""

    def __init__(self, world: World) -> None:
        """Begin with an empty store."""
        self._world = world
        self._random = Random(f"database {world.seed}")
        self._ends_backends = self._random.random() < 0.5
        """Whether the nodes may end backends of others: else they wait for what is under way."""
        self.primary = MemoryStore()
        """What is visible."""
        self.standby = MemoryStore()
        """What is replicated."""
        self.row = Row()
        self.replicated_row = Row()
        self._waiting: deque[Transaction] = deque()
        self._holder: Transaction | None = None
        """Has the lock of the row, and waits for the standby."""
        self._log: deque[Transaction] = deque()
        """Written on the primary, and not replicated."""
        self._primary_no = 0
        self._stalled_until_ms = 0
        self._down_until_ms = 0

    # Statements

    def look(self, answered: Answered) -> None:
        """Answer the row that is visible: `_LOOK`, which waits for no lock."""
        answered(Answer.LOST if self._is_down else self.row)

    def run(self, transaction: Transaction) -> None:
        """Run one behind those that wait for the row: `_TAKE`, `_TAKE_AGAIN`, `write`, `_RELEASE`."""
        if self._is_down:
            transaction.answered(Answer.LOST)
            return
        self._waiting.append(transaction)
        self._next()

    def renew(self, transaction: Transaction) -> None:
        """Run a renewal, unless the row is locked: `_RENEW` with `SKIP LOCKED`, then `_KEPT`."""
        if self._holder is None or self._is_down:
            self.run(transaction)
        else:
            kept = self.row.session == transaction.session
            transaction.answered(Answer.LOCKED if kept else Answer.NONE)

    def end_backends(self, session: str) -> None:
        """End what a session has under way, if that is allowed: `_END_BACKENDS`."""
        if self._ends_backends:
            self.lose(session)

    # Faults

    def lose(self, session: str) -> None:
        """End all connections of a session."""
        for transaction in [each for each in self._waiting if each.session == session]:
            self._waiting.remove(transaction)
            transaction.answered(Answer.LOST)
        holder = self._holder
        if holder is not None and holder.session == session:
            self._world.note(f"the backend of {session} is ended while it waits for the standby")
            holder.answered(Answer.LOST)
            self._show(holder)

    def stall(self, ms: int) -> None:
        """Keep the standby from answering for a while."""
        self._world.note(f"the standby stalls for {ms} ms")
        self._stalled_until_ms = self._world.now_ms + ms

    def promote(self) -> None:
        """Kill the primary: the standby takes its place, with what it has."""
        self._world.note(f"the primary dies, {len(self._log)} transactions are not replicated")
        lost = [*self._waiting, *([self._holder] if self._holder is not None else [])]
        self._waiting.clear()
        self._log.clear()
        self._holder = None
        self._primary_no += 1
        self._stalled_until_ms = 0
        self._down_until_ms = self._world.now_ms + DOWN_MS
        self.primary, self.row = deepcopy(self.standby), self.replicated_row
        for transaction in lost:
            transaction.answered(Answer.LOST)

    def is_waiting(self, session: str) -> bool:
        """Return whether a transaction of a session waits for the standby."""
        return self._holder is not None and self._holder.session == session

    # A transaction

    @property
    def _is_down(self) -> bool:
        return self._world.now_ms < self._down_until_ms

    def _next(self) -> None:
        while self._holder is None and self._waiting:
            transaction = self._waiting.popleft()
            batch = transaction.batch
            row = transaction.change(self.row, self._world.now_ms)
            if row is None:
                transaction.answered(Answer.NONE)
            elif batch is not None and batch.no <= self.row.batch_no:
                transaction.answered(Answer.TWICE)
            else:
                transaction.row = row
                self._holder = transaction
                self._log.append(transaction)
                delay_ms = self._random.randint(0, REPLICATE_MS_MAX)
                self._world.after(delay_ms, self._replicate, self._primary_no)

    def _replicate(self, primary_no: int) -> None:
        """Replay on the standby what is written, in order."""
        if primary_no != self._primary_no:
            return
        if self._world.now_ms < self._stalled_until_ms:
            self._world.at(self._stalled_until_ms, self._replicate, primary_no)
            return
        log, self._log = self._log, deque()
        for transaction in log:
            assert transaction.row is not None
            if transaction.batch is not None:
                finish(self.standby.commit(transaction.batch))
            self.replicated_row = transaction.row
            transaction.replicated(transaction.row)
            if transaction is self._holder:
                transaction.answered(transaction.row)
                self._show(transaction)

    def _show(self, transaction: Transaction) -> None:
        """Make a transaction visible, and release the lock of its row."""
        assert transaction.row is not None
        if transaction.batch is not None:
            finish(self.primary.commit(transaction.batch))
        self.row = transaction.row
        self._holder = None
        self._next()


def renewed(row: Row, now_ms: int, ttl_ms: int, **changes: Any) -> Row:
    """Return a row that expires a lease's length from now."""
    return replace(row, expires_ms=now_ms + ttl_ms, **changes)
