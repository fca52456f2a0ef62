"""Scenarios of the .NET client on a simulated broker, which gets frames in parts and answers late."""

from __future__ import annotations

import pytest

from tests.interop.dotnet.stage import PlayFailed
from tests.simulation.actors.visitors import Visit
from tests.simulation.bugs.registry import BUGS

pytestmark = pytest.mark.simulation


@pytest.mark.parametrize("seed", range(3))
def test_the_scenarios_are_played_beside_each_other(seed: int) -> None:
    """Req: T-11"""
    assert Visit(seed).run() > 20


@pytest.mark.long
@pytest.mark.parametrize("bug", ["hasty-drain", "held-after-roll-back", "lost-settlement"])
def test_a_planted_bug_is_found(bug: str) -> None:
    """Req: R-02"""
    with pytest.raises(PlayFailed):
        Visit(1, BUGS[bug].pieces()).run()
