"""Seeds that failed once: each is named by what it found, and must pass from then on.

A seed keeps its meaning only while the plan makes the same choices. After a change of the choices, keep the
test of the lowest package that shows the bug, and leave here only the seeds that still fail without the fix.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.plan import run_seed

pytestmark = pytest.mark.simulation

FOUND = {
    87: "the test rig: an administrator accepted a clock before the broker had found the step",
    91: "a queue was updated after its last use: it was deleted up to five minutes too late",
    106: "the checker: a message fell due in a topic, and reached its queue after the clock was set back",
    157: "the checker: a renewal waited for its links behind a slow commit, and too long for its session",
    159: "the checker: a request for a state waited for its links behind a slow commit",
    247: "a receiver of a session took credit back: a message went to the queue, behind those in flight",
    292: "the checker: a duplicate was acknowledged, and the broker's clock was set before the answer came",
    389: "the checker: a message came to its queue again, in another partition, and was settled there",
    726: "the checker: what one transaction was refused, and another one did, was laid to the first",
    20201: "the checker: a scheduled message may be dropped behind an entity that has seen its id",
    31386: "the checker: a subscription went and another came under its name in one batch",
}

FOUND_RECORDING = {
    55: "a wait for a session timed out, and a transaction's way led over another entity from then on",
    74: "the checker: a request for a session waits for its links, and comes after the lock's end",
    141: "the checker: the turn ended between a hand-out and the end of a grace that was due",
    515: "the checker: a reader asks for a claim of a removed cursor; another has its name and number",
}
"""Seeds whose broker records events, which have their own batches."""


@pytest.mark.parametrize("seed", sorted(FOUND), ids=lambda seed: f"seed-{seed}")
def test_a_seed_that_failed_once_passes(seed: int) -> None:
    """Req: R-02, L-16, G-01, A-03"""
    result = run_seed(seed)
    assert result.failure is None, result.failure


@pytest.mark.parametrize("seed", sorted(FOUND_RECORDING), ids=lambda seed: f"seed-{seed}")
def test_a_seed_that_failed_once_while_recording_passes(seed: int, tmp_path: Path) -> None:
    """Req: R-02, X-06"""
    result = run_seed(seed, events=tmp_path)
    assert result.failure is None, result.failure
