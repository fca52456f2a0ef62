"""Transactions: all or nothing, whatever happens (F-03).

Owns: what a transaction's client learnt and which of its effects are durable. Must not know: how the broker
keeps one. If its discharge was accepted, all effects must be durable; if it was refused or rolled back, none;
without an answer, all or none, and in one batch.
"""

from __future__ import annotations

from collections.abc import Callable

from peeklock.broker.vocabulary.changes import QUEUES_PER_ENTITY
from peeklock.broker.vocabulary.message import MessageState
from tests.simulation.oracle.history import History, Lock, Sent, StateWrite, Unit
from tests.simulation.oracle.records import MAIN, PARTITION_SHIFT, Commit, Record, Violation
from tests.simulation.oracle.states import States

LIMIT_MS = 120_000
"""The longest a transaction may be open."""


def enlisted_by(unit: Unit) -> str:
    """Name what ends a lock for all others while its settlement waits in a transaction."""
    return f"enlist {unit.no}"


def top_of(name: str) -> str:
    """Return the entity that a subscription belongs to, else the entity itself."""
    return name.split("/Subscriptions/")[0]


class Units:
    """All transactions."""

    def __init__(self, history: History, is_dropped: Callable[[int, int], bool], states: States) -> None:
        """Set up; `is_dropped(uid, now_ms)`: whether a message that is not stored may have been a
        duplicate."""
        self._history = history
        self._states = states
        self._is_dropped = is_dropped
        self._touched: list[Unit] = []
        self._ahead: dict[str, int] = {}
        """By entity: how many numbers may be issued for schedules in transactions."""
        self.committed = 0

    # Actions of clients

    def sending(self, unit: Unit, uids: list[int], *, silent: bool) -> None:
        unit.sends += uids
        unit.refused.update(uids)  # until the broker has acknowledged that they are part of it
        if silent:
            unit.silent.update(uids)

    def settling(self, unit: Unit, lock: Lock, kind: str, reason: str) -> None:
        unit.settlements.append((lock, kind, reason))
        unit.refused.add(lock.token)
        unit.denied.discard(lock.token)
        lock.ends.append((self._history.now_ms(), enlisted_by(unit)))
        self._history.sent[lock.uid].units.append((unit, lock, kind, reason))

    def not_enlisted(self, unit: Unit, lock: Lock) -> None:
        """Record a settlement that was refused because of what else is in the transaction: the lock is as
        before."""
        lock.ends = [(at, what) for at, what in lock.ends if what != enlisted_by(unit)]
        lock.freed_ms = self._history.now_ms()

    def enlisted(self, unit: Unit, parts: list[int] | list[bytes]) -> None:
        """Record what the broker has taken into the transaction: uids of sends, or tokens of locks."""
        unit.refused.difference_update(parts)
        unit.first_ms = min(unit.first_ms, self._history.now_ms())

    def promising(self, name: str, count: int) -> None:
        """Record that messages are scheduled by request in a transaction: so many numbers may be issued for
        them."""
        self._ahead[name] = self._ahead.get(name, 0) + count

    def numbered_ahead(self, name: str, count: int) -> bool:
        """Return whether so many numbers without a message may have been answered to schedules in
        transactions; they are no longer expected then."""
        if self._ahead.get(name, 0) < count:
            return False
        self._ahead[name] -= count
        return True

    def may_be_parted(self, unit: Unit, name: str) -> bool:
        """Return whether another part of a transaction may use another partition of an entity, so that a part
        is refused."""
        top, facts = top_of(name), self._history.facts
        if not any(facts.is_partitioned(entity_id) for entity_id in facts.named(top)):
            return False
        sent = self._history.sent
        sends = [uid for uid in unit.sends if sent[uid].queue == top and not sent[uid].free]
        others = [name for name, _ in unit.cancels] + [facts.name(hold.entity_id) for hold, _ in unit.states]
        settlements = [lock for lock, _, _ in unit.settlements if top_of(facts.name(lock.entity_id)) == top]
        return len(sends) + len(settlements) + sum(top_of(other) == top for other in others) > 1

    def discharging(self, unit: Unit, fail: bool) -> None:
        unit.asked = "roll back" if fail else "commit"
        unit.asked_ms = self._history.now_ms()
        if not fail:
            self._history.cancels.update(unit.cancels)
            for _, write in unit.states:
                write.asked_ms = unit.asked_ms

    def discharged(self, unit: Unit, condition: str | None) -> None:
        """Check the answer to the discharge; `condition` None = accepted. Raises: Violation."""
        if condition is not None:
            if unit.asked == "commit" and self._surely_good(unit):
                raise Violation(f"a commit was refused with {condition} without a reason: {unit}")
            self.rolled_back(unit)
            return
        if unit.asked == "roll back":
            self.rolled_back(unit)
            return
        if unit.asked_ms > unit.first_ms + LIMIT_MS:
            raise Violation(f"a transaction was committed after its time: {unit}")
        unit.outcome = "committed"
        unit.refused -= unit.silent
        self.committed += 1
        now = self._history.now_ms()
        for uid in unit.sends:
            if uid in unit.refused:
                continue
            sent = self._history.sent[uid]
            stored = self._history.facts.life(uid).has_trace
            if not stored and not self._is_dropped(uid, now):
                raise Violation(f"uid {uid} was committed, yet is not on stable storage: {unit}")
            sent.outcome = "accepted" if stored else "dropped"
        for lock, kind, _ in unit.settlements:
            if lock.token not in unit.refused:
                lock.settled, lock.settled_ms = kind, now
                if not self._has_effect(lock, kind, None):
                    raise Violation(
                        f"{kind} of uid {lock.uid} was committed, yet is not on stable storage: {unit};"
                        f" {self._history.story(lock.uid)}"
                    )
        self._check_cancelled(unit, "was committed, yet")
        self._states_committed(unit)

    def _check_cancelled(self, unit: Unit, what: str) -> None:
        facts = self._history.facts
        for name, number in unit.cancelled:
            if self._history.may_be_gone(name):
                continue
            queue_id = self._history.queue_id(name, MAIN)
            for record in facts.live.values():
                at = record.queue_id, record.sequence_number, record.state
                if at == (queue_id, number, MessageState.SCHEDULED):
                    raise Violation(f"a transaction {what} without the cancellation of {record}: {unit}")

    def _states_committed(self, unit: Unit) -> None:
        """Check the states of sessions: of several for one session the last one is stored."""
        sessions: dict[tuple[int, str], list[StateWrite]] = {}
        for hold, write in unit.states:
            sessions.setdefault((hold.entity_id, hold.session), []).append(write)
        for session, writes in sessions.items():
            if not all(write.enlisted or write.done is False for write in writes):
                for write in writes:
                    self._states.lost(write)
                continue
            left = [write for write in writes if write.enlisted]
            for write in left[:-1]:
                self._states.answered(session, write, done=False)
            for write in left[-1:]:
                self._states.answered(session, write, done=True)

    def rolled_back(self, unit: Unit) -> None:
        """Record that no effect exists, and that none will. Raises: Violation."""
        if unit.applied is not None:
            raise Violation(f"rolled back, yet done in batch {unit.applied.no}: {unit}")
        unit.outcome = "rolled back"
        for uid in unit.sends:
            self._history.sent[uid].outcome = "rolled back"
        for hold, write in unit.states:
            self._states.answered((hold.entity_id, hold.session), write, done=False)
        if unit.asked is None:
            return  # when the broker has freed the locks is not known
        for lock, _, _ in unit.settlements:
            lock.ends = [(at, what) for at, what in lock.ends if what != enlisted_by(unit)]
            lock.freed_ms = self._history.now_ms()

    def lost(self, unit: Unit) -> None:
        """Record that its link or connection is gone before it was discharged, or before that was
        answered."""
        if unit.asked is None and unit.outcome is None:
            self.rolled_back(unit)
        elif unit.outcome is None:
            for _, write in unit.states:
                self._states.lost(write)

    def may_be_over(self, unit: Unit) -> bool:
        """Return whether a transaction may have ended before something that was to be part of it came."""
        ended = unit.asked is not None or unit.outcome is not None
        return ended or self._history.now_ms() > unit.declared_ms + LIMIT_MS

    def _surely_good(self, unit: Unit) -> bool:
        """Return whether nothing prevented a commit."""
        now = self._history.now_ms()
        deletions = [at for times in self._history.deletions.values() for at in times]
        if unit.refused - unit.denied or unit.cancels or unit.states:
            return False  # what became of these is not known, or is not followed
        since = (*self._history.limited, *self._history.jumps, *deletions)
        if unit.silent or now > unit.declared_ms + LIMIT_MS or any(at >= unit.declared_ms for at in since):
            return False
        return all(
            [what for _, what in lock.ends] == [enlisted_by(unit)] and lock.surely_live(now, but=1)
            for lock, _, _ in unit.settlements
            if lock.token not in unit.refused
        )

    # What is durable

    def stored(self, unit: Unit, uid: int, commit: Commit) -> None:
        """Check the first record of a message that was sent in a transaction. Raises: Violation."""
        records = self._history.facts.life(uid).records
        if len(records) <= 1:
            number = self._history.sent[uid].number
            if records and number is not None and records[0][0].enqueued_sequence_number != number:
                raise Violation(f"uid {uid} was answered with {number}, and stored so: {records[0][0]}")
            if unit.asked != "commit":
                raise Violation(f"uid {uid} is stored, yet its transaction was not committed: {unit}")
            self.touch(unit, commit)

    def may_have_settled(
        self, sent: Sent, record: Record, kind: str, reason: str | None, commit: Commit
    ) -> Unit | None:
        """Return the transaction that may have settled a message in a batch; `record` is what was locked."""
        for unit, lock, wanted, given in sent.units:
            if unit.asked != "commit" or unit.outcome == "rolled back" or wanted != kind:
                continue
            if (kind == "dead-letter" and given != reason) or unit.applied not in (None, commit):
                continue
            if lock.token in (unit.refused if unit.outcome == "committed" else unit.denied):
                continue
            if _may_be_held(lock, record, commit):
                return unit
        return None

    def touch(self, unit: Unit, commit: Commit) -> None:
        """Record that a batch contains an effect of a transaction. Raises: Violation, if another batch does
        too."""
        if unit.applied not in (None, commit):
            raise Violation(f"done in batch {unit.applied.no} and in batch {commit.no}: {unit}")
        if unit.applied is None:
            unit.applied = commit
            self._touched.append(unit)

    def check(self) -> None:
        """Check, once a batch is judged, that it contains all effects of each transaction in it. Raises:
        Violation."""
        touched, self._touched = self._touched, []
        for unit in touched:
            assert unit.applied is not None
            self._check_partitions(unit)
            self._check_cancelled(unit, "is done in part,")
            for uid in unit.sends:
                if uid in unit.refused or self._history.facts.life(uid).has_trace:
                    continue
                if not self._is_dropped(uid, unit.applied.landed_ms):
                    raise Violation(f"a transaction is done in part, without sending uid {uid}: {unit}")
            for lock, kind, _ in unit.settlements:
                if lock.token not in unit.refused and not self._has_effect(lock, kind, unit.applied):
                    raise Violation(
                        f"a transaction is done in part, without the {kind} of uid {lock.uid}: {unit};"
                        f" {self._history.story(lock.uid)}"
                    )

    def _check_partitions(self, unit: Unit) -> None:
        """Check that what a transaction sends to a partitioned entity and settles there is in one partition
        (C12)."""
        facts = self._history.facts
        numbers = [
            (lock.entity_id, lock.number)
            for lock, _, _ in unit.settlements
            if lock.token not in unit.refused and lock.queue_id % QUEUES_PER_ENTITY == MAIN
        ]
        for uid in unit.sends:
            sent, records = self._history.sent[uid], facts.life(uid).records
            if sent.via is None and not sent.free and records:
                first = records[0][0]
                if facts.name(first.entity_id) == sent.queue and not first.is_dead:
                    numbers.append((first.entity_id, first.sequence_number))
        used: dict[int, set[int]] = {}
        for entity_id, number in numbers:
            if facts.is_partitioned(entity_id):
                used.setdefault(entity_id, set()).add(number >> PARTITION_SHIFT)
        if any(len(partitions) > 1 for partitions in used.values()):
            raise Violation(f"a transaction is in several partitions of an entity: {used}, {unit}")

    def _has_effect(self, lock: Lock, kind: str, commit: Commit | None) -> bool:
        """Return whether a settlement is durable; with `commit`, in that batch."""
        facts = self._history.facts
        if kind == "abandon" and lock.queue_id % QUEUES_PER_ENTITY != MAIN:
            return True  # nothing is counted in a dead-letter queue, so that nothing durable follows
        life = facts.life(lock.uid)
        removed = life.removed is not None and commit in (None, life.removed)
        if lock.entity_id in facts.gone or kind == "complete":
            return removed
        return removed or any(
            commit in (None, when) and (when.landed_ms >= lock.seen_ms) for _, when in life.records
        )


def _may_be_held(lock: Lock, record: Record, commit: Commit) -> bool:
    """Return whether a message may have been under a lock when something in a commit was decided."""
    if record.queue_id != lock.queue_id or record.delivery_count != lock.count:
        return False
    claim = lock if lock.hold is None else lock.hold
    if claim.renewals_open == 0 and claim.until_ms < commit.opened_ms:
        return False
    return not any(
        what in ("crash", "update", "deleted") and claim.taken_ms < at < commit.opened_ms
        for at, what in lock.all_ends()
    )
