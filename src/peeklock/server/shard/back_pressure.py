"""When sends are refused: too little space, a loop that lags, a full event log backlog."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from peeklock.broker.vocabulary.commands import LimitSending
from peeklock.server import log

LAG_MS_MAX = 1000
"""New sends are answered server-busy when the loop lags more than this. Source: architecture,
back-pressure."""

ROOM_UNLIMITED = 1 << 62

PLENTY_BYTES = 1 << 30
"""With more room the volume is checked four times a second only. Our choice: clients and other writers take
less in between."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Functions that return the figures."""

    min_free_bytes: Callable[[], int]
    """Bytes of the volume that must stay free."""
    free_bytes: Callable[[], int | None]
    """Bytes that are free; None = the store is not on a volume."""
    open_bytes: Callable[[], int]
    """Bytes of messages not yet durable."""


class BackPressure:
    """The limits on sending, and when they change."""

    def __init__(self, sources: Sources, tell: Callable[[LimitSending], None]) -> None:
        """Refuse nothing yet; `tell` is called with the limits when they change."""
        self._sources = sources
        self._tell = tell
        self._min_free = 0
        self._free: int | None = None
        self.room = ROOM_UNLIMITED
        """Bytes of messages that may be offered before the volume is too full."""
        self.limits = LimitSending()
        """The limits that the core knows."""
        self.lag_ms = 0
        """Lateness of the loop when it was last measured."""
        self.capture_full: Callable[[], bool] = bool  # no event log: never
        """Returns whether the event log backlog is full."""

    @property
    def free_bytes(self) -> int | None:
        """Free bytes of the volume when it was last looked at; None = the store is not on one."""
        return self._free

    def look_at_volume(self) -> None:
        """Read how much must stay free, and how much is."""
        self._min_free = self._sources.min_free_bytes()
        self.look_at_room()

    def look_at_room(self) -> None:
        """Compute how many bytes may be offered before the volume is too full.

        A message takes its size in the WAL and again in the database.
        """
        self._free = self._sources.free_bytes()
        # Sends refused for space are accepted again only with clearly more: no flapping.
        kept = self._min_free + (self._min_free // 2 if self.limits.low_space else 0)
        self.room = ROOM_UNLIMITED if self._free is None else (self._free - kept) // 2

    def committed(self) -> None:
        """Check again after a commit, unless there is plenty of room: it is a system call."""
        if self.room < PLENTY_BYTES:
            self.look_at_room()

    def limit(self) -> None:
        """Update the limits; log and tell a change."""
        limits = LimitSending(
            low_space=self.room <= 0 or self._sources.open_bytes() > self.room,
            lagging=self.lag_ms > LAG_MS_MAX,
            capture_full=self.capture_full(),
        )
        if limits == self.limits:
            return
        log.warning(
            "sending is open again" if limits == LimitSending() else "sending is limited",
            {
                "low_space": limits.low_space,
                "lagging": limits.lagging,
                "capture_full": limits.capture_full,
                "free_bytes": self._free,
                "lag_ms": self.lag_ms,
            },
        )
        self.limits = limits
        self._tell(limits)

    def status(self) -> str:
        """Return `ok`, or what is refused and why."""
        if self.limits.low_space:
            return "low space: sends are refused"
        if self.limits.lagging:
            return "lagging: sends are refused"
        if self.limits.capture_full:
            return "the event log backlog is full: sends are refused"
        return "ok"
