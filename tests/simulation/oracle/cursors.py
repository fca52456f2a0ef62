"""What cursors hold, from the committed facts, and its agreement with what readers see (X-06).

Owns: a second, naive reading of the facts about cursors: which claim holds which message from when to when,
and which request ended it. Must not know: the broker's own structures, the purpose of a request.

    held          by one claim at most; from its batch on no one else gets the message, and it is not removed
    committed     all claims up to a number in a request to commit; only now may their messages be removed
    released      by a request; the messages are available again
    yielded       as released, by a new owner, while the one before had not read: its numbers are used again
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from peeklock.broker.vocabulary.changes import (
    QUEUES_PER_ENTITY,
    ClaimRemoved,
    ClaimStored,
    CursorRemoved,
    CursorStored,
)
from peeklock.broker.vocabulary.message import MessageState
from peeklock.store.base import Definitions
from tests.simulation.oracle.records import Commit, Key, Record, Violation

CursorChange = CursorStored | CursorRemoved | ClaimStored | ClaimRemoved
CursorKey = tuple[int, str]
"""(queue id, name)."""

FOREVER = 1 << 62


@dataclass(slots=True, eq=False)
class HeldClaim:
    """One claim, also after its end."""

    fact: ClaimStored
    records: list[Record]
    """What it holds, in its order, as the records were when it was made."""
    commit: Commit
    ended: Commit | None = None
    """The batch that released it, or removed the last of its messages."""

    def surely_until_ms(self) -> int:
        """Until when it surely holds what is not removed yet."""
        return FOREVER if self.ended is None else self.ended.opened_ms

    def perhaps_until_ms(self) -> int:
        """Until when it may hold something."""
        return FOREVER if self.ended is None else self.ended.landed_ms


@dataclass(slots=True)
class Asked:
    """Requests of readers that end claims of a cursor."""

    commit_no: int = 0
    releases: int = 0
    takes: int = 0
    """By an owner that is new."""
    take_overs: int = 0

    @property
    def ends(self) -> int:
        """How many requests may have ended claims that were not committed."""
        return self.releases + self.takes


class CursorFacts:
    """All cursors and claims on stable storage, and all that ever were."""

    def __init__(self) -> None:
        self.cursors: dict[CursorKey, CursorStored] = {}
        self.claims: dict[CursorKey, dict[int, HeldClaim]] = {}
        """By cursor and number: those that are neither released nor removed."""
        self.held: dict[Key, HeldClaim] = {}
        self.removed: set[Key] = set()
        """Messages that were removed because they were committed."""
        self.made: dict[tuple[int, str, int], HeldClaim] = {}
        """The latest claim of each number."""
        self.gone: dict[CursorKey, int] = {}
        """How often a cursor was removed."""
        self._past: dict[Key, list[HeldClaim]] = {}
        self._asked: dict[CursorKey, Asked] = {}
        self._new: list[HeldClaim] = []

    # Requests

    def asked(self, queue_id: int, name: str) -> Asked:
        return self._asked.setdefault((queue_id, name), Asked())

    # A batch has become durable

    def take(self, change: CursorChange, live: Mapping[Key, Record], commit: Commit) -> None:
        """Fold one fact in. Raises: Violation."""
        match change:
            case CursorStored():
                self._stored(change)
            case ClaimStored():
                self._claimed(change, live, commit)
            case ClaimRemoved():
                self._claim_removed(change, commit)
            case CursorRemoved():
                self._cursor_removed(change)

    def _stored(self, fact: CursorStored) -> None:
        key = fact.queue_id, fact.name
        before = self.cursors.get(key)
        if before is not None and before.owner != fact.owner:
            self._owner_changed(before, fact)
        elif before is not None and (
            not before.last_no <= fact.last_no <= before.last_no + 1
            or fact.committed_no < before.committed_no
        ):
            raise Violation(f"a cursor's numbers are out of order: {before} -> {fact}")
        if before is None and (fact.last_no > 1 or fact.committed_no):
            raise Violation(f"a new cursor does not begin at the beginning: {fact}")
        if fact.committed_no > self.asked(*key).commit_no:
            raise Violation(f"claims are committed without a request: {fact}")
        self.cursors[key] = fact
        self.claims.setdefault(key, {})

    def _owner_changed(self, before: CursorStored, fact: CursorStored) -> None:
        asked = self.asked(fact.queue_id, fact.name)
        if before.owner is not None and not asked.takes:  # the first reader with a name owns it
            raise Violation(f"a cursor has another owner without a request: {before} -> {fact}")
        if before.unread_from_no is not None:
            last_no = max(before.unread_from_no, before.committed_no)
        else:
            last_no = before.last_no
            if before.owner is not None and not asked.take_overs:
                raise Violation(f"a cursor was taken from an owner that has read: {before} -> {fact}")
        if (fact.last_no, fact.committed_no) != (last_no, before.committed_no):
            raise Violation(f"a new owner has other claims than it should: {before} -> {fact}")

    def _claimed(self, fact: ClaimStored, live: Mapping[Key, Record], commit: Commit) -> None:
        key = fact.queue_id, fact.cursor
        if key not in self.cursors or self.cursors[key].last_no != fact.no:
            raise Violation(f"a claim that is not the next one of its cursor: {fact}")
        records = []
        for first, count in fact.positions:
            for position in range(first, first + count):
                record = live.get((fact.queue_id, position))
                if record is None:
                    raise Violation(f"a claim holds position {position}, where no message is: {fact}")
                if record.key() in self.held:
                    raise Violation(f"two claims hold a message: {fact}, {self.held[record.key()].fact}")
                records.append(record)
        claim = HeldClaim(fact, records, commit)
        self.claims[key][fact.no] = self.made[fact.queue_id, fact.cursor, fact.no] = claim
        for record in records:
            self.held[record.key()] = claim
            self._past.setdefault(record.key(), []).append(claim)
        self._new.append(claim)

    def _claim_removed(self, fact: ClaimRemoved, commit: Commit) -> None:
        key = fact.queue_id, fact.cursor
        claim = self.claims[key].pop(fact.no, None)
        if claim is None:
            raise Violation(f"a claim is removed that was not there: {fact}")
        claim.ended = commit
        left = [record for record in claim.records if self.held.get(record.key()) is claim]
        if left and not self._asked[key].ends:
            raise Violation(f"a claim is released without a request: {fact}")
        if left and fact.no <= self.cursors[key].committed_no:
            raise Violation(f"a claim is removed that was committed and still holds messages: {fact}")
        for record in left:
            del self.held[record.key()]

    def _cursor_removed(self, fact: CursorRemoved) -> None:
        key = fact.queue_id, fact.name
        if key not in self.cursors or not self.asked(*key).releases:
            raise Violation(f"a cursor is gone without a request: {fact}")
        if self.claims.pop(key):
            raise Violation(f"a cursor is gone, and its claims are not: {fact}")
        del self.cursors[key]
        self.gone[key] = self.gone.get(key, 0) + 1

    def message_removed(self, key: Key) -> None:
        """Record that a message is gone. Raises: Violation, if a claim held it that was not committed."""
        claim = self.held.pop(key, None)
        if claim is None:
            return
        fact = claim.fact
        if fact.no > self.cursors[fact.queue_id, fact.cursor].committed_no:
            raise Violation(f"a message is gone that a cursor holds: {key}, {fact}")
        self.removed.add(key)

    def entity_removed(self, entity_id: int, commit: Commit) -> None:
        """Forget an entity's cursors and claims."""
        for key in [key for key in self.cursors if key[0] // QUEUES_PER_ENTITY == entity_id]:
            del self.cursors[key]
            for claim in self.claims.pop(key).values():
                claim.ended = commit
                for record in claim.records:
                    if self.held.get(record.key()) is claim:
                        del self.held[record.key()]

    def check(self, live: Mapping[Key, Record]) -> None:
        """Check, after a batch, that the messages it claimed were available."""
        new, self._new = self._new, []
        for claim in new:
            for record in claim.records:
                if self.held.get(record.key()) is claim:
                    now = live.get(record.key())
                    if now is None or now.state is not MessageState.ACTIVE:
                        raise Violation(f"a claim holds what cannot be received: {claim.fact}, {now}")

    # What others saw

    def check_taken(self, key: Key, taken_ms: int) -> None:
        """Check that no claim held a message at the instant of its delivery. Raises: Violation."""
        for claim in self._past.get(key, ()):
            if claim.commit.taken_ms < taken_ms < claim.surely_until_ms():
                raise Violation(f"a message was delivered while a cursor held it: {key}, {claim.fact}")

    def check_session_taken(self, queue_id: int, session: str, taken_ms: int) -> None:
        """Check the same of a session. Raises: Violation."""
        for claim in self.made.values():
            if claim.fact.queue_id == queue_id and claim.commit.taken_ms < taken_ms < claim.surely_until_ms():
                for record in claim.records:
                    if record.session == session and self.held.get(record.key()) is claim:
                        raise Violation(f"session {session!r} was given away: {claim.fact} holds {record}")

    def may_hold_session(self, queue_id: int, session: str | None, since_ms: int) -> bool:
        """Return whether a cursor may have held a session at some time since then."""
        return any(
            claim.fact.queue_id == queue_id
            and claim.perhaps_until_ms() >= since_ms
            and any(record.session == session for record in claim.records)
            for claims in self._past.values()
            for claim in claims
        )

    def may_hold(self, key: Key, since_ms: int) -> bool:
        """Return whether a cursor may have held a message at some time since then."""
        return any(claim.perhaps_until_ms() >= since_ms for claim in self._past.get(key, ()))

    # Recovery

    def compare(self, found: Definitions) -> None:
        """Check that the store returns what was committed. Raises: Violation."""
        cursors = {(each.queue_id, each.name): each for each in found.cursors}
        if cursors != self.cursors:
            raise Violation(f"the store returns other cursors: {cursors} for {self.cursors}")
        claims = {(each.queue_id, each.cursor, each.no): each for each in found.claims}
        expected = {
            (queue_id, name, no): claim.fact
            for (queue_id, name), held in self.claims.items()
            for no, claim in held.items()
        }
        if claims != expected:
            raise Violation(f"the store returns other claims: {claims} for {expected}")
