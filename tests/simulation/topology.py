"""Which queues a seed has, and how they hang together.

Owns: the choice of settings. Must not know: who uses the queues.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

from peeklock.broker.descriptions import UNLIMITED_MS, QueueDescription

LOCK_MS = 5_000
"""The shortest lock that the broker offers: lapses are frequent then."""

WINDOW_MS = 20_000
"""The shortest window of duplicate detection."""

IDLE_MS = 300_000
"""The shortest idle time after which a queue is deleted."""

CHAIN = 6
"""Queues in the longest chain: one more than a message may pass."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The queues of a seed."""

    queues: list[QueueDescription]
    """Each after those that it forwards to."""
    changes_forwards: bool
    """Whether a queue stops forwarding at times, and begins again."""


def choose(random: Random, slowness: int) -> Topology:
    """Choose the queues of a seed."""
    roll = random.random()
    if roll < 0.45:
        names = ["orders", "jobs"][: random.choice((1, 2))]
        queues = [_queue(random, name, slowness) for name in names]
    elif roll < 0.55:
        queues = _chain(random, slowness)
    elif roll < 0.8:
        # What is sent to one, or what was forwarded to it, ends in another; its dead letters perhaps too.
        target = _queue(random, "jobs", slowness)
        middle = replace(_queue(random, "orders", slowness, sessions=False), forward_to="jobs")
        queues = [target, middle]
        if random.random() < 0.4:
            queues.append(replace(_queue(random, "inbox", slowness, sessions=False), forward_to="orders"))
    else:
        queues = [_queue(random, "morgue", slowness)]
        for name in ["orders", "jobs"][: random.choice((1, 2))]:
            queue = _queue(random, name, slowness)
            queues.append(replace(queue, forward_dead_lettered_to="morgue"))
    if random.random() < 0.25:
        idle = replace(_queue(random, "replies", slowness), auto_delete_on_idle_ms=IDLE_MS)
        queues.append(idle)
    return Topology(queues, random.random() < 0.3)


def _queue(random: Random, name: str, slowness: int, *, sessions: bool | None = None) -> QueueDescription:
    return QueueDescription(
        name,
        lock_duration_ms=LOCK_MS if slowness == 1 else 12 * LOCK_MS,
        requires_session=random.random() < 0.4 if sessions is None else sessions,
        enable_partitioning=random.random() < 0.3,
        requires_duplicate_detection=random.random() < 0.4,
        duplicate_window_ms=WINDOW_MS if slowness == 1 else 30 * WINDOW_MS,
        default_ttl_ms=random.choice((UNLIMITED_MS, UNLIMITED_MS, 10_000, 30_000)),
        dead_lettering_on_expiration=random.random() < 0.5,
        max_delivery_count=random.choice((1, 2, 3, 10)),
    )


def _chain(random: Random, slowness: int) -> list[QueueDescription]:
    """Make a chain that is too long for what is sent to its beginning."""
    queues: list[QueueDescription] = []
    for number in reversed(range(CHAIN)):
        queue = _queue(random, f"hop-{number}", slowness, sessions=None if not queues else False)
        if queues:
            queue = replace(
                queue,
                forward_to=queues[-1].name,
                requires_duplicate_detection=random.random() < 0.15,
                default_ttl_ms=UNLIMITED_MS,
            )
        queues.append(queue)
    return queues


def in_order(queues: Iterable[QueueDescription]) -> list[QueueDescription]:
    """Order queues so that each comes after those that it forwards to."""
    left = {queue.name: queue for queue in queues}
    found: list[QueueDescription] = []
    while left:
        ready = [
            queue
            for queue in left.values()
            if queue.forward_to not in left and queue.forward_dead_lettered_to not in left
        ]
        assert ready, "forwards make a circle"
        for queue in ready:
            del left[queue.name]
        found += ready
    return found
