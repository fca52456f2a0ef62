"""Random damage of all files: it is found, harmless, or of the one kind that nothing can find."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.store.trials import run

LOST_SHARE_MAX = 0.03
"""A quarter of the trials begin as a power cut left the store; in some of them the very end is damaged."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("count", "seed"),
    [
        (30, 1),
        pytest.param(100, 1, marks=pytest.mark.long),
        pytest.param(1000, 2, marks=pytest.mark.soak),  # a minute, of more of the same
    ],
)
def test_random_damage_is_found(tmp_path: Path, count: int, seed: int) -> None:
    """A start that goes on has all facts; a rescued store is sound and gives no number again. Req: R-03."""
    outcomes = list(run(count, seed, tmp_path))
    wrong = [f"{each.what}: {each.verdict}" for each in outcomes if each.verdict.startswith("WRONG")]
    assert wrong == []
    verdicts = Counter(each.verdict for each in outcomes)
    assert verdicts["found"] + verdicts["found, rescued whole"] > 0.3 * count
    assert verdicts["end lost"] <= max(1, LOST_SHARE_MAX * count)
