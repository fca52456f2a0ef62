"""Which commits the event loop does itself: the decision alone."""

from __future__ import annotations

import pytest

from peeklock.store.sqlite.pace import (
    ALONE_S,
    CHANGES_MAX,
    DROPPED_BYTES_MAX,
    DROPPED_ROWS_MAX,
    QUICK_S,
    SLOW_S,
    WRITTEN_BYTES_MAX,
    Committers,
    Pace,
    is_small,
)


@pytest.mark.parametrize(
    "sizes",
    [
        (CHANGES_MAX, 0, 0, 0),
        (1, WRITTEN_BYTES_MAX, 0, 0),
        (1, 0, DROPPED_ROWS_MAX, 0),
        (1, 0, 1, DROPPED_BYTES_MAX),
    ],
)
def test_a_batch_is_small_up_to_each_of_the_limits(sizes: tuple[int, int, int, int]) -> None:
    assert is_small(*sizes)
    larger = [size + (size == max(sizes)) for size in sizes]
    assert not is_small(*larger)


def test_nothing_is_known_of_a_disk_at_first() -> None:
    pace = Pace()
    assert not pace.is_quick
    for _ in range(7):
        pace.took(QUICK_S / 5)
    assert pace.is_quick


@pytest.mark.parametrize("seconds", [SLOW_S, 1000 * SLOW_S])
def test_one_slow_commit_is_passed_over_and_two_in_a_row_are_not(seconds: float) -> None:
    pace = paced(QUICK_S / 5)
    pace.took(seconds)
    assert bool(pace.is_quick)  # bool(): else mypy takes the later one for impossible
    pace.took(seconds)
    assert not bool(pace.is_quick)
    commits = 0
    while not pace.is_quick:
        pace.took(QUICK_S / 5)
        commits += 1
    assert commits == 1


def test_a_disk_that_has_become_slow_is_left_to_the_thread_until_it_is_quick() -> None:
    pace = paced(QUICK_S / 5)
    for _ in range(100):
        pace.took(2 * QUICK_S)
    for _ in range(4):
        pace.took(QUICK_S / 5)
        assert not pace.is_quick
    for _ in range(4):
        pace.took(QUICK_S / 5)
    assert pace.is_quick


def test_a_disk_at_the_limit_is_quick() -> None:
    assert paced(0.99 * QUICK_S).is_quick
    assert not paced(1.01 * QUICK_S).is_quick


def paced(seconds: float) -> Pace:
    """Return the pace after many commits of so long."""
    pace = Pace()
    for _ in range(1000):
        pace.took(seconds)
    return pace


def test_a_store_is_alone_once_no_other_has_committed_for_a_while() -> None:
    committers = Committers()
    first, second, third = object(), object(), object()
    assert committers.note(first, 0.0)
    assert committers.note(first, 5.0)
    assert not committers.note(second, 5.0 + ALONE_S / 2)
    assert not committers.note(first, 6.0)
    assert not committers.note(first, 5.0 + 1.49 * ALONE_S)
    assert committers.note(first, 5.0 + 1.5 * ALONE_S)
    assert not committers.note(third, 7.0)
    assert not committers.note(second, 7.0 + 0.99 * ALONE_S)
    assert committers.note(second, 7.0 + ALONE_S)
