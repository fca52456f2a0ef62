"""Idle time-outs of a connection: when the peer has been silent too long, when we have been nearly so.

Must not know what is sent or received. All times in ms UTC. Source: OASIS AMQP 1.0 section 2.4.5; wire
contract 1.6.
"""

from __future__ import annotations


class Idle:
    """Two silences: the peer's, ended by any byte of its, and ours, ended by any byte we hand out."""

    __slots__ = ("empty_frame_after_ms", "received_ms", "sent_ms", "timeout_ms")

    def __init__(self, timeout_ms: int | None, now_ms: int) -> None:
        self.timeout_ms = timeout_ms
        """How long the peer may be silent; None for ever."""
        self.empty_frame_after_ms: int | None = None
        """How long we may be silent; None for ever."""
        self.received_ms = now_ms
        self.sent_ms = now_ms

    def peer_opened(self, timeout_ms: int | None) -> None:
        """Take the peer's idle-time-out; 0 means none (AMQP 2.4.5)."""
        # "less than half" of it: wire contract 1.6
        self.empty_frame_after_ms = timeout_ms * 2 // 5 if timeout_ms else None

    def expired(self, now_ms: int) -> bool:
        """Say whether the peer has been silent for the whole time-out."""
        return self.timeout_ms is not None and now_ms - self.received_ms >= self.timeout_ms

    def empty_frame_due(self, now_ms: int) -> bool:
        """Say whether the peer needs a sign of life."""
        return self.empty_frame_after_ms is not None and now_ms - self.sent_ms >= self.empty_frame_after_ms

    def next_deadline_ms(self) -> int | None:
        """Give the earlier of both times, None if there is neither."""
        deadline = None if self.timeout_ms is None else self.received_ms + self.timeout_ms
        if self.empty_frame_after_ms is not None:
            empty_frame_ms = self.sent_ms + self.empty_frame_after_ms
            if deadline is None or empty_frame_ms < deadline:
                deadline = empty_frame_ms
        return deadline
