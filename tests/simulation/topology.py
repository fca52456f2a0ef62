"""Which queues, topics and subscriptions a seed has, and how they hang together.

Owns: the choice of settings. Must not know: who uses them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random

from peeklock.broker.descriptions import (
    DEFAULT_RULE_NAME,
    UNLIMITED_MS,
    Description,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from tests.simulation.rulebook import Ruling, draw

LOCK_MS = 5_000
"""The shortest lock that the broker offers: lapses are frequent then."""

WINDOW_MS = 20_000
"""The shortest window of duplicate detection."""

IDLE_MS = 300_000
"""The shortest idle time after which a queue is deleted."""

READERS_EVERY = 5
"""Every so many seeds, from 0 on, somebody reads by claims: those with topics among them."""

TOPICS_EVERY, TOPICS_FIRST = 4, 2
"""Which seeds have topics: few enough for the time that CI has."""

CHAIN = 6
"""Queues in the longest chain: one more than a message may pass."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The entities of a seed."""

    entities: list[Description]
    """Each after those that it forwards to, and a subscription after its topic."""
    changes_forwards: bool
    """Whether an entity stops forwarding at times, and begins again."""
    first_rules: dict[str, tuple[str, Ruling]] = field(default_factory=dict)
    """The names and meanings of the rules that subscriptions are created with, where it is another than the
    usual one, by path."""

    @property
    def queues(self) -> list[QueueDescription | SubscriptionDescription]:
        """What can be received from."""
        return [entity for entity in self.entities if not isinstance(entity, TopicDescription)]

    @property
    def subscriptions(self) -> list[SubscriptionDescription]:
        return [entity for entity in self.entities if isinstance(entity, SubscriptionDescription)]


def has_topics(seed: int) -> bool:
    return seed % TOPICS_EVERY == TOPICS_FIRST


def has_readers(seed: int) -> bool:
    """Whether somebody reads by claims."""
    return seed % READERS_EVERY == 0


def choose(random: Random, slowness: int, *, topics: bool) -> Topology:
    """Choose the entities of a seed."""
    if topics:
        return _with_topics(random, slowness)
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
    return Topology([*queues], random.random() < 0.3)


def _with_topics(random: Random, slowness: int) -> Topology:
    """Choose a topic with some subscriptions, and what is before it and behind them."""
    entities: list[Description] = [_queue(random, "jobs", slowness, sessions=random.random() < 0.2)]
    behind: list[str | None] = [None, None, None, None, "jobs"]
    if random.random() < 0.35:
        entities.append(_topic(random, "audit", slowness))
        entities += [
            _subscription(random, "audit", n, slowness, [None]) for n in range(random.choice((1, 2)))
        ]
        behind += ["audit"]
    events = _topic(random, "events", slowness)
    if random.random() < 0.1:
        events = replace(events, auto_delete_on_idle_ms=IDLE_MS)
    entities.append(events)
    entities += [
        _subscription(random, "events", n, slowness, behind) for n in range(random.choice((1, 2, 3, 3, 6)))
    ]
    if random.random() < 0.3:
        entities.append(replace(_queue(random, "inbox", slowness, sessions=False), forward_to="events"))
    elif random.random() < 0.3:
        entities.append(replace(_queue(random, "inbox", slowness), forward_dead_lettered_to="events"))
    rules: dict[str, tuple[str, Ruling]] = {}
    for entity in entities:
        if isinstance(entity, SubscriptionDescription) and random.random() < 0.5:
            name = random.choice((DEFAULT_RULE_NAME, "first"))
            rules[entity.name] = name, draw(random, sessions=entity.requires_session)
    return Topology(entities, random.random() < 0.4, rules)


def _topic(random: Random, name: str, slowness: int) -> TopicDescription:
    return TopicDescription(
        name,
        enable_partitioning=random.random() < 0.3,
        requires_duplicate_detection=random.random() < 0.3,
        duplicate_window_ms=WINDOW_MS if slowness == 1 else 30 * WINDOW_MS,
        default_ttl_ms=random.choice((UNLIMITED_MS, UNLIMITED_MS, 10_000, 30_000)),
    )


def _subscription(
    random: Random, topic: str, number: int, slowness: int, behind: list[str | None]
) -> SubscriptionDescription:
    sessions = random.random() < 0.3
    forward_to = None if sessions else random.choice(behind)
    return SubscriptionDescription(
        topic,
        f"to-{number}",
        lock_duration_ms=LOCK_MS if slowness == 1 else 12 * LOCK_MS,
        requires_session=sessions,
        default_ttl_ms=random.choice((UNLIMITED_MS, UNLIMITED_MS, 10_000, 30_000)),
        dead_lettering_on_expiration=random.random() < 0.5,
        dead_lettering_on_filter_errors=random.random() < 0.7,
        max_delivery_count=random.choice((1, 2, 3, 10)),
        forward_to=forward_to,
        forward_dead_lettered_to=random.choice([None, None, *behind]),
        auto_delete_on_idle_ms=IDLE_MS if forward_to is None and random.random() < 0.15 else UNLIMITED_MS,
    )


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


def in_order(entities: Iterable[Description]) -> list[Description]:
    """Order entities so that each comes after those that it forwards to, and after its topic."""
    left = {entity.name: entity for entity in entities}
    found: list[Description] = []
    while left:
        ready = [
            entity
            for entity in left.values()
            if entity.forward_to not in left
            and entity.forward_dead_lettered_to not in left
            and topic_of(entity) not in left
        ]
        assert ready, "forwards make a circle"
        for entity in ready:
            del left[entity.name]
        found += ready
    return found


def topic_of(entity: Description) -> str | None:
    """Give the name of a subscription's topic."""
    return entity.topic_name if isinstance(entity, SubscriptionDescription) else None
