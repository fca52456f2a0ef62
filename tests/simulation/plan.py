"""One seed: its queues, actors and faults, the phase with faults, the phase without, the verdict.

Owns: the choices that a seed stands for. The amount of work is chosen so that a seed takes about 0.4 s on a
slow core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from peeklock.broker.commands import LimitSending
from peeklock.broker.descriptions import UNLIMITED_MS, EntityStatus, QueueDescription
from tests.simulation.actors import ANSWER_MS_MAX, Actor, Shared
from tests.simulation.bugs import BUGS
from tests.simulation.checker import Checker
from tests.simulation.facts import Violation
from tests.simulation.managing import Manager
from tests.simulation.node import Node, Pieces, Weather, small_sizes
from tests.simulation.receivers import Drainer, Receiver
from tests.simulation.senders import Sender
from tests.simulation.world import Livelock, World

FAULTS_MS = 45_000
"""How long faults go on, clock jumps aside."""

LOCK_MS = 5_000
"""The shortest lock that the broker offers: lapses are frequent then."""

DRAIN_MS_MAX = 600_000
"""Without faults, everything is drained within this time: scheduled messages, lapsing locks and all."""


@dataclass(slots=True)
class Result:
    """What became of a seed."""

    seed: int
    digest: str
    events: int
    failure: str | None
    counts: dict[str, int]
    deaths: int


def run_seed(seed: int, *, bug: str | None = None, trace: Callable[[str], None] | None = None) -> Result:
    """Run one seed to its end or to its first violation."""
    with small_sizes():
        return _run_seed(seed, bug, trace)


def _run_seed(seed: int, bug: str | None, trace: Callable[[str], None] | None) -> Result:
    world = World(seed, trace=trace)
    simulation = Simulation(world, Pieces() if bug is None else BUGS[bug].pieces())
    failure: str | None = None
    try:
        simulation.run()
    except (Violation, Livelock) as violation:
        failure = f"{type(violation).__name__}: {violation}"
        world.note(failure)
    except Exception as error:  # a bug that raises is a finding like any other, and must name its seed
        import traceback

        failure = traceback.format_exc()
        world.note(f"{type(error).__name__}: {error}")
    if failure is not None:
        failure += "\n\nThe last events:\n" + "\n".join(world.tail)
    return Result(
        seed, world.digest(), world.events, failure, simulation.checker.counts, simulation.node.deaths
    )


class Simulation:
    """One world with one broker and its clients."""

    def __init__(self, world: World, pieces: Pieces) -> None:
        self.world = world
        self.random = world.random
        self.checker = Checker(lambda: world.now_ms)
        self.queues = self._queues()
        self.node = Node(world, self.checker, pieces, self.queues)
        self.shared = Shared(world, self.node, self.checker)
        self.actors = self._actors()

    def run(self) -> None:
        """Both phases, then the verdict. Raises: Violation."""
        self.node.start()
        self.world.run_until(
            lambda: len(self.checker.queue_ids) == len(self.queues), self.world.now_ms + 1_000
        )
        self.node.weather = self._weather()
        for actor in self.actors:
            self.world.after(self.random.randint(0, 500), actor.connect)
        end_ms = self.world.now_ms + FAULTS_MS
        while self.world.now_ms < end_ms:
            self.world.run_to(self.world.now_ms + self.random.randint(100, 4_000))
            end_ms += self._fault()
        self._heal()
        self._drain()
        self.checker.finish()

    # Choices

    def _queues(self) -> list[QueueDescription]:
        random = self.random
        names = ["orders", "jobs"][: random.choice((1, 2))]
        return [
            QueueDescription(
                name,
                lock_duration_ms=LOCK_MS,
                requires_duplicate_detection=random.random() < 0.4,
                duplicate_window_ms=20_000,
                default_ttl_ms=random.choice((UNLIMITED_MS, UNLIMITED_MS, 10_000, 30_000)),
                dead_lettering_on_expiration=random.random() < 0.5,
                max_delivery_count=random.choice((1, 2, 3, 10)),
            )
            for name in names
        ]

    def _actors(self) -> list[Actor]:
        random, shared = self.random, self.shared
        actors: list[Actor] = []
        for queue in self.queues:
            for number in range(random.choice((1, 2))):
                pace_ms = random.choice((300, 900, 2_500))
                actors.append(Sender(shared, f"sender-{queue.name}-{number}", queue.name, pace_ms=pace_ms))
            for number in range(random.choice((1, 2, 3))):
                actors.append(
                    Receiver(
                        shared,
                        f"receiver-{queue.name}-{number}",
                        queue.name,
                        delete=random.random() < 0.15,
                        credit=random.choice((1, 4, 12)),
                    )
                )
            if random.random() < 0.5:
                address = f"{queue.name}/$DeadLetterQueue"
                actors.append(
                    Receiver(
                        shared, f"reader-{queue.name}-dead", address, delete=random.random() < 0.2, credit=3
                    )
                )
        actors.append(Manager(shared, "manager", [queue.name for queue in self.queues], cbs=True))
        return actors

    def _weather(self) -> Weather:
        random = self.random
        return Weather(
            wire_ms_max=random.choice((0, 3, 3, 40, 1_200)),
            commit_ms_max=random.choice((0, 8, 20)),
            slow_commits=random.choice((0.0, 0.0, 0.02)),
            failing_commits=random.choice((0.0, 0.0, 0.003)),
            crash_in_commit=random.choice((0.0, 0.004)),
        )

    # Faults

    def _fault(self) -> int:
        """Let one thing go wrong, or nothing; give how much longer the phase lasts for it."""
        random, node = self.random, self.node
        roll = random.random()
        if node.process is None:
            if random.random() < 0.3:
                node.offset_ms += random.choice((-3_600_000, -5_000, -1, 1, 60_000))
            node.start()
        elif roll < 0.14:
            node.die("killed")
            self.world.after(random.choice((1, 20, 800)), node.start)
        elif roll < 0.3:
            random.choice(self.actors).cut()
        elif roll < 0.36:
            random.choice(self.actors).drop()
        elif roll < 0.42:
            queue = node.queue(random.choice(self.queues).name)
            node.update(
                replace(
                    queue,
                    max_delivery_count=random.choice((queue.max_delivery_count, 4, 10)),
                    default_ttl_ms=random.choice((queue.default_ttl_ms, 25_000, UNLIMITED_MS)),
                    dead_lettering_on_expiration=random.random() < 0.5,
                    status=EntityStatus.ACTIVE,
                )
            )
        elif roll < 0.44:
            queue = node.queue(random.choice(self.queues).name)
            node.update(replace(queue, status=random.choice(list(EntityStatus))))
            self.world.after(random.randint(100, 4_000), self._activate, queue.name)
        elif roll < 0.48:
            node.limit(LimitSending(low_space=random.random() < 0.5, lagging=random.random() < 0.5))
            self.world.after(random.randint(100, 6_000), node.limit, LimitSending())
        elif roll < 0.51:
            jump_ms = random.choice((30_000, 3_600_000, 5 * 3_600_000))
            self.checker.jumped()
            self.world.jump(jump_ms)
            self.checker.jumped()
            return jump_ms
        return 0

    def _activate(self, name: str) -> None:
        self.node.update(replace(self.node.queue(name), status=EntityStatus.ACTIVE))

    # Without faults

    def _heal(self) -> None:
        """End the faults and the work; every question that was asked on a living connection must be
        answered."""
        self.world.note("no more faults")
        self.node.weather = Weather(wire_ms_max=3, commit_ms_max=8)
        if self.node.offset_ms < 0:
            # A clock that was set back would hold scheduled messages for hours.
            self.node.die("stopped to set the clock right")
            self.node.offset_ms = 0
        self.node.start()
        self.node.limit(LimitSending())
        for queue in self.queues:
            self._activate(queue.name)
        self.node.find_half_open()
        for actor in self.actors:
            actor.stop()
        answered = self.world.run_until(
            lambda: not any(actor.open_questions() for actor in self.actors),
            self.world.now_ms + ANSWER_MS_MAX,
        )
        if not answered:
            open_questions = {actor.name: n for actor in self.actors if (n := actor.open_questions())}
            raise Violation(f"questions are not answered after {ANSWER_MS_MAX} ms: {open_questions}")
        for actor in self.actors:
            actor.leave()
        # All locks of before lapse, so that the order of what is left is plain.
        self.world.run_to(self.world.now_ms + 2 * LOCK_MS)

    def _drain(self) -> None:
        """Receive all that is left."""
        drainers = [Drainer(self.shared, f"drainer-{queue.name}", queue.name) for queue in self.queues]
        for drainer in drainers:
            drainer.connect()
        facts = self.checker.facts
        drained = self.world.run_until(
            lambda: not facts.live and not any(drainer.open_questions() for drainer in drainers),
            self.world.now_ms + DRAIN_MS_MAX,
        )
        if not drained:
            left = "\n".join(str(record) for record in list(facts.live.values())[:10])
            raise Violation(f"{len(facts.live)} messages are not drained after {DRAIN_MS_MAX} ms:\n{left}")
