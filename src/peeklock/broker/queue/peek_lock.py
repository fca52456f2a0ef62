"""Message locks, each with its token, and the holders that keep them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from peeklock.broker.queue.timers import FAR_MS
from peeklock.broker.vocabulary.addresses import LockToken

if TYPE_CHECKING:
    from peeklock.broker.queue.message_queue import MessageQueue
    from peeklock.broker.queue.message_session import MessageSession
    from peeklock.broker.vocabulary.message import Message


class Holder(dict[LockToken, "Lock"]):
    """Locks by token that end together when their connection breaks: those of one link, or those that
    requests of one connection took or renewed (L-13)."""

    __slots__ = ("until_ms",)

    def __init__(self) -> None:
        super().__init__()
        self.until_ms = FAR_MS  # their end at the latest, once the connection is broken


class Lock:
    """A message locked for a receiver; at exactly `locked_until_ms` it is lost.

    A message of a session is locked as long as its session. A lock is not stored: a restart drops it (L-12).
    """

    __slots__ = ("holder", "locked_until_ms", "message", "queue", "session", "token", "transaction_id")

    def __init__(
        self,
        token: LockToken,
        message: Message,
        queue: MessageQueue,
        locked_until_ms: int,
        holder: Holder,
        session: MessageSession | None = None,
    ) -> None:
        self.token = token
        self.message = message
        self.queue = queue
        self.locked_until_ms = locked_until_ms  # without a session
        self.holder = holder
        self.session = session
        self.transaction_id: bytes | None = None  # of the open transaction that settles it

    def until_ms(self) -> int:
        """Return when the lock ends unless it is renewed."""
        session = self.session
        if session is None:
            return min(self.locked_until_ms, self.holder.until_ms)
        return 0 if session.lock is None else session.lock.locked_until_ms
