"""The broker's clock against steps of the wall clock."""

from __future__ import annotations

import pytest

from peeklock.server.loop.clock import SlewedClock


class _Hands:
    """Two clocks that a test moves by hand, in seconds."""

    def __init__(self) -> None:
        self.wall = 1_000_000.0
        self.monotonic = 50.0

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


def _clock() -> tuple[_Hands, SlewedClock]:
    hands = _Hands()
    return hands, SlewedClock(lambda: hands.wall, lambda: hands.monotonic)


def test_time_follows_the_monotonic_clock() -> None:
    hands, clock = _clock()
    hands.pass_time(1.5)
    assert clock.now_ms() == 1_000_001_500


@pytest.mark.parametrize("step_s", [3600, -3600, 6])
def test_a_step_of_the_wall_clock_is_told_once_when_it_lasts(step_s: int) -> None:
    """Req: S-04"""
    hands, clock = _clock()
    hands.wall += step_s
    told = []
    for _ in range(10):
        hands.pass_time(1.0)
        told.append(clock.adjust())
    assert told == [0, 0, step_s * 1000, 0, 0, 0, 0, 0, 0, 0]
    assert clock.now_ms() == 1_000_010_000
    assert clock.wall_ms() == 1_000_010_000 + step_s * 1000


def test_a_step_that_is_taken_back_is_none() -> None:
    hands, clock = _clock()
    hands.wall += 3600
    hands.pass_time(1.0)
    assert clock.adjust() == 0
    hands.wall -= 3600
    for _ in range(10):
        hands.pass_time(1.0)
        assert clock.adjust() == 0
    assert clock.wall_ms() == clock.now_ms() == 1_000_011_000


def test_a_suspension_is_time_that_passes() -> None:
    """Both clocks count it, whatever the loop's own clock does."""
    hands, clock = _clock()
    hands.pass_time(8 * 3600)
    assert clock.adjust() == 0
    assert clock.now_ms() == clock.wall_ms() == 1_000_000_000 + 8 * 3_600_000


@pytest.mark.parametrize("sign", [1, -1])
def test_a_small_error_is_slewed_and_time_never_goes_back(sign: int) -> None:
    """Req: S-04"""
    hands, clock = _clock()
    hands.wall += sign * 3
    seen = [clock.now_ms()]
    for _ in range(100):
        hands.pass_time(0.003)
        assert clock.adjust() == 0
        seen.append(clock.now_ms())
    assert seen == sorted(seen)
    assert abs(seen[-1] - seen[0] - (300 + sign * 3)) <= 1  # 1 % of it


def test_a_small_error_is_met_exactly() -> None:
    hands, clock = _clock()
    hands.wall += 0.005
    hands.pass_time(1.0)
    clock.adjust()
    assert clock.now_ms() == 1_000_001_005
