"""The broker's clock against steps of the wall clock."""

from __future__ import annotations

from peeklock.server.clock import SlewedClock


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


def test_a_step_of_the_wall_clock_forward_is_met_slowly() -> None:
    """Req: S-04"""
    hands, clock = _clock()
    hands.wall += 3600
    hands.pass_time(1.0)
    clock.adjust()
    assert clock.now_ms() == 1_000_001_010  # one second passed, and 1 % of it was slewed
    for _ in range(10):
        hands.pass_time(1.0)
        clock.adjust()
    assert clock.now_ms() == 1_000_011_110


def test_a_step_of_the_wall_clock_backward_never_turns_time_back() -> None:
    """Req: S-04"""
    hands, clock = _clock()
    hands.wall -= 3600
    seen = [clock.now_ms()]
    for _ in range(100):
        hands.pass_time(0.003)
        clock.adjust()
        seen.append(clock.now_ms())
    assert seen == sorted(seen)
    assert seen[-1] - seen[0] == 297  # 300 ms passed, slewed by -1 %


def test_a_small_error_is_met_exactly() -> None:
    hands, clock = _clock()
    hands.wall += 0.005
    hands.pass_time(1.0)
    clock.adjust()
    assert clock.now_ms() == 1_000_001_005
