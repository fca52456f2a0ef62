"""When new sends are refused: too little space, a loop that lags, an event log that is full.

Owns: how much of the volume is left for messages, and which limits the core has been told. Must not know:
connections, what a send is.
"""

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
"""With so much room the volume is looked at four times a second only. Our choice: clients and whoever else
writes to the disk take less meanwhile."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the figures come from."""

    min_free_bytes: Callable[[], int]
    """So much of the volume must stay free."""
    free_bytes: Callable[[], int | None]
    """So much is; None = the store is not on a volume."""
    open_bytes: Callable[[], int]
    """Bytes of messages not yet durable."""


class BackPressure:
    """See the module."""

    def __init__(self, sources: Sources, tell: Callable[[LimitSending], None]) -> None:
        """Refuse nothing yet; `tell` takes the limits when they change."""
        self._sources = sources
        self._tell = tell
        self._min_free = 0
        self._free: int | None = None
        self.room = ROOM_UNLIMITED
        """Bytes of messages that may be offered before too little of the volume is left."""
        self.limits = LimitSending()
        """What the core has been told last."""
        self.lag_ms = 0
        """By how much the loop was late last."""
        self.capture_full: Callable[[], bool] = bool  # no event log: never
        """Says whether the event log lags behind by more than it may."""

    def look_at_volume(self) -> None:
        """Learn how much must stay free, and how much is."""
        self._min_free = self._sources.min_free_bytes()
        self.look_at_room()

    def look_at_room(self) -> None:
        """Learn how many bytes may be offered until too little of the volume is left.

        A message takes its size in the WAL and again in the database.
        """
        self._free = self._sources.free_bytes()
        # What was refused for space is taken again only when there is clearly more: not in turns.
        kept = self._min_free + (self._min_free // 2 if self.limits.low_space else 0)
        self.room = ROOM_UNLIMITED if self._free is None else (self._free - kept) // 2

    def committed(self) -> None:
        """Look again after a commit, unless there is plenty of room: it is a system call."""
        if self.room < PLENTY_BYTES:
            self.look_at_room()

    def limit(self) -> None:
        """Tell the limits if they have changed."""
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
            return "the event log lags behind by all that it may: sends are refused"
        return "ok"
