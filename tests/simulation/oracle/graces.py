"""Which locks a broken connection ends, and when (C26, L-13).

Owns: which connection a message's lock may belong to, and what follows. Must not know: sessions, whose locks
end with their links (`holds`), any structure of the broker.

A lock belongs to the connection that took it, and from each renewal on to the one that renewed it. Which of
two renewals came last is known only where one was answered before the other was asked for. The lock of a
broken connection is held until the grace is over, and no longer.
"""

from __future__ import annotations

from tests.simulation.oracle.history import History, Lock, Renewal
from tests.simulation.oracle.records import Violation
from tests.simulation.world.clocks import FOREVER

UNDER_WAY_MS = 1_000
"""The longest that the end of a connection waits for its turn in the broker, beside the wire."""


class Graces:
    """Broken connections and their locks."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._left: set[int] = set()
        """Connections on which a link was ended properly: its locks outlive the connection's break (L-13)."""

    def link_ended(self, connection: int) -> None:
        """Record that either side ended a link, or the whole connection, before it broke."""
        self._left.add(connection)

    def renewing(self, lock: Lock, connection: int) -> Renewal:
        """Record that a client asks over a connection to renew a lock; `renewed` records that it was done."""
        renewal = Renewal(connection, self._history.now_ms())
        lock.renewals.append(renewal)
        return renewal

    def refused(self, lock: Lock, renewal: Renewal) -> None:
        """Record a refused renewal: it has moved nothing."""
        lock.renewals.remove(renewal)

    def renewed(self, lock: Lock, renewal: Renewal) -> None:
        """Record a done renewal: the connections that the lock does not belong to any more do not end it."""
        renewal.answered_ms = self._history.now_ms()
        owners = lock.owners()
        for connection in [connection for connection in lock.breaks if connection not in owners]:
            lock.ends.remove(lock.breaks.pop(connection))

    def lost(self, connection: int) -> None:
        """Record that a connection is `cut`, or half open (`drop`): its locks end with the grace at the
        earliest, if the broker has one."""
        for lock in self._history.locks.values():
            if lock.hold is None and connection in lock.owners():
                self._break(lock, connection)

    def seen(self, lock: Lock) -> None:
        """Record a lock that is known now: its delivery may have been in flight when its connection was
        cut."""
        if lock.connection in self._history.lost:
            self._break(lock, lock.connection)

    def _break(self, lock: Lock, connection: int) -> None:
        if self._history.grace_ms is not None:
            lost_ms, how = self._history.lost[connection]
            lock.breaks[connection] = end = (lost_ms + self._history.grace_ms, how)
            lock.ends.append(end)

    def check_held(self, lock: Lock, what: str, asked_ms: int) -> None:
        """Check that a lock which was used can have been held: not after the grace of its connection. Raises:
        Violation."""
        owners = lock.owners(asked_ms)
        ends = [lock.breaks.get(connection, (FOREVER, "")) for connection in owners]
        if any(how != "cut" for _, how in ends) or (
            lock.connection in owners and lock.connection in self._left
        ):
            return
        late_ms = self._history.wire_ms_max + UNDER_WAY_MS
        latest_ms = max(at for at, _ in ends) + late_ms
        grace_ms = self._history.grace_ms or 0
        # The broker may notice a break that comes with a jump of the clock only after that.
        jumped = any(at - grace_ms <= jump <= at + late_ms for at, _ in ends for jump in self._history.jumps)
        if asked_ms > latest_ms and not jumped:
            raise Violation(f"{what} at {asked_ms} succeeded on a lock of a broken connection: {lock}")
