"""Planted bugs in the locks of broken connections: each subclasses the real namespace."""

from __future__ import annotations

from peeklock.broker.namespace import Namespace
from peeklock.broker.queue.peek_lock import Holder
from peeklock.broker.vocabulary.changes import Change
from peeklock.broker.vocabulary.commands import Command, DropConnection, LockToken, RenewLocks
from peeklock.broker.vocabulary.effects import Effect


class HastyGraces(Namespace):
    """Drops the locks of a broken connection when half of their grace is over."""

    def apply(self, command: Command, now_ms: int) -> tuple[list[Change], list[Effect]]:
        graces = self._handlers.graces
        grace_ms = graces._grace_ms
        if type(command) is DropConnection and grace_ms:
            graces._grace_ms = grace_ms // 2
        try:
            return super().apply(command, now_ms)
        finally:
            graces._grace_ms = grace_ms


class EndlessGraces(Namespace):
    """Keeps the locks of a broken connection until they lapse, whatever grace is set."""

    def apply(self, command: Command, now_ms: int) -> tuple[list[Change], list[Effect]]:
        self._handlers.graces._grace_ms = None
        return super().apply(command, now_ms)


class LateLapses(Namespace):
    """Keeps a lock of a broken connection for its whole grace, past the lock's own end."""

    def apply(self, command: Command, now_ms: int) -> tuple[list[Change], list[Effect]]:
        grace_ms = self._handlers.graces._grace_ms
        connection = self._shared.links.connections.get(getattr(command, "connection_id", -1))
        if type(command) is DropConnection and command.broken and grace_ms and connection is not None:
            holders = [connection.locks, *(getattr(link, "locks", {}) for link in connection.links.values())]
            for lock in [lock for holder in holders for lock in holder.values() if lock.session is None]:
                if lock.locked_until_ms < now_ms + grace_ms:
                    lock.locked_until_ms = now_ms + grace_ms
                    lock.queue.locks = dict(
                        sorted(lock.queue.locks.items(), key=lambda item: item[1].locked_until_ms)
                    )
        return super().apply(command, now_ms)


class UnmovedLocks(Namespace):
    """Leaves a renewed lock with the connection that took it."""

    def apply(self, command: Command, now_ms: int) -> tuple[list[Change], list[Effect]]:
        before: dict[LockToken, Holder] = {}
        if type(command) is RenewLocks:
            for queue in self._queues.values():
                before.update(
                    {
                        token: queue.locks[token].holder
                        for token in command.lock_tokens
                        if token in queue.locks
                    }
                )
        done = super().apply(command, now_ms)
        for queue in self._queues.values():
            for token, holder in before.items():
                lock = queue.locks.get(token)
                if lock is not None:
                    del lock.holder[token]
                    lock.holder = holder
                    holder[token] = lock
        return done
