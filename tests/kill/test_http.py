"""The real broker process, killed while clients send and receive over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.kill.http_loop import HttpLoop

pytestmark = pytest.mark.kill


@pytest.mark.parametrize(("durability", "rounds"), [("fsync", 6), ("os", 4)])
def test_nothing_acknowledged_over_http_is_lost_or_returns(
    tmp_path: Path, durability: str, rounds: int
) -> None:
    """Req: R-01, R-02, L-01, L-05, S-01, T-09, C26"""
    loop = HttpLoop(tmp_path, seed=9, options=("--durability", durability))
    figures = asyncio.run(loop.run(rounds))
    assert figures["accepted"] > 200
    assert figures["completed"] > 50
    assert loop.answers > 100
