"""The plan of a soak."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.soak.plan import BLOCK_S, ENDS_LIFE, PERIODS_S, Kind, plan


@pytest.mark.parametrize("minutes", [0.4, 2, 7, 60, 600])
@pytest.mark.parametrize("seed", range(5))
def test_a_run_has_each_kind_within_its_time(minutes: float, seed: int) -> None:
    events = plan(seed, minutes)
    assert {event.kind for event in events} == set(Kind)
    assert events == sorted(events)
    assert events[0].at_s > 0
    assert events[-1].at_s < minutes * 60
    assert events == plan(seed, minutes)


def test_seeds_differ() -> None:
    assert plan(1, 60) != plan(2, 60)


def test_events_grow_with_the_length() -> None:
    counts = Counter(event.kind for event in plan(0, 60))
    assert counts == {kind: 3600 // period_s for kind, period_s in PERIODS_S.items()}


@pytest.mark.parametrize("minutes", [0.4, 2, 60])
@pytest.mark.parametrize("seed", range(20))
def test_a_back_up_comes_before_its_increments_and_restores(minutes: float, seed: int) -> None:
    kinds = [event.kind for event in plan(seed, minutes)]
    first = kinds.index(Kind.BACKUP)
    assert first < kinds.index(Kind.INCREMENT)
    assert first < kinds.index(Kind.RESTORE)


def test_the_broker_lives_through_the_second_half_of_each_block() -> None:
    deaths = [event.at_s for event in plan(0, 60) if event.kind in ENDS_LIFE]
    assert len(deaths) > 60
    assert all((at_s + 10) % BLOCK_S < BLOCK_S / 2 + 20 for at_s in deaths)
