"""The queues, topics and subscriptions of a seed, and the forwards between them.

Owns: the choice of settings. Must not know: who uses the entities.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace
from random import Random

from peeklock.broker.vocabulary.descriptions import (
    DEFAULT_RULE_NAME,
    UNLIMITED_MS,
    Description,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from tests.simulation.oracle.rulebook import Ruling, draw

JOBS, INBOX = "job-", "inbo_"
"""Queue names that end with a hyphen and an underscore, as the service allows (C32)."""

LOCK_MS = 5_000
"""The shortest lock that the broker offers: locks lapse often."""

WINDOW_MS = 20_000
"""The shortest window of duplicate detection."""

IDLE_MS = 300_000
"""The shortest idle time after which a queue is deleted."""

READERS_EVERY = 5
"""Every so many seeds, from 0 on, clients read by claims: some of these seeds have topics."""

TOPICS_EVERY, TOPICS_FIRST = 4, 2
"""Seeds with topics: few enough for the time of CI."""

CIRCLES_EVERY, CIRCLES_FIRST = 8, 5
"""Seeds with forwards in a circle, without topics."""

GRACES_MS = (1_000, 3_000, None, 0, 1_000, 0, 0, 1_000, 3_000, 0, None)
"""How long the locks of a broken connection are kept, by turns: shorter than a lock lasts."""

SUCCESSORS = (0, 1, 7)
"""Turns in which a client continues what broken connections have left."""

TOPIC_CIRCLES_EVERY, TOPIC_CIRCLES_FIRST = 16, 14
"""Seeds with forwards in a circle through topics."""

CHAIN = 6
"""Queues in the longest chain: one more than a message may pass."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The entities of a seed."""

    entities: list[Description]
    """In order: each after those that it forwards to, and a subscription after its topic."""
    changes_forwards: bool
    """Whether an entity stops forwarding at times, and begins again."""
    first_rules: dict[str, tuple[str, Ruling]] = field(default_factory=dict)
    """The names and meanings of subscriptions' first rules, where they differ from the usual one, by path."""

    @property
    def queues(self) -> list[QueueDescription | SubscriptionDescription]:
        """Entities that messages can be received from."""
        return [entity for entity in self.entities if not isinstance(entity, TopicDescription)]

    @property
    def subscriptions(self) -> list[SubscriptionDescription]:
        return [entity for entity in self.entities if isinstance(entity, SubscriptionDescription)]


def has_topics(seed: int) -> bool:
    return seed % TOPICS_EVERY == TOPICS_FIRST


def has_circle(seed: int) -> bool:
    """Whether messages can come back to an entity, also over topics."""
    return seed % CIRCLES_EVERY == CIRCLES_FIRST or has_circle_of_topics(seed)


def has_circle_of_topics(seed: int) -> bool:
    return seed % TOPIC_CIRCLES_EVERY == TOPIC_CIRCLES_FIRST


def lock_grace_ms(seed: int) -> int | None:
    """Return how long a seed's broker keeps the locks of a broken connection; None = until they lapse."""
    return GRACES_MS[seed % len(GRACES_MS)]


def has_successor(seed: int) -> bool:
    """Return whether a client continues what broken connections have left."""
    return seed % len(GRACES_MS) in SUCCESSORS


def has_readers(seed: int) -> bool:
    """Return whether clients read by claims."""
    return seed % READERS_EVERY == 0


def choose(random: Random, slowness: int, seed: int) -> Topology:
    """Choose the entities of a seed."""
    if has_circle_of_topics(seed):
        return _circle_of_topics(random, slowness)
    if has_topics(seed):
        return _with_topics(random, slowness)
    if has_circle(seed):
        return _circle(random, slowness)
    roll = random.random()
    if roll < 0.45:
        names = ["orders", JOBS][: random.choice((1, 2))]
        queues = [_queue(random, name, slowness) for name in names]
    elif roll < 0.55:
        queues = _chain(random, slowness)
    elif roll < 0.8:
        # What is sent to one, or what was forwarded to it, ends in another; its dead letters perhaps too.
        target = _queue(random, JOBS, slowness)
        middle = replace(_queue(random, "orders", slowness, sessions=False), forward_to=JOBS)
        queues = [target, middle]
        if random.random() < 0.4:
            queues.append(replace(_queue(random, INBOX, slowness, sessions=False), forward_to="orders"))
    else:
        queues = [_queue(random, "morgue", slowness)]
        for name in ["orders", JOBS][: random.choice((1, 2))]:
            queue = _queue(random, name, slowness)
            queues.append(replace(queue, forward_dead_lettered_to="morgue"))
    if random.random() < 0.25:
        idle = replace(_queue(random, "replies", slowness), auto_delete_on_idle_ms=IDLE_MS)
        queues.append(idle)
    return Topology([*queues], random.random() < 0.3)


def _circle(random: Random, slowness: int) -> Topology:
    """Choose queues whose messages or dead letters come back to them, or do once an update closes the circle.
    None of them detects duplicates: a message would be a duplicate of itself."""
    names = ["orders", JOBS, INBOX][: random.choice((1, 2, 2, 3))]
    by_dead_letters = random.random() < 0.6
    queues: list[Description] = []
    for number, name in enumerate(names):
        target = names[(number + 1) % len(names)]
        sessions = random.random() < 0.2
        queue = replace(_queue(random, name, slowness, sessions=sessions), requires_duplicate_detection=False)
        if by_dead_letters:
            queue = replace(
                queue,
                forward_dead_lettered_to=target,
                dead_lettering_on_expiration=True,
                default_ttl_ms=random.choice((UNLIMITED_MS, 5_000, 10_000)),
            )
            if number and random.random() < 0.5:  # a dead letter waits here for its next try
                queue = replace(queue, forward_to=target, forward_dead_lettered_to=None)
        else:
            queue = replace(queue, forward_to=target)
        queues.append(queue)
    return Topology(queues, changes_forwards=random.random() < 0.5)


def _circle_of_topics(random: Random, slowness: int) -> Topology:
    """Choose a topic whose copies come back to it: at once, behind a queue or another topic, or as dead
    letters that expire. No entity detects duplicates: all copies of a message have the same id."""
    entities: list[Description] = []
    behind: list[str | None] = ["events", "events"]
    if random.random() < 0.4:
        back = _queue(random, "back", slowness, sessions=False)
        entities.append(replace(back, forward_to="events"))
        behind += ["back"]
    if random.random() < 0.4:
        entities.append(_topic(random, "audit", slowness))
        entities.append(
            replace(_subscription(random, "audit", 0, slowness, ["events"]), requires_session=False)
        )
        behind += ["audit"]
    entities.append(_topic(random, "events", slowness))
    for number in range(random.choice((2, 3, 3))):
        subscription = _subscription(random, "events", number, slowness, [None])
        if random.random() < 0.75:
            subscription = replace(subscription, forward_to=random.choice(behind))
        elif random.random() < 0.7:
            subscription = replace(
                subscription,
                forward_dead_lettered_to=random.choice(behind),
                dead_lettering_on_expiration=True,
                default_ttl_ms=5_000,
            )
        entities.append(replace(subscription, auto_delete_on_idle_ms=UNLIMITED_MS))
    entities = [_without_ids(entity) for entity in entities]
    rules = {
        entity.name: (DEFAULT_RULE_NAME, draw(random, sessions=entity.requires_session))
        for entity in entities
        if isinstance(entity, SubscriptionDescription) and random.random() < 0.3
    }
    return Topology(entities, random.random() < 0.5, rules)


def _without_ids(entity: Description) -> Description:
    if isinstance(entity, SubscriptionDescription):
        return entity
    return replace(entity, requires_duplicate_detection=False)


def _with_topics(random: Random, slowness: int) -> Topology:
    """Choose a topic with subscriptions, and the entities before and behind them."""
    entities: list[Description] = [_queue(random, JOBS, slowness, sessions=random.random() < 0.2)]
    behind: list[str | None] = [None, None, None, None, JOBS]
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
        entities.append(replace(_queue(random, INBOX, slowness, sessions=False), forward_to="events"))
    elif random.random() < 0.3:
        entities.append(replace(_queue(random, INBOX, slowness), forward_dead_lettered_to="events"))
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
    """Choose a chain that is too long for messages that are sent to its first queue."""
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
    """Sort entities so that each comes after its topic and, unless there is a circle, after those that it
    forwards to."""
    left = {entity.name: entity for entity in entities}
    found: list[Description] = []
    while left:
        ready = [
            entity
            for entity in left.values()
            if entity.forward_to not in left
            and entity.forward_dead_lettered_to not in left
            and topic_of(entity) not in left
        ] or [next(iter(left.values()))]
        for entity in ready:
            del left[entity.name]
        found += ready
    return found


def topic_of(entity: Description) -> str | None:
    """Return the name of a subscription's topic."""
    return entity.topic_name if isinstance(entity, SubscriptionDescription) else None


def without_forwards(entity: Description, known: Container[str]) -> Description:
    """Return an entity without forwards to entities of a circle that do not exist yet; it may name itself."""
    if isinstance(entity, TopicDescription):
        return entity

    def kept(path: str | None) -> str | None:
        return path if path is None or path in known or path == entity.name else None

    return replace(
        entity,
        forward_to=kept(entity.forward_to),
        forward_dead_lettered_to=kept(entity.forward_dead_lettered_to),
    )
