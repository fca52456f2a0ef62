"""Links that outlive the lock of their session for a moment.

Owns: which links these are, what they held, when each is detached. Must not know: who holds a session, how a
link is detached (`message_sessions` decides both).

A lapse frees the session at once, but not its link: a client that waits for a next message shall end its wait
in peace. Nothing stands in the line of such a link, so nothing is delivered over it, and a drain finds
nothing. It is detached when its peer uses the session, when another receiver gets it, or after a while.
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
    from peeklock.broker.vocabulary.message import Message

DETACH_AFTER_MS = 3_000
"""From the lapse of a session's lock to the detach of its link. Source: wire contract C40: .NET wants the
link closed within 5 s of the lapse; a wait of 5 s in Python, under a lock of 5 s, is to end before it."""


class LapsedSession:
    """The line of a link whose session's lock has lapsed: nothing stands in it."""

    __slots__ = ("detach_at_ms", "key", "receivers", "session_id", "tokens")

    session = None

    def __init__(self, key: str, session_id: str, tokens: list[bytes], detach_at_ms: int) -> None:
        self.key = key  # the session's id, folded
        self.session_id = session_id  # as its holder spelt it
        self.tokens = tokens  # of the locks that ended with the session's
        self.detach_at_ms = detach_at_ms
        self.receivers = Receivers()

    def take(self, queue: MessageQueue) -> Message | None:
        """Give nothing."""
        return None

    def give_back(self, position: int) -> None:
        """Take nothing: nothing was given."""


class LapsedSessions:
    """All such links of one queue: at most one a session."""

    __slots__ = ("_by_key", "_by_token")

    def __init__(self) -> None:
        self._by_key: OrderedDict[str, tuple[Consumer, LapsedSession]] = OrderedDict()
        self._by_token: dict[bytes, Consumer] = {}

    def add(
        self, receiver: Consumer, key: str, session_id: str, tokens: list[bytes], now_ms: int
    ) -> LapsedSession:
        """Keep the link whose session's lock has lapsed, with the credit that it has."""
        lapsed = LapsedSession(key, session_id, tokens, now_ms + DETACH_AFTER_MS)
        assert key not in self._by_key, "its link was detached when the session was given anew"
        self._by_key[key] = receiver, lapsed
        for token in tokens:
            self._by_token[token] = receiver
        receiver.ready_queue = lapsed
        lapsed.receivers.credit_changed(receiver)
        return lapsed

    def forget(self, receiver: Consumer) -> None:
        """Forget a link that is being detached."""
        lapsed = receiver.ready_queue
        assert isinstance(lapsed, LapsedSession)
        del self._by_key[lapsed.key]
        for token in lapsed.tokens:
            del self._by_token[token]

    def of(self, key: str) -> Consumer | None:
        """Find the link that held the session of this folded id last."""
        found = self._by_key.get(key)
        return None if found is None else found[0]

    def with_token(self, token: bytes) -> Consumer | None:
        """Find the link under whose lock a message was delivered with this token."""
        return self._by_token.get(token)

    def receivers(self) -> list[Consumer]:
        """Name all links, in the order in which they are detached."""
        return [receiver for receiver, _ in self._by_key.values()]

    def keys(self) -> list[str]:
        """Return the folded ids of the sessions whose links these are."""
        return list(self._by_key)

    def due(self, now_ms: int, count_max: int) -> list[Consumer]:
        """Name the links that have been kept for long enough, at most so many."""
        due: list[Consumer] = []
        for receiver, lapsed in self._by_key.values():
            if lapsed.detach_at_ms > now_ms or len(due) >= count_max:
                break
            due.append(receiver)
        return due

    def next_ms(self) -> int:
        """When the next link is due; FAR_MS when there is none."""
        for _, lapsed in self._by_key.values():
            return lapsed.detach_at_ms
        return FAR_MS

    def check(self, locked: Iterable[bytes]) -> None:
        """Compare the indexes with each other; an assertion fails when they do not agree."""
        at = [lapsed.detach_at_ms for _, lapsed in self._by_key.values()]
        assert at == sorted(at)
        tokens: dict[bytes, Consumer] = {}
        for key, (receiver, lapsed) in self._by_key.items():
            assert receiver.ready_queue is lapsed
            assert lapsed.key == key
            assert not receiver.locks
            lapsed.receivers.check()
            assert not lapsed.receivers.draining
            tokens.update(dict.fromkeys(lapsed.tokens, receiver))
        assert tokens == self._by_token
        assert not tokens.keys() & set(locked)
