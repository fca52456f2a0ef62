"""One seed: what befalls its broker, the phase with faults, the phase without, the verdict.

Owns: the phases of a seed, and the faults of the whole broker. The amount of work is chosen so that a seed
takes about 0.4 s on a slow core, and half as much again with two namespaces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from peeklock.broker.vocabulary.commands import LimitSending
from peeklock.broker.vocabulary.events import FLUSH_MS
from tests.simulation.actors.actors import ANSWER_MS_MAX
from tests.simulation.actors.hostile import Hostile, has_hostile
from tests.simulation.bugs.registry import BUGS
from tests.simulation.oracle.records import UIDS_OF_A_NAMESPACE, Violation
from tests.simulation.play import Play
from tests.simulation.world.accounts import FIRST, SECOND
from tests.simulation.world.machine import Administrator, sets_clocks
from tests.simulation.world.node import Node
from tests.simulation.world.pieces import Pieces
from tests.simulation.world.sizes import SMALL_SIZES, patched
from tests.simulation.world.topology import IDLE_MS
from tests.simulation.world.world import Livelock, World

SECOND_EVERY, SECOND_IN = 17, range(11, 15)
"""Among so many seeds, those with a second namespace. 17 divides no other choice by the seed."""

FAULTS_MS = 45_000
"""Length of the phase with faults, without clock jumps; a slow seed multiplies it by its slowness."""

FAULTS_OF_TWO_MS = 30_000
"""The same with two namespaces, which make twice the work: the time of all seeds stays about the same."""

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
        world = World(seed, trace=trace)
        return finished(seed, Simulation(world, pieces, records_events=events is not None), events)


def finished(seed: int, simulation: Simulation, events: Path | None = None) -> Result:
    """Run a simulation to its end or to its first violation, and return what came of it."""
    world = simulation.world
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

        for play in simulation.plays:
            name = f"seed-{seed}" if play is simulation.first else f"seed-{seed}-{play.tenant.name}"
            write_events(play.tenant.facts_store, events / name, name)
    return Result(seed, world.digest(), world.events, failure, simulation.figures(), simulation.node.deaths)


def has_second(seed: int) -> bool:
    """Return whether the broker of a seed has two namespaces."""
    return seed % SECOND_EVERY in SECOND_IN


class Simulation:
    """One world with one broker and its clients."""

    def __init__(self, world: World, pieces: Pieces, *, records_events: bool = False) -> None:
        self.world = world
        self.random = world.random
        self.slowness = SLOWNESS if self.random.random() < 0.12 else 1
        self.node = Node(world, pieces)
        self.first = Play(world, self.node, FIRST, self.slowness, first_uid=0, records_events=records_events)
        self.plays = [self.first]
        if has_second(world.seed):
            own_seed = Random(f"second namespace of {world.seed}").randrange(1_000_000)
            self.plays.append(
                Play(
                    world.beside(own_seed, SECOND),
                    self.node,
                    SECOND,
                    self.slowness,
                    first_uid=UIDS_OF_A_NAMESPACE,
                    records_events=records_events,
                )
            )
        names = [queue.name for queue in self.first.queues]
        self.hostile = Hostile(self.first.shared, names) if has_hostile(world.seed) else None
        self.faults_ms = (FAULTS_MS if len(self.plays) == 1 else FAULTS_OF_TWO_MS) * self.slowness
        self.administrator = (
            Administrator(world, self.node, self.slowness) if sets_clocks(world.seed) else None
        )

    def run(self) -> None:
        """Run both phases, then the final checks. Raises: Violation."""
        self.begin()
        faults_ms = self.faults_ms
        for play in self.plays:
            play.connect()
        if self.hostile is not None:
            self.hostile.start(faults_ms)
        for play in self.plays:
            if play.http is not None:
                play.http.start()
            if play is not self.first:
                play.befall_at_times()
        if self.administrator is not None:
            self.administrator.start()
        end_ms = self.world.now_ms + faults_ms
        while self.world.now_ms < end_ms:
            self.world.run_to(self.world.now_ms + self.random.randint(100, 4_000) * self.slowness)
            end_ms += self._fault()
        self._heal()
        for play in self.plays:
            play.release_cursors()
        self._drain()
        self._wait_for_idle()
        self._finish()

    def begin(self) -> None:
        """Start the broker, wait for the entities, and let faults begin."""
        self.node.start()
        self.world.run_until(lambda: all(play.made for play in self.plays), self.world.now_ms + 1_000)
        for play in self.plays:
            play.begin_faults()

    def _finish(self) -> None:
        self.node.bounds.finish()
        for play in self.plays:
            play.checker.finish()

    def figures(self) -> dict[str, int]:
        """Return counts of what clients have seen, in all namespaces."""
        counts: Counter[str] = Counter()
        for play in self.plays:
            counts.update(play.checker.figures())
        counts.update(self.node.bounds.counts)
        counts["second namespaces"] = len(self.plays) - 1
        return dict(counts)

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
        elif 0.5 <= roll < 0.53:
            jump_ms = random.choice((30_000, 3_600_000, 5 * 3_600_000))
            node.jump(jump_ms)
            return jump_ms
        else:
            self.first.befall(roll)
        return 0

    # Without faults

    def _heal(self) -> None:
        """End the faults and the work; every question on a live connection must be answered."""
        world, node, plays = self.world, self.node, self.plays
        world.note("no more faults")
        for play in plays:
            play.heal()
        # A clock that was set back would hold scheduled messages for hours.
        if self.administrator is not None:
            self.administrator.stop()
        elif node.machine.ahead_ms < 0:
            node.die("stopped to set the clock right")
            node.machine.ahead_ms = 0
        node.start()
        for play in plays:
            play.tenant.limit(LimitSending())
            play.restore_all()
        if self.hostile is not None:
            self.hostile.stop()
        node.find_half_open()
        for play in plays:
            play.stop()
        if not world.run_until(lambda: not self._open_questions(), world.now_ms + ANSWER_MS_MAX):
            open_questions = self._open_questions()
            raise Violation(f"questions are not answered after {ANSWER_MS_MAX} ms: {open_questions}")
        for play in plays:
            play.leave()
        # All earlier locks lapse, so that the order of what is left is known.
        world.run_to(world.now_ms + 2 * max(play.longest_lock_ms for play in plays))
        for play in plays:
            play.restore_all()
        world.run_to(world.now_ms + 1_000)

    def _open_questions(self) -> list[dict[str, int]]:
        """Count the outstanding answers by actor, in each namespace that has any."""
        return [found for play in self.plays if (found := play.open_questions())]

    def _drain(self) -> None:
        """Receive all that is left."""
        drainers = [drainer for play in self.plays for drainer in play.drainers()]
        for drainer in drainers:
            drainer.connect()
        facts = [play.checker.facts for play in self.plays]
        drained = self.world.run_until(
            lambda: (
                not any(each.live for each in facts)
                and not any(drainer.open_questions() for drainer in drainers)
            ),
            self.world.now_ms + DRAIN_MS_MAX,
        )
        if not drained:
            left = [record for each in facts for record in each.live.values()]
            shown = "\n".join(str(record) for record in left[:10])
            raise Violation(f"{len(left)} messages are left after {DRAIN_MS_MAX} ms:\n{shown}")
        for drainer in drainers:
            drainer.stop()
            drainer.leave()

    def _wait_for_idle(self) -> None:
        """Check that idle entities are deleted in time (A-03)."""
        idle = [(play, name) for play in self.plays for name in play.idle()]
        if not idle:
            return
        self.world.run_to(self.world.now_ms + IDLE_MS + IDLE_LATE_MS_MAX)
        for play, name in idle:
            if play.checker.exists(name):
                raise Violation(f"{name} still exists, though it was idle for {IDLE_MS} ms")
