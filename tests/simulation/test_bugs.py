"""Each planted bug is found: a checker that finds nothing proves nothing."""

from __future__ import annotations

import re

import pytest

from tests.simulation.bugs.registry import BUGS
from tests.simulation.plan import run_seed

pytestmark = pytest.mark.simulation


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(BUGS))
def test_a_planted_bug_is_found(name: str) -> None:
    """Req: R-02"""
    bug = BUGS[name]
    seeds = range(bug.first_seed, bug.first_seed + bug.seeds)
    failures = (run_seed(seed, bug=name).failure for seed in seeds)
    reasons = (failure.split("\n\nThe last events:")[0] for failure in failures if failure is not None)
    assert any(re.search(bug.shows, reason) for reason in reasons), (
        f"{bug.what}: not found within {bug.seeds} seeds"
    )
