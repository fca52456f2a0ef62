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


class TokenBucket:
    """Allows so many messages a second, and those of one second at once."""

    def __init__(self, per_second: int, counted: Callable[[], int], clock_s: Callable[[], float]) -> None:
        """Begin full; `counted` returns how many messages have come so far."""
        self._per_second = per_second
        self._counted = counted
        self._clock_s = clock_s
        self._tokens = float(per_second)
        self._taken = counted()
        self._at_s = clock_s()

    def is_empty(self) -> bool:
        """Return whether no further message is allowed now. Below zero is what one batch took too much."""
        now_s, counted = self._clock_s(), self._counted()
        earned = (now_s - self._at_s) * self._per_second
        self._tokens = min(self._tokens + earned, float(self._per_second)) - (counted - self._taken)
        self._at_s, self._taken = now_s, counted
        return self._tokens < 1


@dataclass(frozen=True, slots=True)
class OwnLimits:
    """The limits of one namespace; None = there is none."""

    bucket: TokenBucket | None = None
    size_bytes_max: int | None = None
    size_bytes: Callable[[], int] = int
    """Returns the size of all entities."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Functions that return the figures."""

    min_free_bytes: Callable[[], int]
    """Bytes of the volume that must stay free."""
    free_bytes: Callable[[], int | None]
    """Bytes that are free; None = the store is not on a volume."""
    open_bytes: Callable[[], int]
    """Bytes of messages not yet durable."""
    own: OwnLimits = OwnLimits()


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
        self.has_rate = sources.own.bucket is not None
        """Whether messages a second are limited."""
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
        if self.has_rate:
            self.limit()

    def limit(self) -> None:
        """Update the limits; log and tell a change."""
        limits = LimitSending(
            low_space=self.room <= 0 or self._sources.open_bytes() > self.room,
            lagging=self.lag_ms > LAG_MS_MAX,
            capture_full=self.capture_full(),
            throttled=self.is_throttled,
            full=self._is_full,
        )
        if limits == self.limits:
            return
        log.warning(
            "sending is open again" if limits == LimitSending() else "sending is limited",
            {
                "low_space": limits.low_space,
                "lagging": limits.lagging,
                "capture_full": limits.capture_full,
                "throttled": limits.throttled,
                "full": limits.full,
                "free_bytes": self._free,
                "lag_ms": self.lag_ms,
            },
        )
        self.limits = limits
        self._tell(limits)

    @property
    def is_throttled(self) -> bool:
        """Whether the namespace has got more messages than its rate allows."""
        bucket = self._sources.own.bucket
        return bucket is not None and bucket.is_empty()

    @property
    def _is_full(self) -> bool:
        own = self._sources.own
        return own.size_bytes_max is not None and own.size_bytes() >= own.size_bytes_max

    def status(self) -> str:
        """Return `ok`, or what is refused and why."""
        if self.limits.low_space:
            return "low space: sends are refused"
        if self.limits.lagging:
            return "lagging: sends are refused"
        if self.limits.capture_full:
            return "the event log backlog is full: sends are refused"
        return "ok"  # its own limits are no fault of the broker
