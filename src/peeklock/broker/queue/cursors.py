"""Cursors: named readers that hold messages of a queue, also over a restart (X-06).

Theory of operation. A claim is the lock of its messages (`message.lock`): receivers, expiry, purges and
forwards skip them. But it does not lapse, and it is a fact: it holds the same messages after a restart. The
records of the messages do not change. They are held by ascending position, so the facts need no other order.

    claimed     the claim can be read again and again, with the same result
    committed   up to `CursorStored.committed_no`: it cannot be read any more, its messages are removed
    released    by `ClaimRemoved`: its messages return to their places, not counted

A decision is about whole claims and durable with its first frame; the work follows in slices, in the call of
the request and by the queue's timer. After a crash the rest of a commit is removed all the same, and the rest
of a release is free at once. A cursor that is released first removes what it has committed.

A cursor belongs to a reader, by the name that it gives in its requests; the others are refused. A reader
takes a cursor before it claims, and has surely not lost track of it once it reads: until then it may have
died with what it claimed, so another reader takes over, and those claims are released (`_yield`). Later it
needs `take_over`, and finds the claims of the one before. A cursor of an older store has no owner.

In a queue with sessions a claim takes whole free sessions, and the cursor holds a session as long as it holds
a message of it. Later messages of the session are for this cursor alone, which keeps their order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING

from peeklock.broker.queue.browsing import view_of
from peeklock.broker.queue.cursor import Claim, Cursor, CursorState, Taking, runs_of, size_of
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.timers import FAR_MS
from peeklock.broker.vocabulary.changes import ClaimRemoved, ClaimStored, CursorRemoved, CursorStored
from peeklock.broker.vocabulary.commands import ReplyTo
from peeklock.broker.vocabulary.effects import ClaimsLeft, Failed
from peeklock.broker.vocabulary.errors import (
    ClaimCommitted,
    ClaimNotFound,
    CursorNotFound,
    CursorOwned,
    QuotaExceeded,
    ServerBusy,
    ServiceBusError,
)
from peeklock.broker.vocabulary.events import EventType
from peeklock.broker.vocabulary.message import Message, MessageView
from peeklock.broker.vocabulary.quotas import CLAIMS_MAX, CURSOR_EXPIRES_AFTER_MS, CURSORS_MAX

if TYPE_CHECKING:
    from peeklock.broker.queue.message_queue import MessageQueue

SLICE = 250
"""Messages that one call removes or gives back: 1 ms of work. The rest follows by the timer: a claim of 2,000
at once blocks the loop for 10 ms and more."""


_position = attrgetter("position")


class Cursors:
    """The cursors of one queue."""

    __slots__ = ("_busy", "_by_name", "_expires_ms", "_queue", "claimed_count")

    def __init__(self, queue: MessageQueue) -> None:
        self._queue = queue
        self._by_name: dict[str, Cursor] = {}
        self._busy: dict[int, Cursor] = {}  # by identity, in turn: those with work left
        self._expires_ms = FAR_MS  # not later than the first expiry
        self.claimed_count = 0
        """Messages held."""

    def __len__(self) -> int:
        return len(self._by_name)

    def find(self, name: str) -> Cursor:
        """Return a cursor. Raises: CursorNotFound."""
        cursor = self._by_name.get(name)
        if cursor is None or cursor.leaving is not None:
            raise _not_found(self._queue, name)
        return cursor

    def states(self) -> dict[Cursor, CursorState]:
        """Return the state of each cursor, leaving ones included."""
        return {cursor: cursor.state for cursor in (*self._by_name.values(), *self._busy.values())}

    def sorted(self) -> list[Cursor]:
        """Return the cursors that can be found, by name."""
        return [cursor for _, cursor in sorted(self._by_name.items()) if cursor.leaving is None]

    # Ownership

    def take(
        self, name: str, owner: str, take_over: bool, expires_after_ms: int | None, out: Outcome
    ) -> Cursor:
        """Make a reader the owner of a cursor, new or not.

        Raises: CursorOwned, QuotaExceeded, ServerBusy.
        """
        cursor, changed = self._find_or_make(name, expires_after_ms, out.now_ms)
        if owner != cursor.owner:
            if cursor.owner is not None and cursor.unread_from_no is None and not take_over:
                raise self._owned(cursor, out.now_ms)
            if cursor.unread_from_no is not None:
                self._yield(cursor, out)
            cursor.owner = owner
            cursor.unread_from_no = cursor.last_no
            changed = True
        cursor.use(out.now_ms, self._queue.shared.wall.instant_ms(out.now_ms))
        if changed:
            out.changes.append(self._stored(cursor))
        if id(cursor) in self._busy:
            self._work(cursor, SLICE, out)
            self._queue.set_timer()
        return cursor

    def _yield(self, cursor: Cursor, out: Outcome) -> None:
        """Release the claims of an owner that has not read. The caller stores the cursor."""
        assert cursor.unread_from_no is not None
        cursor.last_no = max(cursor.unread_from_no, cursor.committed_no)
        for no in [no for no in cursor.claims if no > cursor.last_no]:
            cursor.yielded.append(cursor.claims.pop(no))
            out.changes.append(ClaimRemoved(self._queue.queue_id, cursor.name, no))
        if cursor.yielded:
            self._busy[id(cursor)] = cursor

    def _require_owner(self, cursor: Cursor, owner: str | None, now_ms: int) -> None:
        """Require that a cursor belongs to a reader, or to nobody. Raises: CursorOwned."""
        if cursor.owner is not None and owner != cursor.owner:
            raise self._owned(cursor, now_ms)

    def _reads(self, cursor: Cursor, owner: str | None, out: Outcome) -> None:
        """Note that a reader reads or commits, so that the cursor is surely its own."""
        if cursor.owner != owner or cursor.unread_from_no is not None:
            cursor.owner = owner
            cursor.unread_from_no = None
            out.changes.append(self._stored(cursor))

    def _owned(self, cursor: Cursor, now_ms: int) -> CursorOwned:
        used_s = max(0, self._queue.shared.wall.instant_ms(now_ms) - cursor.used_at_ms) // 1000
        return CursorOwned(
            f"cursor '{cursor.name}' of '{self._queue.name}' belongs to the reader '{cursor.owner}', which "
            f"used it {used_s} s ago: give each reader a name of its own (in Spark, option consumerName), "
            f"or, if that reader is gone, take the cursor over from it (option takeOver=true)"
        )

    def _find_or_make(self, name: str, expires_after_ms: int | None, now_ms: int) -> tuple[Cursor, bool]:
        """Return a cursor, and whether it is new or changed. Raises: QuotaExceeded, ServerBusy."""
        cursor = self._by_name.get(name)
        if cursor is None:
            return self._new(name, now_ms, expires_after_ms or CURSOR_EXPIRES_AFTER_MS), True
        if cursor.leaving is not None:
            raise ServerBusy(f"cursor '{name}' of '{self._queue.name}' is being released: try again later")
        if expires_after_ms is None or expires_after_ms == cursor.expires_after_ms:
            return cursor, False
        cursor.expires_after_ms = expires_after_ms
        self._watch(cursor)
        return cursor, True

    # Claiming

    def claim(
        self,
        name: str,
        count_max: int,
        bytes_max: int,
        expires_after_ms: int | None,
        out: Outcome,
        enqueued_up_to_ms: int | None = None,
        owner: str | None = None,
    ) -> Claim | None:
        """Hold the next available messages for a cursor, new or not; return None if nothing is available.

        Args:
            enqueued_up_to_ms: stop at the first message that was enqueued later.

        Raises: CursorOwned, QuotaExceeded, ServerBusy.
        """
        now_ms = out.now_ms
        queue = self._queue
        if (known := self._by_name.get(name)) is not None:
            self._require_room(known, owner, now_ms)
        cursor, changed = self._find_or_make(name, expires_after_ms, now_ms)
        if cursor.owner != owner:
            cursor.owner = owner
            cursor.unread_from_no = cursor.last_no
            changed = True
        cursor.use(now_ms, self._queue.shared.wall.instant_ms(now_ms))
        claim = Claim(cursor, cursor.last_no + 1)
        taking = Taking(queue, claim, count_max, bytes_max, now_ms, enqueued_up_to_ms or FAR_MS)
        if queue.sessions is None:
            taking.take(queue.ready_queue)
        else:
            taking.take_sessions(queue.sessions)
        messages = claim.messages
        if messages:
            cursor.last_no = claim.no
        if messages or changed:
            out.changes.append(self._stored(cursor))
        if not messages:
            return None
        messages.sort(key=_position)
        for message in messages:
            out.handed_over(queue, message, EventType.CLAIMED, reason=name, related_number=claim.no)
        cursor.claims[claim.no] = claim
        self.claimed_count += len(messages)
        out.changes.append(ClaimStored(queue.queue_id, name, claim.no, runs_of(messages)))
        return claim

    def _require_room(self, cursor: Cursor, owner: str | None, now_ms: int) -> None:
        """Require that a reader may claim with a cursor. Raises: CursorOwned, QuotaExceeded, ServerBusy."""
        if cursor.leaving is not None:
            return
        self._require_owner(cursor, owner, now_ms)
        name = f"cursor '{cursor.name}' of '{self._queue.name}'"
        if cursor.yielded:
            raise ServerBusy(f"{name} gives back what its last owner claimed and never read: try again later")
        if len(cursor.claims) >= CLAIMS_MAX:
            raise QuotaExceeded(
                f"{name} holds {len(cursor.claims)} claims, at most {CLAIMS_MAX} are allowed: commit some, "
                f"or claim more messages at a time"
            )

    def _new(self, name: str, now_ms: int, expires_after_ms: int) -> Cursor:
        if len(self._by_name) >= CURSORS_MAX:
            raise QuotaExceeded(
                f"'{self._queue.name}' has {len(self._by_name)} cursors, at most {CURSORS_MAX} are allowed: "
                f"release unused ones"
            )
        cursor = self._by_name[name] = Cursor(
            name, now_ms, self._queue.shared.wall.instant_ms(now_ms), expires_after_ms
        )
        self._watch(cursor)
        return cursor

    def _stored(self, cursor: Cursor) -> CursorStored:
        return CursorStored(
            self._queue.queue_id,
            cursor.name,
            cursor.last_no,
            cursor.committed_no,
            cursor.used_at_ms,
            cursor.expires_after_ms,
            cursor.owner,
            cursor.unread_from_no,
            cursor.undone,
        )

    # Reading

    def read(
        self, name: str, no: int, skip: int, count_max: int, bytes_max: int, owner: str | None, out: Outcome
    ) -> list[MessageView]:
        """Return the messages of a claim after the first `skip`, at least one if there is one.

        Claim 0 has none.

        Raises: CursorNotFound, CursorOwned, ClaimNotFound, ClaimCommitted.
        """
        now_ms = out.now_ms
        cursor = self.find(name)
        self._require_owner(cursor, owner, now_ms)
        if 0 < no <= cursor.committed_no:
            raise ClaimCommitted(
                f"claim {no} of cursor '{name}' of '{self._queue.name}' is committed, like all up to "
                f"{cursor.committed_no}: its messages are deleted"
            )
        claim = cursor.claims.get(no)
        if claim is None and no != 0:
            raise self._no_claim(cursor, no)
        cursor.use(now_ms, self._queue.shared.wall.instant_ms(now_ms))
        self._reads(cursor, owner, out)
        views: list[MessageView] = []
        if claim is None:
            return views
        for message in claim.messages[skip : skip + max(count_max, 0)]:
            bytes_max -= size_of(message)
            if views and bytes_max < 0:
                break
            views.append(view_of(message, self._queue.shared.wall))
        return views

    def _no_claim(self, cursor: Cursor, no: int) -> ServiceBusError:
        made = f"the last one is {cursor.last_no}" if cursor.last_no else "it has made none yet"
        if cursor.has_undone(no):
            made = "the store was restored from an older back-up"
        return ClaimNotFound(f"cursor '{cursor.name}' of '{self._queue.name}' has no claim {no}: {made}")

    # Committing

    def commit(self, name: str, up_to_no: int, owner: str | None, out: Outcome) -> int:
        """Remove the messages of the claims up to a number; return how many are left to be removed.

        Raises: CursorNotFound, CursorOwned, ClaimNotFound.
        """
        cursor = self.find(name)
        self._require_owner(cursor, owner, out.now_ms)
        if not 0 <= up_to_no <= cursor.last_no or cursor.has_undone(up_to_no):
            raise self._no_claim(cursor, up_to_no)
        cursor.use(out.now_ms, self._queue.shared.wall.instant_ms(out.now_ms))
        self._reads(cursor, owner, out)
        if up_to_no > cursor.committed_no:
            cursor.committed_no = up_to_no
            out.changes.append(self._stored(cursor))
            self._busy[id(cursor)] = cursor
        if id(cursor) in self._busy:
            self._work(cursor, SLICE, out)
            self._queue.set_timer()
        return sum(claim.left for claim in cursor.committed() if claim.no <= up_to_no)

    # Releasing

    def release(self, name: str, reply_to: ReplyTo, out: Outcome) -> None:
        """Release the messages of a cursor and forget it, then answer. Raises: CursorNotFound."""
        cursor = self._by_name.get(name)
        if cursor is None:
            raise _not_found(self._queue, name)
        self._leave(cursor).append(reply_to)
        self._work(cursor, SLICE, out)
        self._queue.set_timer()

    def _leave(self, cursor: Cursor) -> list[ReplyTo]:
        """Mark a cursor as leaving; return the requests to be answered at its end."""
        if cursor.leaving is None:
            cursor.leaving = []
        self._busy[id(cursor)] = cursor
        return cursor.leaving

    def abandon(self, error: ServiceBusError, out: Outcome) -> None:
        """Refuse the requests that wait: the entity is deleted."""
        for cursor in self._busy.values():
            out.effects.extend(Failed(reply_to, error) for reply_to in cursor.leaving or ())

    def end_all(self, out: Outcome) -> None:
        """Release the messages of all cursors and forget them, at once."""
        for cursor in list(self._by_name.values()):
            self._leave(cursor)
        for cursor in list(self._busy.values()):
            self._work(cursor, sys.maxsize, out)

    # Slices

    def next_ms(self) -> int:
        """When `advance` has something to do."""
        return 0 if self._busy else self._expires_ms

    def advance(self, count_max: int, out: Outcome) -> int:
        """Do about `count_max` items of work, and mark expired cursors; return the work done."""
        work = 0
        if self._expires_ms <= out.now_ms:
            self._expires_ms = FAR_MS
            for cursor in self._by_name.values():
                work += 1
                if cursor.leaving is None and cursor.idle_since_ms + cursor.expires_after_ms <= out.now_ms:
                    self._leave(cursor)
                self._watch(cursor)
        for cursor in list(self._busy.values()):
            if work >= count_max:
                break
            work += 1 + self._work(cursor, count_max - work, out)
        return work

    def _watch(self, cursor: Cursor) -> None:
        if cursor.leaving is None:
            self._expires_ms = min(self._expires_ms, cursor.idle_since_ms + cursor.expires_after_ms)
            self._queue.wake(self._expires_ms)

    def _work(self, cursor: Cursor, count_max: int, out: Outcome) -> int:
        """Do a slice of a cursor's work; return the number of messages."""
        work = 0
        queue_id = self._queue.queue_id
        for claim in cursor.committed():
            work += self._remove(claim, count_max - work, out)
            if claim.left:
                return work
            del cursor.claims[claim.no]
            out.changes.append(ClaimRemoved(queue_id, cursor.name, claim.no))
        while cursor.yielded:
            work += self._give_back(cursor.yielded[0], count_max - work, out)
            if cursor.yielded[0].left:
                return work
            del cursor.yielded[0]
        if cursor.leaving is not None:
            if self._by_name.get(cursor.name) is cursor:  # from here on a restart finds its messages free
                del self._by_name[cursor.name]
                out.changes += [ClaimRemoved(queue_id, cursor.name, no) for no in cursor.claims]
                out.changes.append(CursorRemoved(queue_id, cursor.name))
            for claim in list(cursor.claims.values()):
                work += self._give_back(claim, count_max - work, out)
                if claim.left:
                    return work
                del cursor.claims[claim.no]
            out.effects.extend(ClaimsLeft(reply_to, 0) for reply_to in cursor.leaving)
        del self._busy[id(cursor)]
        return work

    def _remove(self, claim: Claim, count_max: int, out: Outcome) -> int:
        queue = self._queue
        sessions = queue.sessions
        messages = self._take_part(claim, count_max)
        for message in messages:
            session = None if sessions is None else sessions.session_of(message)
            out.completed(queue, message, "cursor")
            queue.remove(message, out)
            message.lock = None
            if session is not None and sessions is not None:
                sessions.unclaimed(session)
        return len(messages)

    def _give_back(self, claim: Claim, count_max: int, out: Outcome) -> int:
        queue = self._queue
        sessions = queue.sessions
        messages = self._take_part(claim, count_max)
        for message in messages:
            message.lock = None
            name, no = claim.cursor.name, claim.no
            out.happened(EventType.CLAIM_RELEASED, queue, message, reason=name, related_number=no)
            queue.make_available(message)
            if sessions is not None:
                sessions.unclaimed(sessions.session_of(message))
        return len(messages)

    def take_out(self, claim: Claim, message: Message) -> None:
        """Release one message from a claim; a restart ignores a position without a message."""
        claim.messages.remove(message)
        claim.size_bytes -= size_of(message)
        self.claimed_count -= 1
        message.lock = None
        sessions = self._queue.sessions
        if sessions is not None:
            sessions.unclaimed(sessions.session_of(message))

    def _take_part(self, claim: Claim, count_max: int) -> list[Message]:
        messages = claim.messages[claim.done : claim.done + count_max]
        claim.done += len(messages)
        self.claimed_count -= len(messages)
        return messages

    # Recovery

    def restore(self, stored: CursorStored, claims: Iterable[ClaimStored], now_ms: int) -> None:
        """Add a stored cursor with its claims by ascending number, once the messages are there."""
        queue = self._queue
        cursor = self._new(stored.name, now_ms, stored.expires_after_ms)
        cursor.last_no = stored.last_no
        cursor.committed_no = stored.committed_no
        cursor.used_at_ms = stored.used_at_ms
        cursor.owner = stored.owner
        cursor.unread_from_no = stored.unread_from_no
        cursor.undone = stored.undone
        for each in claims:
            claim = cursor.claims[each.no] = Claim(cursor, each.no)
            for first, count in each.positions:
                for position in range(first, first + count):
                    message = queue.active.get(position)
                    if message is not None:  # else it was removed since
                        message.lock = claim
                        claim.size_bytes += size_of(message)
                        claim.messages.append(message)
                        if queue.sessions is not None:
                            session = queue.sessions.session_of(message)
                            queue.sessions.claimed(session, cursor, 1)
                            cursor.ready[session.key] = session
            self.claimed_count += len(claim.messages)
        if cursor.committed():
            self._busy[id(cursor)] = cursor

    def check(self) -> None:
        """Assert that the indexes agree."""
        held = 0
        for cursor in {**self._busy, **{id(each): each for each in self._by_name.values()}}.values():
            assert list(cursor.claims) == sorted(cursor.claims)
            assert cursor.committed_no <= cursor.last_no
            assert not cursor.committed() or id(cursor) in self._busy
            assert cursor.leaving is None or id(cursor) in self._busy
            assert not cursor.yielded or id(cursor) in self._busy
            assert cursor.unread_from_no is None or cursor.unread_from_no <= cursor.last_no
            for no, claim in cursor.claims.items():
                assert claim.no == no <= cursor.last_no
            for claim in (*cursor.claims.values(), *cursor.yielded):
                assert claim.cursor is cursor
                messages = claim.messages[claim.done :]
                assert messages == sorted(messages, key=_position)
                for message in messages:
                    assert message.lock is claim
                    assert self._queue.active.get(message.position) is message
                held += len(messages)
        assert held == self.claimed_count
        for name, cursor in self._by_name.items():
            assert cursor.name == name
            if cursor.leaving is None:
                assert self._expires_ms <= cursor.idle_since_ms + cursor.expires_after_ms
        assert self._queue.timer_ms <= self.next_ms()


def _not_found(queue: MessageQueue, name: str) -> CursorNotFound:
    return CursorNotFound(f"'{queue.name}' has no cursor '{name}': never made, released, or expired unused")
