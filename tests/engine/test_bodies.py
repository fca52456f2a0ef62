"""The cache of bodies: a budget, pins, and rows that are waited for."""

from __future__ import annotations

from peeklock.broker.vocabulary.message import LOST_BODY
from peeklock.engine.bodies import PAYLOAD_OVERHEAD_BYTES, BodyCache, has_lost
from peeklock.store.encoding.body_rows import read_what_is_left

ROW = [b"x" * 100]
ROW_BYTES = 100 + PAYLOAD_OVERHEAD_BYTES


def committed(cache: BodyCache, *rows: int) -> None:
    for row in rows:
        cache.pin(row, ROW)
    cache.unpin(rows)


def held(cache: BodyCache, *rows: int) -> list[int]:
    """Which of the rows are in memory, told without touching them."""
    return [row for row in rows if row in cache._rows]


def test_the_least_recently_used_row_goes_first() -> None:
    cache = BodyCache(3 * ROW_BYTES)
    committed(cache, 1, 2, 3)
    assert cache.get(1, 0) == ROW[0]
    committed(cache, 4)
    assert held(cache, 1, 2, 3, 4) == [1, 3, 4]
    assert cache.get(2, 0) is None
    assert cache.size_bytes == 3 * ROW_BYTES


def test_the_budget_holds_at_its_limit_and_one_byte_past() -> None:
    for budget_bytes, expected in ((2 * ROW_BYTES, [1, 2]), (2 * ROW_BYTES - 1, [2])):
        cache = BodyCache(budget_bytes)
        committed(cache, 1, 2)
        assert held(cache, 1, 2) == expected


def test_a_row_that_cannot_be_read_has_a_lost_body_at_each_slot() -> None:
    row, is_sound = read_what_is_left(1, None)
    assert not is_sound
    assert has_lost(row)
    cache = BodyCache()
    cache.put(1, row)
    assert cache.get(1, 70) is LOST_BODY
    assert cache.size_bytes == 0


def test_an_uncommitted_row_stays_beyond_any_budget() -> None:
    cache = BodyCache(1)
    for row in range(1, 10):
        cache.pin(row, ROW)
    assert [cache.get(row, 0) for row in range(1, 10)] == ROW * 9
    assert list(cache.pinned) == list(range(1, 10))
    cache.unpin([1, 2])
    assert list(cache.pinned) == list(range(3, 10))
    assert held(cache, 1, 2) == [2]


def test_a_growing_row_is_read_while_it_grows() -> None:
    cache = BodyCache()
    payloads: list[bytes] = []
    cache.pin(1, payloads)
    payloads.append(b"a")
    assert cache.get(1, 0) == b"a"


def test_a_row_is_wanted_until_it_is_put() -> None:
    cache = BodyCache()
    cache.want(7)
    assert cache.wanted == {7}
    cache.put(7, ROW)
    assert cache.wanted == set()
    assert cache.get(7, 0) == ROW[0]
    cache.put(7, ROW)
    assert cache.size_bytes == ROW_BYTES


def test_a_dropped_row_gives_its_bytes_back() -> None:
    cache = BodyCache()
    committed(cache, 1)
    cache.drop(1)
    cache.drop(2)
    assert cache.get(1, 0) is None
    assert cache.size_bytes == 0
