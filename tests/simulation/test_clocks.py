"""The machine's clocks, and the checker on the effects of a step: durations stay, instants move."""

from __future__ import annotations

import pytest

from peeklock.server.loop.clock import SlewedClock
from tests.simulation.oracle.records import Violation
from tests.simulation.oracle.story import LOCK_MS, Story, record
from tests.simulation.plan import run_seed
from tests.simulation.world.clocks import Clocks
from tests.simulation.world.machine import HOUR_MS, Machine, sets_clocks
from tests.simulation.world.world import World

pytestmark = pytest.mark.simulation

WINDOW_MS = 20_000


def started(**orders: object) -> Story:
    """Return a history whose broker has just started, with connections made since."""
    story = Story(orders)
    story.checker.started(0)
    story.checker.connected(1)
    story.checker.connected(2)
    return story


def step(story: Story, ms: int) -> None:
    story.now_ms += 10
    story.checker.clock_stepped(ms)
    story.now_ms += 10


def test_a_clock_that_agrees_with_the_world_gives_its_time() -> None:
    world = World(1)
    machine = Machine(world)
    machine.ahead_ms = -12_345
    clock = SlewedClock(machine.wall_s, machine.passed_s)
    for ms in (1, 7, 1_000, 999, 3_600_000, 123_456_789):
        world.now_ms += ms
        assert clock.adjust() == 0
        assert clock.now_ms() == world.now_ms - 12_345


def test_a_machine_that_is_set_tells_of_a_step() -> None:
    world = World(1)
    machine = Machine(world)
    clock = SlewedClock(machine.wall_s, machine.passed_s)
    machine.ahead_ms = HOUR_MS
    told = []
    for _ in range(5):
        world.now_ms += 1_000
        told.append(clock.adjust())
    assert told == [0, 0, HOUR_MS, 0, 0]
    assert clock.now_ms() == world.now_ms


def test_what_is_believed_waits_for_an_operator_after_a_large_step() -> None:
    clocks = Clocks()
    clocks.started(100, 0)
    clocks.stepped(200, 30 * HOUR_MS)
    assert (clocks.now.shown_ms, clocks.now.believed_ms) == (30 * HOUR_MS, 0)
    clocks.accepted(300)
    assert clocks.latest_ms(250, 250) == 250
    assert (clocks.earliest_ms(250, 300), clocks.latest_ms(250, 300)) == (250, 300 + 30 * HOUR_MS)


@pytest.mark.parametrize("ms", [HOUR_MS, -HOUR_MS, 30 * HOUR_MS])
def test_the_end_of_a_lock_is_told_by_the_clock_of_its_taking(ms: int) -> None:
    clocks = Clocks()
    clocks.started(0, 0)
    clocks.stepped(10_000, ms)
    assert clocks.passed_ms(9_000 + LOCK_MS, LOCK_MS, 1, 0, 20_000) == 9_000 + LOCK_MS
    assert clocks.passed_ms(11_000 + LOCK_MS + ms, LOCK_MS, 1, 0, 20_000) == 11_000 + LOCK_MS


def test_a_lock_must_not_be_lost_by_a_step() -> None:
    story = started()
    story.send(1)
    story.commit(record(1))
    lock = story.deliver(1, 1, b"first")
    step(story, HOUR_MS)
    story.checker.settling(lock, "complete")
    with pytest.raises(Violation, match="the lock is live"):
        story.checker.settle_answered(lock, "complete", story.now_ms, "com.microsoft:message-lock-lost")


@pytest.mark.parametrize("ms", [HOUR_MS, -HOUR_MS])
def test_the_duplicate_window_is_not_moved_by_a_step(ms: int) -> None:
    story = started(requires_duplicate_detection=True, duplicate_window_ms=WINDOW_MS)
    story.send(1, message_id="a")
    story.commit(record(1))
    step(story, ms)
    story.send(2, message_id="a")
    with pytest.raises(Violation, match="is a duplicate of uid 1"):
        story.commit(record(2))


def test_an_id_from_the_future_is_known_over_a_restart() -> None:
    story = started(requires_duplicate_detection=True, duplicate_window_ms=WINDOW_MS)
    story.send(1, message_id="a")
    story.commit(record(1))
    story.now_ms += WINDOW_MS
    story.checker.crashed()
    story.checker.started(-HOUR_MS)
    story.send(2, message_id="a")
    with pytest.raises(Violation, match="is a duplicate of uid 1"):
        story.commit(record(2))


@pytest.mark.parametrize(
    ("ms", "expires"), [(0, False), (-HOUR_MS, False), (30 * HOUR_MS, False), (HOUR_MS, True)]
)
def test_a_message_expires_by_the_instants_that_are_believed(ms: int, *, expires: bool) -> None:
    story = started()
    story.send(1)
    story.checker.sent[1].ttl_ms = 60_000
    story.commit(record(1, enqueued_at_ms=story.now_ms, expires_at_ms=story.now_ms + 60_000))
    step(story, ms)
    gone = ((4, 1),)
    if expires:
        story.commit(gone)
    else:
        with pytest.raises(Violation, match="without a request"):
            story.commit(gone)


@pytest.mark.parametrize("seed", [6, 7, 16])
def test_a_seed_in_which_the_clock_is_set_keeps_every_promise(seed: int) -> None:
    """Req: L-02, E-01, D-01, S-04, S-07, R-02"""
    assert sets_clocks(seed)
    result = run_seed(seed)
    assert result.failure is None, result.failure
    assert result.counts["steps"] > 1, result.counts
