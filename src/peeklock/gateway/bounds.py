"""What a peer can make us hold: before its first valid claim, after it, and all peers together.

Owns: the figures, and the budgets that connections share. Must not know: who holds what. Until its first
claim a peer needs room for one token, so it has room for little else (R-05).
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
"""Of a peer without a claim. Our choice: the Java client begins a session for each of its links at once, and
waits for its claims only then; every other client has two at most. Links are those below, and some that were
refused. Names of entities have at most 260 characters, host names 253. 64 KiB are four of the largest
tokens."""

STRANGER_CBS_PAIRS_MAX = 4
"""Links to `$cbs` in each direction of a peer without a claim. Our choice: every client has one pair."""

STRANGER_COORDINATORS_MAX = 4
"""Links to the coordinator of a peer without a claim. Our choice: the Java client opens one before its first
claim."""

STRANGER_REPLIES_BYTES_MAX = 16 * 1024
"""Replies to a peer without a claim that wait for its credit or its window. Our choice: some 60 answers to
put-token."""

CBS_REQUEST_BYTES_MAX = 32 * 1024
"""Largest request to `$cbs`, of any peer. Our choice: the largest token, 16 KiB, and as much around it."""

REASSEMBLY_BYTES_MIN = 8 * 1024 * 1024
"""Least that the unfinished deliveries of one connection may take. Our choice: 32 messages of the standard
tier's 256 KiB, on as many links."""

REASSEMBLY_OVERHEAD_BYTES = 1024 * 1024
"""Room beside the largest message for what each frame of it costs. Our choice: 16,384 frames, so that 100 MB
may come in frames of 6.5 KiB; the official clients send 64 KiB."""

MEMORY_SHARE = 8
"""Of memory, one part in so many may be unfinished deliveries of all connections together. Our choice: the
bodies that are kept and those under way need the most, and each has its own bound."""

STRANGERS_SHARE = 4
"""Of that, one part in so many may be deliveries of peers without a claim; they have a budget apart, and use
up no other. Our choice."""


@dataclass(slots=True)
class Buffers:
    """What unfinished deliveries may take."""

    connection_bytes_max: int
    """Of one connection whose peer has shown a valid claim, on all its links."""
    known: ReassemblyBudget
    """Of all such connections together."""
    strangers: ReassemblyBudget
    """Of all others together, apart, so that they leave the room of those alone."""

    @classmethod
    def of_memory(cls, memory_bytes: int, tier: TierLimits) -> Buffers:
        """Make the budgets for a machine, or a container, with so much memory."""
        one = max(REASSEMBLY_BYTES_MIN, tier.message_size_kb_max * 1024 + REASSEMBLY_OVERHEAD_BYTES)
        all_known = max(memory_bytes // MEMORY_SHARE, one)
        return cls(one, ReassemblyBudget(all_known), ReassemblyBudget(all_known // STRANGERS_SHARE))
