"""One namespace's part of a seed: its entities, its clients, and what befalls it alone.

Owns: the choices of a seed for one namespace, by the random source of its world. Must not know: the phases of
a seed, the other namespace, what befalls the whole broker (`plan`).
"""

from __future__ import annotations

from dataclasses import replace

from peeklock.broker.vocabulary.commands import LimitSending
from peeklock.broker.vocabulary.descriptions import (
    UNLIMITED_MS,
    Description,
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from tests.simulation.actors.actors import ANSWER_MS_MAX, Actor, Shared
from tests.simulation.actors.drainers import Drainer, SessionDrainer
from tests.simulation.actors.http_clients import HttpClients, has_http
from tests.simulation.actors.lock_renewers import LockRenewer
from tests.simulation.actors.managing import Manager
from tests.simulation.actors.readers import Reader, Releaser
from tests.simulation.actors.receivers import Receiver
from tests.simulation.actors.rule_changers import RuleChanger
from tests.simulation.actors.senders import Sender
from tests.simulation.actors.session_receivers import SessionReceiver
from tests.simulation.actors.successors import Successor
from tests.simulation.actors.transactors import Transactor
from tests.simulation.oracle.checker import Checker
from tests.simulation.oracle.records import Violation
from tests.simulation.world.node import Node
from tests.simulation.world.tenant import FaultRates, Tenant
from tests.simulation.world.topology import (
    IDLE_MS,
    choose,
    has_circle,
    has_readers,
    has_successor,
    has_topics,
    lock_grace_ms,
    topic_of,
    without_forwards,
)
from tests.simulation.world.world import World


class Play:
    """One namespace with its clients."""

    def __init__(
        self, world: World, node: Node, name: str, slowness: int, *, first_uid: int, records_events: bool
    ) -> None:
        """Choose the entities and the clients.

        Args:
            world: with the random source of this namespace.
            node: the broker.
            name: of the namespace.
            slowness: how many times longer than usual clients pause.
            first_uid: all messages have greater uids.
            records_events: as of `Tenant`.
        """
        self.world = world
        self.random = world.random
        self.node = node
        self.slowness = slowness
        self.checker = Checker(lambda: node.passed_ms, first_uid)
        self.checker.history.grace_ms = lock_grace_ms(world.seed)
        self.topology = choose(self.random, slowness, world.seed)
        self.entities = self.topology.entities
        self.queues = self.topology.queues
        rulebook = self.checker.rulings.rulebook
        first_rules = {
            path: rulebook.describe(ruling, name)
            for path, (name, ruling) in self.topology.first_rules.items()
        }
        self.tenant = Tenant(
            node,
            world,
            self.checker,
            list(self.entities),
            first_rules,
            name=name,
            records_events=records_events,
        )
        self.shared = Shared(
            world, node, self.tenant, self.checker, first_uid, ruled=has_topics(world.seed), slowness=slowness
        )
        self.actors = self._actors()
        self.http = HttpClients(self.shared, self.entities) if has_http(world.seed) else None
        self._healed = False

    @property
    def made(self) -> bool:
        """Whether all entities exist."""
        return len(self.checker.facts.entities) == len(self.entities)

    def begin_faults(self) -> None:
        """Let the store fail, and choose how fast the network is."""
        self.tenant.fault_rates = self._fault_rates()
        self.checker.history.wire_ms_max = max(3, self.tenant.fault_rates.wire_ms_max)

    def connect(self) -> None:
        """Let the clients come."""
        for actor in self.actors:
            self.world.after(self.random.randint(0, 500), actor.connect)

    # Choices

    def _actors(self) -> list[Actor]:
        random, shared = self.random, self.shared
        actors: list[Actor] = []
        for queue in self.entities:
            forwards = queue.forward_to is not None
            if not isinstance(queue, SubscriptionDescription):
                actors += self._senders(queue)
            if isinstance(queue, TopicDescription):
                continue
            if not forwards:
                actors += self._receivers(queue)
            elif self.topology.changes_forwards and not queue.requires_session:
                actors.append(Receiver(shared, f"receiver-{queue.name}", queue.name, delete=False, credit=4))
            if random.random() < (0.3 if forwards else 0.5):
                address = f"{queue.name}/$DeadLetterQueue"
                deletes = random.random() < 0.2
                reader = Receiver(shared, f"reader-{queue.name}-dead", address, delete=deletes, credit=3)
                actors.append(reader)
        if random.random() < 0.6:
            actors.append(Transactor(shared, "transactor", self.entities))
        if has_successor(self.world.seed):
            actors.append(Successor(shared, "next", [a for a in actors if isinstance(a, Receiver)]))
        if self.topology.subscriptions:
            actors.append(RuleChanger(shared, "changer", self.topology.subscriptions))
        if has_readers(self.world.seed):
            actors += self._readers()
        actors.append(Manager(shared, "manager", self.queues, cbs=True))
        return actors

    def _senders(self, queue: Description) -> list[Actor]:
        random = self.random
        actors: list[Actor] = []
        for number in range(random.choice((1, 2)) if queue.name not in ("hop-1", "hop-3", "hop-4") else 0):
            pace_ms = random.choice((300, 900, 2_500)) * (2 if len(self.entities) > 2 else 1)
            pace_ms *= 2 if self.topology.subscriptions else 1  # copies are work too
            actors.append(Sender(self.shared, f"sender-{queue.name}-{number}", queue, pace_ms=pace_ms))
        return actors

    def _receivers(self, queue: QueueDescription | SubscriptionDescription) -> list[Actor]:
        random, shared = self.random, self.shared
        actors: list[Actor] = []
        for number in range(random.choice((1, 2, 3) if len(self.queues) < 5 else (1, 1, 2))):
            name = f"receiver-{queue.name}-{number}"
            deletes = random.random() < 0.15
            credit = random.choice((1, 4, 12))
            if queue.requires_session:
                lock_ms = queue.lock_duration_ms
                actors.append(
                    SessionReceiver(shared, name, queue.name, credit=credit, lock_ms=lock_ms, delete=deletes)
                )
            else:
                actors.append(Receiver(shared, name, queue.name, delete=deletes, credit=credit))
        if self.slowness > 1 and not queue.requires_session:
            actors.append(LockRenewer(shared, f"holder-{queue.name}", queue.name))
        return actors

    def _readers(self) -> list[Actor]:
        """Choose the readers by claims: one or two cursors, also two of one queue."""
        random = self.random
        addresses = [queue.name for queue in self.queues if queue.forward_to is None]
        if random.random() < 0.3:
            addresses = [f"{queue.name}/$DeadLetterQueue" for queue in self.queues]
        return [
            Reader(self.shared, f"reader-{cursor}", random.choice(addresses), cursor)
            for cursor in random.choice((("lake",), ("lake", "mart")))
            if addresses
        ]

    def _fault_rates(self) -> FaultRates:
        random = self.random
        return FaultRates(
            wire_ms_max=random.choice((0, 3, 3, 40, 1_200)),
            commit_ms_max=random.choice((0, 8, 20)),
            slow_commits=random.choice((0.0, 0.0, 0.02)),
            failing_commits=random.choice((0.0, 0.0, 0.003)),
            crash_in_commit=random.choice((0.0, 0.004)),
        )

    # Faults

    def befall_at_times(self) -> None:
        """Let something befall the namespace now and then, until the faults are over."""
        if self._healed:
            return
        self.world.after(self.random.randint(100, 4_000) * self.slowness, self.befall_at_times)
        if self.node.process is not None:
            self.befall(self.random.random() * (1 if self.slowness == 1 else 3))

    def befall(self, roll: float) -> None:
        """Inject one fault that concerns this namespace alone, or none."""
        random, tenant = self.random, self.tenant
        if roll < 0.3:
            random.choice(self.actors).cut()
        elif roll < 0.36:
            random.choice(self.actors).drop()
        elif roll < 0.46:
            self._change(random.choice(self.entities).name)
        elif roll < 0.53:
            tenant.limit(LimitSending(low_space=random.random() < 0.5, lagging=random.random() < 0.5))
            self.world.after(random.randint(100, 6_000), tenant.limit, LimitSending())
        elif roll < 0.55:
            name = random.choice(self.entities).name
            tenant.delete(name)
            self._restore_later(random.randint(1, 8_000) * self.slowness, name)
        else:
            self._restore(random.choice(self.entities).name)

    def _change(self, name: str) -> None:
        """Change settings of an entity."""
        random, tenant = self.random, self.tenant
        queue = tenant.entity(name)
        if queue is None:
            return
        roll = random.random()
        if has_circle(self.world.seed) and self.topology.changes_forwards and random.random() < 0.6:
            roll = 1.0  # a circle opens, or a chain becomes one, while messages are on their way
        if roll < 0.4 and isinstance(queue, TopicDescription):
            ttl_ms = random.choice((queue.default_ttl_ms, 25_000, UNLIMITED_MS))
            tenant.update(replace(queue, default_ttl_ms=ttl_ms, status=EntityStatus.ACTIVE))
        elif roll < 0.4:
            assert not isinstance(queue, TopicDescription)
            if isinstance(queue, SubscriptionDescription):
                queue = replace(queue, dead_lettering_on_filter_errors=random.random() < 0.5)
            tenant.update(
                replace(
                    queue,
                    max_delivery_count=random.choice((queue.max_delivery_count, 1, 2, 4, 10)),
                    default_ttl_ms=random.choice((queue.default_ttl_ms, 25_000, UNLIMITED_MS)),
                    dead_lettering_on_expiration=random.random() < 0.5,
                    status=EntityStatus.ACTIVE,
                )
            )
        elif roll < 0.6:
            tenant.update(replace(queue, user_metadata=f"changed at {self.world.now_ms}"))
        elif roll < 0.8:
            tenant.update(replace(queue, status=random.choice(list(EntityStatus))))
            self._restore_later(random.randint(100, 4_000) * self.slowness, name)
        elif self.topology.changes_forwards and not isinstance(queue, TopicDescription):
            chosen = self._chosen(name)
            tenant.update(
                replace(
                    queue,
                    forward_to=random.choice((None, chosen.forward_to)),
                    forward_dead_lettered_to=random.choice((None, chosen.forward_dead_lettered_to)),
                )
            )

    def _chosen(self, name: str) -> Description:
        return next(entity for entity in self.entities if entity.name == name)

    def _restore_later(self, delay_ms: int, name: str) -> None:
        self.world.after(delay_ms, lambda: None if self._healed else self._restore(name))

    def _restore(self, name: str) -> None:
        """Make an entity exist again, a subscription behind its topic, and be active."""
        above = topic_of(self._chosen(name))
        if above is not None and not self.checker.exists(above):
            self._restore(above)
        queue = self.tenant.entity(name)
        if queue is None or not self.checker.exists(name):
            wanted = queue or self._chosen(name)
            if has_circle(self.world.seed):
                known = [entity.name for entity in self.entities if self.checker.exists(entity.name)]
                wanted = without_forwards(wanted, known)
            self.tenant.create(wanted)
        elif queue.status is not EntityStatus.ACTIVE:
            self.tenant.update(replace(queue, status=EntityStatus.ACTIVE))

    # Without faults

    def heal(self) -> None:
        """End the faults of the store and of the network."""
        self._healed = True
        self.tenant.fault_rates = FaultRates(wire_ms_max=3, commit_ms_max=8)

    def restore_all(self) -> None:
        """Make all entities exist and be active."""
        for entity in self.entities:
            self._restore(entity.name)

    def stop(self) -> None:
        """Let no client begin anything new."""
        for actor in self.actors:
            actor.stop()
        if self.http is not None:
            self.http.stop()

    def leave(self) -> None:
        """Let all clients leave."""
        for actor in self.actors:
            actor.leave()

    @property
    def longest_lock_ms(self) -> int:
        """The longest lock of any queue."""
        return max(queue.lock_duration_ms for queue in self.queues)

    def open_questions(self) -> dict[str, int]:
        """Count the outstanding answers by actor."""
        found = {actor.name: n for actor in self.actors if (n := actor.open_questions())}
        if self.http is not None and (n := self.http.open_questions()):
            found["HTTP clients"] = n
        return found

    def release_cursors(self) -> None:
        """Release all cursors, so that everything can be received in order."""
        if not has_readers(self.world.seed):
            return
        names = [queue.name for queue in self.queues]
        releasers: list[Actor] = [
            Releaser(self.shared, address) for name in names for address in (name, f"{name}/$DeadLetterQueue")
        ]
        for releaser in releasers:
            releaser.connect()
        cursors = self.checker.facts.cursors
        released = self.world.run_until(
            lambda: not cursors.cursors and not any(releaser.open_questions() for releaser in releasers),
            self.world.now_ms + ANSWER_MS_MAX,
        )
        if not released:
            raise Violation(f"cursors still exist {ANSWER_MS_MAX} ms later: {cursors.cursors}")
        for releaser in releasers:
            releaser.stop()
            releaser.leave()
        self.world.run_to(self.world.now_ms + 1_000)

    def drainers(self) -> list[Actor]:
        """Return those who receive all that is left."""
        drainers: list[Actor] = []
        for name in [entity.name for entity in self.entities]:
            queue = self.tenant.entity(name)
            assert queue is not None
            drainers.append(Drainer(self.shared, queue))
            if isinstance(queue, TopicDescription) or queue.forward_to is not None:
                continue
            if queue.requires_session:
                drainers.append(SessionDrainer(self.shared, queue))
        return drainers

    def idle(self) -> list[str]:
        """Return the entities that go when nobody uses them (A-03)."""
        # A topic is in use while a subscription forwards.
        busy = {topic_of(entity) for entity in self.entities if entity.forward_to is not None}
        return [
            entity.name
            for entity in self.entities
            if entity.auto_delete_on_idle_ms <= IDLE_MS and entity.name not in busy
        ]
