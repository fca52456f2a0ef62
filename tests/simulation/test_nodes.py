"""Several nodes on one store with leases: what holds for one node holds over takeovers."""

from __future__ import annotations

import pytest

from tests.simulation.cluster.plan import run_nodes_seed

pytestmark = pytest.mark.simulation


@pytest.mark.parametrize("nodes", [2, 3])
def test_takeovers_lose_nothing_and_give_nothing_twice(nodes: int) -> None:
    """Req: R-02"""
    takeovers = 0
    for seed in range(4):
        result = run_nodes_seed(seed, nodes=nodes)
        assert result.failure is None, result.failure
        takeovers += result.counts["takeovers"]
    assert takeovers > 8


def test_one_seed_of_nodes_is_one_hash() -> None:
    assert run_nodes_seed(9).digest == run_nodes_seed(9).digest
    assert run_nodes_seed(9).digest != run_nodes_seed(9, nodes=2).digest


@pytest.mark.long
@pytest.mark.parametrize("nodes", [2, 3])
def test_many_seeds_of_nodes_keep_every_promise(nodes: int) -> None:
    for seed in range(100, 160):
        result = run_nodes_seed(seed, nodes=nodes)
        assert result.failure is None, f"seed {seed} with {nodes} nodes: {result.failure}"
