"""What a peer can make the broker hold: before its first valid claim, after it, and all peers together.

Until its first claim a peer needs memory for one token, so it gets little more (R-05).
"""

from __future__ import annotations

from dataclasses import dataclass

from peeklock.amqp.frames import Limits
from peeklock.amqp.link import ReassemblyBudget
from peeklock.broker.vocabulary.quotas import TierLimits

STRANGER_LIMITS = Limits(
    sessions=128,
    links=16,
    name_length=512,
    reassembly_bytes=64 * 1024,
    message_bytes=64 * 1024,
)
"""Of a peer without a claim. Our choice: the Java client begins a session for each of its links at once,
before its claims; every other client has two at most. Links are those below and some refused ones. Names of
entities have at most 260 characters, host names 253. 64 KiB are four of the largest tokens."""

STRANGER_CBS_PAIRS_MAX = 4
"""Links to `$cbs` in each direction of a peer without a claim. Our choice: every client has one pair."""

STRANGER_COORDINATORS_MAX = 4
"""Links to the coordinator of a peer without a claim. Our choice: the Java client opens one before its first
claim."""

STRANGER_REPLIES_BYTES_MAX = 16 * 1024
"""Replies to a peer without a claim that wait for its credit or window. Our choice: some 60 answers to
put-token."""

CBS_REQUEST_BYTES_MAX = 32 * 1024
"""Largest request to `$cbs`, of any peer. Our choice: the largest token, 16 KiB, and as much for its
envelope."""

REASSEMBLY_BYTES_MIN = 8 * 1024 * 1024
"""Least that the unfinished deliveries of one connection may take. Our choice: 32 messages of the standard
tier's 256 KiB, on as many links."""

REASSEMBLY_OVERHEAD_BYTES = 1024 * 1024
"""Beside the largest message, for the cost of each of its frames. Our choice: 16,384 frames, so that 100 MB
may come in frames of 6.5 KiB; the official clients send 64 KiB."""

MEMORY_SHARE = 8
"""Unfinished deliveries of all connections may take this part of memory (1/8). Our choice: cached bodies and
those under way need the most, and each has its own bound."""

STRANGERS_SHARE = 4
"""Deliveries of peers without a claim may take this part of that (1/4), from a separate
budget. Our choice."""


@dataclass(slots=True)
class Buffers:
    """What unfinished deliveries may take."""

    connection_bytes_max: int
    """Of one connection whose peer has shown a valid claim, on all its links."""
    known: ReassemblyBudget
    """Of all such connections together."""
    strangers: ReassemblyBudget
    """Of all others together."""

    @classmethod
    def of_memory(cls, memory_bytes: int, tier: TierLimits) -> Buffers:
        """Return the budgets for a machine or container with so much memory."""
        one = _connection_bytes(tier)
        all_known = max(memory_bytes // MEMORY_SHARE, one)
        return cls(one, ReassemblyBudget(all_known), ReassemblyBudget(all_known // STRANGERS_SHARE))

    def make_room(self, tier: TierLimits) -> None:
        """Accept the largest message of a tier, as of a namespace that was made later."""
        self.connection_bytes_max = max(self.connection_bytes_max, _connection_bytes(tier))
        self.known.limit = max(self.known.limit, self.connection_bytes_max)


def _connection_bytes(tier: TierLimits) -> int:
    return max(REASSEMBLY_BYTES_MIN, tier.message_size_kb_max * 1024 + REASSEMBLY_OVERHEAD_BYTES)
