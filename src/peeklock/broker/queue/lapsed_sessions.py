"""Links that outlive the lock of their session for a while.

A lapse frees the session at once, but not the link: a client that waits for a next message gets an orderly
end of its wait. The ready queue of the link is empty: nothing is delivered, and a drain finds nothing. The
link is detached when its peer uses the session, when another receiver gets the session, or after
`DETACH_AFTER_MS`.
Source: wire contract C7, C40.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from peeklock.broker.queue.links import Consumer, Receivers
from peeklock.broker.queue.timers import FAR_MS

if TYPE_CHECKING:
    from peeklock.broker.queue.message_queue import MessageQueue
    from peeklock.broker.vocabulary.addresses import LockToken
    from peeklock.broker.vocabulary.message import Message

DETACH_AFTER_MS = 3_000
"""Source: wire contract C40: .NET wants the link closed within 5 s of the lapse; a wait of 5 s in Python,
under a lock of 5 s, must end before."""


class LapsedSession:
    """The empty ready queue of a link whose session lock has lapsed."""

    __slots__ = ("detach_at_ms", "key", "receivers", "session_id", "tokens")

    session = None

    def __init__(self, key: str, session_id: str, tokens: list[LockToken], detach_at_ms: int) -> None:
        self.key = key  # folded id of the session
        self.session_id = session_id  # in the holder's spelling
        self.tokens = tokens  # of the message locks that ended with it
        self.detach_at_ms = detach_at_ms
        self.receivers = Receivers()

    def take(self, queue: MessageQueue) -> Message | None:
        """Return None."""
        return None

    def give_back(self, position: int) -> None:
        """Do nothing: nothing was taken."""


class LapsedSessions:
    """The lapsed links of one queue, at most one a session."""

    __slots__ = ("_by_key", "_by_token")

    def __init__(self) -> None:
        self._by_key: OrderedDict[str, tuple[Consumer, LapsedSession]] = OrderedDict()
        self._by_token: dict[LockToken, Consumer] = {}

    def add(
        self, receiver: Consumer, key: str, session_id: str, tokens: list[LockToken], now_ms: int
    ) -> LapsedSession:
        """Keep a link, with its credit, after the lock of its session has lapsed."""
        lapsed = LapsedSession(key, session_id, tokens, now_ms + DETACH_AFTER_MS)
        assert key not in self._by_key, "its link is detached when the session is granted again"
        self._by_key[key] = receiver, lapsed
        for token in tokens:
            self._by_token[token] = receiver
        receiver.ready_queue = lapsed
        lapsed.receivers.credit_changed(receiver)
        return lapsed

    def forget(self, receiver: Consumer) -> None:
        """Forget a link that is detached."""
        lapsed = receiver.ready_queue
        assert isinstance(lapsed, LapsedSession)
        del self._by_key[lapsed.key]
        for token in lapsed.tokens:
            del self._by_token[token]

    def of(self, key: str) -> Consumer | None:
        """Return the link that held the session of this folded id last."""
        found = self._by_key.get(key)
        return None if found is None else found[0]

    def with_token(self, token: LockToken) -> Consumer | None:
        """Return the link over which a message with this lock token was delivered."""
        return self._by_token.get(token)

    def receivers(self) -> list[Consumer]:
        """Return all links in the order of their detach."""
        return [receiver for receiver, _ in self._by_key.values()]

    def keys(self) -> list[str]:
        """Return the folded ids of their sessions."""
        return list(self._by_key)

    def due(self, now_ms: int, count_max: int) -> list[Consumer]:
        """Return links that are due to be detached, at most `count_max`."""
        due: list[Consumer] = []
        for receiver, lapsed in self._by_key.values():
            if lapsed.detach_at_ms > now_ms or len(due) >= count_max:
                break
            due.append(receiver)
        return due

    def next_ms(self) -> int:
        """Return when the next link is due, FAR_MS if there is none."""
        for _, lapsed in self._by_key.values():
            return lapsed.detach_at_ms
        return FAR_MS

    def check(self, locked: Iterable[bytes]) -> None:
        """Assert that the indexes agree."""
        at = [lapsed.detach_at_ms for _, lapsed in self._by_key.values()]
        assert at == sorted(at)
        tokens: dict[LockToken, Consumer] = {}
        for key, (receiver, lapsed) in self._by_key.items():
            assert receiver.ready_queue is lapsed
            assert lapsed.key == key
            assert not receiver.locks
            lapsed.receivers.check()
            assert not lapsed.receivers.draining
            tokens.update(dict.fromkeys(lapsed.tokens, receiver))
        assert tokens == self._by_token
        assert not tokens.keys() & set(locked)
