"""Idle time-outs of a connection, in ms UTC. Source: OASIS AMQP 1.0 section 2.4.5; wire contract 1.6."""

from __future__ import annotations


class Idle:
    """The idle time-outs of both ends; any byte received or sent restarts one."""

    __slots__ = ("empty_frame_after_ms", "received_ms", "sent_ms", "timeout_ms")

    def __init__(self, timeout_ms: int | None, now_ms: int) -> None:
        self.timeout_ms = timeout_ms
        """How long the peer may be silent; None = no limit."""
        self.empty_frame_after_ms: int | None = None
        """How long we may be silent; None = no limit."""
        self.received_ms = now_ms
        self.sent_ms = now_ms

    def peer_opened(self, timeout_ms: int | None) -> None:
        """Take the peer's idle-time-out; 0 means none (AMQP 2.4.5)."""
        # "less than half" of it: wire contract 1.6
        self.empty_frame_after_ms = timeout_ms * 2 // 5 if timeout_ms else None

    def expired(self, now_ms: int) -> bool:
        """Whether the peer's time-out has passed."""
        return self.timeout_ms is not None and now_ms - self.received_ms >= self.timeout_ms

    def empty_frame_due(self, now_ms: int) -> bool:
        """Whether the peer needs an empty frame as a sign of life."""
        return self.empty_frame_after_ms is not None and now_ms - self.sent_ms >= self.empty_frame_after_ms

    def next_deadline_ms(self) -> int | None:
        """Return the earlier of both deadlines; None if there is neither."""
        deadlines = []
        if self.timeout_ms is not None:
            deadlines.append(self.received_ms + self.timeout_ms)
        if self.empty_frame_after_ms is not None:
            deadlines.append(self.sent_ms + self.empty_frame_after_ms)
        return min(deadlines, default=None)
