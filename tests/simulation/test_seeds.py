"""Seeds that once failed: each is named by what it found, and must pass for ever."""

from __future__ import annotations

import pytest

from tests.simulation.plan import run_seed

pytestmark = pytest.mark.simulation

FOUND = {
    0: "a delivery waited in the outbox, its message was removed meanwhile: its body was gone",
    115: "a peek waited for a body that was moved to a row not yet durable: read too early, the broker died",
    119: "two flows in one read: a delivery was sent with the first's credit, which the second took back",
}


@pytest.mark.parametrize("seed", sorted(FOUND), ids=lambda seed: f"seed-{seed}")
def test_a_seed_that_failed_once_passes(seed: int) -> None:
    """Req: R-02, L-16"""
    result = run_seed(seed)
    assert result.failure is None, result.failure
