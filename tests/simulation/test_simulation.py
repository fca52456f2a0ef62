"""The simulation itself: a seed means the same in every run, in every process."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from peeklock.engine.driver import NEVER, Action, Driver, WakeAt
from tests.simulation.plan import run_seed
from tests.simulation.world.topology import has_topics

pytestmark = pytest.mark.simulation


def hash_in_another_process(seed: int, hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seed", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"hash ([0-9a-f]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    return found[1]


def test_one_seed_is_one_hash_in_any_process() -> None:
    here = run_seed(3).digest
    assert hash_in_another_process(3, "1") == here
    assert hash_in_another_process(3, "4711") == here


def test_two_seeds_are_two_hashes() -> None:
    assert run_seed(3).digest != run_seed(5).digest


def test_a_seed_sees_some_of_everything() -> None:
    """A simulation without activity would pass always."""
    totals: dict[str, int] = {}
    deaths = 0
    for seed in range(9):
        result = run_seed(seed)
        assert result.failure is None, result.failure
        deaths += result.deaths
        for name, count in result.counts.items():
            totals[name] = totals.get(name, 0) + count
    assert deaths > 3
    for name, least in (
        ("accepted", 200), ("rejected", 50), ("delivered", 200), ("settled", 100), ("lock lost", 10),
        ("sessions", 20), ("transactions", 3), ("forwarded", 20), ("deleted queues", 0),
        ("copies", 50), ("rule changes", 3), ("hostile", 20), ("floods", 8), ("probes", 150),
        ("refused to hold", 5),
    ):  # fmt: skip
        assert totals[name] > least, totals


@pytest.mark.parametrize("seed", [10, 22, 26])
def test_a_seed_with_topics_keeps_every_promise(seed: int) -> None:
    """Req: P-01, P-02, P-03, P-04, E-07, F-01, R-02, S-01"""
    assert has_topics(seed)
    result = run_seed(seed)
    assert result.failure is None, result.failure
    assert result.counts["copies"] > 20, result.counts


@pytest.mark.parametrize("seed", [3, 5, 9, 17])
def test_a_pass_that_the_driver_leaves_out_would_find_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: R-01"""
    idle_steps = 0
    step = Driver.step

    def checked(driver: Driver, now_ms: int, lease_until_ms: float = NEVER) -> list[Action]:
        nonlocal idle_steps
        actions = step(driver, now_ms, lease_until_ms)
        if [type(action) for action in actions] == [WakeAt] and now_ms < lease_until_ms:
            idle_steps += 1
            assert driver._engine.take_batch(now_ms) is None
            assert driver._engine.release() == []
            due_ms = driver.timers.next_ms
            assert actions == [WakeAt(None if due_ms is None else max(due_ms, driver._rest_until_ms))]
        return actions

    monkeypatch.setattr(Driver, "step", checked)
    result = run_seed(seed)
    assert result.failure is None, result.failure
    assert idle_steps > 100


def test_a_failing_seed_tells_how_to_see_it_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILING],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "replay: python -m tests.simulation --replay 4 --trace" in done.stdout
    assert "The last events:" in done.stdout


FAILING = """
from tests.simulation.__main__ import report
from tests.simulation.plan import run_seed
result = run_seed(4, bug="early-effects")
assert result.failure is not None
report(result)
"""
