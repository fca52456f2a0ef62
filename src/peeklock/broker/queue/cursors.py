"""Cursors: named readers that hold messages of a queue, also over a restart (X-06).

Owns: the cursors of a queue, what each has claimed, what is left to remove or to give back, when an unused
one goes. Must not know: who asks, links, the wire, the store.

Theory of operation. A claim holds messages as a lock does: `message.lock` is the claim, and receivers,
expiry, purges and forwards pass over them. But it has no end of its own, and it is a fact: what a claim holds
is the same in every life of the broker. The messages' own records do not change with it. They are held in
ascending order of position, whatever the order in which they were taken: so the facts need no other.

    claimed     the claim can be read as often as wanted, each time the same
    committed   `CursorStored.committed_no` says so; it cannot be read any more, its messages are removed
    released    `ClaimRemoved` says so; its messages return to their places, not counted

A decision is durable with its first frame and is for whole claims; the work that follows is done in slices,
in the asker's call and then by the queue's timer. So a crash in the middle removes the rest all the same, and
gives back the rest at once. A cursor that is to go waits until what it committed has been removed.

In a queue with sessions a claim takes whole sessions that nobody holds, and its cursor holds them while it
holds a message of them. What comes later in such a session is only for this cursor: the order within stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING

from peeklock.broker.queue.browsing import view_of
from peeklock.broker.queue.cursor import Claim, Cursor, CursorState, Taking, runs_of, size_of
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.timers import FAR_MS
from peeklock.broker.vocabulary.changes import ClaimRemoved, ClaimStored, CursorRemoved, CursorStored
from peeklock.broker.vocabulary.commands import ReplyTo
from peeklock.broker.vocabulary.effects import ClaimsLeft, CursorView, Failed
from peeklock.broker.vocabulary.errors import (
    ClaimCommitted,
    ClaimNotFound,
    CursorNotFound,
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
"""Messages that one call removes or gives back: 1 ms of work. What is left follows by the timer, often in
the same turn of the loop: a whole claim of 2,000 kept it for 10 ms and more, with what its commit takes."""


_position = attrgetter("position")


class Cursors:
    """The cursors of one queue."""

    __slots__ = ("_busy", "_by_name", "_expires_ms", "_queue", "claimed_count")

    def __init__(self, queue: MessageQueue) -> None:
        self._queue = queue
        self._by_name: dict[str, Cursor] = {}
        self._busy: dict[int, Cursor] = {}  # those with something left to do, by identity, in turn
        self._expires_ms = FAR_MS  # no cursor expires before
        self.claimed_count = 0
        """Messages that are held."""

    def __len__(self) -> int:
        return len(self._by_name)

    def find(self, name: str) -> Cursor:
        """Raises: CursorNotFound."""
        cursor = self._by_name.get(name)
        if cursor is None or cursor.leaving is not None:
            raise _not_found(self._queue, name)
        return cursor

    def states(self) -> dict[Cursor, CursorState]:
        """Return where each cursor is in its life, those that nothing finds any more too."""
        return {cursor: cursor.state for cursor in (*self._by_name.values(), *self._busy.values())}

    def views(self) -> list[CursorView]:
        """Show all cursors, sorted by name, with what they hold."""
        return [
            CursorView(
                cursor.name,
                cursor.last_no,
                cursor.committed_no,
                cursor.used_at_ms,
                cursor.expires_after_ms,
                [
                    (no, len(claim.messages), claim.size_bytes)
                    for no, claim in cursor.claims.items()
                    if no > cursor.committed_no
                ],
            )
            for _, cursor in sorted(self._by_name.items())
            if cursor.leaving is None
        ]

    # Claiming

    def claim(
        self,
        name: str,
        count_max: int,
        bytes_max: int,
        expires_after_ms: int | None,
        out: Outcome,
        enqueued_up_to_ms: int | None = None,
    ) -> Claim | None:
        """Hold the next available messages for a cursor, which is made if there is none; None when nothing is
        available. With a time, those before the first one that was enqueued later.

        Raises: QuotaExceeded, ServerBusy.
        """
        now_ms = out.now_ms
        queue = self._queue
        cursor = self._by_name.get(name)
        changed = cursor is None
        if cursor is None:
            cursor = self._new(name, now_ms, expires_after_ms or CURSOR_EXPIRES_AFTER_MS)
        elif cursor.leaving is not None:
            raise ServerBusy(f"cursor '{name}' of '{queue.name}' is being released: try again later")
        elif len(cursor.claims) >= CLAIMS_MAX:
            raise QuotaExceeded(
                f"cursor '{name}' of '{queue.name}' holds {len(cursor.claims)} claims, at most {CLAIMS_MAX} "
                f"are allowed: commit some, or claim more messages at a time"
            )
        elif expires_after_ms is not None and expires_after_ms != cursor.expires_after_ms:
            cursor.expires_after_ms = expires_after_ms
            self._watch(cursor)
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

    def _new(self, name: str, now_ms: int, expires_after_ms: int) -> Cursor:
        if len(self._by_name) >= CURSORS_MAX:
            raise QuotaExceeded(
                f"'{self._queue.name}' has {len(self._by_name)} cursors, at most {CURSORS_MAX} are allowed: "
                f"release those that are not used any more"
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
        )

    # Reading

    def read(
        self, name: str, no: int, skip: int, count_max: int, bytes_max: int, now_ms: int
    ) -> list[MessageView]:
        """Show what a claim holds from the `skip`th message on, at least one if there is one.

        Raises: CursorNotFound, ClaimNotFound, ClaimCommitted.
        """
        cursor = self.find(name)
        if 0 < no <= cursor.committed_no:
            raise ClaimCommitted(
                f"claim {no} of cursor '{name}' of '{self._queue.name}' is committed, as are all up to "
                f"{cursor.committed_no}: its messages are gone"
            )
        claim = cursor.claims.get(no)
        if claim is None:
            raise self._no_claim(cursor, no)
        cursor.use(now_ms, self._queue.shared.wall.instant_ms(now_ms))
        views: list[MessageView] = []
        for message in claim.messages[skip : skip + max(count_max, 0)]:
            bytes_max -= size_of(message)
            if views and bytes_max < 0:
                break
            views.append(view_of(message, self._queue.shared.wall))
        return views

    def _no_claim(self, cursor: Cursor, no: int) -> ServiceBusError:
        made = f"the last one is {cursor.last_no}" if cursor.last_no else "it has made none yet"
        return ClaimNotFound(f"cursor '{cursor.name}' of '{self._queue.name}' has no claim {no}: {made}")

    # Committing

    def commit(self, name: str, up_to_no: int, out: Outcome) -> int:
        """Remove what the claims up to a number hold; answer how many messages are left to be removed.

        Raises: CursorNotFound, ClaimNotFound.
        """
        cursor = self.find(name)
        if not 0 <= up_to_no <= cursor.last_no:
            raise self._no_claim(cursor, up_to_no)
        cursor.use(out.now_ms, self._queue.shared.wall.instant_ms(out.now_ms))
        if up_to_no > cursor.committed_no:
            cursor.committed_no = up_to_no
            out.changes.append(self._stored(cursor))
            self._busy[id(cursor)] = cursor
        if id(cursor) in self._busy:
            self._work(cursor, SLICE, out)
            self._queue.set_timer()
        return sum(claim.left for claim in cursor.committed() if claim.no <= up_to_no)

    # Giving back

    def release(self, name: str, reply_to: ReplyTo, out: Outcome) -> None:
        """Give back what a cursor holds and forget it; `reply_to` is answered when that is done.

        Raises: CursorNotFound.
        """
        cursor = self._by_name.get(name)
        if cursor is None:
            raise _not_found(self._queue, name)
        self._leave(cursor).append(reply_to)
        self._work(cursor, SLICE, out)
        self._queue.set_timer()

    def _leave(self, cursor: Cursor) -> list[ReplyTo]:
        """Let a cursor go; answer who waits for it."""
        if cursor.leaving is None:
            cursor.leaving = []
        self._busy[id(cursor)] = cursor
        return cursor.leaving

    def abandon(self, error: ServiceBusError, out: Outcome) -> None:
        """Tell whoever waits that the entity is gone."""
        for cursor in self._busy.values():
            out.effects.extend(Failed(reply_to, error) for reply_to in cursor.leaving or ())

    # In slices

    def next_ms(self) -> int:
        """When `advance` has something to do."""
        return 0 if self._busy else self._expires_ms

    def advance(self, count_max: int, out: Outcome) -> int:
        """Do about `count_max` items of what is left, and let cursors go that were not used for too long;
        answer the work done."""
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
        """Do a slice of what a cursor has left to do; answer how many messages."""
        work = 0
        queue_id = self._queue.queue_id
        for claim in cursor.committed():
            work += self._remove(claim, count_max - work, out)
            if claim.left:
                return work
            del cursor.claims[claim.no]
            out.changes.append(ClaimRemoved(queue_id, cursor.name, claim.no))
        if cursor.leaving is not None:
            if self._by_name.get(cursor.name) is cursor:  # all that it holds is free for a restart from here
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
            session = None if sessions is None else sessions.line_of(message)
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
            queue.return_to_line(message)
            if sessions is not None:
                sessions.unclaimed(sessions.line_of(message))
        return len(messages)

    def take_out(self, claim: Claim, message: Message) -> None:
        """End the hold on one message; a restart passes over a position under which nothing stands."""
        claim.messages.remove(message)
        claim.size_bytes -= size_of(message)
        self.claimed_count -= 1
        message.lock = None
        sessions = self._queue.sessions
        if sessions is not None:
            sessions.unclaimed(sessions.line_of(message))

    def _take_part(self, claim: Claim, count_max: int) -> list[Message]:
        messages = claim.messages[claim.done : claim.done + count_max]
        claim.done += len(messages)
        self.claimed_count -= len(messages)
        return messages

    # Recovery

    def restore(self, stored: CursorStored, claims: Iterable[ClaimStored], now_ms: int) -> None:
        """Take in a cursor that was stored, with its claims in ascending order; the messages are there. What
        it had committed is removed by `advance`."""
        queue = self._queue
        cursor = self._new(stored.name, now_ms, stored.expires_after_ms)
        cursor.last_no = stored.last_no
        cursor.committed_no = stored.committed_no
        cursor.used_at_ms = stored.used_at_ms
        for each in claims:
            claim = cursor.claims[each.no] = Claim(cursor, each.no)
            for first, count in each.positions:
                for position in range(first, first + count):
                    message = queue.active.get(position)
                    if message is not None:  # else removed since
                        message.lock = claim
                        claim.size_bytes += size_of(message)
                        claim.messages.append(message)
                        if queue.sessions is not None:
                            session = queue.sessions.line_of(message)
                            queue.sessions.claimed(session, cursor, 1)
                            cursor.ready[session.key] = session
            self.claimed_count += len(claim.messages)
        if cursor.committed():
            self._busy[id(cursor)] = cursor

    def check(self) -> None:
        """Compare the indexes with each other; an assertion fails when they do not agree."""
        held = 0
        for cursor in {**self._busy, **{id(each): each for each in self._by_name.values()}}.values():
            assert list(cursor.claims) == sorted(cursor.claims)
            assert cursor.committed_no <= cursor.last_no
            assert not cursor.committed() or id(cursor) in self._busy
            assert cursor.leaving is None or id(cursor) in self._busy
            for no, claim in cursor.claims.items():
                assert claim.no == no <= cursor.last_no
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
    return CursorNotFound(f"'{queue.name}' has no cursor '{name}': it was never made, released, or not used")
