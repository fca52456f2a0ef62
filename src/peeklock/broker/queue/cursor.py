"""One cursor: its life, what it claims, and how a claim is filled."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from peeklock.broker.queue.delivery import PASS_OVER_MAX, PlainReadyQueue
from peeklock.broker.vocabulary.commands import LockToken, ReplyTo
from peeklock.broker.vocabulary.message import Message

if TYPE_CHECKING:
    from peeklock.broker.queue.message_queue import MessageQueue
    from peeklock.broker.queue.message_session import MessageSession
    from peeklock.broker.queue.message_sessions import MessageSessions


class CursorState(Enum):
    """Life of a cursor."""

    OPEN = 1
    COMMITTING = 2
    """Messages of committed claims are still to be removed; it can claim more."""
    YIELDING = 4
    """Claims of an owner that never read are still to be given back; it cannot claim meanwhile."""
    LEAVING = 3
    """It removes what is committed, then gives back the rest; it cannot be found."""


TRANSITIONS: Final[dict[CursorState | None, frozenset[CursorState | None]]] = {
    None: frozenset((CursorState.OPEN,)),
    CursorState.OPEN: frozenset((CursorState.COMMITTING, CursorState.YIELDING, CursorState.LEAVING, None)),
    CursorState.COMMITTING: frozenset((CursorState.OPEN, CursorState.YIELDING, CursorState.LEAVING, None)),
    CursorState.YIELDING: frozenset((CursorState.OPEN, CursorState.LEAVING, None)),
    CursorState.LEAVING: frozenset((None,)),
}
"""The life of a cursor; None: it does not exist.

Work that fits into a slice is done at once: a small commit leaves a cursor OPEN, a small release ends it."""


class Cursor:
    """One named reader of a queue."""

    __slots__ = (
        "claims",
        "committed_no",
        "expires_after_ms",
        "idle_since_ms",
        "last_no",
        "leaving",
        "name",
        "owner",
        "ready",
        "takes_ready",
        "undone",
        "unread_from_no",
        "used_at_ms",
        "yielded",
    )

    def __init__(self, name: str, now_ms: int, instant_ms: int, expires_after_ms: int) -> None:
        self.name = name
        self.last_no = 0
        self.committed_no = 0
        self.used_at_ms = instant_ms  # UTC
        self.idle_since_ms = now_ms  # the start counts as use: the broker may have been down for long
        self.expires_after_ms = expires_after_ms
        self.owner: str | None = None
        self.unread_from_no: int | None = None  # claims after it go with an owner that has not read
        self.undone: tuple[int, int] | None = None  # numbers of claims that a restore skipped
        self.yielded: list[Claim] = []  # such claims, to be given back
        self.claims: dict[int, Claim] = {}  # ascending; committed ones until they are removed
        self.leaving: list[ReplyTo] | None = None  # to be answered at its end; None = it stays
        self.ready: dict[str, MessageSession] = {}  # its sessions with available messages
        self.takes_ready = False  # its next claim begins with one of those

    def has_undone(self, no: int) -> bool:
        """Return whether a claim was made in a life that a restore has undone."""
        return self.undone is not None and self.undone[0] <= no <= self.undone[1]

    def use(self, now_ms: int, instant_ms: int) -> None:
        self.used_at_ms = instant_ms
        self.idle_since_ms = now_ms

    @property
    def state(self) -> CursorState:
        if self.leaving is not None:
            return CursorState.LEAVING
        if self.yielded:
            return CursorState.YIELDING
        return CursorState.COMMITTING if self.committed() else CursorState.OPEN

    def committed(self) -> list[Claim]:
        """Return the claims whose messages are to be removed."""
        found = []
        for no, claim in self.claims.items():
            if no > self.committed_no:
                break
            found.append(claim)
        return found


class Claim:
    """Messages held for a cursor, by ascending position. It is the lock of each."""

    __slots__ = ("cursor", "done", "messages", "no", "size_bytes")

    token: LockToken | None = None
    """Messages of a claim are not settled one by one."""

    def __init__(self, cursor: Cursor, no: int) -> None:
        self.cursor = cursor
        self.no = no
        self.messages: list[Message] = []
        self.size_bytes = 0
        self.done = 0  # messages at the front that are no longer held

    @property
    def left(self) -> int:
        return len(self.messages) - self.done


class Taking:
    """Fills one claim within its limits."""

    def __init__(
        self, queue: MessageQueue, claim: Claim, count_max: int, bytes_max: int, now_ms: int, up_to_ms: int
    ) -> None:
        self._queue = queue
        self._claim = claim
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._now_ms = now_ms
        self._up_to_ms = up_to_ms
        self._passed_over = 0
        self._is_full = False

    def take(self, ready_queue: PlainReadyQueue | MessageSession) -> bool:
        """Take available messages from a ready queue; return whether a limit ended it."""
        queue, claim, now_ms = self._queue, self._claim, self._now_ms
        messages = claim.messages
        expires = queue.expiry is not None
        instant_ms = queue.shared.wall.instant_ms(now_ms)
        while len(messages) < self._count_max:
            message = ready_queue.take(queue)
            if message is None:
                return False
            expires_at_ms = message.expires_at_ms or message.enqueued_at_ms + queue.default_ttl_ms
            if expires and expires_at_ms - message.lead_ms <= instant_ms:
                self._passed_over += 1  # left to the sweep, as in a delivery
                queue.wake(now_ms)
                if self._passed_over < PASS_OVER_MAX:
                    continue
                break
            if message.enqueued_at_ms > self._up_to_ms:
                ready_queue.give_back(message.position)
                return True
            size_bytes = size_of(message)
            if messages and claim.size_bytes + size_bytes > self._bytes_max:
                ready_queue.give_back(message.position)
                break
            claim.size_bytes += size_bytes
            message.lock = claim
            messages.append(message)
        self._is_full = True
        return True

    def take_sessions(self, sessions: MessageSessions) -> None:
        """Take available messages of sessions: in turn from a free one and from one of the cursor's own, so
        that neither kind starves."""
        cursor = self._claim.cursor
        for _ in range(len(cursor.ready) + len(sessions.available)):
            if cursor.ready and (cursor.takes_ready or not sessions.available):
                session = cursor.ready.pop(next(iter(cursor.ready)))
            elif sessions.available:
                session = sessions.available.popitem(last=False)[1]
            else:
                return
            cursor.takes_ready = not cursor.takes_ready
            before = len(self._claim.messages)
            more = self.take(session)
            count = len(self._claim.messages) - before
            if count:
                sessions.claimed(session, cursor, count)
            if more or session.cursor is None:
                sessions.requeue(session)
            if self._is_full:
                return


def size_of(message: Message) -> int:
    overlay = message.overlay
    return message.size_bytes if overlay is None else message.size_bytes + len(overlay)


def runs_of(messages: list[Message]) -> tuple[tuple[int, int], ...]:
    """Return runs of neighbouring positions: (first, count)."""
    runs: list[tuple[int, int]] = []
    first = last = messages[0].position
    for message in messages:
        position = message.position
        if position > last + 1:
            runs.append((first, last + 1 - first))
            first = position
        last = position
    runs.append((first, last + 1 - first))
    return tuple(runs)
