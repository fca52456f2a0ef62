"""One seed: its entities, actors and faults, the phase with faults, the phase without, the verdict.

Owns: the choices of a seed. The amount of work is chosen so that a seed takes about 0.4 s on a slow core.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from peeklock.broker.vocabulary.commands import LimitSending
from peeklock.broker.vocabulary.descriptions import (
    UNLIMITED_MS,
    Description,
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.events import FLUSH_MS
from tests.simulation.actors.actors import ANSWER_MS_MAX, Actor, Shared
from tests.simulation.actors.drainers import Drainer, SessionDrainer
from tests.simulation.actors.hostile import Hostile, has_hostile
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
from tests.simulation.bugs.registry import BUGS
from tests.simulation.oracle.checker import Checker
from tests.simulation.oracle.records import Violation
from tests.simulation.world.machine import Administrator, sets_clocks
from tests.simulation.world.node import FaultRates, Node
from tests.simulation.world.pieces import Pieces
from tests.simulation.world.sizes import SMALL_SIZES, patched
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
from tests.simulation.world.world import Livelock, World

FAULTS_MS = 45_000
"""Length of the phase with faults, without clock jumps; a slow seed multiplies it by its slowness."""

SLOWNESS = 240
"""A slow seed takes three hours: locks are renewed for long (L-18), queues are idle (A-03)."""

DRAIN_MS_MAX = 600_000
"""Without faults, everything drains within this time: scheduled messages, lapsing locks and all."""


IDLE_LATE_MS_MAX = 90_000
"""The longest from an idle queue's time-out to its deletion."""


@dataclass(slots=True)
class Result:
    """The result of a seed."""

    seed: int
    digest: str
    events: int
    failure: str | None
    counts: dict[str, int]
    deaths: int


def run_seed(
    seed: int,
    *,
    bug: str | None = None,
    trace: Callable[[str], None] | None = None,
    events: Path | None = None,
) -> Result:
    """Run one seed to its end or to its first violation.

    Args:
        events: the broker records what happens, and its event log is written to a folder in this one.
    """
    pieces = Pieces() if bug is None else BUGS[bug].pieces()
    with patched((*SMALL_SIZES, *pieces.patches)):
        return _run_seed(seed, pieces, trace, events)


def _run_seed(seed: int, pieces: Pieces, trace: Callable[[str], None] | None, events: Path | None) -> Result:
    world = World(seed, trace=trace)
    simulation = Simulation(world, pieces, records_events=events is not None)
    failure: str | None = None
    try:
        simulation.run()
    except (Violation, Livelock) as violation:
        failure = f"{type(violation).__name__}: {violation}"
        world.note(failure)
    except Exception as error:  # a bug that raises is a finding too, and must name its seed
        import traceback

        failure = traceback.format_exc()
        world.note(f"{type(error).__name__}: {error}")
    if failure is not None:
        failure += "\n\nThe last events:\n" + "\n".join(world.tail)
    if events is not None:
        if failure is not None:
            with suppress(Exception):  # the next batch writes the last events to the log
                world.run_to(world.now_ms + 2 * FLUSH_MS)
        from tests.simulation.oracle.event_log import write_events  # pyarrow, which nothing else here needs

        write_events(simulation.node.facts_store, events / f"seed-{seed}", f"seed-{seed}")
    return Result(
        seed, world.digest(), world.events, failure, simulation.checker.figures(), simulation.node.deaths
    )


class Simulation:
    """One world with one broker and its clients."""

    def __init__(self, world: World, pieces: Pieces, *, records_events: bool = False) -> None:
        self.world = world
        self.random = world.random
        self.checker = Checker(lambda: self.node.passed_ms, lambda: world.now_ms)
        self.checker.history.grace_ms = lock_grace_ms(world.seed)
        self.slowness = SLOWNESS if self.random.random() < 0.12 else 1
        topics = has_topics(world.seed)
        self.topology = choose(self.random, self.slowness, world.seed)
        self.entities = self.topology.entities
        self.queues = self.topology.queues
        rulebook = self.checker.rulings.rulebook
        first_rules = {
            path: rulebook.describe(ruling, name)
            for path, (name, ruling) in self.topology.first_rules.items()
        }
        self.node = Node(
            world, self.checker, pieces, list(self.entities), first_rules, records_events=records_events
        )
        self.shared = Shared(world, self.node, self.checker, ruled=topics, slowness=self.slowness)
        self.actors = self._actors()
        names = [queue.name for queue in self.queues]
        self.hostile = Hostile(self.shared, names) if has_hostile(world.seed) else None
        self.http = HttpClients(self.shared, self.entities) if has_http(world.seed) else None
        self.administrator = (
            Administrator(world, self.node, self.slowness) if sets_clocks(world.seed) else None
        )
        self._healed = False

    def run(self) -> None:
        """Run both phases, then the final checks. Raises: Violation."""
        self.node.start()
        self.world.run_until(
            lambda: len(self.checker.facts.entities) == len(self.entities), self.world.now_ms + 1_000
        )
        self.node.fault_rates = self._fault_rates()
        self.checker.history.wire_ms_max = max(3, self.node.fault_rates.wire_ms_max)
        for actor in self.actors:
            self.world.after(self.random.randint(0, 500), actor.connect)
        if self.hostile is not None:
            self.hostile.start(FAULTS_MS * self.slowness)
        if self.http is not None:
            self.http.start()
        if self.administrator is not None:
            self.administrator.start()
        end_ms = self.world.now_ms + FAULTS_MS * self.slowness
        while self.world.now_ms < end_ms:
            self.world.run_to(self.world.now_ms + self.random.randint(100, 4_000) * self.slowness)
            end_ms += self._fault()
        self._heal()
        self._release_cursors()
        self._drain()
        self._wait_for_idle()
        self.checker.bounds.finish()
        self.checker.finish()

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

    def _fault(self) -> int:
        """Inject one fault, or none; return by how much it prolongs the phase."""
        random, node = self.random, self.node
        roll = random.random() * (1 if self.slowness == 1 else 3)
        if node.process is None:
            if random.random() < 0.3:
                node.machine.ahead_ms += random.choice((-3_600_000, -5_000, -1, 1, 60_000))
            node.start()
        elif roll < 0.14:
            node.die("killed")
            self.world.after(random.choice((1, 20, 800)), node.start)
        elif roll < 0.3:
            random.choice(self.actors).cut()
        elif roll < 0.36:
            random.choice(self.actors).drop()
        elif roll < 0.46:
            self._change(random.choice(self.entities).name)
        elif roll < 0.5:
            node.limit(LimitSending(low_space=random.random() < 0.5, lagging=random.random() < 0.5))
            self.world.after(random.randint(100, 6_000), node.limit, LimitSending())
        elif roll < 0.53:
            jump_ms = random.choice((30_000, 3_600_000, 5 * 3_600_000))
            self.checker.jumped()
            self.world.jump(jump_ms)
            self.checker.jumped()
            return jump_ms
        elif roll < 0.55:
            name = random.choice(self.entities).name
            node.delete(name)
            self._restore_later(random.randint(1, 8_000) * self.slowness, name)
        else:
            self._restore(random.choice(self.entities).name)
        return 0

    def _change(self, name: str) -> None:
        """Change settings of an entity."""
        random, node = self.random, self.node
        queue = node.entity(name)
        if queue is None:
            return
        roll = random.random()
        if has_circle(self.world.seed) and self.topology.changes_forwards and random.random() < 0.6:
            roll = 1.0  # a circle opens, or a chain becomes one, while messages are on their way
        if roll < 0.4 and isinstance(queue, TopicDescription):
            ttl_ms = random.choice((queue.default_ttl_ms, 25_000, UNLIMITED_MS))
            node.update(replace(queue, default_ttl_ms=ttl_ms, status=EntityStatus.ACTIVE))
        elif roll < 0.4:
            assert not isinstance(queue, TopicDescription)
            if isinstance(queue, SubscriptionDescription):
                queue = replace(queue, dead_lettering_on_filter_errors=random.random() < 0.5)
            node.update(
                replace(
                    queue,
                    max_delivery_count=random.choice((queue.max_delivery_count, 1, 2, 4, 10)),
                    default_ttl_ms=random.choice((queue.default_ttl_ms, 25_000, UNLIMITED_MS)),
                    dead_lettering_on_expiration=random.random() < 0.5,
                    status=EntityStatus.ACTIVE,
                )
            )
        elif roll < 0.6:
            node.update(replace(queue, user_metadata=f"changed at {self.world.now_ms}"))
        elif roll < 0.8:
            node.update(replace(queue, status=random.choice(list(EntityStatus))))
            self._restore_later(random.randint(100, 4_000) * self.slowness, name)
        elif self.topology.changes_forwards and not isinstance(queue, TopicDescription):
            chosen = self._chosen(name)
            node.update(
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
        queue = self.node.entity(name)
        if queue is None or not self.checker.exists(name):
            wanted = queue or self._chosen(name)
            if has_circle(self.world.seed):
                known = [entity.name for entity in self.entities if self.checker.exists(entity.name)]
                wanted = without_forwards(wanted, known)
            self.node.create(wanted)
        elif queue.status is not EntityStatus.ACTIVE:
            self.node.update(replace(queue, status=EntityStatus.ACTIVE))

    # Without faults

    def _heal(self) -> None:
        """End the faults and the work; every question on a live connection must be answered."""
        self.world.note("no more faults")
        self._healed = True
        self.node.fault_rates = FaultRates(wire_ms_max=3, commit_ms_max=8)
        # A clock that was set back would hold scheduled messages for hours.
        if self.administrator is not None:
            self.administrator.stop()
        elif self.node.machine.ahead_ms < 0:
            self.node.die("stopped to set the clock right")
            self.node.machine.ahead_ms = 0
        self.node.start()
        self.node.limit(LimitSending())
        for entity in self.entities:
            self._restore(entity.name)
        if self.hostile is not None:
            self.hostile.stop()
        self.node.find_half_open()
        for actor in self.actors:
            actor.stop()
        if self.http is not None:
            self.http.stop()
        answered = self.world.run_until(lambda: not self._open_questions(), self.world.now_ms + ANSWER_MS_MAX)
        if not answered:
            open_questions = self._open_questions()
            raise Violation(f"questions are not answered after {ANSWER_MS_MAX} ms: {open_questions}")
        for actor in self.actors:
            actor.leave()
        # All earlier locks lapse, so that the order of what is left is known.
        self.world.run_to(self.world.now_ms + 2 * max(queue.lock_duration_ms for queue in self.queues))
        for entity in self.entities:
            self._restore(entity.name)
        self.world.run_to(self.world.now_ms + 1_000)

    def _open_questions(self) -> dict[str, int]:
        """Count the outstanding answers by actor."""
        found = {actor.name: n for actor in self.actors if (n := actor.open_questions())}
        if self.http is not None and (n := self.http.open_questions()):
            found["HTTP clients"] = n
        return found

    def _release_cursors(self) -> None:
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

    def _drain(self) -> None:
        """Receive all that is left."""
        drainers: list[Actor] = []
        for name in [entity.name for entity in self.entities]:
            queue = self.node.entity(name)
            assert queue is not None
            drainers.append(Drainer(self.shared, queue))
            if isinstance(queue, TopicDescription) or queue.forward_to is not None:
                continue
            if queue.requires_session:
                drainers.append(SessionDrainer(self.shared, queue))
        for drainer in drainers:
            drainer.connect()
        facts = self.checker.facts
        drained = self.world.run_until(
            lambda: not facts.live and not any(drainer.open_questions() for drainer in drainers),
            self.world.now_ms + DRAIN_MS_MAX,
        )
        if not drained:
            left = "\n".join(str(record) for record in list(facts.live.values())[:10])
            raise Violation(f"{len(facts.live)} messages are left after {DRAIN_MS_MAX} ms:\n{left}")
        for drainer in drainers:
            drainer.stop()
            drainer.leave()

    def _wait_for_idle(self) -> None:
        """Check that idle entities are deleted in time (A-03)."""
        # A topic is in use while a subscription forwards.
        busy = {topic_of(entity) for entity in self.entities if entity.forward_to is not None}
        idle = [
            entity.name
            for entity in self.entities
            if entity.auto_delete_on_idle_ms <= IDLE_MS and entity.name not in busy
        ]
        if not idle:
            return
        self.world.run_to(self.world.now_ms + IDLE_MS + IDLE_LATE_MS_MAX)
        for name in idle:
            if self.checker.exists(name):
                raise Violation(f"{name} still exists, though it was idle for {IDLE_MS} ms")
